//! Units that have ended: written in the order of their lines, lost, taken back
//! or given back.

use std::{collections::BTreeSet, sync::Arc};

use uuid::Uuid;

use super::{Ledger, Line, ON_ITS_WAY, Release, Stage, Unit, UnitId};
use crate::{
    model::{Lane, event::Event},
    router::ending::{Ending, settlement, take_back},
    store::{Claim, Settlement},
};

impl Ledger {
    /// Settlements for units that are ready, in order, as many as fit. Nothing
    /// more of these projects is collected until they are [`Self::written`].
    pub(in crate::router) fn collect(
        &mut self,
        most: usize,
    ) -> (Vec<(UnitId, Settlement)>, Vec<String>) {
        let (ids, projects) = self.ready.take(most);
        let group = ids
            .into_iter()
            .filter_map(|id| {
                let unit = self.units.get_mut(&id)?;
                unit.stage = Stage::Settling;
                Some((id, settlement(unit)))
            })
            .collect();
        (group, projects)
    }

    /// What was collected of these projects is written, or back.
    pub(in crate::router) fn written(&mut self, projects: &[String]) {
        self.ready.done(projects);
    }

    /// Claims to give back.
    pub(in crate::router) fn released(&mut self) -> Vec<Release> {
        std::mem::take(&mut self.released)
    }

    /// These claims are given back, or nothing of this host's holds any more.
    pub(in crate::router) fn given_back(&mut self, released: &[Release]) {
        for key in released.iter().filter_map(|release| release.key) {
            if let Some(returning) = self.returning.get_mut(&key) {
                returning.unsettled = returning.unsettled.saturating_sub(1);
                returning.seen = self.claims;
            }
        }
        for (lane, project, pk) in released.iter().filter_map(|release| release.place.clone()) {
            let track = self.tracks.get_mut(&(lane, project));
            if let Some(at) = track.and_then(|track| track.returned.get_mut(&pk)) {
                *at = self.claims;
            }
        }
    }

    /// Whether events are on their way back: a claim that begins now may bring
    /// what comes after them, and would have to be given back as well.
    pub(in crate::router) fn is_returning(&self) -> bool {
        self.returning.values().any(|returning| returning.unsettled > 0)
    }

    /// A unit is settled; answers its event's id.
    pub(in crate::router) fn settled(
        &mut self,
        id: UnitId,
        settlement: &Settlement,
    ) -> Option<Uuid> {
        let unit = self.remove(id, true)?;
        for share in &unit.shares {
            let name = share.rule.name();
            for one in settlement.effects.iter().filter(|one| one.trigger == name) {
                share.rule.desk.pending.settled(id, &one.effects.state);
            }
        }
        Some(unit.event.message_id)
    }

    /// A unit is somebody else's.
    pub(in crate::router) fn lost(&mut self, id: UnitId) {
        if let Some(unit) = self.remove(id, false) {
            for share in &unit.shares {
                share.rule.desk.pending.forget();
            }
            if unit.delivery.is_none() {
                // A claim on its way may bring what comes after it, and not it.
                self.returning.entry(unit.key).or_default().seen = self.claims;
            }
            self.release_later(unit.line, id);
        }
    }

    /// What came after a unit in a line.
    pub(super) fn later(&self, line: Option<Line>, id: UnitId) -> Vec<UnitId> {
        match line.and_then(|line| self.lines.get(&line)) {
            Some(queue) => queue.iter().copied().filter(|other| *other > id).collect(),
            None => Vec::new(),
        }
    }

    /// Gives back what came after a unit in its line: it would overtake it.
    pub(super) fn release_later(&mut self, line: Option<Line>, id: UnitId) {
        for other in self.later(line, id) {
            match self.units.get_mut(&other) {
                Some(unit) if unit.stage == Stage::Settling => unit.doomed = true,
                _ => self.release_one(other),
            }
        }
    }

    /// Gives a claim back: an event's has a key.
    pub(super) fn give_back(&mut self, claim: Arc<Claim>, key: Option<u64>, event: &Event) {
        let mut place = None;
        if let Some(key) = key {
            self.returning.entry(key).or_default().unsettled += 1;
            if event.available_at.is_none() {
                let of = (event.lane, event.project.clone());
                place = Some((of.0, of.1.clone(), event.pk));
                self.tracks.entry(of).or_default().returned.insert(event.pk, ON_ITS_WAY);
            }
        }
        self.released.push(Release { claim, key, place });
    }

    /// Settlements of a group that weren't written since state had changed, each
    /// with the triggers that read it: results go back to the units, and calls
    /// of these triggers are run again, as are those of the same chains that
    /// came after.
    pub(in crate::router) fn conflicted(&mut self, group: Vec<(UnitId, Settlement, Vec<String>)>) {
        let mut reruns = Vec::with_capacity(group.len());
        for (id, settlement, triggers) in group {
            self.take_back(id, settlement);
            reruns.push((id, triggers));
        }
        for (id, triggers) in &reruns {
            let Some(line) = self.units.get(id).map(|unit| unit.line) else { continue };
            self.run_again(*id, triggers, false);
            for other in self.later(line, *id) {
                self.run_again(other, triggers, true);
                // A delivery that failed is blocked again.
                if self.units.get(&other).is_some_and(Unit::has_failed) {
                    self.release_one(other);
                }
            }
        }
        for (id, _) in reruns {
            self.complete(id);
        }
    }

    /// Whatever it waits for now, it is no longer first in line.
    pub(super) fn not_ready(&mut self, id: UnitId) {
        if let Some(unit) = self.units.get_mut(&id).filter(|unit| unit.stage == Stage::Ready) {
            unit.stage = Stage::Complete;
            self.ready.remove(&unit.event.project, id);
        }
    }

    /// A settlement can't be written for what one trigger asked for: that
    /// share ends so instead. What came after it in its chain is void: it waits
    /// for the next attempt.
    pub(in crate::router) fn unfit(
        &mut self,
        id: UnitId,
        settlement: Settlement,
        trigger: &str,
        ending: Ending,
    ) {
        self.take_back(id, settlement);
        let Some(unit) = self.units.get_mut(&id) else { return };
        let Some(index) = unit.shares.iter().position(|share| share.rule.name() == trigger) else {
            return;
        };
        unit.shares[index].rule.desk.pending.forget();
        unit.shares[index].ending = None;
        unit.open += 1;
        unit.stage = Stage::Running;
        let (chain, line, is_event) =
            (unit.shares[index].chain, unit.line, unit.delivery.is_none());
        self.end(id, index, ending);
        let Some(chain) = chain else { return };
        if !is_event {
            self.release_later(line, id);
            return;
        }
        if let Some(link) = self.chains.get_mut(&chain) {
            link.overtaken |= link.running.is_some_and(|running| running > id);
        }
        self.spill_waiting(chain);
        self.spill_done(line, id, chain);
    }

    /// A settlement wasn't written and is to be tried again as it is.
    pub(in crate::router) fn retry(&mut self, id: UnitId, settlement: Settlement) {
        self.take_back(id, settlement);
        self.complete(id);
    }

    /// Everything in a lane is somebody else's.
    pub(in crate::router) fn lane_lost(&mut self, lane: Lane) {
        let ids: Vec<UnitId> =
            self.units.iter().filter(|(_, u)| u.event.lane == lane).map(|(id, _)| *id).collect();
        for id in ids {
            self.lost(id);
        }
        self.tracks.retain(|(of, _), _| *of != lane);
    }

    /// No further call begins; units with a call that has not begun are given
    /// back.
    pub(in crate::router) fn close(&mut self) {
        self.closed = true;
        let queued: BTreeSet<UnitId> = self
            .chains
            .values_mut()
            .flat_map(|link| link.queue.drain(..))
            .map(|j| j.unit)
            .collect();
        for id in queued {
            self.release(id);
        }
    }

    /// Whether no further call may begin.
    pub(in crate::router) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Gives every unit back that isn't being settled.
    pub(in crate::router) fn release_all(&mut self) {
        let ids: Vec<UnitId> = self
            .units
            .iter()
            .filter(|(_, unit)| unit.stage != Stage::Settling)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.release(id);
        }
    }

    /// Gives a unit back as if it had not been claimed, and with it what came
    /// after it in its line.
    pub(in crate::router) fn release(&mut self, id: UnitId) {
        let line = self.units.get(&id).and_then(|unit| unit.line);
        self.release_one(id);
        self.release_later(line, id);
    }

    pub(super) fn release_one(&mut self, id: UnitId) {
        if let Some(unit) = self.remove(id, false) {
            for share in &unit.shares {
                if matches!(share.ending, Some(Ending::Done { .. })) {
                    share.rule.desk.pending.forget();
                }
            }
            let key = unit.delivery.is_none().then_some(unit.key);
            self.give_back(unit.claim, key, &unit.event);
        }
    }

    /// A unit has ended if all its shares have; it is ready when those before
    /// it in its ordering key are.
    pub(super) fn complete(&mut self, id: UnitId) {
        let Some(unit) = self.units.get_mut(&id) else { return };
        if unit.open > 0 || unit.stage == Stage::Ready {
            return;
        }
        unit.stage = Stage::Complete;
        let Some(line) = unit.line else {
            unit.stage = Stage::Ready;
            self.ready.push(&unit.event.project, id);
            return;
        };
        if let Some(Ok(at)) = self.lines.get(&line).map(|queue| queue.binary_search(&id)) {
            self.forward(line, at);
        }
    }

    /// Makes ready what is complete in a line from a place on, up to the first
    /// that isn't, if nothing before that place has still to become ready.
    pub(super) fn forward(&mut self, line: Line, from: usize) {
        let Some(queue) = self.lines.get(&line) else { return };
        let waits = |id: &UnitId| {
            let unit = self.units.get(id);
            unit.is_some_and(|unit| matches!(unit.stage, Stage::Running | Stage::Complete))
        };
        // What stands before it is ready as far as it can be.
        if from.checked_sub(1).and_then(|before| queue.get(before)).is_some_and(waits) {
            return;
        }
        for id in queue.range(from.min(queue.len())..) {
            let Some(unit) = self.units.get_mut(id) else { continue };
            match unit.stage {
                Stage::Complete => {
                    unit.stage = Stage::Ready;
                    self.ready.push(&unit.event.project, *id);
                }
                // What comes after one that runs waits; after one that is ready
                // it is ready too, as far as it can be.
                Stage::Running | Stage::Ready | Stage::Settling => break,
            }
        }
    }

    pub(super) fn take_back(&mut self, id: UnitId, settlement: Settlement) {
        if let Some(unit) = self.units.get_mut(&id) {
            unit.stage = Stage::Complete;
            take_back(unit, settlement);
            if unit.doomed {
                self.release_one(id);
                return;
            }
        }
        // What comes after it is no longer first in line.
        let line = self.units.get(&id).and_then(|unit| unit.line);
        for other in self.later(line, id) {
            self.not_ready(other);
        }
    }
}
