//! What people look at.

use std::{sync::atomic::Ordering, time::Duration};

use sqlx::{postgres::PgRow, query, query_scalar};
use uuid::Uuid;

use super::{
    Postgres,
    claims::{count, event, event_columns, get, named},
    fault,
};
use crate::{
    model::{
        Lane,
        attempt::{Attempt, Usage},
    },
    store::{
        DeadLetterFilter, DeliveryFilter, DeliveryRow, DeliveryState, EventFilter, EventRow,
        EventStatus, HostId, Page, PageRequest, Status, StoreError,
        rows::{from_json, kind_of, millis},
    },
};

/// Counts stop here: beyond it, a number says no more than "many", and
/// counting would take longer than people wait.
const MAX_COUNT: i64 = 1_000_000;

/// Parts of the table that one sweep looks at.
const MAX_PARTS: usize = 20;

/// Among re-driven deliveries, one that came late waits for a newer event that
/// runs.
macro_rules! delivery_columns {
    () => {
        "d.id, d.message_id, d.trigger_name, d.resource, d.aggregate_id, d.event_name, d.lane,
         d.generation, d.state, d.cause, d.attempts, d.due_at, d.last_kind, d.last_error,
         d.created_at, d.ended_at,
         coalesce(d.claimed_until > {p}now_ms(), false) AS claimed,
         CASE d.state WHEN 'blocked' THEN coalesce((
             SELECT b.message_id FROM {p}delivery b
              WHERE b.project_id = d.project_id AND b.resource = d.resource
                AND b.aggregate_id = d.aggregate_id AND b.trigger_name = d.trigger_name
                AND b.chain = d.chain AND b.state IN ('ready', 'blocked')
                AND b.event_pk < d.event_pk
              ORDER BY b.event_pk DESC LIMIT 1), (
             SELECT b.message_id FROM {p}delivery b
              WHERE b.project_id = d.project_id AND b.resource = d.resource
                AND b.aggregate_id = d.aggregate_id AND b.trigger_name = d.trigger_name
                AND b.chain = d.chain AND b.chain > 0 AND b.state IN ('ready', 'blocked')
                AND b.state = 'ready'
              LIMIT 1)) END AS blocked_by"
    };
}

pub(super) use delivery_columns;

/// The start of a query for [`event_row`]s; `now` is to be added.
macro_rules! event_rows {
    () => {
        concat!(
            "SELECT ",
            event_columns!(),
            ", o.claims, o.dispatched_at, o.claimed_until, o.result_json::text AS result,"
        )
    };
}
pub(super) use event_rows;

/// The columns of [`attempt`], of a table called `a`.
macro_rules! attempt_columns {
    () => {
        "a.id, a.event_pk, a.message_id, a.project_id, a.trigger_name, a.number, a.digest,
         a.started_at, a.duration_us, a.cpu_us, a.memory_bytes, a.kind, a.error, a.logs_json"
    };
}
pub(super) use attempt_columns;

impl Postgres {
    pub(super) async fn one_event(
        &self,
        project: &str,
        message_id: Uuid,
    ) -> Result<Option<EventRow>, StoreError> {
        let row = query(self.sql.of(concat!(
            "SELECT ",
            event_columns!(),
            ", o.claims, o.dispatched_at, o.claimed_until, o.result_json::text AS result,
               {p}now_ms() AS now
             FROM {p}outbox o WHERE o.message_id = $2 AND o.project_id = $1"
        )))
        .bind(project)
        .bind(message_id)
        .fetch_optional(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        row.as_ref().map(event_row).transpose()
    }

    pub(super) async fn event_page(
        &self,
        project: &str,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, StoreError> {
        // Undispatched rows are found by the status first: there may be few
        // among millions.
        let status = filter.status.map(|status| match status {
            EventStatus::Pending => "pending",
            EventStatus::Claimed => "claimed",
            EventStatus::Scheduled => "scheduled",
            EventStatus::Dispatched => "dispatched",
        });
        let rows = query(self.sql.of(concat!(
            "SELECT ",
            event_columns!(),
            ", o.claims, o.dispatched_at, o.claimed_until, o.result_json::text AS result, n.now
             FROM {p}outbox o, (SELECT {p}now_ms() AS now) n
             WHERE o.project_id = $1
               AND ($2::text IS NULL OR o.resource = $2)
               AND ($3::text IS NULL OR o.aggregate_id = $3)
               AND ($4::text IS NULL OR o.event_name = $4)
               AND ($5::text IS NULL OR (o.dedup_key = $5 AND o.dedup_key <> ''))
               AND ($6::bigint IS NULL OR o.pk < $6)
               AND ($7::bigint IS NULL OR o.created_at >= $7)
               AND ($8::bigint IS NULL OR o.created_at < $8)
               AND CASE $9::text
                     WHEN 'dispatched' THEN o.dispatched_at IS NOT NULL
                     WHEN 'claimed' THEN o.dispatched_at IS NULL AND o.claimed_until >= n.now
                     WHEN 'scheduled' THEN o.dispatched_at IS NULL AND o.available_at > n.now
                     WHEN 'pending' THEN o.dispatched_at IS NULL
                          AND coalesce(o.available_at, 0) <= n.now
                          AND coalesce(o.claimed_until, 0) < n.now
                     ELSE true END
               AND ($9::text IS NULL OR $9 = 'dispatched' OR o.dispatched_at IS NULL)
             ORDER BY o.pk DESC LIMIT $10"
        )))
        .bind(project)
        .bind(filter.resource.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.event_name.as_deref())
        .bind(filter.dedup_key.as_deref())
        .bind(page.cursor)
        .bind(page.since)
        .bind(page.until)
        .bind(status)
        .bind(i64::from(page.limit))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let items = rows.iter().map(event_row).collect::<Result<Vec<_>, _>>()?;
        Ok(paged(items, page, |row| row.event.pk))
    }

    pub(super) async fn delivery_page(
        &self,
        project: &str,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError> {
        let rows = query(self.sql.of(concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM {p}delivery d
              WHERE d.project_id = $1
                AND ($2::text IS NULL OR d.trigger_name = $2)
                AND ($3::uuid IS NULL OR d.event_pk =
                      (SELECT o.pk FROM {p}outbox o WHERE o.message_id = $3))
                AND CASE WHEN $4::text IS NOT NULL THEN d.state = $4
                         ELSE $3 IS NOT NULL OR d.state IN ('ready', 'blocked') END
                AND ($5::bigint IS NULL OR d.id < $5)
                AND ($6::bigint IS NULL OR d.created_at >= $6)
                AND ($7::bigint IS NULL OR d.created_at < $7)
              ORDER BY d.id DESC LIMIT $8"
        )))
        .bind(project)
        .bind(filter.trigger.as_deref())
        .bind(filter.message_id)
        .bind(filter.state.map(DeliveryState::as_str))
        .bind(page.cursor)
        .bind(page.since)
        .bind(page.until)
        .bind(i64::from(page.limit))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let items = rows.iter().map(delivery_row).collect::<Result<Vec<_>, _>>()?;
        Ok(paged(items, page, |row| row.id))
    }

    pub(super) async fn dead_page(
        &self,
        project: &str,
        filter: &DeadLetterFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError> {
        let rows = query(self.sql.of(concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM {p}delivery d WHERE ",
            super::redrive::dead_matching!(),
            " AND ($8::bigint IS NULL OR d.id < $8) ORDER BY d.id DESC LIMIT $9"
        )));
        let rows = super::redrive::bind_filter(rows, project, filter)
            .bind(page.cursor)
            .bind(i64::from(page.limit))
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let items = rows.iter().map(delivery_row).collect::<Result<Vec<_>, _>>()?;
        Ok(paged(items, page, |row| row.id))
    }

    pub(super) async fn holder(&self, lane: Lane) -> Result<Option<HostId>, StoreError> {
        let holder: Option<Option<Uuid>> = query_scalar(
            self.sql
                .of("SELECT holder FROM {p}lane WHERE lane = $1 AND lease_until >= {p}now_ms()"),
        )
        .bind(lane)
        .fetch_optional(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        Ok(holder.flatten().map(HostId))
    }

    /// Counts of everything: what is open is counted along the partial
    /// indexes, up to a bound, and what has ended comes from the totals.
    pub(super) async fn tally(&self) -> Result<Status, StoreError> {
        let now: i64 = query_scalar(self.sql.of("SELECT {p}now_ms()"))
            .fetch_one(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let mut status = Status { now, ..Status::default() };
        let rows = query(self.sql.of(
            "SELECT o.project_id, count(*) FILTER (WHERE NOT o.busy), count(*) FILTER (WHERE o.busy),
                    min(o.created_at) FILTER (WHERE NOT o.busy)
               FROM (SELECT project_id, created_at, coalesce(claimed_until >= $1, false) AS busy
                       FROM {p}outbox WHERE dispatched_at IS NULL AND available_at IS NULL
                      LIMIT $2) o
              GROUP BY o.project_id",
        ))
        .bind(now)
        .bind(MAX_COUNT)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        for row in &rows {
            let counts = status.projects.entry(get(row, 0)?).or_default();
            counts.pending = get(row, 1)?;
            counts.in_flight = get(row, 2)?;
            counts.oldest_pending_ms = get::<Option<i64>>(row, 3)?.map(|at| (now - at).max(0));
        }
        let rows =
            query(self.sql.of("SELECT o.project_id, count(*) FILTER (WHERE o.available_at > $1),
                    count(*) FILTER (WHERE o.available_at <= $1 AND NOT o.busy),
                    count(*) FILTER (WHERE o.busy)
               FROM (SELECT project_id, available_at, coalesce(claimed_until >= $1, false) AS busy
                       FROM {p}outbox WHERE dispatched_at IS NULL AND available_at IS NOT NULL
                      LIMIT $2) o
              GROUP BY o.project_id"))
            .bind(now)
            .bind(MAX_COUNT)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        for row in &rows {
            let counts = status.projects.entry(get(row, 0)?).or_default();
            counts.scheduled = get(row, 1)?;
            counts.pending += get::<i64>(row, 2)?;
            counts.in_flight += get::<i64>(row, 3)?;
        }
        self.tally_deliveries(&mut status).await?;
        self.tally_totals(&mut status).await?;
        Ok(status)
    }

    /// What is blocked is asked for in the words of the index that has it.
    async fn tally_deliveries(&self, status: &mut Status) -> Result<(), StoreError> {
        let rows =
            query(self.sql.of("SELECT d.project_id, d.trigger_name, d.state, count(*), max(d.id)
               FROM ((SELECT project_id, trigger_name, state, id FROM {p}delivery
                       WHERE state = 'ready' LIMIT $1)
                     UNION ALL
                     (SELECT project_id, trigger_name, state, id FROM {p}delivery
                       WHERE state IN ('ready', 'blocked') AND chain > 0 AND state = 'blocked'
                       LIMIT $1)
                     UNION ALL
                     (SELECT project_id, trigger_name, state, id FROM {p}delivery
                       WHERE state = 'dead' LIMIT $1)) d
              GROUP BY d.project_id, d.trigger_name, d.state"))
            .bind(MAX_COUNT)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let mut latest = Vec::with_capacity(rows.len());
        for row in &rows {
            let project = status.projects.entry(get(row, 0)?).or_default();
            let counts = project.triggers.entry(get(row, 1)?).or_default();
            match get::<&str>(row, 2)? {
                "ready" => counts.retrying = get(row, 3)?,
                "blocked" => counts.blocked = get(row, 3)?,
                _ => counts.dead = get(row, 3)?,
            }
            latest.push(get::<i64>(row, 4)?);
        }
        let rows =
            query(self.sql.of("SELECT project_id, trigger_name, last_error FROM {p}delivery
              WHERE id = ANY($1) AND last_error IS NOT NULL ORDER BY id"))
            .bind(&latest)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        for row in &rows {
            let project = status.projects.entry(get(row, 0)?).or_default();
            project.triggers.entry(get(row, 1)?).or_default().last_error = get(row, 2)?;
        }
        Ok(())
    }

    async fn tally_totals(&self, status: &mut Status) -> Result<(), StoreError> {
        let rows = query(
            self.sql.of("SELECT project_id, trigger_name, sum(done)::bigint, sum(failed)::bigint
               FROM {p}counter GROUP BY project_id, trigger_name"),
        )
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        for row in &rows {
            let project = status.projects.entry(get(row, 0)?).or_default();
            match get::<&str>(row, 1)? {
                "" => project.dispatched = get(row, 2)?,
                trigger => {
                    let counts = project.triggers.entry(trigger.to_owned()).or_default();
                    (counts.done, counts.failed) = (get(row, 2)?, get(row, 3)?);
                }
            }
        }
        let existing: Vec<String> = query_scalar(self.sql.of("SELECT name FROM {p}project"))
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        for name in existing {
            status.projects.entry(name).or_default().exists = true;
        }
        Ok(())
    }

    /// One small batch, from where the last one ended: rows are looked at in
    /// the order of their age, those that must stay once a round, and the
    /// first that is too young ends the round.
    pub(super) async fn delete_old(
        &self,
        retention: Duration,
        batch: u32,
    ) -> Result<u64, StoreError> {
        let mut gone = 0;
        for _ in 0..MAX_PARTS {
            let row = query(self.sql.of("SELECT array_agg(p.pk) FILTER (WHERE p.old), max(p.pk),
                    count(*) = $3 AND bool_and(p.aged)
               FROM (SELECT o.pk, o.created_at < n.cut AS aged,
                            coalesce(o.dispatched_at < n.cut, false) AND NOT EXISTS (
                                SELECT FROM {p}delivery d
                                 WHERE d.event_pk = o.pk AND d.state <> 'done') AS old
                       FROM {p}outbox o, (SELECT {p}now_ms() - $1 AS cut) n
                      WHERE o.pk > $2 ORDER BY o.pk LIMIT $3) p"))
            .bind(millis(retention))
            .bind(self.swept.load(Ordering::Relaxed))
            .bind(i64::from(batch))
            .fetch_one(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
            if let Some(old) = get::<Option<Vec<i64>>>(&row, 0)? {
                gone += self.delete_events(&old).await?;
            }
            let goes_on = get::<Option<bool>>(&row, 2)?.unwrap_or(false);
            let last: Option<i64> = get(&row, 1)?;
            let next = last.filter(|_| goes_on).unwrap_or(0);
            self.swept.store(next, Ordering::Relaxed);
            if !goes_on || gone >= u64::from(batch) {
                break;
            }
        }
        Ok(gone)
    }

    /// Deletes events and what belongs to them, but for those that are being
    /// replayed: whoever replays holds the row, and is seen once it is locked.
    async fn delete_events(&self, pks: &[i64]) -> Result<u64, StoreError> {
        let mut tx = self.pool.begin().await?;
        query(self.sql.of("SELECT pk FROM {p}outbox WHERE pk = ANY($1) ORDER BY pk FOR UPDATE"))
            .bind(pks)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        let gone: Vec<i64> = query_scalar(self.sql.of("DELETE FROM {p}outbox o
              WHERE o.pk = ANY($1) AND NOT EXISTS (
                  SELECT FROM {p}delivery d WHERE d.event_pk = o.pk AND d.state <> 'done')
             RETURNING o.pk"))
        .bind(pks)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        for sql in [
            "DELETE FROM {p}attempt WHERE event_pk = ANY($1)",
            "DELETE FROM {p}delivery WHERE event_pk = ANY($1)",
        ] {
            query(self.sql.of(sql)).bind(&gone).execute(&mut *tx).await.map_err(fault)?;
        }
        tx.commit().await?;
        Ok(gone.len() as u64)
    }
}

/// A page from what was found: as many as were asked for may be followed by more.
pub(super) fn paged<T>(items: Vec<T>, page: &PageRequest, id: impl Fn(&T) -> i64) -> Page<T> {
    let full = items.len() >= page.limit as usize;
    let next = items.last().filter(|_| full).map(id);
    Page { items, next }
}

/// The attempt in a row of [`attempt_columns`].
pub(super) fn attempt(row: &PgRow) -> Result<Attempt, StoreError> {
    let logs: Option<String> = named(row, "logs_json")?;
    let unsigned = |name| Ok(u64::try_from(named::<i64>(row, name)?).unwrap_or(0));
    Ok(Attempt {
        message_id: named(row, "message_id")?,
        event_pk: named(row, "event_pk")?,
        project: named(row, "project_id")?,
        trigger: named(row, "trigger_name")?,
        number: count(row, "number")?,
        digest: named(row, "digest")?,
        started_at: named(row, "started_at")?,
        usage: Usage {
            duration_us: unsigned("duration_us")?,
            cpu_us: unsigned("cpu_us")?,
            memory_bytes: unsigned("memory_bytes")?,
        },
        failure: kind_of(named(row, "kind")?),
        error: named(row, "error")?,
        logs: logs.map_or_else(|| Ok(Vec::new()), |text| from_json("a log", &text))?,
    })
}

pub(super) fn event_row(row: &PgRow) -> Result<EventRow, StoreError> {
    let event = event(row)?;
    let now: i64 = named(row, "now")?;
    let dispatched_at: Option<i64> = named(row, "dispatched_at")?;
    let claimed_until: Option<i64> = named(row, "claimed_until")?;
    let status = if dispatched_at.is_some() {
        EventStatus::Dispatched
    } else if claimed_until.is_some_and(|until| until >= now) {
        EventStatus::Claimed
    } else if event.available_at.is_some_and(|at| at > now) {
        EventStatus::Scheduled
    } else {
        EventStatus::Pending
    };
    Ok(EventRow {
        status,
        claims: count(row, "claims")?,
        dispatched_at,
        result: named(row, "result")?,
        event,
    })
}

pub(super) fn delivery_row(row: &PgRow) -> Result<DeliveryRow, StoreError> {
    let state: String = named(row, "state")?;
    Ok(DeliveryRow {
        id: named(row, "id")?,
        message_id: named(row, "message_id")?,
        trigger: named(row, "trigger_name")?,
        resource: named(row, "resource")?,
        aggregate_id: named(row, "aggregate_id")?,
        event_name: named(row, "event_name")?,
        lane: named(row, "lane")?,
        generation: count(row, "generation")?,
        state: DeliveryState::parse(&state)
            .ok_or_else(|| StoreError::Schema(format!("a delivery in the state `{state}`")))?,
        cause: named(row, "cause")?,
        attempts: count(row, "attempts")?,
        due_at: named(row, "due_at")?,
        claimed: named(row, "claimed")?,
        kind: kind_of(named(row, "last_kind")?),
        last_error: named(row, "last_error")?,
        created_at: named(row, "created_at")?,
        ended_at: named(row, "ended_at")?,
        blocked_by: named(row, "blocked_by")?,
    })
}
