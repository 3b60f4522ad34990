//! What projects allow, triggers grant and plugins ask for.

use reqwest::Method;
use serde_json::{Value, json};

use super::server::{Server, answer};
use crate::guests;

const SHOP: &str = "/v1/projects/shop";
const PLUGIN: &str = "/v1/projects/shop/plugins/probe";
const TRIGGER: &str = "/v1/projects/shop/triggers/t";

fn granting(grants: &Value) -> Value {
    json!({"match": {}, "target": {"plugin": "probe"}, "grants": grants})
}

#[tokio::test]
async fn what_a_plugin_asks_for_is_shown() {
    let server = Server::with_project("shop").await;
    let new = server.push(PLUGIN, guests::probe()).await.expect(201).body;
    let all = json!(["emit", "state", "http", "secrets", "log"]);
    assert_eq!(new["capabilities"], all);
    let plugin = server.get(PLUGIN).await.expect(200).body;
    assert_eq!(plugin["versions"][0]["capabilities"], all);
    let other = "/v1/projects/shop/plugins/totals";
    let totals = server.push(other, guests::component("order_totals")).await.expect(201).body;
    assert!(!totals["capabilities"].to_string().contains("http"), "{totals}");
}

#[tokio::test]
async fn a_trigger_shows_what_is_in_force() {
    let server = Server::with_project("shop").await;
    server.push(PLUGIN, guests::probe()).await.expect(201);
    let grants = json!({"http": ["*.example.com", "GET b.example"], "emit": ["email.*"]});
    let put = server.put(TRIGGER, granting(&grants)).await.expect(201).body;
    let http = &put["capabilities"]["http"];
    assert_eq!(http["effective"], json!(["*.example.com", "GET b.example"]));
    assert_eq!((&http["imported"], &http["hint"]), (&json!(true), &Value::Null));
    let state = &put["capabilities"]["state"];
    assert_eq!((&state["granted"], &state["effective"]), (&json!(false), &json!(false)));
    assert!(state["hint"].as_str().unwrap().contains("add `state`"), "{state}");

    let allow = json!({"allow": {"http": ["a.example.com"], "emit": []}});
    let project = server.put(SHOP, allow).await.expect(200).body;
    assert_eq!(project["allow"]["http"], json!(["a.example.com"]));
    let narrowed = server.get(TRIGGER).await.expect(200).body;
    assert_eq!(narrowed["spec"]["grants"]["http"], grants["http"], "its document stays");
    assert_eq!(narrowed["capabilities"]["http"]["effective"], json!(["a.example.com"]));
    assert_eq!(narrowed["capabilities"]["emit"]["effective"], json!([]));
    let listed = server.get("/v1/projects/shop/triggers").await.expect(200).body;
    assert_eq!(listed["items"][0]["capabilities"], narrowed["capabilities"]);
}

#[tokio::test]
async fn what_a_project_does_not_allow_is_refused_by_its_name() {
    let server = Server::with_project("shop").await;
    server.push(PLUGIN, guests::component("order_totals")).await.expect(201);
    let allow = json!({"allow": {"http": ["*.example.com"], "emit": ["order.*"], "state": false}});
    // It keeps what is said until something else is.
    server.put(SHOP, allow.clone()).await.expect(200);
    let project = server.put(SHOP, json!({})).await.expect(200).body;
    assert_eq!(project["allow"]["emit"], allow["allow"]["emit"]);
    for (grants, field, said) in [
        (json!({"http": ["b.example"]}), "grants.http", "`b.example`, which the project doesn't"),
        (json!({"http": ["*.com"]}), "grants.http", "it allows `*.example.com`"),
        (json!({"http": ["b.example/"]}), "grants.http", "has a path"),
        (json!({"emit": ["*"]}), "grants.emit", "it allows `order.*`"),
        (json!({"state": true}), "grants.state", "doesn't allow"),
    ] {
        let refused = server.put(TRIGGER, granting(&grants)).await.expect(422);
        assert_eq!(refused.body["field"], field);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(said), "{said}: {detail}");
    }
    let within = json!({"http": ["GET a.example.com"], "emit": ["order.paid"]});
    server.put(TRIGGER, granting(&within)).await.expect(201);

    // A version that needs what is forbidden is kept, and not activated.
    server.put(SHOP, json!({"allow": {"http": [], "state": false}})).await.expect(200);
    let kept = server.push(PLUGIN, guests::probe()).await.expect(201).body;
    assert_eq!(kept["active"], false);
    let digest = json!({"digest": kept["digest"]});
    for refused in [
        server.post(&format!("{PLUGIN}/activate"), digest.clone()).await,
        server.push(&format!("{PLUGIN}?activate=true"), guests::probe()).await,
        server.push("/v1/projects/shop/plugins/first", guests::probe()).await,
    ] {
        let refused = refused.expect(409);
        assert_eq!((refused.problem(), &refused.body["missing"]), ("not-allowed", &json!("state")));
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("allows no `state`, `http`"), "{detail}");
    }
    server.get("/v1/projects/shop/plugins/first").await.expect(404);
    server.put(SHOP, json!({"allow": {}})).await.expect(200);
    server.post(&format!("{PLUGIN}/activate"), digest).await.expect(200);

    for (body, field) in
        [(json!({"allow": {"http": ["a/b"]}}), "allow.http"), (json!({"allow": {"htpp": []}}), "")]
    {
        let refused = server.put(SHOP, body).await;
        assert!(refused.status.is_client_error(), "{}", refused.body);
        assert_eq!(refused.body["field"].as_str().unwrap_or_default(), field);
    }
}

#[tokio::test]
async fn a_project_s_own_key_widens_nothing() {
    let server = Server::with_project("shop").await;
    let made = server.post("/v1/keys", json!({"project": "shop", "role": "admin"})).await;
    let key = made.expect(201).body["key"].as_str().unwrap().to_owned();
    let put = |body: Value| {
        let request = server.client.request(Method::PUT, format!("{}{SHOP}", server.url));
        answer(request.bearer_auth(&key).json(&body))
    };
    put(json!({})).await.expect(200);
    let refused = put(json!({"allow": {}})).await.expect(403);
    assert!(refused.body["detail"].as_str().unwrap().contains("all projects"));
}
