//! The connections and transactions of `sqlx` that an application hands over.

use sqlx::{AssertSqlSafe, PgConnection, Postgres, Sqlite, SqliteConnection, Transaction};
use uuid::Uuid;

use self::sealed::{Backend, Sealed};
use crate::model::event::NewEvent;

/// A connection to PostgreSQL or SQLite, or a transaction on one.
///
/// It can't be implemented elsewhere.
pub trait Connection: Sealed {}

impl<C: Sealed> Connection for C {}

pub(crate) mod sealed {
    use std::future::Future;

    use sqlx::{AssertSqlSafe, Database};
    use uuid::Uuid;

    use crate::model::event::NewEvent;

    /// A connection, or what stands for one.
    pub trait Sealed: Send {
        /// The database behind it.
        type Database: Backend;

        /// The connection itself.
        fn connection(&mut self) -> &mut <Self::Database as Database>::Connection;
    }

    /// What is asked of a database. Statements have `{p}` for the table
    /// prefix, or `{inbox}` for the inbox table.
    pub trait Backend: Database {
        /// Inserts an event, or nothing where it is there already.
        const INSERT_EVENT: &str;
        /// Notes that a consumer has processed a message, or nothing.
        const INSERT_PROCESSED: &str =
            "INSERT INTO {inbox} (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        /// Creates an inbox table that isn't there yet.
        const CREATE_INBOX: &str;

        /// Runs [`Self::INSERT_EVENT`]; answers how many rows it inserted.
        fn insert_event(
            connection: &mut Self::Connection,
            sql: AssertSqlSafe<String>,
            id: Uuid,
            event: &NewEvent,
        ) -> impl Future<Output = sqlx::Result<u64>> + Send;

        /// Runs a statement with text parameters; answers how many rows it changed.
        fn execute(
            connection: &mut Self::Connection,
            sql: AssertSqlSafe<String>,
            texts: &[&str],
        ) -> impl Future<Output = sqlx::Result<u64>> + Send;
    }
}

macro_rules! backend {
    ($database:ty, $connection:ty, $inbox:literal, $insert:literal) => {
        impl Backend for $database {
            const INSERT_EVENT: &str = $insert;
            const CREATE_INBOX: &str = include_str!($inbox);

            async fn insert_event(
                connection: &mut $connection,
                sql: AssertSqlSafe<String>,
                id: Uuid,
                event: &NewEvent,
            ) -> sqlx::Result<u64> {
                let done = sqlx::query(sql)
                    .bind(id.to_string())
                    .bind(&event.project)
                    .bind(&event.resource)
                    .bind(&event.aggregate_id)
                    .bind(&event.event_name)
                    .bind(i64::from(event.schema_version))
                    .bind(&event.payload)
                    .bind(&event.meta)
                    .bind(&event.dedup_key)
                    .bind(event.available_at)
                    .execute(connection)
                    .await?;
                Ok(done.rows_affected())
            }

            async fn execute(
                connection: &mut $connection,
                sql: AssertSqlSafe<String>,
                texts: &[&str],
            ) -> sqlx::Result<u64> {
                let query = texts.iter().fold(sqlx::query(sql), |query, text| query.bind(*text));
                Ok(query.execute(connection).await?.rows_affected())
            }
        }

        impl Sealed for $connection {
            type Database = $database;

            fn connection(&mut self) -> &mut $connection {
                self
            }
        }

        impl Sealed for Transaction<'_, $database> {
            type Database = $database;

            fn connection(&mut self) -> &mut $connection {
                &mut *self
            }
        }
    };
}

// A conflict of whatever kind inserts nothing and leaves the transaction
// intact. To name the columns of the conflict would need the right to SELECT.
backend!(
    Postgres,
    PgConnection,
    "../../migrations/postgres/0002_inbox.sql",
    "INSERT INTO {p}outbox (message_id, project_id, resource, aggregate_id, event_name,
         schema_version, payload_json, meta_json, dedup_key, available_at)
     VALUES ($1::text::uuid, $2, $3, $4, $5,
         $6::bigint::integer, $7::text::json, $8::text::json, $9, $10)
     ON CONFLICT DO NOTHING"
);

backend!(
    Sqlite,
    SqliteConnection,
    "../../migrations/sqlite/0002_inbox.sql",
    "INSERT INTO {p}outbox (message_id, project_id, resource, aggregate_id, event_name,
         schema_version, payload_json, meta_json, dedup_key, available_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     ON CONFLICT DO NOTHING"
);
