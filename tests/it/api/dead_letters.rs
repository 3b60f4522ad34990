//! Dead letters, singly and in bulk, and the trigger that they are of.

use std::{sync::Arc, time::Duration};

use outrigger::{
    model::{event::NewEvent, outcome::FailureKind},
    store::{End, HostId, Seam, Settlement, Spill, SpillCause},
};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    column,
    server::{Answer, Server, answer},
};
use crate::guests;

const DEAD: &str = "/v1/projects/shop/dead-letters";
const LEASE: Duration = Duration::from_mins(1);

/// Records events and lets the trigger `mail` die of each.
pub(super) async fn die(server: &Server, count: usize) {
    let store = &server.store;
    let event = |n| NewEvent::new("shop", "order", format!("o-{n}"), "order.placed", "{}");
    let events: Vec<NewEvent> = (0..count).map(event).collect();
    store.record(&events).await.unwrap();
    let host = HostId(Uuid::new_v4());
    let lanes = store.take_lanes(host, 64, LEASE).await.unwrap();
    let seams: Vec<Seam> = lanes
        .iter()
        .map(|lane| Seam { lane: *lane, project: "shop".into(), above: 0, limit: 1000 })
        .collect();
    let claimed = store.claim_events(host, &seams, u64::MAX, LEASE).await.unwrap().rows;
    assert_eq!(claimed.len(), count);
    let spill = Spill {
        trigger: "mail".into(),
        ordered: false,
        cause: SpillCause::Failed,
        attempts: 5,
        after_ms: 0,
        error: Some((FailureKind::Trap, "it panicked".into())),
        dead: true,
    };
    let settlements: Vec<Settlement> = claimed
        .into_iter()
        .map(|row| Settlement {
            claim: row.claim.into(),
            event: Arc::new(row.event),
            end: End::Dispatched {
                result_json: r#"{"mail":{"outcome":"dead"}}"#.into(),
                spills: vec![spill.clone()],
            },
            effects: Vec::new(),
            attempts: Vec::new(),
        })
        .collect();
    store.settle(&settlements, LEASE).await.unwrap();
    store.yield_lanes(host, &lanes).await.unwrap();
}

pub(super) async fn shop() -> Server {
    let server = Server::with_project("shop").await;
    server.push("/v1/projects/shop/plugins/mail", guests::probe()).await.expect(201);
    let trigger = json!({ "match": {}, "target": { "plugin": "mail" } });
    server.put("/v1/projects/shop/triggers/mail", trigger).await.expect(201);
    server
}

/// Looks at an operation until it has ended.
pub(super) async fn ended(server: &Server, accepted: &Answer) -> Value {
    let path = accepted.header("location");
    for _ in 0..200 {
        let operation = server.get(path).await.expect(200).body;
        if operation["state"] != "running" {
            return operation;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{path} goes on");
}

#[tokio::test]
async fn one_is_requeued_and_another_purged() {
    let server = shop().await;
    die(&server, 3).await;
    let listed = server.get(DEAD).await.expect(200).body;
    assert_eq!(column(&listed, "lastError"), ["it panicked"; 3]);
    let letter = &listed["items"][0];
    assert_eq!((&letter["attempts"], &letter["kind"]), (&json!(5), &json!("trap")));
    assert_eq!(
        (&letter["trigger"], &letter["eventName"]),
        (&json!("mail"), &json!("order.placed"))
    );
    assert!(letter["diedAt"].as_i64().unwrap() > 1_600_000_000_000);
    let page = server.get(&format!("{DEAD}?limit=2&kind=trap&trigger=mail")).await.expect(200).body;
    let rest =
        server.get(&format!("{DEAD}?limit=2&cursor={}", page["next"].as_str().unwrap())).await;
    assert_eq!(column(&rest.expect(200).body, "id"), [listed["items"][2]["id"].clone()]);
    for other in ["kind=memory", "aggregateId=o-9", "eventName=x", "until=1000"] {
        assert_eq!(
            server.get(&format!("{DEAD}?{other}")).await.expect(200).body["items"],
            json!([])
        );
    }

    let [first, second] = [0, 1].map(|n| listed["items"][n]["id"].as_i64().unwrap());
    let ready = server.post(&format!("{DEAD}/{first}/requeue"), json!({})).await.expect(200).body;
    assert_eq!(ready, json!({ "id": first, "state": "ready" }));
    server.post(&format!("{DEAD}/{first}/requeue"), json!({})).await.expect(404);
    let purge = server.request(Method::POST, &format!("{DEAD}/{second}/purge"));
    answer(purge).await.expect(204);
    assert_eq!(server.get(DEAD).await.body["items"].as_array().unwrap().len(), 1);
    let open = server.get("/v1/projects/shop/deliveries").await.expect(200).body;
    assert_eq!(column(&open, "id"), [first]);

    let event = letter["messageId"].as_str().unwrap();
    let shown = server.get(&format!("/v1/projects/shop/events/{event}")).await.expect(200).body;
    assert_eq!(shown["result"]["mail"]["outcome"], "dead");
    assert_eq!(shown["deliveries"][0]["state"], "ready");
    assert_eq!(shown["waits"][0]["trigger"], "mail");
    assert_eq!(shown["waits"][0]["reason"], "queued");
}

#[tokio::test]
async fn bulk_work_is_counted_carried_out_and_stopped() {
    let server = shop().await;
    die(&server, 5).await;
    let requeue = format!("{DEAD}/requeue");
    let dry = server.post(&requeue, json!({ "dryRun": true, "trigger": "mail" })).await.expect(200);
    assert_eq!(dry.body, json!({ "matches": 5 }));
    let accepted = server.post(&requeue, json!({ "kind": "trap", "limit": 2 })).await.expect(202);
    assert_eq!(accepted.body["kind"], "requeueDeadLetters");
    let operation = ended(&server, &accepted).await;
    assert_eq!((&operation["state"], &operation["done"]), (&json!("done"), &json!(2)));
    assert_eq!(server.get(DEAD).await.body["items"].as_array().unwrap().len(), 3);

    let accepted = server.post(&format!("{DEAD}/purge"), json!({})).await.expect(202);
    assert_eq!(ended(&server, &accepted).await["done"], 3);
    assert_eq!(server.get(DEAD).await.body["items"], json!([]));
    let cancel = format!("{}/cancel", accepted.header("location"));
    // What is done stays done.
    assert_eq!(server.post(&cancel, json!({})).await.expect(200).body["state"], "done");
    let unknown = "/v1/projects/shop/operations/00000000-0000-0000-0000-000000000000";
    server.get(unknown).await.expect(404);
    server.post(&format!("{unknown}/cancel"), json!({})).await.expect(404);
}

#[tokio::test]
async fn a_trigger_with_deliveries_is_deleted_by_choice() {
    let server = shop().await;
    die(&server, 2).await;
    let trigger = "/v1/projects/shop/triggers/mail";
    let refused = server.delete(trigger).await.expect(409);
    assert_eq!((refused.problem(), &refused.body["deliveries"]), ("deliveries-left", &json!(2)));
    let kept = server.delete(&format!("{trigger}?deliveries=dead")).await.expect(200).body;
    assert_eq!(kept["deliveries"], json!({ "dropped": 0, "dead": 2 }));
    assert_eq!(server.get(DEAD).await.body["items"].as_array().unwrap().len(), 2);
    // What a trigger left behind can be dropped when it is gone.
    let dropped = server.delete(&format!("{trigger}?deliveries=drop")).await.expect(200).body;
    assert_eq!(
        (&dropped["existed"], &dropped["deliveries"]["dropped"]),
        (&json!(false), &json!(2))
    );
    server.delete(&format!("{trigger}?deliveries=drop")).await.expect(404);
    assert_eq!(server.get(DEAD).await.body["items"], json!([]));
}

#[tokio::test]
async fn a_wait_names_what_became_of_each_trigger() {
    let server = shop().await;
    let url = "/v1/projects/shop/events?wait=20s";
    let body = json!({ "resource": "r", "aggregateId": "1", "eventName": "n", "payload": 1, "dedupKey": "k" });
    let waiting = tokio::spawn(answer(server.request(Method::POST, url).json(&body)));
    while server.get("/v1/projects/shop/events").await.body["items"] == json!([]) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    die_of(&server).await;
    let waited = waiting.await.unwrap().expect(200).body;
    assert!(waited["publishedAt"].as_i64().is_some(), "{waited}");
    assert_eq!(waited["triggers"], json!({ "mail": "dead", "stock": "done" }));
    // A repeat waits for the first event, which is settled.
    let again = server.request(Method::POST, url).header("idempotency-key", "k").json(&body);
    let again = answer(again).await.expect(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.body, waited);
}

/// Settles the one event that is there: `mail` dies, `stock` is done.
async fn die_of(server: &Server) {
    let store = &server.store;
    let host = HostId(Uuid::new_v4());
    let lanes = store.take_lanes(host, 64, LEASE).await.unwrap();
    let seams: Vec<Seam> = lanes
        .iter()
        .map(|lane| Seam { lane: *lane, project: "shop".into(), above: 0, limit: 10 })
        .collect();
    let row = store.claim_events(host, &seams, u64::MAX, LEASE).await.unwrap().rows.pop().unwrap();
    let settlement = Settlement {
        claim: row.claim.into(),
        event: Arc::new(row.event),
        end: End::Dispatched {
            result_json: r#"{"mail":{"outcome":"retry"},"stock":{"outcome":"done"}}"#.into(),
            spills: vec![Spill {
                trigger: "mail".into(),
                ordered: true,
                cause: SpillCause::Failed,
                attempts: 1,
                after_ms: 0,
                error: Some((FailureKind::Reject, "no".into())),
                dead: true,
            }],
        },
        effects: Vec::new(),
        attempts: Vec::new(),
    };
    store.settle(&[settlement], LEASE).await.unwrap();
}
