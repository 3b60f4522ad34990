//! Dispatched events that are delivered again.

use std::time::Duration;

use outrigger::{
    model::event::NewEvent,
    store::{
        Chain, DeadLetterFilter, DeliveryFilter, DeliveryRow, DeliveryState, Destination,
        Operation, OperationKind, OperationState, ReplayFilter, Replayed, Requeued, Spill,
    },
};
use uuid::Uuid;

use super::bench::{
    Adding as _, Bench, MAIL, SHOP, all, blocked, dead, dead_at_once, done, ended, failed, order,
    well,
};

fn to(trigger: &str) -> Destination {
    Destination { trigger: trigger.to_owned(), ordered: true }
}

/// An event that is through.
async fn dispatched(bench: &Bench, aggregate: &str) -> Uuid {
    let claimed = bench.claim_new(order(aggregate)).await;
    let id = claimed.event.message_id;
    bench.write(done(claimed)).await;
    id
}

async fn replay(bench: &Bench, event: Uuid, to: &[Destination]) -> Replayed {
    bench.store.replay(SHOP, event, to).await.expect("replays")
}

/// What a replay to [`MAIL`] alone answers when it goes well.
fn made(generation: u32) -> Replayed {
    Replayed::Yes {
        generation: Some(generation),
        triggers: vec![MAIL.to_owned()],
        open: Vec::new(),
    }
}

/// What it answers when there is nothing to do.
fn skipped() -> Replayed {
    Replayed::Yes { generation: None, triggers: Vec::new(), open: vec![MAIL.to_owned()] }
}

/// An event's deliveries, the oldest first.
async fn deliveries(bench: &Bench, event: Uuid) -> Vec<DeliveryRow> {
    let filter = DeliveryFilter { message_id: Some(event), ..DeliveryFilter::default() };
    let page = bench.store.deliveries(SHOP, &filter, &all()).await.expect("lists");
    page.items.into_iter().rev().collect()
}

async fn state(bench: &Bench, event: Uuid) -> DeliveryState {
    deliveries(bench, event).await.last().expect("one").state
}

pub(super) async fn a_replay_is_a_delivery_of_its_own(bench: &Bench) {
    bench.hold().await;
    let id = dispatched(bench, "a").await;
    for generation in 1..=2 {
        assert_eq!(replay(bench, id, &[to(MAIL)]).await, made(generation));
        let row = deliveries(bench, id).await.pop().expect("one");
        assert_eq!(
            (row.state, row.generation, &*row.cause, row.attempts, row.blocked_by),
            (DeliveryState::Ready, generation, "replay", 0, None)
        );
        assert_eq!((&*row.event_name, &*row.aggregate_id), ("order.placed", "a"));
        let [due] = bench.deliver().await.try_into().expect("one is due");
        assert_eq!((due.event.message_id, &*due.trigger), (id, MAIL));
        assert_eq!((due.generation, due.attempts, due.chain), (generation, 0, Chain::Redriven));
        bench.write(ended(due, well())).await;
    }
    assert_eq!(deliveries(bench, id).await.len(), 2);
}

pub(super) async fn an_event_that_waits_is_not_replayed(bench: &Bench) {
    bench.hold().await;
    let now = bench.store.survey(&bench.lanes()).await.expect("surveys").now;
    let later = NewEvent { available_at: Some(now + 60_000), ..order("a") };
    let ids = bench.record(&[order("a"), later]).await;
    for id in &ids {
        assert_eq!(replay(bench, *id, &[to(MAIL)]).await, Replayed::Pending);
    }
    let claimed = bench.claim_one().await;
    assert_eq!(replay(bench, ids[0], &[to(MAIL)]).await, Replayed::Pending);
    bench.write(done(claimed)).await;
    let other = bench.store.replay("other", ids[0], &[to(MAIL)]).await.expect("answers");
    assert_eq!(other, Replayed::Unknown);
    assert_eq!(replay(bench, Uuid::now_v7(), &[to(MAIL)]).await, Replayed::Unknown);
    let nowhere = Replayed::Yes { generation: None, triggers: vec![], open: vec![] };
    assert_eq!(replay(bench, ids[0], &[]).await, nowhere);
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 0);
    assert_eq!(replay(bench, ids[0], &[to(MAIL)]).await, made(1));
}

pub(super) async fn open_pairs_are_not_replayed(bench: &Bench) {
    bench.hold().await;
    let id = bench.spilled("a", failed()).await.message_id;
    let both = [to(MAIL), to("other")];
    let expected = Replayed::Yes {
        generation: Some(1),
        triggers: vec!["other".to_owned()],
        open: vec![MAIL.to_owned()],
    };
    assert_eq!(replay(bench, id, &both).await, expected);
    for due in bench.deliver().await {
        if due.trigger == MAIL {
            bench.write(ended(due, well())).await;
        }
    }
    // The one that is claimed is open too.
    assert_eq!(replay(bench, id, &[to(MAIL)]).await, made(2));
    let open = Replayed::Yes { generation: None, triggers: vec![], open: vec!["other".into()] };
    assert_eq!(replay(bench, id, &[to("other")]).await, open);
}

pub(super) async fn replays_are_in_order_one_at_a_time(bench: &Bench) {
    bench.hold().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(dispatched(bench, "a").await);
    }
    let other = dispatched(bench, "b").await;
    for id in [ids[1], ids[0], ids[2], other] {
        assert_eq!(replay(bench, id, &[to(MAIL)]).await, made(1));
    }
    // The second one runs: it came first. Among those that wait, the oldest is next.
    let of = async |id: Uuid| {
        let row = bench.delivery(id).await;
        (row.state, row.blocked_by)
    };
    let (ready, blocked) = (DeliveryState::Ready, DeliveryState::Blocked);
    assert_eq!(of(ids[1]).await, (ready, None));
    assert_eq!(of(ids[0]).await, (blocked, Some(ids[1])));
    assert_eq!(of(ids[2]).await, (blocked, Some(ids[1])));
    assert_eq!(of(other).await, (ready, None));
    let mut ran = Vec::new();
    loop {
        let due = bench.deliver().await;
        let Some(due) = due.into_iter().find(|due| due.event.aggregate_id == "a") else { break };
        ran.push(due.event.message_id);
        bench.write(ended(due, well())).await;
    }
    assert_eq!(ran, [ids[1], ids[0], ids[2]]);
}

pub(super) async fn a_replay_holds_up_nothing_newer(bench: &Bench) {
    bench.hold().await;
    let old = dispatched(bench, "a").await;
    assert_eq!(replay(bench, old, &[to(MAIL)]).await, made(1));
    let claimed = bench.claim_new(order("a")).await;
    assert!(claimed.open.is_empty(), "{:?}", claimed.open);
    let new = claimed.event.message_id;
    bench.write(done(claimed).spill(failed())).await;
    assert_eq!(state(bench, new).await, DeliveryState::Ready);
    let later = bench.spilled("a", blocked()).await;
    assert_eq!((later.state, later.blocked_by), (DeliveryState::Blocked, Some(new)));
    // Nor is a replay held up by what is newer.
    let chains: Vec<_> = bench.deliver().await.iter().map(|due| due.chain).collect();
    assert_eq!(chains, [Chain::Redriven, Chain::Events]);
}

pub(super) async fn unordered_replays_run_at_once(bench: &Bench) {
    bench.hold().await;
    let free = [Destination { ordered: false, ..to(MAIL) }];
    for _ in 0..2 {
        let id = dispatched(bench, "a").await;
        assert_eq!(replay(bench, id, &free).await, made(1));
    }
    let chains: Vec<_> = bench.deliver().await.iter().map(|due| due.chain).collect();
    assert_eq!(chains, [Chain::None, Chain::None]);
}

pub(super) async fn a_generation_never_comes_twice(bench: &Bench) {
    bench.hold().await;
    let id = dispatched(bench, "a").await;
    for generation in 1..=3 {
        assert_eq!(replay(bench, id, &[to(MAIL)]).await, made(generation));
        let due = bench.deliver().await.pop().expect("one");
        bench.write(ended(due, dead(1))).await;
        let letter = bench.delivery(id).await;
        assert!(bench.store.purge(SHOP, letter.id).await.expect("purges"));
    }
}

pub(super) async fn a_dead_replay_is_requeued_as_it_was(bench: &Bench) {
    bench.hold().await;
    let id = bench.spilled("a", dead_at_once()).await.message_id;
    assert_eq!(replay(bench, id, &[to(MAIL)]).await, made(1));
    let requeue = async |id| bench.store.requeue(SHOP, id).await.expect("answers");
    let [own, _] = deliveries(bench, id).await.try_into().expect("two");
    assert_eq!(requeue(own.id).await, Requeued::Open, "the replay is on its way");
    let due = bench.deliver().await.pop().expect("the replay");
    bench.write(ended(due, dead(1))).await;
    let [_, replayed] = deliveries(bench, id).await.try_into().expect("two");
    assert_eq!((replayed.state, replayed.generation), (DeliveryState::Dead, 1));
    assert_eq!(requeue(replayed.id).await, Requeued::Yes);
    let [due] = bench.deliver().await.try_into().expect("one");
    assert_eq!((due.generation, due.attempts, due.chain), (1, 0, Chain::Redriven));
    bench.write(ended(due, dead(1))).await;

    // In bulk, one of the pair is requeued and the other one counted.
    let any = DeadLetterFilter::default();
    let kind = OperationKind::RequeueDeadLetters;
    let work = bench.store.start(SHOP, kind, &any, None).await.expect("starts");
    while bench.store.advance(10).await.expect("advances") {}
    let work = bench.store.operation(SHOP, work.id).await.expect("looks").expect("is there");
    assert_eq!((work.done, work.counts.deliveries, work.counts.open), (2, 1, 1));
    let [due] = bench.deliver().await.try_into().expect("one");
    assert_eq!(due.generation, 0, "the older one");
}

pub(super) async fn a_sweep_keeps_what_is_replayed(bench: &Bench) {
    bench.hold().await;
    let id = dispatched(bench, "a").await;
    assert_eq!(replay(bench, id, &[to(MAIL)]).await, made(1));
    // What was dispatched in this very millisecond isn't old yet.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let sweep = async || bench.store.sweep(Duration::ZERO, 10).await.expect("sweeps");
    assert_eq!(sweep().await, 0, "it is open");
    let due = bench.deliver().await.pop().expect("one");
    bench.write(ended(due, dead(1))).await;
    assert_eq!(sweep().await, 0, "it is dead");
    let letter = bench.delivery(id).await;
    assert_eq!(bench.store.requeue(SHOP, letter.id).await.expect("requeues"), Requeued::Yes);
    let due = bench.deliver().await.pop().expect("one");
    bench.write(ended(due, well())).await;
    assert_eq!(sweep().await, 1);
    assert_eq!(replay(bench, id, &[to(MAIL)]).await, Replayed::Unknown);
}

pub(super) async fn simultaneous_replays_make_one_delivery(bench: &Bench) {
    bench.hold().await;
    for _ in 0..10 {
        let id = dispatched(bench, "a").await;
        let to = [to(MAIL)];
        let all = (0..6).map(|_| bench.store.replay(SHOP, id, &to));
        let answers = futures::future::try_join_all(all).await.expect("replays");
        let made = answers.iter().filter(|answer| **answer == made(1)).count();
        let others = answers.iter().filter(|answer| **answer == skipped()).count();
        assert_eq!((made, others), (1, 5), "{answers:?}");
    }
}

pub(super) async fn what_joins_is_released_when_its_predecessor_ends(bench: &Bench) {
    bench.hold().await;
    let mut letters = Vec::new();
    for round in 0..40 {
        let key = round.to_string();
        let first = dispatched(bench, &key).await;
        let second = dispatched(bench, &key).await;
        let letter = bench.spilled(&key, dead_at_once()).await;
        assert_eq!(replay(bench, first, &[to(MAIL)]).await, made(1));
        let due = bench.deliver().await.pop().expect("the first");
        letters.push((first, second, letter, due));
    }
    for (first, second, letter, due) in letters {
        let end = bench.settle(vec![ended(due, well())]);
        let to = [to(MAIL)];
        let join = bench.store.replay(SHOP, second, &to);
        let again = bench.store.requeue(SHOP, letter.id);
        let (_, joined, requeued) = futures::join!(end, join, again);
        assert_eq!(joined.expect("replays"), made(1));
        assert_eq!(requeued.expect("requeues"), Requeued::Yes);
        assert_eq!(state(bench, first).await, DeliveryState::Done);
        let mut states = [state(bench, second).await, state(bench, letter.message_id).await];
        states.sort_by_key(|state| state.as_str());
        assert_eq!(states, [DeliveryState::Blocked, DeliveryState::Ready], "one of them runs");
    }
}

pub(super) async fn a_sweep_and_a_replay_see_each_other(bench: &Bench) {
    bench.hold().await;
    for round in 0..40 {
        let id = dispatched(bench, &round.to_string()).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let to = [to(MAIL)];
        let (swept, replayed) = futures::join!(
            bench.store.sweep(Duration::ZERO, 100),
            bench.store.replay(SHOP, id, &to)
        );
        let event = bench.store.event(SHOP, id).await.expect("looks");
        match replayed.expect("replays") {
            Replayed::Unknown => assert!(event.is_none() && swept.expect("sweeps") == 1),
            answer => assert!(answer == made(1) && event.is_some(), "{answer:?} {event:?}"),
        }
    }
    let due = bench.deliver().await;
    assert!(due.iter().all(|due| due.generation == 1));
    let any = DeadLetterFilter::default();
    assert_eq!(bench.store.count_dead(SHOP, &any).await.expect("counts"), 0, "none lost its event");
}

/// Carries replays out as a host does, to these triggers; answers in how many
/// batches.
async fn finish(bench: &Bench, batch: u32, to: &[Destination]) -> usize {
    for batches in 0..100 {
        let next = bench.store.replay_batch(batch).await.expect("looks");
        let Some(next) = next else { return batches };
        let all = vec![to.to_vec(); next.events.len()];
        bench.store.replay_part(&next, &all).await.expect("replays");
    }
    panic!("it never ends");
}

async fn look(bench: &Bench, work: &Operation) -> Operation {
    bench.store.operation(SHOP, work.id).await.expect("looks").expect("is there")
}

/// What an operation has done: its state, events, deliveries, open pairs and
/// pending events.
fn progress(work: &Operation) -> (OperationState, i64, i64, i64, i64) {
    let counts = work.counts;
    (work.state, work.done, counts.deliveries, counts.open, counts.pending)
}

pub(super) async fn events_are_replayed_in_bulk(bench: &Bench) {
    bench.hold().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(dispatched(bench, ["a", "b"][n % 2]).await);
    }
    let open = bench.spilled("a", failed()).await.message_id;
    let pending = bench.record(&[order("a")]).await[0];
    let any = ReplayFilter::default();
    let work = bench.store.start_replay(SHOP, &any, None).await.expect("starts");
    assert_eq!((work.kind, work.total), (OperationKind::ReplayEvents, 7));
    assert_eq!(progress(&work), (OperationState::Running, 0, 0, 0, 0));
    let late = dispatched_beside(bench).await;
    assert!(!bench.store.advance(10).await.expect("advances"), "that is for dead letters");

    let batch = bench.store.replay_batch(2).await.expect("looks").expect("is running");
    let found: Vec<_> = batch.events.iter().map(|event| event.message_id).collect();
    assert_eq!(found, ids[..2]);
    let one = [vec![to(MAIL)], vec![to(MAIL)]];
    bench.store.replay_part(&batch, &one).await.expect("replays");
    assert_eq!(progress(&look(bench, &work).await), (OperationState::Running, 2, 2, 0, 0));
    // Another host looked it up too, and is late.
    bench.store.replay_part(&batch, &one).await.expect("does nothing");
    assert_eq!(progress(&look(bench, &work).await), (OperationState::Running, 2, 2, 0, 0));

    assert!(finish(bench, 2, &[to(MAIL)]).await >= 3);
    assert_eq!(progress(&look(bench, &work).await), (OperationState::Done, 7, 5, 1, 1));
    for id in &ids {
        assert_eq!(bench.delivery(*id).await.generation, 1);
    }
    assert_eq!(bench.delivery(open).await.generation, 0);
    assert!(
        deliveries(bench, late).await.is_empty() && deliveries(bench, pending).await.is_empty()
    );
    // In order within each key, across batches.
    let due: Vec<_> = bench.deliver().await.into_iter().map(|due| due.event.message_id).collect();
    assert_eq!(due, [ids[0], ids[1], open]);
    assert_eq!(bench.delivery(ids[2]).await.blocked_by, Some(ids[0]));
    assert_eq!(finish(bench, 2, &[]).await, 0);
}

/// An event that is dispatched while another one is left pending.
async fn dispatched_beside(bench: &Bench) -> Uuid {
    let event = NewEvent { available_at: Some(1), ..order("c") };
    let id = bench.record(&[event]).await[0];
    let (lanes, projects) = (bench.lanes(), [SHOP.to_owned()]);
    let claimed = bench
        .store
        .claim_scheduled(bench.host, &lanes, &projects, 1, u64::MAX, super::bench::LONG)
        .await
        .expect("claims");
    let [claimed] = claimed.rows.try_into().expect("one");
    bench.write(done(claimed)).await;
    id
}

pub(super) async fn a_replay_s_limit_is_kept(bench: &Bench) {
    bench.hold().await;
    for n in 0..5 {
        dispatched(bench, &n.to_string()).await;
    }
    let any = ReplayFilter::default();
    let work = bench.store.start_replay(SHOP, &any, Some(3)).await.expect("starts");
    assert_eq!((work.limit, work.total), (Some(3), 3));
    finish(bench, 2, &[to(MAIL)]).await;
    assert_eq!(progress(&look(bench, &work).await), (OperationState::Done, 3, 3, 0, 0));
    let more = bench.store.start_replay(SHOP, &any, Some(30)).await.expect("starts");
    finish(bench, 2, &[to(MAIL)]).await;
    assert_eq!(progress(&look(bench, &more).await), (OperationState::Done, 5, 2, 3, 0));
    let none = ReplayFilter { since: Some(i64::MAX), ..any };
    let none = bench.store.start_replay(SHOP, &none, None).await.expect("starts");
    finish(bench, 2, &[to(MAIL)]).await;
    assert_eq!(progress(&look(bench, &none).await), (OperationState::Done, 0, 0, 0, 0));
}

pub(super) async fn a_cancelled_replay_goes_no_further(bench: &Bench) {
    bench.hold().await;
    for n in 0..3 {
        dispatched(bench, &n.to_string()).await;
    }
    let any = ReplayFilter::default();
    let work = bench.store.start_replay(SHOP, &any, None).await.expect("starts");
    let first = bench.store.replay_batch(1).await.expect("looks").expect("is running");
    bench.store.replay_part(&first, &[vec![to(MAIL)]]).await.expect("replays");
    let second = bench.store.replay_batch(1).await.expect("looks").expect("is running");
    bench.store.cancel(SHOP, work.id).await.expect("cancels").expect("is there");
    bench.store.replay_part(&second, &[vec![to(MAIL)]]).await.expect("does nothing");
    assert!(bench.store.replay_batch(1).await.expect("looks").is_none());
    assert_eq!(progress(&look(bench, &work).await), (OperationState::Cancelled, 1, 1, 0, 0));
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 1);
}

pub(super) async fn a_replay_s_filter_means_what_it_says(bench: &Bench) {
    bench.hold().await;
    let named = |aggregate: &str, resource: &str, name: &str| {
        NewEvent::new(SHOP, resource, aggregate, name, "{}")
    };
    let events = [
        named("1", "order", "order.placed"),
        named("2", "order", "order.paid"),
        named("2", "customer", "order.paid"),
        NewEvent { project: "other".into(), ..named("2", "order", "order.paid") },
    ];
    bench.record(&events).await;
    let claimed = bench.claim().await;
    let free = Spill { ordered: false, ..failed() };
    let group = claimed.into_iter().map(|event| done(event).spill(free.clone()));
    bench.settle(group.collect()).await;
    for due in bench.deliver().await {
        bench.write(ended(due, well())).await;
    }
    let any = ReplayFilter::default;
    let cases = [
        (any(), 3),
        (ReplayFilter { resource: Some("order".into()), ..any() }, 2),
        (ReplayFilter { aggregate_id: Some("2".into()), ..any() }, 2),
        (ReplayFilter { event_name: Some("order.paid".into()), ..any() }, 2),
        (ReplayFilter { until: Some(1), ..any() }, 0),
        (ReplayFilter { since: Some(1), ..any() }, 3),
        (
            ReplayFilter {
                resource: Some("order".into()),
                event_name: Some("order.paid".into()),
                ..any()
            },
            1,
        ),
    ];
    for (filter, expected) in cases {
        let counted = bench.store.count_events(SHOP, &filter).await.expect("counts");
        assert_eq!(counted, expected, "{filter:?}");
        let work = bench.store.start_replay(SHOP, &filter, None).await.expect("starts");
        finish(bench, 10, &[Destination { ordered: false, ..to(MAIL) }]).await;
        let expected = (OperationState::Done, expected, expected, 0, 0);
        assert_eq!(progress(&look(bench, &work).await), expected, "{filter:?}");
        for due in bench.deliver().await {
            bench.write(ended(due, well())).await;
        }
    }
}
