//! What a host remembers of a trigger across its revisions.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{limiter::Limiter, pending::Pending};
use crate::{
    metrics::TriggerMetrics,
    model::{trigger::Trigger, units::Rate},
};

/// How far ahead turns of a trigger with a rate are given to deliveries.
const AHEAD: Duration = Duration::from_secs(1);

pub(super) struct Desk {
    /// Distinct for each trigger of this process.
    pub(super) id: u64,
    room: Mutex<Room>,
    /// Calls that its project may make at once.
    pub(super) share: Arc<Semaphore>,
    /// Turns of calls, where the trigger has a rate.
    turns: Limiter,
    /// Lines of deliveries held for it, waiting or running.
    pub(super) deliveries: AtomicU32,
    pub(super) pending: Pending,
    pub(super) pace: Pace,
    pub(super) streak: Streak,
    pub(super) metrics: Arc<TriggerMetrics>,
    /// Successes that are kept.
    pub(super) records: Limiter,
    paused: AtomicBool,
}

/// What the trigger's document allows.
struct Room {
    concurrency: u32,
    /// Calls that may run at once; made anew when the limit changes.
    permits: Arc<Semaphore>,
    rate: Option<Rate>,
}

impl Desk {
    pub(super) fn new(metrics: Arc<TriggerMetrics>, share: Arc<Semaphore>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            room: Mutex::new(Room {
                concurrency: 0,
                permits: Arc::new(Semaphore::new(0)),
                rate: None,
            }),
            share,
            turns: Limiter::default(),
            deliveries: AtomicU32::new(0),
            pending: Pending::default(),
            pace: Pace::default(),
            streak: Streak::default(),
            metrics,
            records: Limiter::default(),
            paused: AtomicBool::new(false),
        }
    }

    /// Takes in a new revision of the trigger.
    pub(super) fn revise(&self, trigger: &Trigger) {
        self.set_paused(trigger.paused.is_some());
        self.streak.over();
        let limits = &trigger.spec.limits;
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.rate = limits.rate;
        if room.concurrency != limits.concurrency {
            // Calls that run keep their permits of the old one: for a moment
            // there may be more of them than either limit says.
            room.concurrency = limits.concurrency;
            room.permits = Arc::new(Semaphore::new(limits.concurrency as usize));
        }
    }

    pub(super) fn permits(&self) -> Arc<Semaphore> {
        Arc::clone(&self.room.lock().unwrap_or_else(PoisonError::into_inner).permits)
    }

    /// Takes a turn that comes within `patience`, and answers how long until
    /// then; or takes none, and answers when there may be one.
    pub(super) fn turn(&self, patience: Duration) -> Result<Duration, Duration> {
        let rate = self.room.lock().unwrap_or_else(PoisonError::into_inner).rate;
        rate.map_or(Ok(Duration::ZERO), |rate| {
            self.turns.reserve(rate.each_second(), rate.burst(), patience)
        })
    }

    /// Lines of deliveries that there is room for.
    pub(super) fn free(&self) -> u32 {
        let (limit, rate) = {
            let room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            (room.concurrency, room.rate)
        };
        let free = limit.saturating_mul(2).saturating_sub(self.deliveries.load(Ordering::Relaxed));
        match rate {
            Some(rate) => free.min(self.turns.within(rate.each_second(), rate.burst(), AHEAD)),
            None => free,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Answers whether that is new.
    pub(super) fn set_paused(&self, paused: bool) -> bool {
        self.paused.swap(paused, Ordering::Relaxed) != paused
    }
}

/// How long a trigger's calls take.
pub(super) struct Pace {
    /// A moving average, in microseconds.
    average: AtomicU64,
    last: Mutex<Instant>,
}

/// Calls this quick leave no room to be stuck behind them.
const QUICK: Duration = Duration::from_millis(20);

/// Without a call that ended for so long, they aren't quick any more.
const SILENCE: Duration = Duration::from_millis(500);

impl Default for Pace {
    fn default() -> Self {
        Self { average: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }
}

impl Pace {
    /// Notes what a call took.
    pub(super) fn took(&self, micros: u64) {
        // Racing calls may lose one another's share; it is an average.
        let average = self.average.load(Ordering::Relaxed);
        self.average.store((average * 15 + micros) / 16, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether calls end one soon after another.
    pub(super) fn is_quick(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let average = Duration::from_micros(self.average.load(Ordering::Relaxed));
        average < QUICK && last.elapsed() < SILENCE
    }
}

/// Failed calls of a trigger since one ended well.
#[derive(Default)]
pub(super) struct Streak {
    length: AtomicU32,
    events: Mutex<Vec<Uuid>>,
}

/// One event that fails again and again says nothing about the trigger: so
/// many have to.
const WITNESSES: usize = 3;

impl Streak {
    /// A call ended well.
    pub(super) fn over(&self) {
        if self.length.swap(0, Ordering::Relaxed) > 0 {
            self.events.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// A call for this event failed.
    pub(super) fn failed(&self, event: Uuid) {
        self.length.fetch_add(1, Ordering::Relaxed);
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < WITNESSES && !events.contains(&event) {
            events.push(event);
        }
    }

    /// Whether it has `limit` calls or more; 0 is no limit.
    pub(super) fn reaches(&self, limit: u32) -> bool {
        let witnesses = WITNESSES.min(limit as usize);
        limit > 0
            && self.length() >= limit
            && self.events.lock().unwrap_or_else(PoisonError::into_inner).len() >= witnesses
    }

    /// Calls in it.
    pub(super) fn length(&self) -> u32 {
        self.length.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_needs_calls_and_events() {
        let streak = Streak::default();
        let events: Vec<Uuid> = (0..10).map(|_| Uuid::new_v4()).collect();
        (0..100).for_each(|_| streak.failed(events[0]));
        assert!(!streak.reaches(5), "one event alone");
        streak.failed(events[1]);
        assert!(!streak.reaches(5));
        streak.failed(events[2]);
        assert!(streak.reaches(5) && !streak.reaches(0) && !streak.reaches(103));
        streak.over();
        assert!(!streak.reaches(1));
        streak.failed(events[0]);
        assert!(streak.reaches(1) && !streak.reaches(2));
    }
}
