//! Whether a store holds what the model says.

use std::collections::BTreeMap;

use outrigger::store::{
    Chain, DeliveryFilter, DeliveryRow, DeliveryState, EventFilter, EventRow, EventStatus,
};
use uuid::Uuid;

use super::{
    TRIGGERS,
    world::{Delivery, Event, When, World},
};
use crate::conformance::bench::{Bench, SHOP, all};

/// Longer than a test takes, in milliseconds.
pub(super) const AGES: i64 = 3_600_000;

async fn deliveries(bench: &Bench, state: Option<DeliveryState>) -> Vec<DeliveryRow> {
    let filter = DeliveryFilter { state, ..DeliveryFilter::default() };
    bench.store.deliveries(SHOP, &filter, &all()).await.expect("lists").items
}

/// Gives the model the pks and ids of what the store has made, and compares
/// everything else.
pub(super) async fn same(bench: &Bench, world: &mut World) {
    let rows = bench.store.events(SHOP, &EventFilter::default(), &all()).await.expect("lists");
    let rows: BTreeMap<Uuid, EventRow> =
        rows.items.into_iter().map(|row| (row.event.message_id, row)).collect();
    assert_eq!(rows.len(), world.events.len(), "events");
    for event in &mut world.events {
        let row = rows.get(&event.id).unwrap_or_else(|| panic!("{event:?} is lost"));
        if event.pk == 0 {
            (event.pk, event.lane) = (row.event.pk, row.event.lane);
        }
        let there = (row.event.pk, row.status, row.claims, row.dispatched_at.is_some());
        let expected = (event.pk, status(event), event.claims, event.dispatched);
        assert_eq!(there, expected, "{event:?}");
    }
    assert!(world.events.is_sorted_by_key(|event| event.pk), "pks are in the order of recording");

    let mut rows = deliveries(bench, None).await;
    rows.extend(deliveries(bench, Some(DeliveryState::Dead)).await);
    rows.extend(deliveries(bench, Some(DeliveryState::Done)).await);
    let now = bench.store.survey(&bench.lanes()).await.expect("surveys").now;
    let key = |row: &DeliveryRow| (row.message_id, row.trigger.clone(), row.generation);
    let mut rows: BTreeMap<_, DeliveryRow> = rows.into_iter().map(|row| (key(&row), row)).collect();
    for delivery in &mut world.deliveries {
        let key = (delivery.event, delivery.trigger.clone(), delivery.generation);
        let row = rows.remove(&key).unwrap_or_else(|| panic!("{delivery:?} is lost"));
        if delivery.id == 0 {
            delivery.id = row.id;
        }
        let there = (row.id, row.state, &*row.cause, row.attempts, row.claimed);
        let claimed = delivery.claim.is_some_and(|lease| !lease.ended);
        let expected = (delivery.id, delivery.state, delivery.cause, delivery.attempts, claimed);
        assert_eq!(there, expected, "{delivery:?}");
        if delivery.is_open() {
            assert_eq!(row.due_at > now + AGES / 2, !delivery.due, "{delivery:?}");
        }
        assert_eq!(row.ended_at.is_some(), !delivery.is_open(), "{delivery:?}");
    }
    assert!(rows.is_empty(), "of nowhere: {rows:?}");
    for row in deliveries(bench, Some(DeliveryState::Blocked)).await {
        assert_eq!(row.blocked_by, blocker(world, row.id), "what {row:?} waits for");
    }
    chains(world);
    states(bench, world).await;
    counts(bench, world).await;
}

fn status(event: &Event) -> EventStatus {
    match event {
        Event { dispatched: true, .. } => EventStatus::Dispatched,
        Event { claim: Some(lease), .. } if !lease.ended => EventStatus::Claimed,
        Event { when: When::Later, .. } => EventStatus::Scheduled,
        _ => EventStatus::Pending,
    }
}

fn together(a: &Delivery, b: &Delivery) -> bool {
    (a.chain, &a.aggregate, &a.trigger) == (b.chain, &b.aggregate, &b.trigger)
}

/// The event before a blocked delivery's; else the one that came before its
/// turn, and runs.
fn blocker(world: &World, id: i64) -> Option<Uuid> {
    let blocked = world.deliveries.iter().find(|delivery| delivery.id == id)?;
    let open = || world.deliveries.iter().filter(|d| d.is_open() && together(d, blocked));
    let before = open().filter(|d| d.pk < blocked.pk).max_by_key(|d| d.pk);
    let runs = || open().find(|d| d.state == DeliveryState::Ready);
    before.or_else(runs).map(|delivery| delivery.event)
}

/// In each chain that isn't empty exactly one delivery can run, and no pair of
/// event and trigger has two that are open.
fn chains(world: &World) {
    let open = || world.deliveries.iter().filter(|d| d.is_open());
    for delivery in open() {
        let pair = open().filter(|d| (d.event, &d.trigger) == (delivery.event, &delivery.trigger));
        assert_eq!(pair.count(), 1, "{delivery:?} is open twice");
        if delivery.chain == Chain::None {
            assert_eq!(delivery.state, DeliveryState::Ready, "{delivery:?}");
            continue;
        }
        let ready = open().filter(|d| together(d, delivery) && d.state == DeliveryState::Ready);
        assert_eq!(ready.count(), 1, "in the chain of {delivery:?}");
    }
}

async fn states(bench: &Bench, world: &World) {
    for trigger in TRIGGERS {
        let stored = bench.store.state(SHOP, trigger, "", None, 100).await.expect("reads");
        let stored: Vec<_> = stored.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let expected = world.state.iter().filter(|((of, _), _)| of == trigger);
        let expected: Vec<_> =
            expected.map(|((_, key), value)| (key.clone(), value.clone())).collect();
        assert_eq!(stored, expected, "the state of {trigger}");
    }
}

async fn counts(bench: &Bench, world: &World) {
    let status = bench.store.status().await.expect("counts");
    let shop = status.projects.get(SHOP).cloned().unwrap_or_default();
    let events = |wanted| {
        let found = world.events.iter().filter(|event| self::status(event) == wanted);
        i64::try_from(found.count()).expect("few")
    };
    let expected = (
        events(EventStatus::Pending),
        events(EventStatus::Claimed),
        events(EventStatus::Scheduled),
        world.dispatched,
    );
    assert_eq!((shop.pending, shop.in_flight, shop.scheduled, shop.dispatched), expected);
    for trigger in TRIGGERS {
        let counts = shop.triggers.get(trigger).cloned().unwrap_or_default();
        let deliveries = |wanted| {
            let found = world.deliveries.iter().filter(|d| d.trigger == trigger);
            i64::try_from(found.filter(|d| d.state == wanted).count()).expect("few")
        };
        let (done, failed) = world.totals.get(trigger).copied().unwrap_or_default();
        let expected = (
            done,
            failed,
            deliveries(DeliveryState::Ready),
            deliveries(DeliveryState::Blocked),
            deliveries(DeliveryState::Dead),
        );
        let there = (counts.done, counts.failed, counts.retrying, counts.blocked, counts.dead);
        assert_eq!(there, expected, "of {trigger}");
    }
}
