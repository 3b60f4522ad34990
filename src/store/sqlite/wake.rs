//! How a host that sleeps learns of new events, whichever process wrote them.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use sqlx::SqlitePool;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{alarm::Alarm, fault, get};
use crate::store::StoreError;

/// The first wait between two looks; each is twice as long as the one before.
const FIRST_STEP: Duration = Duration::from_millis(2);

/// The longest wait between two looks.
const LAST_STEP: Duration = Duration::from_millis(20);

/// The same where the system tells of writes: a commit whose disk was slower
/// than that is found so much later.
const LAST_STEP_TOLD: Duration = Duration::from_millis(200);

/// How long the log must not have changed for its time to be trusted. A
/// commit is seen by others only after the log was written and synchronised,
/// and two writes within one tick of the clock look like one.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Wake {
    inner: Arc<Notify>,
    /// `None` where no other process can write.
    watch: Option<Watch>,
}

/// Sees that somebody committed.
#[derive(Debug)]
pub(super) struct Watch {
    /// One connection, whose `data_version` changes with every commit of
    /// another one: exact, and worth two switches between threads.
    db: SqlitePool,
    /// The write-ahead log, which every commit changes: nearly free to look at.
    log: PathBuf,
    /// Rings when it is written to, where the system can tell.
    alarm: OnceLock<Option<Alarm>>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The version before this host last looked for work.
    version: Option<i64>,
    /// The log's length and time, and since when they have been so.
    stamp: Option<(u64, SystemTime)>,
    since: Instant,
}

impl Watch {
    pub(super) fn new(db: SqlitePool, log: PathBuf) -> Self {
        let seen = Seen { version: None, stamp: None, since: Instant::now() };
        Self { db, log, alarm: OnceLock::new(), seen: Mutex::new(seen) }
    }

    /// Waits until it is worth another look, and answers how long to wait the
    /// next time.
    async fn rest(&self, step: Duration) -> Duration {
        let alarm = self.alarm.get_or_init(|| Alarm::of(&self.log));
        let Some(alarm) = alarm else {
            sleep(step).await;
            return (step * 2).min(LAST_STEP);
        };
        let lately = self.seen().since.elapsed() < QUIET;
        tokio::select! {
            () = alarm.rings() => FIRST_STEP,
            () = sleep(step), if lately => (step * 2).min(LAST_STEP_TOLD),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody may be writing, or was a moment ago.
    fn stirs(&self) -> bool {
        let stamp = fs::metadata(&self.log).and_then(|log| Ok((log.len(), log.modified()?))).ok();
        let mut seen = self.seen();
        if seen.stamp != stamp {
            seen.stamp = stamp;
            seen.since = Instant::now();
        }
        stamp.is_none() || seen.since.elapsed() < QUIET
    }

    /// Whether the version is another than when this was last asked.
    async fn changed(&self) -> bool {
        match self.version().await {
            Ok(version) => {
                self.seen().version.replace(version).is_some_and(|before| before != version)
            }
            Err(error) => {
                tracing::debug!(%error, "can't watch the file; polling goes on");
                false
            }
        }
    }

    async fn version(&self) -> Result<i64, StoreError> {
        let row = sqlx::query("PRAGMA data_version").fetch_one(&self.db).await.map_err(fault)?;
        get(&row, 0)
    }
}

impl Wake {
    pub(super) fn new(watch: Option<Watch>) -> Self {
        Self { inner: Arc::default(), watch }
    }

    /// What to ring where this isn't at hand.
    pub(super) fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.inner)
    }

    pub(super) fn ring(&self) {
        self.inner.notify_one();
    }

    /// Marks the beginning of a look for work: what is committed from here on
    /// ends the next wait.
    pub(super) async fn look(&self) {
        if let Some(watch) = &self.watch {
            watch.changed().await;
        }
    }

    /// Waits for a commit that the last look may have missed, a ring, or so long.
    pub(super) async fn wait(&self, at_most: Duration) {
        tokio::select! {
            () = self.inner.notified() => {}
            () = self.commit() => {}
            () = sleep(at_most) => {}
        }
    }

    async fn commit(&self) {
        let Some(watch) = &self.watch else { return std::future::pending().await };
        let mut step = FIRST_STEP;
        loop {
            if watch.stirs() && watch.changed().await {
                return;
            }
            step = watch.rest(step).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Control as _, Options, Queue as _, sqlite::Sqlite};

    #[tokio::test]
    async fn an_insert_on_the_connection_in_memory_ends_a_wait() {
        let store = Sqlite::connect("sqlite::memory:", &Options::default()).await.expect("opens");
        store.migrate().await.expect("migrates");
        let pool = store.memory().expect("is in memory");
        // What migrating and looking rang is over.
        store.wait_for_events(Duration::from_millis(1)).await;
        let waits = tokio::spawn(async move { store.wait_for_events(Duration::MAX).await });
        let insert = "INSERT INTO outrigger_outbox
                          (project_id, resource, aggregate_id, event_name, payload_json)
                      VALUES ('shop', 'order', 'o-1', 'order.placed', '{}')";
        sqlx::query(insert).execute(&pool).await.expect("inserts");
        let woken = tokio::time::timeout(Duration::from_mins(1), waits).await;
        woken.expect("it is woken").expect("it doesn't panic");
    }
}
