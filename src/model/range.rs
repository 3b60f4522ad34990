//! Ranges of IP addresses, as people write them: `10.1.0.0/16`, `127.0.0.1`.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A text that is no range of addresses; says what one looks like.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no range of addresses; write it like `10.1.0.0/16`, `127.0.0.1` or `fd00::/8`")]
pub struct RangeError(String);

/// Addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let trimmed = text.trim();
        let net = trimmed.parse::<IpNet>().or_else(|_| trimmed.parse::<IpAddr>().map(IpNet::from));
        net.map(Self).map_err(|_| RangeError(text.to_owned()))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for AddressRange {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddressRange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_or_many() {
        for (text, within, beyond) in [
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::1", "::1", "::2"),
        ] {
            let range: AddressRange = text.parse().expect(text);
            assert!(range.contains(within.parse().expect("an address")), "{text}");
            assert!(!range.contains(beyond.parse().expect("an address")), "{text}");
            assert_eq!(range.to_string().parse(), Ok(range));
        }
        for bad in ["", "10.1", "10.0.0.0/33", "localhost", "*"] {
            bad.parse::<AddressRange>().expect_err(bad);
        }
    }
}
