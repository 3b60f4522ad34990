//! Tells a failed call's reasons apart.

use std::time::Duration;

use wasmtime::{PoolConcurrencyLimitError, Trap};
use wasmtime_wasi::I32Exit;

use super::{Secrets, Settings, data::Data, data::HANDLES, limits::Refused, refusal::Refusal};
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
    /// It wasn't done in this time.
    Deadline(Duration),
}

/// Why a call failed that didn't return.
///
/// A panic, an exception and a failed allocation all arrive as the same trap:
/// only what the call was refused, and what the guest last printed, tell.
pub(super) fn explain(fault: &Fault, data: &Data, stderr: &str, settings: &Settings) -> Failure {
    let (kind, message) = match fault {
        Fault::Deadline(time) => {
            let cap = data.caps.deadline;
            let whose =
                if *time < cap.max.get() { "the call had no more".into() } else { cap.to_string() };
            let message = format!("the plugin was not done after {time:?}; {whose}");
            (FailureKind::Deadline, message)
        }
        Fault::Instantiate(error) | Fault::Run(error) => {
            let began = matches!(fault, Fault::Run(_));
            why(error, began, data, settings)
        }
    };
    let message = if stderr.is_empty() {
        message
    } else {
        format!("{message}; the end of standard error:\n{stderr}")
    };
    Failure::new(kind, data.trigger.secrets.storable(&message, MESSAGE_MAX))
}

fn why(
    error: &wasmtime::Error,
    began: bool,
    data: &Data,
    settings: &Settings,
) -> (FailureKind, String) {
    let caps = &data.caps;
    if let Some(I32Exit(status)) = error.downcast_ref() {
        let text = format!("the plugin exited with status {status}");
        return refused(data, &text, settings).unwrap_or((FailureKind::Trap, text));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => {
            let max = settings.stack_max;
            let text = format!(
                "the plugin's calls went too deep; this host's `sandbox.stack_max` is {max}"
            );
            (FailureKind::Stack, text)
        }
        Some(Trap::Interrupt) if data.meter.stopped() => {
            let text = format!("the plugin used up its time on a processor; {}", caps.cpu);
            (FailureKind::Cpu, text)
        }
        Some(trap) => {
            let text = trap.to_string();
            refused(data, &text, settings).unwrap_or((FailureKind::Trap, text))
        }
        None => by_host(error, began, data, settings),
    }
}

/// What the guest was refused before it failed, if it was: most likely that
/// is why.
fn refused(data: &Data, text: &str, settings: &Settings) -> Option<(FailureKind, String)> {
    let caps = &data.caps;
    let memory = data.limiter.refused().map(|refused| match refused {
        Refused::Memory(asked) => {
            let asked = Bytes::mib(asked.div_ceil(1 << 20) as u64);
            let why = format!("the plugin asked for {asked} of memory; {} ({text})", caps.memory);
            (FailureKind::Memory, why)
        }
        Refused::Host => {
            let total = settings.memory_total;
            let why = format!(
                "the plugin asked for memory when others, or other calls of its project, had too \
                 much; this host's `sandbox.memory_total` is {total}, three quarters of it for one \
                 project ({text})"
            );
            (FailureKind::HostFault, why)
        }
        Refused::Table(asked) => {
            let cap = caps.table_elements;
            let why = format!("the plugin asked for {asked} table elements; {cap} ({text})");
            (FailureKind::Limit, why)
        }
    });
    memory.or_else(|| match data.refused()? {
        Refusal::Denied(why) => {
            Some((FailureKind::Denied, format!("{why} (it was refused, and then: {text})")))
        }
        Refusal::Limit(why) => {
            Some((FailureKind::Limit, format!("{why} (it was refused, and then: {text})")))
        }
        Refusal::Unavailable(_) | Refusal::Invalid(_) => None,
    })
}

/// An error that the engine or an import raised.
fn by_host(
    error: &wasmtime::Error,
    began: bool,
    data: &Data,
    settings: &Settings,
) -> (FailureKind, String) {
    let text = error.root_cause().to_string();
    if text.contains("fuel allocated for hostcalls") {
        let max = settings.hostcall_bytes();
        let why = format!("the plugin handed more than {max} bytes to the host at once");
        return (FailureKind::BadResult, why);
    }
    if text.contains("handle limit exceeded") || text.contains("no free keys") {
        let why = format!("the plugin holds too many handles; this host allows {HANDLES}");
        return (FailureKind::Limit, why);
    }
    if text.contains("instance count too high") {
        let why = format!("the plugin consists of too many instances; {}", data.caps.instances);
        return (FailureKind::Limit, why);
    }
    if let Some(refused) = refused(data, &text, settings) {
        return refused;
    }
    if !began || error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return (FailureKind::HostFault, format!("the host has no place for the plugin: {text}"));
    }
    let why = format!("what the plugin handed to the host can't be used: {text}");
    (FailureKind::BadResult, why)
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

/// The same failure, with what the call was refused, which a plugin seldom
/// repeats: an error code has no room for the grant to ask for.
pub(super) fn recalled(failure: Failure, data: &Data) -> Failure {
    let Some(Refusal::Denied(why) | Refusal::Limit(why)) = data.refused() else { return failure };
    if failure.message.contains(why.as_str()) {
        return failure;
    }
    let message = format!("{} (before, it was refused: {why})", failure.message);
    let message = data.trigger.secrets.storable(&message, MESSAGE_MAX);
    Failure { message, ..failure }
}

#[cfg(test)]
mod tests {
    use wasmtime::ResourceLimiter as _;

    use super::*;
    use crate::sandbox::{Network, budget::Budget, call::tests::call, http::Client, meta::Meta};

    fn data() -> Data {
        let settings = Settings::default();
        let budget = Budget::new(settings.memory_total.as_usize());
        let client = Client::new(settings.http.clone(), Network::default());
        Data::new(&call("{}"), &Meta::default(), &settings, &budget, &client)
    }

    fn explained(fault: &Fault, data: &Data, stderr: &str) -> (FailureKind, String) {
        let failure = explain(fault, data, stderr, &Settings::default());
        (failure.kind, failure.message)
    }

    #[test]
    fn each_reason_has_its_kind() {
        let run = |trap: Trap| Fault::Run(trap.into());
        let panic = || run(Trap::UnreachableCodeReached);
        let (kind, message) = explained(&panic(), &data(), "boom");
        assert_eq!(kind, FailureKind::Trap);
        assert!(message.contains("unreachable") && message.ends_with("\nboom"), "{message}");
        assert_eq!(explained(&Fault::Run(I32Exit(3).into()), &data(), "").0, FailureKind::Trap);
        let (kind, message) = explained(&Fault::Deadline(Duration::from_secs(10)), &data(), "slow");
        assert_eq!(kind, FailureKind::Deadline);
        assert!(message.contains("`limits.deadline` is 10s") && message.ends_with("\nslow"));
        let (kind, message) = explained(&run(Trap::StackOverflow), &data(), "");
        assert_eq!(kind, FailureKind::Stack);
        assert!(message.contains("`sandbox.stack_max` is 512KiB"), "{message}");
        let text = |text: &'static str| Fault::Run(wasmtime::Error::msg(text));
        assert_eq!(explained(&text("invalid utf-8"), &data(), "").0, FailureKind::BadResult);
        let many = "fuel allocated for hostcalls has been exhausted";
        assert_eq!(explained(&text(many), &data(), "").0, FailureKind::BadResult);
        for handles in ["store handle limit exceeded", "resource table has no free keys"] {
            assert_eq!(explained(&text(handles), &data(), "").0, FailureKind::Limit);
        }
        let (kind, message) = explained(&text("instance count too high at 65"), &data(), "");
        assert_eq!(kind, FailureKind::Limit);
        assert!(message.contains("`sandbox.instances` is 64"), "{message}");
    }

    #[test]
    fn what_was_refused_before_a_trap_is_why() {
        let panic = Fault::Run(Trap::UnreachableCodeReached.into());
        let mut memory = data();
        memory.limiter.memory_growing(0, usize::MAX >> 1, None).expect("no error");
        let (kind, message) = explained(&panic, &memory, "");
        assert_eq!(kind, FailureKind::Memory);
        assert!(message.contains("`limits.memory` is 64MiB"), "{message}");
        assert_eq!(
            explained(&Fault::Run(Trap::StackOverflow.into()), &memory, "").0,
            FailureKind::Stack
        );
        let mut table = data();
        table.limiter.table_growing(0, usize::MAX >> 1, None).expect("no error");
        let (kind, message) = explained(&panic, &table, "");
        assert_eq!(kind, FailureKind::Limit);
        assert!(message.contains("`sandbox.table_elements` is 100000"), "{message}");
        for (refusal, expected) in [
            (Refusal::Denied("no grant".into()), FailureKind::Denied),
            (Refusal::Limit("too many".into()), FailureKind::Limit),
            (Refusal::Invalid("no JSON".into()), FailureKind::Trap),
        ] {
            let mut data = data();
            data.noted::<()>(Err(refusal)).expect_err("passed on");
            assert_eq!(explained(&panic, &data, "").0, expected);
        }
    }

    #[test]
    fn what_a_plugin_returns_after_a_refusal_says_what_it_was() {
        let mut denied = data();
        let code = Failure::new(FailureKind::Retry, "code 7");
        assert_eq!(recalled(code.clone(), &denied), code);
        denied.noted::<()>(Err(Refusal::Denied("add a grant".into()))).expect_err("passed on");
        let told = recalled(code, &denied);
        assert_eq!(told.kind, FailureKind::Retry);
        assert_eq!(told.message, "code 7 (before, it was refused: add a grant)");
        let known = Failure::new(FailureKind::Reject, "no: add a grant");
        assert_eq!(recalled(known.clone(), &denied), known);
    }

    #[test]
    fn an_interruption_is_the_cpus_only_where_its_time_is_used_up() {
        let interrupted = Fault::Run(Trap::Interrupt.into());
        assert_eq!(explained(&interrupted, &data(), "").0, FailureKind::Trap);
        let data = data();
        assert!(data.meter.is_used_up(Duration::ZERO));
        let (kind, message) = explained(&interrupted, &data, "");
        assert_eq!(kind, FailureKind::Cpu);
        assert!(message.contains("`limits.cpu` is 5s"), "{message}");
    }

    #[test]
    fn only_the_host_is_blamed_for_what_the_host_did() {
        let full = || Fault::Instantiate(wasmtime::Error::msg("pool is full"));
        assert_eq!(explained(&full(), &data(), "").0, FailureKind::HostFault);
        let mut refused = data();
        refused.limiter.memory_growing(0, usize::MAX >> 1, None).expect("no error");
        assert_eq!(explained(&full(), &refused, "").0, FailureKind::Memory);
        let trap = Fault::Instantiate(Trap::UnreachableCodeReached.into());
        assert_eq!(explained(&trap, &data(), "").0, FailureKind::Trap);
    }
}
