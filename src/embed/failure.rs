//! Why a closure didn't do what it was called for.

use std::{error::Error, fmt, time::Duration};

use crate::{
    model::{
        names::storable,
        outcome::{Failure as Failed, FailureKind},
    },
    sandbox::Refusal,
};

/// Longest message that is kept, in bytes.
const MESSAGE_MAX: usize = 8 << 10;

/// Why a closure didn't do what it was called for. Whatever it asked for is
/// void.
///
/// Any error becomes one with `?`: an attempt that failed, and is tried again
/// as the trigger's retry policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Failed);

impl Failure {
    /// Try again, after the wait of the retry policy.
    #[must_use]
    pub fn retry(why: impl fmt::Display) -> Self {
        Self::new(FailureKind::Retry, &why.to_string())
    }

    /// Try again after this wait (in whole milliseconds, 49 days at the most)
    /// instead of the policy's.
    #[must_use]
    pub fn retry_after(why: impl fmt::Display, wait: Duration) -> Self {
        let mut failure = Self::retry(why);
        failure.0.after_ms = Some(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
        failure
    }

    /// Never again: a dead letter at once.
    #[must_use]
    pub fn reject(why: impl fmt::Display) -> Self {
        Self::new(FailureKind::Reject, &why.to_string())
    }

    pub(super) fn new(kind: FailureKind, message: &str) -> Self {
        Self(Failed::new(kind, storable(message, MESSAGE_MAX)))
    }

    pub(super) fn into_inner(self) -> Failed {
        self.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let kind = match (&error as &dyn Error).downcast_ref::<Refusal>() {
            // Not the closure's fault, and no attempt.
            Some(Refusal::Unavailable(_)) => FailureKind::HostFault,
            Some(_) => FailureKind::Effects,
            None => FailureKind::Retry,
        };
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let inner_message = inner.to_string();
            // Many errors repeat what caused them.
            if !message.contains(&inner_message) {
                message = format!("{message}: {inner_message}");
            }
            cause = inner.source();
        }
        Self::new(kind, &message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the shelf is empty")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn errors_are_retries_with_their_causes() {
        let failure = Failure::from(Outer(std::io::Error::other("no\0 box"))).into_inner();
        assert_eq!(failure.kind, FailureKind::Retry);
        assert_eq!(failure.message, "the shelf is empty: no\u{fffd} box");
        let kind = |refusal: Refusal| Failure::from(refusal).into_inner().kind;
        assert_eq!(kind(Refusal::Unavailable("away".into())), FailureKind::HostFault);
        assert_eq!(kind(Refusal::Limit("too much".into())), FailureKind::Effects);
    }

    #[test]
    fn waits_are_in_milliseconds() {
        let wait = |duration| Failure::retry_after("later", duration).into_inner().after_ms;
        assert_eq!(wait(Duration::from_millis(1500)), Some(1500));
        assert_eq!(wait(Duration::MAX), Some(u32::MAX));
    }
}
