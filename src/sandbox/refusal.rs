//! What a call is answered when it isn't given what it asked for.

use crate::model::effect::AddError;

/// Why the host said no; the text is for the trigger's author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The trigger has no grant for it; names the grant.
    #[error("{0}")]
    Denied(String),
    /// A cap was reached; names it.
    #[error("{0}")]
    Limit(String),
    /// The database didn't answer.
    #[error("the database didn't answer: {0}")]
    Unavailable(String),
    /// The arguments make no sense.
    #[error("{0}")]
    Invalid(String),
}

impl From<AddError> for Refusal {
    fn from(error: AddError) -> Self {
        Self::Invalid(error.to_string())
    }
}
