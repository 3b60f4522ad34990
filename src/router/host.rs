//! What the router's tasks share.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Settings, alone::Alone, lease::Tenure, ledger::Ledger, pulse::Pulse, rules::Rules};
use crate::{
    metrics::Metrics,
    model::{Lane, UnixMillis},
    store::{HostId, Store, StoreError},
    targets::Targets,
};

pub(super) struct Host {
    pub(super) store: Arc<dyn Store>,
    pub(super) targets: Arc<dyn Targets>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) settings: Settings,
    pub(super) rules: ArcSwap<Rules>,
    pub(super) clock: Clock,
    /// Tasks that start calls: as many as can run at once.
    pub(super) starters: usize,
    /// Calls that may run at once, all triggers together.
    pub(super) calls: Semaphore,
    pub(super) alone: Alone,
    /// Rung when there is something to settle or to give back.
    pub(super) to_settle: Notify,
    /// Rung when room has come free, or a delivery falls due.
    pub(super) to_claim: Notify,
    /// Rung when lanes should be looked at before their time.
    pub(super) to_keep: Notify,
    /// Cancelled to claim nothing more.
    pub(super) soft: CancellationToken,
    /// Cancelled to do nothing more.
    pub(super) hard: CancellationToken,
    pub(super) tasks: TaskTracker,
    identity: Mutex<Identity>,
    /// Held while definitions are read, so that older ones never replace newer.
    refreshing: tokio::sync::Mutex<()>,
    ledger: Mutex<Ledger>,
    lanes: Mutex<BTreeMap<Lane, Holding>>,
    agenda: Mutex<Agenda>,
}

/// Who this host is to lanes and claims.
struct Identity {
    id: HostId,
    /// A claim broke off: rows may be claimed that nobody works on, and what
    /// comes after them in their ordering keys would overtake them. Even a
    /// statement that was given up may still arrive. So this host gives all
    /// its lanes back and takes lanes under a new id, for which nothing of
    /// that holds.
    doubtful: bool,
}

/// A lane that this host holds.
#[derive(Clone)]
pub(super) struct Holding {
    pub(super) tenure: Arc<Tenure>,
    /// It is to be handed over: nothing more is claimed in it.
    pub(super) surplus: bool,
}

/// What is known of deliveries that wait.
#[derive(Default)]
pub(super) struct Agenda {
    /// Projects and triggers that have some.
    pub(super) pairs: HashSet<(String, String)>,
    /// When to look for some that are due, beside each survey.
    due: BTreeSet<Instant>,
}

impl Agenda {
    /// When to look next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().copied()
    }

    /// Whether it is time to look; what was due until now is crossed off.
    pub(super) fn take_due(&mut self) -> bool {
        let later = self.due.split_off(&(Instant::now() + Duration::from_nanos(1)));
        let due = !self.due.is_empty();
        self.due = later;
        due
    }

    /// Notes a time to look.
    pub(super) fn look_at(&mut self, at: Instant) {
        self.due.insert(at);
        // Surveys find what is crossed off here.
        while self.due.len() > MAX_DUE {
            self.due.pop_last();
        }
    }
}

/// Times that are remembered.
const MAX_DUE: usize = 10_000;

impl Host {
    pub(super) fn new(
        store: Arc<dyn Store>,
        targets: Arc<dyn Targets>,
        metrics: Arc<Metrics>,
        settings: Settings,
    ) -> Self {
        Self {
            store,
            targets,
            metrics,
            pulse: Arc::default(),
            rules: ArcSwap::default(),
            clock: Clock::default(),
            starters: std::thread::available_parallelism().map_or(1, usize::from),
            calls: Semaphore::new(settings.concurrency),
            alone: Alone::default(),
            to_settle: Notify::new(),
            to_claim: Notify::new(),
            to_keep: Notify::new(),
            soft: CancellationToken::new(),
            hard: CancellationToken::new(),
            tasks: TaskTracker::new(),
            identity: Mutex::new(Identity { id: HostId(uuid::Uuid::new_v4()), doubtful: false }),
            refreshing: tokio::sync::Mutex::default(),
            ledger: Mutex::default(),
            lanes: Mutex::default(),
            agenda: Mutex::default(),
            settings,
        }
    }

    fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This host, as lanes and claims know it now.
    pub(super) fn id(&self) -> HostId {
        self.identity().id
    }

    /// Whether it isn't known what this host has claimed: it claims nothing
    /// more until its lanes are given back.
    pub(super) fn is_doubtful(&self) -> bool {
        self.identity().doubtful
    }

    /// Notes that it isn't known what a claim did.
    pub(super) fn doubt(&self) {
        self.identity().doubtful = true;
        self.to_keep.notify_one();
    }

    /// What a claim brought. An answer that never came leaves a doubt.
    pub(super) fn sure<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Unavailable(_)) = answer {
            self.doubt();
        }
        answer
    }

    /// Becomes a host that holds nothing.
    pub(super) fn start_over(&self) {
        *self.identity() = Identity { id: HostId(uuid::Uuid::new_v4()), doubtful: false };
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lanes(&self) -> MutexGuard<'_, BTreeMap<Lane, Holding>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn agenda(&self) -> MutexGuard<'_, Agenda> {
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trigger that makes this host stand by: it can't deliver to it, so
    /// it claims nothing, and leaves the lanes to hosts that can.
    pub(super) fn stands_by(&self, rules: &Rules) -> Option<(String, String)> {
        rules.beyond(|project| self.settings.takes(project)).cloned()
    }

    /// Lanes to claim in.
    pub(super) fn own_lanes(&self) -> Vec<Lane> {
        self.lanes().iter().filter(|(_, h)| !h.surplus).map(|(lane, _)| *lane).collect()
    }

    /// Rows that may be held at once: some batches at work, ahead of it, and
    /// being settled. More claims of fewer rows, so that what has just come to
    /// another project waits for less.
    pub(super) fn capacity(&self) -> usize {
        self.settings.batch as usize * 4
    }

    /// Notes a delivery that falls due.
    pub(super) fn delivery_due(&self, project: &str, trigger: &str, after_ms: i64) {
        let at = Instant::now() + Duration::from_millis(u64::try_from(after_ms).unwrap_or(0));
        let mut agenda = self.agenda();
        agenda.pairs.insert((project.to_owned(), trigger.to_owned()));
        let sooner = agenda.next().is_none_or(|next| at < next);
        agenda.look_at(at);
        if sooner {
            self.to_claim.notify_one();
        }
    }

    /// Reads the definitions anew if they have changed.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let _turn = self.refreshing.lock().await;
        let version = self.store.control_version().await?;
        if version == self.rules.load().version {
            return Ok(());
        }
        let definitions = self.store.definitions().await?;
        let before = self.rules.load_full();
        let rules = Rules::new(
            definitions,
            &before,
            &*self.targets,
            &self.metrics,
            self.settings.concurrency,
        );
        for rule in rules.all() {
            let known = before.rule(&rule.trigger.project, &rule.trigger.name);
            if known.is_none_or(|known| !Arc::ptr_eq(known, rule)) && !rule.paused() {
                let target = Arc::clone(&rule.target);
                self.tasks.spawn(async move { target.warm().await });
            }
        }
        self.rules.store(Arc::new(rules));
        Ok(())
    }

    /// Takes note of a fault of the database, once, where it is handled.
    pub(super) fn faulty(&self, doing: &'static str, error: &StoreError) {
        tracing::warn!(error = %error, "{doing} failed");
        self.pulse.bad(error);
    }
}

/// The database's clock, as well as it is known here.
#[derive(Default)]
pub(super) struct Clock(Mutex<Option<(UnixMillis, Instant)>>);

impl Clock {
    /// Notes what the database said.
    pub(super) fn set(&self, now: UnixMillis) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// What the database would say.
    pub(super) fn now(&self) -> UnixMillis {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.map_or(0, |(then, at)| then + i64::try_from(at.elapsed().as_millis()).unwrap_or(0))
    }
}
