//! What a host has claimed and not settled: pure bookkeeping, no I/O.
//!
//! A claimed row is a [`Unit`] with one share for each trigger that it is for.
//! Shares of one ordering key and trigger form a chain and run one after
//! another. A unit whose shares have all ended is settled in the order of its
//! line. Where a chain breaks (a failure, a pause, a slow call), what waits in
//! it spills, and so does what comes later, until claims have seen the spilled
//! deliveries in the database; deliveries that wait behind another are given
//! back.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use uuid::Uuid;

use super::{
    ending::{Ending, guilty, settlement},
    lease::{Lease, Tenure},
    ready::Ready,
    rules::{Matching, Rule},
};
use crate::{
    model::{Lane, event::Event},
    store::{Chain, Claim, ClaimedDelivery, ClaimedEvent, Horizon, Settlement, SpillCause},
};

/// Names a unit for as long as it is held; rises in the order of claims.
pub(super) type UnitId = u64;

/// Trigger, ordering key, and whether it is a chain of re-driven deliveries.
/// Keys are hashed: two that meet wait for each other and nothing worse.
pub(super) type ChainKey = (u64, u64, bool);

/// Rows that are settled one with or after the other: the events of an ordering
/// key, or the deliveries of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Line {
    Events(u64),
    Deliveries(ChainKey),
}

/// How long what a claim brought may be held.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) lease: Arc<Lease>,
    pub(super) tenure: Arc<Tenure>,
}

/// A claimed row.
pub(super) struct Unit {
    pub(super) event: Arc<Event>,
    pub(super) claim: Arc<Claim>,
    pub(super) terms: Terms,
    pub(super) delivery: Option<Delivery>,
    /// Whether a host died with it: it runs alone.
    suspect: bool,
    pub(super) shares: Vec<Share>,
    /// Triggers whose `when` could not be evaluated.
    pub(super) unclear: Vec<(String, String)>,
    /// The event's ordering key.
    key: u64,
    line: Option<Line>,
    /// Shares that haven't ended.
    open: usize,
    stage: Stage,
    /// What came before it in its key was lost while it was being settled: if
    /// it isn't written now, it is given back.
    doomed: bool,
}

/// What a delivery's row says.
#[derive(Clone, Copy)]
pub(super) struct Delivery {
    pub(super) attempts: u32,
    pub(super) generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// All has ended; an earlier unit of its line has not.
    Complete,
    /// It may be settled.
    Ready,
    Settling,
}

/// A unit's part for one trigger.
pub(super) struct Share {
    pub(super) rule: Arc<Rule>,
    pub(super) ending: Option<Ending>,
    chain: Option<ChainKey>,
    /// Whether it is counted in `broken`.
    breaks: bool,
}

/// A call to make.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) unit: UnitId,
    pub(super) share: usize,
    pub(super) event: Arc<Event>,
    pub(super) rule: Arc<Rule>,
    pub(super) terms: Terms,
    pub(super) delivery: Option<Delivery>,
    pub(super) chain: Option<ChainKey>,
    /// The claim of a row that is to run alone.
    pub(super) alone: Option<Arc<Claim>>,
    /// Whether it ran before and met another call's state.
    pub(super) again: bool,
}

/// Work for a task of its own.
pub(super) enum Start {
    Chain(ChainKey),
    Free(Job),
}

#[derive(Default)]
struct Link {
    queue: VecDeque<Job>,
    running: Option<UnitId>,
    /// The running call's result is void: an earlier one has to run again.
    discard: bool,
    /// The running call's event spills: an earlier one did after its own call.
    overtaken: bool,
}

/// Spilled shares of a chain that claims may not have seen yet.
#[derive(Default)]
struct Break {
    unsettled: u32,
    /// The claim that was the latest when the last of them was settled.
    seen: u64,
}

/// A claim to give back.
pub(super) struct Release {
    pub(super) claim: Arc<Claim>,
    /// The ordering key that nothing later may overtake meanwhile.
    pub(super) key: Option<u64>,
    /// The event's track and pk, if it has a track.
    place: Option<(Lane, String, i64)>,
}

/// In place of a claim's number: it isn't given back yet, so no claim can have
/// brought it.
const ON_ITS_WAY: u64 = u64::MAX;

/// One project's share of one lane. Scheduled events aren't in it: they are
/// claimed out of order.
#[derive(Default)]
struct Track {
    held: BTreeSet<i64>,
    /// Given back, or lost, and not claimed again; with the claim that was the
    /// latest then.
    returned: BTreeMap<i64, u64>,
    high: i64,
    /// Up to here no row can come any more.
    safe: i64,
    /// What was the highest at claims since, each with the number that all
    /// transactions which may still bring a smaller one are below.
    fences: VecDeque<(i64, i64)>,
}

/// Fences that are kept for a track; a transaction may stay open for long.
const MAX_FENCES: usize = 64;

#[derive(Default)]
pub(super) struct Ledger {
    units: HashMap<UnitId, Unit>,
    lines: HashMap<Line, VecDeque<UnitId>>,
    chains: HashMap<ChainKey, Link>,
    broken: HashMap<ChainKey, Break>,
    ready: Ready,
    released: Vec<Release>,
    /// Keys with an event that is being given back: what claims bring of them
    /// that may not have seen it would overtake it.
    returning: HashMap<u64, Break>,
    tracks: HashMap<(Lane, String), Track>,
    /// Units of each project.
    projects: HashMap<String, usize>,
    /// Payloads of all of them.
    bytes: u64,
    lanes: HashMap<Lane, usize>,
    starts: Vec<Start>,
    hasher: RandomState,
    last: UnitId,
    claims: u64,
    /// Transactions with smaller numbers have ended.
    ended: i64,
    /// Those that had begun at the latest claim have smaller numbers.
    begun: i64,
    closed: bool,
}

impl Ledger {
    /// Units that are held.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Units that are held in a lane.
    pub(super) fn in_lane(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).copied().unwrap_or(0)
    }

    /// Where a claim may begin to look in a lane and project.
    pub(super) fn mark(&self, lane: Lane, project: &str) -> i64 {
        // A look-up by a borrowed pair isn't to be had; claims are few.
        self.tracks.get(&(lane, project.to_owned())).map_or(0, |track| track.mark(self.ended))
    }

    /// A claim that ignored the mark has brought all there was in a lane and
    /// project: what was given back before it and isn't claimed is gone.
    pub(super) fn swept(&mut self, lane: Lane, project: &str, claim: u64) {
        if let Some(track) = self.tracks.get_mut(&(lane, project.to_owned())) {
            track.returned.retain(|_, at| *at >= claim);
        }
    }

    /// Notes that a claim begins; its number goes to the admissions.
    pub(super) fn claim_begins(&mut self) -> u64 {
        self.claims += 1;
        self.claims
    }

    /// Notes which transactions a claim may have missed, before its rows are
    /// admitted.
    pub(super) fn sees(&mut self, horizon: Horizon) {
        self.ended = self.ended.max(horizon.ended);
        self.begun = horizon.begun;
    }

    /// Notes that all rows of a claim are admitted: spills settled before it
    /// began are in what it saw.
    pub(super) fn claim_ends(&mut self, claim: u64) {
        self.broken.retain(|_, b| b.unsettled > 0 || b.seen >= claim);
        self.returning.retain(|_, b| b.unsettled > 0 || b.seen >= claim);
    }

    pub(super) fn admit_event(
        &mut self,
        row: ClaimedEvent,
        matching: Matching,
        terms: &Terms,
        number: u64,
    ) {
        let ClaimedEvent { claim, event, open, claims, trials } = row;
        let key = self.key(&event);
        if self.returning.get(&key).is_some_and(|b| b.unsettled > 0 || b.seen >= number) {
            self.give_back(Arc::new(claim), Some(key), &event);
            return;
        }
        if event.available_at.is_none() {
            let track = self.tracks.entry((event.lane, event.project.clone())).or_default();
            track.claimed(event.pk, self.begun, self.ended);
        }
        let id = self.insert(Unit {
            delivery: None,
            suspect: claims > 1,
            line: Some(Line::Events(key)),
            ..Unit::new(claim, event, key, terms)
        });
        let mut shares = Vec::with_capacity(matching.rules.len());
        for rule in matching.rules {
            let chain = rule.ordered().then_some((rule.desk.id, key, false));
            let spill = if trials > 0 {
                // Each of its triggers is on trial on its own.
                Some(SpillCause::Suspect)
            } else if rule.paused() {
                Some(SpillCause::Paused)
            } else {
                chain
                    .filter(|c| {
                        open.iter().any(|o| o == rule.name()) || self.broken.contains_key(c)
                    })
                    .map(|_| SpillCause::Blocked)
            };
            shares.push((self.share(id, rule, chain), spill));
        }
        // Once all are there: when the last of them has ended, so has the unit.
        for (share, spill) in shares {
            match spill {
                Some(cause) => self.end(id, share, Ending::Spilled(cause)),
                None => self.enqueue(id, share, false),
            }
        }
        if let Some(unit) = self.units.get_mut(&id) {
            unit.unclear = matching.unclear;
            if unit.open == 0 {
                self.complete(id);
            }
        }
    }

    pub(super) fn admit_delivery(
        &mut self,
        row: ClaimedDelivery,
        rule: Arc<Rule>,
        terms: &Terms,
        deaths: u32,
    ) {
        let ClaimedDelivery { claim, event, attempts, generation, claims, trials, chain, .. } = row;
        let key = self.key(&event);
        let suspect = claims > 1;
        let chain = match chain {
            Chain::None => None,
            Chain::Events => Some((rule.desk.id, key, false)),
            Chain::Redriven => Some((rule.desk.id, key, true)),
        };
        let line = chain.map(Line::Deliveries);
        if line.is_none_or(|line| !self.lines.contains_key(&line)) {
            rule.desk.deliveries.fetch_add(1, Ordering::Relaxed);
        }
        let id = self.insert(Unit {
            delivery: Some(Delivery { attempts, generation }),
            suspect,
            line,
            ..Unit::new(claim, event, key, terms)
        });
        let share = self.share(id, rule, chain);
        // The first of the deaths was in company.
        if suspect && trials.saturating_add(1) >= deaths {
            self.end(id, share, guilty(attempts, trials));
        } else {
            self.enqueue(id, share, false);
        }
    }

    /// The next call of a chain; the chain ends when there is none.
    pub(super) fn next(&mut self, chain: ChainKey) -> Option<Job> {
        let link = self.chains.get_mut(&chain)?;
        if let Some(job) = link.queue.pop_front().filter(|_| !self.closed) {
            link.running = Some(job.unit);
            Some(job)
        } else {
            self.chains.remove(&chain);
            None
        }
    }

    /// Whether calls wait behind the running one of a chain.
    pub(super) fn waits(&self, chain: ChainKey) -> bool {
        self.chains.get(&chain).is_some_and(|link| !link.queue.is_empty())
    }

    /// Spills the events that wait in a chain.
    pub(super) fn spill_waiting(&mut self, chain: ChainKey) {
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
    pub(super) fn ended(&mut self, job: &Job, mut ending: Ending) {
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

    /// Settlements for units that are ready, in order, as many as fit. Nothing
    /// more of these projects is collected until they are [`Self::written`].
    pub(super) fn collect(&mut self, most: usize) -> (Vec<(UnitId, Settlement)>, Vec<String>) {
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
    pub(super) fn written(&mut self, projects: &[String]) {
        self.ready.done(projects);
    }

    /// Payloads of all that is held, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Units that a project may have more, of `capacity` for all: three times
    /// what is free at the most, so that there is room for one that comes.
    /// (Dynamic thresholds: Choudhury and Hahne, 1998.)
    pub(super) fn room_of(&self, project: &str, capacity: usize) -> usize {
        let free = capacity.saturating_sub(self.units.len());
        let held = self.projects.get(project).copied().unwrap_or(0);
        (free * 3).saturating_sub(held).min(free)
    }

    /// Claims to give back.
    pub(super) fn released(&mut self) -> Vec<Release> {
        std::mem::take(&mut self.released)
    }

    /// These claims are given back, or nothing of this host's holds any more.
    pub(super) fn given_back(&mut self, released: &[Release]) {
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
    pub(super) fn is_returning(&self) -> bool {
        self.returning.values().any(|returning| returning.unsettled > 0)
    }

    /// Tasks to start.
    pub(super) fn starts(&mut self) -> Vec<Start> {
        std::mem::take(&mut self.starts)
    }

    /// A unit is settled; answers its event's id.
    pub(super) fn settled(&mut self, id: UnitId, settlement: &Settlement) -> Option<Uuid> {
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
    pub(super) fn lost(&mut self, id: UnitId) {
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
    fn later(&self, line: Option<Line>, id: UnitId) -> Vec<UnitId> {
        match line.and_then(|line| self.lines.get(&line)) {
            Some(queue) => queue.iter().copied().filter(|other| *other > id).collect(),
            None => Vec::new(),
        }
    }

    /// Gives back what came after a unit in its line: it would overtake it.
    fn release_later(&mut self, line: Option<Line>, id: UnitId) {
        for other in self.later(line, id) {
            match self.units.get_mut(&other) {
                Some(unit) if unit.stage == Stage::Settling => unit.doomed = true,
                _ => self.release_one(other),
            }
        }
    }

    /// Gives a claim back: an event's has a key.
    fn give_back(&mut self, claim: Arc<Claim>, key: Option<u64>, event: &Event) {
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
    pub(super) fn conflicted(&mut self, group: Vec<(UnitId, Settlement, Vec<String>)>) {
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

    fn run_again(&mut self, id: UnitId, triggers: &[String], ordered_only: bool) {
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

    /// Whatever it waits for now, it is no longer first in line.
    fn not_ready(&mut self, id: UnitId) {
        if let Some(unit) = self.units.get_mut(&id).filter(|unit| unit.stage == Stage::Ready) {
            unit.stage = Stage::Complete;
            self.ready.remove(&unit.event.project, id);
        }
    }

    /// A settlement can't be written for what one trigger asked for: that
    /// share ends so instead. What came after it in its chain is void: it waits
    /// for the next attempt.
    pub(super) fn unfit(
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

    /// Spills what later units of a line have ended already in a chain: an
    /// earlier one has to be tried again. None of it is written yet.
    fn spill_done(&mut self, line: Option<Line>, id: UnitId, chain: ChainKey) {
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

    /// A settlement wasn't written and is to be tried again as it is.
    pub(super) fn retry(&mut self, id: UnitId, settlement: Settlement) {
        self.take_back(id, settlement);
        self.complete(id);
    }

    /// Claims whose lease ends before `before`, with their leases.
    pub(super) fn expiring(&self, before: Instant) -> Vec<(UnitId, Arc<Claim>, Arc<Lease>)> {
        self.units
            .iter()
            .filter(|(_, unit)| unit.terms.lease.until() < before)
            .map(|(id, unit)| (*id, Arc::clone(&unit.claim), Arc::clone(&unit.terms.lease)))
            .collect()
    }

    /// Whether a unit is being settled, or is held no more.
    pub(super) fn settles(&self, id: UnitId) -> bool {
        self.units.get(&id).is_none_or(|unit| unit.stage == Stage::Settling)
    }

    /// When a unit's lease ends, and its line.
    pub(super) fn lease_of(&self, id: UnitId) -> Option<(Instant, Option<Line>)> {
        self.units.get(&id).map(|unit| (unit.terms.lease.until(), unit.line))
    }

    /// Attempts of a unit's delivery before this one.
    pub(super) fn attempts_of(&self, id: UnitId) -> u32 {
        self.units.get(&id).and_then(|unit| unit.delivery).map_or(0, |d| d.attempts)
    }

    /// Everything in a lane is somebody else's.
    pub(super) fn lane_lost(&mut self, lane: Lane) {
        let ids: Vec<UnitId> =
            self.units.iter().filter(|(_, u)| u.event.lane == lane).map(|(id, _)| *id).collect();
        for id in ids {
            self.lost(id);
        }
        self.tracks.retain(|(of, _), _| *of != lane);
    }

    /// No further call begins; units with a call that has not begun are given
    /// back.
    pub(super) fn close(&mut self) {
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
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Gives every unit back that isn't being settled.
    pub(super) fn release_all(&mut self) {
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
    pub(super) fn release(&mut self, id: UnitId) {
        let line = self.units.get(&id).and_then(|unit| unit.line);
        self.release_one(id);
        self.release_later(line, id);
    }

    fn release_one(&mut self, id: UnitId) {
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

    fn key(&self, event: &Event) -> u64 {
        self.hasher.hash_one((&event.project, &event.resource, &event.aggregate_id))
    }

    fn insert(&mut self, unit: Unit) -> UnitId {
        self.last += 1;
        *self.lanes.entry(unit.event.lane).or_default() += 1;
        self.bytes += unit.event.payload.len() as u64;
        if let Some(count) = self.projects.get_mut(&unit.event.project) {
            *count += 1;
        } else {
            self.projects.insert(unit.event.project.clone(), 1);
        }
        if let Some(line) = unit.line {
            self.lines.entry(line).or_default().push_back(self.last);
        }
        self.units.insert(self.last, unit);
        self.last
    }

    fn share(&mut self, id: UnitId, rule: Arc<Rule>, chain: Option<ChainKey>) -> usize {
        let Some(unit) = self.units.get_mut(&id) else { return 0 };
        unit.shares.push(Share { rule, ending: None, chain, breaks: false });
        unit.open += 1;
        unit.shares.len() - 1
    }

    /// Puts a call where it will be made: in its chain, or on its own.
    fn enqueue(&mut self, id: UnitId, index: usize, again: bool) {
        let Some(unit) = self.units.get(&id) else { return };
        let share = &unit.shares[index];
        let job = Job {
            unit: id,
            share: index,
            event: Arc::clone(&unit.event),
            rule: Arc::clone(&share.rule),
            terms: unit.terms.clone(),
            delivery: unit.delivery,
            alone: unit.suspect.then(|| Arc::clone(&unit.claim)),
            chain: share.chain,
            again,
        };
        let Some(chain) = share.chain else {
            self.starts.push(Start::Free(job));
            return;
        };
        let link = self.chains.entry(chain).or_insert_with(|| {
            self.starts.push(Start::Chain(chain));
            Link::default()
        });
        let at = link.queue.partition_point(|other| other.unit < id);
        link.queue.insert(at, job);
        link.discard |= link.running.is_some_and(|running| running > id);
    }

    /// Runs a share's call again.
    fn again(&mut self, id: UnitId, index: usize) {
        if let Some(unit) = self.units.get_mut(&id) {
            unit.shares[index].ending = None;
            unit.open += 1;
            unit.stage = Stage::Running;
            self.enqueue(id, index, true);
        }
    }

    fn end(&mut self, id: UnitId, index: usize, ending: Ending) {
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

    /// A unit has ended if all its shares have; it is ready when those before
    /// it in its ordering key are.
    fn complete(&mut self, id: UnitId) {
        let Some(unit) = self.units.get_mut(&id) else { return };
        if unit.open > 0 || unit.stage == Stage::Ready {
            return;
        }
        unit.stage = Stage::Complete;
        if let Some(line) = unit.line {
            self.forward(line);
        } else {
            unit.stage = Stage::Ready;
            self.ready.push(&unit.event.project, id);
        }
    }

    /// Makes ready what is complete at the head of a line.
    fn forward(&mut self, line: Line) {
        let Some(queue) = self.lines.get(&line) else { return };
        for id in queue {
            let Some(unit) = self.units.get_mut(id) else { continue };
            match unit.stage {
                Stage::Running => break,
                Stage::Complete => {
                    unit.stage = Stage::Ready;
                    self.ready.push(&unit.event.project, *id);
                }
                Stage::Ready | Stage::Settling => {}
            }
        }
    }

    fn take_back(&mut self, id: UnitId, settlement: Settlement) {
        if let Some(unit) = self.units.get_mut(&id) {
            unit.stage = Stage::Complete;
            super::ending::take_back(unit, settlement);
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

    /// Takes the deliveries that wait in a chain out of it, and gives them back.
    fn release_waiting(&mut self, chain: ChainKey) {
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

    fn remove(&mut self, id: UnitId, settled: bool) -> Option<Unit> {
        let unit = self.units.remove(&id)?;
        if let Some(count) = self.lanes.get_mut(&unit.event.lane) {
            *count -= 1;
        }
        self.bytes -= unit.event.payload.len() as u64;
        if let Some(count) = self.projects.get_mut(&unit.event.project) {
            *count -= 1;
            if *count == 0 {
                self.projects.remove(&unit.event.project);
            }
        }
        for share in &unit.shares {
            let Some(chain) = share.chain else { continue };
            if let Some(link) = self.chains.get_mut(&chain) {
                link.queue.retain(|job| job.unit != id);
            }
            if let Some(broken) = self.broken.get_mut(&chain).filter(|_| share.breaks) {
                broken.unsettled -= 1;
                broken.seen = self.claims;
            }
        }
        if unit.delivery.is_none() {
            let place = (unit.event.lane, unit.event.project.clone());
            if let Some(track) =
                self.tracks.get_mut(&place).filter(|_| unit.event.available_at.is_none())
            {
                track.gone(unit.event.pk, settled, self.claims);
            }
        }
        if let Some(line) = unit.line
            && let Some(queue) = self.lines.get_mut(&line)
        {
            queue.retain(|other| *other != id);
            if queue.is_empty() {
                self.lines.remove(&line);
            } else {
                self.forward(line);
            }
        }
        let ended = unit.line.is_none_or(|line| !self.lines.contains_key(&line));
        if let Some(share) = unit.shares.first().filter(|_| unit.delivery.is_some() && ended) {
            share.rule.desk.deliveries.fetch_sub(1, Ordering::Relaxed);
        }
        if unit.stage == Stage::Ready {
            self.ready.remove(&unit.event.project, id);
        }
        Some(unit)
    }
}

impl Unit {
    /// Whether it is a delivery that has to be tried again.
    fn has_failed(&self) -> bool {
        let failed = |share: &Share| matches!(share.ending, Some(Ending::Failed { .. }));
        self.delivery.is_some() && self.stage != Stage::Settling && self.shares.iter().any(failed)
    }

    /// One with no shares yet.
    fn new(claim: Claim, event: Event, key: u64, terms: &Terms) -> Self {
        Self {
            event: Arc::new(event),
            claim: Arc::new(claim),
            // A lease of its own: of the rows of one claim some may be renewed,
            // and others not.
            terms: Terms {
                lease: Arc::new(Lease::new(terms.lease.until())),
                tenure: Arc::clone(&terms.tenure),
            },
            delivery: None,
            suspect: false,
            shares: Vec::new(),
            unclear: Vec::new(),
            key,
            line: None,
            open: 0,
            stage: Stage::Running,
            doomed: false,
        }
    }
}

impl Track {
    /// Rows up to this pk are settled, and none can come any more.
    fn mark(&self, ended: i64) -> i64 {
        let passed = self.fences.iter().take_while(|(_, begun)| *begun <= ended);
        let safe = passed.last().map_or(self.safe, |(high, _)| *high);
        let first = self.held.first().into_iter().chain(self.returned.keys().next()).min();
        first.map_or(safe, |first| safe.min(first - 1))
    }

    fn claimed(&mut self, pk: i64, begun: i64, ended: i64) {
        self.held.insert(pk);
        self.returned.remove(&pk);
        if pk <= self.high {
            return;
        }
        self.high = pk;
        while let Some((high, _)) = self.fences.pop_front_if(|(_, begun)| *begun <= ended) {
            self.safe = high;
        }
        let full = self.fences.len() >= MAX_FENCES;
        if full || self.fences.back().is_some_and(|(_, last)| *last == begun) {
            // The later one stands for both.
            self.fences.pop_back();
        }
        self.fences.push_back((pk, begun));
    }

    fn gone(&mut self, pk: i64, settled: bool, claims: u64) {
        self.held.remove(&pk);
        if !settled {
            self.returned.insert(pk, claims);
        }
    }
}

/// How long a call may hold up what waits behind it in its chain.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
