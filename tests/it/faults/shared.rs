//! Many aggregates, one shared key.

use reqwest::Method;
use sqlx::{Connection, PgConnection};

use super::load::{LONG, count, triggers};
use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::alone,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_all_read_and_write_on_two_hosts_is_exact() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let first = Host::start(&database.url).await;
    triggers(&first).await;
    let second = Host::start(&database.url).await;
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let holders = "SELECT count(DISTINCT holder) FROM outrigger_lane";
    eventually("both hosts have lanes", LONG, async || match count(&mut rows, holders).await {
        2 => Ok(()),
        other => Err(other),
    })
    .await;
    sqlx::query(
        r#"INSERT INTO outrigger_outbox
               (project_id, resource, aggregate_id, event_name, payload_json)
           SELECT 'shop', 'order', 'o-' || (i % 1000), 'order.placed',
                  '{"do": [{"op": "readAddWrite", "key": "sum", "by": 1}]}'
             FROM generate_series(1, 10000) i"#,
    )
    .execute(&mut rows)
    .await
    .unwrap();
    eventually("everything is through", LONG, async || {
        let left = "SELECT (SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL)
                         + (SELECT count(*) FROM outrigger_delivery
                             WHERE state IN ('ready', 'blocked'))";
        match count(&mut rows, left).await {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await;
    let sum = "SELECT convert_from(value, 'UTF8')::bigint FROM outrigger_state WHERE key = 'sum'";
    assert_eq!(count(&mut rows, sum).await, 10_000);

    // Calls were run again, and that is counted and is nobody's attempt.
    let again = first.metric("outrigger_state_conflicts_total").await
        + second.metric("outrigger_state_conflicts_total").await;
    assert!(again > 0, "two hosts never met");
    let burnt = "SELECT (SELECT count(*) FROM outrigger_outbox o, json_each(o.result_json) r
                          WHERE (r.value ->> 'attempt')::int > 1)
                      + (SELECT count(*) FROM outrigger_delivery WHERE attempts <> 1)
                      + (SELECT count(*) FROM outrigger_attempt WHERE kind IS NOT NULL)";
    assert_eq!(count(&mut rows, burnt).await, 0);
    let dead = first.ok(Method::GET, "/v1/projects/shop/dead-letters", None).await;
    assert_eq!(dead["items"].as_array().unwrap().len(), 0);
}
