//! Events whose effects tell whether any was lost, repeated or overtaken.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};
use tokio::time::sleep;

use crate::hosts::{Host, eventually};

/// What it takes at the most, on a slow machine that does other things too.
pub(super) const LONG: Duration = Duration::from_mins(4);

/// A load: so many events, spread over so many aggregates.
///
/// Each event appends its number within its aggregate to the aggregate's list
/// in state, adds one to its sum, and emits one follow-up.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) events: i32,
    pub(super) aggregates: i32,
}

/// Puts the triggers `orders` and `mails` of the project `shop`.
pub(super) async fn triggers(host: &Host) {
    host.project("shop").await;
    let mut document: Value = json!({
        "match": {"resource": "order"}, "target": {"plugin": "probe"},
        "grants": {"emit": ["*"], "state": true}, "record": "failures"
    });
    host.trigger("shop", "orders", document.clone()).await;
    document["match"]["resource"] = json!("mail");
    host.trigger("shop", "mails", document).await;
}

/// A single number.
pub(super) async fn count(database: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query(sql).fetch_one(database).await.unwrap().get(0)
}

/// What became of an aggregate's events, and when.
async fn history(database: &mut PgConnection, aggregate: &str) -> String {
    let rows = sqlx::query(
        "SELECT format('%s created %s dispatched %s trials %s %s; deliveries %s', o.pk, o.created_at,
                       o.dispatched_at, o.trials, o.result_json, d.list)
           FROM outrigger_outbox o, LATERAL (
               SELECT string_agg(format('%s %s by %s: created %s ended %s, due %s, trials %s', d.id,
                          d.state, d.cause, d.created_at, d.ended_at, d.due_at, d.trials), ', ')
                          AS list
                 FROM outrigger_delivery d WHERE d.event_pk = o.pk) d
          WHERE o.resource = 'order' AND o.aggregate_id = 'o-' || $1 ORDER BY o.pk",
    )
    .bind(aggregate)
    .fetch_all(database)
    .await
    .unwrap();
    rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
}

impl Load {
    /// Records events `from..to`, as an application would; once and for all,
    /// however often it is called.
    async fn record(self, url: &str, from: i32, to: i32) -> Result<(), sqlx::Error> {
        let mut database = PgConnection::connect(url).await?;
        let mut tx = database.begin().await?;
        sqlx::query(
            r#"INSERT INTO outrigger_outbox
                   (project_id, resource, aggregate_id, event_name, dedup_key, payload_json)
               SELECT 'shop', 'order', 'o-' || (i % $3), 'order.placed', 'order-' || i,
                      format('{"do": [{"op": "append", "key": "seen/%s", "text": "%s"},
                                      {"op": "increment", "key": "sum/%s", "by": 1},
                                      {"op": "emit", "resource": "mail", "aggregateId": "m%s",
                                       "eventName": "mail.due", "payload": {}}]}',
                             i % $3, i / $3, i % $3, i % $3)::json
                 FROM generate_series($1, $2 - 1) i
                   ON CONFLICT DO NOTHING"#,
        )
        .bind(from)
        .bind(to)
        .bind(self.aggregates)
        .execute(&mut *tx)
        .await?;
        tx.commit().await
    }

    /// Records everything, in as many steps as an aggregate has events, with a
    /// rest between them; what the database refuses is tried again.
    pub(super) async fn record_all(self, url: String, rest: Duration) {
        let mut from = 0;
        while from < self.events {
            match self.record(&url, from, from + self.aggregates).await {
                Ok(()) => {
                    from += self.aggregates;
                    sleep(rest).await;
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Waits until everything is through.
    pub(super) async fn drained(self, url: &str) {
        self.drained_beside(url, 0).await;
    }

    /// Waits until everything is through, and so many other orders.
    pub(super) async fn drained_beside(self, url: &str, others: i64) {
        let mut database = PgConnection::connect(url).await.unwrap();
        let events = i64::from(self.events) + others;
        eventually("everything is through", LONG, async || {
            let left = "SELECT (SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL)
                             + (SELECT count(*) FROM outrigger_delivery
                                 WHERE state IN ('ready', 'blocked'))";
            let all = "SELECT count(*) FROM outrigger_outbox WHERE resource = 'order'";
            let seen = (count(&mut database, left).await, count(&mut database, all).await);
            if seen == (0, events) { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// Checks that every event had its effects exactly once and in order, and
    /// that no fault was taken for an attempt.
    pub(super) async fn check(self, url: &str, after: &str) {
        let mut database = PgConnection::connect(url).await.unwrap();
        let dead = "SELECT count(*) FROM outrigger_delivery WHERE state = 'dead'";
        assert_eq!(count(&mut database, dead).await, 0, "dead letters after {after}");
        let events = i64::from(self.events);
        let follow_ups = "SELECT count(*) FROM outrigger_outbox WHERE resource = 'mail'";
        let causes = "SELECT count(DISTINCT meta_json ->> 'outrigger.cause') FROM outrigger_outbox";
        assert_eq!(count(&mut database, follow_ups).await, events, "follow-ups after {after}");
        assert_eq!(count(&mut database, causes).await, events, "of each its own, after {after}");
        let attempts = "SELECT (SELECT count(*) FROM outrigger_outbox o,
                                       json_each(o.result_json) r
                                 WHERE (r.value ->> 'attempt')::int > 1)
                             + (SELECT count(*) FROM outrigger_delivery WHERE attempts > 1)";
        assert_eq!(count(&mut database, attempts).await, 0, "burnt attempts after {after}");
        let numbers: Vec<_> =
            (0..self.events / self.aggregates).map(|number| number.to_string()).collect();
        let list = numbers.join(",") + ",";
        for (prefix, expected) in [("seen/", &list), ("sum/", &numbers.len().to_string())] {
            let rows = sqlx::query(
                "SELECT key, convert_from(value, 'UTF8') FROM outrigger_state
                  WHERE trigger_name = 'orders' AND starts_with(key, $1)",
            )
            .bind(prefix)
            .fetch_all(&mut database)
            .await
            .unwrap();
            assert_eq!(rows.len(), usize::try_from(self.aggregates).unwrap());
            for row in &rows {
                let (key, value): (String, String) = (row.get(0), row.get(1));
                if &value != expected {
                    let aggregate = key.trim_start_matches(prefix);
                    panic!(
                        "{key} is {value} and not {expected} after {after}:\n{}",
                        history(&mut database, aggregate).await
                    );
                }
            }
        }
    }
}
