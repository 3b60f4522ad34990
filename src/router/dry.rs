//! What a host does between a claim and its settle, without the rest: for
//! measurements of what a call costs.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{
    Settings,
    batch::Batch,
    host::Host,
    lease::{Lease, Tenure},
    ledger::{Terms, UnitId},
};
use crate::{
    metrics::Metrics,
    model::Lane,
    store::{Claimed, ClaimedEvent, HostId, Seam, Settlement, Store, StoreError},
    targets::Targets,
};

/// How long lanes and claims hold.
const LEASE: Duration = Duration::from_hours(1);

/// Payloads of one claim.
const CLAIM_BYTES: u64 = 32 << 20;

/// A host whose claims and settles come when they are asked for.
pub struct DryRun {
    host: Arc<Host>,
    tenures: BTreeMap<Lane, Arc<Tenure>>,
}

/// What calls have ended in, and isn't written yet.
pub struct Ended(Vec<(UnitId, Settlement)>);

impl Ended {
    /// What is to be written.
    pub fn settlements(&self) -> impl Iterator<Item = &Settlement> {
        self.0.iter().map(|(_, settlement)| settlement)
    }
}

impl DryRun {
    /// Takes all lanes, and the definitions as they are.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn new(store: Arc<dyn Store>, targets: Arc<dyn Targets>) -> Result<Self, StoreError> {
        let metrics = Arc::new(Metrics::new());
        let host = Arc::new(Host::new(store, targets, metrics, Settings::default()));
        host.refresh().await?;
        let all = usize::try_from(host.store.lanes()).unwrap_or_default();
        let lanes = host.store.take_lanes(host.id(), all, LEASE).await?;
        let tenure = |lane| Arc::new(Tenure { lane, over: CancellationToken::new() });
        let tenures = lanes.into_iter().map(|lane| (lane, tenure(lane))).collect();
        for rule in host.rules.load().all() {
            rule.target.warm().await;
        }
        Ok(Self { host, tenures })
    }

    /// Claims events of a project.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn claim(
        &self,
        project: &str,
        limit: u32,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        let seam = |lane: &Lane| Seam { lane: *lane, project: project.to_owned(), above: 0, limit };
        let seams: Vec<Seam> = self.tenures.keys().map(seam).collect();
        let host: HostId = self.host.id();
        self.host.store.claim_events(host, &seams, CLAIM_BYTES, LEASE).await
    }

    /// Everything that a host does with what it has claimed until it is to be
    /// written: it matches, keeps order, makes the calls and judges them.
    pub async fn call(&self, claimed: Claimed<ClaimedEvent>) -> Ended {
        let lease = Arc::new(Lease::new(Instant::now() + LEASE));
        let batch = Arc::new(Batch::default());
        let rules = self.host.rules.load_full();
        let mut expected = 0;
        {
            let mut ledger = self.host.ledger();
            let number = ledger.claim_begins();
            ledger.sees(claimed.horizon);
            for row in claimed.rows {
                let Some(tenure) = self.tenures.get(&row.event.lane) else { continue };
                let terms = Terms {
                    lease: Arc::clone(&lease),
                    tenure: Arc::clone(tenure),
                    batch: Arc::clone(&batch),
                };
                let matching = rules.matching(&row.event);
                ledger.admit_event(row, matching, &terms, number);
                expected += 1;
            }
            ledger.claim_ends(number);
        }
        batch.complete();
        self.host.pump();
        let mut ended = Vec::with_capacity(expected);
        while ended.len() < expected {
            self.host.to_settle.notified().await;
            let mut ledger = self.host.ledger();
            let (group, projects) = ledger.collect(usize::MAX);
            ledger.written(&projects);
            ended.extend(group);
        }
        Ended(ended)
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn settle(&self, ended: Ended) -> Result<(), StoreError> {
        let (ids, group): (Vec<_>, Vec<_>) = ended.0.into_iter().unzip();
        self.host.store.settle(&group, LEASE).await?;
        let mut ledger = self.host.ledger();
        for (id, settlement) in ids.into_iter().zip(&group) {
            ledger.settled(id, settlement);
        }
        Ok(())
    }
}
