//! The other end: a consumer that does each message's work once.
//!
//! Delivery to the outside world is at-least-once. A consumer with a database
//! notes the message id in the transaction that does the work, and so does it
//! once however often the message comes:
//!
//! ```no_run
//! use outrigger::inbox::{self, InboxError};
//! use sqlx::PgConnection;
//!
//! # async fn receive(pool: sqlx::PgPool, message_id: uuid::Uuid) -> Result<(), InboxError> {
//! let mut tx = pool.begin().await?;
//! let invoice = inbox::process(&mut tx, "invoicing", message_id, async |db: &mut PgConnection| {
//!     sqlx::query("INSERT INTO invoices (order_id) VALUES ('o-1')").execute(db).await?;
//!     Ok::<_, InboxError>("o-1")
//! })
//! .await?;
//! tx.commit().await?;
//! match invoice {
//!     Some(order) => println!("invoiced {order}"),
//!     None => println!("that was done before"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The table is made by `outrigger migrate --only inbox`, or by
//! [`Inbox::create_table`], in whichever database the consumer has.

use std::fmt::Display;

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Database, PgConnection,
    sqlite::SqliteConnectOptions,
};

use crate::{
    model::names::{self, Invalid},
    outbox::{
        Connection,
        connection::sealed::{Backend, Sealed},
    },
    store::Prefix,
};

/// The connection that the work is done on.
type ConnectionOf<C> = <<C as Sealed>::Database as Database>::Connection;

/// Does `work` if this consumer hasn't processed the message yet, with the
/// table of the default name. See [`Inbox::process`].
///
/// # Errors
/// As [`Inbox::process`].
pub async fn process<C, W, T, E>(
    tx: &mut C,
    consumer: &str,
    message_id: impl Display,
    work: W,
) -> Result<Option<T>, E>
where
    C: Connection,
    W: AsyncFnOnce(&mut ConnectionOf<C>) -> Result<T, E>,
    E: From<InboxError>,
{
    Inbox::default().process(tx, consumer, message_id, work).await
}

/// An inbox table of another name.
#[derive(Debug, Clone)]
pub struct Inbox {
    table: String,
}

/// Why a message isn't processed.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// The consumer's name or the message id can't be accepted.
    #[error("the inbox entry's {0}")]
    Invalid(#[from] Invalid),
    /// The database refused or broke off; roll back.
    #[error("the inbox: {0}")]
    Database(#[from] sqlx::Error),
}

impl Default for Inbox {
    fn default() -> Self {
        Self::with_prefix(&Prefix::default())
    }
}

impl Inbox {
    /// The table beside others with this prefix.
    #[must_use]
    pub fn with_prefix(prefix: &Prefix) -> Self {
        Self { table: format!("{prefix}inbox") }
    }

    /// The table of this name.
    ///
    /// # Errors
    /// When the name is not safe in SQL: lower-case letters, digits and `_`.
    pub fn with_table(name: &str) -> Result<Self, InboxError> {
        let safe: Prefix = name.parse().map_err(|_| {
            Invalid::new("table", format!("`{name}` is no safe name: up to 40 of a-z, 0-9 and _"))
        })?;
        Ok(Self { table: safe.to_string() })
    }

    /// Creates the table unless it is there.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn create_table<C: Connection>(&self, connection: &mut C) -> Result<(), InboxError> {
        let sql = self.sql(C::Database::CREATE_INBOX);
        C::Database::execute(connection.connection(), sql, &[]).await?;
        Ok(())
    }

    /// Creates the table, unless it is there, in the database of this URL:
    /// `postgres://…` or `sqlite:path`.
    ///
    /// # Errors
    /// When the URL is no such thing, or the database can't be reached or refuses.
    pub async fn create_in(&self, url: &str) -> Result<(), InboxError> {
        if url.starts_with("sqlite:") {
            let options: SqliteConnectOptions = url.parse()?;
            self.create_table(&mut options.create_if_missing(true).connect().await?).await
        } else {
            self.create_table(&mut PgConnection::connect(url).await?).await
        }
    }

    /// Does `work` if this consumer hasn't processed the message yet, and
    /// answers what it gave; `None` if it has.
    ///
    /// The note and the work are one: they become durable when the caller
    /// commits, and if `work` fails, neither is left in the transaction, even
    /// if the caller goes on and commits. Another transaction that is at the
    /// same message is waited for. `work` is handed the connection and should
    /// do all that is to be done once on it.
    ///
    /// The transaction must have been begun by `sqlx`: one that was begun by a
    /// statement isn't seen.
    ///
    /// # Errors
    /// Whatever `work` fails with; and when the consumer or the message id is
    /// empty or longer than 512 bytes, or the database fails.
    pub async fn process<C, W, T, E>(
        &self,
        tx: &mut C,
        consumer: &str,
        message_id: impl Display,
        work: W,
    ) -> Result<Option<T>, E>
    where
        C: Connection,
        W: AsyncFnOnce(&mut ConnectionOf<C>) -> Result<T, E>,
        E: From<InboxError>,
    {
        let message_id = message_id.to_string();
        names::text("consumer", consumer).map_err(InboxError::from)?;
        names::text("message id", &message_id).map_err(InboxError::from)?;
        // A savepoint: what fails within leaves nothing behind.
        let mut inner = tx.connection().begin().await.map_err(InboxError::from)?;
        let sql = self.sql(C::Database::INSERT_PROCESSED);
        let new = C::Database::execute(&mut *inner, sql, &[consumer, &message_id]).await;
        if new.map_err(InboxError::from)? == 0 {
            inner.rollback().await.map_err(InboxError::from)?;
            return Ok(None);
        }
        match work(&mut *inner).await {
            Ok(done) => {
                inner.commit().await.map_err(InboxError::from)?;
                Ok(Some(done))
            }
            Err(error) => {
                // If even this fails, so will the caller's commit.
                let _ = inner.rollback().await;
                Err(error)
            }
        }
    }

    fn sql(&self, template: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(template.replace("{inbox}", &self.table))
    }
}
