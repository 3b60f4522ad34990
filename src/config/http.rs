//! `[http]`: what plugins may send.

use serde::Deserialize;

use crate::{
    model::{range::AddressRange, units::Span},
    sandbox::HttpSettings,
};

/// `[http]`: where plugins' requests may go, and how many there may be. Which
/// hosts a plugin may send requests to is for its trigger to say.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Addresses that requests may go to although they are not public, such as
    /// `10.1.0.0/16`; in the variable separated by commas.
    /// `OUTRIGGER_HTTP_ALLOW`, none.
    pub allow: Vec<AddressRange>,
    /// Connections open at once, all calls together; one project has at most
    /// three of four. `OUTRIGGER_HTTP_CONNECTIONS`, 256.
    pub connections: u32,
    /// Requests that one call may send, those that were refused included.
    /// `OUTRIGGER_HTTP_REQUESTS_PER_CALL`, 100.
    pub requests_per_call: u32,
    /// Longest wait for a connection, the lookup of the name and the wait for
    /// one's turn included. `OUTRIGGER_HTTP_CONNECT_TIMEOUT`, `10s`.
    pub connect_timeout: Span,
    /// Longest wait for the head of a response, and between two parts of its
    /// body; the call's deadline comes first.
    /// `OUTRIGGER_HTTP_READ_TIMEOUT`, `60s`.
    pub read_timeout: Span,
}

impl Default for Http {
    fn default() -> Self {
        let own = HttpSettings::default();
        Self {
            allow: own.allow,
            connections: own.connections,
            requests_per_call: own.requests_per_call,
            connect_timeout: own.connect_timeout,
            read_timeout: own.read_timeout,
        }
    }
}

impl From<&Http> for HttpSettings {
    fn from(own: &Http) -> Self {
        Self {
            allow: own.allow.clone(),
            connections: own.connections,
            requests_per_call: own.requests_per_call,
            connect_timeout: own.connect_timeout,
            read_timeout: own.read_timeout,
        }
    }
}
