//! What guests' requests get at the most.

use serde::{Deserialize, Serialize};

use crate::model::{names::Invalid, range::AddressRange, units::Span};

/// Bounds on what plugins send over HTTP from this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Addresses that requests may go to although they are not public.
    pub allow: Vec<AddressRange>,
    /// Connections open at once, all calls together; one project has at most
    /// three of four.
    pub connections: u32,
    /// Requests that one call may send, those that were refused included.
    pub requests_per_call: u32,
    /// Longest wait for a connection, the lookup of the name and the wait for
    /// one's turn included.
    pub connect_timeout: Span,
    /// Longest wait for the head of a response, and between two parts of its
    /// body; the call's deadline comes first.
    pub read_timeout: Span,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            connections: 256,
            requests_per_call: 100,
            connect_timeout: Span::from_secs(10),
            read_timeout: Span::from_secs(60),
        }
    }
}

impl HttpSettings {
    /// Checks what the types can't say.
    ///
    /// # Errors
    /// Names the setting that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(4..=10_000).contains(&self.connections) {
            return Err(Invalid::new("connections", "is not between 4 and 10000"));
        }
        if !(1..=10_000).contains(&self.requests_per_call) {
            return Err(Invalid::new("requests_per_call", "is not between 1 and 10000"));
        }
        let (milli, hour) = (Span::from_millis(1), Span::from_secs(3600));
        for (field, span) in
            [("connect_timeout", self.connect_timeout), ("read_timeout", self.read_timeout)]
        {
            if !(milli..=hour).contains(&span) {
                return Err(Invalid::new(field, "is not between 1ms and 1h"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_named() {
        let good = HttpSettings::default;
        assert_eq!(good().validate(), Ok(()));
        for (field, wrong) in [
            ("connections", HttpSettings { connections: 0, ..good() }),
            ("requests_per_call", HttpSettings { requests_per_call: 0, ..good() }),
            ("connect_timeout", HttpSettings { connect_timeout: Span::from_millis(0), ..good() }),
            ("read_timeout", HttpSettings { read_timeout: Span::from_secs(3601), ..good() }),
        ] {
            assert_eq!(wrong.validate().expect_err(field).field, field);
        }
    }
}
