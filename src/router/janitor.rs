//! What has to be done now and then: retention, and bulk work that is left over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{select, time::sleep};

use super::{archivist::Archivist, host::Host, replay};
use crate::archive::Archive;

/// Events that are deleted in one transaction.
const BATCH: u32 = 500;

/// Rest between two rounds.
const REST: Duration = Duration::from_secs(5);

/// Cleans up until the host is to stop.
pub(super) async fn run(host: Arc<Host>) {
    let folder = host.settings.archive.as_ref();
    let archive = folder.map(|folder| Archive::new(folder, host.id()));
    let mut archivist = archive.map(|archive| Archivist::new(Arc::clone(&host), archive));
    loop {
        select! {
            () = host.soft.cancelled() => return,
            () = sleep(REST) => {}
        }
        match &mut archivist {
            Some(archivist) => archivist.round().await,
            None => sweep(&host).await,
        }
        while !host.soft.is_cancelled() {
            match replay::advance(&*host.store, BATCH).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    host.faulty("carrying on bulk work", &error);
                    break;
                }
            }
        }
    }
}

/// Deletes for half of the time at the most. However much comes in, as much
/// can go: a rest of a fixed length would be a rate that is never exceeded.
async fn sweep(host: &Host) {
    while !host.soft.is_cancelled() {
        let began = Instant::now();
        match host.store.sweep(host.settings.retention, BATCH).await {
            Ok(gone) if gone >= u64::from(BATCH) => sleep(began.elapsed().min(REST)).await,
            Ok(_) => break,
            Err(error) => {
                host.faulty("deleting old events", &error);
                break;
            }
        }
    }
}
