//! Tells a failed call's reasons apart.

use wasmtime::Trap;
use wasmtime_wasi::I32Exit;

use super::{
    Secrets, Settings, TriggerView,
    limits::{Limiter, Refused, TABLE_ELEMENTS},
};
use crate::model::{
    outcome::{Failure, FailureKind},
    units::Bytes,
};

/// Longest message of a failure, in bytes.
pub(super) const MESSAGE_MAX: usize = 8 << 10;

/// How far a call had come when it failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is no instance.
    Instantiate(wasmtime::Error),
    /// The guest ran.
    Run(wasmtime::Error),
}

/// Why a call failed that didn't return.
///
/// A panic, an exception and a failed allocation all arrive as the same trap:
/// only what the limiter refused and what the guest last printed tell.
pub(super) fn explain(
    fault: &Fault,
    limiter: &Limiter,
    stderr: &str,
    trigger: &TriggerView,
    settings: &Settings,
) -> Failure {
    let (Fault::Instantiate(error) | Fault::Run(error)) = fault;
    let trap = error.downcast_ref::<Trap>();
    let exit = error.downcast_ref::<I32Exit>();
    let text = match (trap, exit) {
        (_, Some(I32Exit(status))) => format!("the plugin exited with status {status}"),
        (Some(trap), None) => trap.to_string(),
        (None, None) => host_text(error, settings),
    };
    let (kind, message) = if trap == Some(&Trap::StackOverflow) {
        (FailureKind::Stack, "the plugin's calls went too deep: its stack is full".to_owned())
    } else if let Some(refused) = limiter.refused() {
        (FailureKind::Memory, memory(refused, limiter, trigger, settings, &text))
    } else if matches!(fault, Fault::Instantiate(_)) && trap.is_none() && exit.is_none() {
        (FailureKind::HostFault, format!("the host has no place for the plugin: {text}"))
    } else {
        (FailureKind::Trap, text)
    };
    let message = if stderr.is_empty() {
        message
    } else {
        format!("{message}; the end of standard error:\n{stderr}")
    };
    Failure::new(kind, trigger.secrets.storable(&message, MESSAGE_MAX))
}

/// The text of an error that the engine or an import raised.
fn host_text(error: &wasmtime::Error, settings: &Settings) -> String {
    let text = error.root_cause().to_string();
    if text.contains("fuel allocated for hostcalls") {
        let max = settings.hostcall_bytes();
        return format!("the plugin handed more than {max} bytes to the host at once");
    }
    text
}

fn memory(
    refused: Refused,
    limiter: &Limiter,
    trigger: &TriggerView,
    settings: &Settings,
    text: &str,
) -> String {
    match refused {
        Refused::Memory(asked) => {
            let (limit, place) = if trigger.memory <= settings.memory_max {
                (trigger.memory, "the trigger's `limits.memory`")
            } else {
                (settings.memory_max, "this host's most")
            };
            debug_assert_eq!(limit.as_usize(), limiter.max());
            let asked = Bytes::mib(asked.div_ceil(1 << 20) as u64);
            format!("the plugin asked for {asked} of memory; {place} is {limit} ({text})")
        }
        Refused::Table(asked) => format!(
            "the plugin asked for {asked} table elements; this host allows {TABLE_ELEMENTS} ({text})"
        ),
    }
}

/// A failure that the plugin returned.
pub(super) fn returned(
    kind: FailureKind,
    message: &str,
    after_ms: Option<u32>,
    secrets: &Secrets,
) -> Failure {
    Failure { kind, message: secrets.storable(message, MESSAGE_MAX), after_ms }
}

#[cfg(test)]
mod tests {
    use wasmtime::ResourceLimiter as _;

    use super::*;
    use crate::sandbox::call::tests::call;

    fn explained(fault: &Fault, refused: bool, stderr: &str) -> (FailureKind, String) {
        let trigger = &call("{}").trigger;
        let mut limiter = Limiter::new(trigger.memory.as_usize());
        if refused {
            limiter.memory_growing(0, usize::MAX >> 1, None).expect("no error");
        }
        let failure = explain(fault, &limiter, stderr, trigger, &Settings::default());
        (failure.kind, failure.message)
    }

    #[test]
    fn each_reason_has_its_kind() {
        let run = |trap: Trap| Fault::Run(trap.into());
        let (kind, message) = explained(&run(Trap::UnreachableCodeReached), false, "boom");
        assert_eq!(kind, FailureKind::Trap);
        assert!(message.contains("unreachable") && message.ends_with("\nboom"), "{message}");
        let (kind, message) = explained(&run(Trap::UnreachableCodeReached), true, "");
        assert_eq!(kind, FailureKind::Memory);
        assert!(message.contains("`limits.memory` is 64MiB"), "{message}");
        assert_eq!(explained(&run(Trap::StackOverflow), true, "").0, FailureKind::Stack);
        let (kind, message) = explained(&Fault::Run(I32Exit(3).into()), false, "");
        assert_eq!(kind, FailureKind::Trap);
        assert!(message.contains("exited with status 3"), "{message}");
    }

    #[test]
    fn only_the_host_is_blamed_for_what_the_host_did() {
        let full = || wasmtime::Error::msg("pool is full");
        assert_eq!(explained(&Fault::Instantiate(full()), false, "").0, FailureKind::HostFault);
        assert_eq!(explained(&Fault::Instantiate(full()), true, "").0, FailureKind::Memory);
        assert_eq!(explained(&Fault::Run(full()), false, "").0, FailureKind::Trap);
        let trap = Fault::Instantiate(Trap::UnreachableCodeReached.into());
        assert_eq!(explained(&trap, false, "").0, FailureKind::Trap);
    }
}
