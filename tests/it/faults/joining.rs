//! Hosts that come and go under full load.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::load::{LONG, Load, count, triggers};
use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::alone,
};

const LEASE: [(&str, &str); 1] = [("OUTRIGGER_LEASE", "4s")];

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_joins_gets_its_share_and_those_that_leave_cost_nothing() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let mut first = Host::with(&database.url, &LEASE).await;
    triggers(&first).await;
    let mut second = Host::with(&database.url, &LEASE).await;
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let shares = "SELECT count(*) * 100 + min(n)
                    FROM (SELECT count(*) AS n FROM outrigger_lane
                           WHERE holder IS NOT NULL GROUP BY holder) h";
    eventually("two hosts have eight lanes each", LONG, async || {
        match count(&mut rows, shares).await {
            208 => Ok(()),
            other => Err(other),
        }
    })
    .await;

    let load = Load { events: 6000, aggregates: 200 };
    let writer = tokio::spawn(load.record_all(database.url.clone(), Duration::from_millis(250)));
    eventually("the hosts are at work", LONG, async || {
        let done = second.metric("outrigger_dispatched_events_total").await;
        if done > 0 { Ok(()) } else { Err(done) }
    })
    .await;
    let third = Host::with(&database.url, &LEASE).await;
    let three_leases = Duration::from_secs(3 * 4);
    eventually("the third has its share within three leases", three_leases, async || {
        let seen = count(&mut rows, shares).await;
        if (304..=306).contains(&seen) { Ok(()) } else { Err(seen) }
    })
    .await;

    first.kill();
    second.signal("TERM");
    assert_eq!(second.exit_code(LONG).await, Some(0));
    eventually("the third has all lanes", LONG, async || match count(&mut rows, shares).await {
        116 => Ok(()),
        other => Err(other),
    })
    .await;
    writer.await.unwrap();
    load.drained(&database.url).await;
    load.check(&database.url, "one joined and two left").await;
    assert!(third.metric("outrigger_dispatched_events_total").await > 0);
}
