//! What a settle writes, and what it doesn't.

use std::time::Duration;

use outrigger::{
    model::{
        attempt::{Level, LogLine, Source},
        effect::{Effects, Write},
        event::NewEvent,
        outcome::FailureKind,
    },
    store::{AttemptFilter, End, EventFilter, EventStatus, Held, PageRequest, Settled, Subject},
};
use uuid::Uuid;

use super::bench::{
    Adding as _, Bench, LONG, MAIL, SHOP, all, dead, dead_at_once, done, ended, failed, keyed,
    order, refused, set, until, well, writing,
};

/// How many events the shop has.
async fn count(bench: &Bench) -> usize {
    let page = bench.store.events(SHOP, &EventFilter::default(), &all()).await;
    page.expect("lists").items.len()
}

pub(super) async fn a_dispatched_event_is_through(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    let id = claimed.event.message_id;
    let result_json = r#"{"mail": {"outcome": "done \ud800", "n": 1e400}}"#.to_owned();
    let end = End::Dispatched { result_json: result_json.clone(), spills: vec![] };
    let mut settlement = done(claimed);
    settlement.end = end;
    bench.write(settlement).await;
    let row = bench.store.event(SHOP, id).await.expect("looks").expect("is there");
    assert_eq!((row.status, row.result), (EventStatus::Dispatched, Some(result_json)));
    assert!(row.dispatched_at.is_some_and(|at| at >= row.event.created_at));
    assert!(bench.claim().await.is_empty());
    assert!(bench.store.settle(&[], LONG).await.expect("settles nothing").is_empty());
}

pub(super) async fn a_claim_is_settled_once(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    let settlement = done(claimed).emit(vec![order("b")]).state(set("k", "v"));
    let group = [settlement];
    let first = bench.store.settle(&group, LONG).await.expect("settles");
    let second = bench.store.settle(&group, LONG).await.expect("settles");
    assert_eq!((first, second), (vec![Settled::Done], vec![Settled::Lost]));
    assert_eq!(count(bench).await, 2);
    let status = bench.store.status().await.expect("counts");
    assert_eq!(status.projects[SHOP].dispatched, 1);
}

pub(super) async fn a_void_claim_gains_nothing_from_a_good_one_beside_it(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a")]).await;
    let void = bench.claim_for(Duration::from_millis(1)).await.pop().expect("one");
    let mut good = Vec::new();
    until(async || {
        good = bench.claim().await;
        !good.is_empty()
    })
    .await;
    let good = good.pop().expect("the same one");
    let held = bench.store.renew(&[&void.claim, &good.claim], LONG).await.expect("renews");
    assert_eq!(held, [Held::Lost, Held::Yes]);
    let add = |claimed| done(claimed).state(writing("n", Write::Add(1)));
    let group = vec![add(void), add(good)];
    assert_eq!(bench.settle(group).await, [Settled::Lost, Settled::Done]);
    assert_eq!(bench.value("n").await, Some(b"1".to_vec()));

    let id = bench.spilled("b", failed()).await.message_id;
    let void = bench.deliver_for(9, Duration::from_millis(1)).await.pop().expect("one");
    let mut good = Vec::new();
    until(async || {
        good = bench.deliver().await;
        !good.is_empty()
    })
    .await;
    let good = good.pop().expect("the same one");
    let held = bench.store.renew(&[&void.claim, &good.claim], LONG).await.expect("renews");
    assert_eq!(held, [Held::Lost, Held::Yes]);
    let add = |claimed| ended(claimed, well()).state(writing("n", Write::Add(1)));
    let group = vec![add(void), add(good)];
    assert_eq!(bench.settle(group).await, [Settled::Lost, Settled::Done]);
    assert_eq!(bench.value("n").await, Some(b"2".to_vec()));
    assert_eq!(bench.delivery(id).await.attempts, 2);
}

pub(super) async fn emitted_events_are_recorded(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    let id = Uuid::now_v7();
    let emitted = NewEvent {
        message_id: Some(id),
        meta: Some(r#"{"hops": 1}"#.into()),
        payload: r#"{"text": "\u0000\ud800"}"#.into(),
        schema_version: 3,
        ..keyed("b", "k")
    };
    bench.write(done(claimed).emit(vec![emitted.clone()])).await;
    let found = bench.claim_one().await;
    let event = &found.event;
    assert_eq!(
        (event.message_id, &event.payload, &event.meta),
        (id, &emitted.payload, &emitted.meta)
    );
    assert_eq!((event.schema_version, event.dedup_key.as_deref()), (3, Some("k")));
}

pub(super) async fn a_used_dedup_key_is_not_recorded_again(bench: &Bench) {
    bench.hold().await;
    bench.record(&[keyed("a", "used")]).await;
    let claimed = bench.claim_one().await;
    let emitted = vec![keyed("b", "used"), keyed("c", "new"), keyed("d", "new"), order("e")];
    bench.write(done(claimed).emit(emitted)).await;
    let aggregates: Vec<_> =
        bench.claim().await.into_iter().map(|e| e.event.aggregate_id).collect();
    assert_eq!(aggregates.len(), 2, "{aggregates:?}");
    assert!(aggregates.contains(&"c".to_owned()) && aggregates.contains(&"e".to_owned()));
}

pub(super) async fn emitted_events_keep_their_order(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    let called = |key: Option<&str>, name: &str| NewEvent {
        event_name: name.into(),
        dedup_key: key.map(Into::into),
        ..order("one")
    };
    let emitted =
        vec![called(Some("z"), "1"), called(None, "2"), called(Some("a"), "3"), called(None, "4")];
    bench.write(done(claimed).emit(emitted)).await;
    let claimed: Vec<_> = bench.claim().await.into_iter().map(|e| e.event.event_name).collect();
    assert_eq!(claimed, ["1", "2", "3", "4"]);
}

pub(super) async fn the_lost_write_nothing_and_their_neighbours_all(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a"), order("b"), order("c")]).await;
    let claimed = bench.claim().await;
    bench.store.release(&[&claimed[1].claim]).await.expect("releases");
    let settlement = |claimed: outrigger::store::ClaimedEvent| {
        let name = claimed.event.aggregate_id.clone();
        done(claimed)
            .state(set(&name, "v"))
            .emit(vec![order(&format!("from {name}"))])
            .attempt(MAIL, None, None)
            .spill(failed())
    };
    let group = claimed.into_iter().map(settlement).collect();
    assert_eq!(bench.settle(group).await, [Settled::Done, Settled::Lost, Settled::Done]);
    let values = [bench.value("a").await, bench.value("b").await, bench.value("c").await];
    assert_eq!(values.map(|value| value.is_some()), [true, false, true]);
    assert_eq!(count(bench).await, 5);
    let attempts = bench.store.attempts(SHOP, &AttemptFilter::default(), &all()).await;
    assert_eq!(attempts.expect("lists").items.len(), 2);
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 2);
}

pub(super) async fn a_group_that_is_refused_changes_nothing(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a"), order("b")]).await;
    let mut claimed = bench.claim().await;
    let bad = NewEvent { payload: "{no JSON".into(), ..order("c") };
    let culprit = done(claimed.pop().expect("two")).emit(vec![bad]);
    let good = done(claimed.pop().expect("two")).state(set("k", "v"));
    let group = [good, culprit];
    let error = bench.store.settle(&group, LONG).await.expect_err("is refused");
    assert!(refused(&error) && !error.is_passing(), "{error}");
    assert_eq!(bench.value("k").await, None);
    let [good, culprit] = group;
    bench.store.settle(&[culprit], LONG).await.expect_err("is refused alone");
    bench.write(good).await;
    assert_eq!(bench.value("k").await, Some(b"v".to_vec()));
}

pub(super) async fn attempts_are_kept(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    let mut settlement =
        done(claimed).attempt(MAIL, Some(FailureKind::Trap), Some("a\0b \u{1f980}"));
    let line = |source, text: &str| LogLine {
        at_us: 5,
        level: Level::Warn,
        source,
        text: text.to_owned(),
    };
    let attempt = &mut settlement.attempts[0];
    attempt.logs = vec![line(Source::Stderr, "a\0b"), line(Source::Log, "\u{1f980}\u{10ffff}")];
    attempt.digest = Some("d".repeat(64));
    attempt.number = 3;
    let expected = attempt.clone();
    bench.write(settlement).await;
    let page = bench.store.attempts(SHOP, &AttemptFilter::default(), &all()).await.expect("lists");
    let kept = &page.items[0].attempt;
    assert_eq!((&kept.logs, kept.usage), (&expected.logs, expected.usage));
    assert_eq!(kept.error.as_deref(), Some("a\u{fffd}b \u{1f980}"));
    assert_eq!((kept.failure, &kept.digest), (expected.failure, &expected.digest));
    assert_eq!((kept.number, kept.started_at, kept.event_pk), (3, 1000, expected.event_pk));
    assert_eq!((kept.message_id, &*kept.trigger), (expected.message_id, MAIL));
}

pub(super) async fn attempts_are_listed(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a"), order("b")]).await;
    let claimed = bench.claim().await;
    let id = claimed[0].event.message_id;
    let two = |claimed| {
        let trap = Some(FailureKind::Trap);
        done(claimed).attempt(MAIL, None, None).attempt("other", trap, Some("trapped"))
    };
    bench.settle(claimed.into_iter().map(two).collect()).await;
    let count = async |filter: AttemptFilter| {
        bench.store.attempts(SHOP, &filter, &all()).await.expect("lists").items.len()
    };
    let any = AttemptFilter::default;
    assert_eq!(count(any()).await, 4);
    assert_eq!(count(AttemptFilter { trigger: Some(MAIL.into()), ..any() }).await, 2);
    assert_eq!(count(AttemptFilter { message_id: Some(id), ..any() }).await, 2);
    assert_eq!(count(AttemptFilter { failed: true, ..any() }).await, 2);
    let one = AttemptFilter {
        message_id: Some(id),
        trigger: Some("other".into()),
        failed: true,
        ..any()
    };
    assert_eq!(count(one).await, 1);
    let of = |kind| AttemptFilter { kind: Some(kind), ..any() };
    assert_eq!(count(of(FailureKind::Trap)).await, 2);
    assert_eq!(count(of(FailureKind::Retry)).await, 0);
    let mut page = PageRequest { limit: 3, ..PageRequest::default() };
    let first = bench.store.attempts(SHOP, &any(), &page).await.expect("lists");
    page.cursor = first.next;
    let second = bench.store.attempts(SHOP, &any(), &page).await.expect("lists");
    assert_eq!((first.items.len(), second.items.len(), second.next), (3, 1, None));
    let late = PageRequest { since: Some(1001), ..all() };
    assert!(bench.store.attempts(SHOP, &any(), &late).await.expect("lists").items.is_empty());
}

pub(super) async fn attempts_are_followed_by_id(bench: &Bench) {
    bench.hold().await;
    assert_eq!(bench.store.newest_attempt().await.expect("tells"), 0);
    bench.record(&["a", "b", "c"].map(order)).await;
    let claimed = bench.claim().await;
    let about = claimed[0].event.clone();
    let two = |claimed| done(claimed).attempt(MAIL, None, None).attempt("other", None, None);
    bench.settle(claimed.into_iter().map(two).collect()).await;
    let ids = async |project, above, limit| {
        bench.store.attempt_ids(project, above, limit).await.expect("lists")
    };
    let known = ids(SHOP, 0, 100).await;
    assert!(known.len() == 6 && known.is_sorted() && known[0] > 0, "{known:?}");
    assert_eq!(bench.store.newest_attempt().await.expect("tells"), known[5]);
    assert_eq!(ids(SHOP, known[2], 100).await, known[3..]);
    assert_eq!(ids(SHOP, 0, 2).await, known[4..], "the last of them");
    assert!(ids("other", 0, 100).await.is_empty());
    let wanted = [known[4], known[1], i64::MAX];
    let rows = bench.store.attempts_by_id(SHOP, &wanted).await.expect("reads");
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [known[1], known[4]]);
    assert!(bench.store.attempts_by_id("other", &known).await.expect("reads").is_empty());
    let rows = bench.store.attempts_by_id(SHOP, &known).await.expect("reads");
    let row = rows.iter().find(|row| row.attempt.event_pk == about.pk).expect("one of them");
    let subject = Subject {
        resource: about.resource.clone(),
        aggregate_id: about.aggregate_id.clone(),
        event_name: about.event_name.clone(),
    };
    assert_eq!(row.subject, Some(subject));
    let page = bench.store.attempts(SHOP, &AttemptFilter::default(), &all()).await;
    let listed: Vec<_> = page.expect("lists").items.into_iter().rev().collect();
    assert_eq!(listed, rows);
}

pub(super) async fn calls_are_counted_once(bench: &Bench) {
    bench.hold().await;
    bench.record(&["a", "b", "c"].map(order)).await;
    let [a, b, c] = bench.claim().await.try_into().expect("three");
    let group = vec![
        done(a).effects(MAIL, Effects::default()).effects("other", Effects::default()),
        done(b).spill(failed()).attempt(MAIL, Some(FailureKind::Retry), Some("not now")),
        done(c).spill(dead_at_once()),
    ];
    bench.settle(group).await;
    let count = async || {
        let status = bench.store.status().await.expect("counts");
        let shop = &status.projects[SHOP];
        let mail = &shop.triggers[MAIL];
        (shop.dispatched, mail.done, mail.failed, shop.triggers["other"].done)
    };
    assert_eq!(count().await, (3, 1, 2, 1));
    let delivery = bench.deliver().await.pop().expect("one");
    bench.write(ended(delivery, super::bench::again(2, 0))).await;
    let delivery = bench.deliver().await.pop().expect("one");
    bench.write(ended(delivery, well()).effects(MAIL, Effects::default())).await;
    assert_eq!(count().await, (3, 2, 3, 1));
    let claimed = bench.claim_new(order("d")).await;
    bench.write(done(claimed).spill(failed())).await;
    let delivery = bench.deliver().await.pop().expect("one");
    bench.write(ended(delivery, dead(2))).await;
    assert_eq!(count().await, (4, 2, 5, 1));
}
