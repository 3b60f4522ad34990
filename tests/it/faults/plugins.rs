//! Plugins that misbehave for longer than several leases.

use reqwest::Method;
use serde_json::{Value, json};

use super::{QUICK, load::LONG};
use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::{alone, calls},
};

/// What each trigger's plugin does, the deadline that it has, and the kind of
/// its failure if it fails. Leases are 2 s.
fn misbehaviours() -> [(&'static str, Value, &'static str, Option<&'static str>); 6] {
    [
        ("sleeper", json!({"op": "sleep", "ms": 20_000}), "1m", None),
        ("spinner", json!({"op": "spin", "ms": 7000}), "1m", None),
        ("looper", json!({"op": "loop"}), "7s", Some("deadline")),
        ("trapper", json!({"op": "panic", "message": "as told"}), "1m", Some("trap")),
        ("hog", json!({"op": "allocate", "mib": 512}), "1m", Some("memory")),
        ("diver", json!({"op": "recurse"}), "1m", Some("stack")),
    ]
}

async fn record(host: &Host, resource: &str, count: usize, steps: Value) {
    let events: Vec<Value> = (0..count)
        .map(|number| {
            json!({
                "resource": resource, "aggregateId": format!("a-{}", number % 50),
                "eventName": "it.happened", "payload": {"do": steps}
            })
        })
        .collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(events.into())).await;
}

async fn put(host: &Host, name: &str, deadline: &str) {
    let document = json!({
        "match": {"resource": name}, "target": {"plugin": "probe"}, "grants": {"state": true},
        "limits": {"deadline": deadline, "cpu": "1m"}, "retry": {"maxAttempts": 1}
    });
    host.trigger("shop", name, document).await;
}

async fn status_of(host: &Host, resource: &str) -> Value {
    let path = format!("/v1/projects/shop/events?resource={resource}");
    host.get(&path).await["items"][0]["status"].clone()
}

async fn neighbours_go_on(database: Database) {
    let host = Host::with(&database.url, &QUICK).await;
    host.project("shop").await;
    put(&host, "order", "10s").await;
    for (name, step, deadline, _) in misbehaviours() {
        put(&host, name, deadline).await;
        record(&host, name, 1, json!([step])).await;
    }
    eventually("the slow ones are under way", LONG, async || {
        let sleeper = status_of(&host, "sleeper").await;
        if sleeper == "claimed" { Ok(()) } else { Err(sleeper) }
    })
    .await;
    record(&host, "order", 200, json!([{"op": "increment", "key": "n", "by": 1}])).await;
    eventually("the neighbours are through", LONG, async || {
        let done = calls(&host, "order").await;
        if done == 200 { Ok(()) } else { Err(done) }
    })
    .await;
    assert_eq!(status_of(&host, "sleeper").await, "claimed", "neighbours didn't wait for it");

    eventually("all is through", LONG, async || {
        let counts = host.status("shop").await;
        let done = counts["dispatched"] == 206 && counts["retrying"] == 0;
        if done { Ok(()) } else { Err(counts) }
    })
    .await;
    let dead = host.get("/v1/projects/shop/dead-letters").await;
    let dead = dead["items"].as_array().unwrap();
    for (name, _, _, kind) in misbehaviours() {
        let letter = dead.iter().find(|letter| letter["trigger"] == name);
        let kinds = letter.map(|letter| (letter["kind"].clone(), letter["attempts"].clone()));
        assert_eq!(kinds, kind.map(|kind| (json!(kind), json!(1))), "{name}");
        assert_eq!(calls(&host, name).await, 1, "{name} was called once");
    }
    assert_eq!(host.metric("outrigger_lost_claims_total").await, 0, "no lease ran out");
    let state = host.get("/v1/projects/shop/triggers/order/state").await;
    assert_eq!(state["items"][0]["value"], "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_that_misbehave_past_several_leases_harm_no_neighbour() {
    let _alone = alone().await;
    let postgres = Database::postgres().await;
    tokio::join!(neighbours_go_on(postgres), neighbours_go_on(Database::sqlite()));
}
