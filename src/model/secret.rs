//! A project's secret: its value, which is never shown.

use std::fmt;

use super::{names::Invalid, units::Bytes};

/// Shortest value, in bytes: anything shorter could not be told from other
/// text in a log, so it could not be taken out of one.
pub const VALUE_MIN: usize = 8;

/// Longest value, in bytes.
pub const VALUE_MAX: Bytes = Bytes::kib(64);

/// Secrets that one project may have.
pub const COUNT_MAX: u32 = 100;

/// Secrets that one trigger may be granted.
pub const GRANTS_MAX: usize = 32;

/// Bytes that the secrets of one trigger may have together.
pub const GRANTED_MAX: Bytes = Bytes::kib(256);

/// The value of a secret; `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(String);

impl SecretValue {
    /// A value that may be stored.
    ///
    /// # Errors
    /// When it is too short or too long.
    pub fn new(value: String) -> Result<Self, Invalid> {
        let has = value.len();
        if has < VALUE_MIN {
            let why = format!(
                "has {has} bytes; it needs {VALUE_MIN}, since a shorter one can't be told from \
                 other text and kept out of logs"
            );
            return Err(Invalid::new("value", why));
        }
        if has > VALUE_MAX.as_usize() {
            return Err(Invalid::new("value", format!("has {has} bytes; it may have {VALUE_MAX}")));
        }
        Ok(Self(value))
    }

    /// The value itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_bounds_and_is_never_shown() {
        let value = SecretValue::new("hush-hush".into()).expect("long enough");
        assert_eq!((format!("{value:?}").as_str(), value.expose()), ("(hidden)", "hush-hush"));
        for (bytes, fits) in [(7, false), (8, true), (64 << 10, true), ((64 << 10) + 1, false)] {
            let error = SecretValue::new("x".repeat(bytes)).err().map(|error| error.to_string());
            assert_eq!(error.is_none(), fits, "{bytes}: {error:?}");
        }
    }
}
