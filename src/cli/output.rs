//! What commands print: tables for people, the host's own JSON for programs.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use serde_json::Value;

use super::{client::Answer, time};

/// Where commands print to.
#[derive(Clone, Copy)]
pub(super) struct Output {
    json: bool,
}

/// How a member of an answer is shown.
#[derive(Clone, Copy)]
pub(super) enum Show {
    /// As it is.
    Plain,
    /// Milliseconds since 1970, as a date.
    Time,
    /// The first digits of a digest.
    Digest,
    /// At most so many characters of its first line.
    Short(usize),
}

/// A column: its heading, the member's JSON pointer, how it is shown.
pub(super) type Column = (&'static str, &'static str, Show);

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints the answer as it came if JSON was asked for. Answers whether.
    pub(super) fn json(self, answer: &Answer) -> bool {
        if self.json && !answer.text().is_empty() {
            self.line(answer.text());
        }
        self.json
    }

    /// Whether JSON was asked for.
    pub(super) fn is_json(self) -> bool {
        self.json
    }

    /// Prints a line. A reader that has gone, such as `head`, ends the process.
    #[expect(clippy::unused_self, reason = "nothing is printed but through a value of this type")]
    pub(super) fn line(self, text: impl Display) {
        if let Err(error) = writeln!(io::stdout(), "{text}") {
            let gone = error.kind() == io::ErrorKind::BrokenPipe;
            std::process::exit(i32::from(!gone));
        }
    }

    /// Prints a line if it can be printed.
    #[expect(clippy::unused_self, reason = "nothing is printed but through a value of this type")]
    pub(super) fn try_line(self, text: impl Display) {
        let _ = writeln!(io::stdout(), "{text}");
    }

    /// Prints what isn't a result, for people alone.
    pub(super) fn note(self, text: impl Display) {
        if !self.json {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Prints a list as the host answered it.
    pub(super) fn list(self, answer: &Answer, columns: &[Column], none: &str) {
        if self.json(answer) {
            return;
        }
        let items = answer.value()["items"].as_array().map_or(&[][..], Vec::as_slice);
        if items.is_empty() {
            self.note(none);
            return;
        }
        self.table(items, columns);
        if let Some(next) = answer.value()["next"].as_str() {
            self.note(format_args!("There are more: --cursor {next}"));
        }
    }

    /// Prints items in columns that are as wide as they need to be.
    pub(super) fn table(self, items: &[Value], columns: &[Column]) {
        let heading = columns.iter().map(|column| column.0.to_owned()).collect();
        let cells = |item| columns.iter().map(|(_, at, show)| cell(item, at, *show)).collect();
        let rows: Vec<Vec<String>> =
            std::iter::once(heading).chain(items.iter().map(cells)).collect();
        let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for row in &rows {
            let line = row.iter().zip(&widths).fold(String::new(), |line, (cell, width)| {
                format!("{line}{cell:<width$}  ", width = *width)
            });
            self.line(line.trim_end());
        }
    }

    /// Prints one item, a member a line.
    pub(super) fn item(self, item: &Value, members: &[Column]) {
        let width = members.iter().map(|member| member.0.len()).max().unwrap_or(0);
        for (name, at, show) in members {
            if item.pointer(at).is_some() {
                self.line(format_args!("{name:<width$}  {}", cell(item, at, *show)));
            }
        }
    }
}

/// What is said of one member.
pub(super) fn cell(item: &Value, pointer: &str, show: Show) -> String {
    let value = match item.pointer(pointer) {
        None | Some(Value::Null) => return "-".into(),
        Some(value) => value,
    };
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            items.iter().map(|item| cell(item, "", Show::Plain)).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    match show {
        Show::Plain => clean(&text),
        Show::Time => value.as_i64().map_or_else(|| clean(&text), time::show),
        Show::Digest => clean(&text.chars().take(12).collect::<String>()),
        Show::Short(max) => shorten(&text, max),
    }
}

fn shorten(text: &str, max: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let cut = line.chars().count() > max || text.lines().nth(1).is_some();
    let short: String = line.chars().take(max).collect();
    if cut { clean(&short) + "…" } else { clean(&short) }
}

/// Text that came from elsewhere, without what a terminal would obey.
pub(super) fn clean(text: &str) -> String {
    let escape =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_for_people() {
        let item = json!({
            "at": 0, "digest": "0123456789abcdef", "none": null, "list": ["a", "b"],
            "error": "first\nsecond", "bad": "\u{1b}[2J", "deep": {"n": 5},
        });
        for (pointer, show, text) in [
            ("/at", Show::Time, "1970-01-01T00:00:00.000Z"),
            ("/digest", Show::Digest, "0123456789ab"),
            ("/none", Show::Plain, "-"),
            ("/missing", Show::Time, "-"),
            ("/list", Show::Plain, "a, b"),
            ("/error", Show::Short(20), "first…"),
            ("/error", Show::Short(2), "fi…"),
            ("/bad", Show::Plain, "\\u{1b}[2J"),
            ("/deep/n", Show::Plain, "5"),
        ] {
            assert_eq!(cell(&item, pointer, show), text, "{pointer}");
        }
    }
}
