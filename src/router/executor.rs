//! Makes the calls: each ends in exactly one [`Ending`].

use std::{
    pin::{Pin, pin},
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::poll;
use tokio::{select, sync::OwnedSemaphorePermit, time::sleep};

use uuid::Uuid;

use super::{
    ending::{Ending, Summary},
    host::Host,
    ledger::{ChainKey, Job, Ledger, PATIENCE, Start},
    pending::View,
};
use crate::{
    model::{
        attempt::Attempt,
        outcome::{Outcome, classify},
        retry::backoff_ms,
    },
    store::{Claim, Held, SpillCause},
    targets::{Report, Request},
};

impl Host {
    /// Sees to it that what is to be started is, and tells the settler what has
    /// ended.
    pub(super) fn pump(self: &Arc<Self>) {
        self.pump_from(self.ledger());
    }

    fn pump_from(self: &Arc<Self>, mut ledger: MutexGuard<'_, Ledger>) {
        self.pulse.holds(ledger.len());
        let (news, starts) = (ledger.has_news(), ledger.starter(self.starters));
        drop(ledger);
        if news {
            self.to_settle.notify_one();
        }
        if starts {
            self.tasks.spawn(Arc::clone(self).start_all());
        }
    }

    /// Starts one after another. Most calls end without waiting for anything,
    /// here and now, in memory that the last one has just left; those that
    /// don't go on in tasks of their own.
    async fn start_all(self: Arc<Self>) {
        let starter = Starter(&self);
        let mut turn = 0_usize;
        while let Some(start) = starter.next() {
            let host = Arc::clone(&self);
            let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = match start {
                Start::Chain(chain) => Box::pin(host.run_chain(chain)),
                Start::Free(job) => Box::pin(async move {
                    host.run(&job, &AtomicBool::new(false)).await;
                }),
            };
            if poll!(work.as_mut()).is_pending() {
                self.tasks.spawn(work);
            }
            turn += 1;
            if turn.is_multiple_of(STARTS) {
                tokio::task::yield_now().await;
            } else if turn == 1 {
                // There may be work for another one beside this.
                self.pump();
            }
        }
    }

    async fn run_chain(self: Arc<Self>, chain: ChainKey) {
        loop {
            let next = self.ledger().next(chain);
            let Some(job) = next else { return };
            let begun = AtomicBool::new(false);
            let mut call = pin!(self.run(&job, &begun));
            if poll!(call.as_mut()).is_ready() {
                continue;
            }
            let mut slow = false;
            loop {
                select! {
                    biased;
                    () = &mut call => break,
                    () = sleep(PATIENCE) => {}
                }
                // What waits behind a slow call goes on by itself, so that the
                // events' other triggers don't wait for it. Waiting for its
                // turn to begin doesn't make a call slow.
                if slow && self.ledger().waits(chain) {
                    self.ledger().spill_waiting(chain);
                    self.pump();
                }
                slow = begun.load(Ordering::Relaxed);
            }
        }
    }

    async fn run(self: &Arc<Self>, job: &Job, begun: &AtomicBool) {
        let ending = match self.attempt(job, begun).await {
            Ok(ending) => ending,
            // A delivery that can't run now is in the queue already.
            Err(_) if job.delivery.is_some() => Ending::Released,
            Err(cause) => Ending::Spilled(cause),
        };
        let mut ledger = self.ledger();
        ledger.ended(job, ending);
        self.pump_from(ledger);
    }

    /// Makes a call when its turn comes, or answers why it may not for now.
    async fn attempt(
        self: &Arc<Self>,
        job: &Job,
        begun: &AtomicBool,
    ) -> Result<Ending, SpillCause> {
        if let Some(claim) = &job.alone {
            self.turn_of(job).await?;
            return Ok(self.call_alone(job, claim, begun).await);
        }
        let _permit = self.permit_for(job).await.ok_or(SpillCause::Limit)?;
        self.turn_of(job).await?;
        Ok(self.call(job, begun).await)
    }

    /// Waits until the trigger's rate allows one more call, unless that takes
    /// too long or the trigger is paused.
    async fn turn_of(&self, job: &Job) -> Result<(), SpillCause> {
        let desk = &job.rule.desk;
        if desk.is_paused() {
            return Err(SpillCause::Paused);
        }
        let patience = if job.delivery.is_some() { FORBEARANCE } else { PATIENCE };
        match desk.turn(patience) {
            Ok(Duration::ZERO) => Ok(()),
            Ok(wait) => {
                select! {
                    () = sleep(wait) => {}
                    () = self.soft.cancelled() => return Err(SpillCause::Limit),
                }
                if desk.is_paused() { Err(SpillCause::Paused) } else { Ok(()) }
            }
            Err(wait) => {
                if job.delivery.is_some() {
                    let millis = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                    self.delivery_due(&job.event.project, job.rule.name(), millis);
                }
                Err(SpillCause::Limit)
            }
        }
    }

    /// Waits while the trigger makes as many calls as it may at once: a delivery
    /// as long as it takes, an event as long as the trigger's calls are quick,
    /// so that its turn comes soon.
    async fn permit_for(&self, job: &Job) -> Option<OwnedSemaphorePermit> {
        let permits = job.rule.desk.permits();
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            return Some(permit);
        }
        let acquired = permits.acquire_owned();
        if job.delivery.is_some() {
            return acquired.await.ok();
        }
        let mut acquired = pin!(acquired);
        loop {
            select! {
                biased;
                permit = &mut acquired => return permit.ok(),
                () = sleep(PATIENCE) => {}
            }
            if !job.rule.desk.pace.is_quick() {
                return None;
            }
        }
    }

    /// Makes a call that may kill the host while nothing else runs, and lets the
    /// database know. It takes no permit: those who hold them may be waiting
    /// for it.
    async fn call_alone(self: &Arc<Self>, job: &Job, claim: &Claim, begun: &AtomicBool) -> Ending {
        // A host that dies while it compiles says nothing against the event.
        job.rule.target.warm().await;
        let solitude = self.alone.solitude().await;
        if self.ledger().is_closed() {
            return Ending::Released;
        }
        begun.store(true, Ordering::Relaxed);
        let ending = match self.store.run_alone(self.id(), Some(claim)).await {
            Ok(Held::Yes | Held::Busy) => loop {
                if let Some(ending) = self.try_once(job).await {
                    break ending;
                }
            },
            Ok(Held::Lost) => Ending::Released,
            Err(error) => {
                self.faulty("noting a call that runs alone", &error);
                Ending::Released
            }
        };
        if solitude.is_last()
            && let Err(error) = self.store.run_alone(self.id(), None).await
        {
            self.faulty("noting that nothing runs alone", &error);
        }
        ending
    }

    async fn call(self: &Arc<Self>, job: &Job, begun: &AtomicBool) -> Ending {
        let mut again = job.again;
        loop {
            let turn = if job.rule.trigger.spec.grants.state {
                job.rule.desk.pending.turn(again).await
            } else {
                None
            };
            // Closed only when the host is gone.
            let Ok(_share) = job.rule.desk.share.acquire().await else { return Ending::Released };
            let Ok(_slot) = self.calls.acquire().await else { return Ending::Released };
            let _company = self.alone.company().await;
            if self.ledger().is_closed() {
                return Ending::Released;
            }
            begun.store(true, Ordering::Relaxed);
            if let Some(ending) = self.try_once(job).await {
                return ending;
            }
            again = true;
            drop(turn);
        }
    }

    /// Makes the call, or answers nothing if others have changed state that it
    /// read: it is to be made again.
    async fn try_once(self: &Arc<Self>, job: &Job) -> Option<Ending> {
        let started_at = self.clock.now();
        let Some(report) = self.deliver(job).await else { return Some(Ending::Released) };
        if let Ok(effects) = &report.result
            && !job.rule.desk.pending.publish(job.unit, &effects.state)
        {
            self.metrics.conflicts(1);
            return None;
        }
        Some(self.ending(job, report, started_at))
    }

    /// The delivery itself, or nothing if the claim ended first.
    async fn deliver(&self, job: &Job) -> Option<Report> {
        let left = job.terms.lease.until().checked_duration_since(Instant::now())?;
        let spec = &job.rule.trigger.spec;
        let delivery = job.delivery.map_or(0, |delivery| delivery.generation);
        let message_id = job.event.message_id;
        let request = Request {
            event: Arc::clone(&job.event),
            attempt: number(job),
            max_attempts: spec.retry.max_attempts,
            // Leases are renewed while calls run; a lost one ends the call.
            deadline: spec.limits.deadline.get(),
            idempotency_key: idempotency_key(message_id, job.rule.name(), delivery),
            now: self.clock.now(),
            state: Arc::new(View {
                store: Arc::clone(&self.store) as _,
                rule: Arc::clone(&job.rule),
            }),
        };
        debug_assert!(!left.is_zero());
        select! {
            biased;
            report = job.target.deliver(request) => Some(report),
            () = job.terms.tenure.over.cancelled() => None,
            () = self.hard.cancelled() => None,
            () = job.terms.lease.ended() => None,
        }
    }

    fn ending(self: &Arc<Self>, job: &Job, report: Report, started_at: i64) -> Ending {
        let rule = &job.rule;
        let number = number(job);
        let retry = &rule.trigger.spec.retry;
        let outcome = classify(report.result, number, retry, fastrand::f64());
        // Kept from being a dead letter, it is as if this attempt had not been.
        let (outcome, kept) = match outcome {
            Outcome::Dead { why } if self.pauses(job, &why) => {
                let after_ms = backoff_ms(retry, number, fastrand::f64());
                (Outcome::Retry { after_ms, why }, true)
            }
            other => (other, false),
        };
        let summary = Summary {
            attempt: number,
            digest: report.digest.clone(),
            duration_us: report.usage.duration_us,
        };
        let failure = match &outcome {
            Outcome::Retry { why, .. } | Outcome::Dead { why } => Some(why.clone()),
            Outcome::Done(_) | Outcome::Released => None,
        };
        let keep = match &outcome {
            Outcome::Done(_) => rule.keeps_success(),
            Outcome::Retry { .. } | Outcome::Dead { .. } => true,
            Outcome::Released => false,
        };
        match &outcome {
            Outcome::Done(_) => rule.desk.streak.over(),
            Outcome::Retry { why, .. } if why.kind.burns_attempt() => {
                rule.desk.streak.failed(job.event.message_id);
            }
            _ => {}
        }
        let name = failure.as_ref().map_or("done", |why| why.kind.as_str());
        let seconds = |us: u64| std::time::Duration::from_micros(us).as_secs_f64();
        rule.desk.pace.took(report.usage.duration_us);
        rule.desk.metrics.call(
            name,
            seconds(report.usage.duration_us),
            seconds(report.usage.cpu_us),
        );
        let attempt = keep.then(|| Attempt {
            message_id: job.event.message_id,
            event_pk: job.event.pk,
            project: rule.trigger.project.clone(),
            trigger: rule.trigger.name.clone(),
            number,
            digest: report.digest.as_deref().map(str::to_owned),
            started_at,
            usage: report.usage,
            failure: failure.as_ref().map(|why| why.kind),
            error: failure.as_ref().map(|why| why.message.clone()),
            logs: report.logs,
        });
        let before = job.delivery.map_or(0, |delivery| delivery.attempts);
        let burnt = |burns: bool| before + u32::from(burns);
        match outcome {
            Outcome::Done(effects) => Ending::Done { effects, attempt, summary },
            Outcome::Retry { after_ms, why } => {
                self.metrics.retried(why.kind.as_str());
                let attempts = burnt(why.kind.burns_attempt() && !kept);
                Ending::Failed {
                    failure: why,
                    attempts,
                    after_ms: Some(after_ms),
                    attempt,
                    summary,
                }
            }
            Outcome::Dead { why } => {
                self.metrics.dead(why.kind.as_str());
                let attempts = burnt(why.kind.burns_attempt());
                Ending::Failed { failure: why, attempts, after_ms: None, attempt, summary }
            }
            Outcome::Released => Ending::Released,
        }
    }
}

/// Starts until others get their turn.
const STARTS: usize = 16;

/// One of the few that start what is to be started; counted by the ledger.
struct Starter<'a>(&'a Arc<Host>);

impl Starter<'_> {
    fn next(&self) -> Option<Start> {
        self.0.ledger().start()
    }
}

impl Drop for Starter<'_> {
    fn drop(&mut self) {
        self.0.ledger().starter_ends();
        // A start that came in between, or was left when this one broke off.
        self.0.pump();
    }
}

/// How long a delivery that is held waits for its turn, where its trigger has
/// a rate.
const FORBEARANCE: Duration = Duration::from_secs(5);

/// The same at every attempt of a delivery; another one at each replay.
fn idempotency_key(message_id: Uuid, trigger: &str, replay: u32) -> String {
    let mut id = [0; uuid::fmt::Hyphenated::LENGTH];
    let id = message_id.hyphenated().encode_lower(&mut id);
    match replay {
        0 => [id, "/", trigger].concat(),
        replay => format!("{id}/{trigger}/{replay}"),
    }
}

/// 1 at the first attempt.
fn number(job: &Job) -> u32 {
    job.delivery.map_or(0, |delivery| delivery.attempts) + 1
}
