//! Events that are delivered again.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{SOON, delivery_is, event, for_events, outcome_is, publish, shop, value, value_is};
use crate::{
    database::Database,
    hosts::{Host, eventually},
};

/// The idempotency keys of an event's calls, the newest first.
fn idempotency_keys(event: &Value) -> Vec<String> {
    let attempts = event["attempts"].as_array().unwrap().iter();
    let lines = attempts.flat_map(|attempt| attempt["logs"].as_array().unwrap());
    let dumps = lines.filter_map(|line| serde_json::from_str(line["text"].as_str()?).ok());
    let keys = dumps.map(|dump: Value| dump["attempt"]["idempotencyKey"].clone());
    keys.filter_map(|key| key.as_str().map(str::to_owned)).collect()
}

async fn replay(host: &Host, id: &str, body: Value) -> Value {
    host.ok(Method::POST, &format!("/v1/projects/shop/events/{id}/replay"), Some(body)).await
}

/// Waits until an event's latest replay for the trigger `t` is in a state.
async fn replay_is(host: &Host, id: &str, generation: u32, state: &str) -> Value {
    let mut seen = Value::Null;
    eventually(&format!("replay {generation} is {state}"), SOON, async || {
        seen = event(host, id).await;
        let mut all = seen["deliveries"].as_array().unwrap().iter();
        let found = all.find(|d| d["trigger"] == "t" && d["generation"] == generation);
        if found.is_some_and(|d| d["state"] == state) { Ok(()) } else { Err(seen.clone()) }
    })
    .await;
    seen
}

pub(super) async fn a_replay_has_a_key_of_its_own(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let emit = json!({"op": "emit", "resource": "mail", "aggregateId": "m", "eventName": "sent"});
    let steps = json!([{"op": "dump"}, {"op": "increment", "key": "n", "by": 1}, emit]);
    let id = publish(&host, "a", "x", steps).await;
    outcome_is(&host, &id, "t", "done").await;
    for generation in 1..=2 {
        let replayed = replay(&host, &id, json!({})).await;
        let expected =
            json!({"messageId": id, "generation": generation, "triggers": ["t"], "open": []});
        assert_eq!(replayed, expected);
        replay_is(&host, &id, generation, "done").await;
    }
    let event = event(&host, &id).await;
    let keys = idempotency_keys(&event);
    assert_eq!(keys, [format!("{id}/t/2"), format!("{id}/t/1"), format!("{id}/t")]);
    assert_eq!(value(&host, "t", "n").await.as_deref(), Some("3"));
    let emitted = host.get("/v1/projects/shop/events?eventName=sent").await;
    assert_eq!(emitted["items"].as_array().unwrap().len(), 3, "each call's events are its own");

    // A dead replay is a dead letter, and keeps its key when it is requeued.
    let steps = json!([{"op": "dump"}, {"op": "reject", "message": "no"}]);
    let id = publish(&host, "b", "x", steps).await;
    let own = delivery_is(&host, &id, "t", "dead").await;
    replay(&host, &id, json!({"trigger": "t"})).await;
    let shown = replay_is(&host, &id, 1, "dead").await;
    let mut letters = shown["deliveries"].as_array().unwrap().iter();
    let letter = letters.find(|letter| letter["id"] != own["id"]).unwrap();
    let requeue = format!("/v1/projects/shop/dead-letters/{}/requeue", letter["id"]);
    host.ok(Method::POST, &requeue, None).await;
    eventually("it was tried again under the same key", SOON, async || {
        let event = super::event(&host, &id).await;
        let again = format!("{id}/t/1");
        let expected = [again.clone(), again, format!("{id}/t")];
        if idempotency_keys(&event) == expected { Ok(()) } else { Err(event) }
    })
    .await;
}

pub(super) async fn replays_are_in_order_and_hold_up_nothing_newer(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["retry"] = json!({"maxAttempts": 1000, "initial": "100ms", "max": "100ms"});
    host.trigger("shop", "t", document.clone()).await;
    let append = |text: &str| json!([{"op": "append", "key": "seen", "text": text}]);
    let mut ids = Vec::new();
    for n in 1..=4 {
        ids.push(publish(&host, "a", "x", append(&n.to_string())).await);
    }
    value_is(&host, "t", "seen", "1,2,3,4,").await;
    // What may not touch state fails, for the time being.
    let mut barred = document.clone();
    barred["grants"] = json!({});
    host.trigger("shop", "t", barred).await;
    for id in &ids {
        assert_eq!(replay(&host, id, json!({})).await["triggers"], json!(["t"]));
    }
    eventually("the first one is tried, the second waits for it", SOON, async || {
        let first = event(&host, &ids[0]).await;
        let tried = first["deliveries"][0]["attempts"].as_u64() >= Some(1);
        if tried { Ok(()) } else { Err(first) }
    })
    .await;
    let waits = event(&host, &ids[1]).await["waits"].clone();
    let blocked = json!([{"trigger": "t", "generation": 1, "reason": "blocked", "by": ids[0]}]);
    assert_eq!(waits, blocked);
    // Open pairs are skipped.
    let again = replay(&host, &ids[1], json!({})).await;
    assert_eq!((&again["triggers"], &again["open"]), (&json!([]), &json!(["t"])));

    // A new event of the key goes its way: it isn't blocked by the replays.
    let new = publish(&host, "a", "x", append("new")).await;
    eventually("the new event is tried", SOON, async || {
        let event = event(&host, &new).await;
        let tried = event["deliveries"][0]["attempts"].as_u64() >= Some(1);
        if tried && event["deliveries"][0]["cause"] == "failed" { Ok(()) } else { Err(event) }
    })
    .await;
    host.trigger("shop", "t", document).await;
    eventually("all were delivered", SOON, async || {
        let seen = value(&host, "t", "seen").await.unwrap_or_default();
        if seen.len() == "1,2,3,4,1,2,3,4,new,".len() { Ok(()) } else { Err(seen) }
    })
    .await;
    let seen = value(&host, "t", "seen").await.unwrap();
    assert_eq!(seen.replace("new,", ""), "1,2,3,4,1,2,3,4,", "{seen}");
}

pub(super) async fn events_are_replayed_in_bulk(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["match"]["when"] = json!("payload.n % 2 == 0");
    host.trigger("shop", "t", document).await;
    let one = |n: u32| {
        json!({
            "resource": "order", "aggregateId": format!("a{}", n % 3), "eventName": "x",
            "payload": {"n": n, "do": [{"op": "append", "key": format!("a{}", n % 3), "text": n.to_string()}]}
        })
    };
    let batch: Vec<Value> = (0..250).map(one).collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(batch))).await;
    let values = async || {
        let mut values = Vec::new();
        for key in ["a0", "a1", "a2"] {
            values.push(value(&host, "t", key).await.unwrap_or_default());
        }
        values
    };
    eventually("all are delivered", SOON, async || {
        let counts = host.status("shop").await;
        if counts["triggers"]["t"]["done"] == 125 { Ok(()) } else { Err(counts) }
    })
    .await;
    let before = values().await;
    let replay = "/v1/projects/shop/events/replay";
    let filter = json!({"resource": "order", "trigger": "t", "dryRun": true});
    let dry = host.ok(Method::POST, replay, Some(filter)).await;
    assert_eq!(dry, json!({"matches": 250}));
    let filter = json!({"resource": "order", "trigger": "t"});
    let (status, work) = host.send(Method::POST, replay, Some(filter.clone())).await;
    assert_eq!((status, &work["kind"]), (StatusCode::ACCEPTED, &json!("replayEvents")), "{work}");
    assert_eq!(work["filter"], json!({"resource": "order", "trigger": "t"}));
    let path = format!("/v1/projects/shop/operations/{}", work["id"].as_str().unwrap());
    eventually("the operation is through", SOON, async || {
        let now = host.get(&path).await;
        let through = now["state"] == "done" && now["done"] == 250 && now["deliveries"] == 125;
        if through { Ok(()) } else { Err(now) }
    })
    .await;
    let twice: Vec<String> = before.iter().map(|seen| seen.repeat(2)).collect();
    eventually("each was delivered again, in order", SOON, async || {
        let found = values().await;
        if found == twice { Ok(()) } else { Err(found) }
    })
    .await;
}
