//! What isn't understood is refused, and what was wrong with it is said.

use reqwest::{Method, header};
use serde_json::{Value, json};

use super::server::{Server, answer};

/// Method, path, body, status, problem, and what the detail names.
type Case = (&'static str, &'static str, &'static str, u16, &'static str, &'static str);

/// What can't be recorded.
#[rustfmt::skip]
const EVENTS: &[Case] = &[
    ("POST", "/v1/projects/shop/events", "", 400, "bad-json", "empty"),
    ("POST", "/v1/projects/shop/events", "{", 400, "bad-json", "EOF"),
    ("POST", "/v1/projects/shop/events", "{'a':1}", 400, "bad-json", "key"),
    ("POST", "/v1/projects/shop/events", "[1,", 400, "bad-json", "EOF"),
    ("POST", "/v1/projects/shop/events", "{}{}", 422, "invalid", "resource"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}x"#, 400, "bad-json", "trailing"),
    ("POST", "/v1/projects/shop/events", "7", 422, "invalid", "an event"),
    ("POST", "/v1/projects/shop/events", "{}", 422, "invalid", "`resource`"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"\ud800","aggregateId":"1","eventName":"n","payload":1}"#, 400, "bad-json", "hex escape"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"\u0000","aggregateId":"1","eventName":"n","payload":1}"#, 422, "invalid", "U+0000"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":1,"eventName":"n","payload":1}"#, 422, "invalid", "aggregateId"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"","aggregateId":"1","eventName":"n","payload":1}"#, 422, "invalid", "`resource` is empty"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","pay":1}"#, 422, "invalid", "pay"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1,"schemaVersion":-1}"#, 422, "invalid", "schemaVersion"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1,"meta":[]}"#, 422, "invalid", "`meta`"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1,"availableAt":-5}"#, 422, "invalid", "availableAt"),
    ("POST", "/v1/projects/shop/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1,"payload":2}"#, 422, "invalid", "duplicate field"),
    ("POST", "/v1/projects/shop/events?wait=61s", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#, 400, "bad-query", "wait=1m 1s"),
    ("POST", "/v1/projects/shop/events?wait=5", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#, 400, "bad-query", "wait=5"),
    ("POST", "/v1/projects/shop/events?wait=5s", "[]", 400, "bad-query", "`wait`"),
    ("POST", "/v1/projects/shop/events?dryRun=true", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#, 400, "bad-query", "`dryRun`"),
    ("POST", "/v1/projects/nope/events", r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#, 404, "unknown-project", "`nope`"),
];

/// What can't be looked up.
#[rustfmt::skip]
const LISTS: &[Case] = &[
    ("GET", "/v1/projects/shop/events?limit=0", "", 400, "bad-query", "limit=0"),
    ("GET", "/v1/projects/shop/events?limit=501", "", 400, "bad-query", "limit=501"),
    ("GET", "/v1/projects/shop/events?limit=x", "", 400, "bad-query", "limit=x"),
    ("GET", "/v1/projects/shop/events?cursor=x", "", 400, "bad-query", "cursor=x"),
    ("GET", "/v1/projects/shop/events?since=today", "", 400, "bad-query", "since=today"),
    ("GET", "/v1/projects/shop/events?status=lost", "", 400, "bad-query", "lost"),
    ("GET", "/v1/projects/shop/events?status=pending&status=pending", "", 400, "bad-query", "twice"),
    ("GET", "/v1/projects/shop/events?resource=%ff", "", 400, "bad-query", "UTF-8"),
    ("GET", "/v1/projects/shop/events?resource=%00", "", 400, "bad-query", "U+0000"),
    ("GET", "/v1/projects/%ff/events", "", 400, "bad-path", "UTF-8"),
    ("GET", "/v1/projects/a%00b/events", "", 400, "bad-path", "U+0000"),
    ("GET", "/v1/projects/shop/events/17", "", 400, "bad-path", "17"),
    ("GET", "/v1/projects/shop/events/00000000-0000-0000-0000-000000000000", "", 404, "unknown-event", "0000"),
    ("GET", "/v1/projects/shop/deliveries?state=x", "", 400, "bad-query", "`state`"),
    ("GET", "/v1/projects/shop/attempts?failed=1", "", 400, "bad-query", "failed=1"),
    ("GET", "/v1/projects/shop/attempts?messageId=1", "", 400, "bad-query", "messageId=1"),
    ("GET", "/v1/nope", "", 404, "unknown-path", "/v1/nope"),
    ("GET", "/v1/projects/", "", 404, "unknown-path", "/v1/projects/"),
    ("PATCH", "/v1/projects/shop", "", 405, "method-not-allowed", "PATCH"),
    ("POST", "/healthz", "", 405, "method-not-allowed", "POST"),
];

/// What can't be defined or set in motion.
#[rustfmt::skip]
const DEFINITIONS: &[Case] = &[
    ("PUT", "/v1/projects/a%20b", "{}", 422, "invalid", "`project`"),
    ("PUT", "/v1/projects/shop", r#"{"colour":1}"#, 422, "invalid", "colour"),
    ("POST", "/v1/keys", r#"{"role":"viewer"}"#, 422, "invalid", "not supported by this version"),
    ("POST", "/v1/keys", r#"{"role":"king"}"#, 422, "invalid", "king"),
    ("POST", "/v1/keys", r#"{"role":"admin","project":"nope"}"#, 422, "invalid", "`nope`"),
    ("POST", "/v1/keys", r#"{"role":"admin","scope":1}"#, 422, "invalid", "scope"),
    ("DELETE", "/v1/keys/1", "", 400, "bad-path", "1"),
    ("PUT", "/v1/projects/shop/triggers/t", "{}", 422, "invalid", "`match`"),
    ("PUT", "/v1/projects/shop/triggers/t", r#"{"match":{},"target":{"plugin":"nope"}}"#, 422, "invalid", "`nope`"),
    ("PUT", "/v1/projects/shop/triggers/t", r#"{"match":{},"target":{"plugin":"p"},"grants":{"http":["a/b"]}}"#, 422, "invalid", "grants.http"),
    ("PUT", "/v1/projects/shop/triggers/t", r#"{"match":{},"target":{"plugin":"p"},"retyr":{}}"#, 422, "invalid", "retyr"),
    ("PUT", "/v1/projects/shop/triggers/t", r#"{"match":{},"target":{"plugin":"p"},"limits":{"deadline":"5"}}"#, 422, "invalid", "limits.deadline"),
    ("PUT", "/v1/projects/shop/triggers/t", r#"{"match":{},"target":{"plugin":"p"},"limits":{"memory":"4GiB"}}"#, 422, "invalid", "limits.memory"),
    ("PUT", "/v1/projects/shop/triggers/t", r#"{"match":{"when":"payload.("},"target":{"plugin":"p"}}"#, 422, "invalid", "match.when"),
    ("GET", "/v1/projects/shop/triggers/t", "", 404, "unknown-trigger", "`t`"),
    ("DELETE", "/v1/projects/shop/triggers/t?deliveries=burn", "", 400, "bad-query", "burn"),
    ("POST", "/v1/projects/shop/triggers/t/pause", "{}", 404, "unknown-trigger", "`t`"),
    ("POST", "/v1/projects/shop/triggers/t/pause", r#"{"why":"x"}"#, 422, "invalid", "why"),
    ("POST", "/v1/projects/nope/triggers/t/pause", "{}", 404, "unknown-project", "`nope`"),
    ("GET", "/v1/projects/shop/plugins/p", "", 404, "unknown-plugin", "`p`"),
    ("POST", "/v1/projects/shop/plugins/p/activate", r#"{"digest":"x"}"#, 404, "unknown-plugin", "`p`"),
    ("POST", "/v1/projects/shop/dead-letters/x/requeue", "", 400, "bad-path", "x"),
    ("POST", "/v1/projects/shop/dead-letters/9/requeue", "", 404, "unknown-dead-letter", "9"),
    ("POST", "/v1/projects/shop/dead-letters/9/purge", "", 404, "unknown-dead-letter", "9"),
    ("POST", "/v1/projects/shop/dead-letters/purge", "", 400, "bad-json", "empty"),
    ("POST", "/v1/projects/shop/dead-letters/purge", r#"{"kind":"boredom"}"#, 422, "invalid", "boredom"),
    ("POST", "/v1/projects/shop/dead-letters/purge", r#"{"limit":0}"#, 422, "invalid", "`limit`"),
    ("POST", "/v1/projects/shop/dead-letters/purge", r#"{"triger":"t"}"#, 422, "invalid", "triger"),
    ("POST", "/v1/projects/shop/dead-letters/purge", r#"{"trigger":"\u0000"}"#, 422, "invalid", "`trigger`"),
    ("POST", "/v1/projects/shop/events/replay", "", 400, "bad-json", "empty"),
    ("POST", "/v1/projects/shop/events/replay", r#"{"limit":0}"#, 422, "invalid", "`limit`"),
    ("POST", "/v1/projects/shop/events/replay", r#"{"resourc":"r"}"#, 422, "invalid", "resourc"),
    ("POST", "/v1/projects/shop/events/replay", r#"{"resource":"\u0000"}"#, 422, "invalid", "`resource`"),
    ("POST", "/v1/projects/shop/events/replay", r#"{"trigger":"t"}"#, 404, "unknown-trigger", "`t`"),
    ("POST", "/v1/projects/nope/events/replay", "{}", 404, "unknown-project", "`nope`"),
    ("POST", "/v1/projects/shop/events/17/replay", "", 400, "bad-path", "17"),
    ("POST", "/v1/projects/shop/events/00000000-0000-0000-0000-000000000000/replay", "", 404, "unknown-event", "0000"),
    ("POST", "/v1/projects/shop/events/00000000-0000-0000-0000-000000000000/replay", r#"{"trigger":"t"}"#, 404, "unknown-trigger", "`t`"),
    ("POST", "/v1/projects/shop/events/00000000-0000-0000-0000-000000000000/replay", r#"{"triggers":[]}"#, 422, "invalid", "triggers"),
];

const EVENT: &str = r#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#;

#[tokio::test]
async fn bad_input_is_named() {
    let server = Server::with_project("shop").await;
    for &(method, path, body, status, problem, named) in &[EVENTS, LISTS, DEFINITIONS].concat() {
        let request = server.request(method.parse().unwrap(), path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        let refused = answer(request).await;
        assert_eq!(refused.status, status, "{method} {path} {body}: {}", refused.body);
        assert_eq!(refused.problem(), problem, "{method} {path} {body}: {}", refused.body);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(named), "{method} {path} {body}: `{named}` is not in {detail}");
    }
    assert_eq!(server.get("/v1/projects/shop/events").await.expect(200).body["items"], json!([]));
}

#[tokio::test]
async fn a_payload_has_bounds() {
    let server = Server::with_project("shop").await;
    let record = |payload: &str| {
        let body = EVENT.replace(":1}", &format!(":{payload}}}"));
        answer(server.request(Method::POST, "/v1/projects/shop/events").body(body))
    };
    let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [501, 20_000] {
        assert_eq!(record(&nested(depth)).await.expect(422).body["field"], "payload");
    }
    record(&nested(500)).await.expect(201);
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let refused = record(&text((64 << 10) + 1)).await.expect(413);
    assert!(refused.body["detail"].as_str().unwrap().contains("64KiB"), "{refused:?}");
    record(&text(64 << 10)).await.expect(201);
}

#[tokio::test]
async fn headers_of_a_refusal_say_what_would_do() {
    let server = Server::with_project("shop").await;
    let refused = answer(server.request(Method::PATCH, "/v1/projects/shop")).await.expect(405);
    let allowed = refused.header("allow");
    for method in ["GET", "PUT", "DELETE"] {
        assert!(allowed.contains(method), "{allowed}");
    }
    let post = || server.request(Method::POST, "/v1/projects/shop/events").body(EVENT);
    // What `curl -d` sends unasked.
    let form = post().header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    let refused = answer(form).await.expect(415);
    assert!(refused.body["detail"].as_str().unwrap().contains("application/json"));
    let zipped = post().header(header::CONTENT_ENCODING, "gzip");
    assert_eq!(answer(zipped).await.expect(415).problem(), "media-type");
    for good in ["application/json; charset=utf-8", "application/cloudevents+json"] {
        answer(post().header(header::CONTENT_TYPE, good)).await.expect(201);
    }
    answer(post()).await.expect(201);
    let bytes =
        server.request(Method::POST, "/v1/projects/shop/events").body(vec![b'"', 0xff, b'"']);
    assert!(answer(bytes).await.expect(400).body["detail"].as_str().unwrap().contains("UTF-8"));
}

#[tokio::test]
async fn what_later_versions_do_is_not_ignored() {
    let server = Server::with_project("shop").await;
    let project = "/v1/projects/shop";
    for (method, path) in [
        (Method::POST, format!("{project}/triggers/t/try")),
        (Method::PUT, format!("{project}/statements/s")),
        (Method::PUT, format!("{project}/quotas")),
        (Method::GET, "/v1/audit".into()),
    ] {
        let refused = answer(server.request(method, &path).json(&Value::Null)).await.expect(501);
        assert_eq!(refused.problem(), "not-supported", "{path}");
        assert!(refused.body["detail"].as_str().unwrap().contains("not supported by this version"));
    }
}
