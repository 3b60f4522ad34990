//! Hosts that are asked to stop while they work.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::{
    QUICK,
    load::{LONG, Load, count, triggers},
};
use crate::{
    database::Database,
    hosts::{Host, client, eventually},
    scenarios::alone,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_leaves_nothing_claimed_and_burns_no_attempt() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let mut host = Host::with(&database.url, &[("OUTRIGGER_GRACE", "1s")]).await;
    triggers(&host).await;
    // Longer than the grace: they can't be waited for.
    let naps: Vec<_> = (0..16)
        .map(|number| {
            json!({
                "resource": "order", "aggregateId": format!("nap-{number}"),
                "eventName": "order.placed", "payload": {"do": [{"op": "sleep", "ms": 3000}]}
            })
        })
        .collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(naps.into())).await;
    let load = Load { events: 4000, aggregates: 200 };
    let writer = tokio::spawn(load.record_all(database.url.clone(), Duration::from_millis(100)));
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    eventually("some events are through and all naps are under way", LONG, async || {
        let done = host.metric("outrigger_dispatched_events_total").await;
        let naps = "SELECT count(*) FROM outrigger_outbox
                     WHERE aggregate_id LIKE 'nap-%' AND claim_id IS NOT NULL";
        let naps = count(&mut rows, naps).await;
        if done > 0 && naps == 16 { Ok(()) } else { Err((done, naps)) }
    })
    .await;
    host.signal("TERM");
    // The last steps, the farewell to the database among them, have bounds too.
    assert_eq!(host.exit_code(Duration::from_secs(30)).await, Some(0));
    let claimed = "SELECT (SELECT count(*) FROM outrigger_outbox WHERE claim_id IS NOT NULL)
                        + (SELECT count(*) FROM outrigger_delivery WHERE claim_id IS NOT NULL)
                        + (SELECT count(*) FROM outrigger_lane WHERE holder IS NOT NULL)
                        + (SELECT count(*) FROM outrigger_host)";
    assert_eq!(count(&mut rows, claimed).await, 0);
    writer.await.unwrap();
    let left = "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL";
    assert!(count(&mut rows, left).await > 0, "it was stopped in the middle");

    let _next = Host::start(&database.url).await;
    let all = "SELECT count(*) FROM outrigger_outbox WHERE aggregate_id LIKE 'nap-%'
                                                       AND dispatched_at IS NOT NULL";
    eventually("the naps are over", LONG, async || match count(&mut rows, all).await {
        16 => Ok(()),
        other => Err(other),
    })
    .await;
    load.drained_beside(&database.url, 16).await;
    load.check(&database.url, "a stop").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let database = Database::postgres().await;
    let settings = [QUICK[0], ("OUTRIGGER_GRACE", "10m")];
    let mut host = Host::with(&database.url, &settings).await;
    host.project("shop").await;
    let trigger = json!({
        "match": {"resource": "order"}, "target": {"plugin": "probe"},
        "limits": {"deadline": "10m"}
    });
    host.trigger("shop", "orders", trigger).await;
    let event = json!({
        "resource": "order", "aggregateId": "o-1", "eventName": "order.placed",
        "payload": {"do": [{"op": "sleep", "ms": 600_000}]}
    });
    host.ok(Method::POST, "/v1/projects/shop/events", Some(event)).await;
    let held = async |host: &Host| match host.metric("outrigger_held_rows").await {
        1 => Ok(()),
        other => Err(other),
    };
    eventually("the call is under way", LONG, async || held(&host).await).await;
    host.signal("TERM");
    let health = format!("{}/healthz", host.url());
    eventually("it is stopping", LONG, async || match client().get(&health).send().await {
        Err(_) => Ok(()),
        Ok(answer) => Err(answer.status()),
    })
    .await;
    assert!(host.runs(), "a call is still under way");
    host.signal("TERM");
    assert_eq!(host.exit_code(LONG).await, Some(130));

    let next = Host::with(&database.url, &QUICK).await;
    eventually("another host has the event", LONG, async || held(&next).await).await;
}
