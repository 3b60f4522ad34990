//! The bounds of one call: of each, the least of what its trigger asks for and
//! what this host gives.

use std::{fmt, time::Duration};

use super::Settings;
use crate::model::{
    names::Invalid,
    trigger::Limits,
    units::{Bytes, Span},
};

/// One bound; shown as whose it is, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cap<T> {
    /// The bound.
    pub(super) max: T,
    /// Whose it is, as its owner writes it.
    owner: &'static str,
}

impl<T: Copy + Ord> Cap<T> {
    /// The least of what a trigger asks for, if it does, and what the host gives.
    fn least(asked: Option<T>, trigger: &'static str, given: T, host: &'static str) -> Self {
        match asked.filter(|asked| *asked <= given) {
            Some(max) => Self { max, owner: trigger },
            None => Self { max: given, owner: host },
        }
    }
}

impl<T: fmt::Display> fmt::Display for Cap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.owner, self.max)
    }
}

macro_rules! caps {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $asked:expr, $trigger:literal, $given:ident;)*) => {
        /// Every bound of one call.
        #[derive(Debug, Clone, Copy)]
        pub(super) struct Caps {
            $($(#[$doc])* pub(super) $field: Cap<$type>,)*
        }

        impl Caps {
            /// The bounds of a call under these limits on this host.
            pub(super) fn of(limits: &Limits, settings: &Settings) -> Self {
                Self {
                    $($field: Cap::least(
                        $asked(limits),
                        concat!("the trigger's `limits.", $trigger, "`"),
                        settings.$given,
                        concat!("this host's `sandbox.", stringify!($given), "`"),
                    ),)*
                }
            }
        }

        impl Settings {
            /// Checks that a trigger asks for no more than this host gives to
            /// any.
            ///
            /// # Errors
            /// Names the limit and what this host gives.
            pub fn admit(&self, limits: &Limits) -> Result<(), Invalid> {
                $(if let Some(asked) = $asked(limits).filter(|asked| *asked > self.$given) {
                    let (given, key) = (self.$given, stringify!($given));
                    let why = format!("is {asked}, and this host's `sandbox.{key}` is {given}");
                    return Err(Invalid::new(concat!("limits.", $trigger), why));
                })*
                Ok(())
            }
        }
    };
}

caps! {
    /// Time from the start of the guest until the call is stopped.
    deadline: Span = |limits: &Limits| Some(limits.deadline), "deadline", deadline_max;
    /// Time on a processor.
    cpu: Span = |limits: &Limits| Some(limits.cpu), "cpu", cpu_max;
    /// Bytes of all memories together.
    memory: Bytes = |limits: &Limits| Some(limits.memory), "memory", memory_max;
    /// Elements of all tables together.
    table_elements: u32 = |limits: &Limits| limits.table_elements, "tableElements", table_elements;
    /// Core instances.
    instances: u32 = |limits: &Limits| limits.instances, "instances", instances;
    /// Bytes of the log.
    log_bytes: Bytes = |limits: &Limits| limits.log_bytes, "logBytes", log_bytes;
    /// Events emitted.
    emit_count: u32 = |limits: &Limits| limits.emit_count, "emitCount", emit_count;
    /// Bytes of them together.
    emit_bytes: Bytes = |limits: &Limits| limits.emit_bytes, "emitBytes", emit_bytes;
    /// Keys of state touched, or listed at once.
    state_keys: u32 = |limits: &Limits| limits.state_keys, "stateKeys", state_keys;
    /// Bytes of state read and written.
    state_bytes: Bytes = |limits: &Limits| limits.state_bytes, "stateBytes", state_bytes;
    /// Requests under way at once.
    requests: u32 = |limits: &Limits| limits.requests, "requests", requests;
    /// Bytes of their bodies together.
    request_bytes: Bytes = |limits: &Limits| limits.request_bytes, "requestBytes", request_bytes;
    /// Bytes of their responses' bodies together.
    response_bytes: Bytes =
        |limits: &Limits| limits.response_bytes, "responseBytes", response_bytes;
}

impl Caps {
    /// How long the call may take: `left` is what its claim still has.
    pub(super) fn time(&self, left: Duration) -> Duration {
        self.deadline.max.get().min(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_counts_and_says_whose_it_is() {
        let settings = Settings { memory_max: Bytes::mib(32), ..Settings::default() };
        let limits = Limits { emit_count: Some(7), state_keys: Some(9_000), ..Limits::default() };
        let caps = Caps::of(&limits, &settings);
        assert_eq!(caps.memory.to_string(), "this host's `sandbox.memory_max` is 32MiB");
        assert_eq!(caps.emit_count.to_string(), "the trigger's `limits.emitCount` is 7");
        assert_eq!(caps.state_keys.max, settings.state_keys);
        assert_eq!(caps.time(Duration::from_hours(1)), Duration::from_secs(10));
        assert_eq!(caps.time(Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[test]
    fn what_no_call_gets_is_refused_by_its_name() {
        let settings = Settings::default();
        assert_eq!(settings.admit(&Limits::default()), Ok(()));
        for (field, limits) in [
            ("limits.cpu", Limits { cpu: Span::from_secs(3600), ..Limits::default() }),
            ("limits.memory", Limits { memory: Bytes::mib(4096), ..Limits::default() }),
            ("limits.emitCount", Limits { emit_count: Some(u32::MAX), ..Limits::default() }),
            ("limits.logBytes", Limits { log_bytes: Some(Bytes::mib(64)), ..Limits::default() }),
        ] {
            assert_eq!(settings.admit(&limits).expect_err(field).field, field);
        }
    }
}
