//! The one writer, and the share of the time that it leaves to others.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, sleep, timeout},
};

use super::fault;
use crate::store::StoreError;

/// After a transaction, the lock stays free for its length divided by this: a
/// third of the time under full load. An application's busy handler asks each
/// 100 ms, some fifty times in the 5 s that drivers wait by default.
const SHARE: u32 = 2;

/// Shorter rests than this are saved up: timers are no finer.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// Longest rest, after a transaction that was held up by a slow disk.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// The way to the write lock: one transaction at a time.
#[derive(Debug)]
pub(super) struct Writer {
    /// Commits that a power cut may take back, as a whole and in order; what
    /// they acknowledged is then done again.
    lazy: SqlitePool,
    /// Commits that are on the disk when they return: what somebody was told.
    firm: SqlitePool,
    pace: Arc<Mutex<Pace>>,
    /// People and programs who wait for their turn: the router lets them pass.
    urgent: AtomicUsize,
    patience: Duration,
    /// Whether other processes may want the lock.
    shared: bool,
}

/// How long the lock must still rest.
#[derive(Debug)]
struct Pace {
    owed: Duration,
    since: Instant,
}

/// A transaction that has the write lock. Dropped without a commit, it is
/// rolled back.
pub(super) struct Tx {
    inner: Transaction<'static, Sqlite>,
    turn: Turn,
}

/// The writer's turn, from the lock to its release.
struct Turn {
    pace: OwnedMutexGuard<Pace>,
    began: Instant,
}

impl Writer {
    pub(super) fn new(
        lazy: SqlitePool,
        firm: SqlitePool,
        patience: Duration,
        shared: bool,
    ) -> Self {
        let pace = Pace { owed: Duration::ZERO, since: Instant::now() };
        let (pace, urgent) = (Arc::new(Mutex::new(pace)), AtomicUsize::new(0));
        Self { lazy, firm, pace, urgent, patience, shared }
    }

    /// Begins a transaction that may be lost at a power cut: the router's own.
    pub(super) async fn begin(&self) -> Result<Tx, StoreError> {
        let mut pace = self.turn().await?;
        if self.urgent.load(Ordering::Relaxed) > 0 {
            // Once: whoever waits is before us in the line now.
            drop(pace);
            pace = self.turn().await?;
        }
        self.begin_on(&self.lazy, pace).await
    }

    /// Begins a transaction whose commit is on the disk when it returns.
    ///
    /// It rests like the others: applications don't care who holds the lock.
    pub(super) async fn begin_firm(&self) -> Result<Tx, StoreError> {
        let waits = Waits::of(&self.urgent);
        let pace = self.turn().await?;
        drop(waits);
        self.begin_on(&self.firm, pace).await
    }

    async fn turn(&self) -> Result<OwnedMutexGuard<Pace>, StoreError> {
        timeout(self.patience, Arc::clone(&self.pace).lock_owned())
            .await
            .map_err(|late| StoreError::Busy(late.into()))
    }

    async fn begin_on(
        &self,
        pool: &SqlitePool,
        mut pace: OwnedMutexGuard<Pace>,
    ) -> Result<Tx, StoreError> {
        pace.credit();
        if self.shared && pace.owed >= SHORTEST_REST {
            sleep(pace.owed).await;
            pace.credit();
        }
        // A transaction that reads first and writes then would fail at once
        // where another one wrote in between, whatever the time-out.
        let inner = pool.begin_with("BEGIN IMMEDIATE").await.map_err(fault)?;
        Ok(Tx { inner, turn: Turn { pace, began: Instant::now() } })
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

impl Pace {
    /// Counts the time since the last turn as rest.
    fn credit(&mut self) {
        let now = Instant::now();
        self.owed = self.owed.saturating_sub(now - self.since);
        self.since = now;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        self.pace.owed = (self.pace.owed + (now - self.began) / SHARE).min(LONGEST_REST);
        self.pace.since = now;
    }
}

impl Tx {
    /// Undoes what was written and begins again, with the same turn.
    pub(super) async fn again(mut self) -> Result<Self, StoreError> {
        sqlx::raw_sql("ROLLBACK; BEGIN IMMEDIATE").execute(&mut *self).await.map_err(fault)?;
        Ok(self)
    }

    pub(super) async fn commit(self) -> Result<(), StoreError> {
        let Self { inner, turn } = self;
        let done = inner.commit().await.map_err(fault);
        drop(turn);
        done
    }
}

impl Deref for Tx {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.inner
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::PathBuf};

    use sqlx::{ConnectOptions as _, query, sqlite::SqliteConnectOptions};
    use uuid::Uuid;

    use super::*;
    use crate::store::{Options, sqlite::Sqlite};

    /// A store on a file of its own, with a table to write into.
    async fn store() -> (Sqlite, PathBuf) {
        let folder = env::temp_dir().join(format!("outrigger-{}", Uuid::new_v4().simple()));
        fs::create_dir(&folder).expect("a new folder");
        let url = format!("sqlite:{}/writer.db", folder.display());
        let store = Sqlite::connect(&url, &Options::default()).await.expect("opens");
        let mut tx = store.writer.begin_firm().await.expect("begins");
        query("CREATE TABLE t (b)").execute(&mut *tx).await.expect("creates");
        tx.commit().await.expect("commits");
        (store, folder)
    }

    async fn insert(store: &Sqlite, bytes: i64) -> Result<(), StoreError> {
        let mut tx = store.writer.begin().await?;
        let insert = query("INSERT INTO t VALUES (zeroblob(?1))").bind(bytes);
        insert.execute(&mut *tx).await.map_err(fault)?;
        tx.commit().await
    }

    #[tokio::test]
    async fn a_full_disk_passes() {
        let (store, folder) = store().await;
        insert(&store, 1).await.expect("there is room");
        let mut tx = store.writer.begin().await.expect("begins");
        query("PRAGMA max_page_count = 1").execute(&mut *tx).await.expect("no more pages");
        tx.commit().await.expect("commits");
        let error = insert(&store, 1 << 20).await.expect_err("there is none");
        assert!(matches!(error, StoreError::Full(_)), "{error:?}");
        // SQLite has rolled back by itself; a new connection knows no bound.
        insert(&store, 1 << 20).await.expect("there is room again");
        fs::remove_dir_all(folder).expect("the folder goes");
    }

    #[tokio::test]
    async fn a_dropped_transaction_is_rolled_back() {
        let (store, folder) = store().await;
        let mut tx = store.writer.begin().await.expect("begins");
        query("INSERT INTO t VALUES (1)").execute(&mut *tx).await.expect("inserts");
        drop(tx);
        let mut tx = store.writer.begin_firm().await.expect("the lock is free");
        let left = query("SELECT 1 FROM t").fetch_optional(&mut *tx).await.expect("looks");
        assert!(left.is_none());
        drop(tx);
        fs::remove_dir_all(folder).expect("the folder goes");
    }

    /// Others wait for the lock as SQLite does: they ask again and again.
    #[tokio::test(flavor = "multi_thread")]
    async fn others_get_the_lock_beside_a_busy_writer() {
        let (store, folder) = store().await;
        let store = Arc::new(store);
        let mut busy = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let store = Arc::clone(&store);
            busy.spawn(async move {
                loop {
                    let mut tx = store.writer.begin().await.expect("begins");
                    query("INSERT INTO t VALUES (1)").execute(&mut *tx).await.expect("inserts");
                    sleep(Duration::from_millis(20)).await;
                    tx.commit().await.expect("commits");
                }
            });
        }
        let patience = Duration::from_secs(2);
        let options =
            SqliteConnectOptions::new().filename(folder.join("writer.db")).busy_timeout(patience);
        let mut other = options.connect().await.expect("opens");
        for n in 0..20 {
            let insert = query("INSERT INTO t VALUES (2)").execute(&mut other).await;
            insert.unwrap_or_else(|error| panic!("insert {n}: {error}"));
        }
        busy.shutdown().await;
        fs::remove_dir_all(folder).expect("the folder goes");
    }

    #[tokio::test]
    async fn the_lock_rests_after_a_turn() {
        let (store, folder) = store().await;
        let tx = store.writer.begin().await.expect("begins");
        sleep(Duration::from_millis(200)).await;
        tx.commit().await.expect("commits");
        let began = Instant::now();
        let tx = store.writer.begin().await.expect("begins");
        assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());
        drop(tx);
        fs::remove_dir_all(folder).expect("the folder goes");
    }
}
