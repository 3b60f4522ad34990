//! Leases that end before results are written.

use std::time::{Duration, Instant};

use sqlx::{Connection, Executor, PgConnection};
use tokio::time::sleep;

use super::load::{LONG, Load, triggers};
use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::alone,
};

/// The shortest that there is.
const SHORT: [(&str, &str); 2] = [("OUTRIGGER_LEASE", "1s"), ("OUTRIGGER_POLL_INTERVAL", "100ms")];

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_end_while_results_are_written_leave_nothing_held() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let host = Host::with(&database.url, &SHORT).await;
    triggers(&host).await;
    let load = Load { events: 4000, aggregates: 200 };
    let writer = tokio::spawn(load.record_all(database.url.clone(), Duration::from_millis(300)));
    let mut other = PgConnection::connect(&database.url).await.unwrap();
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        // Claims go on; settles wait, most of them for too long.
        let mut tx = other.begin().await.unwrap();
        tx.execute("LOCK TABLE outrigger_state IN EXCLUSIVE MODE").await.unwrap();
        sleep(Duration::from_millis(fastrand::u64(500..1200))).await;
        tx.rollback().await.unwrap();
        sleep(Duration::from_millis(fastrand::u64(20..100))).await;
    }
    writer.await.unwrap();
    load.drained(&database.url).await;
    eventually("nothing is held", LONG, async || match host.metric("outrigger_held_rows").await {
        0 => Ok(()),
        held => Err(held),
    })
    .await;
    assert!(host.metric("outrigger_lost_claims_total").await > 0, "every result was in time");
    load.check(&database.url, "leases that ended").await;
}
