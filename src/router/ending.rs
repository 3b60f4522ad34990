//! How a share ended, and what is written for a unit whose shares have.

use std::{fmt::Write as _, sync::Arc};

use super::ledger::Unit;
use crate::{
    model::{
        attempt::Attempt,
        effect::Effects,
        outcome::{Failure, FailureKind},
    },
    store::{End, Settlement, Spill, SpillCause, TriggerEffects},
};

/// How a share ended.
pub(super) enum Ending {
    /// Well.
    Done {
        effects: Effects,
        /// To be kept, or not.
        attempt: Option<Attempt>,
        summary: Summary,
    },
    /// With a failure: it is tried again, or dead.
    Failed {
        failure: Failure,
        /// Attempts so far, this one included if it counts.
        attempts: u32,
        /// Milliseconds until the next, or none.
        after_ms: Option<i64>,
        attempt: Option<Attempt>,
        summary: Summary,
    },
    /// Without a call.
    Spilled(SpillCause),
    /// Its claim is to be given back.
    Released,
}

impl Ending {
    /// Whether the pair of event and trigger is through.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Failed { after_ms: None, .. })
    }
}

/// What is said of a call in the event's result.
#[derive(Debug, Clone, Default)]
pub(super) struct Summary {
    pub(super) attempt: u32,
    pub(super) digest: Option<Arc<str>>,
    pub(super) duration_us: u64,
}

/// What is to be written for a unit. Effects and attempts move into it, and
/// come back by [`take_back`] if it isn't written.
pub(super) fn settlement(unit: &mut Unit) -> Settlement {
    let mut effects = Vec::new();
    let mut attempts = Vec::new();
    for share in &mut unit.shares {
        match &mut share.ending {
            Some(Ending::Done { effects: asked, attempt, .. }) => {
                effects.push(TriggerEffects {
                    trigger: share.rule.name().to_owned(),
                    effects: std::mem::take(asked),
                });
                attempts.extend(attempt.take());
            }
            Some(Ending::Failed { attempt, .. }) => attempts.extend(attempt.take()),
            _ => {}
        }
    }
    let end = if unit.delivery.is_some() { delivery_end(unit) } else { event_end(unit) };
    Settlement {
        claim: Arc::clone(&unit.claim),
        event: Arc::clone(&unit.event),
        end,
        effects,
        attempts,
    }
}

/// Puts effects and attempts back where they came from.
pub(super) fn take_back(unit: &mut Unit, settlement: Settlement) {
    for one in settlement.effects {
        let share = unit.shares.iter_mut().find(|share| share.rule.name() == one.trigger);
        if let Some(Ending::Done { effects, .. }) = share.and_then(|share| share.ending.as_mut()) {
            *effects = one.effects;
        }
    }
    for kept in settlement.attempts {
        let share = unit.shares.iter_mut().find(|share| share.rule.name() == kept.trigger);
        if let Some(Ending::Done { attempt, .. } | Ending::Failed { attempt, .. }) =
            share.and_then(|share| share.ending.as_mut())
        {
            *attempt = Some(kept);
        }
    }
}

fn delivery_end(unit: &Unit) -> End {
    let share = unit.shares.first();
    let trigger = share.map(|share| share.rule.name().to_owned()).unwrap_or_default();
    match share.and_then(|share| share.ending.as_ref()) {
        Some(Ending::Failed { failure, attempts, after_ms, .. }) => {
            let error = (failure.kind, failure.message.clone());
            match after_ms {
                Some(after_ms) => {
                    End::Again { trigger, attempts: *attempts, after_ms: *after_ms, error }
                }
                None => End::Dead { trigger, attempts: *attempts, error },
            }
        }
        _ => End::Done { trigger },
    }
}

fn event_end(unit: &Unit) -> End {
    let mut spills = Vec::new();
    let mut json = String::with_capacity(ENTRY * unit.shares.len() + 2);
    json.push('{');
    for share in &unit.shares {
        let name = share.rule.name();
        match &share.ending {
            Some(Ending::Done { summary, .. }) => {
                result(&mut json, name, "done", Some(summary), None);
            }
            Some(Ending::Failed { failure, attempts, after_ms, summary, .. }) => {
                let outcome = if after_ms.is_some() { "spilled" } else { "dead" };
                result(
                    &mut json,
                    name,
                    outcome,
                    Some(summary),
                    Some(("kind", failure.kind.as_str())),
                );
                spills.push(Spill {
                    trigger: name.to_owned(),
                    ordered: share.rule.ordered(),
                    cause: SpillCause::Failed,
                    attempts: *attempts,
                    after_ms: after_ms.unwrap_or(0),
                    error: Some((failure.kind, failure.message.clone())),
                    dead: after_ms.is_none(),
                });
            }
            Some(Ending::Spilled(cause)) => {
                result(&mut json, name, "spilled", None, Some(("cause", cause.as_str())));
                spills.push(Spill {
                    trigger: name.to_owned(),
                    ordered: share.rule.ordered(),
                    cause: *cause,
                    attempts: 0,
                    after_ms: 0,
                    error: None,
                    dead: false,
                });
            }
            Some(Ending::Released) | None => {}
        }
    }
    for (name, why) in &unit.unclear {
        result(&mut json, name, "unmatched", None, Some(("error", why)));
    }
    json.push('}');
    End::Dispatched { result_json: json, spills }
}

/// About what a trigger's entry takes, in bytes.
const ENTRY: usize = 192;

/// One trigger's entry. Written by hand: this runs for every event.
fn result(
    json: &mut String,
    name: &str,
    outcome: &str,
    summary: Option<&Summary>,
    more: Option<(&str, &str)>,
) {
    if json.len() > 1 {
        json.push(',');
    }
    // Names have no character that JSON would escape. Writing to a string
    // can't fail.
    for part in ["\"", name, r#"":{"outcome":""#, outcome, "\""] {
        json.push_str(part);
    }
    if let Some(summary) = summary {
        let _ =
            write!(json, r#","attempt":{},"durationUs":{}"#, summary.attempt, summary.duration_us);
        if let Some(digest) = &summary.digest {
            for part in [r#","digest":""#, digest, "\""] {
                json.push_str(part);
            }
        }
    }
    if let Some((field, text)) = more {
        let text = serde_json::Value::from(text.replace('\0', "\u{fffd}"));
        let _ = write!(json, r#","{field}":{text}"#);
    }
    json.push('}');
}

/// The end of a delivery whose host died again and again while it ran alone.
pub(super) fn guilty(attempts: u32, trials: u32) -> Ending {
    let deaths = trials.saturating_add(1);
    let why = format!(
        "its host died {deaths} times while it ran, the last {trials} with nothing else running"
    );
    Ending::Failed {
        failure: Failure::new(FailureKind::HostDeath, why),
        attempts,
        after_ms: None,
        attempt: None,
        summary: Summary { attempt: attempts, ..Summary::default() },
    }
}

/// The failure of a share whose effects can't be written.
pub(super) fn unfit(why: String) -> Failure {
    Failure::new(FailureKind::Effects, why)
}
