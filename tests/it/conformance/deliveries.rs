//! Pairs of event and trigger that go on in queues of their own.

use std::time::Duration;

use outrigger::{
    model::outcome::FailureKind,
    store::{
        Chain, ClaimedDelivery, DeadLetterFilter, DeliveryRow, DeliveryState, HostId, Requeued,
        Settled, Spill, SpillCause,
    },
};
use uuid::Uuid;

use super::bench::{
    Adding as _, Bench, LONG, MAIL, SHOP, again, all, blocked, dead, dead_at_once, done, ended,
    failed, order, set, until, well,
};

async fn letters(bench: &Bench) -> Vec<DeliveryRow> {
    let filter = DeadLetterFilter::default();
    bench.store.dead_letters(SHOP, &filter, &all()).await.expect("lists").items
}

/// Two dead letters of one key, the older first.
async fn two_letters(bench: &Bench) -> (DeliveryRow, DeliveryRow) {
    bench.hold().await;
    let older = bench.spilled("a", dead_at_once()).await;
    (older, bench.spilled("a", dead_at_once()).await)
}

async fn requeue(bench: &Bench, letter: &DeliveryRow) -> DeliveryState {
    let requeued = bench.store.requeue(SHOP, letter.id).await.expect("requeues");
    assert_eq!(requeued, Requeued::Yes);
    bench.delivery(letter.message_id).await.state
}

pub(super) async fn an_ordered_spill_blocks_the_later_ones(bench: &Bench) {
    bench.hold().await;
    let first = bench.spilled("a", failed()).await;
    assert_eq!((first.state, first.attempts, &*first.cause), (DeliveryState::Ready, 1, "failed"));
    assert_eq!(
        (first.kind, first.last_error.as_deref()),
        (Some(FailureKind::Retry), Some("not now"))
    );
    bench.record(&[order("a"), order("b")]).await;
    let [second, other] = bench.claim().await.try_into().expect("two");
    assert_eq!((&second.open[..], &other.open[..]), (&[MAIL.to_owned()][..], &[][..]));
    let id = second.event.message_id;
    bench.write(done(second).spill(blocked())).await;
    bench.write(done(other).spill(blocked())).await;
    let second = bench.delivery(id).await;
    assert_eq!((second.state, second.blocked_by), (DeliveryState::Blocked, Some(first.message_id)));
    let due = bench.deliver().await;
    assert_eq!(due.len(), 2, "the first of each key");
    assert!(due.iter().all(|d| d.event.message_id != id && d.chain == Chain::Events));
}

pub(super) async fn spills_of_one_group_are_in_order(bench: &Bench) {
    bench.hold().await;
    let ids = bench.record(&[order("a"), order("a"), order("a")]).await;
    let group = bench.claim().await.into_iter().map(|claimed| done(claimed).spill(failed()));
    bench.settle(group.collect()).await;
    let mut states = Vec::new();
    for id in &ids {
        states.push(bench.delivery(*id).await.state);
    }
    let blocked = DeliveryState::Blocked;
    assert_eq!(states, [DeliveryState::Ready, blocked, blocked]);
    for id in ids {
        let [due] = bench.deliver().await.try_into().expect("one at a time");
        assert_eq!(due.event.message_id, id);
        bench.write(ended(due, well())).await;
    }
}

pub(super) async fn unordered_spills_run_at_once(bench: &Bench) {
    bench.hold().await;
    let free = || Spill { ordered: false, ..failed() };
    bench.spilled("a", free()).await;
    bench.record(&[order("a")]).await;
    let claimed = bench.claim_one().await;
    assert!(claimed.open.is_empty());
    bench.write(done(claimed).spill(free())).await;
    let due = bench.deliver().await;
    assert_eq!(due.iter().map(|d| d.chain).collect::<Vec<_>>(), [Chain::None, Chain::None]);
}

pub(super) async fn a_dead_spill_blocks_nothing(bench: &Bench) {
    bench.hold().await;
    let letter = bench.spilled("a", dead_at_once()).await;
    assert_eq!((letter.state, letter.ended_at.is_some()), (DeliveryState::Dead, true));
    bench.record(&[order("a")]).await;
    let claimed = bench.claim_one().await;
    assert!(claimed.open.is_empty());
    let id = claimed.event.message_id;
    bench.write(done(claimed).spill(failed())).await;
    assert_eq!(bench.delivery(id).await.state, DeliveryState::Ready);
    assert_eq!(letters(bench).await, [letter]);
}

pub(super) async fn a_delivery_that_ends_well_releases_the_next(bench: &Bench) {
    bench.hold().await;
    let first = bench.spilled("a", failed()).await;
    let second = bench.spilled("a", blocked()).await;
    let later = Spill { after_ms: 60_000, ..failed() };
    let third = bench.spilled("a", later).await;
    let due = bench.deliver().await.pop().expect("the first");
    assert_eq!((due.attempts, due.claims, due.generation, &*due.trigger), (1, 1, 0, MAIL));
    bench.write(ended(due, well()).state(set("k", "v"))).await;
    assert_eq!(bench.value("k").await, Some(b"v".to_vec()));
    let first = bench.delivery(first.message_id).await;
    assert_eq!((first.state, first.attempts, first.claimed), (DeliveryState::Done, 2, false));
    let [due] = bench.deliver().await.try_into().expect("the second, at once");
    assert_eq!(due.event.message_id, second.message_id);
    assert_eq!(bench.delivery(third.message_id).await.state, DeliveryState::Blocked);
    bench.write(ended(due, well())).await;
    assert_eq!(bench.delivery(third.message_id).await.state, DeliveryState::Ready);
    assert!(bench.deliver().await.is_empty(), "it is released, and waits for its time");
}

pub(super) async fn a_dead_letter_releases_the_next(bench: &Bench) {
    bench.hold().await;
    let first = bench.spilled("a", failed()).await;
    let second = bench.spilled("a", blocked()).await;
    let due = bench.deliver().await.pop().expect("the first");
    bench.write(ended(due, dead(5))).await;
    let letter = letters(bench).await.pop().expect("one");
    assert_eq!((letter.message_id, letter.attempts), (first.message_id, 5));
    assert_eq!(
        (letter.kind, letter.last_error.as_deref()),
        (Some(FailureKind::Reject), Some("no"))
    );
    assert_eq!(bench.delivery(second.message_id).await.state, DeliveryState::Ready);
}

pub(super) async fn a_retry_waits_and_blocks(bench: &Bench) {
    bench.hold().await;
    let first = bench.spilled("a", failed()).await;
    let second = bench.spilled("a", blocked()).await;
    let due = bench.deliver().await.pop().expect("the first");
    bench.write(ended(due, again(2, 0))).await;
    let due = bench.deliver().await.pop().expect("the first again");
    assert_eq!((due.attempts, due.claims), (2, 1));
    bench.write(ended(due, again(3, 60_000))).await;
    assert!(bench.deliver().await.is_empty());
    let first = bench.delivery(first.message_id).await;
    assert_eq!((first.state, first.attempts, first.claimed), (DeliveryState::Ready, 3, false));
    assert!(first.due_at > first.created_at + 50_000);
    assert_eq!(first.last_error.as_deref(), Some("later"));
    assert_eq!(bench.delivery(second.message_id).await.state, DeliveryState::Blocked);
}

pub(super) async fn each_trigger_has_its_limit(bench: &Bench) {
    bench.hold().await;
    let due = |trigger: &str, after_ms| Spill { trigger: trigger.into(), after_ms, ..failed() };
    let ids = bench.record(&["a", "b", "c"].map(order)).await;
    let group = bench.claim().await.into_iter().zip([-10, -20, -30]);
    let group = group.map(|(e, ms)| done(e).spill(due("x", ms)).spill(due("y", ms)));
    bench.settle(group.collect()).await;
    let lanes = bench.lanes();
    let wanted = [(SHOP.to_owned(), "x".to_owned(), 2), (SHOP.to_owned(), "z".to_owned(), 2)];
    let stranger = HostId(Uuid::new_v4());
    let claim = async |host| {
        bench
            .store
            .claim_deliveries(host, &lanes, &wanted, 0, u64::MAX, LONG)
            .await
            .expect("claims")
            .rows
    };
    assert!(claim(stranger).await.is_empty());
    let claimed = claim(bench.host).await;
    let claimed: Vec<_> = claimed.iter().map(|d| (&*d.trigger, d.event.message_id)).collect();
    assert_eq!(claimed, [("x", ids[1]), ("x", ids[2])], "the longest due, in pk order");
    assert_eq!(bench.deliver().await.len(), 4);
    assert!(bench.deliver().await.is_empty());
}

pub(super) async fn a_lost_delivery_is_settled_by_another(bench: &Bench) {
    bench.hold().await;
    let row = bench.spilled("a", failed()).await;
    let first = bench.deliver_for(9, Duration::from_millis(1)).await.pop().expect("one");
    let mut second = Vec::new();
    until(async || {
        second = bench.deliver().await;
        !second.is_empty()
    })
    .await;
    let group = vec![ended(first, dead(9)).state(set("k", "late"))];
    assert_eq!(bench.settle(group).await, [Settled::Lost]);
    assert_eq!(bench.delivery(row.message_id).await.state, DeliveryState::Ready);
    assert_eq!(bench.value("k").await, None);
    bench.write(ended(second.remove(0), well())).await;
    assert_eq!(bench.delivery(row.message_id).await.state, DeliveryState::Done);
}

pub(super) async fn a_requeued_letter_blocks_nothing_newer(bench: &Bench) {
    bench.hold().await;
    let letter = bench.spilled("a", dead_at_once()).await;
    assert_eq!(requeue(bench, &letter).await, DeliveryState::Ready);
    let row = bench.delivery(letter.message_id).await;
    assert_eq!((row.attempts, row.ended_at), (0, None));
    assert_eq!(row.last_error, letter.last_error);
    bench.record(&[order("a")]).await;
    let claimed = bench.claim_one().await;
    assert!(claimed.open.is_empty());
    bench.write(done(claimed).spill(failed())).await;
    let due = bench.deliver().await;
    assert_eq!(due.iter().map(|d| d.chain).collect::<Vec<_>>(), [Chain::Redriven, Chain::Events]);
    assert_eq!((due[0].attempts, due[0].claims), (0, 1));
    let again = bench.store.requeue(SHOP, letter.id).await.expect("answers");
    assert_eq!(again, Requeued::Unknown, "it is no dead letter now");
    assert_eq!(bench.store.requeue("other", letter.id).await.expect("answers"), Requeued::Unknown);
}

pub(super) async fn requeued_letters_are_in_order(bench: &Bench) {
    let (older, newer) = two_letters(bench).await;
    assert_eq!(requeue(bench, &newer).await, DeliveryState::Ready);
    assert_eq!(requeue(bench, &older).await, DeliveryState::Blocked, "one at a time");
    let [due] = bench.deliver().await.try_into().expect("the newer");
    assert_eq!(due.event.message_id, newer.message_id);
    bench.write(ended(due, dead(1))).await;
    let [due] = bench.deliver().await.try_into().expect("the older");
    assert_eq!(due.event.message_id, older.message_id);
    assert_eq!(requeue(bench, &newer).await, DeliveryState::Blocked);
    bench.write(ended(due, well())).await;
    assert_eq!(bench.delivery(newer.message_id).await.state, DeliveryState::Ready);
}

pub(super) async fn unordered_letters_stay_so(bench: &Bench) {
    bench.hold().await;
    let free = Spill { ordered: false, ..dead_at_once() };
    let letters = [bench.spilled("a", free.clone()).await, bench.spilled("a", free).await];
    for letter in &letters {
        assert_eq!(requeue(bench, letter).await, DeliveryState::Ready);
    }
    let due = bench.deliver().await;
    assert_eq!(due.iter().map(|d| d.chain).collect::<Vec<_>>(), [Chain::None, Chain::None]);
}

pub(super) async fn only_dead_letters_are_purged(bench: &Bench) {
    bench.hold().await;
    let open = bench.spilled("a", failed()).await;
    let letter = bench.spilled("b", dead_at_once()).await;
    let purge = async |project, id| bench.store.purge(project, id).await.expect("purges");
    assert!(!purge(SHOP, open.id).await);
    assert!(!purge("other", letter.id).await);
    assert!(purge(SHOP, letter.id).await);
    assert!(!purge(SHOP, letter.id).await);
    assert!(letters(bench).await.is_empty());
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 1);
}

/// A trigger with state, one claimed, one blocked and one dead delivery, and
/// another one's delivery.
async fn busy_trigger(bench: &Bench) -> outrigger::store::ClaimedDelivery {
    bench.hold().await;
    bench.spilled("b", dead_at_once()).await;
    bench.spilled("a", failed()).await;
    bench.spilled("a", blocked()).await;
    let claimed = bench.claim_new(order("c")).await;
    let other =
        Spill { trigger: "other".into(), cause: SpillCause::Paused, after_ms: 60_000, ..failed() };
    bench.write(done(claimed).spill(other).state(set("k", "v"))).await;
    bench.deliver().await.pop().expect("one")
}

pub(super) async fn a_deleted_triggers_deliveries_die(bench: &Bench) {
    let due = busy_trigger(bench).await;
    bench.store.end_trigger(SHOP, MAIL, true).await.expect("ends");
    assert_eq!(letters(bench).await.len(), 3);
    assert!(letters(bench).await.iter().all(|l| l.last_error.is_some() && l.ended_at.is_some()));
    assert_eq!(bench.settle(vec![ended(due, well())]).await, [Settled::Lost]);
    assert_eq!(bench.value("k").await, None);
    assert_eq!(bench.store.count_deliveries(SHOP, "other").await.expect("counts"), 1);
}

pub(super) async fn a_deleted_triggers_deliveries_go(bench: &Bench) {
    let due = busy_trigger(bench).await;
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 3);
    bench.store.end_trigger(SHOP, MAIL, false).await.expect("ends");
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 0);
    assert_eq!(bench.settle(vec![ended(due, well())]).await, [Settled::Lost]);
    assert_eq!(bench.value("k").await, None);
    assert_eq!(bench.store.count_deliveries(SHOP, "other").await.expect("counts"), 1);
}

pub(super) async fn a_head_brings_the_run_behind_it(bench: &Bench) {
    bench.hold().await;
    let mut rows = Vec::new();
    for aggregate in ["a", "a", "b", "a", "a", "a"] {
        rows.push(bench.spilled(aggregate, blocked()).await.message_id);
    }
    let names = async |limit, run| -> (Vec<usize>, Vec<ClaimedDelivery>) {
        let claimed = bench.deliver_runs(limit, run, LONG).await;
        let place = |d: &ClaimedDelivery| rows.iter().position(|id| *id == d.event.message_id);
        (claimed.iter().map(|d| place(d).expect("one of them")).collect(), claimed)
    };
    let (found, mut claimed) = names(9, 2).await;
    assert_eq!(found, [0, 1, 2, 3], "two behind the first, none behind the other");
    let third = claimed.remove(3);
    bench.write(ended(claimed.remove(2), well())).await;
    let second = ended(claimed.remove(1), again(1, 0));
    let first = ended(claimed.remove(0), well());
    assert_eq!(bench.settle(vec![first, second]).await, [Settled::Done, Settled::Done]);
    let (found, mut claimed) = names(9, 9).await;
    assert_eq!(found, [1], "one that has failed runs on its own");
    bench.write(ended(claimed.remove(0), well())).await;
    // The third of them is still held: nothing may pass it.
    assert_eq!(names(9, 9).await.0, [0; 0]);
    bench.store.release(&[&third.claim]).await.expect("gives back");
    let (found, mut claimed) = names(9, 1).await;
    assert_eq!(found, [3, 4]);
    bench.store.release(&[&claimed.remove(0).claim]).await.expect("gives back");
    let (found, head) = names(9, 9).await;
    assert_eq!(found, [3], "what is held ends the run");
    let all: Vec<_> = head.iter().chain(&claimed).map(|d| &d.claim).collect();
    bench.store.release(&all).await.expect("gives back");
    let (found, claimed) = names(9, 9).await;
    assert_eq!(found, [3, 4, 5]);
    let all: Vec<_> = claimed.into_iter().map(|d| ended(d, well())).collect();
    assert_eq!(bench.settle(all).await, [Settled::Done, Settled::Done, Settled::Done]);
    assert!(bench.deliver().await.is_empty());
}
