//! What a trigger may do at most, and what happens when it keeps failing.

use reqwest::Method;
use serde_json::{Value, json};

use super::{SOON, event, for_events, publish, shop, value};
use crate::{
    database::Database,
    guests::{component, probe},
    hosts::{Host, eventually},
};

on_both! {
    a_trigger_that_keeps_failing_pauses_itself
    one_failing_event_pauses_nothing
    an_outage_that_passes_pauses_nothing
    a_rate_is_kept_and_nothing_is_lost
}

async fn trigger(host: &Host, name: &str) -> Value {
    host.get(&format!("/v1/projects/shop/triggers/{name}")).await
}

async fn a_trigger_that_keeps_failing_pauses_itself(database: &Database) {
    let host = shop(database).await;
    host.push("shop", "ship", component("broken")).await;
    let mut bad = for_events("*");
    bad["target"] = json!({"plugin": "ship"});
    bad["retry"] = json!({"initial": "50ms", "max": "50ms", "pauseAfter": 20});
    host.trigger("shop", "bad", bad).await;
    host.trigger("shop", "good", for_events("*")).await;
    let of = |aggregate: u32, n: u32| {
        json!({
            "resource": "order", "aggregateId": format!("a{aggregate}"), "eventName": "x",
            "payload": {"do": [
                {"op": "append", "key": format!("seen/{aggregate}"), "text": n.to_string()},
                {"op": "increment", "key": "n", "by": 1}
            ]}
        })
    };
    let events: Vec<Value> = (0..5).flat_map(|n| (0..40).map(move |a| of(a, n))).collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(events))).await;

    eventually("the trigger is paused", SOON, async || {
        let bad = trigger(&host, "bad").await;
        if bad["paused"] == true { Ok(()) } else { Err(bad) }
    })
    .await;
    let reason = trigger(&host, "bad").await["pauseReason"].to_string();
    assert!(reason.contains("paused itself") && reason.contains("a bad deploy"), "{reason}");
    super::value_is(&host, "good", "n", "200").await;
    let status = host.status("shop").await;
    assert_eq!(status["triggers"]["bad"]["dead"], 0, "nothing poured into them: {status}");

    host.push("shop", "ship", probe()).await;
    host.ok(Method::POST, "/v1/projects/shop/triggers/bad/resume", None).await;
    super::value_is(&host, "bad", "n", "200").await;
    for aggregate in 0..40 {
        let seen = value(&host, "bad", &format!("seen/{aggregate}")).await;
        assert_eq!(seen.as_deref(), Some("0,1,2,3,4,"));
    }
    assert_eq!(trigger(&host, "bad").await["paused"], false);
}

async fn one_failing_event_pauses_nothing(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["retry"] = json!({"initial": "1ms", "max": "1ms", "maxAttempts": 12, "pauseAfter": 5});
    host.trigger("shop", "t", document).await;
    let id = publish(&host, "a", "x", json!([{"op": "panic", "message": "boom"}])).await;
    super::delivery_is(&host, &id, "t", "dead").await;
    assert_eq!(event(&host, &id).await["attempts"].as_array().unwrap().len(), 12);
    assert_eq!(trigger(&host, "t").await["paused"], false);
}

async fn an_outage_that_passes_pauses_nothing(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["retry"] = json!({"initial": "50ms", "max": "50ms", "pauseAfter": 5});
    host.trigger("shop", "t", document).await;
    let of = |n: u32| {
        json!({
            "resource": "order", "aggregateId": format!("a{n}"), "eventName": "x",
            "payload": {"do": [
                {"op": "retryUntil", "attempt": 4}, {"op": "increment", "key": "n", "by": 1}
            ]}
        })
    };
    let events: Vec<Value> = (0..80).map(of).collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(events))).await;
    super::value_is(&host, "t", "n", "80").await;
    assert_eq!(trigger(&host, "t").await["paused"], false);
    assert_eq!(host.status("shop").await["triggers"]["t"]["dead"], 0);
}

async fn a_rate_is_kept_and_nothing_is_lost(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["limits"] = json!({"rate": "20/s"});
    host.trigger("shop", "t", document).await;
    let of = |n: u32| {
        json!({
            "resource": "order", "aggregateId": format!("a{}", n % 30), "eventName": "x",
            "payload": {"do": [{"op": "increment", "key": "n", "by": 1}]}
        })
    };
    let events: Vec<Value> = (0..70).map(of).collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(events))).await;
    super::value_is(&host, "t", "n", "70").await;
    let attempts = host.get("/v1/projects/shop/attempts?limit=200").await;
    let mut begun: Vec<i64> = attempts["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| attempt["startedAt"].as_i64().unwrap_or_else(|| panic!("{attempt}")))
        .collect();
    begun.sort_unstable();
    assert_eq!(begun.len(), 70, "no attempt was made in vain");
    // A burst of 20 at once, then one every 50 ms: 70 take 2.5 s at least.
    let (first, last) = (begun[0], begun[69]);
    assert!(last - first >= 2300, "{}", last - first);
}
