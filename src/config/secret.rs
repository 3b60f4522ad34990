//! Values that are used but never shown.

use std::fmt;

use serde::Deserialize;

/// A text that `Debug` hides.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The URL of a database; `Debug` and `Display` show it without its password
/// and its parameters.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The URL itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn shown(&self) -> String {
        let (url, parameters) = self.0.split_once(['?', '#']).unwrap_or((&self.0, ""));
        let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
        match rest.rsplit_once('@') {
            Some((user, host)) => match user.split_once(':') {
                Some((user, _)) => format!("{scheme}://{user}:…@{host}"),
                None => format!("{scheme}://{user}@{host}"),
            },
            // A `?` within the password, or an `@` within a parameter.
            None if parameters.contains('@') => format!("{scheme}://…"),
            None => url.to_owned(),
        }
    }
}

impl From<&str> for DatabaseUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("sqlite:outrigger.db", "sqlite:outrigger.db"),
            ("sqlite::memory:", "sqlite::memory:"),
            ("postgres://db.example/shop", "postgres://db.example/shop"),
            ("postgres://app@db.example/shop", "postgres://app@db.example/shop"),
            ("postgres://app:hush@db.example/shop", "postgres://app:…@db.example/shop"),
            ("postgres://app:h@sh:x@db.example/shop", "postgres://app:…@db.example/shop"),
            ("postgres://db.example/shop?password=hush", "postgres://db.example/shop"),
            ("postgres://app:hu?sh@db.example/shop", "postgres://…"),
        ] {
            assert_eq!(DatabaseUrl::from(url).to_string(), shown);
        }
        assert_eq!(format!("{:?}", Secret::from("hush")), "(hidden)");
    }
}
