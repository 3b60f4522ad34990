//! What a host has claimed and not settled: pure bookkeeping, no I/O.
//!
//! A claimed row is a [`Unit`] with one share for each trigger that it is for.
//! Shares of one ordering key and trigger form a chain and run one after
//! another. A unit whose shares have all ended is settled in the order of its
//! line. Where a chain breaks (a failure, a pause, a slow call), what waits in
//! it spills, and so does what comes later, until claims have seen the spilled
//! deliveries in the database; deliveries that wait behind another are given
//! back.
//!
//! Here are the claims and what they bring; `chains` has the calls, `lines` what
//! becomes of units that have ended, `track` the low-water marks.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::{
    batch::Batch,
    ending::{Ending, guilty},
    lease::{Lease, Tenure},
    ready::Ready,
    rules::{Matching, Rule},
};
use crate::{
    model::{Lane, event::Event},
    store::{Chain, Claim, ClaimedDelivery, ClaimedEvent, Horizon, SpillCause},
    targets::Target,
};

mod chains;
mod lines;
#[cfg(test)]
mod tests;
mod track;

use self::track::Track;

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
    pub(super) batch: Arc<Batch>,
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
    /// The rule's, or one of its own for the calls of a batch.
    pub(super) target: Arc<dyn Target>,
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
    starts: VecDeque<Start>,
    /// Tasks that take starts.
    starters: usize,
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

    /// Whether one more task is to take starts, of `most`; it counts from now on.
    pub(super) fn starter(&mut self, most: usize) -> bool {
        let more = !self.starts.is_empty() && self.starters < most;
        self.starters += usize::from(more);
        more
    }

    /// What is to be started next.
    pub(super) fn start(&mut self) -> Option<Start> {
        self.starts.pop_front()
    }

    /// A task takes no starts any more.
    pub(super) fn starter_ends(&mut self) {
        self.starters = self.starters.saturating_sub(1);
    }

    /// Whether there is something to settle or to give back that the settlers
    /// don't know of.
    pub(super) fn has_news(&mut self) -> bool {
        self.ready.has_news() || !self.released.is_empty()
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
            // Units join a line in the order of their ids.
            && let Ok(at) = queue.binary_search(&id)
        {
            queue.remove(at);
            if queue.is_empty() {
                self.lines.remove(&line);
            } else {
                self.forward(line, at);
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
                batch: Arc::clone(&terms.batch),
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

/// How long a call may hold up what waits behind it in its chain.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);
