//! Instances that calls of one batch share.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::{SOON, event, for_events, shop, value_is};
use crate::{
    database::Database,
    hosts::{Host, eventually},
};

on_both! {
    calls_of_a_batch_share_instances_and_triggers_never_do
}

/// Records events of aggregates of their own, in one request; answers their ids.
async fn wave(host: &Host, prefix: &str, count: u32) -> Vec<String> {
    let of = |n| {
        json!({
            "resource": "order", "aggregateId": format!("{prefix}{n}"), "eventName": "x",
            "payload": {"do": [{"op": "visit"}, {"op": "increment", "key": "n", "by": 1}]}
        })
    };
    let events: Vec<Value> = (0..count).map(of).collect();
    let answer = host.ok(Method::POST, "/v1/projects/shop/events", Some(json!(events))).await;
    let events = answer["events"].as_array().unwrap();
    events.iter().map(|event| event["messageId"].as_str().unwrap().to_owned()).collect()
}

/// What each trigger's call for an event found in its instance, by trigger.
async fn visits(host: &Host, id: &str) -> BTreeMap<String, Vec<String>> {
    let event = event(host, id).await;
    let attempts = event["attempts"].as_array().unwrap();
    attempts
        .iter()
        .map(|attempt| {
            let text = attempt["logs"][0]["text"].as_str().unwrap();
            let visits = text.split(' ').map(str::to_owned).collect();
            (attempt["trigger"].as_str().unwrap().to_owned(), visits)
        })
        .collect()
}

async fn calls_of_a_batch_share_instances_and_triggers_never_do(database: &Database) {
    let host = shop(database).await;
    for (name, isolation) in [("apart", "event"), ("one", "batch"), ("two", "batch")] {
        let mut document = for_events("*");
        document["isolation"] = json!(isolation);
        document["limits"] = json!({"concurrency": 2});
        host.trigger("shop", name, document).await;
    }
    let shown = host.get("/v1/projects/shop/triggers/one").await;
    assert_eq!(shown["spec"]["isolation"], "batch", "{shown}");

    let mut most = BTreeMap::new();
    for (prefix, sum) in [("first", "60"), ("second", "120")] {
        let ids = wave(&host, prefix, 60).await;
        for trigger in ["apart", "one", "two"] {
            value_is(&host, trigger, "n", sum).await;
        }
        for (n, id) in ids.iter().enumerate() {
            let mut all = BTreeMap::new();
            eventually("its attempts are kept", SOON, async || {
                all = visits(&host, id).await;
                if all.len() == 3 { Ok(()) } else { Err(all.clone()) }
            })
            .await;
            for (trigger, visits) in all {
                let own = format!("{trigger}/{prefix}");
                assert!(visits.iter().all(|visit| visit.starts_with(&own)), "{own}: {visits:?}");
                assert_eq!(*visits.last().unwrap(), format!("{own}{n}"));
                let most = most.entry(trigger).or_insert(0);
                *most = visits.len().max(*most);
            }
        }
    }
    assert_eq!(most["apart"], 1, "each call alone");
    assert!(most["one"] > 1 && most["two"] > 1, "calls followed one another: {most:?}");
}
