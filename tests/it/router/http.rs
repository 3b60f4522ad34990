//! Triggers that send HTTP requests, from event to server.

use reqwest::Method;
use serde_json::{Value, json};

use super::{SOON, delivery_is, event, for_events, outcome_is, publish};
use crate::{
    database::Database,
    hosts::{Host, eventually},
    web::Web,
};

on_both! {
    every_attempt_has_the_same_idempotency_key
    what_a_project_allows_no_more_is_out_of_force
    requests_that_hang_harm_no_neighbour
}

/// A host whose plugins may reach this machine.
async fn host(database: &Database) -> Host {
    let host = Host::with(&database.url, &[("OUTRIGGER_HTTP_ALLOW", "127.0.0.1")]).await;
    host.project("shop").await;
    host
}

fn granted(web: &Web, limits: &Value) -> Value {
    let mut document = for_events("*");
    document["grants"]["http"] = json!([format!("127.0.0.1:{}", web.port)]);
    document["limits"] = limits.clone();
    document
}

async fn every_attempt_has_the_same_idempotency_key(database: &Database) {
    let (host, web) = (host(database).await, Web::start().await);
    host.trigger("shop", "t", granted(&web, &json!({}))).await;
    let url = format!("http://127.0.0.1:{}/hello", web.port);
    let steps = json!([{"op": "http", "url": url}, {"op": "retryUntil", "attempt": 3}]);
    let first = publish(&host, "a", "x", steps.clone()).await;
    delivery_is(&host, &first, "t", "done").await;
    let keys: Vec<_> = web.seen().iter().map(|s| s.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0].contains(&first) && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let second = publish(&host, "a", "x", steps).await;
    delivery_is(&host, &second, "t", "done").await;
    assert_ne!(web.seen()[3].headers["idempotency-key"], keys[0]);
}

async fn what_a_project_allows_no_more_is_out_of_force(database: &Database) {
    let (host, web) = (host(database).await, Web::start().await);
    host.trigger("shop", "t", granted(&web, &json!({}))).await;
    let url = format!("http://127.0.0.1:{}/hello", web.port);
    let steps = json!([{"op": "http", "url": url}]);
    let before = publish(&host, "a", "x", steps.clone()).await;
    outcome_is(&host, &before, "t", "done").await;
    let allow = json!({"allow": {"http": ["*.example.com"]}});
    host.ok(Method::PUT, "/v1/projects/shop", Some(allow)).await;
    let after = publish(&host, "b", "x", steps).await;
    delivery_is(&host, &after, "t", "dead").await;
    let attempt = event(&host, &after).await["attempts"][0].clone();
    assert!(attempt["logs"].to_string().contains("may not send GET http://127.0.0.1"), "{attempt}");
    assert_eq!(web.seen().len(), 1);
}

async fn requests_that_hang_harm_no_neighbour(database: &Database) {
    let (host, web) = (host(database).await, Web::start().await);
    let mut hangs = granted(&web, &json!({"deadline": "2s"}));
    hangs["match"] = json!({"eventName": "hang"});
    hangs["retry"]["pauseAfter"] = json!(0);
    host.trigger("shop", "hangs", hangs).await;
    let mut works = for_events("work");
    works["order"] = json!("none");
    host.trigger("shop", "works", works).await;
    let never = format!("http://127.0.0.1:{}/never", web.port);
    let steps = json!([{"op": "http", "url": never}]);
    let mut hung = Vec::new();
    for n in 0..20 {
        hung.push(publish(&host, &format!("h{n}"), "hang", steps.clone()).await);
    }
    eventually("requests hang", SOON, async || {
        let count = web.seen().len();
        if count > 0 { Ok(()) } else { Err(count) }
    })
    .await;
    for n in 0..10 {
        let id = publish(&host, &format!("w{n}"), "work", json!([])).await;
        outcome_is(&host, &id, "works", "done").await;
    }
    let dead = delivery_is(&host, &hung[0], "hangs", "dead").await;
    assert_eq!(dead["kind"], "deadline", "{dead}");
}
