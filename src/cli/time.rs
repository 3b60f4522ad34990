//! Points in time, as they are typed and shown.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, UNIX_EPOCH},
};

/// A point in time, in milliseconds since 1970: typed as that, or as a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time(pub(super) i64);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(millis) = text.parse() {
            return Ok(Self(millis));
        }
        let error = || format!("`{text}` is no time; write it like 2030-01-31T12:00:00Z");
        let time = humantime::parse_rfc3339_weak(text).map_err(|_| error())?;
        let since = time.duration_since(UNIX_EPOCH).map_err(|_| error())?;
        i64::try_from(since.as_millis()).map(Self).map_err(|_| error())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since 1970 as a date.
pub(super) fn show(millis: i64) -> String {
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    match time.and_then(|time| UNIX_EPOCH.checked_add(time)) {
        // Beyond year 9999 there is no such form.
        Some(time) if millis < 253_402_300_800_000 => {
            humantime::format_rfc3339_millis(time).to_string()
        }
        _ => millis.to_string(),
    }
}

/// A span of milliseconds, to the second where it is long.
pub(super) fn span(millis: i64) -> String {
    let millis = u64::try_from(millis).unwrap_or(0);
    let span = Duration::from_millis(if millis < 10_000 { millis } else { millis / 1000 * 1000 });
    humantime::format_duration(span).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_typed_in_both_forms() {
        assert_eq!("1700000000000".parse(), Ok(Time(1_700_000_000_000)));
        assert_eq!("2023-11-14T22:13:20Z".parse(), Ok(Time(1_700_000_000_000)));
        assert_eq!("2023-11-14 22:13:20".parse(), Ok(Time(1_700_000_000_000)));
        for bad in ["tomorrow", "2023-11-14T22:13:20+01:00", "1960-01-01T00:00:00Z", ""] {
            bad.parse::<Time>().expect_err(bad);
        }
        assert_eq!(show(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!((show(-1).as_str(), show(i64::MAX).as_str()), ("-1", "9223372036854775807"));
        assert_eq!((span(1500).as_str(), span(61_500).as_str()), ("1s 500ms", "1m 1s"));
    }
}
