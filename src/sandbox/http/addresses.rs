//! Which addresses a guest's request may go to: those of the public internet,
//! and what the operator allows beside them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::range::AddressRange;

/// Addresses that are refused, as bits, their number, and what they are. Of
/// overlapping ones the first counts.
const V4: [([u8; 4], u32, &str); 17] = [
    ([0, 0, 0, 0], 8, "unspecified"),
    ([10, 0, 0, 0], 8, "private"),
    ([100, 64, 0, 0], 10, "shared"),
    ([127, 0, 0, 0], 8, "loopback"),
    ([169, 254, 0, 0], 16, "link-local"),
    ([172, 16, 0, 0], 12, "private"),
    ([192, 0, 0, 0], 24, "reserved"),
    ([192, 0, 2, 0], 24, "documentation"),
    ([192, 88, 99, 0], 24, "reserved"),
    ([192, 168, 0, 0], 16, "private"),
    ([198, 18, 0, 0], 15, "benchmarking"),
    ([198, 51, 100, 0], 24, "documentation"),
    ([203, 0, 113, 0], 24, "documentation"),
    // What a virtual machine of Azure asks for its secrets; it looks public.
    ([168, 63, 129, 16], 32, "metadata"),
    ([224, 0, 0, 0], 4, "multicast"),
    ([255, 255, 255, 255], 32, "broadcast"),
    ([240, 0, 0, 0], 4, "reserved"),
];

/// Likewise; what is in none of them is public if it begins with `2000::/3`.
const V6: [([u16; 2], u32, &str); 9] = [
    // With it the tunnels of Teredo, whose ends are anywhere.
    ([0x2001, 0x0000], 23, "reserved"),
    ([0x2001, 0x0db8], 32, "documentation"),
    ([0x3fff, 0x0000], 20, "documentation"),
    ([0xfc00, 0x0000], 7, "private"),
    ([0xfe80, 0x0000], 10, "link-local"),
    ([0xfec0, 0x0000], 10, "private"),
    ([0xff00, 0x0000], 8, "multicast"),
    // NAT64 within one network, and the first of what no network routes.
    ([0x0064, 0xff9b], 32, "reserved"),
    ([0x0000, 0x0000], 8, "reserved"),
];

/// Checks an address that a connection is about to be made to, and answers the
/// one to use: IPv4 that is mapped into IPv6 becomes IPv4.
///
/// # Errors
/// What it is instead of a public one.
pub(super) fn check(address: IpAddr, allow: &[AddressRange]) -> Result<IpAddr, &'static str> {
    let address = address.to_canonical();
    match kind(address) {
        Some(kind) if !allow.iter().any(|range| range.contains(address)) => Err(kind),
        _ => Ok(address),
    }
}

/// What an address is, unless it is public.
fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Some("unspecified"),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some("loopback"),
        IpAddr::V6(address) => match embedded(address) {
            Some(within) => v4(within),
            None => v6(address),
        },
    }
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let differ = |net: &[u8; 4], length: u32| (bits ^ u32::from_be_bytes(*net)) >> (32 - length);
    V4.iter().find(|(net, length, _)| differ(net, *length) == 0).map(|(.., kind)| *kind)
}

fn v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, ..] = address.segments();
    let bits = u32::from(a) << 16 | u32::from(b);
    let net = |net: &[u16; 2]| u32::from(net[0]) << 16 | u32::from(net[1]);
    let range = V6.iter().find(|(first, length, _)| (bits ^ net(first)) >> (32 - length) == 0);
    let public = bits >> 29 == 0b001;
    range.map(|(.., kind)| *kind).or((!public).then_some("reserved"))
}

/// The IPv4 address that an IPv6 address leads to through a translator (NAT64)
/// or a relay (6to4).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Result<IpAddr, &'static str> {
        check(address.parse().expect(address), &[])
    }

    #[test]
    fn what_is_not_public_is_refused() {
        for (address, kind) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.1", "private"),
            ("100.64.0.1", "shared"),
            ("100.100.100.200", "shared"),
            ("100.127.255.255", "shared"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("169.254.169.254", "link-local"),
            ("168.63.129.16", "metadata"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.192", "reserved"),
            ("192.0.2.1", "documentation"),
            ("192.88.99.1", "reserved"),
            ("192.168.1.1", "private"),
            ("198.18.0.1", "benchmarking"),
            ("198.19.255.255", "benchmarking"),
            ("198.51.100.1", "documentation"),
            ("203.0.113.1", "documentation"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::127.0.0.1", "reserved"),
            ("::8.8.8.8", "reserved"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:a9fe:a9fe", "link-local"),
            ("::ffff:0:127.0.0.1", "reserved"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b::169.254.169.254", "link-local"),
            ("64:ff9b:1::10.0.0.1", "reserved"),
            ("100::1", "reserved"),
            ("2001::1", "reserved"),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "reserved"),
            ("2001:2::1", "reserved"),
            ("2001:db8::1", "documentation"),
            ("2002:7f00:1::", "loopback"),
            ("2002:a9fe:a9fe::1", "link-local"),
            ("3fff::1", "documentation"),
            ("4000::1", "reserved"),
            ("5f00::1", "reserved"),
            ("fc00::1", "private"),
            ("fd00:ec2::254", "private"),
            ("fe80::1", "link-local"),
            ("fec0::1", "private"),
            ("ff02::1", "multicast"),
        ] {
            assert_eq!(of(address), Err(kind), "{address}");
        }
    }

    #[test]
    fn what_is_public_is_reached_in_its_plain_form() {
        for (address, plain) in [
            ("8.8.8.8", "8.8.8.8"),
            ("100.63.255.255", "100.63.255.255"),
            ("100.128.0.0", "100.128.0.0"),
            ("172.15.255.255", "172.15.255.255"),
            ("172.32.0.0", "172.32.0.0"),
            ("192.0.1.0", "192.0.1.0"),
            ("198.17.255.255", "198.17.255.255"),
            ("223.255.255.255", "223.255.255.255"),
            ("::ffff:8.8.8.8", "8.8.8.8"),
            ("64:ff9b::8.8.8.8", "64:ff9b::808:808"),
            ("2002:808:808::1", "2002:808:808::1"),
            ("2001:200::1", "2001:200::1"),
            ("2001:4860:4860::8888", "2001:4860:4860::8888"),
            ("2606:4700::1111", "2606:4700::1111"),
        ] {
            assert_eq!(of(address), Ok(plain.parse().expect(plain)), "{address}");
        }
    }

    #[test]
    fn an_operator_allows_ranges_and_nothing_beside_them() {
        let allow: Vec<AddressRange> =
            ["10.1.0.0/16", "127.0.0.1", "fd12::/16"].map(|r| r.parse().expect(r)).into();
        for (address, allowed) in [
            ("10.1.2.3", true),
            ("10.2.0.1", false),
            ("127.0.0.1", true),
            ("127.0.0.2", false),
            ("::ffff:10.1.0.1", true),
            ("::1", false),
            ("fd12::1", true),
            ("fd13::1", false),
            ("64:ff9b::10.1.0.1", false),
            ("8.8.8.8", true),
        ] {
            let checked = check(address.parse().expect(address), &allow);
            assert_eq!(checked.is_ok(), allowed, "{address}");
        }
    }
}
