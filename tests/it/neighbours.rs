//! What one project, or what lies in the tables, costs another: ratios within
//! one run.
//!
//! One at a time: each of them fills the machine.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqliteConnection};

use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::alone,
};

const LONG: Duration = Duration::from_mins(4);

/// A connection of an application's.
enum Rows {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Rows {
    async fn of(database: &Database) -> Self {
        if is_sqlite(database) {
            Self::Sqlite(SqliteConnection::connect(&database.url).await.unwrap())
        } else {
            Self::Postgres(PgConnection::connect(&database.url).await.unwrap())
        }
    }

    async fn run(&mut self, sql: String) {
        let sql = AssertSqlSafe(sql);
        match self {
            Self::Postgres(rows) => drop(rows.execute(sql).await.unwrap()),
            Self::Sqlite(rows) => drop(rows.execute(sql).await.unwrap()),
        }
    }

    async fn count(&mut self, sql: &'static str) -> i64 {
        match self {
            Self::Postgres(rows) => rows.fetch_one(sql).await.unwrap().get(0),
            Self::Sqlite(rows) => rows.fetch_one(sql).await.unwrap().get(0),
        }
    }
}

/// A table of the numbers below `count`, as the database writes it.
fn numbers(database: &Database, count: u32) -> String {
    if is_sqlite(database) {
        format!(
            "(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count} - 1)
              SELECT i FROM n) n"
        )
    } else {
        format!("generate_series(0, {count} - 1) n(i)")
    }
}

fn is_sqlite(database: &Database) -> bool {
    database.url.starts_with("sqlite:")
}

/// Records events of a project in one transaction.
async fn record(database: &Database, project: &str, count: u32, steps: &Value) {
    let payload = json!({ "do": steps }).to_string();
    let numbers = numbers(database, count);
    let cast = if is_sqlite(database) { "" } else { "::json" };
    let sql = format!(
        "INSERT INTO outrigger_outbox
             (project_id, resource, aggregate_id, event_name, payload_json)
         SELECT '{project}', 'order', 'o-' || (i % 1000), 'order.placed', '{payload}'{cast}
           FROM {numbers}"
    );
    Rows::of(database).await.run(sql).await;
}

pub(crate) async fn put(host: &Host, project: &str, trigger: &str) {
    host.project(project).await;
    let document = json!({"match": {}, "target": {"plugin": "probe"}, "record": "failures"});
    host.trigger(project, trigger, document).await;
}

/// 1,000,000 dispatched events, of which 100,000 are dead letters of a trigger
/// and 100,000 wait for another one that is paused, nearly all of them blocked.
async fn clutter(host: &Host, database: &Database) {
    put(host, "shop", "stuck").await;
    host.ok(Method::POST, "/v1/projects/shop/triggers/stuck/pause", None).await;
    let mut rows = Rows::of(database).await;
    let json = if is_sqlite(database) { "" } else { "::json" };
    let numbers = numbers(database, 1_000_000);
    let old = format!(
        "INSERT INTO outrigger_outbox (project_id, resource, aggregate_id, event_name,
                payload_json, dispatched_at, result_json)
         SELECT 'shop', 'old', 'o-' || (i % 1000), 'order.placed', '{{}}'{json}, created.ms,
                '{{}}'{json}
           FROM {numbers}, (SELECT max(created_at) AS ms FROM outrigger_project) created"
    );
    rows.run(old).await;
    let delivery = |trigger: &str, state: &str, which: &str| {
        format!(
            "INSERT INTO outrigger_delivery (event_pk, message_id, project_id, trigger_name,
                    resource, aggregate_id, event_name, lane, chain, state, cause, attempts,
                    due_at, created_at, last_kind, last_error, ended_at)
             SELECT pk, message_id, project_id, '{trigger}', resource, aggregate_id, event_name,
                    lane, 1, {state}, 'failed', 1, created_at, created_at, 'retry', 'not now',
                    CASE WHEN {state} = 'dead' THEN created_at END
               FROM outrigger_outbox WHERE resource = 'old' AND pk % 10 = {which}"
        )
    };
    rows.run(delivery("gone", "'dead'", "1")).await;
    // The first of each key waits for its trigger, the others for it.
    let state = "CASE WHEN pk <= 10000 THEN 'ready' ELSE 'blocked' END";
    rows.run(delivery("stuck", state, "2")).await;
    let settle = if is_sqlite(database) { "ANALYZE" } else { "VACUUM ANALYZE" };
    rows.run(settle.to_owned()).await;
    let dead = "SELECT count(*) FROM outrigger_delivery WHERE state = 'dead'";
    let blocked = "SELECT count(*) FROM outrigger_delivery WHERE state = 'blocked'";
    assert_eq!(rows.count(dead).await, 100_000);
    assert!(rows.count(blocked).await >= 99_000);
}

/// Records fresh events, and answers how long it takes until all are through.
pub(crate) async fn drain(database: &Database) -> Duration {
    let mut rows = Rows::of(database).await;
    record(database, "fresh", 5000, &json!([])).await;
    let began = Instant::now();
    loop {
        let left = "SELECT count(*) FROM (SELECT 1 FROM outrigger_outbox
                     WHERE dispatched_at IS NULL AND available_at IS NULL LIMIT 1) left_over";
        if rows.count(left).await == 0 {
            return began.elapsed();
        }
        assert!(began.elapsed() < LONG, "events are still waiting");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn what_is_through_or_stuck_slows_nothing(clean: Database, cluttered: Database) {
    let _alone = alone().await;
    let (first, second) = (Host::start(&clean.url).await, Host::start(&cluttered.url).await);
    put(&first, "fresh", "t").await;
    put(&second, "fresh", "t").await;
    clutter(&second, &cluttered).await;
    // The first ones compile the plugin.
    drain(&clean).await;
    drain(&cluttered).await;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut ratio = 0.0;
    for round in 1..=60 {
        without.push(drain(&clean).await);
        with.push(drain(&cluttered).await);
        // The best of each: what else the machine does meanwhile only adds, and
        // goes on for as long as it likes.
        let best = |times: &[Duration]| times.iter().min().unwrap().as_secs_f64();
        ratio = best(&without) / best(&with);
        if round >= 5 && ratio >= 0.9 {
            break;
        }
    }
    println!("drain rate with cluttered tables: {ratio:.2} of that with empty ones");
    assert!(ratio >= 0.9, "{ratio:.2}: {without:?} {with:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_through_or_stuck_slows_nothing_on_postgres() {
    let (clean, cluttered) = (Database::postgres().await, Database::postgres().await);
    what_is_through_or_stuck_slows_nothing(clean, cluttered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_through_or_stuck_slows_nothing_on_sqlite() {
    what_is_through_or_stuck_slows_nothing(Database::sqlite(), Database::sqlite()).await;
}

/// How long it takes from recording an event until it is settled.
async fn settled_after(host: &Host, n: u32) -> Duration {
    let event = json!({
        "resource": "order", "aggregateId": format!("q{n}"), "eventName": "x", "payload": {}
    });
    let began = Instant::now();
    let answer = host.ok(Method::POST, "/v1/projects/quiet/events?wait=30s", Some(event)).await;
    let took = began.elapsed();
    assert_eq!(answer["triggers"]["t"], "done", "{answer}");
    took
}

/// The median of each host, asked in turns: whatever else the machine does
/// meets both.
async fn compared(hosts: [&Host; 2], times: u32) -> [Duration; 2] {
    let mut spans = [Vec::new(), Vec::new()];
    for n in 0..times {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(30..120))).await;
        for (host, spans) in hosts.iter().zip(&mut spans) {
            spans.push(settled_after(host, n).await);
        }
    }
    spans.map(|mut spans| {
        spans.sort_unstable();
        spans[spans.len() / 2]
    })
}

async fn a_slow_project_s_backlog_delays_no_other(busy: Database, idle: Database) {
    let _alone = alone().await;
    let (host, other) = (Host::start(&busy.url).await, Host::start(&idle.url).await);
    put(&host, "quiet", "t").await;
    put(&other, "quiet", "t").await;
    put(&host, "busy", "slow").await;
    compared([&host, &other], 3).await;
    record(&busy, "busy", 200_000, &json!([{"op": "sleep", "ms": 300}])).await;
    eventually("the backlog is being worked on", LONG, async || {
        let counts = host.status("busy").await;
        let done = counts["triggers"]["slow"]["done"].as_u64().unwrap_or(0);
        if done > 0 { Ok(()) } else { Err(counts) }
    })
    .await;
    let mut ratios = Vec::new();
    for round in 1..=10 {
        let [beside, alone] = compared([&host, &other], 21).await;
        ratios.push(beside.as_secs_f64() / alone.as_secs_f64());
        if round >= 3 && ratios.iter().any(|ratio| *ratio <= 4.0) {
            break;
        }
    }
    let backlog = host.status("busy").await;
    let done = backlog["triggers"]["slow"]["done"].as_u64().unwrap();
    assert!(done < 100_000, "there was no backlog any more: {backlog}");
    println!("an event beside the backlog takes {ratios:.1?} times as long as on an idle host");
    assert!(ratios.iter().any(|ratio| *ratio <= 5.0), "{ratios:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_project_s_backlog_delays_no_other_on_postgres() {
    let (busy, idle) = (Database::postgres().await, Database::postgres().await);
    a_slow_project_s_backlog_delays_no_other(busy, idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_project_s_backlog_delays_no_other_on_sqlite() {
    a_slow_project_s_backlog_delays_no_other(Database::sqlite(), Database::sqlite()).await;
}
