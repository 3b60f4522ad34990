//! How long claims hold, as this host knows it.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use crate::model::Lane;

/// The lease of one claimed row. It is reckoned from before the claim was sent, so
/// that it ends here no later than in the database.
#[derive(Debug)]
pub(super) struct Lease(Mutex<Instant>);

impl Lease {
    pub(super) fn new(until: Instant) -> Self {
        Self(Mutex::new(until))
    }

    pub(super) fn until(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn extend(&self, until: Instant) {
        let mut lease = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *lease = until.max(*lease);
    }

    /// Resolves when it has ended, however often it is extended meanwhile.
    pub(super) async fn ended(&self) {
        loop {
            let until = self.until();
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until.into()).await;
        }
    }
}

/// One time of holding a lane.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) lane: Lane,
    /// Cancelled when the lane is somebody else's.
    pub(super) over: CancellationToken,
}
