//! Old events that are read whole before they are deleted.

use std::time::Duration;

use sqlx::{query, query_scalar};

use super::{
    Postgres,
    claims::{event_columns, get},
    column, fault,
    inspect::{attempt, attempt_columns, delivery_columns, delivery_row, event_row, event_rows},
};
use crate::{
    model::Lane,
    store::{
        Aged, StoreError, Trace,
        rows::{millis, take_aged, whole},
    },
};

/// Parts of the table that are looked at until some events are found.
const MAX_PARTS: usize = 20;

impl Postgres {
    /// Rows are looked at in the order of their age, and the first that is too
    /// young ends the round.
    pub(super) async fn read_old(
        &self,
        lanes: &[Lane],
        retention: Duration,
        mut after: i64,
        batch: u32,
    ) -> Result<Aged, StoreError> {
        for _ in 0..MAX_PARTS {
            let rows = query(self.sql.of("SELECT o.pk, o.created_at < n.cut AS aged,
                        o.lane = ANY($4) AND coalesce(o.dispatched_at < n.cut, false)
                            AND NOT EXISTS (SELECT FROM {p}delivery d
                                             WHERE d.event_pk = o.pk AND d.state <> 'done') AS old,
                        octet_length(o.payload_json::text)::bigint AS bytes
                   FROM {p}outbox o, (SELECT {p}now_ms() - $1 AS cut) n
                  WHERE o.pk > $2 ORDER BY o.pk LIMIT $3"))
            .bind(millis(retention))
            .bind(after)
            .bind(i64::from(batch))
            .bind(lanes)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
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
        let events = query(self.sql.of(concat!(
            event_rows!(),
            " {p}now_ms() AS now FROM {p}outbox o WHERE o.pk = ANY($1) ORDER BY o.pk"
        )))
        .bind(pks)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let deliveries = query(self.sql.of(concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM {p}delivery d WHERE d.event_pk = ANY($1) ORDER BY d.id"
        )))
        .bind(pks)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let attempts = query(self.sql.of(concat!(
            "SELECT ",
            attempt_columns!(),
            " FROM {p}attempt a WHERE a.event_pk = ANY($1) ORDER BY a.id"
        )))
        .bind(pks)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let events = whole(
            events.iter().map(event_row).collect::<Result<_, _>>()?,
            deliveries.iter().map(delivery_row).collect::<Result<_, _>>()?,
            attempts.iter().map(attempt).collect::<Result<_, _>>()?,
        );
        Ok(Aged { events, next })
    }

    pub(super) async fn delete_read(&self, traces: &[Trace]) -> Result<u64, StoreError> {
        // A row with more than was read has changed: it stays.
        let gone: i64 = query_scalar(self.sql.of("WITH kept AS MATERIALIZED (
                 SELECT o.pk
                   FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])
                            AS k (pk, deliveries, attempts)
                   JOIN {p}outbox o ON o.pk = k.pk
                  WHERE o.dispatched_at IS NOT NULL
                    AND (SELECT count(*) FROM {p}attempt a WHERE a.event_pk = k.pk) = k.attempts
                    AND (SELECT count(*) FROM {p}delivery d WHERE d.event_pk = k.pk) = k.deliveries
                    AND NOT EXISTS (SELECT FROM {p}delivery d
                                     WHERE d.event_pk = k.pk AND d.state <> 'done')
                    FOR UPDATE OF o),
             attempts AS (
                 DELETE FROM {p}attempt a WHERE a.event_pk = ANY (ARRAY(SELECT pk FROM kept))),
             deliveries AS (
                 DELETE FROM {p}delivery d WHERE d.event_pk = ANY (ARRAY(SELECT pk FROM kept))),
             events AS (
                 DELETE FROM {p}outbox o WHERE o.pk = ANY (ARRAY(SELECT pk FROM kept))
                 RETURNING o.pk)
             SELECT count(*) FROM events"))
        .bind(column(traces, |trace| trace.pk))
        .bind(column(traces, |trace| i64::from(trace.deliveries)))
        .bind(column(traces, |trace| i64::from(trace.attempts)))
        .fetch_one(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        Ok(u64::try_from(gone).unwrap_or(0))
    }
}
