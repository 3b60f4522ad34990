//! Hosts that are killed again and again, and databases that fail them.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use self::load::{Load, triggers};
use crate::{database::Database, hosts::Host, scenarios::alone};

mod clocks;
mod cluster;
mod joining;
mod late;
mod leases;
mod load;
mod network;
mod plugins;
mod proxy;
mod restarts;
mod shared;
mod sqlite;
mod stops;

/// A lease that ends soon after its host.
const QUICK: [(&str, &str); 1] = [("OUTRIGGER_LEASE", "2s")];

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_are_killed_at_random_keep_every_promise() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let mut hosts =
        [Host::with(&database.url, &QUICK).await, Host::with(&database.url, &QUICK).await];
    triggers(&hosts[0]).await;
    let load = Load { events: 20_000, aggregates: 500 };
    let writer = tokio::spawn(load.record_all(database.url.clone(), Duration::from_secs(1)));
    let end = Instant::now() + Duration::from_mins(1);
    let mut kills = 0;
    while Instant::now() < end {
        sleep(Duration::from_millis(fastrand::u64(500..4000))).await;
        let victim = &mut hosts[fastrand::usize(..2)];
        victim.kill();
        *victim = Host::with(&database.url, &QUICK).await;
        kills += 1;
    }
    writer.await.unwrap();
    load.drained(&database.url).await;
    load.check(&database.url, &format!("{kills} kills")).await;
}
