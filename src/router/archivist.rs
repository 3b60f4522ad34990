//! Old events are archived, and then deleted.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::sleep};

use super::host::Host;
use crate::{
    archive::{Archive, Volume},
    model::Lane,
    store::{AgedEvent, StoreError, Trace},
};

/// Events that are read at once, and deleted in one transaction.
const BATCH: u32 = 200;

/// A file is ended at this size.
const VOLUME_BYTES: u64 = 64 << 20;

/// A file is ended at this number of events.
const VOLUME_EVENTS: usize = 100_000;

/// From one file to the next, so that there aren't too many.
const GATHERING: Duration = Duration::from_mins(1);

/// The first wait after a file that couldn't be written; doubles up to
/// [`GATHERING`].
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Archives the events of the lanes that this host holds.
pub(super) struct Archivist {
    host: Arc<Host>,
    archive: Arc<Archive>,
    /// In a file, and not yet deleted.
    owed: Vec<Trace>,
    /// Up to which pk events were looked at.
    after: i64,
    /// When the next file may begin.
    rests_until: Instant,
    /// How long to wait after the next failure.
    wait: Duration,
}

enum Fault {
    Store(StoreError),
    File(io::Error),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// What has become a file, if something has.
#[derive(Default)]
struct Written {
    events: u64,
    /// Whether the file was ended for its size.
    full: bool,
}

impl Archivist {
    pub(super) fn new(host: Arc<Host>, archive: Archive) -> Self {
        let (archive, rests_until) = (Arc::new(archive), Instant::now());
        Self { host, archive, owed: Vec::new(), after: 0, rests_until, wait: FIRST_WAIT }
    }

    /// Writes one file, if there is something to write, and deletes what is in
    /// it. Whatever fails, only what is in a file is deleted.
    pub(super) async fn round(&mut self) {
        if let Err(error) = self.settle_up().await {
            return self.host.faulty("deleting archived events", &error);
        }
        if Instant::now() < self.rests_until {
            return;
        }
        match self.write().await {
            Ok(Written { events: 0, .. }) => {}
            Ok(Written { events, full }) => {
                self.host.metrics.archived(events);
                self.wait = FIRST_WAIT;
                // Behind a full one there may be as much again.
                if !full {
                    self.rests_until = Instant::now() + GATHERING;
                }
                if let Err(error) = self.settle_up().await {
                    self.host.faulty("deleting archived events", &error);
                }
            }
            Err(fault) => {
                self.after = 0;
                self.rests_until = Instant::now() + self.wait;
                self.wait = (self.wait * 2).min(GATHERING);
                match fault {
                    Fault::Store(error) => self.host.faulty("reading old events", &error),
                    Fault::File(error) => {
                        self.host.metrics.archive_failed();
                        tracing::warn!(%error, "old events can't be archived, and so are kept");
                    }
                }
            }
        }
    }

    /// Deletes what is in a file.
    async fn settle_up(&mut self) -> Result<(), StoreError> {
        while !self.owed.is_empty() {
            let from = self.owed.len().saturating_sub(BATCH as usize);
            let began = Instant::now();
            self.host.store.forget(&self.owed[from..]).await?;
            self.owed.truncate(from);
            // Others write too.
            sleep(began.elapsed().min(FIRST_WAIT)).await;
        }
        Ok(())
    }

    /// Writes one file.
    async fn write(&mut self) -> Result<Written, Fault> {
        let lanes: Vec<Lane> = self.host.lanes().keys().copied().collect();
        let (mut volume, mut traces) = (None, Vec::new());
        let full = loop {
            if self.host.soft.is_cancelled() {
                return Ok(Written::default());
            }
            let retention = self.host.settings.retention;
            let aged = self.host.store.aged(&lanes, retention, self.after, BATCH).await?;
            self.after = aged.next.unwrap_or(0);
            let full = if aged.events.is_empty() {
                false
            } else {
                traces.extend(aged.events.iter().map(AgedEvent::trace));
                let filled = self.fill(volume.take(), aged.events).await?;
                let bytes = filled.bytes();
                volume = Some(filled);
                bytes >= VOLUME_BYTES || traces.len() >= VOLUME_EVENTS
            };
            if full || aged.next.is_none() {
                break full;
            }
        };
        let Some(volume) = volume else { return Ok(Written::default()) };
        let path = blocking(move || volume.seal()).await?;
        let events = traces.len() as u64;
        self.owed = traces;
        tracing::debug!(events, path = %path.display(), "archived old events");
        Ok(Written { events, full })
    }

    async fn fill(&self, volume: Option<Volume>, events: Vec<AgedEvent>) -> io::Result<Volume> {
        let (archive, now) = (Arc::clone(&self.archive), self.host.clock.now());
        blocking(move || {
            let mut volume = volume.map_or_else(|| archive.begin(now), Ok)?;
            volume.add(&events)?;
            Ok(volume)
        })
        .await
    }
}

/// Runs what waits for a disk where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|broken| Err(io::Error::other(broken)))
}
