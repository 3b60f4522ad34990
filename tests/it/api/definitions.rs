//! Plugins and triggers, from upload to deletion.

use reqwest::Method;
use serde_json::{Value, json};

use super::server::{Server, answer};
use crate::guests;

const PLUGIN: &str = "/v1/projects/shop/plugins/mail";
const TRIGGER: &str = "/v1/projects/shop/triggers/on-order";

fn trigger() -> Value {
    json!({ "match": { "eventName": "order.*" }, "target": { "plugin": "mail" }, "grants": { "state": true } })
}

#[tokio::test]
async fn a_plugin_is_uploaded_activated_and_deleted() {
    let server = Server::with_project("shop").await;
    let (first, second) = (guests::probe(), guests::component("audit_log"));
    let dry = server.push(&format!("{PLUGIN}?dryRun=true"), first.clone()).await.expect(200);
    assert_eq!(dry.body["active"], false);
    server.get(PLUGIN).await.expect(404);

    let new = server.push(PLUGIN, first.clone()).await.expect(201).body;
    assert_eq!((&new["active"], &new["size"]), (&json!(true), &json!(first.len())));
    assert_eq!(new["digest"], dry.body["digest"]);
    assert_eq!(new["digest"].as_str().unwrap().len(), 64);
    assert!(new["exports"].to_string().contains("handler"), "{new}");
    server.push(PLUGIN, first).await.expect(200);

    let other = server.push(PLUGIN, second).await.expect(201).body;
    assert_eq!(other["active"], false);
    let plugin = server.get(PLUGIN).await.expect(200).body;
    assert_eq!((&plugin["name"], &plugin["active"]), (&json!("mail"), &new["digest"]));
    assert_eq!(plugin["versions"].as_array().unwrap().len(), 2);
    let activate = json!({ "digest": other["digest"] });
    let active = server.post(&format!("{PLUGIN}/activate"), activate).await.expect(200).body;
    assert_eq!((&active["digest"], &active["active"]), (&other["digest"], &json!(true)));
    let listed = server.get("/v1/projects/shop/plugins").await.expect(200).body;
    assert_eq!(listed["items"][0]["active"], other["digest"]);
    let nothing = json!({ "digest": "0".repeat(64) });
    server.post(&format!("{PLUGIN}/activate"), nothing).await.expect(404);

    server.put(TRIGGER, trigger()).await.expect(201);
    let used = server.delete(PLUGIN).await.expect(409);
    assert_eq!(used.body["triggers"], json!(["on-order"]));
    server.delete(TRIGGER).await.expect(200);
    server.delete(PLUGIN).await.expect(204);
    server.delete(PLUGIN).await.expect(404);
}

#[tokio::test]
async fn what_is_no_plugin_is_refused_with_advice() {
    let server = Server::with_project("shop").await;
    let large = vec![0; (8 << 20) + 1];
    for (bytes, status, problem, said) in [
        (Vec::new(), 422, "bad-component", "empty"),
        (b"#!/bin/sh".to_vec(), 422, "bad-component", "no WebAssembly"),
        (guests::wat("core.wat"), 422, "bad-component", "component is needed"),
        (guests::wat("unknown-import.wat"), 422, "bad-component", "imports"),
        (large, 413, "too-large", "8MiB"),
    ] {
        let refused = server.push(PLUGIN, bytes).await.expect(status);
        assert_eq!(refused.problem(), problem);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(said), "{detail}");
    }
    server.get(PLUGIN).await.expect(404);
    server.push("/v1/projects/nope/plugins/p", guests::probe()).await.expect(404);
    server.push("/v1/projects/shop/plugins/a%20b", guests::probe()).await.expect(422);
}

#[tokio::test]
async fn a_trigger_is_put_paused_and_deleted() {
    let server = Server::with_project("shop").await;
    server.push(PLUGIN, guests::probe()).await.expect(201);
    let new = server.put(TRIGGER, trigger()).await.expect(201).body;
    assert_eq!((&new["name"], &new["paused"]), (&json!("on-order"), &json!(false)));
    assert_eq!(new["spec"]["retry"]["maxAttempts"], 5);
    // What is shown can be put again.
    let again = server.put(TRIGGER, new["spec"].clone()).await.expect(200).body;
    assert_eq!(again["spec"], new["spec"]);
    let paused =
        server.post(&format!("{TRIGGER}/pause"), json!({ "reason": "mail is down" })).await;
    let paused = paused.expect(200).body;
    assert_eq!((&paused["paused"], &paused["pauseReason"]), (&json!(true), &json!("mail is down")));
    assert_eq!(server.put(TRIGGER, trigger()).await.expect(200).body["paused"], true);
    let quiet = answer(server.request(Method::POST, &format!("{TRIGGER}/pause"))).await.expect(200);
    assert_eq!((quiet.body.get("pauseReason"), &quiet.body["paused"]), (None, &json!(true)));
    let resumed = answer(server.request(Method::POST, &format!("{TRIGGER}/resume"))).await;
    assert_eq!(resumed.expect(200).body["paused"], false);
    let listed = server.get("/v1/projects/shop/triggers").await.expect(200).body;
    assert_eq!(listed["items"][0]["name"], "on-order");
    let state = server.get(&format!("{TRIGGER}/state?prefix=a&limit=5")).await.expect(200).body;
    assert_eq!(state, json!({ "items": [] }));

    let mut fixed = trigger();
    fixed["target"]["version"] = "0".repeat(64).into();
    assert_eq!(server.put(TRIGGER, fixed).await.expect(422).body["field"], "target.version");
    let gone = server.delete(TRIGGER).await.expect(200).body;
    assert_eq!(gone["deliveries"], json!({ "dropped": 0, "dead": 0 }));
    server.delete(TRIGGER).await.expect(404);
}
