//! `outrigger plugins test` on the example plugins.

use std::process::{Command, Output};

use serde_json::Value;

use crate::guests::root;

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

fn json(plugin: &str, arguments: &[&str]) -> Value {
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
    let report = json("order-totals", &["--state", "total/c-1=100"]);
    let effects = report["effects"].to_string();
    assert!(effects.contains(r#""set":"total/c-1","value":"1300""#), "{report}");
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
