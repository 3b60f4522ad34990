//! A store beside a model of it: steps at random, compared after each.
//!
//! A failure names its seed; `OUTRIGGER_TEST_SEED` runs that one alone, and
//! `OUTRIGGER_TEST_SEEDS` says how many there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use futures::FutureExt as _;
use outrigger::{
    model::{Lane, event::NewEvent},
    store::{
        Claim, DeadLetterFilter, Held, HostId, OperationKind, Recorded, ReplayFilter, Row, Seam,
        Settled, Settlement,
    },
};
use uuid::Uuid;

use self::{
    compare::same,
    world::{Lease, Token, World},
};
use super::bench::{Bench, Database, LONG, SHOP, until};

mod compare;
mod invent;
mod world;

/// Two that keep order, and one that doesn't.
const TRIGGERS: [&str; 3] = ["mail", "stock", "free"];

/// What ends while the test looks on.
const SHORT: Duration = Duration::from_millis(1);

/// Steps of one seed.
const STEPS: usize = 250;

/// A claim that somebody has, which may be void.
struct Hand {
    token: Token,
    claim: Arc<Claim>,
    event: Arc<outrigger::model::event::Event>,
    /// Whose delivery it is, if it is one.
    trigger: Option<String>,
    attempts: u32,
}

struct Run<'a> {
    bench: &'a Bench,
    world: World,
    hosts: [HostId; 2],
    hands: Vec<Hand>,
    rng: Rng,
    tokens: Token,
}

pub(super) async fn a_store_does_what_its_model_does(bench: &Bench) {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OUTRIGGER_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OUTRIGGER_TEST_SEEDS").unwrap_or(4),
    };
    for seed in seeds {
        bench.store.delete_project_data(SHOP).await.expect("a new start");
        let mut run = Run::new(bench, seed).await;
        let mut steps = Vec::new();
        if let Err(panic) = AssertUnwindSafe(run.steps(&mut steps)).catch_unwind().await {
            let first = steps.len().saturating_sub(12);
            eprintln!("seed {seed}, step {}: {:#?}", steps.len(), &steps[first..]);
            std::panic::resume_unwind(panic);
        }
    }
}

impl<'a> Run<'a> {
    async fn new(bench: &'a Bench, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let lanes = bench.lanes();
        // Whoever held them before is gone.
        for (lane, holder, _) in bench.store.lane_holders().await.expect("tells") {
            if let Some(holder) = holder {
                bench.store.yield_lanes(holder, &[lane]).await.expect("yields");
            }
        }
        let hosts = [0, 1].map(|_| HostId(Uuid::from_u128(rng.u128(..))));
        let world = World::new(lanes.len());
        Self { bench, world, hosts, hands: Vec::new(), rng, tokens: 0 }
    }

    async fn steps(&mut self, steps: &mut Vec<String>) {
        for _ in 0..STEPS {
            // What is being done when it fails is the last one.
            steps.push("?".to_owned());
            let step = self.step().await;
            steps.pop();
            steps.push(step);
            same(self.bench, &mut self.world).await;
        }
        steps.push("to the end".to_owned());
        self.finish().await;
    }

    async fn step(&mut self) -> String {
        match self.rng.u32(0..100) {
            0..16 => self.record().await,
            16..24 => self.lanes().await,
            24..38 => self.claim_events().await,
            38..42 => self.claim_scheduled().await,
            42..60 => self.settle().await,
            60..74 => self.claim_deliveries().await,
            74..78 => self.renew().await,
            78..82 => self.release().await,
            82..86 => self.requeue_or_purge().await,
            86..89 => self.dead_letters_in_bulk().await,
            89..93 => self.replay().await,
            93..96 => self.replay_in_bulk().await,
            96..99 => self.sweep().await,
            _ => self.end_trigger().await,
        }
    }

    fn host(&mut self) -> usize {
        self.rng.usize(0..self.hosts.len())
    }

    /// Mostly long, sometimes over at once.
    fn lease(&mut self) -> Duration {
        if self.rng.u32(0..5) == 0 { SHORT } else { LONG }
    }

    /// A claim's name, and what it is once the lease has had its time.
    fn token(&mut self, lease: Duration) -> Lease {
        self.tokens += 1;
        Lease { token: self.tokens, ended: lease == SHORT }
    }

    /// Waits for the database's clock to pass a short lease.
    async fn pass(&self, lease: Duration) {
        if lease == SHORT {
            self.tick().await;
        }
    }

    async fn tick(&self) {
        let now = async || self.bench.store.survey(&[]).await.expect("surveys").now;
        let begin = now().await;
        until(async || now().await > begin + 2).await;
    }

    async fn record(&mut self) -> String {
        let count = self.rng.usize(1..4);
        let events: Vec<NewEvent> = (0..count).map(|_| invent::event(&mut self.rng)).collect();
        let recorded = self.bench.store.record(&events).await.expect("records");
        let there: Vec<_> = recorded
            .into_iter()
            .map(|one| match one {
                Recorded::New { message_id, .. } => (true, message_id),
                Recorded::Duplicate { message_id, .. } => (false, message_id),
            })
            .collect();
        assert_eq!(there, self.world.record(&events), "{events:?}");
        format!("record {there:?}")
    }

    async fn lanes(&mut self) -> String {
        let (store, host) = (&self.bench.store, self.host());
        let id = self.hosts[host];
        match self.rng.u32(0..4) {
            0 | 1 => {
                let (want, lease) = (self.rng.usize(1..5), self.lease());
                let alone = self.bench.database != Database::Postgres;
                let taken = store.take_lanes(id, want, lease).await.expect("takes");
                assert_eq!(taken, self.world.take(host, want, alone));
                for lane in &taken {
                    self.world.lanes[usize::from(lane.unsigned_abs())].1 = lease == SHORT;
                }
                self.pass(lease).await;
                format!("host {host} takes {taken:?} for {lease:?}")
            }
            2 => {
                let renewed = store.renew_lanes(id, LONG).await.expect("renews");
                assert_eq!(renewed, self.world.held_by(host));
                for lane in &renewed {
                    self.world.lanes[usize::from(lane.unsigned_abs())].1 = false;
                }
                format!("host {host} renews {renewed:?}")
            }
            _ => {
                let lane: Lane = self.rng.choice(self.bench.lanes()).expect("some");
                store.yield_lanes(id, &[lane]).await.expect("yields");
                if self.world.held_by(host).contains(&lane) {
                    self.world.lanes[usize::from(lane.unsigned_abs())] = (None, false);
                }
                format!("host {host} yields {lane}")
            }
        }
    }

    async fn claim_events(&mut self) -> String {
        let (host, lease) = (self.host(), self.lease());
        let limit = self.rng.u32(1..6);
        let seam = |lane| Seam { lane, project: SHOP.to_owned(), above: 0, limit };
        let seams: Vec<Seam> = self.bench.lanes().into_iter().map(seam).collect();
        let claimed = self
            .bench
            .store
            .claim_events(self.hosts[host], &seams, u64::MAX, lease)
            .await
            .expect("claims");
        let mut expected = BTreeSet::new();
        for lane in self.world.held_by(host) {
            let found = self.world.claimable(&[lane], false).into_iter();
            expected.extend(found.take(limit as usize));
        }
        self.hold_events(claimed.rows, expected, lease).await;
        format!("host {host} claims {limit} events a lane for {lease:?}")
    }

    async fn claim_scheduled(&mut self) -> String {
        let (host, lease, limit) = (self.host(), self.lease(), self.rng.u32(1..4));
        let (lanes, projects) = (self.bench.lanes(), [SHOP.to_owned()]);
        let id = self.hosts[host];
        let claimed =
            self.bench.store.claim_scheduled(id, &lanes, &projects, limit, u64::MAX, lease).await;
        let found = self.world.claimable(&self.world.held_by(host), true).into_iter();
        let expected = found.take(limit as usize).collect();
        self.hold_events(claimed.expect("claims").rows, expected, lease).await;
        format!("host {host} claims {limit} scheduled events for {lease:?}")
    }

    async fn hold_events(
        &mut self,
        claimed: Vec<outrigger::store::ClaimedEvent>,
        expected: BTreeSet<Uuid>,
        lease: Duration,
    ) {
        assert!(claimed.is_sorted_by_key(|row| row.event.pk), "{claimed:?}");
        let there: BTreeSet<_> = claimed.iter().map(|row| row.event.message_id).collect();
        assert_eq!(there, expected);
        for row in claimed {
            let lease = self.token(lease);
            let open: BTreeSet<String> = row.open.into_iter().collect();
            assert_eq!(open, self.world.open(&row.event.aggregate_id), "{:?}", row.event);
            self.world.claim_event(row.event.message_id, lease);
            let known = self.world.event(row.event.message_id).expect("is there");
            assert_eq!(row.claims, known.claims);
            self.hands.push(Hand {
                token: lease.token,
                claim: Arc::new(row.claim),
                event: Arc::new(row.event),
                trigger: None,
                attempts: 0,
            });
        }
        self.pass(lease).await;
    }

    async fn claim_deliveries(&mut self) -> String {
        let (host, lease) = (self.host(), self.lease());
        let limit = self.rng.choice([1, 2, 1000]).expect("one");
        let wanted = TRIGGERS.map(|trigger| (SHOP.to_owned(), trigger.to_owned(), limit));
        let (id, lanes) = (self.hosts[host], self.bench.lanes());
        let claimed =
            self.bench.store.claim_deliveries(id, &lanes, &wanted, 0, u64::MAX, lease).await;
        let claimed = claimed.expect("claims").rows;
        assert!(claimed.is_sorted_by_key(|row| (row.event.pk, row.generation)), "{claimed:?}");
        let mut there: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for row in &claimed {
            let Row::Delivery(id) = row.claim.row() else { panic!("{row:?}") };
            there.entry(row.trigger.clone()).or_default().insert(id);
        }
        let held = self.world.held_by(host);
        for trigger in TRIGGERS {
            let due = self.world.deliverable(&held, trigger);
            let there = there.remove(trigger).unwrap_or_default();
            assert_eq!(there.len(), due.len().min(limit as usize), "{trigger}: {due:?} {there:?}");
            assert!(there.is_subset(&due), "{trigger}: {due:?} {there:?}");
        }
        for row in claimed {
            let Row::Delivery(id) = row.claim.row() else { panic!("{row:?}") };
            let lease = self.token(lease);
            self.world.claim_delivery(id, lease);
            let known = self.world.deliveries.iter().find(|d| d.id == id).expect("is there");
            let there = (row.generation, row.attempts, row.claims, row.chain);
            assert_eq!(there, (known.generation, known.attempts, known.claims, known.chain));
            assert_eq!((row.event.message_id, row.event.pk), (known.event, known.pk));
            self.hands.push(Hand {
                token: lease.token,
                claim: Arc::new(row.claim),
                event: Arc::new(row.event),
                trigger: Some(row.trigger),
                attempts: row.attempts,
            });
        }
        self.pass(lease).await;
        format!("host {host} claims {limit} deliveries a trigger for {lease:?}")
    }

    /// Up to so many hands, in the order of their claims.
    fn some_hands(&mut self, most: usize) -> Vec<Hand> {
        let mut taken = Vec::new();
        for _ in 0..self.rng.usize(0..=most).min(self.hands.len()) {
            taken.push(self.hands.swap_remove(self.rng.usize(0..self.hands.len())));
        }
        taken.sort_by_key(|hand| hand.token);
        taken
    }

    async fn settle(&mut self) -> String {
        let hands = self.some_hands(5);
        let mut group = Vec::with_capacity(hands.len());
        for hand in &hands {
            group.push(invent::settlement(&mut self.rng, hand, &self.world));
        }
        self.write(hands, group).await
    }

    /// Settles a group, and keeps what can be settled again.
    async fn write(&mut self, hands: Vec<Hand>, group: Vec<Settlement>) -> String {
        let verdicts = self.bench.store.settle(&group, LONG).await.expect("settles");
        let with: Vec<_> = hands.iter().map(|hand| hand.token).zip(&group).collect();
        let mut expected = self.world.settle(&with);
        for (expected, verdict) in expected.iter_mut().zip(&verdicts) {
            if let (Settled::Unfit { why, .. }, Settled::Unfit { why: said, .. }) =
                (expected, verdict)
            {
                why.clone_from(said);
            }
        }
        assert_eq!(verdicts, expected, "{group:?}");
        let said =
            format!("settle {:?}: {verdicts:?}", hands.iter().map(|h| h.token).collect::<Vec<_>>());
        for (hand, verdict) in hands.into_iter().zip(verdicts) {
            // Now and then somebody tries again what is written or lost.
            if matches!(verdict, Settled::Conflict(_) | Settled::Unfit { .. })
                || self.rng.u32(0..4) == 0
            {
                self.hands.push(hand);
            }
        }
        said
    }

    async fn renew(&mut self) -> String {
        let hands = self.some_hands(6);
        let claims: Vec<&Claim> = hands.iter().map(|hand| &*hand.claim).collect();
        let held = self.bench.store.renew(&claims, LONG).await.expect("renews");
        for (hand, held) in hands.iter().zip(&held) {
            let expected = self.world.renew(&hand.claim, hand.token);
            assert_eq!(*held == Held::Yes, expected, "{:?}", hand.claim);
        }
        self.hands.extend(hands);
        format!("renew {held:?}")
    }

    async fn release(&mut self) -> String {
        let hands = self.some_hands(3);
        let claims: Vec<&Claim> = hands.iter().map(|hand| &*hand.claim).collect();
        self.bench.store.release(&claims).await.expect("releases");
        for hand in &hands {
            self.world.release(&hand.claim, hand.token);
        }
        format!("release {:?}", claims.iter().map(|claim| claim.row()).collect::<Vec<_>>())
    }

    async fn requeue_or_purge(&mut self) -> String {
        let any = self.world.deliveries.iter().map(|d| d.id).chain([9_999_999]);
        let ids = if self.rng.bool() { any.collect() } else { self.world.letters() };
        let Some(id) = self.rng.choice(ids) else { return "nothing".to_owned() };
        if self.rng.u32(0..3) == 0 {
            let purged = self.bench.store.purge(SHOP, id).await.expect("purges");
            assert_eq!(purged, self.world.purge(id));
            return format!("purge {id}: {purged}");
        }
        let requeued = self.bench.store.requeue(SHOP, id).await.expect("requeues");
        assert_eq!(requeued, self.world.requeue(id), "{id}");
        format!("requeue {id}: {requeued:?}")
    }

    async fn dead_letters_in_bulk(&mut self) -> String {
        let trigger = self.rng.choice(TRIGGERS).filter(|_| self.rng.bool()).map(str::to_owned);
        let limit = Some(self.rng.i64(1..5)).filter(|_| self.rng.bool());
        let batch = self.rng.u32(1..5);
        let kind = match self.rng.u32(0..4) {
            0 => OperationKind::PurgeDeadLetters,
            _ => OperationKind::RequeueDeadLetters,
        };
        let filter = DeadLetterFilter { trigger: trigger.clone(), ..DeadLetterFilter::default() };
        let store = &self.bench.store;
        let work = store.start(SHOP, kind, &filter, limit).await.expect("starts");
        while store.advance(batch).await.expect("advances") {}
        let mut left = self.world.letters();
        left.retain(|id| {
            let letter = self.world.deliveries.iter().find(|d| d.id == *id).expect("is there");
            trigger.as_ref().is_none_or(|name| *name == letter.trigger)
        });
        left.truncate(usize::try_from(limit.unwrap_or(i64::MAX)).unwrap_or(usize::MAX));
        let (done, mut requeued) = (i64::try_from(left.len()).expect("few"), 0);
        for part in left.chunks(batch as usize) {
            if kind == OperationKind::PurgeDeadLetters {
                assert!(part.iter().all(|id| self.world.purge(*id)));
            } else {
                requeued += self.world.requeue_all(part);
            }
        }
        let work = store.operation(SHOP, work.id).await.expect("looks").expect("is there");
        assert_eq!((work.done, work.counts.deliveries), (done, requeued), "{work:?}");
        format!("{kind:?} of {trigger:?}, {limit:?} by {batch}: {done}")
    }

    async fn replay(&mut self) -> String {
        let ids: Vec<Uuid> = self.world.events.iter().map(|event| event.id).collect();
        let Some(id) = self.rng.choice(ids) else { return "nothing".to_owned() };
        let to = invent::destinations(&mut self.rng);
        let replayed = self.bench.store.replay(SHOP, id, &to).await.expect("replays");
        assert_eq!(replayed, self.world.replay(id, &to), "{id} to {to:?}");
        format!("replay {id}: {replayed:?}")
    }

    async fn replay_in_bulk(&mut self) -> String {
        let aggregate = self.rng.bool().then(|| invent::aggregate(&mut self.rng));
        let limit = Some(self.rng.i64(1..9)).filter(|_| self.rng.bool());
        let (batch, to) = (self.rng.u32(1..6), invent::destinations(&mut self.rng));
        let filter = ReplayFilter { aggregate_id: aggregate.clone(), ..ReplayFilter::default() };
        let store = &self.bench.store;
        let work = store.start_replay(SHOP, &filter, limit).await.expect("starts");
        while let Some(part) = store.replay_batch(batch).await.expect("looks") {
            let to = vec![to.clone(); part.events.len()];
            store.replay_part(&part, &to).await.expect("replays");
        }
        let wanted = self.world.events.iter().filter(|event| {
            aggregate.as_ref().is_none_or(|aggregate| *aggregate == event.aggregate)
        });
        let limit = usize::try_from(limit.unwrap_or(i64::MAX)).unwrap_or(usize::MAX);
        let ids: Vec<Uuid> = wanted.map(|event| event.id).take(limit).collect();
        let (mut made, mut open, mut pending) = (0, 0, 0);
        for id in &ids {
            match self.world.replay(*id, &to) {
                outrigger::store::Replayed::Yes { triggers, open: still, .. } => {
                    (made, open) = (made + triggers.len(), open + still.len());
                }
                _ => pending += 1,
            }
        }
        let work = store.operation(SHOP, work.id).await.expect("looks").expect("is there");
        let counts = [work.done, work.counts.deliveries, work.counts.open, work.counts.pending];
        let expected = [ids.len(), made, open, pending].map(|n| i64::try_from(n).expect("few"));
        assert_eq!(counts, expected, "done, made, open, pending: {work:?}");
        format!("replay {aggregate:?} to {to:?} by {batch}: {counts:?}")
    }

    /// Retention may take what is settled, and nothing else.
    async fn sweep(&mut self) -> String {
        self.tick().await;
        let batch = self.rng.u32(1..20);
        let gone = self.bench.store.sweep(Duration::ZERO, batch).await.expect("sweeps");
        let mut missing = Vec::new();
        for event in &self.world.events {
            if self.bench.store.event(SHOP, event.id).await.expect("looks").is_none() {
                assert!(self.world.is_settled(event), "{event:?} must stay");
                missing.push(event.id);
            }
        }
        assert_eq!(gone, missing.len() as u64);
        for id in missing {
            self.world.forget(id);
        }
        format!("sweep {batch}: {gone}")
    }

    async fn end_trigger(&mut self) -> String {
        let trigger = self.rng.choice(TRIGGERS).expect("one");
        let dead = self.rng.bool();
        self.bench.store.end_trigger(SHOP, trigger, dead).await.expect("ends");
        self.world.end_trigger(trigger, dead);
        format!("end {trigger}, dead: {dead}")
    }

    /// One host takes over and does all there is to do: nothing is left but
    /// what isn't due, and what waits for that.
    async fn finish(&mut self) {
        let (host, want) = (0, self.bench.lanes().len());
        let other = self.hosts[1];
        self.bench.store.yield_lanes(other, &self.bench.lanes()).await.expect("yields");
        for lane in self.world.held_by(1) {
            self.world.lanes[usize::from(lane.unsigned_abs())] = (None, false);
        }
        let id = self.hosts[host];
        self.bench.store.renew_lanes(id, LONG).await.expect("renews");
        self.bench.store.take_lanes(id, want, LONG).await.expect("takes");
        for lane in self.world.held_by(host) {
            self.world.lanes[usize::from(lane.unsigned_abs())].1 = false;
        }
        self.world.take(host, want, self.bench.database != Database::Postgres);
        same(self.bench, &mut self.world).await;
        let claims: Vec<&Claim> = self.hands.iter().map(|hand| &*hand.claim).collect();
        self.bench.store.release(&claims).await.expect("releases");
        for hand in std::mem::take(&mut self.hands) {
            self.world.release(&hand.claim, hand.token);
        }
        for _ in 0..1000 {
            self.claim_all(host).await;
            let hands = std::mem::take(&mut self.hands);
            if hands.is_empty() {
                break;
            }
            let group: Vec<_> = hands.iter().map(invent::well).collect();
            self.write(hands, group).await;
            self.hands.clear();
            same(self.bench, &mut self.world).await;
        }
        let left: Vec<_> = self.world.events.iter().filter(|event| !event.dispatched).collect();
        assert!(left.iter().all(|event| event.when == world::When::Later), "{left:?}");
        let ready = outrigger::store::DeliveryState::Ready;
        let stuck = self.world.deliveries.iter().filter(|d| d.state == ready && d.due);
        assert_eq!(stuck.count(), 0);
    }

    async fn claim_all(&mut self, host: usize) {
        let seam = |lane| Seam { lane, project: SHOP.to_owned(), above: 0, limit: 1000 };
        let seams: Vec<Seam> = self.bench.lanes().into_iter().map(seam).collect();
        let (id, lanes) = (self.hosts[host], self.bench.lanes());
        let store = &self.bench.store;
        let claimed = store.claim_events(id, &seams, u64::MAX, LONG).await.expect("claims").rows;
        let expected = self.world.claimable(&lanes, false).into_iter().collect();
        self.hold_events(claimed, expected, LONG).await;
        let projects = [SHOP.to_owned()];
        let claimed = store.claim_scheduled(id, &lanes, &projects, 1000, u64::MAX, LONG).await;
        let expected = self.world.claimable(&lanes, true).into_iter().collect();
        self.hold_events(claimed.expect("claims").rows, expected, LONG).await;
        let wanted = TRIGGERS.map(|trigger| (SHOP.to_owned(), trigger.to_owned(), 1000));
        let claimed =
            store.claim_deliveries(id, &lanes, &wanted, 0, u64::MAX, LONG).await.expect("claims");
        for row in claimed.rows {
            let Row::Delivery(delivery) = row.claim.row() else { panic!("{row:?}") };
            let lease = self.token(LONG);
            self.world.claim_delivery(delivery, lease);
            self.hands.push(Hand {
                token: lease.token,
                claim: Arc::new(row.claim),
                event: Arc::new(row.event),
                trigger: Some(row.trigger),
                attempts: row.attempts,
            });
        }
    }
}
