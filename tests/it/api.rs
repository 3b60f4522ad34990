//! The HTTP interface over a real store and sandbox.

use reqwest::{Method, header};
use serde_json::{Value, json};

use self::server::{ADMIN, Server, answer};

mod allowances;
mod bodies;
mod dead_letters;
mod definitions;
mod events;
mod refusals;
mod replay;
mod secrets;
mod server;

#[tokio::test]
async fn a_call_needs_a_key_that_works() {
    let server = Server::start().await;
    let bare = |path: &str| server.client.get(format!("{}{path}", server.url));
    for path in ["/v1/projects", "/v1/status", "/metrics", "/openapi.json", "/v1/projects/p/events"]
    {
        let refused = answer(bare(path)).await.expect(401);
        assert_eq!(refused.problem(), "missing-key", "{path}");
        assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"outrigger\"");
    }
    for value in ["Bearer nope", "bearer  or_x", "Bearer or_"] {
        let refused = answer(bare("/v1/projects").header(header::AUTHORIZATION, value)).await;
        assert_eq!(refused.expect(401).problem(), "wrong-key", "{value}");
    }
    for value in ["Basic YTpi", "Bearer ", ADMIN] {
        let refused = answer(bare("/v1/projects").header(header::AUTHORIZATION, value)).await;
        assert_eq!(refused.expect(401).problem(), "missing-key", "{value}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(answer(bare(path)).await.expect(200).body["status"], "ok");
    }
    server.get("/v1/projects").await.expect(200);
}

#[tokio::test]
async fn a_key_for_one_project_works_there_alone_until_it_is_deleted() {
    let server = Server::with_project("shop").await;
    server.put("/v1/projects/other", json!({})).await.expect(201);
    let made = server.post("/v1/keys", json!({ "role": "admin", "project": "shop", "name": "ci" }));
    let made = made.await.expect(201);
    let (id, key) = (made.body["id"].as_str().unwrap(), made.body["key"].as_str().unwrap());
    assert!(key.starts_with("or_") && key.len() == 67, "{key}");
    let with_key = |method: Method, path: &str| {
        answer(server.client.request(method, format!("{}{path}", server.url)).bearer_auth(key))
    };
    with_key(Method::GET, "/v1/projects/shop/events").await.expect(200);
    with_key(Method::GET, "/v1/projects/shop").await.expect(200);
    for path in ["/v1/projects/other/events", "/v1/projects", "/v1/status", "/v1/keys", "/metrics"]
    {
        assert_eq!(with_key(Method::GET, path).await.expect(403).problem(), "forbidden", "{path}");
    }
    with_key(Method::DELETE, "/v1/projects/other").await.expect(403);

    let listed = server.get("/v1/keys").await.expect(200).body;
    assert_eq!(listed["items"][0]["name"], "ci");
    assert!(!listed.to_string().contains(key), "the secret is shown once");
    server.get(&format!("/v1/keys/{id}")).await.expect(200);
    server.delete(&format!("/v1/keys/{id}")).await.expect(204);
    assert_eq!(with_key(Method::GET, "/v1/projects/shop").await.expect(401).problem(), "wrong-key");
    server.delete(&format!("/v1/keys/{id}")).await.expect(404);
    server.get(&format!("/v1/keys/{id}")).await.expect(404);
}

#[tokio::test]
async fn a_key_ends_when_it_expires() {
    let server = Server::start().await;
    let now = server.get("/v1/status").await.expect(200).body["now"].as_i64().unwrap();
    let past = json!({ "role": "admin", "expiresAt": now - 1000 });
    assert_eq!(server.post("/v1/keys", past).await.expect(422).body["field"], "expiresAt");
    let soon = json!({ "role": "admin", "expiresAt": now + 1500 });
    let key = server.post("/v1/keys", soon).await.expect(201).body["key"].clone();
    let url = format!("{}/v1/projects", server.url);
    let with_key = || answer(server.client.get(&url).bearer_auth(key.as_str().unwrap()));
    with_key().await.expect(200);
    let mut left = 100;
    while with_key().await.status == 200 {
        left -= 1;
        assert!(left > 0, "the key works on");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn projects_come_and_go() {
    let server = Server::start().await;
    let empty = server.request(Method::PUT, "/v1/projects/shop");
    let new = answer(empty).await.expect(201);
    assert_eq!((&new.body["name"], &new.body["enabled"]), (&json!("shop"), &json!(true)));
    server.put("/v1/projects/shop", json!({})).await.expect(200);
    server.put("/v1/projects/b", json!({})).await.expect(201);
    let listed = server.get("/v1/projects?limit=1").await.expect(200).body;
    assert_eq!((&listed["items"][0]["name"], &listed["next"]), (&json!("b"), &json!("b")));
    let rest = server.get("/v1/projects?cursor=b").await.expect(200).body;
    assert_eq!((&rest["items"][0]["name"], rest.get("next")), (&json!("shop"), None));

    let off = server.post("/v1/projects/shop/disable", json!({})).await.expect(200);
    assert_eq!(off.body["enabled"], false);
    let on = server.post("/v1/projects/shop/enable", json!({})).await.expect(200);
    assert_eq!(on.body["enabled"], true);
    server.post("/v1/projects/nope/enable", json!({})).await.expect(404);

    let event = json!({ "resource": "r", "aggregateId": "1", "eventName": "n", "payload": 1 });
    server.post("/v1/projects/shop/events", event).await.expect(201);
    server.post("/v1/keys", json!({ "role": "admin", "project": "shop" })).await.expect(201);
    let went = server.delete("/v1/projects/shop").await.expect(200).body;
    assert_eq!((&went["existed"], &went["keys"]), (&json!(true), &json!(1)));
    assert_eq!(went["secrets"], 0);
    assert_eq!(went["rows"]["pending"], 1);
    server.get("/v1/projects/shop").await.expect(404);
    server.get("/v1/projects/shop/events").await.expect(404);
    assert_eq!(server.get("/v1/keys").await.expect(200).body["items"], json!([]));
    server.delete("/v1/projects/shop").await.expect(404);
}

#[tokio::test]
async fn counts_are_in_the_status_and_in_the_metrics() {
    let server = Server::with_project("shop").await;
    let event = json!({ "resource": "r", "aggregateId": "1", "eventName": "n", "payload": 1 });
    server.post("/v1/projects/shop/events", event).await.expect(201);
    let status = server.get("/v1/status").await.expect(200).body;
    assert_eq!(status["pending"], 1);
    assert_eq!(status["projects"]["shop"]["pending"], 1);
    assert_eq!(status["projects"]["shop"]["exists"], true);
    assert_eq!((&status["stalled"], &status["dead"]), (&json!(false), &json!(0)));
    let one = server.get("/v1/projects/shop/status").await.expect(200).body;
    assert_eq!((&one["pending"], &one["stalled"]), (&json!(1), &json!(false)));
    server.get("/v1/projects/nope/status").await.expect(404);
    server.put("/v1/projects/young", json!({})).await.expect(201);
    let young = server.get("/v1/projects/young/status").await.expect(200).body;
    assert_eq!((&young["pending"], &young["exists"]), (&json!(0), &json!(true)));

    let metrics = server.get("/metrics").await.expect(200);
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"));
    let text = metrics.body.as_str().unwrap();
    for line in ["outrigger_events_pending{project=\"shop\"} 1", "outrigger_stalled 0", "# EOF"] {
        assert!(text.lines().any(|there| there == line), "{line}:\n{text}");
    }
    assert_eq!(
        server.get("/v1/hosts").await.expect(200).body["items"].as_array().unwrap().len(),
        0
    );
    let document = server.get("/openapi.json").await.expect(200).body;
    assert_eq!(document["openapi"], "3.1.0");
    server.stop().await;
}

/// A list's values of one member.
fn column(list: &Value, member: &str) -> Vec<Value> {
    list["items"].as_array().unwrap().iter().map(|item| item[member].clone()).collect()
}
