//! How a host that sleeps learns of new events.
//!
//! A statement trigger on the outbox notifies, but only until the time that
//! sleeping hosts have written into a sequence: while hosts are busy, and
//! after they are gone, applications pay for one look at a sequence. A
//! transaction that looked before a host fell asleep and commits afterwards
//! notifies nobody; whoever waits at growing intervals finds it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use sqlx::{
    AssertSqlSafe,
    postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions},
};
use tokio::sync::{Mutex, Notify};

use crate::store::Options;

#[derive(Debug)]
pub(super) struct Wake {
    inner: Notify,
    listening: Option<Listening>,
}

#[derive(Debug)]
struct Listening {
    pool: PgPool,
    channel: String,
    ask: String,
    /// The listener, and until when this host has asked to be told.
    listener: Mutex<Option<(PgListener, Instant)>>,
    /// Whether the last wait could listen.
    works: AtomicBool,
}

/// How much longer than a wait a host has to be told at the least.
const SPARE: Duration = Duration::from_millis(100);

/// Naps that one request to be told is good for.
const NAPS: u32 = 2;

impl Wake {
    pub(super) fn new(database: PgConnectOptions, options: &Options) -> Self {
        let prefix = &options.prefix;
        let listening = options.notify.then(|| Listening {
            pool: PgPoolOptions::new()
                .max_connections(1)
                .acquire_timeout(options.patience)
                .connect_lazy_with(database),
            channel: format!("{prefix}wake"),
            // Hosts ask each for themselves; the latest time stands, but for a
            // race that costs one poll.
            ask: format!(
                "SELECT setval('{prefix}asleep_until',
                        greatest((SELECT last_value FROM {prefix}asleep_until), {prefix}now_ms() + $1))"
            ),
            listener: Mutex::new(None),
            works: AtomicBool::new(false),
        });
        Self { inner: Notify::new(), listening }
    }

    /// Whether this host is told of new events.
    pub(super) fn tells(&self) -> bool {
        self.listening.as_ref().is_some_and(|listening| listening.works.load(Ordering::Relaxed))
    }

    pub(super) fn ring(&self) {
        self.inner.notify_one();
    }

    /// Waits for a notification, a ring, or so long.
    pub(super) async fn wait(&self, database: &PgPool, at_most: Duration) {
        tokio::select! {
            () = self.inner.notified() => {}
            () = self.notified(database, at_most) => {}
            () = tokio::time::sleep(at_most) => {}
        }
    }

    /// Resolves at a notification; never, if there is no listening.
    async fn notified(&self, database: &PgPool, at_most: Duration) {
        let Some(listening) = &self.listening else {
            return std::future::pending().await;
        };
        if let Err(error) = listening.wait(database, at_most).await {
            tracing::debug!(%error, "not listening for new events; polling goes on");
            listening.works.store(false, Ordering::Relaxed);
            *listening.listener.lock().await = None;
            std::future::pending::<()>().await;
        }
    }
}

impl Listening {
    async fn wait(&self, database: &PgPool, at_most: Duration) -> Result<(), sqlx::Error> {
        let mut slot = self.listener.lock().await;
        if slot.is_none() {
            let mut listener = PgListener::connect_with(&self.pool).await?;
            listener.listen(&self.channel).await?;
            *slot = Some((listener, Instant::now()));
        }
        let Some((listener, asked)) = slot.as_mut() else { return Ok(()) };
        // What was sent while this host was busy, it has found by itself.
        while listener.next_buffered().is_some() {}
        // Asked anew a little before the wait would outlast it.
        let wanted = at_most.saturating_add(SPARE);
        if *asked < Instant::now() + wanted {
            let ahead = wanted.saturating_mul(NAPS);
            let until = Instant::now() + ahead;
            let millis = i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX);
            sqlx::query(AssertSqlSafe(self.ask.as_str())).bind(millis).execute(database).await?;
            *asked = until;
        }
        self.works.store(true, Ordering::Relaxed);
        // `None` is a connection that was lost and made anew: look around.
        listener.try_recv().await.map(drop)
    }
}
