//! Recording an event in an application's own transaction.
//!
//! Use it where a service is written in Rust with `sqlx`; any other records
//! with one plain `INSERT` into the same table. The event is there exactly if
//! the transaction commits:
//!
//! ```no_run
//! use outrigger::{model::event::NewEvent, outbox};
//!
//! # async fn place(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id, total) VALUES ($1, $2)")
//!     .bind("o-1")
//!     .bind(1200)
//!     .execute(&mut *tx)
//!     .await?;
//! let event = NewEvent {
//!     dedup_key: Some("place-o-1".into()),
//!     // Triggers find it among the event's meta.
//!     meta: Some(r#"{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#.into()),
//!     ..NewEvent::new("shop", "order", "o-1", "order.placed", r#"{"total": 1200}"#)
//! };
//! match outbox::record(&mut tx, &event).await {
//!     Ok(message_id) => {
//!         tx.commit().await?;
//!         println!("placed, event {message_id}");
//!     }
//!     // This order was placed before: nothing is to be done again.
//!     Err(outbox::RecordError::DedupKeyUsed(_)) => tx.rollback().await?,
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```

use sqlx::AssertSqlSafe;
use uuid::Uuid;

pub use connection::Connection;

use self::connection::sealed::Backend as _;
use crate::{
    model::{event::NewEvent, names::Invalid, units::Bytes},
    store::Prefix,
};

pub(crate) mod connection;

/// Records an event in the caller's transaction, into the table with the
/// default name. See [`Recorder::record`].
///
/// # Errors
/// As [`Recorder::record`].
pub async fn record<C: Connection>(tx: &mut C, event: &NewEvent) -> Result<Uuid, RecordError> {
    Recorder::default().record(tx, event).await
}

/// Records events into an outbox with another table prefix or payload limit.
#[derive(Debug, Clone)]
pub struct Recorder {
    prefix: Prefix,
    payload_max: Bytes,
}

/// Why an event isn't recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// An earlier event of the project has this dedup key. The transaction is
    /// intact: the caller decides whether to go on or to roll back.
    #[error("the dedup key `{0}` was used by an earlier event of the project")]
    DedupKeyUsed(String),
    /// There is an event of this message id. The transaction is intact.
    #[error("the message id {0} was used by an earlier event")]
    MessageIdUsed(Uuid),
    /// A field can't be accepted. The transaction is intact.
    #[error("the event's {0}")]
    Invalid(#[from] Invalid),
    /// The database refused or broke off; roll back.
    #[error("the event can't be recorded: {0}")]
    Database(#[from] sqlx::Error),
}

impl Default for Recorder {
    fn default() -> Self {
        Self::with_prefix(Prefix::default())
    }
}

impl Recorder {
    /// Records into tables with this prefix; payloads are limited to 1 MiB.
    #[must_use]
    pub const fn with_prefix(prefix: Prefix) -> Self {
        Self { prefix, payload_max: Bytes::mib(1) }
    }

    /// Limits payloads to this; the hosts' own limit should be no less.
    #[must_use]
    pub fn with_payload_max(self, payload_max: Bytes) -> Self {
        Self { payload_max, ..self }
    }

    /// Records an event in the caller's transaction and answers its message id.
    ///
    /// Nothing but the right to `INSERT` is needed. Meta is recorded to the
    /// letter, a W3C trace context within it included. A dedup key that another
    /// transaction has just used, and not yet committed, is waited for.
    ///
    /// # Errors
    /// When a field can't be accepted, the dedup key was used before, or the
    /// database fails.
    pub async fn record<C: Connection>(
        &self,
        tx: &mut C,
        event: &NewEvent,
    ) -> Result<Uuid, RecordError> {
        event.validate(self.payload_max.as_usize())?;
        // Drawn here: to read it back would need the right to SELECT.
        let id = event.message_id.unwrap_or_else(Uuid::now_v7);
        let sql = AssertSqlSafe(C::Database::INSERT_EVENT.replace("{p}", self.prefix.as_str()));
        if C::Database::insert_event(tx.connection(), sql, id, event).await? == 1 {
            return Ok(id);
        }
        match (&event.dedup_key, event.message_id) {
            (Some(key), _) if !key.is_empty() => Err(RecordError::DedupKeyUsed(key.clone())),
            _ => Err(RecordError::MessageIdUsed(id)),
        }
    }
}
