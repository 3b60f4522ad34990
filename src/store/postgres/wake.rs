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
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::sync::{Mutex, Notify};

use super::pool::SIGN_OF_LIFE;
use crate::store::Options;

#[derive(Debug)]
pub(super) struct Wake {
    inner: Notify,
    listening: Option<Listening>,
}

#[derive(Debug)]
struct Listening {
    database: PgConnectOptions,
    /// For a connection.
    patience: Duration,
    channel: String,
    ask: String,
    ear: Mutex<Option<Ear>>,
    /// Whether the last wait could listen.
    works: AtomicBool,
}

/// A connection that listens.
#[derive(Debug)]
struct Ear {
    listener: PgListener,
    /// Until when this host has asked to be told.
    until: Instant,
    /// Since when it has been asking without an answer.
    asking: Option<Instant>,
}

/// How much longer than a wait a host has to be told at the least.
const SPARE: Duration = Duration::from_millis(100);

/// Naps that one request to be told is good for.
const NAPS: u32 = 2;

impl Wake {
    pub(super) fn new(database: PgConnectOptions, options: &Options) -> Self {
        let prefix = &options.prefix;
        let listening = options.notify.then(|| Listening {
            database,
            patience: options.patience,
            channel: format!("{prefix}wake"),
            // Hosts ask each for themselves; the latest time stands, but for a
            // race that costs one poll.
            ask: format!(
                "SELECT setval('{prefix}asleep_until',
                        greatest((SELECT last_value FROM {prefix}asleep_until), {prefix}now_ms() + $1))"
            ),
            ear: Mutex::new(None),
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
    pub(super) async fn wait(&self, at_most: Duration) {
        tokio::select! {
            () = self.inner.notified() => {}
            () = self.notified(at_most) => {}
            () = tokio::time::sleep(at_most) => {}
        }
    }

    /// Resolves at a notification; never, if there is no listening.
    async fn notified(&self, at_most: Duration) {
        let Some(listening) = &self.listening else {
            return std::future::pending().await;
        };
        if let Err(error) = listening.wait(at_most).await {
            tracing::debug!(%error, "not listening for new events; polling goes on");
            listening.works.store(false, Ordering::Relaxed);
            *listening.ear.lock().await = None;
            std::future::pending::<()>().await;
        }
    }
}

impl Listening {
    async fn wait(&self, at_most: Duration) -> Result<(), sqlx::Error> {
        let mut slot = self.ear.lock().await;
        // Whoever has silently gone tells of nothing.
        slot.take_if(|ear| ear.asking.is_some_and(|since| since.elapsed() > SIGN_OF_LIFE));
        if slot.is_none() {
            self.works.store(false, Ordering::Relaxed);
            *slot =
                Some(Ear { listener: self.listen().await?, until: Instant::now(), asking: None });
        }
        let Some(ear) = slot.as_mut() else { return Ok(()) };
        // What was sent while this host was busy, it has found by itself.
        while ear.listener.next_buffered().is_some() {}
        // Asked anew a little before the wait would outlast it.
        let wanted = at_most.saturating_add(SPARE);
        if ear.until < Instant::now() + wanted {
            let ahead = wanted.saturating_mul(NAPS);
            let until = Instant::now() + ahead;
            let millis = i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX);
            ear.asking.get_or_insert_with(Instant::now);
            let ask = sqlx::query(AssertSqlSafe(self.ask.as_str())).bind(millis);
            ask.execute(&mut ear.listener).await?;
            (ear.asking, ear.until) = (None, until);
        }
        self.works.store(true, Ordering::Relaxed);
        // `None` is a connection that was lost and made anew: look around.
        ear.listener.try_recv().await.map(drop)
    }

    /// A connection that listens. It has a pool of its own: the driver says
    /// farewell on a connection before it frees its place, and the other end
    /// may never answer.
    async fn listen(&self) -> Result<PgListener, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(self.patience)
            .connect_lazy_with(self.database.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(&self.channel).await?;
        Ok(listener)
    }
}
