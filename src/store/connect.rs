//! From a URL to a store.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use super::{Store, StoreError, postgres::Postgres, sqlite::Sqlite};

/// A prefix for table names, safe to stand in SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(String);

impl Prefix {
    /// The prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("outrigger_".into())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let first = |c: char| c.is_ascii_lowercase() || c == '_';
        // The longest name behind it has 21 bytes, PostgreSQL's limit is 63.
        if text.len() > 40 || !text.starts_with(first) || !text.chars().all(rest) {
            return Err(format!(
                "`{text}` is no safe table prefix: up to 40 of a-z, 0-9 and _, not beginning with a digit"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// How to use a database.
#[derive(Debug, Clone)]
pub struct Options {
    /// Before every table name.
    pub prefix: Prefix,
    /// Lanes of a new PostgreSQL schema; an existing one keeps its own.
    pub lanes: u16,
    /// Connections for the router and the interface together.
    pub connections: u32,
    /// How long to wait for a connection, a lock or an answer.
    pub patience: Duration,
    /// Whether PostgreSQL is to notify sleeping hosts of new events.
    pub notify: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: Prefix::default(),
            lanes: 16,
            connections: 10,
            patience: Duration::from_secs(10),
            notify: true,
        }
    }
}

/// Opens the database that a URL names: `postgres://…`, `sqlite:path` or
/// `sqlite::memory:`. Doesn't migrate.
///
/// # Errors
/// When the URL is no such thing, or the database can't be opened.
pub async fn connect(url: &str, options: &Options) -> Result<Arc<dyn Store>, StoreError> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "postgres" | "postgresql" => Ok(Arc::new(Postgres::connect(url, options)?)),
        "sqlite" => Ok(Arc::new(Sqlite::connect(url, options).await?)),
        _ => Err(StoreError::Setting(
            "the database URL begins with neither `postgres:` nor `sqlite:`".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_safe_in_sql() {
        for good in ["outrigger_", "_", "a1_"] {
            good.parse::<Prefix>().expect(good);
        }
        for bad in ["", "1a", "A", "a;b", "a b", "a\"", "a-b", &"a".repeat(41)] {
            bad.parse::<Prefix>().expect_err(bad);
        }
    }
}
