//! A router that runs inside an application.

use std::{sync::Arc, time::Duration};

use sqlx::{PgPool, SqlitePool};

use super::pool::Pool;
use crate::{
    metrics::Metrics,
    model::{event::NewEvent, names::Invalid, units::Bytes},
    router::{self, Health},
    store::{Recorded, Store, StoreError},
};

/// A router that runs inside an application, on the runtime that it was
/// started on, until it is [stopped](Router::stop).
///
/// Dropped without that, it is as if the process had died: calls in flight are
/// dropped, nothing is given back, and other hosts take over when its lease
/// has run out.
pub struct Router {
    running: Option<router::Router>,
    store: Arc<dyn Store>,
    pool: Pool,
    metrics: Arc<Metrics>,
    payload_max: Bytes,
}

/// Why an event isn't recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A field can't be accepted.
    #[error("the event's {0}")]
    Invalid(#[from] Invalid),
    /// The database refused or broke off.
    #[error("the event can't be recorded: {0}")]
    Store(#[from] StoreError),
}

impl Router {
    pub(super) fn new(
        running: router::Router,
        store: Arc<dyn Store>,
        pool: Pool,
        metrics: Arc<Metrics>,
        payload_max: Bytes,
    ) -> Self {
        Self { running: Some(running), store, pool, metrics, payload_max }
    }

    /// Records an event in a transaction of its own. To record it together
    /// with the application's own change, call
    /// [`outbox::record`](crate::outbox::record) with a transaction of any
    /// connection to the same database, such as one of [`Router::sqlite`] or
    /// [`Router::postgres`].
    ///
    /// # Errors
    /// When a field can't be accepted, or the database fails. A used dedup key
    /// is no error: the answer says so.
    pub async fn record(&self, event: &NewEvent) -> Result<Recorded, RecordError> {
        event.validate(self.payload_max.as_usize())?;
        let recorded = self.store.record(std::slice::from_ref(event)).await?;
        let one = recorded.into_iter().next();
        one.ok_or_else(|| StoreError::Refused("it didn't answer".into()).into())
    }

    /// Connections to the router's SQLite database, if it is one, for the
    /// application's own tables and transactions.
    ///
    /// `sqlite::memory:` is one single connection, the router's too: while the
    /// application has a transaction open, the router waits, and so does a
    /// closure that reads its state.
    #[must_use]
    pub fn sqlite(&self) -> Option<&SqlitePool> {
        match &self.pool {
            Pool::Sqlite(pool) => Some(pool),
            Pool::Postgres(_) => None,
        }
    }

    /// Connections to the router's PostgreSQL database, if it is one, for the
    /// application's own tables and transactions.
    #[must_use]
    pub fn postgres(&self) -> Option<&PgPool> {
        match &self.pool {
            Pool::Postgres(pool) => Some(pool),
            Pool::Sqlite(_) => None,
        }
    }

    /// Everything that is kept: events, deliveries, dead letters, counts.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// How it fares. It counts as stalled when its last exchange with the
    /// database failed and no other has succeeded for `patience`.
    #[must_use]
    pub fn health(&self, patience: Duration) -> Health {
        match &self.running {
            Some(running) => running.pulse().health(patience),
            None => Health { stalled_for: None, last_error: None, reason: None, in_flight: 0 },
        }
    }

    /// What this host has counted, as Prometheus reads it.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.encode(None)
    }

    /// Stops: claims nothing more, gives back what has not begun, lets calls
    /// end and settles them for at most `grace`, drops the rest and gives it
    /// back, and leaves the work to other hosts.
    pub async fn stop(mut self, grace: Duration) {
        if let Some(running) = self.running.take() {
            running.stop(grace).await;
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }
}
