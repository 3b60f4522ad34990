//! What an import answers when it doesn't do what it was asked for.

use crate::model::effect::AddError;

/// Why an import said no; the text is for the plugin's author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The trigger has no grant for it; names the grant.
    Denied(String),
    /// A cap was reached; names it.
    Limit(String),
    /// The database didn't answer.
    Unavailable(String),
    /// The arguments make no sense.
    Invalid(String),
}

impl From<AddError> for Refusal {
    fn from(error: AddError) -> Self {
        Self::Invalid(error.to_string())
    }
}
