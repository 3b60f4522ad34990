//! From claimed rows to settled ones.
//!
//! `poller` claims what there is room for, each project its part (`demand`), and
//! matches it (`rules`, `matcher`); `ledger` keeps what is held, in order;
//! `executor` makes the calls; `settler` writes results in groups (`ready`); `keeper` renews leases and shares lanes out;
//! `janitor` cleans up, `archivist` keeps files of what it deletes, `replay`
//! carries bulk work on. A `batch` is what calls of one claim share, a `desk` what a host
//! remembers of a trigger: its limits, its failures, and as `pending`, state
//! that is not settled yet.
//! `alone` finds events that kill their host, `pauses` triggers that keep
//! failing.

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    select,
    time::{Instant, sleep, sleep_until},
};

use self::{host::Host, ledger::Ledger};
use crate::{metrics::Metrics, model::names::Invalid, store::Store, targets::Targets};

mod alone;
mod archivist;
mod batch;
mod demand;
mod desk;
#[doc(hidden)] // For the benchmark of a call's cost, which is no part of the library.
pub mod dry;
mod ending;
mod executor;
mod host;
mod janitor;
mod keeper;
mod lease;
mod ledger;
mod limiter;
pub mod matcher;
mod pauses;
mod pending;
mod poller;
mod pulse;
mod ready;
pub mod replay;
mod rules;
mod settler;

pub use pulse::{Health, Pulse};

/// How a router works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rows of one claim at the most.
    pub batch: u32,
    /// How long claims and lanes hold without being renewed.
    pub lease: Duration,
    /// The longest sleep when there is nothing to do.
    pub poll: Duration,
    /// Calls that may run at once, all triggers together.
    pub concurrency: usize,
    /// Times that its host dies with a delivery, all but the first with
    /// nothing else running, before it is a dead letter: 3 or more.
    pub deaths: u32,
    /// How long settled events are kept.
    pub retention: Duration,
    /// The folder where they are archived before they are deleted, if there
    /// is to be one.
    pub archive: Option<PathBuf>,
    /// The only projects to serve, if some are named.
    pub projects: Option<Vec<String>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 500,
            lease: Duration::from_mins(1),
            poll: Duration::from_secs(1),
            concurrency: 64,
            deaths: 3,
            retention: Duration::from_hours(168),
            archive: None,
            projects: None,
        }
    }
}

impl Settings {
    /// Checks what the types can't say.
    ///
    /// # Errors
    /// Names the setting that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        let hour = Duration::from_hours(1);
        let ranges = [
            ("batch", (1..=10_000).contains(&self.batch), "is not between 1 and 10000"),
            (
                "lease",
                (Duration::from_millis(100)..=hour).contains(&self.lease),
                "is not between 100ms and 1h",
            ),
            ("poll", self.poll < self.lease, "is not shorter than the lease"),
            ("poll", self.poll >= Duration::from_millis(1), "is shorter than 1ms"),
            ("concurrency", (1..=10_000).contains(&self.concurrency), "is not between 1 and 10000"),
            ("retention", !self.retention.is_zero(), "is nothing"),
        ];
        match ranges.into_iter().find(|(_, holds, _)| !holds) {
            Some((field, _, why)) => Err(Invalid::new(field, why)),
            None => Ok(()),
        }
    }

    fn takes(&self, project: &str) -> bool {
        self.projects.as_ref().is_none_or(|only| only.iter().any(|one| one == project))
    }
}

/// A running router.
pub struct Router {
    host: Arc<Host>,
}

impl Router {
    /// Starts a router on the current runtime.
    #[must_use]
    pub fn start(
        store: Arc<dyn Store>,
        targets: Arc<dyn Targets>,
        metrics: Arc<Metrics>,
        settings: Settings,
    ) -> Self {
        let host = Arc::new(Host::new(store, targets, metrics, settings));
        host.tasks.spawn(keeper::run(Arc::clone(&host)));
        host.tasks.spawn(poller::run(Arc::clone(&host)));
        host.tasks.spawn(settler::run(Arc::clone(&host)));
        host.tasks.spawn(janitor::run(Arc::clone(&host)));
        Self { host }
    }

    /// How it fares, and when events are settled.
    #[must_use]
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.host.pulse)
    }

    /// Stops: claims nothing more, gives back what has not begun, lets calls
    /// end and settles them for at most `grace`, gives back the rest, and
    /// hands the lanes over.
    pub fn stop(self, grace: Duration) -> impl Future<Output = ()> + Send {
        let host = self.host;
        host.soft.cancel();
        async move {
            let end = Instant::now() + grace;
            host.ledger().close();
            host.pump();
            loop {
                if host.ledger().len() == 0 {
                    break;
                }
                // What a claim on its way has brought since goes back too.
                host.pump();
                select! {
                    () = sleep_until(end) => break,
                    () = sleep(Duration::from_millis(5)) => {}
                }
            }
            host.ledger().release_all();
            host.hard.cancel();
            host.to_settle.notify_one();
            host.tasks.close();
            // Tasks end by themselves now; one that hangs doesn't hold us up.
            let _ = tokio::time::timeout(Duration::from_secs(5), host.tasks.wait()).await;
            let lanes: Vec<_> = host.lanes().keys().copied().collect();
            let leaving = async {
                host.store.yield_lanes(host.id(), &lanes).await?;
                host.store.goodbye(host.id()).await
            };
            match tokio::time::timeout(Duration::from_secs(5), leaving).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => host.faulty("leaving", &error),
                Err(_) => tracing::warn!("the database didn't answer the farewell"),
            }
        }
    }

    /// Stops at once, as if the process had died: nothing is given back.
    pub fn kill(self) {
        self.host.soft.cancel();
        *self.host.ledger() = Ledger::default();
        self.host.hard.cancel();
    }
}
