//! `outrigger plugins test` on the example plugins.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::{guests::root, web::Web};

fn test(plugin: &str, arguments: &[&str]) -> Output {
    let file = format!("target/plugins/wasm32-wasip2/release/{}.wasm", plugin.replace('-', "_"));
    let event = format!("plugins/{plugin}/event.json");
    Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["plugins", "test", &file, "--event", &event])
        .args(arguments)
        .env("OUTRIGGER_CACHE", crate::hosts::cache())
        .current_dir(root())
        .output()
        .unwrap()
}

fn report(plugin: &str, arguments: &[&str]) -> Value {
    let output = test(plugin, &[&["--json"], arguments].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn every_example_handles_its_sample_event() {
    for plugin in ["order-totals", "fan-out", "audit-log"] {
        let output = test(plugin, &[]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.starts_with("ok\n"), "{plugin}: {said}");
        assert!(said.contains("effect  ") && said.contains("KiB of memory"), "{said}");
    }
}

#[test]
fn state_that_is_given_is_read() {
    let report = report("order-totals", &["--state", "total/c-1=100"]);
    let effects = report["effects"].to_string();
    assert!(effects.contains(r#""set":"total/c-1","value":"1300""#), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_needs_a_grant_and_a_private_address_the_operator() {
    let web = Web::start().await;
    let event = root().join("target/plugins/http-event.json");
    let url = format!("http://127.0.0.1:{}/hello", web.port);
    let steps = json!({"do": [{"op": "http", "url": url, "ignore": true}]});
    let recorded = json!({"resource": "r", "aggregateId": "a", "eventName": "n", "payload": steps});
    std::fs::write(&event, recorded.to_string()).unwrap();
    let host = format!("127.0.0.1:{}", web.port);
    let test = async |arguments: &[&str], allow: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command
            .args(["plugins", "test", "target/plugins/wasm32-wasip2/release/probe.wasm"])
            .args(["--event", event.to_str().unwrap()])
            .args(arguments)
            .env("OUTRIGGER_HTTP_ALLOW", allow)
            .current_dir(root());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let denied = test(&[], "127.0.0.1").await;
    assert!(
        denied.contains("may not send GET") && denied.contains("HttpRequestDenied"),
        "{denied}"
    );
    let private = test(&["--allow-http", &host], "").await;
    assert!(private.contains("`http.allow`"), "{private}");
    assert!(web.seen().is_empty());
    let sent = test(&["--allow-http", &host], "127.0.0.1").await;
    assert!(sent.contains("200 hello"), "{sent}");
}

#[test]
fn a_failure_is_shown_and_ends_with_one() {
    let document = root().join("target/plugins/no-grants.json");
    std::fs::write(&document, r#"{"match": {}, "target": {"plugin": "p"}}"#).unwrap();
    let output = test("order-totals", &["--trigger", document.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("retry: ") && said.contains("state"), "{said}");
}

#[test]
fn a_secret_is_given_and_not_printed() {
    let folder = root().join("target/plugins");
    let (event, secret) = (folder.join("secret-event.json"), folder.join("secret"));
    let show =
        r#"{"op": "secret", "name": "KEY"}, {"op": "secret", "name": "KEY", "show": "reject"}"#;
    let body = format!(
        r#"{{"resource": "r", "aggregateId": "a", "eventName": "n", "payload": {{"do": [{show}]}}}}"#
    );
    std::fs::write(&event, body).unwrap();
    std::fs::write(&secret, "open-sesame\n").unwrap();
    let given = format!("KEY={}", secret.display());
    let run = |arguments: &[&str]| {
        let file = folder.join("wasm32-wasip2/release/probe.wasm");
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command.args(["plugins", "test"]).arg(file).arg("--event").arg(&event);
        let output = command.args(arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).unwrap()
    };
    let said = run(&["--secret", &given]);
    assert!(said.starts_with("reject: KEY=[secret KEY]\n"), "{said}");
    assert!(said.contains("KEY=[secret KEY]") && !said.contains("sesame"), "{said}");
    let said = run(&[]);
    assert!(said.starts_with("reject: KEY absent (before, it was refused: "), "{said}");
    let document = folder.join("secret-trigger.json");
    let granted = r#"{"match": {}, "target": {"plugin": "p"}, "grants": {"secrets": ["OTHER"]}}"#;
    std::fs::write(&document, granted).unwrap();
    let said = run(&["--secret", &given, "--trigger", document.to_str().unwrap()]);
    assert!(said.contains("--secret OTHER=FILE"), "{said}");
}
