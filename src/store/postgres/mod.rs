//! PostgreSQL, 14 and later.

use std::{str::FromStr, sync::atomic::AtomicI64, time::Duration};

use sqlx::postgres::PgConnectOptions;
use tokio::sync::OnceCell;

use self::{
    pool::{Pool, SIGN_OF_LIFE},
    wake::Wake,
};
use super::{
    Options, StoreError,
    migrate::{Dialect, migrations},
    rows::Sql,
};
use crate::model::Lane;

mod aged;
mod claims;
mod control;
mod inspect;
mod lanes;
mod plugins;
mod pool;
mod record;
mod redrive;
mod replay;
mod secrets;
mod settle;
mod state;
mod survey;
mod tail;
mod traits;
mod wake;

/// A PostgreSQL database.
#[derive(Debug)]
pub struct Postgres {
    /// For settles: its plans are pinned.
    router: Pool,
    /// For claims, with pinned plans too. A commit here doesn't wait for the
    /// disk: a crash of the server may take claims back, as if their leases
    /// had ended, and whoever has them finds out at the settle.
    claims: Pool,
    /// For everything else.
    pool: Pool,
    /// For leases alone, so that no other work can make one run out.
    leases: Pool,
    sql: Sql,
    wake: Wake,
    lanes: OnceCell<Lane>,
    /// Up to which pk the last sweep got.
    swept: AtomicI64,
    options: Options,
}

/// Refuses plans that scan or hash a whole table: with one shape of plan left,
/// ageing statistics can't change it.
const PINNED: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
];

impl Postgres {
    /// Opens a database: connections are made when they are first needed.
    ///
    /// # Errors
    /// When the URL can't be understood.
    pub fn connect(url: &str, options: &Options) -> Result<Self, StoreError> {
        let base = PgConnectOptions::from_str(url)
            .map_err(|error| StoreError::Setting(format!("the database URL: {error}")))?
            .application_name("outrigger");
        // A session whose client has silently gone must not keep its locks.
        let idle = |limit: Duration| limit.as_millis().to_string();
        let base = base.options([
            ("idle_in_transaction_session_timeout", &*idle(options.patience)),
            ("tcp_keepalives_idle", "30"),
            ("tcp_keepalives_interval", "10"),
            ("tcp_keepalives_count", "3"),
        ]);
        let plain = base.clone().options([("jit", "off")]);
        let quick = [("idle_in_transaction_session_timeout", idle(SIGN_OF_LIFE))];
        let wake = Wake::new(plain.clone(), options);
        let claiming = base.clone().options(PINNED).options([("synchronous_commit", "off")]);
        let pool = |database, max| Pool::new(database, max, options.patience);
        let most = options.connections.max(2);
        Ok(Self {
            claims: pool(claiming, 2),
            router: pool(base.options(PINNED), most),
            pool: pool(plain.clone(), most),
            leases: pool(plain.options(quick), 2),
            sql: Sql::new(options.prefix.clone()),
            wake,
            lanes: OnceCell::new(),
            swept: AtomicI64::new(0),
            options: options.clone(),
        })
    }

    /// Waits for an answer no longer than the host is patient, and well within
    /// the lease that is asked for. Whether what was asked has been done isn't
    /// known then.
    async fn in_time<T>(
        &self,
        lease: Option<Duration>,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let patience = self.options.patience;
        let limit = lease.map_or(patience, |lease| patience.min((lease / 2).max(LEAST_WAIT)));
        within(limit, work).await
    }

    /// Runs the migrations that this database hasn't had yet, one transaction
    /// each, one process at a time.
    async fn bring_up(&self) -> Result<(), StoreError> {
        let steps = migrations(
            Dialect::Postgres,
            self.sql.prefix(),
            &format!("{}inbox", self.sql.prefix()),
            self.options.lanes,
        );
        for step in &steps {
            let mut tx = self.pool.begin().await?;
            // The lock is the database's, so that hosts with other prefixes
            // wait too; they don't wait long.
            sqlx::query("SELECT pg_advisory_xact_lock(7310579201166341)")
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
            sqlx::query(self.sql.of(
                "CREATE TABLE IF NOT EXISTS {p}migration (
                     version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
            ))
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
            let newest: Option<i64> =
                sqlx::query_scalar(self.sql.of("SELECT max(version) FROM {p}migration"))
                    .fetch_one(&mut *tx)
                    .await
                    .map_err(fault)?;
            let newest = newest.unwrap_or(0);
            if newest > steps.last().map_or(0, |last| last.version) {
                return Err(StoreError::Schema(format!(
                    "the schema is at version {newest}, newer than this program knows; upgrade it"
                )));
            }
            if newest >= step.version {
                continue;
            }
            sqlx::raw_sql(sqlx::AssertSqlSafe(step.sql.clone()))
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
            sqlx::query(self.sql.of("INSERT INTO {p}migration (version, name) VALUES ($1, $2)"))
                .bind(step.version)
                .bind(step.name)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
            tx.commit().await?;
        }
        let lanes: i64 = sqlx::query_scalar(self.sql.of("SELECT count(*) FROM {p}lane"))
            .fetch_one(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let lanes = Lane::try_from(lanes).unwrap_or(Lane::MAX);
        // Migrating twice in one process finds the same number.
        let _ = self.lanes.set(lanes);
        Ok(())
    }
}

/// The shortest time that an answer is waited for, whatever the lease.
const LEAST_WAIT: Duration = Duration::from_millis(500);

/// How long a plugin may take to be read, whose calls wait for it.
const LOADING: Duration = Duration::from_mins(1);

/// How long it may take to look through many rows, or to change some.
const LONG: Duration = Duration::from_mins(5);

/// The longest that anything may take: to delete a large project, say.
const LONGEST: Duration = Duration::from_hours(1);

/// Waits for an answer so long and no longer: the other end may have gone.
async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|late| Err(StoreError::Unavailable(late.into())))
}

/// What a driver's error means to a caller.
fn fault(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|e| e.code().map(std::borrow::Cow::into_owned));
    match (code.as_deref(), &error) {
        (Some("53100"), _) => StoreError::Full(error.into()),
        // Lock time-out, statement time-out, deadlock, serialisation.
        (Some("55P03" | "57014" | "40P01" | "40001"), _) => StoreError::Busy(error.into()),
        // Shutdown, starting up, too many connections, connection classes, a
        // disk that fails, a session ended for its silence, a standby.
        (Some(code), _)
            if ["57P", "08", "53", "58"].iter().any(|class| code.starts_with(class))
                || ["25P03", "25P04", "25006"].contains(&code) =>
        {
            StoreError::Unavailable(error.into())
        }
        (Some("42P01" | "42703"), _) => StoreError::Schema(format!(
            "the schema isn't this version's ({error}); run `outrigger migrate`"
        )),
        (
            None,
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
            | sqlx::Error::InvalidSavePointStatement,
        ) => StoreError::Unavailable(error.into()),
        _ => StoreError::Refused(error.into()),
    }
}

/// One column of many rows, as an array to bind.
fn column<'a, T, R>(rows: &'a [T], of: impl Fn(&'a T) -> R) -> Vec<R> {
    rows.iter().map(of).collect()
}

/// Texts to bind as an array, without copying them.
type Texts<'a> = Vec<&'a str>;
