//! How many rows one transaction had best have.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// How long one of the router's transactions should take: whoever else wants
/// to write waits that long.
const MOMENT: Duration = Duration::from_millis(4);

/// Fewer rows than this cost more than they are worth.
const LEAST: u64 = 16;

/// What a row costs, as a moving average.
#[derive(Debug, Default)]
pub(super) struct Stride {
    nanos: AtomicU64,
}

impl Stride {
    /// Rows that fit in a moment.
    pub(super) fn rows(&self) -> usize {
        let moment = u64::try_from(MOMENT.as_nanos()).unwrap_or(u64::MAX);
        // Nothing is known before the first: begin with few.
        let fit = moment.checked_div(self.nanos.load(Ordering::Relaxed)).unwrap_or(LEAST);
        usize::try_from(fit.max(LEAST)).unwrap_or(usize::MAX)
    }

    /// Notes what a transaction of so many rows took.
    pub(super) fn took(&self, rows: usize, time: Duration) {
        let Ok(each) = u64::try_from(time.as_nanos() / rows.max(1) as u128) else { return };
        let before = self.nanos.load(Ordering::Relaxed);
        let after = if before == 0 { each } else { (before * 7 + each) / 8 };
        self.nanos.store(after.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_rows_come_in_small_steps() {
        let stride = Stride::default();
        assert_eq!(stride.rows(), 16);
        stride.took(100, MOMENT / 2);
        assert_eq!(stride.rows(), 200);
        (0..50).for_each(|_| stride.took(20, MOMENT / 2));
        assert!((36..44).contains(&stride.rows()), "{}", stride.rows());
        (0..50).for_each(|_| stride.took(1, Duration::from_secs(1)));
        assert_eq!(stride.rows(), 16, "not fewer");
    }
}
