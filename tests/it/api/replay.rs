//! Events that are to be delivered again, singly and by filter.

use serde_json::json;

use super::{
    column,
    dead_letters::{die, ended, shop},
    server::Server,
};

const EVENTS: &str = "/v1/projects/shop/events";

/// The message ids of all events, the oldest first.
async fn ids(server: &Server) -> Vec<String> {
    let listed = server.get(EVENTS).await.expect(200).body;
    let ids = column(&listed, "messageId").into_iter().rev();
    ids.map(|id| id.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn one_event_is_replayed_where_it_matches() {
    let server = shop().await;
    let trigger = |when: &str| json!({ "match": { "eventName": "order.*", "when": when }, "target": { "plugin": "mail" } });
    for (name, when) in
        [("all", "true"), ("none", "aggregateId == 'other'"), ("odd", "payload.missing > 1")]
    {
        let path = format!("/v1/projects/shop/triggers/{name}");
        server.put(&path, trigger(when)).await.expect(201);
    }
    die(&server, 1).await;
    let id = ids(&server).await.remove(0);
    let replay = format!("{EVENTS}/{id}/replay");
    let made = server.post(&replay, json!({})).await.expect(200).body;
    assert_eq!(
        (&made["messageId"], &made["generation"], &made["triggers"], &made["open"]),
        (&json!(id), &json!(1), &json!(["all", "mail"]), &json!([]))
    );
    assert!(made["unmatched"]["odd"].as_str().unwrap().contains("missing"), "{made}");
    assert_eq!(made["unmatched"].as_object().unwrap().len(), 1);

    let again = server.post(&replay, json!({ "trigger": "all" })).await.expect(200).body;
    assert_eq!(again, json!({ "messageId": id, "triggers": [], "open": ["all"] }));
    for (name, said) in [("none", "`none`"), ("odd", "missing")] {
        let refused = server.post(&replay, json!({ "trigger": name })).await.expect(422);
        assert_eq!(refused.body["field"], "trigger");
        assert!(refused.body["detail"].as_str().unwrap().contains(said), "{}", refused.body);
    }
    let refused = server.post(&replay, json!({ "trigger": "nope" })).await.expect(404);
    assert_eq!(refused.problem(), "unknown-trigger");

    let shown = server.get(&format!("{EVENTS}/{id}")).await.expect(200).body;
    let waits: Vec<_> = shown["waits"].as_array().unwrap().iter().collect();
    assert_eq!(waits.len(), 2, "{shown}");
    assert!(waits.iter().all(|wait| wait["generation"] == 1 && wait["reason"] == "queued"));
    let letter = server.get("/v1/projects/shop/dead-letters").await.body["items"][0].clone();
    let requeue = format!("/v1/projects/shop/dead-letters/{}/requeue", letter["id"]);
    assert_eq!(server.post(&requeue, json!({})).await.expect(409).problem(), "still-open");
}

#[tokio::test]
async fn an_event_that_is_pending_is_not_replayed() {
    let server = shop().await;
    let event = json!({ "resource": "r", "aggregateId": "1", "eventName": "n", "payload": 1 });
    let id = server.post(EVENTS, event).await.expect(201).body["messageId"].clone();
    let replay = format!("{EVENTS}/{}/replay", id.as_str().unwrap());
    let refused = server.post(&replay, json!({})).await.expect(409);
    assert_eq!(refused.problem(), "not-dispatched");
    assert_eq!(server.get("/v1/projects/shop/deliveries").await.body["items"], json!([]));
}

#[tokio::test]
async fn events_are_replayed_by_filter() {
    let server = shop().await;
    die(&server, 5).await;
    let pending =
        json!({ "resource": "order", "aggregateId": "1", "eventName": "n", "payload": 1 });
    server.post(EVENTS, pending).await.expect(201);
    let open = ids(&server).await.remove(0);
    server.post(&format!("{EVENTS}/{open}/replay"), json!({})).await.expect(200);

    let replay = format!("{EVENTS}/replay");
    let dry = server.post(&replay, json!({ "resource": "order", "dryRun": true })).await;
    assert_eq!(dry.expect(200).body, json!({ "matches": 6 }));
    let few = server.post(&replay, json!({ "resource": "order", "limit": 2 })).await.expect(202);
    let done = ended(&server, &few).await;
    let counts = ["total", "done", "deliveries", "open", "pending"];
    assert_eq!(counts.map(|member| done[member].as_i64()), [2, 2, 1, 1, 0].map(Some), "{done}");
    assert_eq!((&done["kind"], &done["state"]), (&json!("replayEvents"), &json!("done")));
    assert_eq!((&done["filter"], &done["limit"]), (&json!({ "resource": "order" }), &json!(2)));
    let rest = server.post(&replay, json!({ "trigger": "mail" })).await.expect(202);
    let done = ended(&server, &rest).await;
    assert_eq!(counts.map(|member| done[member].as_i64()), [6, 6, 3, 2, 1].map(Some), "{done}");
    let cancel = format!("{}/cancel", rest.header("location"));
    assert_eq!(server.post(&cancel, json!({})).await.expect(200).body["state"], "done");
    let none = server.post(&replay, json!({ "until": 1 })).await.expect(202);
    assert_eq!(ended(&server, &none).await["total"], 0);
    let rows = server.get("/v1/projects/shop/deliveries").await.expect(200).body;
    assert_eq!(column(&rows, "cause"), ["replay"; 5]);
}
