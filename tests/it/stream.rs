//! `GET …/stream`: attempts as they are written.

use std::{collections::BTreeSet, time::Duration};

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    database::Database,
    hosts::{Host, KEY, eventually},
};

/// What it takes at the most, on a slow machine.
const LONG: Duration = Duration::from_mins(1);

/// A reader of a stream.
pub(crate) struct Stream {
    response: Response,
    rest: Vec<u8>,
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl Stream {
    /// Opens the stream of a project, behind an event if one is named.
    pub(crate) async fn open(host: &Host, project: &str, query: &str, last: Option<&str>) -> Self {
        let path = format!("/v1/projects/{project}/stream{query}");
        let mut request = host.request(Method::GET, &path);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, rest: Vec::new() }
    }

    /// The next event, or nothing when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        loop {
            let end = self.rest.windows(2).position(|two| two == b"\n\n");
            if let Some(end) = end {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                let text = String::from_utf8(event).unwrap();
                let field = |name: &str| {
                    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
                };
                let Some(data) = field("data:") else { continue };
                return Some(Told {
                    name: field("event:").unwrap().to_owned(),
                    id: field("id:").map(str::to_owned),
                    data: serde_json::from_str(data).unwrap(),
                });
            }
            let chunk = tokio::time::timeout(LONG, self.response.chunk()).await.unwrap();
            match chunk.ok().flatten() {
                Some(bytes) => self.rest.extend_from_slice(&bytes),
                None => return None,
            }
        }
    }

    /// The next so many attempts.
    pub(crate) async fn attempts(&mut self, count: usize) -> Vec<Told> {
        let mut attempts = Vec::new();
        while attempts.len() < count {
            let told = self.next().await.expect("the stream goes on");
            match told.name.as_str() {
                "attempt" => attempts.push(told),
                other => assert_eq!(other, "ready", "{told:?}"),
            }
        }
        attempts
    }
}

async fn host_with_project(database: &str) -> Host {
    let host = Host::start(database).await;
    host.project("shop").await;
    host.trigger("shop", "audit", trigger()).await;
    host
}

fn trigger() -> Value {
    json!({
        "match": {"resource": "order"}, "target": {"plugin": "probe"}, "record": "all",
        "order": "none", "retry": {"maxAttempts": 1}
    })
}

async fn publish(host: &Host, aggregate: &str, steps: Value) -> String {
    let event = json!({
        "resource": "order", "aggregateId": aggregate, "eventName": "order.placed",
        "payload": {"do": steps}
    });
    let receipt = host.ok(Method::POST, "/v1/projects/shop/events?wait=20s", Some(event)).await;
    receipt["messageId"].as_str().unwrap().to_owned()
}

async fn attempts_come_as_they_are_made(database: &Database) {
    let host = host_with_project(&database.url).await;
    let log = |text: &str| json!([{"op": "log", "level": "warn", "text": text}]);
    publish(&host, "before", log("nobody watches")).await;
    let mut all = Stream::open(&host, "shop", "", None).await;
    let mut failed = Stream::open(&host, "shop", "?failed=true&trigger=audit", None).await;
    let mut kind = Stream::open(&host, "shop", "?kind=reject", None).await;
    let mut other = Stream::open(&host, "shop", "?trigger=none", None).await;
    let first = publish(&host, "o-1", log("hello")).await;
    let reject = json!([{"op": "stderr", "text": "no"}, {"op": "reject", "message": "never"}]);
    let second = publish(&host, "o-2", reject).await;

    let told = all.attempts(2).await;
    let [one, two] = &told[..] else { panic!("{told:?}") };
    assert_eq!(one.id, Some(one.data["id"].to_string()));
    for (member, value) in [
        ("messageId", json!(first)),
        ("resource", json!("order")),
        ("aggregateId", json!("o-1")),
        ("eventName", json!("order.placed")),
        ("trigger", json!("audit")),
        ("number", json!(1)),
        ("failed", json!(false)),
    ] {
        assert_eq!(one.data[member], value, "{one:?}");
    }
    let line = &one.data["logs"][0];
    assert_eq!((&line["text"], &line["level"]), (&json!("hello"), &json!("warn")));
    assert!(one.data["digest"].is_string() && one.data["durationUs"].is_u64(), "{one:?}");
    let why = (&two.data["messageId"], &two.data["kind"], &two.data["error"]);
    assert_eq!(why, (&json!(second), &json!("reject"), &json!("never")));
    assert_eq!(failed.attempts(1).await[0], *two);
    assert_eq!(kind.attempts(1).await[0], *two);

    // Behind an event; the last few; those of one event.
    let mut resumed = Stream::open(&host, "shop", "", one.id.as_deref()).await;
    assert_eq!(resumed.attempts(1).await[0], *two);
    let mut last = Stream::open(&host, "shop", "?last=2", None).await;
    assert_eq!(last.attempts(2).await, told);
    let since = format!("?since={}&messageId={second}", two.data["startedAt"]);
    let mut of_one = Stream::open(&host, "shop", &since, None).await;
    assert_eq!(of_one.attempts(1).await[0], *two);
    let third = publish(&host, "o-3", json!([])).await;
    for stream in [&mut all, &mut resumed, &mut last] {
        assert_eq!(stream.attempts(1).await[0].data["messageId"], json!(third));
    }

    for (path, header, status) in [
        ("/v1/projects/nope/stream", None, 404),
        ("/v1/projects/shop/stream?last=0", None, 400),
        ("/v1/projects/shop/stream?kind=nope", None, 400),
        ("/v1/projects/shop/stream", Some("x"), 400),
    ] {
        let request =
            host.request(Method::GET, path).header("last-event-id", header.unwrap_or("1"));
        assert_eq!(request.send().await.unwrap().status(), status, "{path}");
    }

    // At a stop they end at once, whatever the grace.
    host.signal("TERM");
    assert_eq!((all.next().await, failed.next().await), (None, None));
    let ready = other.next().await.expect("something to go on behind");
    assert_eq!((ready.name.as_str(), other.next().await), ("ready", None));
}

#[tokio::test]
async fn attempts_come_as_they_are_made_on_sqlite() {
    attempts_come_as_they_are_made(&Database::sqlite()).await;
}

#[tokio::test]
async fn attempts_come_as_they_are_made_on_postgres() {
    attempts_come_as_they_are_made(&Database::postgres().await).await;
}

#[tokio::test]
async fn every_host_tells_what_all_hosts_do() {
    let database = Database::postgres().await;
    let hosts = [host_with_project(&database.url).await, Host::start(&database.url).await];
    eventually("both hold lanes", LONG, async || {
        // Which host runs an event is told by neither: that both have work is.
        let holders = hosts[0].get("/v1/hosts").await["items"].as_array().unwrap().len();
        if holders == 2 { Ok(()) } else { Err(holders) }
    })
    .await;
    let mut streams = Vec::new();
    for host in &hosts {
        streams.push(Stream::open(host, "shop", "", None).await);
    }
    let mut published = BTreeSet::new();
    let mut done = [0, 0];
    // Until each has run some, so that both streams told of the other's.
    for round in 0_usize.. {
        let aggregate = format!("o-{round}");
        published.insert(publish(&hosts[round % 2], &aggregate, json!([])).await);
        if round % 20 == 19 {
            for (host, done) in hosts.iter().zip(&mut done) {
                *done = host.metric("outrigger_calls_total").await;
            }
            assert!(round < 500, "one host does everything: {done:?}");
            if done.iter().all(|done| *done > 0) {
                break;
            }
        }
    }
    for mut stream in streams {
        let told = stream.attempts(published.len()).await;
        let ids = told.iter().map(|told| told.data["messageId"].as_str().unwrap().to_owned());
        assert_eq!(ids.collect::<BTreeSet<_>>(), published, "each once, whoever ran it");
    }
}

#[tokio::test]
async fn an_attempt_that_commits_late_is_told() {
    let database = Database::postgres().await;
    let host = host_with_project(&database.url).await;
    let mut stream = Stream::open(&host, "shop", "", None).await;
    let insert = |number: i32| {
        sqlx::query(
            "INSERT INTO outrigger_attempt (event_pk, message_id, project_id, trigger_name, number,
                                            started_at, duration_us, cpu_us, memory_bytes)
             VALUES (0, gen_random_uuid(), 'shop', 'audit', $1, 0, 0, 0, 0)",
        )
        .bind(number)
    };
    let mut late = PgConnection::connect(&database.url).await.unwrap();
    let mut late = late.begin().await.unwrap();
    insert(1).execute(&mut *late).await.unwrap();
    let mut prompt = PgConnection::connect(&database.url).await.unwrap();
    insert(2).execute(&mut prompt).await.unwrap();
    let second = stream.attempts(1).await;
    assert_eq!(second[0].data["number"], 2);
    assert!(second[0].data.get("eventName").is_none(), "its event is gone");
    late.commit().await.unwrap();
    let first = stream.attempts(1).await;
    assert_eq!(first[0].data["number"], 1);
    let ids = [&first, &second].map(|told| told[0].data["id"].as_i64().unwrap());
    assert!(ids[0] < ids[1], "{ids:?}");
}

#[tokio::test]
async fn a_reader_that_never_reads_harms_nobody() {
    let database = Database::sqlite();
    let mut host = host_with_project(&database.url).await;
    let address = host.url().strip_prefix("http://").unwrap().to_owned();
    let mut deaf = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "GET /v1/projects/shop/stream HTTP/1.1\r\nHost: {address}\r\n\
         Authorization: Bearer {KEY}\r\n\r\n"
    );
    deaf.write_all(request.as_bytes()).await.unwrap();
    let mut start = [0; 15];
    deaf.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");

    let mut reader = Stream::open(&host, "shop", "", None).await;
    let big: Vec<Value> = (0..7).map(|_| json!({"op": "big", "bytes": 8000})).collect();
    let count = 400;
    for n in 0..count {
        publish(&host, &format!("o-{n}"), json!(big)).await;
        let told = reader.attempts(1).await;
        assert_eq!(told[0].data["aggregateId"], format!("o-{n}"), "nothing is held up");
    }
    // What it didn't read, 20 MiB and more, was not kept for it.
    host.signal("TERM");
    assert_eq!(host.exit_code(Duration::from_secs(10)).await, Some(0), "the grace is 20 s");
    let mut text = Vec::new();
    deaf.read_to_end(&mut text).await.unwrap_or_default();
    let made = count * 7 * 8000;
    assert!(text.len() < made / 2, "{} bytes of {made} were kept", text.len());
}

#[tokio::test]
async fn a_project_has_so_many_streams() {
    let database = Database::sqlite();
    let host = host_with_project(&database.url).await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(Stream::open(&host, "shop", "", None).await);
    }
    let (status, problem) = host.send(Method::GET, "/v1/projects/shop/stream", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("16 of one project"), "{problem}");
    host.project("other").await;
    Stream::open(&host, "other", "", None).await;
    streams.pop();
    eventually("a place comes free", LONG, async || {
        let response = host.request(Method::GET, "/v1/projects/shop/stream").send().await.unwrap();
        if response.status() == StatusCode::OK { Ok(()) } else { Err(response.status()) }
    })
    .await;
}
