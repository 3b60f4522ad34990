//! Host processes under the conditions that they are made for: several on one
//! database, killed, beside a writing application.
//!
//! One at a time: each of them fills the machine.

use std::{process::Command, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqliteConnection};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    database::Database,
    guests::root,
    hosts::{Host, eventually},
};

static ALONE: Mutex<()> = Mutex::const_new(());

pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// What it takes at the most, on a slow machine that does other things too.
const LONG: Duration = Duration::from_mins(4);

/// Each event adds one to `n` and emits a follow-up, which adds one to `m`.
fn work(emits: bool) -> Value {
    let mut steps = vec![json!({"op": "increment", "key": "n", "by": 1})];
    if emits {
        steps.push(json!({
            "op": "emit", "resource": "mail", "aggregateId": "m", "eventName": "mail.due",
            "payload": {"do": [{"op": "increment", "key": "m", "by": 1}]}
        }));
    }
    json!({ "do": steps })
}

fn trigger(resource: &str) -> Value {
    json!({
        "match": {"resource": resource}, "target": {"plugin": "probe"},
        "grants": {"emit": ["*"], "state": true}, "record": "failures",
        // Follow-ups of one aggregate needn't wait for each other.
        "order": if resource == "mail" { "none" } else { "aggregate" }
    })
}

async fn insert_postgres(url: &str, project: &str, count: u32, aggregates: u32, payload: &Value) {
    let mut database = PgConnection::connect(url).await.unwrap();
    sqlx::query(
        "INSERT INTO outrigger_outbox (project_id, resource, aggregate_id, event_name, payload_json)
         SELECT $1, 'order', 'o-' || (i % $3), 'order.placed', $4::json
           FROM generate_series(1, $2) i",
    )
    .bind(project)
    .bind(i32::try_from(count).unwrap())
    .bind(i32::try_from(aggregates).unwrap())
    .bind(payload.to_string())
    .execute(&mut database)
    .await
    .unwrap();
}

async fn scalar(database: &mut PgConnection, sql: &'static str) -> i64 {
    database.fetch_one(sql).await.unwrap().get(0)
}

async fn state(host: &Host, project: &str, trigger: &str, key: &str) -> i64 {
    let answer = host.get(&format!("/v1/projects/{project}/triggers/{trigger}/state")).await;
    let items = answer["items"].as_array().unwrap();
    let entry = items.iter().find(|item| item["key"] == key);
    entry.map_or(0, |entry| entry["value"].as_str().unwrap().parse().unwrap())
}

/// Calls that hosts have made for a trigger, whatever became of them.
pub(crate) async fn calls(host: &Host, trigger: &str) -> u64 {
    let metrics = host.get("/metrics").await;
    let label = format!("trigger=\"{trigger}\"");
    metrics
        .as_str()
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("outrigger_calls_total{") && line.contains(&label))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

async fn drained(host: &Host, project: &str, dispatched: i64) {
    eventually("every event is dispatched", LONG, async || {
        let counts = host.status(project).await;
        let through = counts["dispatched"] == dispatched && counts["retrying"] == 0;
        if through { Ok(()) } else { Err(counts) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_share_the_work() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let first = Host::start(&database.url).await;
    first.project("shop").await;
    first.trigger("shop", "orders", trigger("order")).await;
    let second = Host::start(&database.url).await;
    eventually("lanes are shared out", LONG, async || {
        let mut database = PgConnection::connect(&database.url).await.unwrap();
        let most = scalar(
            &mut database,
            "SELECT max(n) FROM (SELECT count(*) AS n FROM outrigger_lane GROUP BY holder) h",
        )
        .await;
        if most == 8 { Ok(()) } else { Err(most) }
    })
    .await;

    insert_postgres(&database.url, "shop", 20_000, 2000, &work(false)).await;
    drained(&first, "shop", 20_000).await;
    let (ours, theirs) = (calls(&first, "orders").await, calls(&second, "orders").await);
    assert!(ours > 0 && theirs > 0, "{ours} + {theirs}");
    assert_eq!(ours + theirs, 20_000, "each event was handled once");
    assert_eq!(state(&first, "shop", "orders", "n").await, 20_000);
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let claims = scalar(&mut rows, "SELECT max(claims)::bigint FROM outrigger_outbox").await;
    assert_eq!(claims, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_misses_a_trigger_that_was_put_before() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let first = Host::start(&database.url).await;
    first.project("shop").await;
    let second = Host::start(&database.url).await;
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    for round in 0..500 {
        let name = format!("t{round}");
        let host = if round % 2 == 0 { &first } else { &second };
        let document = json!({
            "match": {"resource": "order", "eventName": name}, "target": {"plugin": "probe"}
        });
        host.trigger("shop", &name, document).await;
        sqlx::query(
            "INSERT INTO outrigger_outbox
                 (project_id, resource, aggregate_id, event_name, payload_json)
             VALUES ('shop', 'order', $1, $1, '{}')",
        )
        .bind(&name)
        .execute(&mut rows)
        .await
        .unwrap();
        // Few at a time: reading definitions takes longer the more there are.
        if round % 50 == 49 {
            for old in round - 49..=round {
                let event = format!("/v1/projects/shop/events?eventName=t{old}&status=dispatched");
                eventually("the event is dispatched", LONG, async || {
                    let found = first.get(&event).await["items"].as_array().unwrap().len();
                    if found == 1 { Ok(()) } else { Err(found) }
                })
                .await;
                first.ok(Method::DELETE, &format!("/v1/projects/shop/triggers/t{old}"), None).await;
            }
        }
    }
    let missed = scalar(
        &mut rows,
        "SELECT count(*) FROM outrigger_outbox
          WHERE result_json -> event_name ->> 'outcome' IS DISTINCT FROM 'done'",
    )
    .await;
    assert_eq!(missed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_loses_nothing_and_repeats_no_effect() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let settings = [("OUTRIGGER_LEASE", "3s"), ("OUTRIGGER_BATCH_SIZE", "5000")];
    let mut first = Host::with(&database.url, &settings).await;
    first.project("shop").await;
    first.trigger("shop", "orders", trigger("order")).await;
    first.trigger("shop", "mails", trigger("mail")).await;
    insert_postgres(&database.url, "shop", 5000, 500, &work(true)).await;
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    eventually("some events are through, and many are not", LONG, async || {
        let through = scalar(
            &mut rows,
            "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NOT NULL",
        )
        .await;
        if through > 0 { Ok(()) } else { Err(through) }
    })
    .await;
    first.kill();
    let claimed = scalar(
        &mut rows,
        "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL AND claim_id IS NOT NULL",
    )
    .await;
    assert!(claimed > 0, "the host died with events in flight");

    let second = Host::with(&database.url, &settings).await;
    drained(&second, "shop", 10_000).await;
    assert_eq!(state(&second, "shop", "orders", "n").await, 5000);
    assert_eq!(state(&second, "shop", "mails", "m").await, 5000);
    let (events, causes) = (
        scalar(&mut rows, "SELECT count(*) FROM outrigger_outbox WHERE resource = 'mail'").await,
        scalar(
            &mut rows,
            "SELECT count(DISTINCT meta_json ->> 'outrigger.cause') FROM outrigger_outbox",
        )
        .await,
    );
    assert_eq!((events, causes), (5000, 5000), "one follow-up each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_on_sqlite_loses_nothing_and_repeats_no_effect() {
    let _alone = alone().await;
    let database = Database::sqlite();
    let mut first = Host::with(&database.url, &[("OUTRIGGER_BATCH_SIZE", "5000")]).await;
    first.project("shop").await;
    first.trigger("shop", "orders", trigger("order")).await;
    first.trigger("shop", "mails", trigger("mail")).await;
    let mut rows = SqliteConnection::connect(&database.url).await.unwrap();
    insert_sqlite(&mut rows, 5000, &work(true)).await;
    eventually("some events are through, and many are not", LONG, async || {
        let sql = "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NOT NULL";
        let through: i64 = rows.fetch_one(sql).await.unwrap().get(0);
        if through > 0 { Ok(()) } else { Err(through) }
    })
    .await;
    first.kill();
    let second = Host::start(&database.url).await;
    drained(&second, "shop", 10_000).await;
    assert_eq!(state(&second, "shop", "orders", "n").await, 5000);
    assert_eq!(state(&second, "shop", "mails", "m").await, 5000);
    let sql = "SELECT count(DISTINCT json_extract(meta_json, '$.\"outrigger.cause\"')),
                      count(*) FILTER (WHERE resource = 'mail') FROM outrigger_outbox";
    let row = rows.fetch_one(sql).await.unwrap();
    assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (5000, 5000), "one follow-up each");
}

async fn insert_sqlite(database: &mut SqliteConnection, count: u32, payload: &Value) {
    let sql = format!(
        "WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < {count})
         INSERT INTO outrigger_outbox (project_id, resource, aggregate_id, event_name, payload_json)
         SELECT 'shop', 'order', 'o-' || (n % 500), 'order.placed', ?1 FROM i"
    );
    sqlx::query(AssertSqlSafe(sql)).bind(payload.to_string()).execute(database).await.unwrap();
}

/// An application that inserts as an ordinary one does, and says how often it
/// was refused the lock.
const WRITER: &str = r#"
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1])
database.execute("CREATE TABLE IF NOT EXISTS work (n INTEGER)")
inserted = refused = 0
longest = 0.0
while True:
    begun = time.monotonic()
    try:
        with database:
            database.execute("INSERT INTO work VALUES (1)")
            database.execute(
                "INSERT INTO outrigger_outbox"
                " (project_id, resource, aggregate_id, event_name, payload_json)"
                " VALUES ('shop', 'other', 'x', 'other.done', '{}')")
        inserted += 1
    except sqlite3.OperationalError as error:
        refused += 1
        print(error, file=sys.stderr)
    longest = max(longest, time.monotonic() - begun)
    left, = database.execute(
        "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL AND resource = 'order'"
    ).fetchone()
    if left == 0:
        break
    time.sleep(0.01)
print(inserted, refused, longest)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_application_beside_a_full_drain_sees_no_lock_error() {
    let _alone = alone().await;
    let database = Database::sqlite();
    let host = Host::start(&database.url).await;
    host.project("shop").await;
    host.trigger("shop", "orders", trigger("order")).await;
    let mut rows = SqliteConnection::connect(&database.url).await.unwrap();
    insert_sqlite(&mut rows, 50_000, &json!({})).await;
    let path = database.path().to_owned();
    let writer = tokio::task::spawn_blocking(move || {
        Command::new("python3").arg("-c").arg(WRITER).arg(path).output().unwrap()
    });
    let output = writer.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let numbers: Vec<f64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert!(numbers[0] >= 1.0, "the application wrote meanwhile: {text}");
    assert!(numbers[1] < 1.0, "inserted, refused, longest wait in seconds: {text}");
    println!("inserted, refused, longest wait in seconds: {text}");
}

/// An event of a project that isn't there yet.
async fn waits_for_its_project(database: &Database, insert: &'static str) {
    let host = Host::start(&database.url).await;
    host.project("shop").await;
    if database.url.starts_with("sqlite") {
        SqliteConnection::connect(&database.url).await.unwrap().execute(insert).await.unwrap();
    } else {
        PgConnection::connect(&database.url).await.unwrap().execute(insert).await.unwrap();
    }
    let all = host.get("/v1/status").await;
    assert_eq!(all["projects"]["later"]["pending"], 1, "{all}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let all = host.get("/v1/status").await;
    assert_eq!(all["projects"]["later"]["pending"], 1, "{all}");
    host.project("later").await;
    drained(&host, "later", 1).await;
}

const OF_NO_PROJECT: &str = "INSERT INTO outrigger_outbox
    (project_id, resource, aggregate_id, event_name, payload_json)
    VALUES ('later', 'order', 'o-1', 'order.placed', '{}')";

#[tokio::test(flavor = "multi_thread")]
async fn an_event_waits_for_its_project_on_postgres() {
    waits_for_its_project(&Database::postgres().await, OF_NO_PROJECT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_waits_for_its_project_on_sqlite() {
    waits_for_its_project(&Database::sqlite(), OF_NO_PROJECT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_well_and_leaves_nothing_claimed() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let mut host = Host::start(&database.url).await;
    host.project("shop").await;
    host.trigger("shop", "orders", trigger("order")).await;
    insert_postgres(&database.url, "shop", 5000, 500, &work(false)).await;
    eventually("the host is at work", LONG, async || {
        let counts = host.status("shop").await;
        if counts["dispatched"] != 0 { Ok(()) } else { Err(counts) }
    })
    .await;
    Command::new("kill").arg("-TERM").arg(host.pid().to_string()).status().unwrap();
    assert_eq!(host.exit_code(Duration::from_secs(30)).await, Some(0));
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let claimed = scalar(
        &mut rows,
        "SELECT (SELECT count(*) FROM outrigger_outbox WHERE claim_id IS NOT NULL)
              + (SELECT count(*) FROM outrigger_lane WHERE holder IS NOT NULL)
              + (SELECT count(*) FROM outrigger_host)",
    )
    .await;
    assert_eq!(claimed, 0);
    let next = Host::start(&database.url).await;
    drained(&next, "shop", 5000).await;
    assert_eq!(state(&next, "shop", "orders", "n").await, 5000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_on_one_file_is_refused() {
    let database = Database::sqlite();
    let first = Host::start(&database.url).await;
    // `timeout` ends it should it not be refused.
    let output = Command::new("timeout")
        .args(["20", env!("CARGO_BIN_EXE_outrigger"), "serve"])
        .env("OUTRIGGER_DATABASE_URL", &database.url)
        .env("OUTRIGGER_LISTEN", "127.0.0.1:0")
        .current_dir(root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // By itself, and not by `timeout`, whose code is 124.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("another host holds this SQLite file"), "{said}");
    assert_eq!(first.get("/healthz").await["status"], "ok");
}
