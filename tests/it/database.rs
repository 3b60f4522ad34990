//! Databases for tests: each test has one of its own.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use sqlx::{Connection, Executor, PgConnection};

/// A database of a test's own; a file is deleted with it.
pub(crate) struct Database {
    /// Its URL.
    pub url: String,
    file: Option<PathBuf>,
}

/// A name that no other test has.
pub(crate) fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Database {
    /// A new SQLite file.
    pub(crate) fn sqlite() -> Self {
        let file = std::env::temp_dir().join(format!("outrigger-{}.db", name()));
        Self { url: format!("sqlite:{}", file.display()), file: Some(file) }
    }

    /// A new database in the test cluster.
    pub(crate) async fn postgres() -> Self {
        let cluster = cluster();
        let name = name();
        let mut admin = PgConnection::connect(&cluster).await.unwrap();
        admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let (server, _) = cluster.rsplit_once('/').unwrap();
        Self { url: format!("{server}/{name}"), file: None }
    }

    /// The path of an SQLite database.
    pub(crate) fn path(&self) -> &std::path::Path {
        self.file.as_deref().unwrap()
    }
}

/// The URL of the test cluster.
pub(crate) fn cluster() -> String {
    std::env::var("OUTRIGGER_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!("OUTRIGGER_TEST_POSTGRES isn't set; `scripts/test` starts a cluster and sets it")
    })
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            for suffix in ["", "-wal", "-shm", ".host-lock", ".lock"] {
                let mut path = file.clone().into_os_string();
                path.push(suffix);
                // Some of them were never there.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}
