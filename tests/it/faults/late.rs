//! Transactions that commit later than others which began after them.

use sqlx::{Connection, Executor, PgConnection, Row, query};

use super::load::{LONG, count, triggers};
use crate::{
    database::Database,
    hosts::{Host, eventually},
};

/// Aggregates in between: enough that some of them are in any lane.
const OTHERS: i32 = 400;

async fn append(database: &mut PgConnection, number: i32) {
    query(
        r#"INSERT INTO outrigger_outbox
               (project_id, resource, aggregate_id, event_name, payload_json)
           VALUES ('shop', 'order', 'slow', 'order.placed',
                   format('{"do": [{"op": "append", "key": "slow", "text": "%s"}]}', $1)::json)"#,
    )
    .bind(number)
    .execute(database)
    .await
    .unwrap();
}

/// An aggregate's transactions don't overlap each other, but those of others:
/// these have greater pks and commit first.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_is_not_overtaken_by_the_next_of_its_aggregate() {
    let database = Database::postgres().await;
    let host = Host::start(&database.url).await;
    triggers(&host).await;
    let mut slow = PgConnection::connect(&database.url).await.unwrap();
    let mut others = PgConnection::connect(&database.url).await.unwrap();
    let rounds = 10;
    for round in 0..rounds {
        let mut tx = slow.begin().await.unwrap();
        append(&mut tx, 2 * round).await;
        query(
            "INSERT INTO outrigger_outbox
                 (project_id, resource, aggregate_id, event_name, payload_json)
             SELECT 'shop', 'order', 'o-' || i, 'order.placed', '{}' FROM generate_series(1, $1) i",
        )
        .bind(OTHERS)
        .execute(&mut others)
        .await
        .unwrap();
        eventually("the others are through", LONG, async || {
            let left = "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL";
            match count(&mut others, left).await {
                0 => Ok(()),
                left => Err(left),
            }
        })
        .await;
        tx.commit().await.unwrap();
        append(&mut slow, 2 * round + 1).await;
    }
    let numbers: Vec<_> = (0..2 * rounds).map(|number| number.to_string()).collect();
    let expected = numbers.join(",") + ",";
    eventually("all are in the list", LONG, async || {
        let sql = "SELECT convert_from(value, 'UTF8') FROM outrigger_state WHERE key = 'slow'";
        let row = others.fetch_optional(sql).await.unwrap();
        let list: String = row.map(|row| row.get(0)).unwrap_or_default();
        if list.len() == expected.len() { Ok(()) } else { Err(list) }
    })
    .await;
    let sql = "SELECT convert_from(value, 'UTF8') FROM outrigger_state WHERE key = 'slow'";
    let list: String = others.fetch_one(sql).await.unwrap().get(0);
    assert_eq!(list, expected);
}
