//! Secrets over HTTP: what may be set, and what is said of it.

use std::sync::Arc;

use outrigger::secrets::Keyring;
use serde_json::{Value, json};

use super::server::Server;
use crate::guests;

const SECRETS: &str = "/v1/projects/shop/secrets";

async fn server() -> Server {
    let key = "ab".repeat(32);
    let keyring = Keyring::new(Some(&key), []).expect("a key");
    let server = Server::with(|settings| settings.keyring = Arc::new(keyring)).await;
    assert!(server.store.put_project("shop").await.unwrap());
    server
}

fn value(text: &str) -> Value {
    json!({ "value": text })
}

#[tokio::test]
async fn a_secret_is_set_listed_and_deleted() {
    let server = server().await;
    let new = server.put(&format!("{SECRETS}/SMTP_KEY"), value("hush-hush-hush")).await;
    let new = new.expect(201).body;
    assert_eq!((&new["name"], &new["triggers"]), (&json!("SMTP_KEY"), &json!([])));
    assert!(new["updatedAt"].as_i64().is_some_and(|at| at > 0), "{new}");
    let again = server.put(&format!("{SECRETS}/SMTP_KEY"), value("another value")).await;
    assert_eq!(again.expect(200).body.as_object().unwrap().len(), 3, "no value");
    server.put(&format!("{SECRETS}/A"), value("\u{0}8 bytes")).await.expect(201);

    let plugin = "/v1/projects/shop/plugins/mail";
    server.push(plugin, guests::probe()).await.expect(201);
    let trigger = |secrets: Value| json!({ "match": {}, "target": { "plugin": "mail" }, "grants": { "secrets": secrets } });
    let on_order = "/v1/projects/shop/triggers/on-order";
    let missing = server.put(on_order, trigger(json!(["A", "NOPE"]))).await.expect(422);
    assert_eq!(missing.body["field"], "grants.secrets");
    assert!(missing.body["detail"].as_str().unwrap().contains("`NOPE`"), "{}", missing.body);
    server.get(on_order).await.expect(404);
    server.put(on_order, trigger(json!(["SMTP_KEY"]))).await.expect(201);

    let listed = server.get(SECRETS).await.expect(200).body;
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names, ["A", "SMTP_KEY"]);
    assert_eq!(listed["items"][1]["triggers"], json!(["on-order"]));
    assert!(!listed.to_string().contains("another value"));
    let page = server.get(&format!("{SECRETS}?limit=1")).await.expect(200).body;
    assert_eq!((&page["items"][0]["name"], &page["next"]), (&json!("A"), &json!("A")));

    let used = server.delete(&format!("{SECRETS}/SMTP_KEY")).await.expect(409);
    assert_eq!((used.problem(), &used.body["triggers"]), ("secret-in-use", &json!(["on-order"])));
    server.delete(on_order).await.expect(200);
    server.delete(&format!("{SECRETS}/SMTP_KEY")).await.expect(204);
    assert_eq!(server.delete(&format!("{SECRETS}/SMTP_KEY")).await.problem(), "unknown-secret");
    assert!(!server.get("/v1/projects/shop/secrets").await.body.to_string().contains("SMTP"));
}

#[tokio::test]
async fn what_cannot_be_a_secret_is_refused_and_not_repeated() {
    let server = server().await;
    let large = "hush".repeat(17 << 10);
    for (name, body, status, said) in [
        ("K", value("hush-hu"), 422, "it needs 8"),
        ("K", value(&large), 422, "64KiB"),
        ("K", json!({ "value": 123_456_789_012_u64 }), 422, "`value`"),
        ("K", json!({ "value": ["hush-hush"] }), 422, "`value`"),
        ("K", json!({ "value": "hush-hush", "hush": "hush-hush" }), 422, "`value`"),
        ("K", json!({}), 422, "`value`"),
        ("K", json!("hush-hush"), 422, "object"),
        ("a%20b", value("hush-hush"), 422, "`name`"),
        (".k", value("hush-hush"), 422, "`name`"),
    ] {
        let refused = server.put(&format!("{SECRETS}/{name}"), body.clone()).await.expect(status);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(said), "{said}: {detail}");
        assert!(!detail.contains("hush") && !detail.contains("123456789012"), "{detail}");
    }
    server.put("/v1/projects/nope/secrets/K", value("hush-hush")).await.expect(404);
    assert_eq!(server.get(SECRETS).await.expect(200).body["items"], json!([]));
}

#[tokio::test]
async fn a_project_has_a_hundred_secrets_at_the_most() {
    let server = server().await;
    for n in 0..100 {
        server.put(&format!("{SECRETS}/K{n}"), value("hush-hush")).await.expect(201);
    }
    let full = server.put(&format!("{SECRETS}/ONE_MORE"), value("hush-hush")).await.expect(409);
    assert_eq!(full.problem(), "too-many");
    server.put(&format!("{SECRETS}/K7"), value("hush-hush-hush")).await.expect(200);
    server.delete(&format!("{SECRETS}/K8")).await.expect(204);
    server.put(&format!("{SECRETS}/ONE_MORE"), value("hush-hush")).await.expect(201);
}

#[tokio::test]
async fn without_a_key_nothing_is_set() {
    let server = Server::with_project("shop").await;
    let refused = server.put(&format!("{SECRETS}/K"), value("hush-hush")).await.expect(503);
    assert_eq!(refused.problem(), "no-secrets-key");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("OUTRIGGER_SECRETS_KEY") && detail.contains("openssl"), "{detail}");
    assert_eq!(server.get(SECRETS).await.expect(200).body["items"], json!([]));
}
