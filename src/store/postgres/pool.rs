//! Connections that nothing waits for without bound.
//!
//! The driver's pool asks a connection for a sign of life when it is returned,
//! for as long as it takes: one whose other end has silently gone would keep
//! its place for ever. And where a `BEGIN` is given up, it returns the
//! connection with the transaction open, so that what the next one writes is
//! never committed. Here the first ends in bounded time, and the second is
//! rolled back, or the connection closed.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{
    Connection as _, PgConnection, SqlSafeStr,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPool, PgPoolOptions},
    raw_sql,
};
use tokio::time::timeout;

use super::fault;
use crate::store::StoreError;

/// How long a connection may take to say that it is alive.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// A connection that was used so lately isn't asked.
const LIVELY: Duration = Duration::from_secs(1);

/// Connections of one kind to one database.
#[derive(Debug)]
pub(super) struct Pool(PgPool);

impl Pool {
    /// At most `max` connections, each made when it is first needed. Whoever
    /// wants one waits at most `patience` for it.
    pub(super) fn new(options: PgConnectOptions, max: u32, patience: Duration) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(max)
            .acquire_timeout(patience)
            .idle_timeout(Duration::from_mins(5))
            // These ask in bounded time, instead of a ping that hasn't any.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for < LIVELY { Ok(true) } else { answers(connection).await }
                })
            })
            .connect_lazy_with(options);
        Self(pool)
    }

    /// A connection, for statements outside a transaction.
    ///
    /// # Errors
    /// When there is none in time.
    pub(super) async fn lent(&self) -> Result<Lent, StoreError> {
        let connection = self.0.acquire().await.map_err(fault)?;
        Ok(Lent { connection: Some(connection), open: false })
    }

    /// A transaction.
    ///
    /// # Errors
    /// When there is no connection in time, or it doesn't begin.
    pub(super) async fn begin(&self) -> Result<Tx, StoreError> {
        self.begin_with("BEGIN").await
    }

    /// A transaction that begins with these statements.
    ///
    /// # Errors
    /// As with [`begin`](Self::begin).
    pub(super) async fn begin_with(&self, begin: impl SqlSafeStr) -> Result<Tx, StoreError> {
        let mut tx = Tx(self.lent().await?);
        // Given up from here on, it may have begun all the same.
        tx.0.open = true;
        raw_sql(begin).execute(&mut *tx).await.map_err(fault)?;
        Ok(tx)
    }
}

/// Whether a connection works; an error closes it without a farewell.
async fn answers(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match timeout(SIGN_OF_LIFE, connection.ping()).await {
        Ok(alive) => alive.map(|()| true),
        Err(late) => Err(sqlx::Error::Io(late.into())),
    }
}

/// A connection that goes back to its pool.
#[derive(Debug)]
pub(super) struct Lent {
    /// Taken when this is dropped.
    connection: Option<PoolConnection<sqlx::Postgres>>,
    /// Whether it may be in a transaction.
    open: bool,
}

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // At a runtime's end, nobody could wait for the answer.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(give_back(connection, self.open))),
            Err(_) => drop(connection.detach()),
        }
    }
}

/// Returns a connection, or closes it where that fails or takes too long, which
/// rolls back too and frees its place.
async fn give_back(mut connection: PoolConnection<sqlx::Postgres>, open: bool) {
    if open {
        let rolled_back = timeout(SIGN_OF_LIFE, raw_sql("ROLLBACK").execute(&mut *connection));
        if !matches!(rolled_back.await, Ok(Ok(_))) {
            return drop(connection.detach());
        }
    }
    // Given up, it drops the connection that it has taken.
    let _ = timeout(SIGN_OF_LIFE, connection.return_to_pool()).await;
}

/// A transaction, rolled back unless it is committed.
#[derive(Debug)]
pub(super) struct Tx(Lent);

impl Tx {
    /// Makes what was written last.
    ///
    /// # Errors
    /// When it isn't known to last.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.end("COMMIT").await
    }

    /// Undoes what was written.
    ///
    /// # Errors
    /// When the connection fails, which undoes it too.
    pub(super) async fn rollback(mut self) -> Result<(), StoreError> {
        self.end("ROLLBACK").await
    }

    async fn end(&mut self, how: &'static str) -> Result<(), StoreError> {
        raw_sql(how).execute(&mut *self.0).await.map_err(fault)?;
        self.0.open = false;
        Ok(())
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}
