//! What becomes of events, end to end, on both databases.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use self::replay::{
    a_replay_has_a_key_of_its_own, events_are_replayed_in_bulk,
    replays_are_in_order_and_hold_up_nothing_newer,
};
use crate::{
    database::Database,
    hosts::{Host, eventually},
};

mod replay;

const SOON: Duration = Duration::from_mins(1);

/// Each of these on both databases.
macro_rules! on_both {
    ($($behaviour:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                super::$behaviour(&crate::database::Database::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                super::$behaviour(&crate::database::Database::postgres().await).await;
            })+
        }
    };
}

mod batches;
mod http;
mod limits;
mod recording;

on_both! {
    a_failure_is_retried_until_it_succeeds
    used_up_attempts_make_a_dead_letter_that_can_be_requeued
    a_rejection_is_a_dead_letter_at_once
    later_events_wait_for_an_earlier_failure
    one_trigger_s_failure_repeats_no_other_s_call
    a_paused_trigger_keeps_its_backlog
    a_paused_or_blocked_trigger_takes_nothing_from_others
    a_read_and_written_sum_is_exact
    state_and_emitted_events_commit_with_the_acknowledgement
    dead_letters_are_requeued_and_purged_in_bulk
    a_replay_has_a_key_of_its_own
    replays_are_in_order_and_hold_up_nothing_newer
    events_are_replayed_in_bulk
    a_new_version_is_used_by_later_events
    an_event_that_no_trigger_matches_is_through
    scheduled_events_come_when_they_are_due
    endless_loops_harm_no_neighbour
}

async fn shop(database: &Database) -> Host {
    let host = Host::start(&database.url).await;
    host.project("shop").await;
    host
}

async fn publish(host: &Host, aggregate: &str, name: &str, steps: Value) -> String {
    publish_with(host, aggregate, name, steps, json!({})).await
}

async fn publish_with(
    host: &Host,
    aggregate: &str,
    name: &str,
    steps: Value,
    more: Value,
) -> String {
    let mut event = json!({
        "resource": "order", "aggregateId": aggregate, "eventName": name, "payload": {"do": steps}
    });
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = host.ok(Method::POST, "/v1/projects/shop/events", Some(event)).await;
    answer["messageId"].as_str().unwrap().to_owned()
}

/// A trigger for all events of a name, with quick retries.
fn for_events(name: &str) -> Value {
    json!({
        "match": {"eventName": name}, "target": {"plugin": "probe"},
        "grants": {"emit": ["*"], "state": true}, "record": "all",
        "retry": {"maxAttempts": 3, "initial": "50ms", "max": "50ms"}
    })
}

async fn event(host: &Host, id: &str) -> Value {
    host.get(&format!("/v1/projects/shop/events/{id}")).await
}

/// Waits until an event's delivery for a trigger is in a state.
async fn delivery_is(host: &Host, id: &str, trigger: &str, state: &str) -> Value {
    let mut found = Value::Null;
    eventually(&format!("the delivery is {state}"), SOON, async || {
        let event = event(host, id).await;
        let all = event["deliveries"].as_array().unwrap();
        found = all.iter().find(|d| d["trigger"] == trigger).cloned().unwrap_or_default();
        if found["state"] == state { Ok(()) } else { Err(event) }
    })
    .await;
    found
}

async fn outcome_is(host: &Host, id: &str, trigger: &str, outcome: &str) {
    eventually(&format!("the outcome is {outcome}"), SOON, async || {
        let event = event(host, id).await;
        if event["result"][trigger]["outcome"] == outcome { Ok(()) } else { Err(event) }
    })
    .await;
}

async fn value(host: &Host, trigger: &str, key: &str) -> Option<String> {
    let answer = host.get(&format!("/v1/projects/shop/triggers/{trigger}/state")).await;
    let items = answer["items"].as_array().unwrap().clone();
    let entry = items.into_iter().find(|item| item["key"] == key)?;
    Some(entry["value"].as_str().unwrap().to_owned())
}

async fn value_is(host: &Host, trigger: &str, key: &str, expected: &str) {
    eventually(&format!("{key} is {expected}"), SOON, async || {
        let found = value(host, trigger, key).await;
        if found.as_deref() == Some(expected) { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn a_failure_is_retried_until_it_succeeds(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let steps =
        json!([{"op": "retryUntil", "attempt": 3}, {"op": "increment", "key": "n", "by": 1}]);
    let id = publish(&host, "a", "x", steps).await;
    let delivery = delivery_is(&host, &id, "t", "done").await;
    assert_eq!(delivery["attempts"], 3);
    let event = event(&host, &id).await;
    let numbers: Vec<_> =
        event["attempts"].as_array().unwrap().iter().map(|a| &a["number"]).collect();
    assert_eq!(numbers.len(), 3, "{numbers:?}");
    assert_eq!(value(&host, "t", "n").await.as_deref(), Some("1"));
}

async fn used_up_attempts_make_a_dead_letter_that_can_be_requeued(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let steps = json!([{"op": "log", "level": "warn", "text": "about to"}, {"op": "panic", "message": "boom"}]);
    let id = publish(&host, "a", "x", steps).await;
    delivery_is(&host, &id, "t", "dead").await;
    let dead = host.get("/v1/projects/shop/dead-letters").await["items"][0].clone();
    assert_eq!(
        (&dead["messageId"], &dead["trigger"], &dead["attempts"], &dead["kind"]),
        (&json!(id), &json!("t"), &json!(3), &json!("trap")),
        "{dead}"
    );
    assert!(dead["lastError"].as_str().unwrap().contains("boom"), "{dead}");
    let logs = event(&host, &id).await["attempts"][0]["logs"].clone();
    assert!(logs.to_string().contains("about to"), "{logs}");

    let requeue = format!("/v1/projects/shop/dead-letters/{}/requeue", dead["id"]);
    host.ok(Method::POST, &requeue, None).await;
    eventually("it was tried three times more", SOON, async || {
        let event = event(&host, &id).await;
        let tried = event["attempts"].as_array().unwrap().len();
        if tried == 6 && event["deliveries"][0]["state"] == "dead" { Ok(()) } else { Err(event) }
    })
    .await;
    let purge = format!("/v1/projects/shop/dead-letters/{}/purge", dead["id"]);
    host.ok(Method::POST, &purge, None).await;
    let left = host.get("/v1/projects/shop/dead-letters").await;
    assert_eq!(left["items"], json!([]));
    let (status, _) = host.send(Method::POST, &requeue, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

async fn a_rejection_is_a_dead_letter_at_once(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let steps = json!([{"op": "set", "key": "k", "value": "v"}, {"op": "reject", "message": "no"}]);
    let id = publish(&host, "a", "x", steps).await;
    let dead = delivery_is(&host, &id, "t", "dead").await;
    assert_eq!((&dead["attempts"], &dead["kind"]), (&json!(1), &json!("reject")));
    assert_eq!(value(&host, "t", "k").await, None, "what a rejected call asked for is void");
}

async fn later_events_wait_for_an_earlier_failure(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["retry"] = json!({"maxAttempts": 3, "initial": "1s", "max": "1s"});
    host.trigger("shop", "t", document.clone()).await;
    document["order"] = json!("none");
    host.trigger("shop", "free", document).await;
    let append = |text: &str| json!({"op": "append", "key": "seen", "text": text});
    let first = json!([{"op": "retryUntil", "attempt": 3}, append("1")]);
    publish(&host, "a", "x", first).await;
    for n in 2..=5 {
        publish(&host, "a", "x", json!([append(&n.to_string())])).await;
    }
    publish(&host, "b", "x", json!([append("b")])).await;
    eventually("all were handled", SOON, async || {
        let seen = value(&host, "t", "seen").await.unwrap_or_default();
        if seen.len() == 12 { Ok(()) } else { Err(seen) }
    })
    .await;
    let seen = value(&host, "t", "seen").await.unwrap();
    assert_eq!(seen.replace("b,", ""), "1,2,3,4,5,", "{seen}");
    assert!(!seen.ends_with("b,"), "another aggregate doesn't wait: {seen}");
    eventually("those in no order didn't wait", SOON, async || {
        let seen = value(&host, "free", "seen").await.unwrap_or_default();
        if seen.len() == 12 && seen.ends_with("1,") { Ok(()) } else { Err(seen) }
    })
    .await;
}

async fn one_trigger_s_failure_repeats_no_other_s_call(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "good", for_events("*")).await;
    let mut document = for_events("*");
    document["grants"] = json!({});
    host.trigger("shop", "bad", document).await;
    let id = publish(&host, "a", "x", json!([{"op": "increment", "key": "n", "by": 1}])).await;
    delivery_is(&host, &id, "bad", "dead").await;
    outcome_is(&host, &id, "good", "done").await;
    assert_eq!(value(&host, "good", "n").await.as_deref(), Some("1"));
    let event = event(&host, &id).await;
    let good = event["attempts"].as_array().unwrap().iter().filter(|a| a["trigger"] == "good");
    assert_eq!(good.count(), 1);
}

async fn a_paused_trigger_keeps_its_backlog(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    host.ok(Method::POST, "/v1/projects/shop/triggers/t/pause", None).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let steps = json!([{"op": "append", "key": "seen", "text": n.to_string()}]);
        ids.push(publish(&host, "a", "x", steps).await);
    }
    for id in &ids {
        outcome_is(&host, id, "t", "spilled").await;
    }
    let waits = event(&host, &ids[0]).await["waits"].to_string();
    assert!(waits.contains("triggerPaused"), "{waits}");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(value(&host, "t", "seen").await, None);
    host.ok(Method::POST, "/v1/projects/shop/triggers/t/resume", None).await;
    value_is(&host, "t", "seen", "0,1,2,3,4,").await;
}

async fn a_paused_or_blocked_trigger_takes_nothing_from_others(database: &Database) {
    let host = shop(database).await;
    // By name, the first is one that doesn't run.
    for name in ["a", "b", "c", "d", "e"] {
        host.trigger("shop", name, for_events("*")).await;
    }
    for name in ["a", "c"] {
        host.ok(Method::POST, &format!("/v1/projects/shop/triggers/{name}/pause"), None).await;
    }
    let mut ids = Vec::new();
    for _ in 0..5 {
        let steps = json!([{"op": "increment", "key": "n", "by": 1}]);
        ids.push(publish(&host, "k", "x", steps).await);
    }
    for id in &ids {
        for name in ["a", "c"] {
            outcome_is(&host, id, name, "spilled").await;
        }
        // Done, or spilled where an earlier call took long: in any case there.
        let result = event(&host, id).await["result"].clone();
        assert_eq!(result.as_object().map(serde_json::Map::len), Some(5), "{result}");
    }
    for name in ["b", "d", "e"] {
        value_is(&host, name, "n", "5").await;
    }
}

async fn a_read_and_written_sum_is_exact(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let one = |n: u32| {
        json!({
            "resource": "order", "aggregateId": format!("a{}", n % 50), "eventName": "x",
            "payload": {"do": [{"op": "readAddWrite", "key": "n", "by": 1}]}
        })
    };
    let batch: Vec<Value> = (0..300).map(one).collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(batch))).await;
    value_is(&host, "t", "n", "300").await;
    let counts = host.status("shop").await;
    assert_eq!(counts["triggers"]["t"]["failed"], 0, "conflicts burn no attempt: {counts}");
}

async fn state_and_emitted_events_commit_with_the_acknowledgement(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("x")).await;
    host.trigger("shop", "next", for_events("y")).await;
    let emit = json!({
        "op": "emit", "resource": "mail", "aggregateId": "m", "eventName": "y", "dedupKey": "once",
        "payload": {"do": [{"op": "dump"}, {"op": "increment", "key": "n", "by": 1}]}
    });
    // The first two attempts emit and fail: nothing of that is recorded.
    let id = publish(&host, "a", "x", json!([emit, {"op": "retryUntil", "attempt": 3}])).await;
    delivery_is(&host, &id, "t", "done").await;
    value_is(&host, "next", "n", "1").await;
    let emitted = host.get("/v1/projects/shop/events?eventName=y").await;
    assert_eq!(emitted["items"].as_array().unwrap().len(), 1);
    let follow_up = emitted["items"][0]["messageId"].as_str().unwrap();
    let dump = event(&host, follow_up).await["attempts"][0]["logs"].to_string();
    assert!(dump.contains(&id), "the cause is known: {dump}");
    // A dedup key that is used is no error; the event just isn't recorded.
    let again = publish(&host, "b", "x", json!([emit])).await;
    outcome_is(&host, &again, "t", "done").await;
    let emitted = host.get("/v1/projects/shop/events?eventName=y").await;
    assert_eq!(emitted["items"].as_array().unwrap().len(), 1);
}

async fn dead_letters_are_requeued_and_purged_in_bulk(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["retry"]["pauseAfter"] = json!(0);
    host.trigger("shop", "t", document).await;
    let one = |n: u32| {
        json!({
            "resource": "order", "aggregateId": format!("a{n}"), "eventName": format!("e{}", n % 2),
            "payload": {"do": [{"op": "reject", "message": "no"}]}
        })
    };
    let batch: Vec<Value> = (0..40).map(one).collect();
    host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(batch))).await;
    let dead = async |expected: u32| {
        eventually("dead letters", SOON, async || {
            let counts = host.status("shop").await;
            let found = &counts["triggers"]["t"]["dead"];
            if *found == expected { Ok(()) } else { Err(counts) }
        })
        .await;
    };
    dead(40).await;
    let path = "/v1/projects/shop/dead-letters";
    let filter = json!({"eventName": "e0", "dryRun": true});
    let dry = host.ok(Method::POST, &format!("{path}/purge"), Some(filter)).await;
    assert_eq!(dry["matches"], 20);
    dead(40).await;
    let purge = json!({"eventName": "e0", "limit": 15});
    let (status, operation) = host.send(Method::POST, &format!("{path}/purge"), Some(purge)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let operation = format!("/v1/projects/shop/operations/{}", operation["id"].as_str().unwrap());
    eventually("the operation is through", SOON, async || {
        let now = host.get(&operation).await;
        if now["state"] == "done" && now["done"] == 15 { Ok(()) } else { Err(now) }
    })
    .await;
    dead(25).await;
    host.ok(Method::POST, &format!("{path}/requeue"), Some(json!({"kind": "reject"}))).await;
    eventually("each was tried again", SOON, async || {
        let counts = host.status("shop").await;
        if counts["triggers"]["t"]["failed"] == 65 { Ok(()) } else { Err(counts) }
    })
    .await;
    dead(25).await;
}

async fn a_new_version_is_used_by_later_events(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let before = publish(&host, "a", "x", json!([])).await;
    outcome_is(&host, &before, "t", "done").await;
    host.push("shop", "probe", crate::guests::component("audit_log")).await;
    let after = publish(&host, "a", "x", json!([])).await;
    outcome_is(&host, &after, "t", "done").await;
    let digest = async |id: &str| event(&host, id).await["result"]["t"]["digest"].clone();
    let (old, new) = (digest(&before).await, digest(&after).await);
    assert_ne!(old, new);
    let versions = host.get("/v1/projects/shop/plugins/probe").await["versions"].clone();
    let active = versions.as_array().unwrap().iter().find(|v| v["active"] == true).unwrap();
    assert_eq!(active["digest"], new);
    let activate = "/v1/projects/shop/plugins/probe/activate";
    host.ok(Method::POST, activate, Some(json!({"digest": old}))).await;
    let back = publish(&host, "a", "x", json!([])).await;
    outcome_is(&host, &back, "t", "done").await;
    assert_eq!(digest(&back).await, old);
}

async fn an_event_that_no_trigger_matches_is_through(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("*");
    document["match"] =
        json!({"eventName": "order.*", "schemaVersion": ">=2", "when": "payload.total > 100"});
    host.trigger("shop", "t", document).await;
    let total =
        |total: u32, version: u32| json!({"payload": {"total": total}, "schemaVersion": version});
    let small = publish_with(&host, "a", "order.placed", json!([]), total(100, 2)).await;
    let old = publish_with(&host, "a", "order.placed", json!([]), total(101, 1)).await;
    let other = publish_with(&host, "a", "mail.sent", json!([]), total(101, 2)).await;
    let unclear =
        publish_with(&host, "a", "order.placed", json!([]), json!({"schemaVersion": 2})).await;
    let right = publish_with(&host, "a", "order.placed", json!([]), total(101, 2)).await;
    outcome_is(&host, &right, "t", "done").await;
    for id in [&small, &old, &other] {
        let event = event(&host, id).await;
        assert_eq!(
            (&event["status"], &event["result"]),
            (&json!("dispatched"), &json!({})),
            "{event}"
        );
    }
    let result = event(&host, &unclear).await["result"]["t"].clone();
    assert_eq!(result["outcome"], "unmatched", "{result}");
    assert!(result["error"].as_str().unwrap().contains("total"), "{result}");
}

async fn scheduled_events_come_when_they_are_due(database: &Database) {
    let host = shop(database).await;
    host.trigger("shop", "t", for_events("*")).await;
    let first =
        publish(&host, "a", "x", json!([{"op": "append", "key": "seen", "text": "now"}])).await;
    outcome_is(&host, &first, "t", "done").await;
    let created = event(&host, &first).await["createdAt"].as_i64().unwrap();
    let steps = json!([{"op": "append", "key": "seen", "text": "then"}]);
    let at = json!({"availableAt": created + 2500});
    let later = publish_with(&host, "a", "x", steps, at).await;
    assert_eq!(event(&host, &later).await["status"], "scheduled");
    let between = json!([{"op": "append", "key": "seen", "text": "between"}]);
    publish(&host, "a", "x", between).await;
    value_is(&host, "t", "seen", "now,between,").await;
    value_is(&host, "t", "seen", "now,between,then,").await;
    let event = event(&host, &later).await;
    assert!(event["dispatchedAt"].as_i64().unwrap() >= created + 2500, "{event}");
}

async fn endless_loops_harm_no_neighbour(database: &Database) {
    let host = shop(database).await;
    let mut document = for_events("bad");
    document["limits"] = json!({"deadline": "500ms"});
    document["retry"]["maxAttempts"] = json!(2);
    host.trigger("shop", "bad", document).await;
    host.trigger("shop", "good", for_events("good")).await;
    let mut bad = Vec::new();
    let steps = [
        (json!({"op": "loop"}), "deadline"),
        (json!({"op": "sleep", "ms": 60_000}), "deadline"),
        (json!({"op": "recurse"}), "stack"),
        (json!({"op": "panic", "message": "boom"}), "trap"),
        (json!({"op": "allocate", "mib": 100}), "memory"),
    ];
    for (n, (step, kind)) in steps.into_iter().enumerate() {
        bad.push((publish(&host, &format!("b{n}"), "bad", json!([step])).await, kind));
    }
    for n in 0..50 {
        let steps = json!([{"op": "increment", "key": "n", "by": 1}]);
        publish(&host, &format!("g{n}"), "good", steps).await;
    }
    value_is(&host, "good", "n", "50").await;
    for (id, kind) in bad {
        let dead = delivery_is(&host, &id, "bad", "dead").await;
        assert_eq!(dead["kind"], kind, "{dead}");
    }
}
