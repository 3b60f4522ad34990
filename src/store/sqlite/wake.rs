//! How a host that sleeps learns of new events, whichever process wrote them.

use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use sqlx::SqlitePool;
use tokio::{sync::Notify, time::sleep};

use super::{fault, get};
use crate::store::StoreError;

/// Waits between the first looks, which ask SQLite: together more than the
/// grain of a file's times.
const FIRST_STEPS: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];

/// The wait between later looks, at the file's time alone.
const LATER_STEP: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Wake {
    inner: Notify,
    /// `None` where no other process can write.
    watch: Option<Watch>,
    /// What the file's version was before this host last looked for work.
    seen: Mutex<Option<i64>>,
}

/// Sees that somebody committed.
#[derive(Debug)]
pub(super) struct Watch {
    /// One connection, whose `data_version` changes with every commit of
    /// another one: exact, and worth two switches between threads.
    db: SqlitePool,
    /// The write-ahead log, which every commit changes: nearly free to look
    /// at, but two commits within one tick of the clock look like one.
    log: PathBuf,
}

impl Watch {
    pub(super) fn new(db: SqlitePool, log: PathBuf) -> Self {
        Self { db, log }
    }

    async fn version(&self) -> Result<i64, StoreError> {
        let row = sqlx::query("PRAGMA data_version").fetch_one(&self.db).await.map_err(fault)?;
        get(&row, 0)
    }

    fn stamp(&self) -> Option<(u64, SystemTime)> {
        let log = fs::metadata(&self.log).ok()?;
        Some((log.len(), log.modified().ok()?))
    }
}

impl Wake {
    pub(super) fn new(watch: Option<Watch>) -> Self {
        Self { inner: Notify::new(), watch, seen: Mutex::new(None) }
    }

    pub(super) fn ring(&self) {
        self.inner.notify_one();
    }

    /// Marks the beginning of a look for work: what is committed from here on
    /// ends the next wait.
    pub(super) async fn look(&self) {
        if let Some(watch) = &self.watch {
            self.changed(watch).await;
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
        let mut stamp = None;
        for step in FIRST_STEPS {
            stamp = watch.stamp();
            if self.changed(watch).await {
                return;
            }
            sleep(step).await;
        }
        // Nothing was committed for more than a tick, so what comes now
        // changes the log's time or length.
        loop {
            let now = watch.stamp();
            if now != stamp {
                stamp = now;
                if self.changed(watch).await {
                    return;
                }
            }
            sleep(LATER_STEP).await;
        }
    }

    /// Whether the version is another than when this was last asked.
    async fn changed(&self, watch: &Watch) -> bool {
        match watch.version().await {
            Ok(version) => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.replace(version).is_some_and(|before| before != version)
            }
            Err(error) => {
                tracing::debug!(%error, "can't watch the file; polling goes on");
                false
            }
        }
    }
}
