//! The ledger between a real store and calls that end in any order, driven at
//! random: whatever is lost, retried or given back, every pair of event and
//! trigger ends once, and in order where the trigger keeps it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use async_trait::async_trait;
use fastrand::Rng;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::{
    metrics::Metrics,
    model::{
        capability::Allow,
        effect::Effects,
        event::NewEvent,
        outcome::{Failure, FailureKind},
        trigger::{Order, Trigger, TriggerSpec},
    },
    router::{ending::Summary, rules::Rules},
    store::{
        Claimed, ControlVersion, Definitions, End, HostId, Options, Project, Seam, Settled,
        Settlement, Store, connect,
    },
    targets::{Report, Request, Target, Targets},
};

const SHOP: &str = "shop";

/// Two that keep order, and one that doesn't.
const TRIGGERS: [(&str, Order); 3] =
    [("a", Order::Aggregate), ("b", Order::Aggregate), ("free", Order::None)];

const LONG: Duration = Duration::from_mins(10);

struct Nowhere;

#[async_trait]
impl Target for Nowhere {
    async fn deliver(&self, _: Request) -> Report {
        unreachable!("the test makes up how calls end")
    }

    async fn warm(&self) {}
}

impl Targets for Nowhere {
    fn target(&self, _: &Trigger, _: Option<&str>) -> Arc<dyn Target> {
        Arc::new(Self)
    }

    fn can_reach(&self, _: &Trigger) -> bool {
        true
    }
}

fn rules() -> Rules {
    let trigger = |(name, order): (&str, Order)| {
        let text = r#"{"match": {}, "target": {"plugin": "p"}}"#;
        let mut spec: TriggerSpec = serde_json::from_str(text).expect("a trigger");
        spec.order = order;
        Trigger {
            project: SHOP.to_owned(),
            name: name.to_owned(),
            spec,
            revision: 1,
            paused: None,
            created_at: 0,
            updated_at: 0,
        }
    };
    let definitions = Definitions {
        version: ControlVersion::default(),
        projects: vec![Project {
            name: SHOP.to_owned(),
            enabled: true,
            allow: Allow::default(),
            created_at: 0,
        }],
        triggers: TRIGGERS.into_iter().map(trigger).collect(),
        active: Vec::new(),
        secrets: Vec::new(),
    };
    Rules::new(definitions, &Rules::default(), &Nowhere, &Metrics::new(), 64)
}

/// A claim that is on its way: its number, how many rows were asked for,
/// whether it ignored the mark, and what it brought.
type Flight = (u64, u32, bool, Claimed<ClaimedEvent>);

struct Sim {
    store: Arc<dyn Store>,
    rules: Rules,
    ledger: Ledger,
    host: HostId,
    terms: Terms,
    rng: Rng,
    flight: Option<Flight>,
    /// Whether the lane was lost since.
    void: bool,
    /// Tasks between two calls of their chain.
    idle: Vec<ChainKey>,
    /// Calls under way; those of a lost lane can end in nothing.
    running: Vec<(Job, bool)>,
    /// Claims on their way back.
    returning: Vec<Release>,
    /// Events by aggregate, in pk order.
    events: BTreeMap<String, Vec<Uuid>>,
    /// Pairs that have ended in the database, in that order, and the event's pk.
    ended: Vec<(String, Uuid, i64)>,
}

impl Sim {
    async fn new(seed: u64) -> Self {
        let store = connect("sqlite::memory:", &Options::default()).await.expect("connects");
        store.migrate().await.expect("migrates");
        let mut sim = Self {
            store,
            rules: rules(),
            ledger: Ledger::default(),
            host: HostId(Uuid::nil()),
            terms: Terms {
                lease: Arc::new(Lease::new(Instant::now() + LONG)),
                tenure: Arc::new(Tenure { lane: 0, over: CancellationToken::new() }),
                batch: Arc::default(),
            },
            rng: Rng::with_seed(seed),
            flight: None,
            void: false,
            idle: Vec::new(),
            running: Vec::new(),
            returning: Vec::new(),
            events: BTreeMap::new(),
            ended: Vec::new(),
        };
        sim.take_lane().await;
        sim
    }

    async fn take_lane(&mut self) {
        self.host = HostId(Uuid::from_u128(self.rng.u128(..)));
        self.terms.tenure = Arc::new(Tenure { lane: 0, over: CancellationToken::new() });
        assert_eq!(self.store.take_lanes(self.host, 1, LONG).await.expect("takes"), [0]);
    }

    async fn step(&mut self) {
        match self.rng.u32(0..200) {
            0..20 => self.record().await,
            20..40 => {
                let sweep = self.rng.bool();
                self.claim(sweep).await;
            }
            40..66 => self.admit(),
            66..80 => self.deliver().await,
            80..118 => self.go_on(),
            118..160 => self.end_one(),
            160..184 => self.settle(true).await,
            184..194 => self.give_back().await,
            194..199 => self.spill_waiting(),
            _ => self.lose_lane().await,
        }
        self.check();
    }

    async fn record(&mut self) {
        for _ in 0..self.rng.u32(1..4) {
            let aggregate = self.rng.choice(["x", "y"]).expect("one");
            let mut event = NewEvent::new(SHOP, "order", aggregate, "placed", "{}");
            let id = Uuid::from_u128(self.rng.u128(..));
            event.message_id = Some(id);
            self.store.record(&[event]).await.expect("records");
            self.events.entry(aggregate.to_owned()).or_default().push(id);
        }
    }

    /// As the poller does: one claim at a time, admitted when its answer comes.
    async fn claim(&mut self, sweep: bool) {
        if self.flight.is_some() {
            return;
        }
        let limit = self.rng.u32(1..8);
        let above = if sweep { 0 } else { self.ledger.mark(0, SHOP) };
        let seam = Seam { lane: 0, project: SHOP.to_owned(), above, limit };
        let number = self.ledger.claim_begins();
        let claimed =
            self.store.claim_events(self.host, &[seam], u64::MAX, LONG).await.expect("claims");
        self.flight = Some((number, limit, sweep, claimed));
    }

    fn admit(&mut self) {
        let Some((number, limit, sweep, claimed)) = self.flight.take() else { return };
        // The lane was lost since: the claims are void.
        if std::mem::take(&mut self.void) {
            self.ledger.claim_ends(number);
            return;
        }
        let claimed = claimed.rows;
        let drained = claimed.len() < limit as usize;
        for row in claimed {
            let matching = self.rules.matching(&row.event);
            self.ledger.admit_event(row, matching, &self.terms, number);
        }
        self.ledger.claim_ends(number);
        if sweep && drained {
            self.ledger.swept(0, SHOP, number);
        }
    }

    async fn deliver(&mut self) {
        let limit = self.rng.u32(1..5);
        let wants = TRIGGERS.map(|(name, _)| (SHOP.to_owned(), name.to_owned(), limit));
        let run = self.rng.u32(0..4);
        let claimed =
            self.store.claim_deliveries(self.host, &[0], &wants, run, u64::MAX, LONG).await;
        for row in claimed.expect("claims").rows {
            let rule = Arc::clone(self.rules.rule(SHOP, &row.trigger).expect("is there"));
            self.ledger.admit_delivery(row, rule, &self.terms, u32::MAX);
        }
    }

    /// Starts what is to be started, and lets some task make its next call.
    fn go_on(&mut self) {
        while let Some(start) = self.ledger.start() {
            match start {
                Start::Chain(chain) => self.idle.push(chain),
                Start::Free(job) => self.running.push((job, false)),
            }
        }
        if self.idle.is_empty() {
            return;
        }
        let chain = self.idle.swap_remove(self.rng.usize(0..self.idle.len()));
        if let Some(job) = self.ledger.next(chain) {
            self.begins(&job);
            self.running.push((job, false));
        }
    }

    /// A call of a chain begins: no other one is under way, and whatever came
    /// before has ended, in the database or here.
    fn begins(&self, job: &Job) {
        let twin = self.running.iter().find(|(other, _)| other.chain == job.chain);
        assert!(twin.is_none(), "two at once in {:?}", job.chain);
        let before = &self.events[&job.event.aggregate_id];
        for id in before.iter().take_while(|id| **id != job.event.message_id) {
            let stored = self.ended.iter().any(|e| e.0 == job.rule.name() && e.1 == *id);
            let here = self.ledger.units.values().any(|unit| {
                unit.event.message_id == *id
                    && unit.shares.iter().any(|s| {
                        s.rule.name() == job.rule.name()
                            && s.ending.as_ref().is_some_and(Ending::is_final)
                    })
            });
            assert!(stored || here, "{} overtakes {id} in {}", job.event.pk, job.rule.name());
        }
    }

    fn end_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let (job, lost) = self.running.swap_remove(self.rng.usize(0..self.running.len()));
        let ending =
            if lost || self.ledger.is_closed() { Ending::Released } else { self.ending(&job) };
        self.ledger.ended(&job, ending);
        self.idle.extend(job.chain);
    }

    fn ending(&mut self, job: &Job) -> Ending {
        let attempts = job.delivery.map_or(0, |delivery| delivery.attempts) + 1;
        match self.rng.u32(0..30) {
            0..2 => Self::failed(attempts, Some(0)),
            2 => Self::failed(attempts, None),
            3 if job.delivery.is_none() => Ending::Spilled(SpillCause::Limit),
            4 => Ending::Released,
            _ => Ending::Done {
                effects: Effects::default(),
                attempt: None,
                summary: Summary::default(),
            },
        }
    }

    fn failed(attempts: u32, after_ms: Option<i64>) -> Ending {
        Ending::Failed {
            failure: Failure::new(FailureKind::Retry, "not now"),
            attempts,
            after_ms,
            attempt: None,
            summary: Summary::default(),
        }
    }

    /// Settles what is ready. If `rough`, some of it is lost, meets changed
    /// state, or isn't written for now.
    async fn settle(&mut self, rough: bool) {
        let most = if rough { self.rng.usize(1..8) } else { 1000 };
        let (mut group, projects) = self.ledger.collect(most);
        // A group whose second half failed: it is tried again.
        if rough && self.rng.u32(0..4) == 0 {
            for (id, settlement) in group.split_off(group.len() / 2) {
                self.ledger.retry(id, settlement);
            }
        }
        let (mut ids, mut written, mut conflicts) = (Vec::new(), Vec::new(), Vec::new());
        let mut held_up = BTreeSet::new();
        let (mut lost, mut unfit) = (Vec::new(), Vec::new());
        for (id, settlement) in group {
            let aggregate = settlement.event.aggregate_id.clone();
            let triggers: Vec<String> =
                settlement.effects.iter().map(|one| one.trigger.clone()).collect();
            if held_up.contains(&aggregate) {
                conflicts.push((id, settlement, Vec::new()));
            } else if rough && self.rng.u32(0..8) == 0 && !triggers.is_empty() {
                held_up.insert(aggregate);
                conflicts.push((id, settlement, triggers));
            } else if rough && self.rng.u32(0..12) == 0 && !triggers.is_empty() {
                held_up.insert(aggregate);
                unfit.push((id, settlement, triggers));
            } else if rough && self.rng.u32(0..12) == 0 {
                // The claim ran out: nothing of its key was written after it.
                held_up.insert(aggregate);
                self.store.release(&[&settlement.claim]).await.expect("releases");
                lost.push(id);
            } else {
                ids.push(id);
                written.push(settlement);
            }
        }
        let verdicts = self.store.settle(&written, LONG).await.expect("settles");
        for ((id, settlement), verdict) in ids.into_iter().zip(written).zip(verdicts) {
            match verdict {
                Settled::Done => {
                    self.note(&settlement);
                    self.ledger.settled(id, &settlement);
                }
                Settled::Lost => lost.push(id),
                other => panic!("{other:?}"),
            }
        }
        self.ledger.conflicted(conflicts);
        for (id, settlement, triggers) in unfit {
            let attempts = self.ledger.attempts_of(id) + 1;
            let ending = Self::failed(attempts, Some(0));
            let trigger: String = self.rng.choice(triggers).expect("one");
            self.ledger.unfit(id, settlement, &trigger, ending);
        }
        for id in lost {
            self.ledger.lost(id);
        }
        self.ledger.written(&projects);
    }

    /// Notes which pairs have ended, each once and in order.
    fn note(&mut self, settlement: &Settlement) {
        let mut ended: Vec<String> =
            settlement.effects.iter().map(|one| one.trigger.clone()).collect();
        match &settlement.end {
            End::Dispatched { spills, .. } => {
                ended.extend(spills.iter().filter(|s| s.dead).map(|s| s.trigger.clone()));
            }
            End::Dead { trigger, .. } => ended.push(trigger.clone()),
            End::Done { .. } | End::Again { .. } => {}
        }
        let event = &settlement.event;
        for trigger in ended {
            for (other, id, pk) in &self.ended {
                assert!(*other != trigger || *id != event.message_id, "{trigger}: {id} twice");
                let same = self.events[&event.aggregate_id].contains(id) && *other == trigger;
                let ordered = TRIGGERS.contains(&(&*trigger, Order::Aggregate));
                assert!(!same || !ordered || *pk < event.pk, "{trigger}: {pk}, then {}", event.pk);
            }
            self.ended.push((trigger, event.message_id, event.pk));
        }
    }

    async fn give_back(&mut self) {
        // What was taken the last time arrives now.
        let released = std::mem::replace(&mut self.returning, self.ledger.released());
        let claims: Vec<&Claim> = released.iter().map(|release| &*release.claim).collect();
        self.store.release(&claims).await.expect("releases");
        self.ledger.given_back(&released);
    }

    fn spill_waiting(&mut self) {
        let chains: Vec<_> = self.running.iter().filter_map(|(job, _)| job.chain).collect();
        if let Some(chain) = self.rng.choice(chains) {
            self.ledger.spill_waiting(chain);
        }
    }

    /// Another host has taken the lane, and this one takes it again.
    async fn lose_lane(&mut self) {
        self.terms.tenure.over.cancel();
        self.ledger.lane_lost(0);
        for (_, lost) in &mut self.running {
            *lost = true;
        }
        self.void = self.flight.is_some();
        self.take_lane().await;
    }

    /// What holds at any time.
    fn check(&self) {
        assert_eq!(self.ledger.in_lane(0), self.ledger.len());
        for (name, _) in TRIGGERS {
            let held = self.ledger.units.values().filter(|unit| {
                unit.delivery.is_some() && unit.shares.iter().any(|s| s.rule.name() == name)
            });
            let (ordered, free): (Vec<_>, Vec<_>) =
                held.map(|unit| unit.line).partition(Option::is_some);
            let lines: HashSet<_> = ordered.into_iter().collect();
            let counted = &self.rules.rule(SHOP, name).expect("is there").desk.deliveries;
            let counted = counted.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(counted as usize, lines.len() + free.len(), "deliveries of {name}");
        }
    }

    /// Does all there is to do, with no more accidents.
    async fn finish(&mut self) {
        for _ in 0..10_000 {
            self.admit();
            self.claim(true).await;
            self.admit();
            self.deliver().await;
            for _ in 0..4 {
                self.go_on();
            }
            if let Some((job, lost)) = self.running.pop() {
                let done = Ending::Done {
                    effects: Effects::default(),
                    attempt: None,
                    summary: Summary::default(),
                };
                self.ledger.ended(&job, if lost { Ending::Released } else { done });
                self.idle.extend(job.chain);
            }
            self.settle(false).await;
            // Twice: what is on its way arrives too.
            self.give_back().await;
            self.give_back().await;
            self.check();
            let pairs = self.events.values().map(Vec::len).sum::<usize>() * TRIGGERS.len();
            if self.ended.len() == pairs && self.ledger.len() == 0 && self.running.is_empty() {
                break;
            }
        }
        for (trigger, _) in TRIGGERS {
            for id in self.events.values().flatten() {
                let ended = self.ended.iter().filter(|e| e.0 == trigger && e.1 == *id).count();
                assert_eq!(ended, 1, "{trigger} and {id}");
            }
        }
        while !self.idle.is_empty() {
            self.go_on();
        }
        assert!(self.ledger.units.is_empty() && self.ledger.lines.is_empty());
        assert!(self.ledger.chains.is_empty() && self.ledger.ready.is_empty());
    }
}

#[tokio::test]
async fn whatever_happens_each_pair_ends_once_and_in_order() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OUTRIGGER_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OUTRIGGER_TEST_SEEDS").unwrap_or(30),
    };
    for seed in seeds {
        // Named before it fails: the harness shows it then.
        println!("seed {seed}");
        let mut sim = Sim::new(seed).await;
        for _ in 0..400 {
            sim.step().await;
        }
        sim.finish().await;
    }
}

#[tokio::test]
async fn what_a_claim_brings_after_the_end_is_given_back() {
    let mut sim = Sim::new(1).await;
    let event = NewEvent::new(SHOP, "order", "x", "placed", "{}");
    sim.store.record(&[event.clone(), event]).await.expect("records");
    while sim.flight.as_ref().is_none_or(|(_, _, _, claimed)| claimed.rows.len() < 2) {
        sim.flight = None;
        sim.take_lane().await;
        sim.claim(true).await;
    }
    sim.ledger.close();
    sim.admit();
    while let Some(start) = sim.ledger.start() {
        if let Start::Chain(chain) = start {
            assert!(sim.ledger.next(chain).is_none(), "nothing more is called");
        }
    }
    // A call in no order finds out by itself.
    let free = TRIGGERS.iter().any(|(_, order)| *order == Order::None);
    assert!(free && sim.ledger.released().len() == 2, "both go back");
    assert_eq!(sim.ledger.len(), 0);
}

#[tokio::test]
async fn a_project_that_holds_much_gets_no_more_room() {
    let mut sim = Sim::new(1).await;
    let event = |n: u32| NewEvent::new(SHOP, "order", n.to_string(), "placed", "{}");
    sim.store.record(&(0..75).map(event).collect::<Vec<_>>()).await.expect("records");
    let seam = Seam { lane: 0, project: SHOP.to_owned(), above: 0, limit: 75 };
    let number = sim.ledger.claim_begins();
    let claimed = sim.store.claim_events(sim.host, &[seam], u64::MAX, LONG).await.expect("claims");
    for row in claimed.rows {
        let matching = sim.rules.matching(&row.event);
        sim.ledger.admit_event(row, matching, &sim.terms, number);
    }
    sim.ledger.claim_ends(number);
    assert_eq!(sim.ledger.len(), 75);
    // It has three times of what is free.
    assert_eq!(sim.ledger.room_of(SHOP, 100), 0);
    assert_eq!(sim.ledger.room_of("new", 100), 25, "there is room for one that comes");
    assert_eq!(sim.ledger.room_of(SHOP, 110), 30);
}
