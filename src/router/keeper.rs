//! Keeps lanes and claims: takes its share, renews, hands over the surplus.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    select,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    host::{Holding, Host},
    lease::Tenure,
};
use crate::{
    model::Lane,
    store::{Held, StoreError},
};

/// Keeps lanes until the host stops.
pub(super) async fn run(host: Arc<Host>) {
    let mut keeper = Keeper { renewed: Instant::now(), name: name(), standing_by: false, host };
    loop {
        let limit = keeper.patience();
        let round = timeout(limit, keeper.round()).await;
        let rest = match round.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into()))) {
            Ok(rest) => rest,
            Err(error) => {
                tracing::warn!(error = %error, "keeping lanes failed");
                keeper.host.pulse.not_renewed(&error);
                keeper.give_up_if_late();
                keeper.interval() / 4
            }
        };
        select! {
            () = keeper.host.hard.cancelled() => return,
            () = keeper.host.to_keep.notified() => {}
            () = sleep(rest) => {}
        }
    }
}

struct Keeper {
    host: Arc<Host>,
    /// What the leases of the lanes are reckoned from.
    renewed: Instant,
    name: String,
    /// Whether this host leaves the lanes to others, and isn't counted.
    standing_by: bool,
}

impl Keeper {
    /// A sixth of a lease: five tries before it ends.
    fn interval(&self) -> Duration {
        (self.host.settings.lease / 6).min(Duration::from_secs(10))
    }

    /// How long a round may take: a database that doesn't answer is asked
    /// again on another connection, and is not waited for beyond the lease.
    fn patience(&self) -> Duration {
        let lease = self.host.settings.lease;
        let left = lease.saturating_sub(self.renewed.elapsed());
        if left.is_zero() { lease / 3 } else { left.min(lease / 3) }
    }

    /// Answers how long to rest.
    async fn round(&mut self) -> Result<Duration, StoreError> {
        let host = Arc::clone(&self.host);
        let (store, lease) = (&host.store, host.settings.lease);
        if host.is_doubtful() {
            self.start_over().await?;
        }
        let (id, began) = (host.id(), Instant::now());
        let live =
            if self.standing_by { 1 } else { store.heartbeat(id, &self.name, lease).await? };
        let held = store.renew_lanes(id, lease).await?;
        self.renewed = began;
        host.pulse.renewed();
        self.drop_lost(&held);
        self.return_unknown(&held).await?;
        self.renew_claims().await?;
        if host.soft.is_cancelled() {
            return Ok(self.interval());
        }
        self.stand_by_or_serve().await?;
        let share = if self.standing_by {
            0
        } else {
            usize::try_from(store.lanes()).unwrap_or(1).div_ceil(live.max(1))
        };
        let dry = self.mark_surplus(share);
        if !dry.is_empty() {
            store.yield_lanes(id, &dry).await?;
            self.forget(&dry);
        }
        let own = host.lanes().len();
        if own < share {
            let taken = store.take_lanes(id, share - own, lease).await?;
            if !taken.is_empty() {
                tracing::debug!(lanes = ?taken, live, "took lanes over");
                let mut lanes = host.lanes();
                for lane in taken {
                    let tenure = Arc::new(Tenure { lane, over: CancellationToken::new() });
                    lanes.insert(lane, Holding { tenure, surplus: false });
                }
                drop(lanes);
                host.to_claim.notify_one();
            }
        }
        let draining = host.lanes().values().any(|holding| holding.surplus);
        Ok(if draining { Duration::from_millis(20).min(self.interval()) } else { self.interval() })
    }

    /// Stands by while there is a trigger that only other hosts can deliver
    /// to. Others then count without this host, and take its lanes.
    async fn stand_by_or_serve(&mut self) -> Result<(), StoreError> {
        let host = &self.host;
        if let Err(error) = host.refresh().await {
            // What this host holds is to be kept all the same.
            host.faulty("reading definitions", &error);
        }
        let cause = host.stands_by(&host.rules.load());
        if let (Some((project, trigger)), false) = (&cause, self.standing_by) {
            tracing::warn!(
                project,
                trigger,
                "standing by: the trigger's code is not part of this process"
            );
        } else if cause.is_none() && self.standing_by {
            tracing::info!("serving again: every trigger can be delivered to");
        }
        let begins = cause.is_some() && !self.standing_by;
        self.standing_by = cause.is_some();
        if begins {
            host.store.goodbye(host.id()).await?;
        }
        Ok(())
    }

    /// Somebody has taken lanes over: what is held in them is void.
    fn drop_lost(&self, held: &[Lane]) {
        let held: BTreeSet<Lane> = held.iter().copied().collect();
        let lost: Vec<Lane> =
            self.host.lanes().keys().copied().filter(|lane| !held.contains(lane)).collect();
        if !lost.is_empty() {
            tracing::warn!(lanes = ?lost, "lost lanes to another host");
            self.forget(&lost);
        }
    }

    /// Lanes whose taking broke off before it was answered: renewed for ever,
    /// they would be nobody's.
    async fn return_unknown(&self, held: &[Lane]) -> Result<(), StoreError> {
        let unknown: Vec<Lane> = {
            let lanes = self.host.lanes();
            held.iter().copied().filter(|lane| !lanes.contains_key(lane)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        self.host.store.yield_lanes(self.host.id(), &unknown).await
    }

    /// Gives all lanes back and goes on as another host: whoever takes them
    /// clears the claims in them, those that nobody knows of too.
    async fn start_over(&self) -> Result<(), StoreError> {
        let (store, id) = (&self.host.store, self.host.id());
        let all: Vec<Lane> = (0..store.lanes()).collect();
        store.yield_lanes(id, &all).await?;
        let own: Vec<Lane> = self.host.lanes().keys().copied().collect();
        self.forget(&own);
        store.goodbye(id).await?;
        self.host.start_over();
        tracing::info!(before = %id, now = %self.host.id(), "a claim broke off; starting over");
        Ok(())
    }

    fn forget(&self, gone: &[Lane]) {
        for lane in gone {
            if let Some(holding) = self.host.lanes().remove(lane) {
                tracing::trace!(lane = holding.tenure.lane, "a lane is no longer held");
                holding.tenure.over.cancel();
            }
            self.host.ledger().lane_lost(*lane);
        }
        self.host.pump();
    }

    /// Marks lanes beyond the share, the highest first, and answers those that
    /// have run dry.
    fn mark_surplus(&self, share: usize) -> Vec<Lane> {
        let mut lanes = self.host.lanes();
        let kept = lanes.len().min(share);
        for (index, holding) in lanes.values_mut().enumerate() {
            holding.surplus = index >= kept;
        }
        let ledger = self.host.ledger();
        lanes
            .iter()
            .filter(|(lane, holding)| holding.surplus && ledger.in_lane(**lane) == 0)
            .map(|(lane, _)| *lane)
            .collect()
    }

    /// Extends claims that have less than two thirds of a lease left.
    async fn renew_claims(&self) -> Result<(), StoreError> {
        let lease = self.host.settings.lease;
        let began = Instant::now();
        let expiring = self.host.ledger().expiring(began + lease * 2 / 3);
        for part in expiring.chunks(1000) {
            let claims: Vec<_> = part.iter().map(|(_, claim, _)| &**claim).collect();
            let held = self.host.store.renew(&claims, lease).await?;
            let mut ledger = self.host.ledger();
            for ((id, _, own), held) in part.iter().zip(held) {
                match held {
                    // Calls that run watch it too.
                    Held::Yes => own.extend(began + lease),
                    // It may just have been settled: the settle tells.
                    // It is being settled: there is time to ask again.
                    Held::Busy => {}
                    Held::Lost if ledger.settles(*id) => {}
                    Held::Lost => {
                        self.host.metrics.lost(1);
                        ledger.lost(*id);
                    }
                }
            }
        }
        Ok(())
    }

    /// Without a word from the database for a whole lease, others may have
    /// taken the lanes.
    fn give_up_if_late(&self) {
        if self.renewed.elapsed() >= self.host.settings.lease {
            self.drop_lost(&[]);
        }
    }
}

/// What people know this host by.
fn name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = match machine.trim() {
        "" => "host",
        name => name,
    };
    format!("{machine}/{}", std::process::id())
}
