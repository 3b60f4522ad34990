//! SQLite, the embedded default: one file, one host, one lane.
//!
//! All writes go through one [`Writer`], which leaves the file's write lock
//! free for a share of the time, so that applications with default time-outs
//! get their turn. Groups of rows travel as one JSON parameter.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, atomic::AtomicI64},
};

use serde::de::DeserializeOwned;
use sqlx::{
    Row as _, SqliteConnection, SqlitePool,
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqliteOperation, SqlitePoolOptions, SqliteRow,
        SqliteSynchronous,
    },
};
use uuid::Uuid;

use self::{
    lock::HostLock,
    stride::Stride,
    wake::{Wake, Watch},
    writer::Writer,
};
use super::{
    Options, Page, PageRequest, StoreError,
    migrate::{Dialect, migrations},
    rows::{Sql, from_json},
};
use crate::model::{Lane, UnixMillis};

mod aged;
mod alarm;
mod chains;
mod claims;
mod control;
mod events;
mod keys;
mod lanes;
mod lists;
mod lock;
mod operations;
mod plugins;
mod replay;
mod secrets;
mod settle;
mod state;
mod status;
mod stride;
mod sweep;
mod tail;
mod traits;
mod wake;
mod writer;

/// An SQLite database.
#[derive(Debug)]
pub struct Sqlite {
    writer: Writer,
    /// For everything that only looks.
    readers: SqlitePool,
    sql: Sql,
    wake: Wake,
    /// What keeps a second host from a file; memory is this process's own.
    lock: Option<HostLock>,
    /// Up to which pk the last sweep got.
    swept: AtomicI64,
    /// What claims and settles cost.
    claims: Stride,
    settles: Stride,
}

/// The one lane: one host holds a file, so there is nothing to share out.
const LANE: Lane = 0;

/// The database's clock, in milliseconds. The defaults of the outbox, which
/// every version of SQLite must understand, reckon in the same way.
macro_rules! now_ms {
    () => {
        "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
    };
}
use now_ms;

impl Sqlite {
    /// Opens a database, creating the file if it is missing: `sqlite:path`, or
    /// `sqlite::memory:` for one that goes with this value.
    ///
    /// # Errors
    /// When the URL can't be understood or the file can't be opened.
    pub async fn connect(url: &str, options: &Options) -> Result<Self, StoreError> {
        let base = SqliteConnectOptions::from_str(url)
            .map_err(|error| StoreError::Setting(format!("the database URL: {error}")))?
            .busy_timeout(options.patience)
            .foreign_keys(false)
            .statement_cache_capacity(200);
        if url.contains(":memory:") || url.contains("mode=memory") {
            return Self::in_memory(base, options).await;
        }
        let base = if url.contains("mode=") { base } else { base.create_if_missing(true) };
        Self::in_file(base, options).await
    }

    async fn in_memory(base: SqliteConnectOptions, options: &Options) -> Result<Self, StoreError> {
        let wake = Wake::new(None);
        let (bell, outbox) = (wake.bell(), format!("{}outbox", options.prefix));
        // The database is the connection: there is one, and it never ends. An
        // application has it too, with what holds on a connection of its own.
        let pool = pool(options, 1)
            .min_connections(1)
            .after_connect(move |connection, _| {
                let (bell, outbox) = (Arc::clone(&bell), outbox.clone());
                Box::pin(async move {
                    // Whoever is woken by an insert waits for the connection,
                    // which is free once that is committed.
                    connection.lock_handle().await?.set_update_hook(move |change| {
                        if change.operation == SqliteOperation::Insert && change.table == outbox {
                            bell.notify_one();
                        }
                    });
                    Ok(())
                })
            })
            .connect_with(base.foreign_keys(true))
            .await
            .map_err(fault)?;
        Ok(Self {
            writer: Writer::new(pool.clone(), pool.clone(), options.patience, false),
            readers: pool,
            sql: Sql::new(options.prefix.clone()),
            wake,
            lock: None,
            swept: AtomicI64::new(0),
            claims: Stride::default(),
            settles: Stride::default(),
        })
    }

    /// The one connection of a database in memory.
    pub(crate) fn memory(&self) -> Option<SqlitePool> {
        self.lock.is_none().then(|| self.readers.clone())
    }

    async fn in_file(base: SqliteConnectOptions, options: &Options) -> Result<Self, StoreError> {
        let path = base.get_filename().to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if path.as_os_str().is_empty() || parent.is_some_and(|parent| !parent.is_dir()) {
            let why = "the database URL names no file in a directory that exists";
            return Err(StoreError::Setting(format!("{why}: `{}`", path.display())));
        }
        let base = base
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            // What a backlog blew up is given back.
            .pragma("journal_size_limit", "67108864")
            // A page is written for a claim and again for its settle: it had
            // best go into the file once for both.
            .pragma("wal_autocheckpoint", "4000")
            .pragma("cache_size", "-16384");
        let full = base.clone().synchronous(SqliteSynchronous::Full);
        let firm = pool(options, 1).connect_lazy_with(full);
        // Creates the file and puts it into WAL mode, for which SQLite doesn't
        // wait where others open it at the same time.
        let deadline = tokio::time::Instant::now() + options.patience;
        loop {
            match firm.acquire().await.map_err(fault) {
                Ok(_) => break,
                Err(StoreError::Busy(_)) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
        let only_reads = base.clone().pragma("query_only", "ON");
        let readers = options.connections.saturating_sub(2).max(2);
        // By whichever path it is opened, it is one file.
        let path = path
            .canonicalize()
            .map_err(|error| StoreError::Setting(format!("{}: {error}", path.display())))?;
        let watch = pool(options, 1).connect_lazy_with(only_reads.clone());
        Ok(Self {
            writer: Writer::new(
                pool(options, 1).connect_lazy_with(base),
                firm,
                options.patience,
                true,
            ),
            readers: pool(options, readers).connect_lazy_with(only_reads),
            sql: Sql::new(options.prefix.clone()),
            wake: Wake::new(Some(Watch::new(watch, beside(&path, "-wal")))),
            lock: Some(HostLock::new(beside(&path, ".host-lock"))),
            swept: AtomicI64::new(0),
            claims: Stride::default(),
            settles: Stride::default(),
        })
    }

    /// Runs the migrations that this database hasn't had yet, one transaction
    /// each, one process at a time.
    async fn bring_up(&self) -> Result<(), StoreError> {
        let prefix = self.sql.prefix();
        let steps = migrations(Dialect::Sqlite, prefix, &format!("{prefix}inbox"), 1);
        for step in &steps {
            let mut tx = self.writer.begin_firm().await?;
            sqlx::query(self.sql.of(
                "CREATE TABLE IF NOT EXISTS {p}migration (
                     version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)",
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
            sqlx::query(self.sql.of(concat!(
                "INSERT INTO {p}migration (version, name, applied_at) VALUES (?1, ?2, ",
                now_ms!(),
                ")"
            )))
            .bind(step.version)
            .bind(step.name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
            tx.commit().await?;
        }
        Ok(())
    }
}

/// The file of this name with something behind it.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn pool(options: &Options, connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(options.patience)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .before_acquire(|connection, _| {
            Box::pin(async move {
                use sqlx::Connection as _;
                // A rollback may be on its way; the ping comes after it. What
                // is still in a transaction then has been rolled back by
                // SQLite itself (when the disk is full), and can't begin
                // another one.
                if connection.is_in_transaction() {
                    connection.ping().await?;
                }
                Ok(!connection.is_in_transaction())
            })
        })
}

/// The time, and with it what the rest of a transaction reckons with.
async fn now(db: &mut SqliteConnection) -> Result<UnixMillis, StoreError> {
    let row = sqlx::query(concat!("SELECT ", now_ms!())).fetch_one(db).await.map_err(fault)?;
    get(&row, 0)
}

/// What a driver's error means to a caller.
fn fault(error: sqlx::Error) -> StoreError {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const IOERR: i32 = 10;
    const FULL: i32 = 13;
    const CANTOPEN: i32 = 14;
    /// The index of the write-ahead log couldn't grow.
    const IOERR_SHMSIZE: i32 = IOERR | (19 << 8);
    /// What a quota or a limit on the size of files leads to, too.
    const IOERR_WRITE: i32 = IOERR | (3 << 8);
    let said = error.as_database_error();
    let code =
        said.and_then(sqlx::error::DatabaseError::code).and_then(|code| code.parse::<i32>().ok());
    if said.is_some_and(|said| {
        ["no such table", "no such column"].iter().any(|begin| said.message().starts_with(begin))
    }) {
        return StoreError::Schema(format!(
            "the schema isn't this version's ({error}); run `outrigger migrate`"
        ));
    }
    match (code, code.map(|code| code & 0xff)) {
        (_, Some(BUSY | LOCKED)) => StoreError::Busy(error.into()),
        (Some(IOERR_SHMSIZE | IOERR_WRITE), _) | (_, Some(FULL)) => StoreError::Full(error.into()),
        (_, Some(IOERR | CANTOPEN)) => StoreError::Unavailable(error.into()),
        (Some(_), _) => StoreError::Refused(error.into()),
        (None, _) => match error {
            sqlx::Error::PoolTimedOut => StoreError::Busy(error.into()),
            sqlx::Error::Io(_)
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
            | sqlx::Error::InvalidSavePointStatement => StoreError::Unavailable(error.into()),
            _ => StoreError::Refused(error.into()),
        },
    }
}

/// A column, whatever type its value has: SQLite keeps what it is given.
fn get<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite>,
{
    row.try_get_unchecked(index).map_err(fault)
}

/// A text that an application wrote: bytes that are no text are replaced, so
/// that one odd row can't stop all others.
fn text(row: &SqliteRow, index: usize) -> Result<String, StoreError> {
    let bytes: &[u8] = get(row, index)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn maybe_text(row: &SqliteRow, index: usize) -> Result<Option<String>, StoreError> {
    let bytes: Option<&[u8]> = get(row, index)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// What a statement has gathered into one JSON document, cast to a blob.
fn gathered<T: DeserializeOwned>(row: &SqliteRow) -> Result<T, StoreError> {
    let text = String::from_utf8_lossy(get(row, 0)?);
    from_json("rows", &text)
}

fn id(row: &SqliteRow, index: usize) -> Result<Uuid, StoreError> {
    let text: &str = get(row, index)?;
    Uuid::try_parse(text).map_err(|error| StoreError::Refused(format!("`{text}`: {error}").into()))
}

/// A count, which the schema keeps as a signed integer.
fn count(row: &SqliteRow, index: usize) -> Result<u32, StoreError> {
    Ok(u32::try_from(get::<i64>(row, index)?).unwrap_or(0))
}

/// A page from what was found: as many as were asked for may be followed by more.
fn paged<T>(items: Vec<T>, page: &PageRequest, id: impl Fn(&T) -> i64) -> Page<T> {
    let full = items.len() >= page.limit as usize;
    let next = items.last().filter(|_| full).map(id);
    Page { items, next }
}
