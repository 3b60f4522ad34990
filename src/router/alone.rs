//! Events that kill their host are found by letting suspects run alone.
//!
//! Whatever a host held when it died is a suspect: it runs again while nothing
//! else runs on its host. Each such run is noted in the database beforehand, and
//! the note is gone when another one begins or the call has ended. An event that
//! was running alone when its host died spills, so that its triggers are tried
//! one by one; a delivery that was, again and again, is guilty. Its neighbours
//! never are.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::{Mutex, MutexGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};

use super::ledger::PATIENCE;

/// Lets calls run in company, or one of them alone.
#[derive(Default)]
pub(super) struct Alone {
    /// Read by calls in company, written by one that is alone.
    calls: Arc<RwLock<()>>,
    /// Suspects follow each other for a moment, so that not every one of them
    /// has to wait until all other calls have ended.
    window: Mutex<Option<Window>>,
    waiting: AtomicUsize,
}

struct Window {
    _alone: OwnedRwLockWriteGuard<()>,
    since: Instant,
}

/// Nothing else runs while this lives.
pub(super) struct Solitude<'a> {
    alone: &'a Alone,
    window: MutexGuard<'a, Option<Window>>,
}

impl Alone {
    /// Waits while a call runs alone, and lets none while the guard lives.
    pub(super) async fn company(&self) -> RwLockReadGuard<'_, ()> {
        self.calls.read().await
    }

    /// Waits until nothing else runs, and lets nothing begin while it lives.
    pub(super) async fn solitude(&self) -> Solitude<'_> {
        let waits = Waits::of(&self.waiting);
        let mut window = self.window.lock().await;
        if window.is_none() {
            // Calls that came before run first, those that came later wait.
            let alone = Arc::clone(&self.calls).write_owned().await;
            *window = Some(Window { _alone: alone, since: Instant::now() });
        }
        drop(waits);
        Solitude { alone: self, window }
    }
}

impl Solitude<'_> {
    /// Whether others may run when it ends.
    pub(super) fn is_last(&self) -> bool {
        let over = self.window.as_ref().is_none_or(|window| window.since.elapsed() > PATIENCE);
        over || self.alone.waiting.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Solitude<'_> {
    fn drop(&mut self) {
        if self.is_last() {
            *self.window = None;
        }
    }
}

/// Counts itself while it lives.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicI64, time::Duration};

    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_runs_beside_a_call_that_is_alone() {
        let (alone, running) = (Arc::new(Alone::default()), Arc::new(AtomicI64::new(0)));
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..200 {
            let (alone, running) = (Arc::clone(&alone), Arc::clone(&running));
            calls.spawn(async move {
                if n % 4 == 0 {
                    let solitude = alone.solitude().await;
                    assert_eq!(running.fetch_add(1000, Ordering::SeqCst), 0);
                    sleep(Duration::from_millis(1)).await;
                    assert_eq!(running.fetch_sub(1000, Ordering::SeqCst), 1000);
                    drop(solitude);
                } else {
                    let _company = alone.company().await;
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 1000);
                    sleep(Duration::from_millis(1)).await;
                    assert!(running.fetch_sub(1, Ordering::SeqCst) < 1000);
                }
            });
        }
        let all = timeout(Duration::from_mins(1), calls.join_all());
        all.await.expect("nobody waits for ever");
        assert!(alone.window.lock().await.is_none());
    }

    #[tokio::test]
    async fn one_that_gives_up_waiting_holds_nobody_up() {
        let alone = Alone::default();
        let first = alone.solitude().await;
        assert!(timeout(Duration::from_millis(1), alone.solitude()).await.is_err());
        drop(first);
        let company = timeout(Duration::from_mins(1), alone.company());
        drop(company.await.expect("the window is closed"));
    }
}
