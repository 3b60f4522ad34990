//! Rates: who may go, and when.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Lets so many a second through, and a burst at once.
///
/// The generic cell rate algorithm (ITU-T I.371): one point in time says all,
/// that at which the burst will be whole again.
#[derive(Debug, Default)]
pub(super) struct Limiter(Mutex<Option<Instant>>);

impl Limiter {
    /// Takes a turn if one is free now.
    pub(super) fn take(&self, each_second: f64, burst: u32) -> bool {
        self.reserve(each_second, burst, Duration::ZERO).is_ok()
    }

    /// Takes the next turn if it comes within `patience`, and answers how long
    /// until then. Otherwise takes none, and answers how long until one is free.
    pub(super) fn reserve(
        &self,
        each_second: f64,
        burst: u32,
        patience: Duration,
    ) -> Result<Duration, Duration> {
        let now = Instant::now();
        let mut whole = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = whole.map_or(now, |whole| whole.max(now));
        let (interval, slack) = spans(each_second, burst);
        let wait = (from - now).saturating_sub(slack);
        if wait > patience {
            return Err(wait);
        }
        *whole = Some(from + interval);
        Ok(wait)
    }

    /// Turns that come within this time.
    pub(super) fn within(&self, each_second: f64, burst: u32, time: Duration) -> u32 {
        let now = Instant::now();
        let whole = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = whole.map_or(Duration::ZERO, |whole| whole.saturating_duration_since(now));
        let (interval, slack) = spans(each_second, burst);
        match (time + slack).checked_sub(taken) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates"
            )]
            Some(left) => (left.as_secs_f64() / interval.as_secs_f64()) as u32 + 1,
            None => 0,
        }
    }
}

/// Between two turns, and how much earlier than that a burst may be.
fn spans(each_second: f64, burst: u32) -> (Duration, Duration) {
    let interval = Duration::try_from_secs_f64(1.0 / each_second).unwrap_or(Duration::MAX / 4);
    (interval, interval.saturating_mul(burst.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_burst_and_then_the_rate() {
        let limiter = Limiter::default();
        assert!((0..10).all(|_| limiter.take(0.001, 10)));
        assert!(!limiter.take(0.001, 10));
        assert_eq!(limiter.within(0.001, 10, Duration::ZERO), 0);
        let first = limiter.reserve(0.001, 10, HOUR).expect("within an hour");
        let second = limiter.reserve(0.001, 10, HOUR).expect("within an hour");
        let apart = second.abs_diff(first).as_millis();
        assert!((999_000..=1_000_000).contains(&apart), "{apart}");
        let far = limiter.reserve(0.001, 10, Duration::from_secs(1)).expect_err("too far");
        assert!(far > second);
        assert_eq!(limiter.within(0.001, 10, HOUR), 1, "of three in an hour two are taken");
    }

    #[test]
    fn what_is_free_is_what_can_be_taken() {
        for (each_second, burst) in [(0.01, 1), (1.0, 1), (5.0, 5), (100.0, 7)] {
            let limiter = Limiter::default();
            let free = limiter.within(each_second, burst, Duration::from_secs(2));
            let mut taken = 0;
            while limiter.reserve(each_second, burst, Duration::from_secs(2)).is_ok() {
                taken += 1;
            }
            assert!(taken == free || taken == free + 1, "{each_second}/{burst}: {free} {taken}");
        }
    }
}
