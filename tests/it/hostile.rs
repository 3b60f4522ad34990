//! Plugins of strangers who mean harm: each comes to its own end, which says
//! what it was, and a neighbour's events are settled meanwhile.
//!
//! Their sources are in `tests/hostile`; those that are meant for the compiler
//! are in `compiling`.

mod soak;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    database::Database,
    guests,
    hosts::{Host, eventually},
};

const LONG: Duration = Duration::from_mins(4);

/// What becomes of a call.
pub(crate) enum Comes {
    /// It ends well, and logs this, if anything.
    Well(Option<&'static str>),
    /// It fails: the kind, and a part of the message.
    To(&'static str, &'static str),
}

use Comes::{To, Well};

/// Every hostile plugin and what becomes of it where a call may last 5 s, and
/// be on a processor for 500 ms of them.
pub(crate) fn all() -> Vec<(&'static str, Comes)> {
    let budget = "used up its time on a processor; the trigger's `limits.cpu` is 500ms";
    vec![
        ("loop-in-handle", To("cpu", budget)),
        ("loop-in-start", To("cpu", budget)),
        ("loop-in-realloc", To("cpu", budget)),
        ("recurse", To("stack", "`sandbox.stack_max` is 512KiB")),
        ("grow-memory", To("memory", "the trigger's `limits.memory` is 64MiB")),
        ("grow-table", To("limit", "this host's `sandbox.table_elements` is 100000")),
        ("log-a-gigabyte", Well(Some("were dropped; this host's `sandbox.log_bytes` is 64KiB"))),
        ("emit-a-million", To("limit", "the trigger's `limits.emitCount` is 100")),
        ("emit-ten-thousand-regardless", Well(None)),
        ("return-a-gigabyte", To("badResult", "out of bounds")),
        ("return-too-much", To("badResult", "the plugin handed more than")),
        ("return-no-utf8", To("badResult", "utf-8")),
        ("return-no-case", To("badResult", "discriminant")),
        ("return-nowhere", To("badResult", "pointer")),
        ("log-no-utf8", To("badResult", "utf-8")),
        ("realloc-nowhere", To("badResult", "realloc")),
        ("trap-in-handle", To("trap", "unreachable")),
        ("trap-in-start", To("trap", "unreachable")),
        ("trap-in-realloc", To("trap", "unreachable")),
        ("trap-after-return", To("trap", "unreachable")),
        (SLEEPER, To("deadline", "the trigger's `limits.deadline` is 1s")),
    ]
}

/// The one whose source isn't text: it sleeps past its deadline.
pub(crate) const SLEEPER: &str = "sleep-past-the-deadline";

/// Its component.
pub(crate) fn component(name: &str) -> Vec<u8> {
    if name == SLEEPER { guests::probe() } else { guests::hostile(name) }
}

/// The document of a hostile plugin's trigger.
fn trigger(name: &str, isolation: &str) -> Value {
    // Copying a gigabyte takes its time in a build that isn't optimised.
    let (cpu, deadline) = match name {
        "log-a-gigabyte" => ("1m", "2m"),
        SLEEPER => ("500ms", "1s"),
        _ => ("500ms", "5s"),
    };
    json!({
        "match": {"resource": name}, "target": {"plugin": name}, "isolation": isolation,
        "grants": {"emit": ["*"]}, "retry": {"maxAttempts": 1}, "record": "all",
        "limits": {"deadline": deadline, "cpu": cpu, "emitCount": 100}, "order": "none"
    })
}

async fn record(host: &Host, resource: &str, count: usize) -> Vec<String> {
    let payload = json!({"do": [{"op": "sleep", "ms": 60_000}]});
    let event = json!({
        "resource": resource, "aggregateId": "a", "eventName": "it.happened", "payload": payload
    });
    let events = vec![event; count];
    let answer = host.ok(Method::POST, "/v1/projects/bad/events", Some(events.into())).await;
    let events = answer["events"].as_array().unwrap();
    events.iter().map(|event| event["messageId"].as_str().unwrap().to_owned()).collect()
}

/// A neighbour's event, which is through before this returns.
async fn neighbour(host: &Host) {
    let event = json!({
        "resource": "order", "aggregateId": "o", "eventName": "order.placed",
        "payload": {"do": [{"op": "increment", "key": "n", "by": 1}]}
    });
    let path = "/v1/projects/good/events?wait=30s";
    let answer = host.ok(Method::POST, path, Some(event)).await;
    assert_eq!(answer["triggers"]["count"], "done", "{answer}");
}

/// Waits for the event's one attempt and compares it with what is to come.
async fn check(host: &Host, name: &str, id: &str, comes: &Comes) {
    let path = format!("/v1/projects/bad/events/{id}");
    let mut attempt = Value::Null;
    eventually(name, LONG, async || {
        let event = host.get(&path).await;
        attempt = event["attempts"][0].clone();
        if attempt.is_null() { Err(event) } else { Ok(()) }
    })
    .await;
    match comes {
        To(kind, message) => {
            assert_eq!(attempt["kind"], *kind, "{name}: {attempt}");
            let error = attempt["error"].as_str().unwrap();
            assert!(error.contains(message), "{name}: {message}: {error}");
        }
        Well(said) => {
            assert_eq!(attempt["failed"], false, "{name}: {attempt}");
            let logs = attempt["logs"].as_array().unwrap();
            let host = logs.iter().filter(|line| line["source"] == "host");
            let mut texts = host.map(|line| line["text"].as_str().unwrap());
            assert!(said.is_none_or(|said| texts.any(|text| text.contains(said))), "{logs:?}");
        }
    }
    let (wall, cpu) = (&attempt["durationUs"], &attempt["cpuUs"]);
    assert!(wall.as_u64() >= cpu.as_u64() && cpu.as_u64() > Some(0), "{name}: {attempt}");
}

async fn hostile_plugins_harm_no_neighbour(database: Database, isolation: &str) {
    let host = Host::start(&database.url).await;
    host.project("bad").await;
    host.project("good").await;
    let count = json!({
        "match": {}, "target": {"plugin": "probe"}, "grants": {"state": true},
        "isolation": isolation
    });
    host.trigger("good", "count", count).await;
    let mut neighbours = 0;
    for (name, comes) in all() {
        host.push("bad", name, component(name)).await;
        host.trigger("bad", name, trigger(name, isolation)).await;
        let ids = record(&host, name, 1).await;
        for _ in 0..3 {
            neighbour(&host).await;
            neighbours += 1;
        }
        check(&host, name, &ids[0], &comes).await;
    }
    // And all of them at once.
    let mut ids = Vec::new();
    for (name, _) in all() {
        ids.extend(record(&host, name, 3).await);
    }
    for _ in 0..20 {
        neighbour(&host).await;
        neighbours += 1;
    }
    for ((name, comes), ids) in all().iter().zip(ids.chunks(3)) {
        for id in ids {
            check(&host, name, id, comes).await;
        }
    }
    let state = host.get("/v1/projects/good/triggers/count/state").await;
    assert_eq!(state["items"][0]["value"], neighbours.to_string());
    let flood = host.get("/v1/projects/bad/events?resource=flood&limit=500").await;
    assert_eq!(flood["items"].as_array().unwrap().len(), 4 * 100, "what was emitted by some");
    assert_eq!(host.ready().await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_plugins_harm_no_neighbour_on_postgres() {
    hostile_plugins_harm_no_neighbour(Database::postgres().await, "batch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_plugins_harm_no_neighbour_on_sqlite() {
    hostile_plugins_harm_no_neighbour(Database::sqlite(), "event").await;
}
