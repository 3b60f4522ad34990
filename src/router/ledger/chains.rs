//! The calls of the shares: which may be made, and how each ended.

use std::{collections::VecDeque, sync::Arc};

use super::{ChainKey, Job, Ledger, Line, Link, Share, Stage, Start, UnitId};
use crate::{
    router::{ending::Ending, rules::Rule},
    store::SpillCause,
};

impl Ledger {
    /// The next call of a chain; the chain ends when there is none.
    pub(in crate::router) fn next(&mut self, chain: ChainKey) -> Option<Job> {
        let link = self.chains.get_mut(&chain)?;
        if self.closed {
            // A claim that was on its way when this host was to stop, or a call
            // that was to be made again.
            let waiting: Vec<UnitId> = link.queue.drain(..).map(|job| job.unit).collect();
            self.chains.remove(&chain);
            for id in waiting {
                self.release(id);
            }
            return None;
        }
        if let Some(job) = link.queue.pop_front() {
            link.running = Some(job.unit);
            Some(job)
        } else {
            self.chains.remove(&chain);
            None
        }
    }

    /// Whether calls wait behind the running one of a chain.
    pub(in crate::router) fn waits(&self, chain: ChainKey) -> bool {
        self.chains.get(&chain).is_some_and(|link| !link.queue.is_empty())
    }

    /// Spills the events that wait in a chain.
    pub(in crate::router) fn spill_waiting(&mut self, chain: ChainKey) {
        let Some(link) = self.chains.get_mut(&chain) else { return };
        let (stay, spill): (VecDeque<Job>, VecDeque<Job>) =
            link.queue.drain(..).partition(|job| job.delivery.is_some());
        link.queue = stay;
        link.overtaken |= link.running.is_some_and(|r| spill.iter().any(|job| job.unit < r));
        for job in spill {
            self.end(job.unit, job.share, Ending::Spilled(SpillCause::Blocked));
        }
    }

    /// Takes note of how a call ended.
    pub(in crate::router) fn ended(&mut self, job: &Job, mut ending: Ending) {
        if let Some(link) = job.chain.and_then(|chain| self.chains.get_mut(&chain)) {
            link.running = None;
            let discard = std::mem::take(&mut link.discard);
            if std::mem::take(&mut link.overtaken) {
                if ending.is_final() {
                    job.rule.desk.pending.forget();
                    ending = Ending::Spilled(SpillCause::Blocked);
                }
            } else if discard {
                job.rule.desk.pending.forget();
                self.enqueue(job.unit, job.share, true);
                return;
            }
        }
        let breaks =
            matches!(ending, Ending::Failed { .. } | Ending::Spilled(_) | Ending::Released);
        self.end(job.unit, job.share, ending);
        if let Some(chain) = job.chain.filter(|_| breaks) {
            match job.delivery {
                None => self.spill_waiting(chain),
                // What waits behind a delivery is blocked by it.
                Some(_) => self.release_waiting(chain),
            }
        }
    }

    pub(super) fn run_again(&mut self, id: UnitId, triggers: &[String], ordered_only: bool) {
        self.not_ready(id);
        let Some(unit) = self.units.get(&id) else { return };
        let voided = |share: &Share| {
            triggers.iter().any(|t| t == share.rule.name())
                && matches!(share.ending, Some(Ending::Done { .. }))
                && (share.chain.is_some() || !ordered_only)
        };
        let again: Vec<usize> =
            (0..unit.shares.len()).filter(|index| voided(&unit.shares[*index])).collect();
        for index in again {
            self.again(id, index);
        }
    }

    /// Spills what later units of a line have ended already in a chain: an
    /// earlier one has to be tried again. None of it is written yet.
    pub(super) fn spill_done(&mut self, line: Option<Line>, id: UnitId, chain: ChainKey) {
        for other in self.later(line, id) {
            let Some(unit) = self.units.get_mut(&other) else { continue };
            for share in unit.shares.iter_mut().filter(|share| share.chain == Some(chain)) {
                if share.ending.as_ref().is_some_and(Ending::is_final) {
                    share.ending = Some(Ending::Spilled(SpillCause::Blocked));
                    if !std::mem::replace(&mut share.breaks, true) {
                        self.broken.entry(chain).or_default().unsettled += 1;
                    }
                }
            }
        }
    }

    pub(super) fn share(&mut self, id: UnitId, rule: Arc<Rule>, chain: Option<ChainKey>) -> usize {
        let Some(unit) = self.units.get_mut(&id) else { return 0 };
        unit.shares.push(Share { rule, ending: None, chain, breaks: false });
        unit.open += 1;
        unit.shares.len() - 1
    }

    /// Puts a call where it will be made: in its chain, or on its own.
    pub(super) fn enqueue(&mut self, id: UnitId, index: usize, again: bool) {
        let Some(unit) = self.units.get(&id) else { return };
        let share = &unit.shares[index];
        let job = Job {
            unit: id,
            share: index,
            event: Arc::clone(&unit.event),
            // What may kill the host is on trial for itself alone.
            target: if unit.suspect {
                Arc::clone(&share.rule.target)
            } else {
                unit.terms.batch.target(&share.rule)
            },
            rule: Arc::clone(&share.rule),
            terms: unit.terms.clone(),
            delivery: unit.delivery,
            alone: unit.suspect.then(|| Arc::clone(&unit.claim)),
            chain: share.chain,
            again,
        };
        let Some(chain) = share.chain else {
            self.starts.push_back(Start::Free(job));
            return;
        };
        let link = self.chains.entry(chain).or_insert_with(|| {
            self.starts.push_back(Start::Chain(chain));
            Link::default()
        });
        let at = link.queue.partition_point(|other| other.unit < id);
        link.queue.insert(at, job);
        link.discard |= link.running.is_some_and(|running| running > id);
    }

    /// Runs a share's call again.
    pub(super) fn again(&mut self, id: UnitId, index: usize) {
        if let Some(unit) = self.units.get_mut(&id) {
            unit.shares[index].ending = None;
            unit.open += 1;
            unit.stage = Stage::Running;
            self.enqueue(id, index, true);
        }
    }

    pub(super) fn end(&mut self, id: UnitId, index: usize, ending: Ending) {
        let Some(unit) = self.units.get_mut(&id) else { return };
        if matches!(ending, Ending::Released) {
            self.release(id);
            return;
        }
        let is_event = unit.delivery.is_none();
        let share = &mut unit.shares[index];
        let spills = !matches!(ending, Ending::Done { .. });
        share.ending = Some(ending);
        if let Some(chain) = share.chain.filter(|_| spills && is_event) {
            share.breaks = true;
            self.broken.entry(chain).or_default().unsettled += 1;
        }
        unit.open -= 1;
        if unit.open == 0 {
            self.complete(id);
        }
    }

    /// Takes the deliveries that wait in a chain out of it, and gives them back.
    pub(super) fn release_waiting(&mut self, chain: ChainKey) {
        let Some(link) = self.chains.get_mut(&chain) else { return };
        let jobs: Vec<Job> = link.queue.drain(..).collect();
        for job in jobs {
            if job.delivery.is_some() {
                self.release(job.unit);
            } else {
                self.end(job.unit, job.share, Ending::Spilled(SpillCause::Blocked));
            }
        }
    }
}
