//! Claims rows when there is room for them, and sleeps when there is nothing.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{select, time::sleep};

use super::{
    batch::Batch,
    demand::{self, Demand},
    host::{Holding, Host},
    lease::{Lease, Tenure},
    ledger::Terms,
};
use crate::{
    model::Lane,
    store::{Claim, Claimed, ClaimedDelivery, ClaimedEvent, Seam, StoreError},
};

/// The first sleep after work was found; doubles up to the poll interval.
const SHORTEST_NAP: Duration = Duration::from_millis(5);

/// How often claims ignore the low-water marks, for events that were committed
/// late, and look around for work elsewhere.
const SWEEP: Duration = Duration::from_secs(1);

/// How often at the most to look for projects that had nothing, while others
/// keep the host busy; and the share of the time that looking may take.
const GLANCE: Duration = Duration::from_millis(20);
const GLANCES: u32 = 20;

/// Rows that are admitted while nothing else looks into the ledger.
const ADMITTED: usize = 64;

/// Payloads of one claim, and of all that is held, in bytes.
const CLAIM_BYTES: u64 = 32 << 20;
const HELD_BYTES: u64 = 128 << 20;

/// The lanes that a host held when it claimed.
type Held = BTreeMap<Lane, Holding>;

/// A lane that was held when a claim was made and has been since.
fn still_held(held: &Held, lane: Lane) -> Option<&Arc<Tenure>> {
    held.get(&lane).map(|holding| &holding.tenure).filter(|tenure| !tenure.over.is_cancelled())
}

/// Claims until the host is to stop.
pub(super) async fn run(host: Arc<Host>) {
    let mut poller = Poller {
        host,
        demand: Demand::default(),
        glanced: None,
        glance_after: GLANCE,
        swept: None,
        nap: SHORTEST_NAP,
    };
    while !poller.host.soft.is_cancelled() {
        match poller.round().await {
            Ok(true) => poller.nap = SHORTEST_NAP,
            Ok(false) => poller.sleep().await,
            Err(error) => {
                poller.host.faulty("claiming", &error);
                poller.nap = (poller.nap * 2).min(poller.host.settings.poll);
                select! {
                    () = poller.host.soft.cancelled() => {}
                    () = sleep(poller.nap) => {}
                }
            }
        }
    }
}

struct Poller {
    host: Arc<Host>,
    demand: Demand,
    /// When newcomers were last looked for, and how long to wait after that.
    glanced: Option<Instant>,
    glance_after: Duration,
    /// When marks were last ignored.
    swept: Option<Instant>,
    nap: Duration,
}

impl Poller {
    /// Claims once of everything. Answers whether there may be more at once.
    async fn round(&mut self) -> Result<bool, StoreError> {
        if self.host.is_doubtful() {
            return Ok(false);
        }
        let lanes = self.host.own_lanes();
        let room = self.host.capacity().saturating_sub(self.host.ledger().len());
        let beyond = self.host.stands_by(&self.host.rules.load()).is_some();
        let full = {
            let ledger = self.host.ledger();
            ledger.is_returning() || ledger.bytes() >= HELD_BYTES
        };
        if lanes.is_empty() || room == 0 || beyond || full {
            return Ok(false);
        }
        let sweep = self.swept.is_none_or(|at| at.elapsed() > SWEEP);
        let (events, more) = self.claim_events(&lanes, room, sweep).await?;
        let deliveries = self.claim_deliveries(&lanes, room.saturating_sub(events)).await?;
        let found = events + deliveries;
        if found > 0 && !sweep {
            self.glance(&lanes).await?;
            // What has come since ends the sleep.
            self.nap = SHORTEST_NAP;
            return Ok(more || deliveries > 0);
        }
        if sweep {
            self.swept = Some(Instant::now());
        }
        let news = self.look_around(&lanes, room.saturating_sub(found)).await?;
        Ok(found > 0 || news)
    }

    /// While some projects keep the host busy: finds others that have work now.
    async fn glance(&mut self, lanes: &[Lane]) -> Result<(), StoreError> {
        if self.glanced.is_some_and(|at| at.elapsed() < self.glance_after) {
            return Ok(());
        }
        let began = Instant::now();
        let known: Vec<String> = self.demand.projects().cloned().collect();
        let seams = self.host.store.newcomers(lanes, &known).await?;
        let rules = self.host.rules.load_full();
        for (lane, project) in seams {
            if rules.serves(&project) && self.host.settings.takes(&project) {
                self.demand.expect(lane, project);
            }
        }
        self.glanced = Some(Instant::now());
        self.glance_after = GLANCE.max(began.elapsed() * GLANCES);
        Ok(())
    }

    /// Finds work where none was expected. Answers whether there is some.
    async fn look_around(&mut self, lanes: &[Lane], room: usize) -> Result<bool, StoreError> {
        let survey = self.host.store.survey(lanes).await?;
        self.host.pulse.good();
        self.host.clock.set(survey.now);
        let unknown = {
            let rules = self.host.rules.load();
            survey.seams.iter().any(|(_, project)| !rules.serves(project))
                || survey.deliveries.iter().any(|(project, trigger)| {
                    rules.rule(project, trigger).is_none_or(|rule| rule.paused())
                })
        };
        // Somebody may have created, enabled or resumed it.
        if unknown {
            self.host.refresh().await?;
        }
        let rules = self.host.rules.load_full();
        let mut news = false;
        for (lane, project) in survey.seams {
            if !rules.serves(&project) || !self.host.settings.takes(&project) {
                continue;
            }
            news |= self.demand.expect(lane, project);
        }
        let waiting = !survey.deliveries.is_empty();
        self.host.agenda().pairs = survey.deliveries.into_iter().collect();
        if waiting && room > 0 {
            news |= self.take_deliveries(lanes, room).await? > 0;
        }
        if survey.scheduled_in == Some(0) && room > 0 {
            news |= self.claim_scheduled(lanes, room).await? > 0;
        }
        if let Some(soon) = survey.scheduled_in.filter(|ms| *ms > 0) {
            let until = Duration::from_millis(u64::try_from(soon).unwrap_or(0));
            self.nap = self.nap.min(until.max(Duration::from_millis(1)));
        }
        Ok(news)
    }

    /// Answers how many were claimed, and whether there may be more.
    async fn claim_events(
        &mut self,
        lanes: &[Lane],
        room: usize,
        sweep: bool,
    ) -> Result<(usize, bool), StoreError> {
        let seams = self.seams(lanes, room, sweep);
        if seams.is_empty() {
            return Ok((0, false));
        }
        let bytes = self.bytes();
        let number = self.host.ledger().claim_begins();
        let began = Instant::now();
        let lease = self.host.settings.lease;
        let held = self.host.lanes().clone();
        let claimed = self.host.store.claim_events(self.host.id(), &seams, bytes, lease).await;
        let claimed = self.host.sure(claimed)?;
        let drained = self.demand.learn(&seams, &claimed, self.host.settings.batch);
        let (found, more) = (claimed.rows.len(), drained.len() < seams.len());
        self.admit_events(claimed, &held, began, number).await?;
        if sweep {
            let mut ledger = self.host.ledger();
            for seam in drained {
                ledger.swept(seam.lane, &seam.project, number);
            }
        }
        Ok((found, more))
    }

    async fn claim_scheduled(&mut self, lanes: &[Lane], room: usize) -> Result<usize, StoreError> {
        let rules = self.host.rules.load_full();
        let projects: Vec<String> = {
            let ledger = self.host.ledger();
            let room = |project: &&String| ledger.room_of(project, self.host.capacity()) > 0;
            rules.served().filter(|p| self.host.settings.takes(p)).filter(room).cloned().collect()
        };
        let number = self.host.ledger().claim_begins();
        let began = Instant::now();
        let limit = u32::try_from(room.min(self.most())).unwrap_or(u32::MAX);
        let lease = self.host.settings.lease;
        let (id, held) = (self.host.id(), self.host.lanes().clone());
        let bytes = self.bytes();
        let claimed =
            self.host.store.claim_scheduled(id, lanes, &projects, limit, bytes, lease).await;
        let claimed = self.host.sure(claimed)?;
        let found = claimed.rows.len();
        self.admit_events(claimed, &held, began, number).await?;
        Ok(found)
    }

    /// Matches what was claimed with definitions at least as new as the claim.
    async fn admit_events(
        &self,
        claimed: Claimed<ClaimedEvent>,
        held: &Held,
        began: Instant,
        number: u64,
    ) -> Result<(), StoreError> {
        let found = claimed.rows.len();
        self.host.metrics.claim(found, began.elapsed().as_secs_f64());
        if found == 0 {
            self.host.ledger().claim_ends(number);
            return Ok(());
        }
        self.host.metrics.claimed(found as u64);
        self.host.clock.set(claimed.now);
        if let Err(error) = self.host.refresh().await {
            // Nothing may be matched with what may be too old.
            let claims: Vec<_> = claimed.rows.iter().map(|row| &row.claim).collect();
            if let Err(error) = self.host.store.release(&claims).await {
                self.host.faulty("giving claims back", &error);
                self.host.doubt();
            }
            return Err(error);
        }
        self.host.pulse.good();
        let rules = self.host.rules.load_full();
        if self.host.stands_by(&rules).is_some() {
            let claims: Vec<_> = claimed.rows.iter().map(|row| &row.claim).collect();
            return self.leave(&claims).await;
        }
        let lease = Arc::new(Lease::new(began + self.host.settings.lease));
        let batch = Arc::new(Batch::default());
        self.host.ledger().sees(claimed.horizon);
        let mut rows = claimed.rows.into_iter().peekable();
        // Calls begin while the rest is being admitted.
        while rows.peek().is_some() {
            let some: Vec<_> = rows
                .by_ref()
                .take(ADMITTED)
                .map(|row| {
                    let matching = rules.matching(&row.event);
                    (row, matching)
                })
                .collect();
            {
                let mut ledger = self.host.ledger();
                for (row, matching) in some {
                    // A lane lost since, even if it was taken again: the claim is void.
                    if let Some(tenure) = still_held(held, row.event.lane) {
                        let terms = Terms {
                            lease: Arc::clone(&lease),
                            tenure: Arc::clone(tenure),
                            batch: Arc::clone(&batch),
                        };
                        ledger.admit_event(row, matching, &terms, number);
                    }
                }
            }
            self.host.pump();
        }
        batch.complete();
        self.host.ledger().claim_ends(number);
        self.host.pump();
        Ok(())
    }

    async fn claim_deliveries(&mut self, lanes: &[Lane], room: usize) -> Result<usize, StoreError> {
        if room == 0 || !self.host.agenda().take_due() {
            return Ok(0);
        }
        self.take_deliveries(lanes, room).await
    }

    async fn take_deliveries(&mut self, lanes: &[Lane], room: usize) -> Result<usize, StoreError> {
        let rules = self.host.rules.load_full();
        let mut pairs: Vec<_> = self.host.agenda().pairs.iter().cloned().collect();
        pairs.retain(|(project, _)| rules.serves(project) && self.host.settings.takes(project));
        let free = |project: &str, trigger: &str| {
            rules
                .rule(project, trigger)
                .filter(|rule| !rule.paused())
                .map_or(0, |rule| rule.desk.free())
        };
        let (wants, run) = {
            let ledger = self.host.ledger();
            let room_of = |project: &str| ledger.room_of(project, self.host.capacity());
            demand::deliveries(pairs, room.min(self.most()), room_of, free)
        };
        if wants.is_empty() {
            return Ok(0);
        }
        let began = Instant::now();
        let lease = self.host.settings.lease;
        let (id, held) = (self.host.id(), self.host.lanes().clone());
        let bytes = self.bytes();
        let claimed = self.host.store.claim_deliveries(id, lanes, &wants, run, bytes, lease).await;
        let claimed = self.host.sure(claimed)?;
        let found = claimed.rows.len();
        self.host.metrics.claim(found, began.elapsed().as_secs_f64());
        if found == 0 {
            return Ok(0);
        }
        // More of them may be due than were asked for.
        if wants.iter().any(|(_, _, want)| found >= *want as usize) {
            self.host.agenda().look_at(Instant::now());
        }
        self.admit_deliveries(claimed, &held, began).await?;
        Ok(found)
    }

    async fn admit_deliveries(
        &self,
        claimed: Claimed<ClaimedDelivery>,
        held: &Held,
        began: Instant,
    ) -> Result<(), StoreError> {
        self.host.metrics.claimed(claimed.rows.len() as u64);
        self.host.clock.set(claimed.now);
        if let Err(error) = self.host.refresh().await {
            let claims: Vec<_> = claimed.rows.iter().map(|row| &row.claim).collect();
            if let Err(error) = self.host.store.release(&claims).await {
                self.host.faulty("giving claims back", &error);
                self.host.doubt();
            }
            return Err(error);
        }
        self.host.pulse.good();
        let rules = self.host.rules.load_full();
        if self.host.stands_by(&rules).is_some() {
            let claims: Vec<_> = claimed.rows.iter().map(|row| &row.claim).collect();
            return self.leave(&claims).await;
        }
        let lease = Arc::new(Lease::new(began + self.host.settings.lease));
        let batch = Arc::new(Batch::default());
        let mut back = Vec::new();
        {
            let mut ledger = self.host.ledger();
            for row in claimed.rows {
                let rule = rules.rule(&row.event.project, &row.trigger);
                // Paused or deleted since.
                match (rule.filter(|rule| !rule.paused()), still_held(held, row.event.lane)) {
                    (Some(rule), Some(tenure)) => {
                        let terms = Terms {
                            lease: Arc::clone(&lease),
                            tenure: Arc::clone(tenure),
                            batch: Arc::clone(&batch),
                        };
                        let deaths = self.host.settings.deaths;
                        ledger.admit_delivery(row, Arc::clone(rule), &terms, deaths);
                    }
                    (None, Some(_)) => back.push(row.claim),
                    (_, None) => {}
                }
            }
        }
        batch.complete();
        self.host.pump();
        if !back.is_empty() {
            let given = self.host.store.release(&back.iter().collect::<Vec<_>>()).await;
            self.host.sure(given)?;
        }
        Ok(())
    }

    /// Gives claims back to whoever can deliver to every trigger.
    async fn leave(&self, claims: &[&Claim]) -> Result<(), StoreError> {
        self.host.to_keep.notify_one();
        self.host.store.release(claims).await
    }

    /// What to claim of events.
    fn seams(&mut self, lanes: &[Lane], room: usize, sweep: bool) -> Vec<Seam> {
        let rules = self.host.rules.load_full();
        self.demand.forget_old(|project| rules.serves(project));
        // Where others wait for the next claim, this one is shorter.
        let alone = self.demand.projects().nth(1).is_none();
        let most = if alone { self.most() } else { self.most().div_ceil(2) };
        let batch = room.min(most);
        let ledger = self.host.ledger();
        let capacity = self.host.capacity();
        let room = |project: &str| ledger.room_of(project, capacity);
        let mark = |lane, project: &str| if sweep { 0 } else { ledger.mark(lane, project) };
        self.demand.seams(lanes, batch, room, mark)
    }

    /// Rows that one more claim may bring.
    fn most(&self) -> usize {
        self.host.store.strides().claim.min(self.host.settings.batch as usize)
    }

    /// Payloads that one more claim may bring.
    fn bytes(&self) -> u64 {
        HELD_BYTES.saturating_sub(self.host.ledger().bytes()).min(CLAIM_BYTES)
    }

    /// Until something may have happened.
    async fn sleep(&mut self) {
        let host = Arc::clone(&self.host);
        let due = host.agenda().next();
        let until =
            due.map_or(self.nap, |due| due.saturating_duration_since(Instant::now()).min(self.nap));
        let slept = select! {
            () = host.soft.cancelled() => false,
            () = host.to_claim.notified() => false,
            () = async {
                if host.own_lanes().is_empty() || host.ledger().len() >= host.capacity() {
                    sleep(until).await;
                } else {
                    host.store.wait_for_events(until).await;
                }
            } => true,
        };
        let longest = host.store.longest_sleep(host.settings.poll);
        self.nap = if slept { (self.nap * 2).min(longest) } else { SHORTEST_NAP };
    }
}
