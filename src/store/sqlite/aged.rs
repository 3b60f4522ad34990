//! Old events that are read whole before they are deleted.

use std::time::Duration;

use sqlx::query;

use super::{
    LANE, Sqlite,
    events::{event_columns, event_row, event_rows, standing},
    fault, get,
    lists::{attempt, attempt_columns, delivery_columns, delivery_row},
    now,
};
use crate::{
    model::Lane,
    store::{
        Aged, StoreError, Trace,
        rows::{millis, take_aged, to_json, whole},
    },
};

/// Parts of the table that are looked at until some events are found.
const MAX_PARTS: usize = 20;

impl Sqlite {
    /// Rows are looked at in the order of their age, and the first that is too
    /// young ends the round.
    pub(super) async fn read_old(
        &self,
        lanes: &[Lane],
        retention: Duration,
        mut after: i64,
        batch: u32,
    ) -> Result<Aged, StoreError> {
        if !lanes.contains(&LANE) {
            return Ok(Aged::default());
        }
        for _ in 0..MAX_PARTS {
            let mut db = self.readers.acquire().await.map_err(fault)?;
            let cut = now(&mut db).await?.saturating_sub(millis(retention));
            let rows = query(self.sql.of("SELECT o.pk, o.created_at < ?2,
                        coalesce(o.dispatched_at < ?2, 0) AND NOT EXISTS (
                            SELECT 1 FROM {p}delivery d
                             WHERE d.event_pk = o.pk AND d.state <> 'done'),
                        length(CAST(o.payload_json AS BLOB))
                   FROM {p}outbox o NOT INDEXED
                  WHERE o.pk > ?1 ORDER BY o.pk LIMIT ?3"))
            .bind(after)
            .bind(cut)
            .bind(i64::from(batch))
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            drop(db);
            let mut goes_on = rows.len() >= batch as usize;
            let mut looked = Vec::with_capacity(rows.len());
            for row in &rows {
                goes_on &= get::<bool>(row, 1)?;
                looked.push((get(row, 0)?, get(row, 2)?, get(row, 3)?));
            }
            let (pks, last) = take_aged(&looked, batch);
            let whole_part = last == looked.last().map(|row| row.0);
            let next = last.filter(|_| goes_on || !whole_part);
            if !pks.is_empty() {
                return self.read_whole(&pks, next).await;
            }
            match next {
                Some(last) => after = last,
                None => return Ok(Aged::default()),
            }
        }
        Ok(Aged { events: Vec::new(), next: Some(after) })
    }

    async fn read_whole(&self, pks: &[i64], next: Option<i64>) -> Result<Aged, StoreError> {
        let pks = to_json(&pks)?;
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let now = now(&mut db).await?;
        let events = query(self.sql.of(concat!(
            event_rows!(),
            "WHERE o.pk IN (SELECT value FROM json_each(?2)) ORDER BY o.pk"
        )))
        .bind(now)
        .bind(&pks)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let deliveries = query(self.sql.of(concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM {p}delivery d WHERE d.event_pk IN (SELECT value FROM json_each(?1))
              ORDER BY d.id"
        )))
        .bind(&pks)
        .bind(None::<i64>)
        .bind(None::<i64>)
        .bind(None::<i64>)
        .bind(now)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let attempts = query(self.sql.of(concat!(
            "SELECT ",
            attempt_columns!(),
            " FROM {p}attempt d INDEXED BY {p}attempt_event
              WHERE d.event_pk IN (SELECT value FROM json_each(?1)) ORDER BY d.id"
        )))
        .bind(&pks)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        drop(db);
        let rows = events.iter().map(event_row).collect::<Result<Vec<_>, _>>()?;
        let project = |pk: i64| {
            let row = rows.iter().find(|row| row.event.pk == pk);
            row.map_or("", |row| row.event.project.as_str())
        };
        let attempts = attempts
            .iter()
            .map(|row| attempt(row, project(get(row, 1)?)))
            .collect::<Result<_, _>>()?;
        let deliveries = deliveries.iter().map(delivery_row).collect::<Result<_, _>>()?;
        Ok(Aged { events: whole(rows, deliveries, attempts), next })
    }

    pub(super) async fn delete_read(&self, traces: &[Trace]) -> Result<u64, StoreError> {
        let traces: Vec<_> =
            traces.iter().map(|trace| (trace.pk, trace.deliveries, trace.attempts)).collect();
        let mut tx = self.writer.begin().await?;
        // A row with more than was read has changed: it stays.
        let rows = query(self.sql.of("DELETE FROM {p}outbox WHERE pk IN (
                 SELECT o.pk FROM json_each(?1) k
                   CROSS JOIN {p}outbox o ON o.pk = json_extract(k.value, '$[0]')
                  WHERE o.dispatched_at IS NOT NULL
                    AND (SELECT count(*) FROM {p}delivery d WHERE d.event_pk = o.pk)
                        = json_extract(k.value, '$[1]')
                    AND (SELECT count(*) FROM {p}attempt a WHERE a.event_pk = o.pk)
                        = json_extract(k.value, '$[2]')
                    AND NOT EXISTS (SELECT 1 FROM {p}delivery d
                                     WHERE d.event_pk = o.pk AND d.state <> 'done'))
             RETURNING pk"))
        .bind(to_json(&traces)?)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let gone = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
        self.delete_with(&mut tx, &gone).await?;
        tx.commit().await?;
        Ok(gone.len() as u64)
    }
}
