//! Hosts that are killed again and again, and databases that fail them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};

use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::alone,
};

const AGGREGATES: i32 = 500;
const EVENTS: i32 = 20_000;

/// A lease that ends soon after its host.
const QUICK: [(&str, &str); 1] = [("OUTRIGGER_LEASE", "2s")];

/// Records events `from..to`; the payload appends the event's number within
/// its aggregate to the aggregate's list, and emits one follow-up.
async fn record(database: &mut PgConnection, from: i32, to: i32) {
    sqlx::query(
        r#"INSERT INTO outrigger_outbox
               (project_id, resource, aggregate_id, event_name, payload_json)
           SELECT 'shop', 'order', 'o-' || (i % $3), 'order.placed',
                  format('{"do": [{"op": "append", "key": "seen/%s", "text": "%s"},
                                  {"op": "emit", "resource": "mail", "aggregateId": "m%s",
                                   "eventName": "mail.due", "payload": {}}]}',
                         i % $3, i / $3, i % $3)::json
             FROM generate_series($1, $2 - 1) i"#,
    )
    .bind(from)
    .bind(to)
    .bind(AGGREGATES)
    .execute(database)
    .await
    .unwrap();
}

async fn count(database: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query(sql).fetch_one(database).await.unwrap().get(0)
}

/// What each aggregate's list must be: every number once, in order.
fn expected() -> String {
    let numbers: Vec<_> = (0..EVENTS / AGGREGATES).map(|n| n.to_string()).collect();
    numbers.join(",") + ","
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_are_killed_at_random_keep_every_promise() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let mut hosts =
        [Host::with(&database.url, &QUICK).await, Host::with(&database.url, &QUICK).await];
    hosts[0].project("shop").await;
    let grants = json!({"emit": ["*"], "state": true});
    let mut document: Value = json!({
        "match": {"resource": "order"}, "target": {"plugin": "probe"}, "grants": grants,
        "record": "failures"
    });
    hosts[0].trigger("shop", "orders", document.clone()).await;
    document["match"]["resource"] = json!("mail");
    hosts[0].trigger("shop", "mails", document).await;

    let url = database.url.clone();
    let writer = tokio::spawn(async move {
        let mut database = PgConnection::connect(&url).await.unwrap();
        let mut from = 0;
        while from < EVENTS {
            record(&mut database, from, from + AGGREGATES).await;
            from += AGGREGATES;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let end = Instant::now() + Duration::from_mins(1);
    let mut kills = 0;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(500..4000))).await;
        let victim = &mut hosts[fastrand::usize(..2)];
        victim.kill();
        *victim = Host::with(&database.url, &QUICK).await;
        kills += 1;
    }
    writer.await.unwrap();

    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    eventually("everything is through", Duration::from_mins(4), async || {
        let sql = "SELECT (SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL)
                        + (SELECT count(*) FROM outrigger_delivery
                            WHERE state IN ('ready', 'blocked'))";
        match count(&mut rows, sql).await {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await;
    let dead = "SELECT count(*) FROM outrigger_delivery WHERE state = 'dead'";
    assert_eq!(count(&mut rows, dead).await, 0, "after {kills} kills");
    let follow_ups = "SELECT count(*) FROM outrigger_outbox WHERE resource = 'mail'";
    let causes = "SELECT count(DISTINCT meta_json ->> 'outrigger.cause') FROM outrigger_outbox";
    assert_eq!(count(&mut rows, follow_ups).await, i64::from(EVENTS), "one follow-up each");
    assert_eq!(count(&mut rows, causes).await, i64::from(EVENTS), "of each its own");
    let lists = sqlx::query(
        "SELECT convert_from(value, 'UTF8') FROM outrigger_state WHERE trigger_name = 'orders'",
    )
    .fetch_all(&mut rows)
    .await
    .unwrap();
    assert_eq!(lists.len(), usize::try_from(AGGREGATES).unwrap());
    for row in &lists {
        assert_eq!(row.get::<String, _>(0), expected(), "order after {kills} kills");
    }
}
