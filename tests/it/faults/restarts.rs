//! Hosts that are killed, on a database that crashes and cuts them off.

use std::time::{Duration, Instant};

use sqlx::{Connection, Executor, PgConnection, Row};
use tokio::time::sleep;

use super::{
    QUICK,
    cluster::Cluster,
    load::{Load, triggers},
};
use crate::{hosts::Host, scenarios::alone};

/// Ends the connections of all hosts; answers how many.
async fn cut_off(url: &str) -> i64 {
    let mut database = PgConnection::connect(url).await.unwrap();
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE application_name = 'outrigger'";
    database.fetch_one(sql).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_under_killed_hosts_costs_nothing() {
    let _alone = alone().await;
    let cluster = Cluster::start();
    let url = cluster.url();
    let mut hosts = [Host::with(&url, &QUICK).await, Host::with(&url, &QUICK).await];
    triggers(&hosts[0]).await;
    let load = Load { events: 20_000, aggregates: 500 };
    let writer = tokio::spawn(load.record_all(url.clone(), Duration::from_secs(1)));

    let begun = Instant::now();
    let minute = Duration::from_mins(1);
    let (mut kills, mut crashes, mut ended) = (0, 0, 0);
    while begun.elapsed() < minute {
        sleep(Duration::from_millis(fastrand::u64(500..3000))).await;
        if begun.elapsed() > minute * (crashes + 1) / 3 && crashes < 2 {
            cluster.crash();
            crashes += 1;
            // Hosts try in vain for a while; one of them dies meanwhile.
            sleep(Duration::from_millis(fastrand::u64(200..2000))).await;
            let victim = &mut hosts[fastrand::usize(..2)];
            victim.kill();
            cluster.start_again();
            *victim = Host::with(&url, &QUICK).await;
            kills += 1;
        } else if fastrand::bool() {
            ended += cut_off(&url).await;
        } else {
            let victim = &mut hosts[fastrand::usize(..2)];
            victim.kill();
            *victim = Host::with(&url, &QUICK).await;
            kills += 1;
        }
    }
    assert_eq!(crashes, 2);
    writer.await.unwrap();
    load.drained(&url).await;
    let after = format!("{kills} kills, {crashes} crashes, {ended} connections ended");
    load.check(&url, &after).await;
}
