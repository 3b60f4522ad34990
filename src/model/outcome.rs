//! What became of one invocation, and what follows from it.

use serde::{Deserialize, Serialize};

use super::{effect::Effects, retry::backoff_ms, trigger::RetryPolicy};

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureKind {
    /// The plugin asked for another try.
    Retry,
    /// The plugin refused the event for good.
    Reject,
    /// The plugin panicked, exited or did what its sandbox forbids.
    Trap,
    /// An application's own code panicked.
    Panic,
    /// It was not done by its deadline.
    Deadline,
    /// It used up its time on a processor.
    Cpu,
    /// It asked for more memory than it may have.
    Memory,
    /// Its calls went too deep.
    Stack,
    /// It reached another of its limits, and broke off.
    Limit,
    /// It asked for what its trigger doesn't grant, and broke off.
    Denied,
    /// What it handed to the host can't be read: no UTF-8, out of its memory.
    BadResult,
    /// Its effects can't be committed, such as an increment of a text.
    Effects,
    /// The host couldn't run it: no such plugin version, no database.
    HostFault,
    /// Its host died while nothing else ran on it, again and again.
    HostDeath,
    /// The claim ended while it ran.
    LostLease,
}

impl FailureKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 15] = [
        Self::Retry,
        Self::Reject,
        Self::Trap,
        Self::Panic,
        Self::Deadline,
        Self::Cpu,
        Self::Memory,
        Self::Stack,
        Self::Limit,
        Self::Denied,
        Self::BadResult,
        Self::Effects,
        Self::HostFault,
        Self::HostDeath,
        Self::LostLease,
    ];

    /// Its name in SQL, JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Reject => "reject",
            Self::Trap => "trap",
            Self::Panic => "panic",
            Self::Deadline => "deadline",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Stack => "stack",
            Self::Limit => "limit",
            Self::Denied => "denied",
            Self::BadResult => "badResult",
            Self::Effects => "effects",
            Self::HostFault => "hostFault",
            Self::HostDeath => "hostDeath",
            Self::LostLease => "lostLease",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether such a failure counts as one of the trigger's attempts: what
    /// the host caused doesn't.
    #[must_use]
    pub const fn burns_attempt(self) -> bool {
        !matches!(self, Self::HostFault | Self::HostDeath | Self::LostLease)
    }
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// What to show a person.
    pub message: String,
    /// The wait that the plugin asked for, in milliseconds.
    pub after_ms: Option<u32>,
}

impl Failure {
    /// A failure with no wish for a wait.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), after_ms: None }
    }
}

/// What follows from one invocation.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Acknowledge, and commit what it asked for.
    Done(Effects),
    /// Try again `after_ms` from now.
    Retry {
        /// The wait in milliseconds.
        after_ms: i64,
        /// Why.
        why: Failure,
    },
    /// Never again: a dead letter.
    Dead {
        /// Why.
        why: Failure,
    },
    /// Give the claim back as if nothing had happened.
    Released,
}

/// Decides what follows from a result.
///
/// `attempt` is the number of the attempt that gave it (1 is the first),
/// `random` a number in `[0, 1)` for the jitter.
#[must_use]
pub fn classify(
    result: Result<Effects, Failure>,
    attempt: u32,
    policy: &RetryPolicy,
    random: f64,
) -> Outcome {
    let why = match result {
        Ok(effects) => return Outcome::Done(effects),
        Err(why) => why,
    };
    match why.kind {
        FailureKind::LostLease => Outcome::Released,
        FailureKind::Reject => Outcome::Dead { why },
        kind if kind.burns_attempt() && attempt >= policy.max_attempts => Outcome::Dead { why },
        _ => {
            let after_ms =
                why.after_ms.map_or_else(|| backoff_ms(policy, attempt, random), i64::from);
            Outcome::Retry { after_ms, why }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: FailureKind, attempt: u32) -> Outcome {
        classify(Err(Failure::new(kind, "m")), attempt, &RetryPolicy::default(), 0.0)
    }

    #[test]
    fn each_kind_has_its_consequence() {
        for kind in FailureKind::ALL {
            assert_eq!(FailureKind::parse(kind.as_str()), Some(kind));
            let first = of(kind, 1);
            let last = of(kind, 5);
            match kind {
                FailureKind::Reject => assert!(matches!(first, Outcome::Dead { .. })),
                FailureKind::LostLease => {
                    assert_eq!(first, Outcome::Released);
                    assert_eq!(last, Outcome::Released);
                }
                _ => assert!(matches!(first, Outcome::Retry { after_ms: 1000, .. })),
            }
            let dies = matches!(last, Outcome::Dead { .. });
            assert_eq!(dies, kind.burns_attempt(), "{kind:?}");
        }
    }

    #[test]
    fn the_plugins_wish_overrides_the_backoff() {
        let why = Failure { after_ms: Some(7), ..Failure::new(FailureKind::Retry, "m") };
        let outcome = classify(Err(why), 3, &RetryPolicy::default(), 0.0);
        assert!(matches!(outcome, Outcome::Retry { after_ms: 7, .. }));
    }
}
