//! Hosts whose clocks disagree.

use std::{path::PathBuf, process::Command};

use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::load::{LONG, Load, count, triggers};
use crate::{
    database::{Database, name},
    guests::root,
    hosts::{Host, client, eventually},
    scenarios::{alone, calls},
};

/// The library that moves a clock, compiled; deleted when it is dropped.
struct Shim(PathBuf);

impl Shim {
    fn compile() -> Self {
        let library = std::env::temp_dir().join(format!("outrigger-shift-{}.so", name()));
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(root().join("tests/clock/shift.c"))
            .arg("-ldl")
            .status()
            .unwrap();
        assert!(done.success());
        Self(library)
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // It may be needed no more even where it can't be deleted.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What a host takes for the time, in seconds since the epoch.
async fn clock(host: &Host) -> i64 {
    let url = format!("{}/healthz", host.url());
    let answer = client().get(url).send().await.unwrap();
    let date = answer.headers()["date"].to_str().unwrap().to_owned();
    let parsed = Command::new("date").args(["-u", "+%s", "-d", &date]).output().unwrap();
    String::from_utf8(parsed.stdout).unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_an_hour_apart_matter_to_nobody() {
    let _alone = alone().await;
    let shim = Shim::compile();
    let database = Database::postgres().await;
    let library = shim.0.display().to_string();
    let moved = |by| {
        [("OUTRIGGER_LEASE", "5s"), ("LD_PRELOAD", library.as_str()), ("CLOCK_SHIFT_SECONDS", by)]
    };
    let early = Host::with(&database.url, &moved("-1800")).await;
    triggers(&early).await;
    let late = Host::with(&database.url, &moved("1800")).await;
    let apart = clock(&late).await - clock(&early).await;
    assert!((3500..3700).contains(&apart), "the clocks are {apart} s apart");

    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let split = "SELECT count(*) FROM (SELECT holder FROM outrigger_lane WHERE holder IS NOT NULL
                                        GROUP BY holder HAVING count(*) = 8) h";
    eventually("lanes are shared out", LONG, async || match count(&mut rows, split).await {
        2 => Ok(()),
        other => Err(other),
    })
    .await;

    // Scheduled by either host, due by the database's clock.
    let now = "SELECT outrigger_now_ms()";
    for (number, host) in [&early, &late].into_iter().enumerate() {
        let before = count(&mut rows, now).await;
        let event = json!({
            "resource": "timed", "aggregateId": number.to_string(), "eventName": "timed.due",
            "payload": {}, "availableAt": before + 3000
        });
        let answer = host.ok(Method::POST, "/v1/projects/shop/events", Some(event)).await;
        let created = answer["createdAt"].as_i64().unwrap();
        let after = count(&mut rows, now).await;
        assert!((before..=after).contains(&created), "{before} {created} {after}");
    }

    let load = Load { events: 4000, aggregates: 200 };
    load.record_all(database.url.clone(), std::time::Duration::from_millis(50)).await;
    load.drained(&database.url).await;
    load.check(&database.url, "an hour between the clocks").await;
    let handled = calls(&early, "orders").await + calls(&late, "orders").await;
    assert_eq!(handled, 4000, "no event was handled twice");
    for host in [&early, &late] {
        assert_eq!(host.metric("outrigger_lost_claims_total").await, 0);
    }
    assert_eq!(count(&mut rows, split).await, 2, "each host kept its lanes");

    // `drained` waited for them too.
    let too_soon = "SELECT count(*) FROM outrigger_outbox
                     WHERE resource = 'timed' AND dispatched_at < available_at";
    let far_off = "SELECT count(*) FROM outrigger_outbox
                    WHERE resource = 'timed' AND dispatched_at > available_at + 600000";
    assert_eq!((count(&mut rows, too_soon).await, count(&mut rows, far_off).await), (0, 0));
}
