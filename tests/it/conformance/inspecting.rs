//! What people look at, and what is cleared away.

use std::time::Duration;

use outrigger::{
    model::{Lane, event::NewEvent, outcome::FailureKind},
    store::{
        Aged, AgedEvent, AttemptFilter, DeliveryFilter, DeliveryState, EventFilter, EventRow,
        EventStatus, PageRequest, Spill, Trace,
    },
};
use uuid::Uuid;

use super::bench::{
    Adding as _, Bench, LONG, MAIL, SHOP, all, blocked, dead_at_once, done, ended, failed, keyed,
    order, set, until, well,
};

async fn listed(bench: &Bench, filter: EventFilter) -> Vec<String> {
    let page = bench.store.events(SHOP, &filter, &all()).await.expect("lists");
    page.items.into_iter().map(|row| row.event.aggregate_id).collect()
}

fn by(status: EventStatus) -> EventFilter {
    EventFilter { status: Some(status), ..EventFilter::default() }
}

pub(super) async fn an_event_shows_where_it_stands(bench: &Bench) {
    bench.hold().await;
    let event = NewEvent { available_at: Some(i64::MAX), ..order("later") };
    let [now, later] = bench.record(&[order("now"), event]).await.try_into().expect("two");
    let status = async |id| {
        let row = bench.store.event(SHOP, id).await.expect("looks").expect("is there");
        (row.status, row.claims, row.dispatched_at.is_some())
    };
    assert_eq!(status(later).await, (EventStatus::Scheduled, 0, false));
    assert_eq!(status(now).await, (EventStatus::Pending, 0, false));
    let claimed = bench.claim_for(Duration::from_millis(200)).await;
    assert_eq!((status(now).await, claimed.len()), ((EventStatus::Claimed, 1, false), 1));
    until(async || status(now).await.0 == EventStatus::Pending).await;
    let claimed = bench.claim_one().await;
    bench.write(done(claimed)).await;
    assert_eq!(status(now).await, (EventStatus::Dispatched, 2, true));
    assert_eq!(bench.store.event("other", now).await.expect("looks"), None);
    assert_eq!(bench.store.event(SHOP, Uuid::nil()).await.expect("looks"), None);
}

pub(super) async fn events_are_listed_by_filter(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("done"), order("claimed")]).await;
    let mut claimed = bench.claim().await;
    bench.write(done(claimed.remove(0))).await;
    let later = NewEvent { available_at: Some(i64::MAX), ..order("later") };
    let due = NewEvent { available_at: Some(1), event_name: "order.paid".into(), ..order("due") };
    let bill = NewEvent { resource: "bill".into(), ..keyed("bill", "k") };
    let elsewhere = NewEvent { project: "other".into(), ..keyed("elsewhere", "k") };
    for event in [later, due, bill, elsewhere] {
        bench.record(&[event]).await;
    }
    let any = EventFilter::default;
    assert_eq!(listed(bench, any()).await, ["bill", "due", "later", "claimed", "done"]);
    assert_eq!(listed(bench, by(EventStatus::Dispatched)).await, ["done"]);
    assert_eq!(listed(bench, by(EventStatus::Claimed)).await, ["claimed"]);
    assert_eq!(listed(bench, by(EventStatus::Scheduled)).await, ["later"]);
    assert_eq!(listed(bench, by(EventStatus::Pending)).await, ["bill", "due"]);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(listed(bench, EventFilter { resource: some("bill"), ..any() }).await, ["bill"]);
    assert_eq!(listed(bench, EventFilter { aggregate_id: some("due"), ..any() }).await, ["due"]);
    assert_eq!(
        listed(bench, EventFilter { event_name: some("order.paid"), ..any() }).await,
        ["due"]
    );
    assert_eq!(listed(bench, EventFilter { dedup_key: some("k"), ..any() }).await, ["bill"]);
    let none = EventFilter { dedup_key: some("k"), resource: some("order"), ..any() };
    assert!(listed(bench, none).await.is_empty());
}

pub(super) async fn events_are_listed_page_by_page(bench: &Bench) {
    let events: Vec<_> = (0..7).map(|n| order(&n.to_string())).collect();
    bench.record(&events).await;
    for status in [None, Some(EventStatus::Pending)] {
        let filter = EventFilter { status, ..EventFilter::default() };
        let mut page = PageRequest { limit: 3, ..PageRequest::default() };
        let mut seen = Vec::new();
        loop {
            let found = bench.store.events(SHOP, &filter, &page).await.expect("lists");
            assert!(found.items.len() <= 3);
            seen.extend(found.items.into_iter().map(|row| row.event.aggregate_id));
            page.cursor = found.next;
            if found.next.is_none() {
                break;
            }
        }
        assert_eq!(seen, ["6", "5", "4", "3", "2", "1", "0"]);
    }
    let now = bench.store.survey(&[]).await.expect("surveys").now;
    let count = async |since, until| {
        let page = PageRequest { since, until, ..all() };
        bench.store.events(SHOP, &EventFilter::default(), &page).await.expect("lists").items.len()
    };
    assert_eq!(count(Some(now - 60_000), Some(now + 60_000)).await, 7);
    assert_eq!(
        (count(Some(now + 60_000), None).await, count(None, Some(now - 60_000)).await),
        (0, 0)
    );
}

pub(super) async fn deliveries_are_listed_by_filter(bench: &Bench) {
    bench.hold().await;
    let well_done = bench.spilled("done", failed()).await;
    let due = bench.deliver().await.pop().expect("one");
    bench.write(ended(due, well())).await;
    bench.spilled("a", failed()).await;
    bench.spilled("a", blocked()).await;
    bench.spilled("b", dead_at_once()).await;
    let other = Spill { trigger: "other".into(), ..failed() };
    let claimed = bench.claim_new(order("a")).await;
    bench.write(done(claimed).spill(other)).await;
    let count = async |filter: DeliveryFilter| {
        bench.store.deliveries(SHOP, &filter, &all()).await.expect("lists").items.len()
    };
    let any = DeliveryFilter::default;
    let state = |state| DeliveryFilter { state: Some(state), ..any() };
    assert_eq!(count(any()).await, 3, "open ones");
    assert_eq!(count(state(DeliveryState::Ready)).await, 2);
    assert_eq!(count(state(DeliveryState::Blocked)).await, 1);
    assert_eq!(count(state(DeliveryState::Dead)).await, 1);
    assert_eq!(count(state(DeliveryState::Done)).await, 1);
    assert_eq!(count(DeliveryFilter { trigger: Some(MAIL.into()), ..any() }).await, 2);
    let of_event = DeliveryFilter { message_id: Some(well_done.message_id), ..any() };
    assert_eq!(count(of_event.clone()).await, 1, "in any state");
    assert_eq!(count(DeliveryFilter { state: Some(DeliveryState::Ready), ..of_event }).await, 0);
    let page = PageRequest { limit: 2, ..PageRequest::default() };
    let first = bench.store.deliveries(SHOP, &any(), &page).await.expect("lists");
    let page = PageRequest { cursor: first.next, ..page };
    let second = bench.store.deliveries(SHOP, &any(), &page).await.expect("lists");
    let ids: Vec<_> = first.items.iter().chain(&second.items).map(|row| row.id).collect();
    assert!(ids.len() == 3 && ids.iter().rev().is_sorted(), "{ids:?}");
}

pub(super) async fn status_counts_everything(bench: &Bench) {
    bench.hold().await;
    bench.store.put_project(SHOP).await.expect("creates");
    bench.store.put_project("idle").await.expect("creates");
    bench.spilled("a", failed()).await;
    bench.spilled("a", blocked()).await;
    let error = Some((outrigger::model::outcome::FailureKind::Trap, "the last".to_owned()));
    bench.spilled("b", Spill { error, ..dead_at_once() }).await;
    bench.record(&[order("claimed")]).await;
    let claimed = bench.claim().await;
    let later = NewEvent { available_at: Some(i64::MAX), ..order("later") };
    let due = NewEvent { available_at: Some(1), ..order("due") };
    let elsewhere = NewEvent { project: "nowhere".into(), ..order("a") };
    bench.record(&[order("a"), later, due, elsewhere]).await;
    let status = bench.store.status().await.expect("counts");
    let shop = &status.projects[SHOP];
    assert_eq!((shop.pending, shop.in_flight, shop.scheduled, shop.dispatched), (2, 1, 1, 3));
    assert!(shop.oldest_pending_ms.is_some_and(|ms| (0..60_000).contains(&ms)) && shop.exists);
    let mail = &shop.triggers[MAIL];
    assert_eq!((mail.retrying, mail.blocked, mail.dead, mail.failed), (1, 1, 1, 2));
    assert_eq!(mail.last_error.as_deref(), Some("the last"));
    let nowhere = &status.projects["nowhere"];
    assert!(!nowhere.exists && nowhere.pending == 1);
    let idle = &status.projects["idle"];
    assert!(idle.exists && idle.pending == 0 && idle.oldest_pending_ms.is_none());
    assert!(status.now > 0);
    drop(claimed);
}

pub(super) async fn a_sweep_keeps_what_is_not_settled(bench: &Bench) {
    bench.hold().await;
    let retrying = bench.spilled("retrying", failed()).await;
    bench.spilled("retrying", blocked()).await;
    let letter = bench.spilled("dead", dead_at_once()).await;
    let settled = bench.spilled("settled", failed()).await;
    let due = bench.deliver().await.into_iter().find(|d| d.event.aggregate_id == "settled");
    bench.write(ended(due.expect("is due"), well()).attempt(MAIL, None, None)).await;
    let claimed = bench.claim_new(order("plain")).await;
    bench.write(done(claimed).attempt(MAIL, None, None)).await;
    bench.record(&[order("pending")]).await;
    assert_eq!(bench.store.sweep(LONG, 100).await.expect("sweeps"), 0, "nothing is that old");
    let mut gone = 0;
    until(async || {
        gone += bench.store.sweep(Duration::ZERO, 100).await.expect("sweeps");
        gone == 2
    })
    .await;
    let left = listed(bench, EventFilter::default()).await;
    assert_eq!(left, ["pending", "dead", "retrying", "retrying"]);
    let attempts = bench.store.attempts(SHOP, &AttemptFilter::default(), &all()).await;
    assert!(attempts.expect("lists").items.is_empty());
    assert_eq!(bench.store.event(SHOP, settled.message_id).await.expect("looks"), None);
    bench.store.purge(SHOP, letter.id).await.expect("purges");
    assert_eq!(bench.store.sweep(Duration::ZERO, 100).await.expect("sweeps"), 1);
    assert_eq!(bench.delivery(retrying.message_id).await.state, DeliveryState::Ready);
}

pub(super) async fn a_sweep_takes_small_batches(bench: &Bench) {
    bench.hold().await;
    let events: Vec<_> = (0..25).map(|n| order(&n.to_string())).collect();
    bench.record(&events).await;
    let mut claimed = bench.claim().await;
    let last = claimed.split_off(24);
    bench.settle(claimed.into_iter().map(done).collect()).await;
    let mut swept = Vec::new();
    until(async || {
        let gone = bench.store.sweep(Duration::ZERO, 10).await.expect("sweeps");
        swept.extend((gone > 0).then_some(gone));
        swept.iter().sum::<u64>() == 24
    })
    .await;
    assert!(swept.iter().all(|gone| *gone <= 10), "{swept:?}");
    assert_eq!(listed(bench, EventFilter::default()).await, ["24"]);
    drop(last);
}

/// Reads everything that is old enough, piece by piece.
async fn aged(bench: &Bench, lanes: &[Lane], batch: u32) -> Vec<Vec<AgedEvent>> {
    let (mut pieces, mut after) = (Vec::new(), 0);
    loop {
        let aged = bench.store.aged(lanes, Duration::ZERO, after, batch).await.expect("reads");
        pieces.extend((!aged.events.is_empty()).then_some(aged.events));
        match aged.next {
            Some(next) => after = next,
            None => return pieces,
        }
    }
}

pub(super) async fn old_events_are_read_whole_and_forgotten_as_they_were_read(bench: &Bench) {
    bench.hold().await;
    bench.spilled("retrying", failed()).await;
    bench.spilled("dead", dead_at_once()).await;
    let settled = bench.spilled("settled", failed()).await;
    let due = bench.deliver().await.into_iter().find(|d| d.event.aggregate_id == "settled");
    bench.write(ended(due.expect("is due"), well()).attempt(MAIL, None, None)).await;
    let claimed = bench.claim_new(order("plain")).await;
    let kind = Some(FailureKind::Trap);
    bench.write(done(claimed).attempt(MAIL, kind, Some("boom")).attempt("x", None, None)).await;
    bench.record(&[order("pending")]).await;
    let lanes = bench.lanes();
    let none = bench.store.aged(&lanes, LONG, 0, 100).await.expect("reads");
    assert_eq!(none, Aged::default(), "nothing is that old");
    let mut events = Vec::new();
    until(async || {
        events = aged(bench, &lanes, 100).await.concat();
        events.len() == 2
    })
    .await;
    let names: Vec<_> = events.iter().map(|e| &*e.row.event.aggregate_id).collect();
    assert_eq!(names, ["settled", "plain"], "in order; what is open or dead stays");
    assert_eq!(events[0].row.event.message_id, settled.message_id);
    assert_eq!(events[0].row.status, EventStatus::Dispatched);
    assert_eq!(events[0].row.event.payload, order("settled").payload);
    let states: Vec<_> = events[0].deliveries.iter().map(|d| d.state).collect();
    assert_eq!(states, [DeliveryState::Done]);
    assert_eq!((events[0].attempts.len(), events[1].deliveries.len()), (1, 0));
    let attempts: Vec<_> =
        events[1].attempts.iter().map(|a| (&*a.trigger, &*a.project, a.failure)).collect();
    assert_eq!(attempts, [(MAIL, SHOP, kind), ("x", SHOP, None)]);

    // One that has something else by now stays, more or less of it.
    let mut traces: Vec<_> = events.iter().map(AgedEvent::trace).collect();
    traces[0].deliveries -= 1;
    traces[1].attempts -= 1;
    assert_eq!(bench.store.forget(&traces).await.expect("looks"), 0);
    traces[0].deliveries += 1;
    traces[1].attempts += 1;
    traces[0].attempts += 1;
    traces[1].deliveries += 1;
    assert_eq!(bench.store.forget(&traces).await.expect("looks"), 0);
    traces[1].deliveries -= 1;
    assert_eq!(bench.store.forget(&traces).await.expect("deletes"), 1);
    traces[0].attempts -= 1;
    assert_eq!(bench.store.forget(&traces).await.expect("deletes"), 1, "the other is gone");
    assert_eq!(bench.store.forget(&[]).await.expect("looks"), 0);
    let left = listed(bench, EventFilter::default()).await;
    assert_eq!(left, ["pending", "dead", "retrying"]);
    let attempts = bench.store.attempts(SHOP, &AttemptFilter::default(), &all()).await;
    assert!(attempts.expect("lists").items.is_empty());
    // What was read once but is open isn't deleted, whoever says so.
    let kept = bench.store.events(SHOP, &EventFilter::default(), &all()).await.expect("lists");
    let trace = |row: &EventRow| Trace { pk: row.event.pk, deliveries: 1, attempts: 0 };
    let traces: Vec<_> = kept.items.iter().map(trace).collect();
    assert_eq!(bench.store.forget(&traces).await.expect("looks"), 0);
}

pub(super) async fn old_events_are_read_within_bounds(bench: &Bench) {
    bench.hold().await;
    let large = format!("\"{}\"", "x".repeat(5 << 20));
    let events: Vec<_> = (0..30)
        .map(|n| {
            let payload = if n < 3 { large.clone() } else { "{}".into() };
            NewEvent { payload, ..order(&n.to_string()) }
        })
        .collect();
    bench.record(&events).await;
    while counted(bench).await < 30 {
        let claimed = bench.claim().await;
        bench.settle(claimed.into_iter().map(done).collect()).await;
    }
    let lanes = bench.lanes();
    let mut pieces = Vec::new();
    until(async || {
        pieces = aged(bench, &lanes, 10).await;
        pieces.iter().map(Vec::len).sum::<usize>() == 30
    })
    .await;
    assert!(pieces.iter().all(|piece| piece.len() <= 10));
    for piece in &pieces {
        let bytes: usize = piece.iter().map(|e| e.row.event.payload.len()).sum();
        assert!(bytes <= 8 << 20, "{bytes}");
    }
    let pks: Vec<_> = pieces.concat().iter().map(|e| e.row.event.pk).collect();
    assert!(pks.is_sorted(), "{pks:?}");
    // Each lane's events are its holder's to archive.
    let mut by_lane = 0;
    for lane in &lanes {
        let events = aged(bench, &[*lane], 100).await.concat();
        assert!(events.iter().all(|e| e.row.event.lane == *lane));
        by_lane += events.len();
    }
    assert_eq!(by_lane, 30);
    assert!(aged(bench, &[], 100).await.is_empty());
}

/// Events that are dispatched.
async fn counted(bench: &Bench) -> i64 {
    bench.store.status().await.expect("counts").projects[SHOP].dispatched
}

pub(super) async fn a_projects_rows_go(bench: &Bench) {
    bench.hold().await;
    let elsewhere = NewEvent { project: "other".into(), ..order("kept") };
    bench.record(&[elsewhere, order("a"), order("b")]).await;
    let group = bench
        .claim()
        .await
        .into_iter()
        .map(|e| done(e).attempt(MAIL, None, None).spill(failed()).state(set("k", "v")));
    bench.settle(group.collect()).await;
    bench.record(&[order("c")]).await;
    bench.store.delete_project_data(SHOP).await.expect("deletes");
    assert!(listed(bench, EventFilter::default()).await.is_empty());
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 0);
    assert_eq!(bench.value("k").await, None);
    let attempts = async |project| {
        let page = bench.store.attempts(project, &AttemptFilter::default(), &all()).await;
        page.expect("lists").items.len()
    };
    assert_eq!((attempts(SHOP).await, attempts("other").await), (0, 1));
    assert_eq!(bench.store.count_deliveries("other", MAIL).await.expect("counts"), 1);
    let status = bench.store.status().await.expect("counts");
    assert!(!status.projects.contains_key(SHOP) && status.projects.contains_key("other"));
}
