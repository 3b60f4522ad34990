//! Durations, sizes and rates as people write them: `500ms`, `64MiB`, `20/s`.
//!
//! Each type parses from text, prints the same text again and travels through
//! JSON and TOML as that text.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A text that is no duration, size or rate; says what one looks like.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; write it like {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

/// A span of time, milliseconds at the finest: `500ms`, `10s`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    /// A span of so many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A span of so many seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The span as the standard library's type.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The span in milliseconds, at most `i64::MAX`.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError {
            text: text.to_owned(),
            what: "duration",
            example: "`500ms`, `10s` or `1h 30m`",
        };
        let duration = humantime::parse_duration(text.trim()).map_err(|_| error())?;
        // Finer than the database's clock would be silently cut; refuse it.
        if duration.subsec_nanos() % 1_000_000 != 0 || duration.as_millis() > i64::MAX as u128 {
            return Err(error());
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

as_text!(Span);

/// A number of bytes: `512B`, `64KiB`, `32MiB`, `1GiB` (powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

impl Bytes {
    /// So many kibibytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// So many mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes, for lengths in memory.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

const SIZES: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let trimmed = text.trim();
        SIZES
            .iter()
            .find_map(|(unit, shift)| Some((trimmed.strip_suffix(unit)?, *shift)))
            .and_then(|(number, shift)| {
                let n: u64 = number.trim().parse().ok()?;
                n.checked_mul(1 << shift)
            })
            .map(Self)
            .ok_or_else(|| UnitError {
                text: text.to_owned(),
                what: "size",
                example: "`512B`, `64KiB` or `32MiB`",
            })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = SIZES
            .into_iter()
            .find(|(_, shift)| self.0 >= 1 << shift && self.0.trailing_zeros() >= *shift)
            .unwrap_or(("B", 0));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

as_text!(Bytes);

/// So many in a second, minute or hour: `20/s`, `100/m`, `5000/h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    per: char,
}

impl Rate {
    /// So many a second.
    #[must_use]
    pub const fn per_second(count: u32) -> Self {
        Self { count, per: 's' }
    }

    /// How many are allowed within one period.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// How many may come at once: a second's worth.
    #[must_use]
    pub fn burst(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^32")]
        let burst = self.each_second().ceil() as u32;
        burst
    }

    /// How many a second, on average.
    #[must_use]
    pub fn each_second(self) -> f64 {
        let seconds = match self.per {
            's' => 1.0,
            'm' => 60.0,
            _ => 3600.0,
        };
        f64::from(self.count) / seconds
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parsed = text.trim().split_once('/').and_then(|(count, per)| {
            let count: u32 = count.trim().parse().ok().filter(|n| *n > 0)?;
            let per = per.trim().parse().ok().filter(|c| "smh".contains(*c))?;
            Some(Self { count, per })
        });
        parsed.ok_or_else(|| UnitError {
            text: text.to_owned(),
            what: "rate",
            example: "`20/s`, `100/m` or `5000/h`",
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.per)
    }
}

as_text!(Rate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["500ms", "10s", "1h 30m", "7days"] {
            let span: Span = text.parse().expect(text);
            assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }
        for text in ["1B", "64KiB", "32MiB", "1GiB", "1500B", "0B"] {
            assert_eq!(text.parse::<Bytes>().expect(text).to_string(), text);
        }
        for text in ["20/s", "100/m", "5000/h"] {
            assert_eq!(text.parse::<Rate>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "10", "-1s", "0.1ms", "ten seconds", "1us", "99999999999999y"] {
            let error = text.parse::<Span>().expect_err(text);
            assert!(error.to_string().contains("`500ms`"), "{error}");
        }
        for text in ["", "64", "-1MiB", "64MB", "99999999999GiB"] {
            text.parse::<Bytes>().expect_err(text);
        }
        for text in ["", "20", "0/s", "-1/s", "20/d", "/s"] {
            text.parse::<Rate>().expect_err(text);
        }
    }
}
