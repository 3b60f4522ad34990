//! Bulk work on dead letters.

use outrigger::{
    model::{event::NewEvent, outcome::FailureKind},
    store::{DeadLetterFilter, Operation, OperationFilter, OperationKind, OperationState, Spill},
};

use super::bench::{Adding as _, Bench, MAIL, SHOP, all, dead_at_once, done, order};

use OperationKind::{PurgeDeadLetters as PURGE, RequeueDeadLetters as REQUEUE};

/// Dead letters of as many aggregates, `0`, `1` and so on.
async fn letters(bench: &Bench, count: usize) {
    bench.hold().await;
    let events: Vec<_> = (0..count).map(|n| order(&n.to_string())).collect();
    bench.record(&events).await;
    let group = bench.claim().await.into_iter().map(|e| done(e).spill(dead_at_once()));
    bench.settle(group.collect()).await;
}

async fn start(bench: &Bench, kind: OperationKind, filter: &DeadLetterFilter) -> Operation {
    bench.store.start(SHOP, kind, filter, None).await.expect("starts")
}

async fn dead(bench: &Bench) -> i64 {
    bench.store.count_dead(SHOP, &DeadLetterFilter::default()).await.expect("counts")
}

async fn look(bench: &Bench, work: &Operation) -> (OperationState, i64) {
    let work = bench.store.operation(SHOP, work.id).await.expect("looks").expect("is there");
    (work.state, work.done)
}

/// Goes on until there is nothing to do; answers in how many steps.
async fn finish(bench: &Bench, batch: u32) -> usize {
    for steps in 0..100 {
        if !bench.store.advance(batch).await.expect("advances") {
            return steps;
        }
    }
    panic!("it never ends");
}

pub(super) async fn dead_letters_are_requeued_in_bulk(bench: &Bench) {
    letters(bench, 5).await;
    let filter = DeadLetterFilter { trigger: Some(MAIL.into()), ..DeadLetterFilter::default() };
    let work = start(bench, REQUEUE, &filter).await;
    assert_eq!((work.state, work.total, work.done), (OperationState::Running, 5, 0));
    let kept = OperationFilter::DeadLetters(filter);
    assert_eq!((&work.filter, work.kind, &*work.project), (&kept, REQUEUE, SHOP));
    assert_eq!(dead(bench).await, 5, "nothing is done yet");
    finish(bench, 100).await;
    assert_eq!(look(bench, &work).await, (OperationState::Done, 5));
    assert_eq!(dead(bench).await, 0);
    assert_eq!(bench.deliver().await.len(), 5);
    assert_eq!(bench.store.operation("other", work.id).await.expect("looks"), None);
    assert_eq!(finish(bench, 100).await, 0);
}

pub(super) async fn dead_letters_are_purged_in_batches(bench: &Bench) {
    letters(bench, 5).await;
    let work = start(bench, PURGE, &DeadLetterFilter::default()).await;
    assert!(bench.store.advance(2).await.expect("advances"));
    assert_eq!((look(bench, &work).await, dead(bench).await), ((OperationState::Running, 2), 3));
    assert!(finish(bench, 2).await >= 2);
    assert_eq!((look(bench, &work).await, dead(bench).await), ((OperationState::Done, 5), 0));
}

pub(super) async fn a_limit_is_kept(bench: &Bench) {
    letters(bench, 5).await;
    let any = DeadLetterFilter::default();
    let work = bench.store.start(SHOP, PURGE, &any, Some(3)).await.expect("starts");
    assert_eq!((work.limit, work.total), (Some(3), 3));
    finish(bench, 2).await;
    assert_eq!((look(bench, &work).await, dead(bench).await), ((OperationState::Done, 3), 2));
    let none = bench.store.start(SHOP, PURGE, &any, Some(0)).await.expect("starts");
    finish(bench, 2).await;
    assert_eq!((look(bench, &none).await, dead(bench).await), ((OperationState::Done, 0), 2));
    let more = bench.store.start(SHOP, PURGE, &any, Some(30)).await.expect("starts");
    finish(bench, 2).await;
    assert_eq!((look(bench, &more).await, dead(bench).await), ((OperationState::Done, 2), 0));
}

pub(super) async fn bulk_work_is_cancelled(bench: &Bench) {
    letters(bench, 5).await;
    let work = start(bench, PURGE, &DeadLetterFilter::default()).await;
    assert!(bench.store.advance(2).await.expect("advances"));
    assert_eq!(bench.store.cancel("other", work.id).await.expect("answers"), None);
    let cancelled = bench.store.cancel(SHOP, work.id).await.expect("cancels").expect("is there");
    assert_eq!((cancelled.state, cancelled.done), (OperationState::Cancelled, 2));
    assert_eq!((finish(bench, 2).await, dead(bench).await), (0, 3));
    let done = start(bench, PURGE, &DeadLetterFilter::default()).await;
    finish(bench, 9).await;
    let late = bench.store.cancel(SHOP, done.id).await.expect("answers").expect("is there");
    assert_eq!(late.state, OperationState::Done);
}

pub(super) async fn later_dead_letters_are_left_alone(bench: &Bench) {
    letters(bench, 3).await;
    let work = start(bench, PURGE, &DeadLetterFilter::default()).await;
    letters(bench, 2).await;
    finish(bench, 2).await;
    assert_eq!((look(bench, &work).await, dead(bench).await), ((OperationState::Done, 3), 2));
}

pub(super) async fn filters_mean_what_they_say(bench: &Bench) {
    bench.hold().await;
    let events = [
        order("a"),
        NewEvent { event_name: "order.paid".into(), ..order("b") },
        NewEvent { project: "other".into(), ..order("a") },
    ];
    bench.record(&events).await;
    let trap = || Spill {
        trigger: "other".into(),
        error: Some((FailureKind::Trap, "trapped".into())),
        ..dead_at_once()
    };
    let group =
        bench.claim().await.into_iter().map(|e| done(e).spill(dead_at_once()).spill(trap()));
    bench.settle(group.collect()).await;
    let any = DeadLetterFilter::default;
    let now = bench.store.survey(&[]).await.expect("surveys").now;
    for (filter, expected) in [
        (any(), 4),
        (DeadLetterFilter { trigger: Some(MAIL.into()), ..any() }, 2),
        (DeadLetterFilter { event_name: Some("order.paid".into()), ..any() }, 2),
        (DeadLetterFilter { aggregate_id: Some("a".into()), ..any() }, 2),
        (DeadLetterFilter { kind: Some(FailureKind::Trap), ..any() }, 2),
        (DeadLetterFilter { since: Some(now + 60_000), ..any() }, 0),
        (DeadLetterFilter { since: Some(now - 60_000), until: Some(now + 60_000), ..any() }, 4),
        (DeadLetterFilter { until: Some(now - 60_000), ..any() }, 0),
        (
            DeadLetterFilter {
                trigger: Some("other".into()),
                aggregate_id: Some("a".into()),
                kind: Some(FailureKind::Trap),
                ..any()
            },
            1,
        ),
    ] {
        let counted = bench.store.count_dead(SHOP, &filter).await.expect("counts");
        let listed = bench.store.dead_letters(SHOP, &filter, &all()).await.expect("lists").items;
        assert_eq!((counted, listed.len()), (expected, listed.len()), "{filter:?}");
        assert_eq!(listed.len(), usize::try_from(expected).expect("small"), "{filter:?}");
        assert!(listed.iter().rev().map(|letter| letter.id).is_sorted());
    }
    let filter = DeadLetterFilter { kind: Some(FailureKind::Trap), ..any() };
    let work = start(bench, PURGE, &filter).await;
    finish(bench, 9).await;
    assert_eq!((work.total, dead(bench).await), (2, 2));
    assert_eq!(bench.store.count_dead("other", &any()).await.expect("counts"), 2);
}
