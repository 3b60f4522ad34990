//! Requests of plugins: where they go, where they don't, and what they cost.

mod hostile;
mod tls;

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use outrigger::{
    model::{
        attempt::Source,
        outcome::FailureKind,
        units::{Bytes, Span},
    },
    sandbox::{Batch, Call, HttpSettings, Network, Plugin, Report, Resolve, Sandbox, Settings},
};
use serde_json::{Value, json};

use super::{call, texts};
use crate::{guests, web::Web};

/// Answers each lookup with the next of these; the last one stays.
struct Names(Mutex<VecDeque<Vec<IpAddr>>>, Mutex<Vec<String>>);

impl Names {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = |answer: &&[&str]| answer.iter().map(|a| a.parse().unwrap()).collect();
        Arc::new(Self(Mutex::new(answers.iter().map(parsed).collect()), Mutex::default()))
    }

    fn asked(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }
}

impl Resolve for Names {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.1.lock().unwrap().push(name.to_owned());
        let mut answers = self.0.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        next.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A host whose guests may reach this machine under 127.0.0.1, and nothing
/// else that isn't public.
fn local() -> Settings {
    let allow = vec!["127.0.0.1/32".parse().unwrap()];
    let http = HttpSettings { allow, ..HttpSettings::default() };
    Settings { slots: 8, http, ..Settings::default() }
}

async fn probe_on(settings: Settings, names: &Arc<Names>) -> Arc<Plugin> {
    let resolver = Arc::clone(names) as Arc<dyn Resolve>;
    let sandbox = Sandbox::on(settings, Network { resolver, ..Network::default() }).unwrap();
    sandbox.load(guests::probe()).await.expect("the probe is a plugin")
}

async fn probe(settings: Settings) -> Arc<Plugin> {
    probe_on(settings, &Names::new(&[&["127.0.0.1"]])).await
}

/// A call of a trigger with these grants.
fn granted(grants: &[&str], steps: &Value) -> Call {
    let mut call = call(steps);
    let trigger = Arc::make_mut(&mut call.trigger);
    trigger.http = grants.iter().map(|grant| grant.parse().unwrap()).collect();
    call
}

/// Sends one request with a grant for it, and answers what the probe logs.
async fn send(probe: &Plugin, grant: &str, step: Value) -> (String, Report) {
    let mut whole = json!({"op": "http", "ignore": true});
    whole.as_object_mut().unwrap().extend(step.as_object().unwrap().clone());
    let report = probe.call(granted(&[grant], &json!([whole]))).await;
    assert!(report.result.is_ok(), "{report:?}");
    let said = texts(&report.logs, Source::Log).concat();
    (said, report)
}

#[tokio::test]
async fn a_granted_host_is_reached() {
    let web = Web::start().await;
    let names = Names::new(&[&["127.0.0.1"]]);
    let probe = probe_on(local(), &names).await;
    let (port, grant) = (web.port, format!("*.example:{}", web.port));
    let url = format!("http://A.Example:{port}/hello?token=1");
    let (said, _) = send(&probe, &grant, json!({"url": url})).await;
    assert_eq!(said, "200 hello");
    let step = json!({
        "url": format!("http://a.example.:{port}/hello"), "method": "POST", "body": "four",
        "headers": {"idempotency-key": "own", "user-agent": "probe", "x-more": "1"},
    });
    let (said, _) = send(&probe, &grant, step).await;
    assert_eq!(said, "200 hello");
    let [first, second] = &web.seen()[..] else { panic!("{:?}", web.seen()) };
    assert_eq!((first.method.as_str(), &*first.path), ("GET", "/hello?token=1"));
    let (version, host) = (env!("CARGO_PKG_VERSION"), format!("a.example:{port}"));
    assert_eq!(first.headers["host"], host);
    assert_eq!(first.headers["idempotency-key"], "key");
    assert_eq!(first.headers["user-agent"], format!("outrigger/{version}"));
    assert_eq!((second.method.as_str(), second.bytes), ("POST", 4));
    assert_eq!(second.headers["host"], host);
    assert_eq!(second.headers["idempotency-key"], "own");
    assert_eq!(second.headers["user-agent"], "probe");
    assert_eq!(second.headers["x-more"], "1");
    assert_eq!(names.asked(), ["a.example", "a.example"], "one lookup each");
}

#[tokio::test]
async fn without_a_grant_nothing_is_sent_and_the_log_names_it() {
    let web = Web::start().await;
    let names = Names::new(&[&["127.0.0.1"]]);
    let probe = probe_on(local(), &names).await;
    let url = format!("http://a.example:{}/hello?token=hush", web.port);
    let port = web.port;
    let other_method = format!("POST a.example:{port}");
    for grant in ["b.example", "*.a.example", "a.example", "https://a.example", &*other_method] {
        let (said, report) = send(&probe, grant, json!({"url": url})).await;
        assert!(said.contains("HttpRequestDenied"), "{grant}: {said}");
        let host = texts(&report.logs, Source::Host);
        let expected = format!(
            "the trigger `probe` may not send GET http://a.example:{port}; \
             add `\"grants\": {{\"http\": [\"a.example:{port}\"]}}` to it"
        );
        assert_eq!(host, [expected], "{grant}");
    }
    assert!(web.seen().is_empty() && names.asked().is_empty(), "not even looked up");
}

#[tokio::test]
async fn a_plugin_that_gives_up_over_a_refusal_says_which() {
    let web = Web::start().await;
    let probe = probe(Settings { response_bytes: Bytes::kib(1), ..local() }).await;
    let own = format!("127.0.0.1:{}", web.port);
    for (url, kind, said) in [
        ("http://a.example/x".to_owned(), FailureKind::Denied, r#"{"http": ["a.example"]}"#),
        ("http://10.0.0.1/".to_owned(), FailureKind::Denied, "`http.allow`"),
        (
            format!("http://{own}/bytes/2000"),
            FailureKind::Limit,
            "`sandbox.response_bytes` is 1KiB",
        ),
    ] {
        let steps = json!([
            {"op": "http", "url": url, "ignore": true}, {"op": "panic", "message": "gave up"},
        ]);
        let report = probe.call(granted(&[&own, "10.0.0.1"], &steps)).await;
        let failure = report.result.expect_err("a failure");
        assert_eq!(failure.kind, kind, "{}", failure.message);
        assert!(failure.message.contains(said), "{said}: {}", failure.message);
    }
}

#[tokio::test]
async fn what_a_call_sends_and_receives_has_an_end() {
    let web = Web::start().await;
    let settings =
        Settings { request_bytes: Bytes::kib(8), response_bytes: Bytes::kib(64), ..local() };
    let probe = probe(settings).await;
    let (base, grant) =
        (format!("http://127.0.0.1:{}", web.port), format!("127.0.0.1:{}", web.port));
    for (step, code) in [
        (json!({"url": "/bytes/65536"}), "200 xxx"),
        (json!({"url": "/bytes/65537"}), "response body size exceeds limit: 65536"),
        (json!({"url": "/parts/65536"}), "200 xxx"),
        (json!({"url": "/parts/99999999"}), "response body size exceeds limit: 65536"),
        (json!({"url": "/header/99999"}), "HttpResponseHeaderSectionSize"),
        (json!({"url": "/hello", "method": "POST", "bodyBytes": 8192}), "200 hello"),
        (json!({"url": "/hello", "method": "POST", "bodyBytes": 8193}), "HttpRequestBodySize"),
        (json!({"url": "/hello", "bodyBytes": 9, "headers": {"content-length": "8"}}), "200"),
    ] {
        let mut step = step;
        step["url"] = format!("{base}{}", step["url"].as_str().unwrap()).into();
        let (said, report) = send(&probe, &grant, step.clone()).await;
        assert!(said.contains(code), "{step}: {said:.200} {:?}", texts(&report.logs, Source::Host));
        let host = texts(&report.logs, Source::Host).concat();
        if code.contains("ody") {
            let own = if code.contains("Request") { "request_bytes" } else { "response_bytes" };
            assert!(host.contains(&format!("this host's `sandbox.{own}` is")), "{step}: {host}");
        }
    }
    assert!(web.seen().iter().all(|seen| seen.bytes <= 8192), "no more was sent");
    assert_eq!(web.seen().last().expect("one").bytes, 8, "and no more than was said");
    // Several responses of one call share its bytes, and its own limit is less.
    let twice = json!([
        {"op": "http", "url": format!("{base}/bytes/40000")},
        {"op": "http", "url": format!("{base}/bytes/40000"), "ignore": true},
    ]);
    let mut call = granted(&[&grant], &twice);
    Arc::make_mut(&mut call.trigger).limits.response_bytes = Some(Bytes::kib(60));
    let report = probe.call(call).await;
    let host = texts(&report.logs, Source::Host).concat();
    assert!(host.contains("the trigger's `limits.responseBytes` is 60KiB"), "{report:?}");
}

#[tokio::test]
async fn a_call_has_so_many_requests_at_once_and_in_all() {
    let web = Web::start().await;
    let http = HttpSettings { requests_per_call: 12, ..local().http };
    let probe = probe(Settings { requests: 3, http, ..local() }).await;
    let (base, grant) =
        (format!("http://127.0.0.1:{}", web.port), format!("127.0.0.1:{}", web.port));
    let report = probe
        .call(granted(
            &[&grant],
            &json!([
                {"op": "httpAll", "count": 3, "url": format!("{base}/hello")},
                {"op": "httpHold", "count": 3, "url": format!("{base}/never")},
                {"op": "http", "url": format!("{base}/hello"), "connectMs": 200, "ignore": true},
                {"op": "httpHold", "count": 5, "url": format!("{base}/never"), "connectMs": 1},
                {"op": "http", "url": format!("{base}/hello"), "ignore": true},
            ]),
        ))
        .await;
    let said = texts(&report.logs, Source::Log);
    let full = "http ErrorCode::ConnectionLimitReached";
    assert_eq!(said, ["3 were read", "3 are open", full, "5 are open", full], "{report:?}");
    let host = texts(&report.logs, Source::Host);
    assert!(host[0].contains("this host's `sandbox.requests` is 3"), "{host:?}");
    assert!(host.last().unwrap().contains("`http.requests_per_call` is 12"), "{host:?}");
    web.open(0).await;
}

#[tokio::test]
async fn a_request_that_is_held_open_ends_with_its_call() {
    let web = Web::start().await;
    let probe = probe(local()).await;
    let (url, grant) =
        (format!("http://127.0.0.1:{}/never", web.port), format!("127.0.0.1:{}", web.port));
    let waits = granted(&[&grant], &json!([{"op": "http", "url": url}]));
    let began = Instant::now();
    let late = probe.call(Call { deadline: Duration::from_millis(500), ..waits }).await;
    assert_eq!(late.result.expect_err("late").kind, FailureKind::Deadline);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(web.seen().len(), 1);
    web.open(0).await;

    // A body that never ends, and an instance that lives on.
    let stall = format!("http://127.0.0.1:{}/stall", web.port);
    let waits = granted(&[&grant], &json!([{"op": "http", "url": stall}]));
    let late = probe.call(Call { deadline: Duration::from_millis(500), ..waits }).await;
    assert_eq!(late.result.expect_err("late").kind, FailureKind::Deadline);
    let batch = Batch::new(&probe);
    let steps = json!([{"op": "httpHold", "count": 3, "url": url}, {"op": "sleep", "ms": 300}, {"op": "visit"}]);
    let first = granted(&[&grant], &steps);
    let report = batch.call(first.clone()).await;
    assert!(report.result.is_ok(), "{report:?}");
    web.open(0).await;
    let report = batch.call(first).await;
    assert_eq!(texts(&report.logs, Source::Log)[1], "probe/o-1 probe/o-1", "the same instance");
}

#[tokio::test]
async fn a_server_that_is_away_or_slow_is_told_apart() {
    let web = Web::start().await;
    let http = HttpSettings {
        read_timeout: Span::from_millis(200),
        allow: vec!["127.0.0.0/8".parse().unwrap()],
        ..local().http
    };
    let names = Names::new(&[]);
    let probe = probe_on(Settings { http, ..local() }, &names).await;
    let port = web.port;
    for (url, code, line) in [
        (format!("http://127.0.0.1:{port}/never"), "ConnectionReadTimeout", "no response in time"),
        // Its head came: the guest is told of the rest.
        (format!("http://127.0.0.1:{port}/stall"), "connection read timeout", ""),
        (format!("http://127.0.0.2:{port}/hello"), "ConnectionRefused", "connection was refused"),
        (format!("http://nowhere.example:{port}/hello"), "DnsError", "the name has no address"),
        (format!("https://127.0.0.1:{port}/hello"), "TlsProtocolError", "was not sent"),
    ] {
        let grant = url.split('/').nth(2).unwrap();
        let (said, report) = send(&probe, grant, json!({"url": url})).await;
        assert!(said.contains(code), "{url}: {said}");
        let lines = texts(&report.logs, Source::Host);
        let expected = usize::from(!line.is_empty());
        assert_eq!(lines.len(), expected, "{url}: {lines:?}");
        assert!(lines.iter().all(|said| said.contains(line) && said.contains(grant)), "{lines:?}");
    }
}

#[tokio::test]
async fn one_project_s_requests_leave_room_for_another_s() {
    let web = Web::start().await;
    let http = HttpSettings { connections: 4, ..local().http };
    let probe = probe(Settings { http, ..local() }).await;
    let (base, grant) =
        (format!("http://127.0.0.1:{}", web.port), format!("127.0.0.1:{}", web.port));
    let greedy = granted(
        &[&grant],
        &json!([
            {"op": "httpHold", "count": 8, "url": format!("{base}/never")},
            {"op": "sleep", "ms": 60_000},
        ]),
    );
    let greedy = tokio::spawn({
        let probe = Arc::clone(&probe);
        async move { probe.call(greedy).await }
    });
    web.open(3).await;
    let mut other = granted(&[&grant], &json!([{"op": "http", "url": format!("{base}/hello")}]));
    Arc::make_mut(&mut other.event).project = "crm".into();
    let report = probe.call(other).await;
    assert_eq!(texts(&report.logs, Source::Log), ["200 hello"], "{report:?}");
    greedy.abort();
    web.open(0).await;
}
