//! How long a call has been on a processor, and whether that was too long.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The time that a call's future spends running rather than waiting. It is
/// taken by the wall clock, so what the machine does meanwhile counts as well.
#[derive(Debug, Clone)]
pub(super) struct Meter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    made: Instant,
    /// When the guest was last let run, in nanoseconds from the start.
    since: AtomicU64,
    /// Nanoseconds that it ran before.
    spent: AtomicU64,
    used_up: AtomicBool,
}

impl Meter {
    /// Nothing spent.
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            made: Instant::now(),
            since: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            used_up: AtomicBool::new(false),
        }))
    }

    /// Begins anew, for the next call.
    pub(super) fn begin(&self) {
        self.0.spent.store(0, Ordering::Relaxed);
        self.0.used_up.store(false, Ordering::Relaxed);
    }

    /// Runs a future to its end and adds up what it takes.
    pub(super) async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            let since = self.now();
            self.0.since.store(since, Ordering::Relaxed);
            let poll = future.as_mut().poll(context);
            self.0.spent.fetch_add(self.now() - since, Ordering::Relaxed);
            poll
        })
        .await
    }

    /// What was spent, once the future doesn't run.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.0.spent.load(Ordering::Relaxed))
    }

    /// Whether a guest that runs just now has spent more than this; remembers
    /// that it has.
    pub(super) fn is_used_up(&self, budget: Duration) -> bool {
        let running = self.now().saturating_sub(self.0.since.load(Ordering::Relaxed));
        let over = self.spent() + Duration::from_nanos(running) > budget;
        if over {
            self.0.used_up.store(true, Ordering::Relaxed);
        }
        over
    }

    /// Whether the guest was stopped because of it.
    pub(super) fn stopped(&self) -> bool {
        self.0.used_up.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.made.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_is_not_running() {
        let meter = Meter::new();
        meter.run(tokio::time::sleep(Duration::from_millis(200))).await;
        assert!(meter.spent() < Duration::from_millis(150), "{meter:?}");
        assert!(!meter.stopped());
    }

    #[tokio::test]
    async fn what_is_used_up_is_seen_from_within_and_forgotten_by_the_next_call() {
        let meter = Meter::new();
        let budget = Duration::from_millis(20);
        let within = meter.clone();
        meter
            .run(async {
                while !within.is_used_up(budget) {
                    std::hint::spin_loop();
                }
            })
            .await;
        assert!(meter.stopped() && meter.spent() > budget, "{meter:?}");
        meter.begin();
        assert!(!meter.stopped() && meter.spent().is_zero(), "{meter:?}");
    }
}
