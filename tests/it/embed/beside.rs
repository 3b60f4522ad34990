//! Embedded routers beside other hosts on one PostgreSQL.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use outrigger::{
    embed::{Builder, On, Router},
    router::Settings,
    store::{EventFilter, EventStatus, PageRequest, Store, TriggerGone},
};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{SOON, Seen, builder, counts, dead_letters, on, order, record, through};
use crate::{
    database::Database,
    hosts::{Host, eventually},
};

/// An application that counts its calls and notes what it was called with.
fn counting(url: &str, count: &Arc<AtomicU32>, seen: &Seen) -> Builder {
    let (count, seen) = (Arc::clone(count), seen.clone());
    // No call is repeated unless a host is away for so long.
    let settings = Settings { lease: Duration::from_secs(12), ..Settings::default() };
    builder(url).router(settings).trigger("ship", on("order.*"), move |event, _| {
        count.fetch_add(1, Ordering::SeqCst);
        seen.note(format!("{} {}", event.aggregate_id, event.payload));
        async { Ok(()) }
    })
}

/// Waits until so many hosts hold all lanes, in equal parts.
async fn shared_by(store: &dyn Store, hosts: usize) {
    eventually("lanes are shared out", SOON, async || {
        let mut held = std::collections::BTreeMap::new();
        for (_, holder, _) in store.lane_holders().await.unwrap() {
            *held.entry(holder.map(|host| host.to_string())).or_insert(0) += 1;
        }
        let whole = !held.contains_key(&None) && held.len() == hosts;
        if whole && held.values().all(|n| *n == 16 / hosts) { Ok(()) } else { Err(held) }
    })
    .await;
}

async fn events(router: &Router, from: u32, to: u32) {
    for n in from..to {
        let mut event = order(&format!("o-{}", n % 50), "order.placed");
        event.payload = format!(r#"{{"n": "{n:05}", "do": []}}"#);
        record(router, &event).await;
    }
}

fn assert_in_order(seen: &Seen, aggregates: u32) {
    for n in 0..aggregates {
        let begin = format!("o-{n} ");
        let of: Vec<_> = seen.all().into_iter().filter(|s| s.starts_with(&begin)).collect();
        assert!(of.is_sorted(), "{of:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_embedded_routers_share_the_work() {
    let database = Database::postgres().await;
    let (ours, theirs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let seen = Seen::default();
    let first = counting(&database.url, &ours, &seen).start().await.unwrap();
    let second = counting(&database.url, &theirs, &seen).start().await.unwrap();
    shared_by(&**first.store(), 2).await;
    events(&first, 0, 1000).await;
    through(&**first.store(), 1000).await;
    let (a, b) = (ours.load(Ordering::SeqCst), theirs.load(Ordering::SeqCst));
    assert!(a > 0 && b > 0, "{a} + {b}");
    assert_eq!(a + b, 1000, "each event was handled once");
    assert_in_order(&seen, 50);
    // One leaves, the other goes on with all of it.
    second.stop(SOON).await;
    shared_by(&**first.store(), 1).await;
    events(&first, 1000, 1100).await;
    through(&**first.store(), 1100).await;
    assert_in_order(&seen, 50);
    first.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_the_code_stands_by() {
    let database = Database::postgres().await;
    let host = Host::with(&database.url, &[("OUTRIGGER_LEASE", "12s")]).await;
    host.project("shop").await;
    let probe = json!({"match": {"eventName": "order.*"}, "target": {"plugin": "probe"}});
    host.trigger("shop", "probe", probe.clone()).await;
    let (calls, seen) = (Arc::new(AtomicU32::new(0)), Seen::default());
    let embedded = counting(&database.url, &calls, &seen).start().await.unwrap();
    // While lanes go over, and after.
    events(&embedded, 0, 500).await;
    through(&**embedded.store(), 500).await;
    assert_eq!(calls.load(Ordering::SeqCst), 500, "no event missed the trigger, or came twice");
    assert_in_order(&seen, 50);
    shared_by(&**embedded.store(), 1).await;
    let counted = counts(&**embedded.store()).await.triggers;
    assert_eq!(counted["probe"].done, 500, "the plugin's trigger is served as well");
    assert_eq!(counted["ship"].failed, 0, "nobody tried what it can't do");

    // Without the application events wait, whatever hosts there are.
    let store = Arc::clone(embedded.store());
    embedded.stop(SOON).await;
    let body = json!({
        "resource": "order", "aggregateId": "o-1", "eventName": "order.placed", "payload": {"n": "00500", "do": []}
    });
    host.ok(Method::POST, "/v1/projects/shop/events", Some(body.clone())).await;
    let another = Host::with(&database.url, &[("OUTRIGGER_LEASE", "12s")]).await;
    eventually("both hosts stand by", SOON, async || {
        let hosts = store.hosts().await.unwrap();
        if hosts.is_empty() { Ok(()) } else { Err(hosts) }
    })
    .await;
    another.ok(Method::POST, "/v1/projects/shop/events", Some(body)).await;
    let waiting = EventFilter { status: Some(EventStatus::Pending), ..EventFilter::default() };
    let page = PageRequest { limit: 10, ..PageRequest::default() };
    assert_eq!(store.events("shop", &waiting, &page).await.unwrap().items.len(), 2);
    let embedded = counting(&database.url, &calls, &seen).start().await.unwrap();
    through(&*store, 502).await;
    assert_eq!(calls.load(Ordering::SeqCst), 502);
    embedded.stop(SOON).await;

    // A paused trigger is no reason to stand by.
    host.ok(Method::POST, "/v1/projects/shop/triggers/ship/pause", None).await;
    let body = json!({
        "resource": "order", "aggregateId": "o-1", "eventName": "order.placed", "payload": {"do": []}
    });
    let id = host.ok(Method::POST, "/v1/projects/shop/events", Some(body)).await;
    let event = format!("/v1/projects/shop/events/{}", id["messageId"].as_str().unwrap());
    eventually("the plugin's trigger goes on", SOON, async || {
        let event = host.get(&event).await;
        let result = &event["result"];
        let through =
            result["probe"]["outcome"] == "done" && result["ship"]["outcome"] == "spilled";
        if through { Ok(()) } else { Err(event) }
    })
    .await;

    // Nobody else can put such a trigger.
    let document = host.get("/v1/projects/shop/triggers/ship").await["spec"].clone();
    assert_eq!(document["target"], json!({"embedded": true}));
    let path = "/v1/projects/shop/triggers/other";
    let (status, problem) = host.send(Method::PUT, path, Some(document)).await;
    assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("target")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_trigger_is_left_to_those_that_have_it() {
    let database = Database::postgres().await;
    let (calls, seen) = (Arc::new(AtomicU32::new(0)), Seen::default());
    let old = counting(&database.url, &calls, &seen).start().await.unwrap();
    events(&old, 0, 100).await;
    let news = Arc::new(AtomicU32::new(0));
    let counts_news = Arc::clone(&news);
    let new = counting(&database.url, &calls, &seen)
        .trigger("bill", on("order.*"), move |_, _| {
            counts_news.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        })
        .start()
        .await
        .unwrap();
    // Recorded once the new one has started: none misses the new trigger.
    events(&old, 100, 300).await;
    through(&**new.store(), 300).await;
    assert!(news.load(Ordering::SeqCst) >= 200, "{news:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 300);
    assert_in_order(&seen, 50);
    old.stop(SOON).await;
    new.stop(SOON).await;

    // The version after that has it no more.
    let last = counting(&database.url, &calls, &seen).retire("bill").start().await.unwrap();
    events(&last, 300, 350).await;
    through(&**last.store(), 350).await;
    let store = last.store();
    assert_eq!(store.trigger("shop", "bill").await.unwrap(), None);
    assert_eq!(store.delete_trigger("shop", "bill").await.unwrap(), TriggerGone::Unknown);
    last.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_triggers_deliveries_are_dead_letters() {
    let database = Database::sqlite();
    let slow = on("*").retry(outrigger::model::trigger::RetryPolicy::default());
    let router = builder(&database.url)
        .trigger("ship", slow, |_, _| async { Err(outrigger::embed::Failure::retry("no")) })
        .start()
        .await
        .unwrap();
    record(&router, &order("o-1", "x")).await;
    eventually("it is retried", SOON, async || {
        let counts = counts(&**router.store()).await;
        let retrying = counts.triggers.get("ship").is_some_and(|t| t.retrying == 1);
        if retrying { Ok(()) } else { Err(counts) }
    })
    .await;
    router.stop(SOON).await;
    let router = builder(&database.url).retire("ship").start().await.unwrap();
    assert_eq!(dead_letters(&**router.store()).await.len(), 1);
    router.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugins_trigger_is_not_taken_over() {
    let database = Database::postgres().await;
    let host = Host::start(&database.url).await;
    host.project("shop").await;
    let probe = json!({"match": {}, "target": {"plugin": "probe"}});
    host.trigger("shop", "ship", probe).await;
    let started = builder(&database.url)
        .trigger("ship", On::event("*"), |_, _| async { Ok(()) })
        .start()
        .await;
    let Err(error) = started else { panic!("it starts") };
    assert!(error.to_string().contains("for the plugin `probe`"), "{error}");
}
