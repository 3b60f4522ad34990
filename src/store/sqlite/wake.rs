//! How a host that sleeps learns of new events, whichever process wrote them.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sqlx::SqlitePool;
use tokio::{sync::Notify, time::sleep};

use super::{fault, get};
use crate::store::StoreError;

/// The first wait between two looks; each is twice as long as the one before.
const FIRST_STEP: Duration = Duration::from_millis(2);

/// The longest wait between two looks.
const LAST_STEP: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub(super) struct Wake {
    inner: Notify,
    /// A connection that only looks whether the file has changed; `None` where
    /// no other process can write.
    watch: Option<SqlitePool>,
    /// What the file's version was before this host last looked for work.
    seen: Mutex<Option<i64>>,
}

impl Wake {
    pub(super) fn new(watch: Option<SqlitePool>) -> Self {
        Self { inner: Notify::new(), watch, seen: Mutex::new(None) }
    }

    pub(super) fn ring(&self) {
        self.inner.notify_one();
    }

    /// Marks the beginning of a look for work: what is committed from here on
    /// ends the next wait.
    pub(super) async fn look(&self) {
        if let Some(Ok(version)) = self.version().await {
            self.note(version);
        }
    }

    /// Waits for a commit that the last look may have missed, a ring, or so long.
    pub(super) async fn wait(&self, at_most: Duration) {
        tokio::select! {
            () = self.inner.notified() => {}
            () = self.changed() => {}
            () = sleep(at_most) => {}
        }
    }

    async fn changed(&self) {
        let mut step = FIRST_STEP;
        loop {
            match self.version().await {
                Some(Ok(version)) if self.note(version) => return,
                Some(Err(error)) => tracing::debug!(%error, "can't watch the file; polling goes on"),
                Some(Ok(_)) => {}
                None => return std::future::pending().await,
            }
            sleep(step).await;
            step = (step * 2).min(LAST_STEP);
        }
    }

    /// Notes a version and answers whether it is another than before.
    fn note(&self, version: i64) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.replace(version).is_some_and(|before| before != version)
    }

    /// A number that changes with every commit of another connection: exact,
    /// where times and sizes of files are not.
    async fn version(&self) -> Option<Result<i64, StoreError>> {
        let watch = self.watch.as_ref()?;
        let row = sqlx::query("PRAGMA data_version").fetch_one(watch).await.map_err(fault);
        Some(row.and_then(|row| get(&row, 0)))
    }
}
