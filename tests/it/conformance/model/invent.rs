//! Events, results and what else a step needs, made up.

use std::sync::Arc;

use fastrand::Rng;
use outrigger::{
    model::{
        effect::{Effects, Listing, StateUse, Write},
        event::NewEvent,
        outcome::FailureKind,
    },
    store::{Destination, End, Settlement, Spill, SpillCause, TriggerEffects},
};
use uuid::Uuid;

use super::{Hand, TRIGGERS, compare::AGES, world::World};
use crate::conformance::bench::SHOP;

/// Whether a trigger keeps order.
fn is_ordered(trigger: &str) -> bool {
    trigger != "free"
}

pub(super) fn aggregate(rng: &mut Rng) -> String {
    rng.choice(["a", "b", "c"]).expect("one").to_owned()
}

pub(super) fn event(rng: &mut Rng) -> NewEvent {
    let dedup_key = match rng.u32(0..4) {
        0 => Some(format!("key {}", rng.u32(0..12))),
        1 => Some(String::new()),
        _ => None,
    };
    let available_at = match rng.u32(0..10) {
        0 => Some(1),
        1 => Some(i64::MAX / 4),
        _ => None,
    };
    NewEvent {
        message_id: Some(Uuid::from_u128(rng.u128(..))),
        dedup_key,
        available_at,
        ..NewEvent::new(SHOP, "order", aggregate(rng), "order.placed", "{}")
    }
}

pub(super) fn destinations(rng: &mut Rng) -> Vec<Destination> {
    let some = TRIGGERS.into_iter().filter(|_| rng.u32(0..3) > 0);
    some.map(|name| Destination { trigger: name.to_owned(), ordered: is_ordered(name) }).collect()
}

/// A result that ends everything.
pub(super) fn well(hand: &Hand) -> Settlement {
    let end = match &hand.trigger {
        Some(trigger) => End::Done { trigger: trigger.clone() },
        None => End::Dispatched { result_json: "{}".to_owned(), spills: Vec::new() },
    };
    Settlement {
        claim: Arc::clone(&hand.claim),
        event: Arc::clone(&hand.event),
        end,
        effects: Vec::new(),
        attempts: Vec::new(),
    }
}

/// Any result.
pub(super) fn settlement(rng: &mut Rng, hand: &Hand, world: &World) -> Settlement {
    let mut settlement = well(hand);
    let error = || (FailureKind::Retry, "not now".to_owned());
    match (&hand.trigger, &mut settlement.end) {
        (Some(trigger), end) => {
            let (trigger, attempts) = (trigger.clone(), hand.attempts + 1);
            match rng.u32(0..6) {
                0 => *end = End::Dead { trigger, attempts, error: error() },
                1 => *end = End::Again { trigger, attempts, after_ms: 0, error: error() },
                2 => *end = End::Again { trigger, attempts, after_ms: AGES, error: error() },
                _ => settlement.effects.push(effects(rng, &trigger, world)),
            }
        }
        (None, End::Dispatched { spills, .. }) => {
            for trigger in TRIGGERS {
                match rng.u32(0..6) {
                    0..3 => settlement.effects.push(effects(rng, trigger, world)),
                    3..5 => spills.push(spill(rng, trigger)),
                    // It doesn't match.
                    _ => {}
                }
            }
        }
        (None, _) => unreachable!("an event is dispatched"),
    }
    settlement
}

fn spill(rng: &mut Rng, trigger: &str) -> Spill {
    let failed = rng.bool();
    let dead = failed && rng.u32(0..3) == 0;
    let cause = rng.choice([SpillCause::Blocked, SpillCause::Paused, SpillCause::Limit]);
    let cause = if failed { SpillCause::Failed } else { cause.expect("one") };
    let later = failed && !dead && rng.u32(0..4) == 0;
    Spill {
        trigger: trigger.to_owned(),
        ordered: is_ordered(trigger),
        cause,
        attempts: u32::from(failed),
        after_ms: if later { AGES } else { 0 },
        error: failed.then(|| (FailureKind::Retry, "not now".to_owned())),
        dead,
    }
}

/// Effects of a call that saw the state as it is, or as it never was.
fn effects(rng: &mut Rng, trigger: &str, world: &World) -> TriggerEffects {
    let mut state = StateUse::default();
    for key in ["k1", "k2", "n"] {
        if rng.u32(0..5) == 0 {
            let seen = world.state.get(&(trigger.to_owned(), key.to_owned())).cloned();
            let seen = if rng.u32(0..8) == 0 { Some(b"never".to_vec()) } else { seen };
            state.reads.insert(key.to_owned(), seen);
        }
        if rng.u32(0..4) == 0 {
            let write = match (key, rng.u32(0..6)) {
                (_, 0) => Write::Delete,
                ("n", 1..5) => Write::Add(rng.i64(-5..6)),
                // Now and then a key that holds a text.
                ("k1", 1) => Write::Add(1),
                ("n", _) => Write::Set(rng.i64(0..10).to_string().into_bytes()),
                _ => Write::Set(format!("v{}", rng.u32(0..4)).into_bytes()),
            };
            state.writes.insert(key.to_owned(), write);
        }
    }
    if rng.u32(0..8) == 0 {
        let keys = world.state.keys().filter(|(of, _)| of == trigger).map(|(_, key)| key.clone());
        let mut keys: Vec<String> = keys.collect();
        if rng.u32(0..6) == 0 {
            keys.pop();
        }
        let listing = Listing { prefix: String::new(), after: None, limit: 10, keys };
        state.listings.push(listing);
    }
    let count = if rng.u32(0..4) == 0 { rng.usize(1..3) } else { 0 };
    let emitted = (0..count).map(|_| event(rng)).collect();
    TriggerEffects { trigger: trigger.to_owned(), effects: Effects { emitted, state } }
}
