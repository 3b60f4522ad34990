//! What keeps a second host from a file.

use std::{
    fs::{File, TryLockError},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use crate::store::StoreError;

/// A lock on a file beside the database, held as long as this value lives.
///
/// Beside it, since closing any handle on the database's own file would drop
/// the locks that SQLite has on it.
#[derive(Debug)]
pub(super) struct HostLock {
    path: PathBuf,
    held: Mutex<Option<File>>,
}

impl HostLock {
    /// The lock that this file is.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, held: Mutex::new(None) }
    }

    /// Takes the lock, or finds that this value has it.
    pub(super) fn hold(&self) -> Result<(), StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Ok(());
        }
        let fail = |error| StoreError::Setting(format!("{}: {error}", self.path.display()));
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)
            .map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {
                *held = Some(file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(StoreError::Setting(format!(
                "another host holds this SQLite file (its lock is {}); one host at a time can \
                 run on it, several can share a PostgreSQL database",
                self.path.display()
            ))),
            Err(TryLockError::Error(error)) => Err(fail(error)),
        }
    }
}
