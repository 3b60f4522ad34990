//! Events: recorded singly and in arrays, repeated, waited for, looked up.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    column,
    server::{Answer, Server, answer},
};

fn event(aggregate: &str) -> Value {
    json!({ "resource": "order", "aggregateId": aggregate, "eventName": "order.placed", "payload": {} })
}

fn with(mut event: Value, member: &str, value: impl Into<Value>) -> Value {
    event[member] = value.into();
    event
}

const EVENTS: &str = "/v1/projects/shop/events";

#[tokio::test]
async fn what_is_recorded_is_shown_to_the_letter() {
    let server = Server::with_project("shop").await;
    // Numbers, escapes, order and blanks that no parser would give back.
    let payload =
        r#"{"z": 1e400, "a":  18446744073709551616.10, "s":"\u0000\ud83e\ude91\u00e9", "z": []}"#;
    let body = format!(
        r#" {{"payload": {payload}, "resource": "order", "aggregateId": "é/1", "eventName": "order.placed",
            "schemaVersion": 3, "meta": {{"trace" : "t"}}, "dedupKey": "k1"}} "#
    );
    let request = server.request(Method::POST, EVENTS).header("content-type", "application/json");
    let receipt = answer(request.body(body)).await.expect(201);
    let id = receipt.body["messageId"].as_str().unwrap();
    assert_eq!(receipt.header("location"), format!("{EVENTS}/{id}"));
    assert!(receipt.body["createdAt"].as_i64().unwrap() > 1_600_000_000_000);

    let raw = server.request(Method::GET, &format!("{EVENTS}/{id}")).send().await.unwrap();
    let text = raw.text().await.unwrap();
    assert!(text.contains(payload), "{text}");
    assert!(text.contains(r#"{"trace" : "t"}"#), "{text}");
    let found = server.get(&format!("{EVENTS}?dedupKey=k1&aggregateId=%C3%A9/1")).await.expect(200);
    let item = &found.body["items"][0];
    assert_eq!((&item["messageId"], &item["schemaVersion"]), (&json!(id), &json!(3)));
    assert_eq!((item.get("payload"), &item["status"]), (None, &json!("pending")));
}

#[tokio::test]
async fn each_of_an_array_stands_alone() {
    let server = Server::with_project("shop").await;
    let dup = with(event("1"), "dedupKey", "k");
    let array = json!([
        dup,
        7,
        event("2"),
        with(event("3"), "colour", "red"),
        dup,
        with(event("4"), "payload", "x".repeat(70_000)),
        with(event(""), "payload", 1),
        event("5"),
    ]);
    let answers = server.post(EVENTS, array).await.expect(200).body;
    assert_eq!(
        answers["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["status"])
            .collect::<Vec<_>>(),
        [201, 422, 201, 422, 409, 413, 422, 201]
    );
    let [first, _, _, unknown, again, ..] = &answers["events"].as_array().unwrap()[..] else {
        panic!("{answers}")
    };
    assert!(unknown["error"]["detail"].as_str().unwrap().contains("colour"), "{unknown}");
    assert_eq!(again["messageId"], first["messageId"]);
    assert_eq!(again["error"]["type"], "urn:outrigger:problem:duplicate");
    assert_eq!(server.get(EVENTS).await.body["items"].as_array().unwrap().len(), 3);

    assert_eq!(server.post(EVENTS, json!([])).await.expect(200).body, json!({ "events": [] }));
    let small = json!({ "resource": "r", "aggregateId": "1", "eventName": "n", "payload": 1 });
    let thousand = Value::from(vec![small.clone(); 1000]);
    let all = server.post(EVENTS, thousand).await.expect(200).body;
    assert!(all["events"].as_array().unwrap().iter().all(|item| item["status"] == 201));
    let refused = server.post(EVENTS, Value::from(vec![small; 1001])).await.expect(413);
    assert!(refused.body["detail"].as_str().unwrap().contains("1001"), "{refused:?}");
}

#[tokio::test]
async fn a_used_dedup_key_names_the_first_event() {
    let server = Server::with_project("shop").await;
    server.put("/v1/projects/other", json!({})).await.expect(201);
    let body = with(event("1"), "dedupKey", "k");
    let first = server.post(EVENTS, body.clone()).await.expect(201);
    let second = server.post(EVENTS, body.clone()).await.expect(409);
    assert_eq!(second.problem(), "duplicate");
    assert_eq!(second.body["messageId"], first.body["messageId"]);
    // A key is its project's own, and an empty one is none.
    server.post("/v1/projects/other/events", body).await.expect(201);
    for _ in 0..2 {
        server.post(EVENTS, with(event("1"), "dedupKey", "")).await.expect(201);
    }
}

#[tokio::test]
async fn an_idempotency_key_answers_the_first_receipt_again() {
    let server = Server::with_project("shop").await;
    let send = |key: &str, body: Value| {
        answer(server.request(Method::POST, EVENTS).header("idempotency-key", key).json(&body))
    };
    let first = send("abc", event("1")).await.expect(201);
    let again = send("abc", event("1")).await.expect(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.body, first.body);
    assert_eq!(first.header("idempotency-replayed"), "");
    let other = send("abc", event("2")).await.expect(422);
    assert_eq!(other.problem(), "idempotency-key-reused");
    let both = send("abc", with(event("1"), "dedupKey", "xyz")).await.expect(422);
    assert_eq!(both.body["field"], "dedupKey");
    let same = send("abc", with(event("1"), "dedupKey", "abc")).await.expect(200);
    assert_eq!(same.body, first.body);
    send("", event("1")).await.expect(400);
    send(&"x".repeat(513), event("1")).await.expect(400);
    send("abc", json!([event("1")])).await.expect(400);
}

#[tokio::test]
async fn pages_meet_and_filters_hold() {
    let server = Server::with_project("shop").await;
    for n in 0..7 {
        server.post(EVENTS, event(&n.to_string())).await.expect(201);
    }
    let later = with(event("later"), "availableAt", 4_000_000_000_000_i64);
    server.post(EVENTS, later).await.expect(201);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page =
            server.get(&format!("{EVENTS}?status=pending&limit=3{cursor}")).await.expect(200);
        seen.extend(column(&page.body, "aggregateId"));
        match page.body["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["6", "5", "4", "3", "2", "1", "0"]);
    let scheduled = server.get(&format!("{EVENTS}?status=scheduled")).await.expect(200).body;
    assert_eq!(column(&scheduled, "aggregateId"), ["later"]);
    let none = server.get(&format!("{EVENTS}?resource=invoice")).await.expect(200).body;
    assert_eq!(none, json!({ "items": [] }));
    let none = server.get(&format!("{EVENTS}?until=1000")).await.expect(200).body;
    assert_eq!(none, json!({ "items": [] }));
}

#[tokio::test]
async fn an_event_says_why_it_waits() {
    let server = Server::with_project("shop").await;
    let reasons = |answer: Answer| {
        let waits = answer.expect(200).body["waits"].clone();
        waits.as_array().unwrap().iter().map(|wait| wait["reason"].clone()).collect::<Vec<_>>()
    };
    let record = async |event| {
        let receipt = server.post(EVENTS, event).await.expect(201).body;
        format!("{EVENTS}/{}", receipt["messageId"].as_str().unwrap())
    };
    let now = record(event("1")).await;
    let shown = server.get(&now).await.expect(200);
    assert_eq!((&shown.body["deliveries"], &shown.body["attempts"]), (&json!([]), &json!([])));
    assert_eq!(reasons(shown), ["queued"]);
    let later = record(with(event("1"), "availableAt", 4_000_000_000_000_i64)).await;
    let waits = server.get(&later).await.expect(200).body["waits"].clone();
    assert_eq!(waits, json!([{ "reason": "notDue", "until": 4_000_000_000_000_i64 }]));
    server.post("/v1/projects/shop/disable", json!({})).await.expect(200);
    assert_eq!(reasons(server.get(&now).await), ["projectDisabled", "queued"]);

    // An application may record for a project that nobody has created yet.
    let orphan = outrigger::model::event::NewEvent::new("ghost", "r", "1", "n", "{}");
    let recorded = server.store.record(&[orphan]).await.unwrap();
    let outrigger::store::Recorded::New { message_id, .. } = &recorded[0] else {
        panic!("{recorded:?}")
    };
    let path = format!("/v1/projects/ghost/events/{message_id}");
    assert_eq!(reasons(server.get(&path).await), ["noSuchProject", "queued"]);
    assert_eq!(column(&server.get("/v1/projects/ghost/events").await.body, "resource"), ["r"]);
}

#[tokio::test]
async fn a_wait_ends_at_its_time_and_with_the_host() {
    let server = Server::with_project("shop").await;
    let began = Instant::now();
    let waited = server.post(&format!("{EVENTS}?wait=300ms"), event("1")).await.expect(202);
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(waited.body["messageId"].is_string());
    assert_eq!((waited.body.get("publishedAt"), &waited.body["triggers"]), (None, &json!({})));
    server.post(&format!("{EVENTS}?wait=0s"), event("1")).await.expect(202);
    let request = server.request(Method::POST, &format!("{EVENTS}?wait=60s")).json(&event("1"));
    let long = tokio::spawn(answer(request));
    // The call is under way once its event is there.
    while column(&server.get(EVENTS).await.body, "pk").len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let began = Instant::now();
    server.stop().await;
    long.await.unwrap().expect(202);
    assert!(began.elapsed() < Duration::from_secs(5));
}
