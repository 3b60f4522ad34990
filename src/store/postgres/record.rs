//! Recording events.

use std::{collections::HashMap, time::Duration};

use sqlx::{AssertSqlSafe, query};
use uuid::Uuid;

use super::{Postgres, Texts, claims::get, column, fault};
use crate::{
    model::event::NewEvent,
    store::{Recorded, StoreError, rows::millis},
};

/// Inserts events given as arrays. They get their pks in the order given, and
/// are inserted in the order of their dedup keys, so that two transactions
/// with the same keys can't deadlock.
macro_rules! insert_events {
    () => {
        "WITH e AS MATERIALIZED (
             SELECT nextval('{p}outbox_pk_seq') AS pk, g.*
               FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[],
                           $7::text[], $8::text[], $9::text[], $10::bigint[])
                    AS g(id, project, resource, aggregate, name, version, payload, meta, dedup, due))
         INSERT INTO {p}outbox (pk, message_id, project_id, resource, aggregate_id, event_name,
                schema_version, payload_json, meta_json, dedup_key, available_at)
         OVERRIDING SYSTEM VALUE
         SELECT pk, id, project, resource, aggregate, name, version, payload::json, meta::json,
                dedup, due
           FROM e ORDER BY project, dedup, pk
             ON CONFLICT DO NOTHING"
    };
}
pub(super) use insert_events;

impl Postgres {
    pub(super) async fn insert_events(
        &self,
        events: &[NewEvent],
        patience: Option<Duration>,
    ) -> Result<Vec<Recorded>, StoreError> {
        let mut tx = match patience.map(millis) {
            None => self.pool.begin().await?,
            Some(ms) => {
                // One way to the server and back, as without.
                let sql = format!("BEGIN; SET LOCAL lock_timeout = {}", ms.max(1));
                self.pool.begin_with(AssertSqlSafe(sql)).await?
            }
        };
        let ids: Vec<Uuid> = column(events, |e| e.message_id.unwrap_or_else(Uuid::now_v7));
        // A key given twice in one batch is the first one's: the conflict
        // clause sees rows of its own statement too.
        let rows =
            query(self.sql.of(concat!(insert_events!(), " RETURNING message_id, created_at")))
                .bind(&ids)
                .bind(column(events, |e| &*e.project) as Texts)
                .bind(column(events, |e| &*e.resource) as Texts)
                .bind(column(events, |e| &*e.aggregate_id) as Texts)
                .bind(column(events, |e| &*e.event_name) as Texts)
                .bind(column(events, |e| i32::try_from(e.schema_version).unwrap_or(i32::MAX)))
                .bind(column(events, |e| &*e.payload) as Texts)
                .bind(column(events, |e| e.meta.as_deref()))
                .bind(column(events, |e| e.dedup_key.as_deref()))
                .bind(column(events, |e| e.available_at))
                .fetch_all(&mut *tx)
                .await
                .map_err(fault)?;
        let mut new = HashMap::with_capacity(rows.len());
        for row in rows {
            new.insert(get::<Uuid>(&row, 0)?, get::<i64>(&row, 1)?);
        }
        let mut recorded = Vec::with_capacity(events.len());
        for (event, id) in events.iter().zip(ids) {
            if let Some(created_at) = new.remove(&id) {
                recorded.push(Recorded::New { message_id: id, created_at });
                continue;
            }
            let row = query(self.sql.of("SELECT message_id, created_at FROM {p}outbox
                  WHERE (project_id = $1 AND dedup_key = $2 AND dedup_key <> '') OR message_id = $3
                  ORDER BY pk LIMIT 1"))
            .bind(&event.project)
            .bind(event.dedup_key.as_deref().unwrap_or(""))
            .bind(id)
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
            let (message_id, created_at) = (get(&row, 0)?, get(&row, 1)?);
            recorded.push(Recorded::Duplicate { message_id, created_at });
        }
        tx.commit().await?;
        Ok(recorded)
    }
}
