//! What commands read: documents and events, from files or standard input.

use std::{
    fs,
    io::{self, IsTerminal as _, Read as _},
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The text of a file, or of standard input if it is `-`.
pub(super) fn text(file: &Path) -> Result<String> {
    if file != Path::new("-") {
        return fs::read_to_string(file).with_context(|| file.display().to_string());
    }
    if io::stdin().is_terminal() {
        bail!("name a file, or send the text to standard input");
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("standard input")?;
    Ok(text)
}

/// The bytes of a file.
pub(super) fn bytes(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| file.display().to_string())
}

/// A document in JSON, if it begins with a brace, or in TOML.
pub(super) fn document(file: &Path) -> Result<Value> {
    parse(&text(file)?).with_context(|| file.display().to_string())
}

fn parse(text: &str) -> Result<Value> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).context("it is no JSON");
    }
    let table: toml::Table = text.parse().context("it is no TOML")?;
    serde_json::to_value(table).context("it has no form in JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_the_same_in_both_forms() {
        let same = json!({"match": {"eventName": "order.*"}, "retry": {"factor": 1.5}});
        assert_eq!(parse(&same.to_string()).expect("JSON"), same);
        let toml = "match = { eventName = 'order.*' }\n[retry]\nfactor = 1.5\n";
        assert_eq!(parse(toml).expect("TOML"), same);
        for bad in ["{", "[]", "a = ", "nothing"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
