//! Secrets, from an operator's hand to a plugin's, and nowhere else.

use std::{fs::File, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use crate::{
    database::Database,
    hosts::{Host, eventually},
    stream::Stream,
};

const LONG: Duration = Duration::from_mins(1);

const KEY_ONE: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const KEY_TWO: &str = "0202020202020202020202020202020202020202020202020202020202020202";

/// A value that stands nowhere else.
const HUSH: &str = "Sesame/7-open+now=please";

async fn host(database: &str, settings: &[(&str, &str)]) -> Host {
    let key = [("OUTRIGGER_SECRETS_KEY", KEY_ONE)];
    Host::with(database, &[&key, settings].concat()).await
}

async fn set(host: &Host, name: &str, value: &str) -> Value {
    let path = format!("/v1/projects/shop/secrets/{name}");
    host.ok(Method::PUT, &path, Some(json!({ "value": value }))).await
}

fn trigger(granted: &[&str]) -> Value {
    json!({
        "match": {"resource": "order"}, "target": {"plugin": "probe"}, "record": "all",
        "order": "none", "retry": {"maxAttempts": 1}, "grants": {"secrets": granted, "state": true}
    })
}

/// Records an event that tells the probe to do these steps, and waits for it.
async fn publish(host: &Host, steps: Value) -> String {
    let event = json!({
        "resource": "order", "aggregateId": "o-1", "eventName": "order.placed",
        "payload": {"do": steps}
    });
    let receipt = host.ok(Method::POST, "/v1/projects/shop/events?wait=20s", Some(event)).await;
    receipt["messageId"].as_str().unwrap().to_owned()
}

fn show(channel: &str) -> Value {
    json!([{"op": "secret", "name": "KEY", "show": channel}])
}

/// What the probe has stored of a secret: data, and so not redacted.
async fn shown(host: &Host) -> Value {
    publish(host, show("state")).await;
    let state = host.get("/v1/projects/shop/triggers/ship/state?prefix=shown").await;
    state["items"][0]["value"].clone()
}

/// A process's memory in KiB.
fn resident(host: &Host) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// A value of so many bytes with no two places alike.
fn long(bytes: usize, seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.alphanumeric()).take(bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_triggers_share_what_keeps_their_secrets() {
    let database = Database::sqlite();
    let host = host(&database.url, &[]).await;
    host.project("shop").await;
    for name in ["A", "B", "C", "D"] {
        set(&host, name, &long(60_000, name.len() as u64 + u64::from(name.as_bytes()[0]))).await;
    }
    host.trigger("shop", "ship", trigger(&["A", "B", "C", "D"])).await;
    publish(&host, json!([])).await;
    let before = resident(&host);
    for number in 0..40 {
        let mut document = trigger(&["A", "B", "C", "D"]);
        document["match"] = json!({"resource": "other"});
        host.trigger("shop", &format!("t{number}"), document).await;
    }
    // All of them are called, so that each has what it needs.
    let event = json!({
        "resource": "other", "aggregateId": "a", "eventName": "x", "payload": {}
    });
    let path = "/v1/projects/shop/events?wait=50s";
    let receipt = host.ok(Method::POST, path, Some(event)).await;
    let done = receipt["triggers"].as_object().unwrap().values().filter(|state| **state == "done");
    assert_eq!(done.count(), 40, "{receipt}");
    let id = publish(&host, json!([{"op": "secret", "name": "A"}])).await;
    let event = host.get(&format!("/v1/projects/shop/events/{id}")).await;
    let text = event["attempts"][0]["logs"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("A=[secret A]"), "{event}");
    // One set takes some 13 MB.
    let grown = resident(&host).saturating_sub(before);
    assert!(grown < 150 << 10, "{before} KiB grew by {grown} KiB");

    // Different ones have an end, which is no attempt of the trigger's.
    let sets = [&["A", "B", "C"][..], &["A", "B", "D"], &["A", "C", "D"], &["B", "C", "D"]];
    let sets = [&sets[..], &[&["A", "B"][..], &["A", "C"]]].concat();
    for (number, granted) in sets.iter().enumerate() {
        let mut document = trigger(granted);
        document["match"] = json!({"resource": format!("r{number}")});
        document["retry"]["maxAttempts"] = json!(2);
        host.trigger("shop", &format!("some{number}"), document).await;
    }
    let mut told = Vec::new();
    for number in 0..sets.len() {
        let event = json!({
            "resource": format!("r{number}"), "aggregateId": "a", "eventName": "x", "payload": {}
        });
        let path = "/v1/projects/shop/events?wait=10s";
        let receipt = host.ok(Method::POST, path, Some(event)).await;
        let id = receipt["messageId"].as_str().unwrap();
        let event = host.get(&format!("/v1/projects/shop/events/{id}")).await;
        let attempt = &event["attempts"][0];
        told.push((attempt["kind"].clone(), attempt["error"].to_string()));
    }
    let refused: Vec<_> = told.iter().filter(|(kind, _)| kind == "hostFault").collect();
    assert!(!refused.is_empty() && refused.len() < sets.len(), "{told:?}");
    assert!(refused.iter().all(|(_, error)| error.contains("they may have 1MiB")), "{told:?}");
}

async fn no_text_shows_a_secret(database: &Database) {
    let log = std::env::temp_dir().join(format!("outrigger-{}.log", uuid::Uuid::new_v4()));
    let settings = [("OUTRIGGER_SECRETS_KEY", KEY_ONE), ("OUTRIGGER_LOG", "debug,sqlx=trace")];
    let file = File::create(&log).unwrap();
    let host = Host::logging(&database.url, &settings, file.into()).await;
    host.project("shop").await;
    assert_eq!(set(&host, "KEY", HUSH).await["name"], "KEY");
    host.trigger("shop", "ship", trigger(&["KEY"])).await;
    let mut stream = Stream::open(&host, "shop", "", None).await;
    let channels = ["log", "stdout", "pieces", "stderr", "panic", "retry", "reject"];
    let mut events = Vec::new();
    for channel in channels {
        events.push(publish(&host, show(channel)).await);
    }
    let told = stream.attempts(channels.len()).await;
    for (channel, told) in channels.iter().zip(&told) {
        let text = told.data.to_string();
        assert!(text.contains("KEY=[secret KEY]"), "{channel}: {text}");
    }
    let dead = host.get("/v1/projects/shop/dead-letters").await;
    let errors: Vec<_> =
        dead["items"].as_array().unwrap().iter().map(|i| &i["lastError"]).collect();
    assert_eq!(errors.len(), 3, "{dead}");
    assert!(errors.iter().all(|error| error.as_str().unwrap().contains("[secret KEY]")), "{dead}");

    let mut answers = vec![json!(told.iter().map(|told| told.data.clone()).collect::<Vec<_>>())];
    for path in
        ["attempts", "dead-letters", "deliveries?state=dead", "status", "secrets", "triggers"]
    {
        answers.push(host.get(&format!("/v1/projects/shop/{path}")).await);
    }
    for id in &events {
        answers.push(host.get(&format!("/v1/projects/shop/events/{id}")).await);
    }
    answers.push(host.get("/metrics").await);
    answers.push(std::fs::read_to_string(&log).unwrap().into());
    for answer in &answers {
        let text = answer.to_string();
        assert!(text.len() > 10 && !text.contains(HUSH), "{text}");
    }
    assert_sealed(database).await;

    // A key of the state is data; what is said of it isn't.
    let step = json!({"op": "set", "key": format!("KEY={HUSH}"), "value": "text"});
    publish(&host, json!([step])).await;
    let id = publish(&host, show("key")).await;
    let event = host.get(&format!("/v1/projects/shop/events/{id}")).await;
    let error = &event["deliveries"][0]["lastError"];
    assert!(error.as_str().unwrap().contains("KEY=[secret KEY]"), "{event}");
    drop(host);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains(HUSH), "{said}");
    std::fs::remove_file(log).unwrap();
}

/// What is stored has the value nowhere in clear.
async fn assert_sealed(database: &Database) {
    let (clear, hex) = (HUSH.as_bytes(), HUSH.bytes().map(|b| format!("{b:02x}")));
    let hex: String = hex.collect();
    if database.url.starts_with("sqlite:") {
        let path = database.path();
        for suffix in ["", "-wal"] {
            let file = format!("{}{suffix}", path.display());
            let bytes = std::fs::read(&file).unwrap_or_default();
            assert!(suffix.is_empty() || !bytes.is_empty(), "{file} has what was written last");
            assert!(!bytes.windows(clear.len()).any(|part| part == clear), "{file}");
        }
        return;
    }
    let mut db = PgConnection::connect(&database.url).await.unwrap();
    let tables = sqlx::query(
        "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'",
    );
    let tables = tables.fetch_all(&mut db).await.unwrap();
    assert!(tables.len() > 10);
    for table in tables {
        let table: String = table.get(0);
        let sql = format!("SELECT coalesce(string_agg(t::text, E'\\n'), '') FROM {table} t");
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut db).await.unwrap();
        let text: String = row.get(0);
        assert!(!text.contains(HUSH) && !text.contains(&hex), "{table}");
    }
}

#[tokio::test]
async fn no_text_shows_a_secret_on_sqlite() {
    no_text_shows_a_secret(&Database::sqlite()).await;
}

#[tokio::test]
async fn no_text_shows_a_secret_on_postgres() {
    no_text_shows_a_secret(&Database::postgres().await).await;
}

async fn a_trigger_has_what_it_is_granted(database: &Database) {
    let host = host(&database.url, &[]).await;
    host.project("shop").await;
    set(&host, "OTHER", "another value").await;
    host.trigger("shop", "ship", trigger(&["OTHER"])).await;
    set(&host, "KEY", HUSH).await;
    assert_eq!(shown(&host).await, "KEY absent");
    let attempts = host.get("/v1/projects/shop/attempts?limit=1").await;
    let line = &attempts["items"][0]["logs"][0];
    assert_eq!((&line["source"], &line["level"]), (&json!("host"), &json!("warn")));
    let text = line["text"].as_str().unwrap();
    assert!(text.contains(r#"`"grants": {"secrets": ["KEY"]}`"#), "{text}");

    host.trigger("shop", "ship", trigger(&["KEY", "OTHER"])).await;
    assert_eq!(shown(&host).await, format!("KEY={HUSH}"));
    for value in ["the second value", "the third value"] {
        set(&host, "KEY", value).await;
        assert_eq!(shown(&host).await, format!("KEY={value}"), "from the next event on");
    }
    // The new value is what is looked for in what it says.
    publish(&host, show("log")).await;
    let attempts = host.get("/v1/projects/shop/attempts?limit=1").await;
    assert_eq!(attempts["items"][0]["logs"][0]["text"], "KEY=[secret KEY]");

    let path = "/v1/projects/shop/secrets/KEY";
    let (status, problem) = host.send(Method::DELETE, path, None).await;
    assert_eq!((status, &problem["triggers"]), (StatusCode::CONFLICT, &json!(["ship"])));
    host.trigger("shop", "ship", trigger(&["OTHER"])).await;
    host.ok(Method::DELETE, path, None).await;
    assert_eq!(shown(&host).await, "KEY absent");
}

#[tokio::test]
async fn a_trigger_has_what_it_is_granted_on_sqlite() {
    a_trigger_has_what_it_is_granted(&Database::sqlite()).await;
}

#[tokio::test]
async fn a_trigger_has_what_it_is_granted_on_postgres() {
    a_trigger_has_what_it_is_granted(&Database::postgres().await).await;
}

#[tokio::test]
async fn another_host_learns_of_a_changed_secret_before_the_next_event() {
    let database = Database::postgres().await;
    let first = host(&database.url, &[]).await;
    first.project("shop").await;
    set(&first, "KEY", HUSH).await;
    first.trigger("shop", "ship", trigger(&["KEY"])).await;
    let second = host(&database.url, &[]).await;
    for round in 0..20 {
        let value = format!("value number {round}");
        set(if round % 2 == 0 { &first } else { &second }, "KEY", &value).await;
        let host = if round % 3 == 0 { &first } else { &second };
        assert_eq!(shown(host).await, format!("KEY={value}"));
    }
}

#[tokio::test]
async fn a_secret_that_does_not_open_is_the_hosts_fault() {
    let database = Database::sqlite();
    let mut first = host(&database.url, &[]).await;
    first.project("shop").await;
    set(&first, "KEY", HUSH).await;
    first.trigger("shop", "ship", trigger(&["KEY"])).await;
    first.signal("TERM");
    assert_eq!(first.exit_code(LONG).await, Some(0));

    // Another key: what is sealed with the first waits, and burns no attempt.
    let mut wrong = host(&database.url, &[("OUTRIGGER_SECRETS_KEY", KEY_TWO)]).await;
    let id = publish(&wrong, show("state")).await;
    let event = wrong.get(&format!("/v1/projects/shop/events/{id}")).await;
    let attempt = &event["attempts"][0];
    assert_eq!((&attempt["kind"], &attempt["number"]), (&json!("hostFault"), &json!(1)));
    let error = attempt["error"].as_str().unwrap();
    assert!(error.contains("`KEY`") && error.contains("OUTRIGGER_SECRETS_KEY"), "{error}");
    assert!(!error.contains(KEY_ONE) && !error.contains(HUSH), "{error}");
    let delivery = &event["deliveries"][0];
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("ready"), &json!(0)));
    wrong.signal("TERM");
    assert_eq!(wrong.exit_code(LONG).await, Some(0));

    // With the replaced key beside the new one it opens, and waits no longer.
    let previous =
        [("OUTRIGGER_SECRETS_KEY", KEY_TWO), ("OUTRIGGER_SECRETS_PREVIOUS_KEYS", KEY_ONE)];
    let right = host(&database.url, &previous).await;
    eventually("the delivery ends", LONG, async || {
        let event = right.get(&format!("/v1/projects/shop/events/{id}")).await;
        let state = event["deliveries"][0]["state"].clone();
        if state == "done" { Ok(()) } else { Err(state) }
    })
    .await;
}
