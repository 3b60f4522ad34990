//! Which HTTP requests a trigger may send: the grammar of its grants, and what
//! a request is once its URL is taken apart.
//!
//! A grant is `host`, `*.host` (every name below it, not itself) or either with
//! `:port`, a scheme before it and a method before that:
//! `GET https://api.example.com:8443`. Hosts are compared as a browser would
//! read them: in lower case and punycode, numbers as IPv4 addresses however
//! they are written, IPv4 that is mapped into IPv6 as IPv4.

use std::{fmt, net::IpAddr, str::FromStr};

use super::names::Invalid;

/// A grant that can't be used; the message says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("has `{grant}`, which {why}")]
pub struct GrantError {
    grant: String,
    why: &'static str,
}

/// How a server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Encrypted, and the server has proved who it is.
    Https,
    /// In the clear.
    Http,
}

impl Scheme {
    /// Its name in URLs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }

    /// The port where none is said.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
        }
    }
}

/// A host, in the one way of writing it that is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A name of DNS: lower case, punycode, no dot at its end.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl FromStr for Host {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match url::Host::parse(text).map_err(|_| "names no host that there could be")? {
            url::Host::Ipv4(address) => Ok(Self::Address(address.into())),
            url::Host::Ipv6(address) => Ok(Self::Address(IpAddr::V6(address).to_canonical())),
            url::Host::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(&name);
                let fits = |label: &str| (1..=63).contains(&label.len());
                if name.len() > 253 || !name.split('.').all(fits) {
                    return Err("names a host whose labels are empty or too long");
                }
                Ok(Self::Name(name.to_owned()))
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// A request as grants see it: not its path, query or headers, which may hold
/// secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The method.
    pub method: String,
    /// How the server is spoken to.
    pub scheme: Scheme,
    /// The server.
    pub host: Host,
    /// Its port.
    pub port: u16,
}

impl Outgoing {
    /// Takes an authority apart, `host` or `host:port`.
    ///
    /// # Errors
    /// When it is none, or has a user in it: `allowed.example@other.example`
    /// is read as one host or the other, depending on who reads.
    pub fn new(method: &str, scheme: Scheme, authority: &str) -> Result<Self, &'static str> {
        let (host, port) = split(authority)?;
        let (host, port) = (host.parse()?, port.unwrap_or(scheme.port()));
        Ok(Self { method: method.to_owned(), scheme, host, port })
    }

    /// What stands in its `Host` header: the port only where it isn't the
    /// scheme's own.
    #[must_use]
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if *port == self.scheme.port() { host.to_string() } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}://{}", self.method, self.scheme.as_str(), self.authority())
    }
}

/// Which hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    One(Host),
    /// Every name that ends with a dot and this.
    Below(String),
}

impl Hosts {
    fn cover(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::One(one), host) => one == host,
            (Self::Below(parent), Host::Name(name)) => is_below(name, parent),
            (Self::Below(_), Host::Address(_)) => false,
        }
    }

    fn meet(&self, other: &Self) -> Option<Self> {
        let within = match (self, other) {
            (Self::One(host), other) => other.cover(host),
            (Self::Below(a), Self::Below(b)) => a == b || is_below(a, b),
            (Self::Below(_), Self::One(_)) => return other.meet(self),
        };
        if within {
            return Some(self.clone());
        }
        match (self, other) {
            (Self::Below(a), Self::Below(b)) if is_below(b, a) => Some(other.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(host) => host.fmt(f),
            Self::Below(parent) => write!(f, "*.{parent}"),
        }
    }
}

fn is_below(name: &str, parent: &str) -> bool {
    // What is left ends with the dot, and no name begins with one.
    name.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// One entry of `grants.http`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGrant {
    /// Any method if absent.
    method: Option<String>,
    hosts: Hosts,
    /// The ways in, one or two.
    doors: Vec<(Scheme, u16)>,
}

impl HttpGrant {
    /// The narrowest grant that people write for a request.
    #[must_use]
    pub fn for_request(request: &Outgoing) -> Self {
        let hosts = Hosts::One(request.host.clone());
        let port = Some(request.port).filter(|port| *port != request.scheme.port());
        Self { method: None, hosts, doors: doors(None, port) }
    }

    /// Whether it allows this request.
    #[must_use]
    pub fn covers(&self, request: &Outgoing) -> bool {
        self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.hosts.cover(&request.host)
            && self.doors.contains(&(request.scheme, request.port))
    }

    /// What both allow, if there is anything.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Option<Self> {
        let method = match (&self.method, &other.method) {
            (Some(a), Some(b)) if a != b => return None,
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        let hosts = self.hosts.meet(&other.hosts)?;
        let both = self.doors.iter().filter(|door| other.doors.contains(door));
        let doors: Vec<_> = both.copied().collect();
        (!doors.is_empty()).then_some(Self { method, hosts, doors })
    }

    /// Whether it allows nothing that the other doesn't.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.meet(other).as_ref() == Some(self)
    }
}

impl FromStr for HttpGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        parse(text).map_err(|why| GrantError { grant: text.to_owned(), why })
    }
}

impl fmt::Display for HttpGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        match &self.doors[..] {
            [(scheme, port)] if *port == scheme.port() => {
                write!(f, "{}://{}", scheme.as_str(), self.hosts)
            }
            [(scheme, port)] => write!(f, "{}://{}:{port}", scheme.as_str(), self.hosts),
            [(_, a), (_, b)] if a == b => write!(f, "{}:{a}", self.hosts),
            _ => self.hosts.fmt(f),
        }
    }
}

/// Most entries of one list.
const ENTRIES_MAX: usize = 1_000;

/// Checks a list of grants.
///
/// # Errors
/// Names `field`, and the entry that is wrong.
pub fn check(field: &'static str, entries: &[String]) -> Result<(), Invalid> {
    if entries.len() > ENTRIES_MAX {
        let why = format!("has {} entries; the limit is {ENTRIES_MAX}", entries.len());
        return Err(Invalid::new(field, why));
    }
    let wrong = entries.iter().find_map(|entry| entry.parse::<HttpGrant>().err());
    wrong.map_or(Ok(()), |error| Err(Invalid::new(field, error.to_string())))
}

/// Longest method of a request.
const METHOD_MAX: usize = 20;

fn parse(text: &str) -> Result<HttpGrant, &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    let (method, rest) = match text.split_once(' ') {
        Some((method, rest)) => (Some(method), rest),
        None => (None, text),
    };
    if let Some(method) = method {
        let fits = method.len() <= METHOD_MAX && method.bytes().all(|b| b.is_ascii_uppercase());
        if !fits || method.is_empty() {
            return Err("begins with no method; write it like `GET example.com`");
        }
        if method == "CONNECT" {
            return Err("is for CONNECT, which no plugin may send");
        }
    }
    let (scheme, rest) = match rest.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Some(Scheme::Https), rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Some(Scheme::Http), rest),
        Some(_) => return Err("has a scheme that is neither `http` nor `https`"),
        None => (None, rest),
    };
    if rest.contains(['/', '?', '#']) {
        return Err("has a path; a grant ends with the host or its port");
    }
    if rest.contains([' ', '%']) {
        return Err("has a character that is no part of a host");
    }
    let (host, port) = split(rest)?;
    let hosts = match host.strip_prefix("*.") {
        Some(parent) => match parent.parse()? {
            Host::Name(parent) => Hosts::Below(parent),
            Host::Address(_) => return Err("has a `*` before an address"),
        },
        None if host.contains('*') => {
            return Err("has a `*` that isn't the whole first label, as in `*.example.com`");
        }
        None => Hosts::One(host.parse()?),
    };
    if matches!(&hosts, Hosts::Below(parent) if parent.contains('*')) {
        return Err("has more than one `*`");
    }
    Ok(HttpGrant { method: method.map(str::to_owned), hosts, doors: doors(scheme, port) })
}

fn doors(scheme: Option<Scheme>, port: Option<u16>) -> Vec<(Scheme, u16)> {
    let door = |scheme: Scheme| (scheme, port.unwrap_or(scheme.port()));
    match scheme {
        Some(scheme) => vec![door(scheme)],
        None => vec![door(Scheme::Https), door(Scheme::Http)],
    }
}

/// Host and port of `host`, `host:port`, `[address]` and `[address]:port`.
fn split(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    if authority.contains('@') {
        return Err("has a user in it; leave out what stands before the `@`");
    }
    let end = authority.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match authority[end..].find(':') {
        Some(colon) => {
            let (host, port) = authority.split_at(end + colon);
            (host, Some(&port[1..]))
        }
        None => (authority, None),
    };
    let Some(port) = port else { return Ok((host, None)) };
    if port.contains(':') {
        return Err("has more than one `:`; an IPv6 address stands in brackets");
    }
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(port) if digits && port > 0 => Ok((host, Some(port))),
        _ => Err("has a port that is not between 1 and 65535"),
    }
}

#[cfg(test)]
mod tests;
