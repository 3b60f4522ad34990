//! Old events as files, before they are deleted.
//!
//! A file is gzip'd NDJSON: one JSON object a line, each one event with its
//! payload, meta, result, deliveries and attempts. It is written under another
//! name, synchronised, and renamed into place; only then are its events
//! deleted. So whatever dies in between, no event is lost, and at worst one is
//! in two files: readers tell by `messageId`.
//!
//! Several hosts may share a folder: names hold the time, by the database's
//! clock, and the host.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, UNIX_EPOCH},
};

use flate2::{Compression, write::GzEncoder};

use self::line::Line;
use crate::{
    model::UnixMillis,
    store::{AgedEvent, HostId},
};

mod line;

/// What a file is called behind its time and host.
const SUFFIX: &str = ".ndjson.gz";

/// What is added while it is written.
const PARTIAL: &str = ".partial";

/// A folder of archived events, as one host writes to it.
#[derive(Debug)]
pub struct Archive {
    folder: PathBuf,
    host: HostId,
    written: AtomicU64,
}

impl Archive {
    /// An archive in this folder, which is created when it is first needed.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, host: HostId) -> Self {
        Self { folder: folder.into(), host, written: AtomicU64::new(0) }
    }

    /// Creates the folder if it is missing, and makes sure that files can be
    /// written in it.
    ///
    /// # Errors
    /// When they can't.
    pub fn check(&self) -> io::Result<()> {
        // Dropped unsealed, it is gone.
        self.begin(0).map(drop)
    }

    /// Begins a file; `now` is for its name.
    ///
    /// # Errors
    /// When the folder can't be created or written to.
    pub fn begin(&self, now: UnixMillis) -> io::Result<Volume> {
        let mut builder = DirBuilder::new();
        private_folder(builder.recursive(true)).create(&self.folder)?;
        self.clear();
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let since = Duration::from_millis(u64::try_from(now).unwrap_or(0));
        let time = humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string();
        let time = time.replace([':', '-'], "");
        let path = self.folder.join(format!("{time}-{}-{number}{SUFFIX}", self.host.0.simple()));
        let partial = beside(&path);
        let file = private(OpenOptions::new().write(true).create_new(true)).open(&partial)?;
        // As long as it is locked, its writer lives.
        file.try_lock()?;
        let counted = Counted { file, bytes: 0 };
        Ok(Volume { gzip: GzEncoder::new(counted, Compression::default()), path, sealed: false })
    }

    /// Removes what hosts that died had begun: its events were not deleted.
    fn clear(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let ours = path.to_str().is_some_and(|p| p.ends_with(&format!("{SUFFIX}{PARTIAL}")));
            if !ours {
                continue;
            }
            let abandoned = File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
            if abandoned && let Err(error) = fs::remove_file(&path) {
                tracing::debug!(%error, path = %path.display(), "a broken file stays");
            }
        }
    }
}

/// A file that is being written. Dropped before it is sealed, it is removed.
pub struct Volume {
    gzip: GzEncoder<Counted>,
    path: PathBuf,
    sealed: bool,
}

impl Volume {
    /// Adds events.
    ///
    /// # Errors
    /// When they can't be written, as on a full disk. The volume is then
    /// of no use.
    pub fn add(&mut self, events: &[AgedEvent]) -> io::Result<()> {
        for event in events {
            serde_json::to_writer(&mut self.gzip, &Line::of(event))?;
            self.gzip.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Bytes on the disk so far, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.gzip.get_ref().bytes
    }

    /// Ends the file, has it written to the disk, and gives it its name.
    /// When this returns, its events may be deleted. Answers where it is.
    ///
    /// # Errors
    /// When any of that fails; then nothing may be deleted.
    pub fn seal(mut self) -> io::Result<PathBuf> {
        self.gzip.try_finish()?;
        self.gzip.get_ref().file.sync_all()?;
        fs::rename(beside(&self.path), &self.path)?;
        self.sealed = true;
        // The name is on the disk when its folder is.
        if let Some(folder) = self.path.parent() {
            sync_folder(folder)?;
        }
        Ok(std::mem::take(&mut self.path))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !self.sealed {
            // If it stays, it is cleared away later.
            let _ = fs::remove_file(beside(&self.path));
        }
    }
}

/// A file that counts what is written to it.
struct Counted {
    file: File,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PARTIAL);
    name.into()
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    std::os::unix::fs::DirBuilderExt::mode(builder, 0o700)
}

#[cfg(not(unix))]
fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    builder
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Elsewhere a folder can't be opened; a rename is in its file system's log.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
