//! Claims rows when there is room for them, and sleeps when there is nothing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{select, time::sleep};

use super::{
    host::{Holding, Host},
    lease::{Lease, Tenure},
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

/// How long a project is remembered after it last had an event.
const MEMORY: Duration = Duration::from_mins(1);

/// Seams in one claim at the most.
const MAX_SEAMS: usize = 512;

/// Rows asked of a seam that had none the last time.
const PROBE: u32 = 16;

/// Claims until the host is to stop.
pub(super) async fn run(host: Arc<Host>) {
    let mut poller = Poller {
        host,
        demand: HashMap::new(),
        seen: BTreeMap::new(),
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
    /// How many rows each seam is expected to have.
    demand: HashMap<(Lane, String), u32>,
    /// Projects that had events lately, and when.
    seen: BTreeMap<String, Instant>,
    /// When marks were last ignored.
    swept: Option<Instant>,
    nap: Duration,
}

impl Poller {
    /// Claims once of everything. Answers whether there may be more at once.
    async fn round(&mut self) -> Result<bool, StoreError> {
        let lanes = self.host.own_lanes();
        let room = self.host.capacity().saturating_sub(self.host.ledger().len());
        if lanes.is_empty() || room == 0 {
            return Ok(false);
        }
        let sweep = self.swept.is_none_or(|at| at.elapsed() > SWEEP);
        let mut found = self.claim_events(&lanes, room, sweep).await?;
        found += self.claim_deliveries(&lanes, room.saturating_sub(found)).await?;
        if found > 0 && !sweep {
            return Ok(true);
        }
        if sweep {
            self.swept = Some(Instant::now());
        }
        let news = self.look_around(&lanes, room.saturating_sub(found)).await?;
        Ok(found > 0 || news)
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
            news |= self.seen.insert(project.clone(), Instant::now()).is_none();
            self.demand.entry((lane, project)).or_insert(PROBE);
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

    async fn claim_events(
        &mut self,
        lanes: &[Lane],
        room: usize,
        sweep: bool,
    ) -> Result<usize, StoreError> {
        let seams = self.seams(lanes, room, sweep);
        if seams.is_empty() {
            return Ok(0);
        }
        let held = self.host.lanes().clone();
        let number = self.host.ledger().claim_begins();
        let began = Instant::now();
        let lease = self.host.settings.lease;
        let claimed = self.host.store.claim_events(self.host.id, &seams, lease).await?;
        let drained = self.learn(&seams, &claimed);
        let found = claimed.rows.len();
        self.admit_events(claimed, began, number, &held).await?;
        if sweep {
            let mut ledger = self.host.ledger();
            for seam in drained {
                ledger.swept(seam.lane, &seam.project, number);
            }
        }
        Ok(found)
    }

    async fn claim_scheduled(&mut self, lanes: &[Lane], room: usize) -> Result<usize, StoreError> {
        let rules = self.host.rules.load_full();
        let projects: Vec<String> =
            rules.served().filter(|p| self.host.settings.takes(p)).cloned().collect();
        let held = self.host.lanes().clone();
        let number = self.host.ledger().claim_begins();
        let began = Instant::now();
        let limit = u32::try_from(room).unwrap_or(u32::MAX).min(self.host.settings.batch);
        let lease = self.host.settings.lease;
        let claimed =
            self.host.store.claim_scheduled(self.host.id, lanes, &projects, limit, lease).await?;
        let found = claimed.rows.len();
        self.admit_events(claimed, began, number, &held).await?;
        Ok(found)
    }

    /// Matches what was claimed with definitions at least as new as the claim.
    async fn admit_events(
        &self,
        claimed: Claimed<ClaimedEvent>,
        began: Instant,
        number: u64,
        held: &BTreeMap<Lane, Holding>,
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
            }
            return Err(error);
        }
        self.host.pulse.good();
        let rules = self.host.rules.load_full();
        let lease = Arc::new(Lease::new(began + self.host.settings.lease));
        let matched: Vec<_> = claimed
            .rows
            .into_iter()
            .map(|row| {
                let matching = rules.matching(&row.event);
                (row, matching)
            })
            .collect();
        let lanes = self.host.lanes().clone();
        let mut back = Vec::new();
        {
            let mut ledger = self.host.ledger();
            for (row, matching) in matched {
                match still_held(held, &lanes, row.event.lane) {
                    Some(tenure) => ledger.admit_event(row, matching, &lease, tenure, number),
                    None => back.push(row.claim),
                }
            }
            ledger.claim_ends(number);
        }
        self.host.pump();
        self.give_back(&back).await
    }

    async fn claim_deliveries(&mut self, lanes: &[Lane], room: usize) -> Result<usize, StoreError> {
        if room == 0 || !self.host.agenda().take_due() {
            return Ok(0);
        }
        self.take_deliveries(lanes, room).await
    }

    async fn take_deliveries(&mut self, lanes: &[Lane], room: usize) -> Result<usize, StoreError> {
        let rules = self.host.rules.load_full();
        let share = u32::try_from(room).unwrap_or(u32::MAX).min(self.host.settings.batch);
        let wants: Vec<(String, String, u32)> = self
            .host
            .agenda()
            .pairs
            .iter()
            .filter(|(project, _)| rules.serves(project) && self.host.settings.takes(project))
            .filter_map(|(project, trigger)| {
                let rule = rules.rule(project, trigger).filter(|rule| !rule.paused())?;
                let free = rule.desk.free().min(share);
                (free > 0).then(|| (project.clone(), trigger.clone(), free))
            })
            .collect();
        if wants.is_empty() {
            return Ok(0);
        }
        let held = self.host.lanes().clone();
        let began = Instant::now();
        let lease = self.host.settings.lease;
        let claimed = self.host.store.claim_deliveries(self.host.id, lanes, &wants, lease).await?;
        let found = claimed.rows.len();
        self.host.metrics.claim(found, began.elapsed().as_secs_f64());
        if found == 0 {
            return Ok(0);
        }
        // More of them may be due than were asked for.
        if wants.iter().any(|(_, _, want)| found >= *want as usize) {
            self.host.agenda().look_at(Instant::now());
        }
        self.admit_deliveries(claimed, began, &held).await?;
        Ok(found)
    }

    async fn admit_deliveries(
        &self,
        claimed: Claimed<ClaimedDelivery>,
        began: Instant,
        held: &BTreeMap<Lane, Holding>,
    ) -> Result<(), StoreError> {
        self.host.metrics.claimed(claimed.rows.len() as u64);
        self.host.clock.set(claimed.now);
        if let Err(error) = self.host.refresh().await {
            let claims: Vec<_> = claimed.rows.iter().map(|row| &row.claim).collect();
            if let Err(error) = self.host.store.release(&claims).await {
                self.host.faulty("giving claims back", &error);
            }
            return Err(error);
        }
        self.host.pulse.good();
        let rules = self.host.rules.load_full();
        let lease = Arc::new(Lease::new(began + self.host.settings.lease));
        let lanes = self.host.lanes().clone();
        let mut back = Vec::new();
        {
            let mut ledger = self.host.ledger();
            for row in claimed.rows {
                let rule = rules.rule(&row.event.project, &row.trigger);
                // Paused or deleted since.
                let rule = rule.filter(|rule| !rule.paused());
                match rule.zip(still_held(held, &lanes, row.event.lane)) {
                    Some((rule, tenure)) => {
                        ledger.admit_delivery(row, Arc::clone(rule), &lease, tenure);
                    }
                    None => back.push(row.claim),
                }
            }
        }
        self.host.pump();
        self.give_back(&back).await
    }

    async fn give_back(&self, claims: &[Claim]) -> Result<(), StoreError> {
        if claims.is_empty() {
            return Ok(());
        }
        self.host.store.release(&claims.iter().collect::<Vec<_>>()).await
    }

    /// What to claim: every project that had events lately in every lane, each
    /// project an equal part of the room, each lane what it is expected to have.
    fn seams(&mut self, lanes: &[Lane], room: usize, sweep: bool) -> Vec<Seam> {
        let rules = self.host.rules.load_full();
        self.seen.retain(|project, at| at.elapsed() < MEMORY && rules.serves(project));
        let seen = &self.seen;
        self.demand.retain(|(_, project), _| seen.contains_key(project));
        if self.seen.is_empty() {
            return Vec::new();
        }
        let ledger = self.host.ledger();
        let batch = room.min(self.host.settings.batch as usize);
        let mut left = batch;
        let mut projects = self.seen.len();
        let mut seams = Vec::new();
        // Those that want least first: what they leave goes to the others.
        let mut wants: Vec<(usize, &String)> = self
            .seen
            .keys()
            .map(|project| {
                let want = lanes.iter().map(|lane| self.want(*lane, project) as usize).sum();
                (want, project)
            })
            .collect();
        wants.sort_unstable();
        for (want, project) in wants {
            let part = left / projects.max(1);
            projects -= 1;
            let part = part.max(1).min(left);
            let mut given = 0;
            for lane in lanes {
                if given >= part || seams.len() >= MAX_SEAMS {
                    break;
                }
                let wish = self.want(*lane, project) as usize;
                // Scaled down so that the last lane gets its share too.
                let scaled = if want > part { (wish * part / want).max(1) } else { wish };
                let limit = scaled.min(part - given);
                given += limit;
                let above = if sweep { 0 } else { ledger.mark(*lane, project) };
                seams.push(Seam {
                    lane: *lane,
                    project: project.clone(),
                    above,
                    limit: u32::try_from(limit).unwrap_or(u32::MAX),
                });
            }
            left -= given.min(left);
        }
        seams
    }

    fn want(&self, lane: Lane, project: &str) -> u32 {
        self.demand.get(&(lane, project.to_owned())).copied().unwrap_or(PROBE)
    }

    /// A seam that gave all that was asked has more; one that didn't has none.
    /// Answers the latter.
    fn learn<'a>(&mut self, seams: &'a [Seam], claimed: &Claimed<ClaimedEvent>) -> Vec<&'a Seam> {
        let mut drained = Vec::new();
        let mut got: HashMap<(Lane, &str), u32> = HashMap::new();
        for row in &claimed.rows {
            *got.entry((row.event.lane, &*row.event.project)).or_default() += 1;
        }
        let most = self.host.settings.batch;
        for seam in seams {
            let got = got.get(&(seam.lane, &*seam.project)).copied().unwrap_or(0);
            if got < seam.limit {
                drained.push(seam);
            }
            let want = if got >= seam.limit {
                seam.limit.max(self.want(seam.lane, &seam.project)).saturating_mul(4).min(most)
            } else {
                (got * 2).max(PROBE)
            };
            self.demand.insert((seam.lane, seam.project.clone()), want);
            if got > 0 {
                self.seen.insert(seam.project.clone(), Instant::now());
            }
        }
        drained
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
        self.nap = if slept { (self.nap * 2).min(host.settings.poll) } else { SHORTEST_NAP };
    }
}

/// The tenure of a lane, if it is the one under which a claim was made. A lane
/// that was lost meanwhile, and taken again, voids the claim.
fn still_held<'a>(
    then: &BTreeMap<Lane, Holding>,
    now: &'a BTreeMap<Lane, Holding>,
    lane: Lane,
) -> Option<&'a Arc<Tenure>> {
    let tenure = &now.get(&lane)?.tenure;
    then.get(&lane).filter(|held| Arc::ptr_eq(&held.tenure, tenure)).map(|_| tenure)
}
