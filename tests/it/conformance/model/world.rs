//! What a store should hold: rows in memory, and the rules by which they
//! change. Nothing is asked of the store here.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use outrigger::{
    model::{
        Lane,
        effect::{StateUse, Write},
        event::NewEvent,
    },
    store::{
        Chain, Claim, DeliveryState, Destination, End, Replayed, Requeued, Row, Settled,
        Settlement, Spill,
    },
};
use uuid::Uuid;

/// Names a claim.
pub(super) type Token = u64;

/// A claim on a row, and whether its lease has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) token: Token,
    pub(super) ended: bool,
}

/// When an event may be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// It isn't scheduled.
    Now,
    /// It is scheduled, and due.
    Due,
    /// It falls due long after the test.
    Later,
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) id: Uuid,
    /// 0 until it was seen in the store.
    pub(super) pk: i64,
    pub(super) lane: Lane,
    pub(super) aggregate: String,
    pub(super) dedup: Option<String>,
    pub(super) when: When,
    pub(super) claim: Option<Lease>,
    pub(super) claims: u32,
    pub(super) dispatched: bool,
    pub(super) replays: u32,
}

#[derive(Debug)]
pub(super) struct Delivery {
    /// 0 until it was seen in the store.
    pub(super) id: i64,
    pub(super) event: Uuid,
    pub(super) pk: i64,
    pub(super) lane: Lane,
    pub(super) aggregate: String,
    pub(super) trigger: String,
    pub(super) generation: u32,
    pub(super) chain: Chain,
    pub(super) state: DeliveryState,
    pub(super) cause: &'static str,
    pub(super) attempts: u32,
    pub(super) due: bool,
    pub(super) claim: Option<Lease>,
    pub(super) claims: u32,
}

impl Delivery {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, DeliveryState::Ready | DeliveryState::Blocked)
    }
}

#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) events: Vec<Event>,
    pub(super) deliveries: Vec<Delivery>,
    /// By trigger and key.
    pub(super) state: BTreeMap<(String, String), Vec<u8>>,
    /// Which host holds each lane, and whether its lease has ended.
    pub(super) lanes: Vec<(Option<usize>, bool)>,
    pub(super) dispatched: i64,
    /// Calls that ended well and that failed, by trigger.
    pub(super) totals: BTreeMap<String, (i64, i64)>,
}

/// Whether a row can be claimed.
fn free(claim: Option<Lease>) -> bool {
    claim.is_none_or(|lease| lease.ended)
}

impl World {
    pub(super) fn new(lanes: usize) -> Self {
        Self { lanes: vec![(None, false); lanes], ..Self::default() }
    }

    pub(super) fn event(&self, id: Uuid) -> Option<&Event> {
        self.events.iter().find(|event| event.id == id)
    }

    /// Records events; answers for each whether it is new, and whose id stands
    /// for it.
    pub(super) fn record(&mut self, events: &[NewEvent]) -> Vec<(bool, Uuid)> {
        events.iter().map(|event| self.record_one(event)).collect()
    }

    fn record_one(&mut self, new: &NewEvent) -> (bool, Uuid) {
        let dedup = new.dedup_key.clone().filter(|key| !key.is_empty());
        let first = self.events.iter().find(|event| dedup.is_some() && event.dedup == dedup);
        if let Some(first) = first {
            return (false, first.id);
        }
        let id = new.message_id.expect("the test gives ids");
        self.events.push(Event {
            id,
            pk: 0,
            lane: 0,
            aggregate: new.aggregate_id.clone(),
            dedup,
            when: match new.available_at {
                None => When::Now,
                Some(1) => When::Due,
                Some(_) => When::Later,
            },
            claim: None,
            claims: 0,
            dispatched: false,
            replays: 0,
        });
        (true, id)
    }

    /// Takes lanes, and voids the claims in them. On SQLite whoever asks has
    /// proved that nobody else is there.
    pub(super) fn take(&mut self, host: usize, want: usize, alone: bool) -> Vec<Lane> {
        let is_free = |(holder, ended): &(Option<usize>, bool)| {
            *ended || if alone { *holder != Some(host) } else { holder.is_none() }
        };
        let lanes: Vec<Lane> = (0..)
            .zip(&self.lanes)
            .filter(|(_, lane)| is_free(lane))
            .map(|(lane, _)| lane)
            .take(want)
            .collect();
        for lane in &lanes {
            self.lanes[usize::from(lane.unsigned_abs())] = (Some(host), false);
        }
        for event in self.events.iter_mut().filter(|event| lanes.contains(&event.lane)) {
            event.claim = event.claim.filter(|_| event.dispatched);
        }
        for delivery in self.deliveries.iter_mut().filter(|d| lanes.contains(&d.lane)) {
            delivery.claim = delivery.claim.filter(|_| !delivery.is_open());
        }
        lanes
    }

    pub(super) fn held_by(&self, host: usize) -> Vec<Lane> {
        let held = (0..).zip(&self.lanes).filter(|(_, lane)| lane.0 == Some(host));
        held.map(|(lane, _)| lane).collect()
    }

    /// Events of a lane that a host may claim, in pk order; `due` for those
    /// that were scheduled.
    pub(super) fn claimable(&self, lanes: &[Lane], due: bool) -> Vec<Uuid> {
        let when = if due { When::Due } else { When::Now };
        let mut found: Vec<&Event> = self
            .events
            .iter()
            .filter(|e| !e.dispatched && e.when == when && lanes.contains(&e.lane))
            .filter(|e| free(e.claim))
            .collect();
        found.sort_by_key(|event| event.pk);
        found.into_iter().map(|event| event.id).collect()
    }

    /// Deliveries of a trigger that a host with these lanes may claim.
    pub(super) fn deliverable(&self, lanes: &[Lane], trigger: &str) -> BTreeSet<i64> {
        let found = self.deliveries.iter().filter(|d| {
            d.trigger == trigger
                && d.state == DeliveryState::Ready
                && d.due
                && lanes.contains(&d.lane)
                && free(d.claim)
        });
        found.map(|delivery| delivery.id).collect()
    }

    pub(super) fn claim_event(&mut self, id: Uuid, lease: Lease) {
        let event = self.events.iter_mut().find(|event| event.id == id).expect("it is there");
        (event.claim, event.claims) = (Some(lease), event.claims + 1);
    }

    pub(super) fn claim_delivery(&mut self, id: i64, lease: Lease) {
        let found = self.deliveries.iter_mut().find(|delivery| delivery.id == id);
        let delivery = found.expect("it is there");
        (delivery.claim, delivery.claims) = (Some(lease), delivery.claims + 1);
    }

    /// Triggers with an open delivery that later events of an aggregate wait for.
    pub(super) fn open(&self, aggregate: &str) -> BTreeSet<String> {
        let open = self.deliveries.iter().filter(|d| d.is_open() && d.chain == Chain::Events);
        open.filter(|d| d.aggregate == aggregate).map(|d| d.trigger.clone()).collect()
    }

    /// A claimed row's lease, if the claim still holds.
    fn lease(&mut self, claim: &Claim, token: Token) -> Option<(&mut Option<Lease>, &mut u32)> {
        let (lease, claims) = match claim.row() {
            Row::Event(pk) => {
                let found = self.events.iter_mut().find(|e| e.pk == pk && !e.dispatched)?;
                (&mut found.claim, &mut found.claims)
            }
            Row::Delivery(id) => {
                let found = self.deliveries.iter_mut().find(|d| d.id == id && d.is_open())?;
                (&mut found.claim, &mut found.claims)
            }
        };
        lease.is_some_and(|lease| lease.token == token).then_some((lease, claims))
    }

    /// Renews a claim; answers whether it holds.
    pub(super) fn renew(&mut self, claim: &Claim, token: Token) -> bool {
        let Some((lease, _)) = self.lease(claim, token) else { return false };
        *lease = Some(Lease { token, ended: false });
        true
    }

    /// Gives a claim back.
    pub(super) fn release(&mut self, claim: &Claim, token: Token) {
        if let Some((lease, claims)) = self.lease(claim, token) {
            (*lease, *claims) = (None, *claims - 1);
        }
    }

    /// Settles a group; answers what becomes of each.
    pub(super) fn settle(&mut self, group: &[(Token, &Settlement)]) -> Vec<Settled> {
        let held: Vec<bool> =
            group.iter().map(|(token, s)| self.lease(&s.claim, *token).is_some()).collect();
        let mut verdicts = Vec::with_capacity(group.len());
        let (mut held_up, mut lost) = (HashSet::new(), Vec::new());
        for ((_, settlement), held) in group.iter().zip(&held) {
            let (aggregate, pk) = (&settlement.event.aggregate_id, settlement.event.pk);
            // Nothing is written without what comes before it of its key.
            let overtakes = |(other, of): &(&String, i64)| *other == aggregate && *of != pk;
            verdicts.push(if !held {
                lost.push((aggregate, pk));
                Settled::Lost
            } else if held_up.contains(aggregate) || lost.iter().any(overtakes) {
                held_up.insert(aggregate);
                Settled::Conflict(Vec::new())
            } else {
                let verdict = self.write_state(settlement);
                if verdict != Settled::Done {
                    held_up.insert(aggregate);
                }
                verdict
            });
        }
        let written: Vec<&Settlement> = group
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| **verdict == Settled::Done)
            .map(|((_, settlement), _)| *settlement)
            .collect();
        let mut ended = Vec::new();
        for settlement in &written {
            ended.extend(self.end(settlement));
        }
        for chain in ended {
            self.release_next(&chain);
        }
        for settlement in &written {
            if let End::Dispatched { spills, .. } = &settlement.end {
                for spill in spills {
                    self.spill(settlement.event.message_id, spill);
                }
            }
        }
        for one in written.iter().flat_map(|settlement| &settlement.effects) {
            self.record(&one.effects.emitted);
            self.totals.entry(one.trigger.clone()).or_default().0 += 1;
        }
        verdicts
    }

    /// Writes a settlement's state if what it read still holds.
    fn write_state(&mut self, settlement: &Settlement) -> Settled {
        let value = |world: &Self, trigger: &str, key: &str| {
            world.state.get(&(trigger.to_owned(), key.to_owned())).cloned()
        };
        let stale = |trigger: &str, used: &StateUse| {
            let keys = self.state.keys().filter(|(of, _)| of == trigger).map(|(_, key)| key);
            let keys: Vec<&String> = keys.collect();
            used.reads.iter().any(|(key, seen)| value(self, trigger, key) != *seen)
                || used.listings.iter().any(|l| !l.keys.iter().eq(keys.iter().copied()))
        };
        let overtaken = settlement.effects.iter().filter(|o| stale(&o.trigger, &o.effects.state));
        let overtaken: Vec<String> = overtaken.map(|one| one.trigger.clone()).collect();
        if !overtaken.is_empty() {
            return Settled::Conflict(overtaken);
        }
        let mut after = self.state.clone();
        for one in &settlement.effects {
            for (key, write) in &one.effects.state.writes {
                let place = (one.trigger.clone(), key.clone());
                let written = match write {
                    Write::Set(value) => Some(value.clone()),
                    Write::Delete => None,
                    Write::Add(delta) => {
                        let before = value(self, &one.trigger, key);
                        let before = before.map_or(Ok(0), |v| String::from_utf8_lossy(&v).parse());
                        let Ok(before): Result<i64, _> = before else {
                            let trigger = one.trigger.clone();
                            return Settled::Unfit { trigger, why: String::new() };
                        };
                        Some((before + delta).to_string().into_bytes())
                    }
                };
                match written {
                    Some(value) => after.insert(place, value),
                    None => after.remove(&place),
                };
            }
        }
        self.state = after;
        Settled::Done
    }

    /// Ends a claimed row; answers the chain that it leaves, if it is a
    /// delivery's.
    fn end(&mut self, settlement: &Settlement) -> Option<(Chain, String, String)> {
        let failed = |world: &mut Self, trigger: &str| {
            world.totals.entry(trigger.to_owned()).or_default().1 += 1;
        };
        let id = match settlement.claim.row() {
            Row::Event(pk) => {
                let event = self.events.iter_mut().find(|event| event.pk == pk).expect("is there");
                (event.dispatched, event.claim) = (true, None);
                self.dispatched += 1;
                return None;
            }
            Row::Delivery(id) => id,
        };
        let found = self.deliveries.iter_mut().find(|delivery| delivery.id == id);
        let delivery = found.expect("is there");
        (delivery.claim, delivery.claims) = (None, 0);
        let chain = (delivery.chain, delivery.aggregate.clone(), delivery.trigger.clone());
        match &settlement.end {
            End::Dispatched { .. } => unreachable!("the test settles deliveries as such"),
            End::Done { .. } => {
                delivery.state = DeliveryState::Done;
                delivery.attempts += 1;
                Some(chain)
            }
            End::Again { trigger, attempts, after_ms, .. } => {
                (delivery.attempts, delivery.due) = (*attempts, *after_ms == 0);
                failed(self, trigger);
                None
            }
            End::Dead { trigger, attempts, .. } => {
                (delivery.state, delivery.attempts) = (DeliveryState::Dead, *attempts);
                failed(self, trigger);
                Some(chain)
            }
        }
    }

    /// The first that is left of a chain no longer waits.
    fn release_next(&mut self, (chain, aggregate, trigger): &(Chain, String, String)) {
        let rest = self.deliveries.iter_mut().filter(|d| {
            d.is_open() && d.chain == *chain && d.aggregate == *aggregate && d.trigger == *trigger
        });
        let first = rest.min_by_key(|delivery| delivery.pk).filter(|_| *chain != Chain::None);
        if let Some(first) = first.filter(|first| first.state == DeliveryState::Blocked) {
            first.state = DeliveryState::Ready;
        }
    }

    /// Whether a chain has something open.
    fn waits(&self, chain: Chain, aggregate: &str, trigger: &str) -> bool {
        chain != Chain::None
            && self.deliveries.iter().any(|d| {
                d.is_open() && d.chain == chain && d.aggregate == aggregate && d.trigger == trigger
            })
    }

    fn add(&mut self, id: Uuid, trigger: &str, chain: Chain, cause: &'static str) -> &mut Delivery {
        let event = self.event(id).expect("is there");
        let (pk, lane, aggregate) = (event.pk, event.lane, event.aggregate.clone());
        let waits = self.waits(chain, &aggregate, trigger);
        self.deliveries.push(Delivery {
            id: 0,
            event: id,
            pk,
            lane,
            aggregate,
            trigger: trigger.to_owned(),
            generation: 0,
            chain,
            state: if waits { DeliveryState::Blocked } else { DeliveryState::Ready },
            cause,
            attempts: 0,
            due: true,
            claim: None,
            claims: 0,
        });
        self.deliveries.last_mut().expect("it was just added")
    }

    fn spill(&mut self, event: Uuid, spill: &Spill) {
        if spill.error.is_some() {
            self.totals.entry(spill.trigger.clone()).or_default().1 += 1;
        }
        let chain = if spill.ordered { Chain::Events } else { Chain::None };
        let delivery = self.add(event, &spill.trigger, chain, spill.cause.as_str());
        (delivery.attempts, delivery.due) = (spill.attempts, spill.after_ms == 0);
        if spill.dead {
            delivery.state = DeliveryState::Dead;
        }
    }

    /// Whether a pair of event and trigger is still being delivered.
    fn is_open(&self, event: Uuid, trigger: &str) -> bool {
        self.deliveries.iter().any(|d| d.is_open() && d.event == event && d.trigger == trigger)
    }

    pub(super) fn replay(&mut self, id: Uuid, to: &[Destination]) -> Replayed {
        let Some(event) = self.event(id) else { return Replayed::Unknown };
        if !event.dispatched {
            return Replayed::Pending;
        }
        let generation = event.replays + 1;
        let (open, new): (Vec<_>, Vec<_>) = to.iter().partition(|t| self.is_open(id, &t.trigger));
        for to in &new {
            let chain = if to.ordered { Chain::Redriven } else { Chain::None };
            self.add(id, &to.trigger, chain, "replay").generation = generation;
        }
        if !new.is_empty() {
            let event = self.events.iter_mut().find(|event| event.id == id).expect("is there");
            event.replays = generation;
        }
        let names = |all: Vec<&Destination>| all.iter().map(|t| t.trigger.clone()).collect();
        Replayed::Yes {
            generation: (!new.is_empty()).then_some(generation),
            triggers: names(new),
            open: names(open),
        }
    }

    pub(super) fn requeue(&mut self, id: i64) -> Requeued {
        let Some(letter) = self.deliveries.iter().position(|d| d.id == id) else {
            return Requeued::Unknown;
        };
        let d = &self.deliveries[letter];
        if d.state != DeliveryState::Dead {
            return Requeued::Unknown;
        }
        if self.is_open(d.event, &d.trigger) {
            return Requeued::Open;
        }
        let chain = if d.chain == Chain::None { Chain::None } else { Chain::Redriven };
        let waits = self.waits(chain, &d.aggregate, &d.trigger);
        let d = &mut self.deliveries[letter];
        d.state = if waits { DeliveryState::Blocked } else { DeliveryState::Ready };
        (d.chain, d.attempts, d.claims, d.due) = (chain, 0, 0, true);
        Requeued::Yes
    }

    /// Requeues letters that are taken together; answers how many.
    pub(super) fn requeue_all(&mut self, ids: &[i64]) -> i64 {
        let letter = |id: &i64| self.deliveries.iter().find(|d| d.id == *id).expect("is there");
        let mut order: Vec<i64> = ids.to_vec();
        order.sort_by_key(|id| (letter(id).pk, letter(id).generation));
        let requeued = order.iter().filter(|id| self.requeue(**id) == Requeued::Yes);
        i64::try_from(requeued.count()).expect("few")
    }

    pub(super) fn purge(&mut self, id: i64) -> bool {
        let before = self.deliveries.len();
        self.deliveries.retain(|d| d.id != id || d.state != DeliveryState::Dead);
        self.deliveries.len() < before
    }

    pub(super) fn letters(&self) -> Vec<i64> {
        let dead = self.deliveries.iter().filter(|d| d.state == DeliveryState::Dead);
        let mut ids: Vec<i64> = dead.map(|delivery| delivery.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Ends a trigger: what was open is dead, or all but what ended well goes.
    pub(super) fn end_trigger(&mut self, trigger: &str, dead: bool) {
        self.state.retain(|(of, _), _| of != trigger);
        if !dead {
            self.deliveries.retain(|d| d.trigger != trigger || d.state == DeliveryState::Done);
        }
        for d in self.deliveries.iter_mut().filter(|d| d.trigger == trigger && d.is_open()) {
            (d.state, d.claim) = (DeliveryState::Dead, None);
        }
    }

    /// Whether retention may delete an event.
    pub(super) fn is_settled(&self, event: &Event) -> bool {
        let done = |d: &Delivery| d.event != event.id || d.state == DeliveryState::Done;
        event.dispatched && self.deliveries.iter().all(done)
    }

    pub(super) fn forget(&mut self, event: Uuid) {
        self.events.retain(|one| one.id != event);
        self.deliveries.retain(|delivery| delivery.event != event);
    }
}
