//! An SQLite file that others lock, and one that can't grow.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, Row, SqliteConnection};

use super::load::{LONG, triggers};
use crate::{
    database::Database,
    hosts::{Host, eventually},
};

/// A lease that soon ends, and a wait for locks that is far shorter than the
/// time for which they are held here.
const IMPATIENT: [(&str, &str); 2] =
    [("OUTRIGGER_LEASE", "2s"), ("OUTRIGGER_DATABASE_PATIENCE", "300ms")];

/// Another process that has locked the file.
struct Locked(Child);

const LOCK: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
database.execute("ROLLBACK")
"#;

impl Locked {
    fn new(path: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", LOCK])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Self(child)
    }

    fn release(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn order(steps: &Value, note: &str) -> Value {
    json!({
        "resource": "order", "aggregateId": fastrand::u32(..).to_string(), "eventName": "order.placed",
        "payload": {"do": steps, "note": note}
    })
}

async fn post(host: &Host, event: Value) -> (StatusCode, Value) {
    host.send(Method::POST, "/v1/projects/shop/events", Some(event)).await
}

async fn not_ready(host: &Host, reason: &str) {
    eventually("the host isn't ready, and says why", LONG, async || match host.ready().await {
        Err(why) if why.contains(reason) => Ok(()),
        other => Err(other),
    })
    .await;
}

/// Waits until every event is through, and checks that each was handled by its
/// first attempt and added one to `n`.
async fn through_at_once(host: &Host, database: &Database, events: i64) {
    eventually("every event is dispatched", LONG, async || {
        let counts = host.status("shop").await;
        let open = ["retrying", "blocked"].iter().any(|state| counts[state] != 0);
        if counts["dispatched"] == events && !open { Ok(()) } else { Err(counts) }
    })
    .await;
    let mut rows = SqliteConnection::connect(&database.url).await.unwrap();
    let burnt = "SELECT count(*) FROM outrigger_delivery WHERE state <> 'done' OR attempts <> 1";
    let sql = "SELECT count(*),
                      count(*) FILTER (WHERE json_extract(result_json, '$.orders.attempt') > 1),
                      (SELECT value FROM outrigger_state WHERE key = 'n')
                 FROM outrigger_outbox WHERE resource = 'order'";
    assert_eq!(rows.fetch_one(burnt).await.unwrap().get::<i64, _>(0), 0);
    let row = rows.fetch_one(sql).await.unwrap();
    assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (events, 0));
    let sum = String::from_utf8(row.get(2)).unwrap();
    assert_eq!(sum, events.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_others_lock_for_long_is_waited_for() {
    let database = Database::sqlite();
    let host = Host::with(&database.url, &IMPATIENT).await;
    triggers(&host).await;
    // With nothing to do, only leases are written.
    let lock = Locked::new(database.path());
    not_ready(&host, "too busy").await;
    lock.release();
    eventually("the host is ready", LONG, async || host.ready().await).await;

    let slow = json!([{"op": "sleep", "ms": 200}, {"op": "increment", "key": "n", "by": 1}]);
    for _ in 0..10 {
        assert_eq!(post(&host, order(&slow, "before")).await.0, StatusCode::CREATED);
    }
    eventually("calls are under way", LONG, async || {
        let held = host.metric("outrigger_held_rows").await;
        if held > 1 { Ok(()) } else { Err(held) }
    })
    .await;

    let lock = Locked::new(database.path());
    not_ready(&host, "too busy").await;
    let (status, problem) = post(&host, order(&slow, "refused")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    assert_eq!(problem["type"], "urn:outrigger:problem:unavailable");
    assert_eq!(problem["detail"], "the database was too busy to answer in time");
    assert_eq!(host.get("/healthz").await["status"], "ok");
    lock.release();

    eventually("the host is ready", LONG, async || host.ready().await).await;
    assert_eq!(post(&host, order(&slow, "after")).await.0, StatusCode::CREATED);
    through_at_once(&host, &database, 11).await;
}

/// Lets no file of a process grow beyond this size, in bytes or `unlimited`.
/// A write beyond it fails as on a full disk (and raises a signal besides).
fn limit_files(host: &Host, size: &str) {
    let pid = host.pid().to_string();
    let limit = format!("--fsize={size}:");
    let set = Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap();
    assert!(set.success(), "prlimit {limit}: {set}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_passes() {
    let database = Database::sqlite();
    let mut host = Host::with(&database.url, &IMPATIENT).await;
    triggers(&host).await;
    let mut log = database.path().as_os_str().to_owned();
    log.push("-wal");
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    let room = size(database.path()).max(size(Path::new(&log))) + (256 << 10);
    limit_files(&host, &room.to_string());

    let add = json!([{"op": "increment", "key": "n", "by": 1}]);
    let note = "x".repeat(50_000);
    let mut recorded = 0;
    let problem = loop {
        let (status, answer) = post(&host, order(&add, &note)).await;
        if status != StatusCode::CREATED {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
            break answer;
        }
        recorded += 1;
        assert!(recorded < 2000, "the disk is never full");
    };
    assert_eq!(problem["type"], "urn:outrigger:problem:unavailable");
    let said = problem["detail"].as_str().unwrap();
    assert!(said.contains("no room left"), "{said}");
    assert!(recorded > 0, "there was some room");
    not_ready(&host, "no room left").await;
    assert_eq!(host.get("/healthz").await["status"], "ok");
    assert!(host.runs());

    limit_files(&host, "unlimited");
    eventually("the host is ready", LONG, async || host.ready().await).await;
    assert_eq!(post(&host, order(&add, "after")).await.0, StatusCode::CREATED);
    through_at_once(&host, &database, recorded + 1).await;
}
