//! Which names are allowed, and what is said of one that isn't.

/// A name or value that can't be accepted; the message says which and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct Invalid {
    /// The field, as it is called in JSON.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub why: String,
}

impl Invalid {
    /// An error about one field.
    pub fn new(field: &'static str, why: impl Into<String>) -> Self {
        Self { field, why: why.into() }
    }
}

/// Longest text, in bytes, of a resource, aggregate id, event name or dedup key.
pub const MAX_TEXT: usize = 512;

/// Longest name, in bytes, of a project, plugin or trigger.
pub const MAX_NAME: usize = 100;

/// Checks the name of a project, plugin or trigger: it appears in paths and in
/// metrics, so it is kept to letters, digits, `-`, `_` and `.`.
///
/// # Errors
/// When it is empty, too long, or has another character.
pub fn name(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "is empty"));
    }
    if text.len() > MAX_NAME {
        return Err(Invalid::new(field, format!("is longer than {MAX_NAME} bytes")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !text.chars().all(allowed) || text.starts_with('.') {
        let why =
            "may have only ASCII letters, digits, `-`, `_` and `.`, and doesn't start with `.`";
        return Err(Invalid::new(field, why));
    }
    Ok(())
}

/// Checks a text that applications choose freely, such as an aggregate id.
///
/// # Errors
/// When it is empty, longer than [`MAX_TEXT`], or has a U+0000, which
/// PostgreSQL can't store.
pub fn text(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "is empty"));
    }
    if text.len() > MAX_TEXT {
        return Err(Invalid::new(field, format!("is longer than {MAX_TEXT} bytes")));
    }
    if text.contains('\0') {
        return Err(Invalid::new(field, "contains U+0000, which can't be stored"));
    }
    Ok(())
}

/// What stands where a text was cut.
pub const CUT: &str = "… (cut)";

/// Makes free text (an error, a log line) storable everywhere: U+0000 becomes
/// U+FFFD, and what is longer than `limit` bytes is cut with a marker.
#[must_use]
pub fn storable(text: &str, limit: usize) -> String {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = text[..end].replace('\0', "\u{fffd}");
    if end < text.len() {
        out.push_str(CUT);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_paths() {
        for good in ["shop", "order-totals", "a.b_c-9"] {
            assert_eq!(name("project", good), Ok(()));
        }
        for bad in ["", ".", "..", "a/b", "ä", "a b", &"x".repeat(101)] {
            name("project", bad).expect_err(bad);
        }
    }

    #[test]
    fn free_text_is_cut_at_a_character() {
        assert_eq!(storable("a\0b", 10), "a\u{fffd}b");
        assert_eq!(storable("aäb", 2), "a… (cut)");
    }
}
