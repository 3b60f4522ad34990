//! Replays: dispatched events that are delivered again.
//!
//! A replay is a new delivery of a pair of event and trigger, with a
//! *generation*, which is part of its idempotency key: the event's number of
//! replays, this one included. Who replays holds the project's turn to re-drive
//! and the event's row, so that a pair never has two open deliveries.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use super::Operation;
use crate::model::{UnixMillis, event::Event};

/// A trigger that an event is to be delivered to again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The trigger.
    pub trigger: String,
    /// Whether it takes events of one ordering key one after another.
    pub ordered: bool,
}

/// What became of an event that was to be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replayed {
    /// There is no such event.
    Unknown,
    /// It isn't dispatched yet: what it has matched is still to come.
    Pending,
    /// It is delivered again where that isn't under way already.
    Yes {
        /// Which replay of the event this is; none if nothing was to be done.
        generation: Option<u32>,
        /// Triggers that it is delivered to again.
        triggers: Vec<String>,
        /// Triggers that still have an open delivery of it: skipped.
        open: Vec<String>,
    },
}

/// Which events to deliver again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReplayFilter {
    /// Of this resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Of this aggregate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
    /// Of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_name: Option<String>,
    /// Recorded at or after this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// Recorded before this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// To this trigger alone, not to all that match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
}

/// What bulk work set in motion, and what it left alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayCounts {
    /// Deliveries that were made, or requeued.
    pub deliveries: i64,
    /// Pairs of event and trigger that were still open.
    pub open: i64,
    /// Events that were not dispatched yet.
    pub pending: i64,
}

/// The next events of a replay.
#[derive(Debug, Clone)]
pub struct ReplayBatch {
    /// The operation, as it was when they were looked up.
    pub operation: Operation,
    /// Those that are dispatched, in pk order.
    pub events: Vec<Event>,
    pub(super) part: Part,
}

/// How far a batch of a replay gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Events to replay.
    pub(super) pks: Vec<i64>,
    /// Events that were gone through, those that are pending included.
    pub(super) seen: i64,
    pub(super) pending: i64,
    /// The pk behind which the next batch begins.
    pub(super) position: i64,
    /// Whether nothing is left.
    pub(super) through: bool,
}

/// Rows of the outbox that are looked at for one batch: few of them may match.
pub(super) const LOOKS: i64 = 5_000;

/// Payloads of one batch, in bytes; its first event comes anyway.
const MAX_BYTES: i64 = 8 << 20;

/// An event that a replay's filter means: pk, whether it is dispatched, and
/// its payload's bytes.
pub(super) type Found = (i64, bool, i64);

impl Part {
    /// What to do of an operation's next events, `take` at the most. `last` is
    /// the last pk that was looked at, of fewer than [`LOOKS`] if `end`.
    pub(super) fn of(work: &Operation, found: &[Found], take: i64, last: i64, end: bool) -> Self {
        let mut part = Self { position: last, ..Self::default() };
        let mut bytes = 0_i64;
        for (pk, dispatched, size) in found {
            bytes = bytes.saturating_add(if *dispatched { *size } else { 0 });
            if part.seen >= take || (bytes > MAX_BYTES && !part.pks.is_empty()) {
                return part;
            }
            part.seen += 1;
            if *dispatched {
                part.pks.push(*pk);
            } else {
                part.pending += 1;
            }
            part.position = *pk;
        }
        let enough = work.limit.is_some_and(|limit| work.done + part.seen >= limit);
        if part.seen < take {
            part.position = last;
        }
        part.through = enough || (end && part.seen < take);
        part
    }
}

/// Project, resource, aggregate and trigger.
pub(super) type Key<'a> = (&'a str, &'a str, &'a str, &'a str);

/// An event whose row is held, to be replayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Again<'a> {
    pub(super) pk: i64,
    pub(super) project: &'a str,
    pub(super) resource: &'a str,
    pub(super) aggregate: &'a str,
    pub(super) to: &'a [Destination],
}

impl<'a> Again<'a> {
    fn key(&self, trigger: &'a str) -> Key<'a> {
        (self.project, self.resource, self.aggregate, trigger)
    }
}

/// A delivery to make.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NewDelivery<'a> {
    pub(super) pk: i64,
    pub(super) trigger: &'a str,
    pub(super) ordered: bool,
    pub(super) state: &'static str,
}

/// Deliveries to make for events in pk order, but for pairs that are `open`.
/// `waiting` are the keys with an open delivery among the re-driven ones.
pub(super) fn deliveries<'a>(
    events: &[Again<'a>],
    open: &HashSet<(i64, String)>,
    mut waiting: HashSet<Key<'a>>,
) -> Vec<NewDelivery<'a>> {
    let mut made = Vec::new();
    for (event, to) in pairs(events, open) {
        let blocked = to.ordered && !waiting.insert(event.key(&to.trigger));
        made.push(NewDelivery {
            pk: event.pk,
            trigger: &to.trigger,
            ordered: to.ordered,
            state: if blocked { "blocked" } else { "ready" },
        });
    }
    made
}

/// The ordering keys that these events' deliveries join, in sorted order.
pub(super) fn keys<'a>(events: &[Again<'a>], open: &HashSet<(i64, String)>) -> BTreeSet<Key<'a>> {
    let ordered = pairs(events, open).filter(|(_, to)| to.ordered);
    ordered.map(|(event, to)| event.key(&to.trigger)).collect()
}

fn pairs<'a>(
    events: &[Again<'a>],
    open: &HashSet<(i64, String)>,
) -> impl Iterator<Item = (Again<'a>, &'a Destination)> {
    let all = events.iter().flat_map(|event| event.to.iter().map(|to| (*event, to)));
    all.filter(|(event, to)| !open.contains(&(event.pk, to.trigger.clone())))
}

/// What was made of some events.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Pairs that are delivered again, with their generation.
    pub(super) deliveries: Vec<(i64, String, u32)>,
    /// Pairs that were open.
    pub(super) open: Vec<(i64, String)>,
    /// Events that weren't dispatched.
    pub(super) pending: i64,
    /// Whether one was.
    pub(super) found: bool,
}

impl Made {
    /// What is said of one event; nothing if it is gone.
    pub(super) fn one(self) -> Option<Replayed> {
        if !self.found {
            return (self.pending > 0).then_some(Replayed::Pending);
        }
        Some(Replayed::Yes {
            generation: self.deliveries.first().map(|made| made.2),
            triggers: self.deliveries.into_iter().map(|made| made.1).collect(),
            open: self.open.into_iter().map(|pair| pair.1).collect(),
        })
    }

    /// What is counted of a batch, `pending` of which were left out before.
    pub(super) fn counts(&self, pending: i64) -> ReplayCounts {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        ReplayCounts {
            deliveries: count(self.deliveries.len()),
            open: count(self.open.len()),
            pending: self.pending + pending,
        }
    }
}

/// What is asked for, by event: `to` in the order of the batch's events.
pub(super) fn wanted<'a>(
    batch: &'a ReplayBatch,
    to: &'a [Vec<Destination>],
) -> BTreeMap<i64, &'a [Destination]> {
    batch.events.iter().map(|event| event.pk).zip(to.iter().map(Vec::as_slice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{OperationFilter, OperationKind, OperationState};

    fn work(limit: Option<i64>, done: i64) -> Operation {
        Operation {
            id: uuid::Uuid::nil(),
            project: "shop".into(),
            kind: OperationKind::ReplayEvents,
            filter: OperationFilter::Events(ReplayFilter::default()),
            limit,
            state: OperationState::Running,
            total: 9,
            done,
            counts: ReplayCounts::default(),
            created_at: 0,
            updated_at: 0,
            cursor: 0,
            last: 100,
        }
    }

    fn part(pks: &[i64], seen: i64, pending: i64, position: i64, through: bool) -> Part {
        Part { pks: pks.to_vec(), seen, pending, position, through }
    }

    #[test]
    fn a_part_ends_where_the_next_one_begins() {
        let found = [(3, true, 1), (5, false, 1), (8, true, 1)];
        let of = |take, end| Part::of(&work(None, 0), &found, take, 90, end);
        assert_eq!(of(3, true), part(&[3, 8], 3, 1, 8, false), "there may be more behind it");
        assert_eq!(of(4, true), part(&[3, 8], 3, 1, 90, true));
        assert_eq!(of(4, false), part(&[3, 8], 3, 1, 90, false), "few of those looked at match");
        let none = Part::of(&work(None, 0), &[], 4, 90, false);
        assert_eq!(none, part(&[], 0, 0, 90, false));
    }

    #[test]
    fn a_limit_ends_it() {
        let found = [(3, true, 1), (5, false, 1)];
        assert_eq!(Part::of(&work(Some(7), 5), &found, 2, 90, false), part(&[3], 2, 1, 5, true));
        assert!(Part::of(&work(Some(7), 7), &[], 0, 90, false).through);
    }

    #[test]
    fn payloads_bound_a_part_and_the_first_comes_anyway() {
        let found = [(3, true, MAX_BYTES + 1), (5, false, MAX_BYTES), (8, true, 1)];
        let of = |found: &[Found]| Part::of(&work(None, 0), found, 10, 90, true);
        assert_eq!(of(&found), part(&[3], 1, 0, 3, false));
        assert_eq!(of(&found[1..]), part(&[8], 2, 1, 90, true), "what is pending isn't read");
    }
}
