//! Writes what has ended, many units in one transaction, and gives back what
//! hasn't.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::{select, time::sleep};

use super::{
    ending::{Ending, Summary, unfit},
    host::Host,
    ledger::{Line, UnitId},
};
use crate::{
    model::outcome::{Outcome, classify},
    store::{End, Settled, Settlement, StoreError},
};

/// Units that are written in one transaction.
const GROUP: usize = 1000;

/// Transactions at once; those of one project come one after the other.
const WRITERS: usize = 3;

/// What is kept back of a lease: a settle ends that much before it.
const MARGIN: Duration = Duration::from_millis(100);

/// Rest before one that the database has refused is tried again.
const REFUSED_REST: Duration = Duration::from_secs(1);

/// Settlements with the units that they are for.
type Group = Vec<(UnitId, Settlement)>;

/// Writes groups until the host stops and nothing is left.
pub(super) async fn run(host: Arc<Host>) {
    let settlers =
        (0..WRITERS).map(|_| Settler { refused: HashSet::new(), host: Arc::clone(&host) });
    join_all(settlers.map(Settler::run)).await;
}

struct Settler {
    host: Arc<Host>,
    /// Units that the database has refused once.
    refused: HashSet<UnitId>,
}

impl Settler {
    async fn run(mut self) {
        loop {
            select! {
                biased;
                () = self.host.hard.cancelled() => break,
                () = self.host.to_settle.notified() => {}
            }
            self.drain().await;
        }
        self.drain().await;
    }

    async fn drain(&mut self) {
        loop {
            let ((group, projects), released) = {
                let most = self.host.store.strides().settle.min(GROUP);
                let mut ledger = self.host.ledger();
                (ledger.collect(most), ledger.released())
            };
            if !released.is_empty() {
                let claims: Vec<_> = released.iter().map(|release| &*release.claim).collect();
                if let Err(error) = self.host.store.release(&claims).await {
                    self.host.faulty("giving claims back", &error);
                    self.host.doubt();
                }
                self.host.ledger().given_back(&released);
                self.host.to_claim.notify_one();
            }
            if group.is_empty() {
                return;
            }
            // There may be more, of other projects.
            self.host.to_settle.notify_one();
            self.write(group).await;
            self.host.ledger().written(&projects);
            self.host.pump();
            self.host.to_claim.notify_one();
        }
    }

    /// Writes a group, in halves where it fails, until each unit of it is
    /// written, lost, or back in the ledger.
    async fn write(&mut self, group: Group) {
        let mut todo = vec![group];
        let mut pause = Duration::from_millis(20);
        while let Some(group) = todo.pop() {
            let (group, late, within) = self.in_time(group);
            if !late.is_empty() {
                self.take_back(&mut todo);
                self.late(late);
            }
            if group.is_empty() {
                continue;
            }
            let (ids, settlements): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let began = Instant::now();
            let result = self.host.store.settle(&settlements, within).await;
            let group: Group = ids.into_iter().zip(settlements).collect();
            match result {
                Ok(verdicts) => {
                    self.host.pulse.good();
                    let seconds = began.elapsed().as_secs_f64();
                    self.host.metrics.settle(group.len(), seconds);
                    if verdicts.iter().any(|verdict| *verdict != Settled::Done) {
                        self.take_back(&mut todo);
                    }
                    self.apply(group, verdicts);
                }
                Err(error @ (StoreError::Unavailable(_) | StoreError::Full(_))) => {
                    self.host.faulty("settling", &error);
                    todo.push(group);
                    self.rest(&mut pause).await;
                }
                Err(error) if group.len() > 1 => {
                    tracing::debug!(%error, rows = group.len(), "settling a group in halves");
                    let mut first = group;
                    let second = first.split_off(first.len() / 2);
                    todo.extend([second, first]);
                }
                Err(error) if error.is_passing() => {
                    self.host.faulty("settling", &error);
                    todo.push(group);
                    self.rest(&mut pause).await;
                }
                Err(error) => {
                    self.take_back(&mut todo);
                    self.refuse(group, &error);
                }
            }
        }
    }

    /// Gives the ledger back what isn't written yet, since something before it
    /// won't be: it may be of the same line.
    fn take_back(&self, todo: &mut Vec<Group>) {
        let mut ledger = self.host.ledger();
        for (id, settlement) in todo.drain(..).rev().flatten() {
            ledger.retry(id, settlement);
        }
    }

    async fn rest(&self, pause: &mut Duration) {
        select! {
            () = self.host.hard.cancelled() => sleep(Duration::from_millis(5)).await,
            () = sleep(*pause) => *pause = (*pause * 2).min(Duration::from_secs(1)),
        }
    }

    /// Those whose leases still have time, those whose haven't or that would
    /// overtake one of them in a line, and how long the first still have at the
    /// least. One look says all: no unit is in neither.
    fn in_time(&self, group: Group) -> (Group, Group, Duration) {
        let ledger = self.host.ledger();
        let now = Instant::now() + MARGIN;
        let mut within = Duration::MAX;
        let mut overdue = HashSet::<Line>::new();
        let (group, late) = group.into_iter().partition(|(id, _)| {
            let Some((until, line)) = ledger.lease_of(*id) else { return false };
            let left = until.checked_duration_since(now).filter(|left| !left.is_zero());
            let left = left.filter(|_| line.is_none_or(|line| !overdue.contains(&line)));
            match left {
                Some(left) => within = within.min(left),
                None => overdue.extend(line),
            }
            left.is_some()
        });
        (group, late, within)
    }

    /// Units whose leases end before they can be written. The database may
    /// hold their claims a little longer: until they are given back, nothing
    /// later may overtake them.
    fn late(&mut self, group: Group) {
        if group.is_empty() {
            return;
        }
        tracing::warn!(rows = group.len(), "leases ended before results were written");
        self.host.metrics.lost(group.len() as u64);
        let mut ledger = self.host.ledger();
        for (id, _) in group {
            self.refused.remove(&id);
            ledger.release(id);
        }
        self.host.to_settle.notify_one();
    }

    fn lost(&mut self, group: Group) {
        if group.is_empty() {
            return;
        }
        tracing::warn!(rows = group.len(), "claims ended before their results were written");
        self.host.metrics.lost(group.len() as u64);
        let mut ledger = self.host.ledger();
        for (id, _) in group {
            self.refused.remove(&id);
            ledger.lost(id);
        }
    }

    fn apply(&mut self, group: Group, verdicts: Vec<Settled>) {
        let mut done = Vec::with_capacity(group.len());
        let (mut lost, mut conflicts, mut unfit) = (Vec::new(), Vec::new(), Vec::new());
        let (mut emitted, mut kept) = (false, false);
        for ((id, settlement), verdict) in group.into_iter().zip(verdicts) {
            self.refused.remove(&id);
            match verdict {
                Settled::Done => {
                    self.follow_up(&settlement);
                    kept |= !settlement.attempts.is_empty();
                    emitted |= settlement.effects.iter().any(|one| !one.effects.emitted.is_empty());
                    done.extend(self.host.ledger().settled(id, &settlement));
                }
                Settled::Lost => lost.push((id, settlement)),
                Settled::Conflict(triggers) => conflicts.push((id, settlement, triggers)),
                Settled::Unfit { trigger, why } => unfit.push((id, settlement, trigger, why)),
            }
        }
        self.host.pulse.settled(done);
        if kept {
            self.host.pulse.kept();
        }
        // What is held up by others comes back first, so that it is found
        // behind them.
        if !conflicts.is_empty() {
            self.host.metrics.conflicts(conflicts.len() as u64);
            let rules = self.host.rules.load();
            for (_, settlement, triggers) in &conflicts {
                for trigger in triggers {
                    if let Some(rule) = rules.rule(&settlement.event.project, trigger) {
                        rule.desk.pending.conflicted();
                    }
                }
            }
            self.host.ledger().conflicted(conflicts);
        }
        for (id, settlement, trigger, why) in unfit {
            self.unfit(id, settlement, &trigger, why);
        }
        self.lost(lost);
        if emitted {
            self.host.store.wake();
        }
    }

    /// Counts, and notes deliveries that fall due.
    fn follow_up(&self, settlement: &Settlement) {
        let project = &settlement.event.project;
        match &settlement.end {
            End::Dispatched { spills, .. } => {
                self.host.metrics.dispatched(1);
                for spill in spills {
                    self.host.metrics.spilled(spill.cause.as_str(), 1);
                    if !spill.dead {
                        self.host.delivery_due(project, &spill.trigger, spill.after_ms);
                    }
                }
            }
            End::Again { trigger, after_ms, .. } => {
                self.host.delivery_due(project, trigger, *after_ms);
            }
            // It may have released the next of its key.
            End::Done { trigger } | End::Dead { trigger, .. } => {
                self.host.delivery_due(project, trigger, 0);
            }
        }
    }

    /// Effects that can't be written are a failure of their trigger.
    fn unfit(&self, id: UnitId, settlement: Settlement, trigger: &str, why: String) {
        let rules = self.host.rules.load();
        let Some(rule) = rules.rule(&settlement.event.project, trigger) else {
            // Deleted meanwhile: what it asked for is void.
            self.host.ledger().release(id);
            return;
        };
        let mut ledger = self.host.ledger();
        let before = ledger.attempts_of(id);
        let outcome = classify(
            Err(unfit(rule.target.redact(why))),
            before + 1,
            &rule.trigger.spec.retry,
            fastrand::f64(),
        );
        let (failure, after_ms) = match outcome {
            Outcome::Retry { after_ms, why } => (why, Some(after_ms)),
            Outcome::Dead { why } => (why, None),
            Outcome::Done(_) | Outcome::Released => return,
        };
        let ending = Ending::Failed {
            failure,
            attempts: before + 1,
            after_ms,
            attempt: None,
            summary: Summary { attempt: before + 1, ..Summary::default() },
        };
        ledger.unfit(id, settlement, trigger, ending);
    }

    /// The database refuses this one unit: its effects are dropped as unfit. If
    /// that doesn't help, it is tried again and again, and said loudly; what
    /// comes after it in its line waits, everything else goes on.
    fn refuse(&mut self, group: Group, error: &StoreError) {
        for (id, settlement) in group {
            tracing::error!(%error, event = %settlement.event.message_id, "a settle was refused");
            self.host.pulse.bad(error);
            let culprit = settlement
                .effects
                .iter()
                .find(|one| !one.effects.is_empty())
                .map(|one| one.trigger.clone());
            match culprit {
                Some(trigger) => self.unfit(id, settlement, &trigger, error.to_string()),
                None if self.refused.insert(id) => self.host.ledger().retry(id, settlement),
                None => {
                    let host = Arc::clone(&self.host);
                    self.host.tasks.spawn(async move {
                        select! {
                            () = host.hard.cancelled() => {}
                            () = sleep(REFUSED_REST) => {}
                        }
                        host.ledger().retry(id, settlement);
                        host.to_settle.notify_one();
                    });
                }
            }
        }
    }
}
