//! Deliveries and dead letters, page by page.

use sqlx::{query, sqlite::SqliteRow};

use super::{Sqlite, count, fault, get, id, maybe_text, now, paged, text};
use crate::{
    model::{
        attempt::{Attempt, Usage},
        outcome::FailureKind,
    },
    store::{
        DeadLetterFilter, DeliveryFilter, DeliveryRow, DeliveryState, Page, PageRequest,
        StoreError,
        rows::{from_json, kind_of},
    },
};

/// Rows `d` of project `?1` and trigger `?2`, or all triggers', by id: those
/// `$beyond` (`<` or `>`) `?3`, the first `?4`. The index begins with the
/// project and the trigger, so each trigger's first rows are looked up and
/// merged: nothing is sorted that has no place on the page.
macro_rules! by_id {
    ($columns:expr, $table:literal, $index:literal, $state:literal, $beyond:literal, $order:literal,
     $filter:expr) => {
        concat!(
            "WITH RECURSIVE t(name) AS (
                 SELECT coalesce(?2, (
                     SELECT d.trigger_name FROM {p}",
            $table,
            " d INDEXED BY {p}",
            $index,
            "
                      WHERE d.project_id = ?1 AND ",
            $state,
            " ORDER BY d.trigger_name LIMIT 1))
                 UNION ALL
                 SELECT (
                     SELECT d.trigger_name FROM {p}",
            $table,
            " d INDEXED BY {p}",
            $index,
            "
                      WHERE d.project_id = ?1 AND d.trigger_name > t.name AND ",
            $state,
            "
                      ORDER BY d.trigger_name LIMIT 1)
                   FROM t WHERE t.name IS NOT NULL AND ?2 IS NULL)
             SELECT ",
            $columns,
            "
               FROM t CROSS JOIN {p}",
            $table,
            " d
              WHERE d.id IN (
                  SELECT d.id FROM {p}",
            $table,
            " d INDEXED BY {p}",
            $index,
            "
                   WHERE d.project_id = ?1 AND d.trigger_name = t.name AND ",
            $state,
            "
                     AND d.id ",
            $beyond,
            " ?3 AND ",
            $filter,
            "
                   ORDER BY d.id ",
            $order,
            " LIMIT ?4)
              ORDER BY d.id ",
            $order,
            " LIMIT ?4"
        )
    };
}
pub(super) use by_id;

/// The columns of [`delivery_row`], of a table called `d`, at `?5`. Among
/// re-driven deliveries, one that came late waits for a newer event that runs.
macro_rules! delivery_columns {
    () => {
        "d.id, d.message_id, d.trigger_name, d.resource, d.aggregate_id, d.event_name, d.lane,
         d.generation, d.state, d.cause, d.attempts, d.due_at,
         d.claim_id IS NOT NULL AND d.claimed_until >= ?5, d.last_kind, d.last_error,
         d.created_at, d.ended_at,
         CASE d.state WHEN 'blocked' THEN coalesce((
             SELECT b.message_id FROM {p}delivery b INDEXED BY {p}delivery_run
              WHERE b.project_id = d.project_id AND b.resource = d.resource
                AND b.aggregate_id = d.aggregate_id AND b.trigger_name = d.trigger_name
                AND b.chain = d.chain AND b.state IN ('ready', 'blocked') AND b.chain > 0
                AND b.event_pk < d.event_pk
              ORDER BY b.event_pk DESC LIMIT 1), (
             SELECT b.message_id FROM {p}delivery b INDEXED BY {p}delivery_run
              WHERE b.project_id = d.project_id AND b.resource = d.resource
                AND b.aggregate_id = d.aggregate_id AND b.trigger_name = d.trigger_name
                AND b.chain = d.chain AND b.state IN ('ready', 'blocked') AND b.chain > 0
                AND b.state = 'ready'
              LIMIT 1)) END"
    };
}

pub(super) use delivery_columns;

macro_rules! deliveries_wanted {
    () => {
        "(?6 IS NULL OR d.created_at >= ?6) AND (?7 IS NULL OR d.created_at < ?7)
         AND (?8 IS NULL OR d.state = ?8)"
    };
}

/// Dead letters `d` of a filter: event name, aggregate, kind and times.
macro_rules! dead_wanted {
    () => {
        "(?6 IS NULL OR d.event_name = ?6) AND (?7 IS NULL OR d.aggregate_id = ?7)
         AND (?8 IS NULL OR d.last_kind = ?8)
         AND (?9 IS NULL OR d.ended_at >= ?9) AND (?10 IS NULL OR d.ended_at < ?10)"
    };
}
pub(super) use dead_wanted;

/// The columns of [`attempt`], of a table called `d`.
macro_rules! attempt_columns {
    () => {
        "d.id, d.event_pk, d.message_id, d.trigger_name, d.number, d.digest, d.started_at,
         d.duration_us, d.cpu_us, d.memory_bytes, d.kind, d.error, d.logs_json"
    };
}

pub(super) use attempt_columns;

impl Sqlite {
    pub(super) async fn delivery_page(
        &self,
        project: &str,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError> {
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let now = now(&mut db).await?;
        let sql = match filter {
            DeliveryFilter { message_id: Some(_), .. } => concat!(
                "SELECT ",
                delivery_columns!(),
                " FROM {p}delivery d
                  WHERE d.event_pk = (SELECT o.pk FROM {p}outbox o WHERE o.message_id = ?9)
                    AND d.project_id = ?1 AND (?2 IS NULL OR d.trigger_name = ?2)
                    AND d.id < ?3 AND ",
                deliveries_wanted!(),
                " ORDER BY d.id DESC LIMIT ?4"
            ),
            DeliveryFilter { state: Some(DeliveryState::Dead), .. } => by_id!(
                delivery_columns!(),
                "delivery",
                "delivery_dead",
                "d.state = 'dead'",
                "<",
                "DESC",
                deliveries_wanted!()
            ),
            // Only those that people have just seen end are looked for.
            DeliveryFilter { state: Some(DeliveryState::Done), .. } => concat!(
                "SELECT ",
                delivery_columns!(),
                " FROM {p}delivery d NOT INDEXED
                  WHERE d.project_id = ?1 AND (?2 IS NULL OR d.trigger_name = ?2)
                    AND d.id < ?3 AND ",
                deliveries_wanted!(),
                " ORDER BY d.id DESC LIMIT ?4"
            ),
            _ => by_id!(
                delivery_columns!(),
                "delivery",
                "delivery_open",
                "d.state IN ('ready', 'blocked')",
                "<",
                "DESC",
                deliveries_wanted!()
            ),
        };
        let rows = query(self.sql.of(sql))
            .bind(project)
            .bind(filter.trigger.as_deref())
            .bind(page.cursor.unwrap_or(i64::MAX))
            .bind(i64::from(page.limit))
            .bind(now)
            .bind(page.since)
            .bind(page.until)
            .bind(filter.state.map(DeliveryState::as_str))
            .bind(filter.message_id.map(|id| id.to_string()))
            .fetch_all(&mut *db)
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
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let now = now(&mut db).await?;
        let sql = by_id!(
            delivery_columns!(),
            "delivery",
            "delivery_dead",
            "d.state = 'dead'",
            "<",
            "DESC",
            dead_wanted!()
        );
        let rows = query(self.sql.of(sql))
            .bind(project)
            .bind(filter.trigger.as_deref())
            .bind(page.cursor.unwrap_or(i64::MAX))
            .bind(i64::from(page.limit))
            .bind(now)
            .bind(filter.event_name.as_deref())
            .bind(filter.aggregate_id.as_deref())
            .bind(filter.kind.map(FailureKind::as_str))
            .bind(filter.since)
            .bind(filter.until)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
        let items = rows.iter().map(delivery_row).collect::<Result<Vec<_>, _>>()?;
        Ok(paged(items, page, |row| row.id))
    }
}

pub(super) fn delivery_row(row: &SqliteRow) -> Result<DeliveryRow, StoreError> {
    let state = text(row, 8)?;
    Ok(DeliveryRow {
        id: get(row, 0)?,
        message_id: id(row, 1)?,
        trigger: text(row, 2)?,
        resource: text(row, 3)?,
        aggregate_id: text(row, 4)?,
        event_name: text(row, 5)?,
        lane: get(row, 6)?,
        generation: count(row, 7)?,
        state: DeliveryState::parse(&state)
            .ok_or_else(|| StoreError::Schema(format!("a delivery in the state `{state}`")))?,
        cause: text(row, 9)?,
        attempts: count(row, 10)?,
        due_at: get(row, 11)?,
        claimed: get(row, 12)?,
        kind: kind_of(maybe_text(row, 13)?),
        last_error: maybe_text(row, 14)?,
        created_at: get(row, 15)?,
        ended_at: get(row, 16)?,
        blocked_by: get::<Option<&str>>(row, 17)?.map(|_| id(row, 17)).transpose()?,
    })
}

pub(super) fn attempt(row: &SqliteRow, project: &str) -> Result<Attempt, StoreError> {
    let unsigned = |index| Ok(u64::try_from(get::<i64>(row, index)?).unwrap_or(0));
    let logs: Option<&str> = get(row, 12)?;
    Ok(Attempt {
        event_pk: get(row, 1)?,
        message_id: id(row, 2)?,
        project: project.to_owned(),
        trigger: text(row, 3)?,
        number: count(row, 4)?,
        digest: maybe_text(row, 5)?,
        started_at: get(row, 6)?,
        usage: Usage {
            duration_us: unsigned(7)?,
            cpu_us: unsigned(8)?,
            memory_bytes: unsigned(9)?,
        },
        failure: kind_of(maybe_text(row, 10)?),
        error: maybe_text(row, 11)?,
        logs: logs.map_or_else(|| Ok(Vec::new()), |text| from_json("a log", text))?,
    })
}
