//! Which texts and schema versions a trigger's match covers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::names::MAX_TEXT;

/// A pattern that can't be used; the message says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{pattern}` {why}")]
pub struct PatternError {
    pattern: String,
    why: &'static str,
}

/// A text in which `*` stands for any run of characters, none included.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// The pattern that covers everything.
    #[must_use]
    pub fn any() -> Self {
        Self("*".into())
    }

    /// Whether the pattern covers this text.
    #[must_use]
    pub fn covers(&self, text: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else {
            return self.0 == text;
        };
        let Some(mut text) = text.strip_prefix(head) else {
            return false;
        };
        let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost place of each piece leaves the most room for the next.
        for piece in middle.split('*') {
            match text.find(piece) {
                Some(at) => text = &text[at + piece.len()..],
                None => return false,
            }
        }
        text.ends_with(tail)
    }

    /// Whether it covers all that another pattern covers.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        // Only a `*` here can stand for a `*` there: no text of a pattern has one.
        self.covers(&other.0)
    }

    /// The text itself if it has no `*`: what an index can look up.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(&self.0)
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let error = |why| Err(PatternError { pattern: text.to_owned(), why });
        if text.is_empty() {
            return error("is empty; `*` covers everything");
        }
        if text.len() > MAX_TEXT {
            return error("is longer than 512 bytes");
        }
        if text.contains(|c: char| c.is_control() || "?[]{}\\".contains(c)) {
            return error("has a character that is no part of one; only `*` is a wildcard");
        }
        if text.contains("**") {
            return error("has `**`; one `*` already covers dots");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    Equal,
    AtLeast,
    Greater,
}

/// Schema versions that a trigger takes: `*`, `2`, `>=1`, or several that must
/// all hold, `>=2, <4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    written: String,
    bounds: Vec<(Comparison, u32)>,
}

impl Versions {
    /// Every version.
    #[must_use]
    pub fn any() -> Self {
        Self { written: "*".into(), bounds: Vec::new() }
    }

    /// Whether a version is among them.
    #[must_use]
    pub fn cover(&self, version: u32) -> bool {
        self.bounds.iter().all(|(comparison, bound)| match comparison {
            Comparison::Less => version < *bound,
            Comparison::AtMost => version <= *bound,
            Comparison::Equal => version == *bound,
            Comparison::AtLeast => version >= *bound,
            Comparison::Greater => version > *bound,
        })
    }
}

impl FromStr for Versions {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.trim() == "*" {
            return Ok(Self::any());
        }
        let bound = |part: &str| {
            let part = part.trim();
            let operators = [
                (">=", Comparison::AtLeast),
                ("<=", Comparison::AtMost),
                (">", Comparison::Greater),
                ("<", Comparison::Less),
                ("=", Comparison::Equal),
                ("", Comparison::Equal),
            ];
            let (operator, comparison) =
                operators.into_iter().find(|(operator, _)| part.starts_with(operator))?;
            Some((comparison, part[operator.len()..].trim().parse().ok()?))
        };
        let bounds = text.split(',').map(bound).collect::<Option<Vec<_>>>();
        match bounds {
            Some(bounds) => Ok(Self { written: text.to_owned(), bounds }),
            None => Err(PatternError {
                pattern: text.to_owned(),
                why: "names no schema versions; write `*`, `2`, `>=1` or `>=2, <4`",
            }),
        }
    }
}

impl Serialize for Versions {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.written)
    }
}

impl<'de> Deserialize<'de> for Versions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a schema version such as 2 or \">=1\"")]
        enum Written {
            Number(u32),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Number(n) => n.to_string(),
            Written::Text(text) => text,
        }
        .parse()
        .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run() {
        for (pattern, covered, not) in [
            ("order.*", &["order.placed", "order."][..], &["order", "border.x"][..]),
            ("*", &["", "x"], &[]),
            ("a*b*c", &["abc", "a-b-b-c"], &["ac", "abcd", "xabc"]),
            ("*.placed", &["order.placed"], &["order.placed2"]),
            ("ab*ba", &["abba", "ab-ba"], &["aba", "ab"]),
            ("exact", &["exact"], &["exactly", ""]),
        ] {
            let parsed: Pattern = pattern.parse().expect(pattern);
            for text in covered {
                assert!(parsed.covers(text), "{pattern} {text}");
            }
            for text in not {
                assert!(!parsed.covers(text), "{pattern} {text}");
            }
        }
        for bad in ["", "[a]", "a?", "a**", "a\n", "{a,b}"] {
            bad.parse::<Pattern>().expect_err(bad);
        }
    }

    #[test]
    fn a_pattern_includes_what_it_covers_all_of() {
        let of = |text: &str| text.parse::<Pattern>().expect(text);
        for (wide, narrow, includes) in [
            ("*", "a*b", true),
            ("a*", "a*b", true),
            ("a*b", "a*", false),
            ("a*", "*", false),
            ("a.*", "a.b", true),
            ("a.b", "a.*", false),
            ("a*c", "a*b*c", true),
            ("a*b*c", "a*c", false),
            ("a", "a", true),
        ] {
            assert_eq!(of(wide).includes(&of(narrow)), includes, "{wide} {narrow}");
        }
    }

    #[test]
    fn versions_hold_all_their_bounds() {
        let of = |text: &str| text.parse::<Versions>().expect(text);
        assert!(of("*").cover(0) && of("2").cover(2) && !of("2").cover(3));
        let range = of(">=2, <4");
        assert_eq!([1, 2, 3, 4].map(|v| range.cover(v)), [false, true, true, false]);
        for bad in ["", ">=", "=>1", "a", "1,", "-1"] {
            bad.parse::<Versions>().expect_err(bad);
        }
    }
}
