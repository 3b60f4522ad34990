//! Dead letters and what sets them in motion again.

use sqlx::{SqliteConnection, query, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    Sqlite, fault, get, id,
    lists::{by_id, dead_wanted},
    now, text,
};
use crate::{
    model::outcome::FailureKind,
    store::{
        DeadLetterFilter, Operation, OperationFilter, OperationKind, OperationState, ReplayCounts,
        Requeued, StoreError, rows::to_json,
    },
};

/// Rows of one transaction where there may be millions: applications wait for
/// the lock meanwhile.
const BATCH: i64 = 2_000;

macro_rules! operation_columns {
    () => {
        "id, project_id, kind, filter_json, max_items, state, total, done, created_at, updated_at,
         position, last_id, deliveries, open, pending"
    };
}
pub(super) use operation_columns;

impl Sqlite {
    pub(super) async fn requeue_one(&self, project: &str, id: i64) -> Result<Requeued, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let ours =
            query(self.sql.of(
                "SELECT id FROM {p}delivery WHERE id = ?1 AND project_id = ?2 AND state = 'dead'",
            ))
            .bind(id)
            .bind(project)
            .fetch_optional(&mut *tx)
            .await
            .map_err(fault)?;
        if ours.is_none() {
            return Ok(Requeued::Unknown);
        }
        let now = now(&mut tx).await?;
        if self.requeue_all(&mut tx, now, &[id]).await? == 0 {
            return Ok(Requeued::Open);
        }
        tx.commit().await?;
        self.wake.ring();
        Ok(Requeued::Yes)
    }

    pub(super) async fn purge_one(&self, project: &str, id: i64) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let gone = query(
            self.sql
                .of("DELETE FROM {p}delivery WHERE id = ?1 AND project_id = ?2 AND state = 'dead'"),
        )
        .bind(id)
        .bind(project)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(gone.rows_affected() > 0)
    }

    pub(super) async fn dead_count(
        &self,
        project: &str,
        filter: &DeadLetterFilter,
    ) -> Result<i64, StoreError> {
        let sql = concat!(
            "SELECT count(*) FROM {p}delivery d INDEXED BY {p}delivery_dead
              WHERE d.project_id = ?1 AND (?2 IS NULL OR d.trigger_name = ?2)
                AND d.state = 'dead' AND ?3 = 0 AND ?4 = 0 AND ?5 = 0 AND ",
            dead_wanted!()
        );
        let row = query(self.sql.of(sql))
            .bind(project)
            .bind(filter.trigger.as_deref())
            // Places that the statements for pages fill.
            .bind(0)
            .bind(0)
            .bind(0)
            .bind(filter.event_name.as_deref())
            .bind(filter.aggregate_id.as_deref())
            .bind(filter.kind.map(FailureKind::as_str))
            .bind(filter.since)
            .bind(filter.until)
            .fetch_one(&self.readers)
            .await
            .map_err(fault)?;
        get(&row, 0)
    }

    pub(super) async fn start_operation(
        &self,
        project: &str,
        kind: OperationKind,
        filter: &DeadLetterFilter,
        limit: Option<i64>,
    ) -> Result<Operation, StoreError> {
        let total = self.dead_count(project, filter).await?;
        let mut tx = self.writer.begin_firm().await?;
        let now = now(&mut tx).await?;
        let row = query(self.sql.of(concat!(
            "INSERT INTO {p}operation (id, project_id, kind, filter_json, max_items, state, total,
                 last_id, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, 'running', ?6,
                     (SELECT coalesce(max(id), 0) FROM {p}delivery), ?7, ?7)
             RETURNING ",
            operation_columns!()
        )))
        .bind(Uuid::new_v4().to_string())
        .bind(project)
        .bind(kind.name())
        .bind(to_json(filter)?)
        .bind(limit)
        .bind(limit.map_or(total, |limit| limit.min(total)))
        .bind(now)
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        operation(&row)
    }

    pub(super) async fn one_operation(
        &self,
        project: &str,
        id: Uuid,
    ) -> Result<Option<Operation>, StoreError> {
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let found = self.find_operation(&mut db, id).await?;
        Ok(found.filter(|operation| operation.project == project))
    }

    pub(super) async fn find_operation(
        &self,
        db: &mut SqliteConnection,
        id: Uuid,
    ) -> Result<Option<Operation>, StoreError> {
        let sql = concat!("SELECT ", operation_columns!(), " FROM {p}operation WHERE id = ?1");
        let row =
            query(self.sql.of(sql)).bind(id.to_string()).fetch_optional(db).await.map_err(fault)?;
        row.as_ref().map(operation).transpose()
    }

    pub(super) async fn cancel_operation(
        &self,
        project: &str,
        id: Uuid,
    ) -> Result<Option<Operation>, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let now = now(&mut tx).await?;
        query(self.sql.of("UPDATE {p}operation SET state = 'cancelled', updated_at = ?3
              WHERE id = ?1 AND project_id = ?2 AND state = 'running'"))
        .bind(id.to_string())
        .bind(project)
        .bind(now)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.one_operation(project, id).await
    }

    pub(super) async fn advance_one(&self, batch: u32) -> Result<bool, StoreError> {
        // Operations take turns. The next dead letters are looked up without
        // the write lock, and looked at again under it.
        let row = query(self.sql.of(concat!(
            "SELECT ",
            operation_columns!(),
            " FROM {p}operation WHERE state = 'running' AND kind IN ('requeue', 'purge')
              ORDER BY updated_at, id LIMIT 1"
        )))
        .fetch_optional(&self.readers)
        .await
        .map_err(fault)?;
        let Some(work) = row.as_ref().map(operation).transpose()? else { return Ok(false) };
        let left = work.limit.map_or(i64::MAX, |limit| (limit - work.done).max(0));
        let take = i64::from(batch).min(left);
        let found = self.next_dead(&work, take).await?;

        let mut tx = self.writer.begin_firm().await?;
        let unchanged = self
            .find_operation(&mut tx, work.id)
            .await?
            .is_some_and(|now| now.state == OperationState::Running && now.cursor == work.cursor);
        if !unchanged {
            return Ok(true);
        }
        let now = now(&mut tx).await?;
        let seen = i64::try_from(found.len()).unwrap_or(i64::MAX);
        let mut counts = ReplayCounts::default();
        let done = match work.kind {
            OperationKind::ReplayEvents => 0,
            OperationKind::RequeueDeadLetters => {
                let requeued = self.requeue_all(&mut tx, now, &found).await?;
                counts.deliveries = i64::try_from(requeued).unwrap_or(i64::MAX);
                counts.open = seen - counts.deliveries;
                seen
            }
            OperationKind::PurgeDeadLetters => {
                let gone = query(self.sql.of("DELETE FROM {p}delivery
                      WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'dead'"))
                .bind(to_json(&found)?)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
                i64::try_from(gone.rows_affected()).unwrap_or(i64::MAX)
            }
        };
        query(self.sql.of("UPDATE {p}operation
                SET done = done + ?2, position = ?3, updated_at = ?4,
                    state = CASE WHEN ?5 THEN 'done' ELSE state END,
                    deliveries = deliveries + ?6, open = open + ?7
              WHERE id = ?1"))
        .bind(work.id.to_string())
        .bind(done)
        .bind(found.last().copied().unwrap_or(work.cursor))
        .bind(now)
        .bind(seen < i64::from(batch) && seen < left || done >= left)
        .bind(counts.deliveries)
        .bind(counts.open)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(true)
    }

    async fn next_dead(&self, work: &Operation, take: i64) -> Result<Vec<i64>, StoreError> {
        let sql = by_id!(
            "d.id",
            "delivery",
            "delivery_dead",
            "d.state = 'dead'",
            ">",
            "ASC",
            concat!("d.id <= ?5 AND ", dead_wanted!())
        );
        let filter = work.filter.dead_letters()?;
        let rows = query(self.sql.of(sql))
            .bind(&work.project)
            .bind(filter.trigger.as_deref())
            .bind(work.cursor)
            .bind(take)
            .bind(work.last)
            .bind(filter.event_name.as_deref())
            .bind(filter.aggregate_id.as_deref())
            .bind(filter.kind.map(FailureKind::as_str))
            .bind(filter.since)
            .bind(filter.until)
            .fetch_all(&self.readers)
            .await
            .map_err(fault)?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    pub(super) async fn delivery_count(
        &self,
        project: &str,
        trigger: &str,
    ) -> Result<i64, StoreError> {
        let row = query(self.sql.of(
            "SELECT (SELECT count(*) FROM {p}delivery INDEXED BY {p}delivery_open
                      WHERE project_id = ?1 AND trigger_name = ?2 AND state IN ('ready', 'blocked'))
                  + (SELECT count(*) FROM {p}delivery INDEXED BY {p}delivery_dead
                      WHERE project_id = ?1 AND trigger_name = ?2 AND state = 'dead')",
        ))
        .bind(project)
        .bind(trigger)
        .fetch_one(&self.readers)
        .await
        .map_err(fault)?;
        get(&row, 0)
    }

    pub(super) async fn end_all(
        &self,
        project: &str,
        trigger: &str,
        dead: bool,
    ) -> Result<(), StoreError> {
        let owner = [project, trigger];
        if dead {
            self.in_batches(
                "UPDATE {p}delivery
                    SET state = 'dead', ended_at = ?4, claim_id = NULL, claimed_until = NULL,
                        last_error = coalesce(last_error, 'its trigger was deleted')
                  WHERE id IN (SELECT id FROM {p}delivery INDEXED BY {p}delivery_open
                                WHERE project_id = ?1 AND trigger_name = ?2
                                  AND state IN ('ready', 'blocked') LIMIT ?3)",
                owner,
            )
            .await?;
        } else {
            self.in_batches(
                "DELETE FROM {p}delivery
                  WHERE id IN (SELECT id FROM {p}delivery INDEXED BY {p}delivery_open
                                WHERE project_id = ?1 AND trigger_name = ?2
                                  AND state IN ('ready', 'blocked') LIMIT ?3)",
                owner,
            )
            .await?;
            self.in_batches(
                "DELETE FROM {p}delivery
                  WHERE id IN (SELECT id FROM {p}delivery INDEXED BY {p}delivery_dead
                                WHERE project_id = ?1 AND trigger_name = ?2
                                  AND state = 'dead' LIMIT ?3)",
                owner,
            )
            .await?;
        }
        self.in_batches(
            "DELETE FROM {p}state
              WHERE (project_id, trigger_name, key) IN (
                  SELECT project_id, trigger_name, key FROM {p}state
                   WHERE project_id = ?1 AND trigger_name = ?2 LIMIT ?3)",
            owner,
        )
        .await
    }

    /// Runs a statement until it changes nothing, each time in a transaction
    /// of its own: `?1` and `?2` are project and trigger, `?3` the rows at the
    /// most, `?4` the time.
    async fn in_batches(&self, sql: &'static str, owner: [&str; 2]) -> Result<(), StoreError> {
        loop {
            let mut tx = self.writer.begin_firm().await?;
            let now = now(&mut tx).await?;
            let changed = query(self.sql.of(sql))
                .bind(owner[0])
                .bind(owner[1])
                .bind(BATCH)
                .bind(now)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
            tx.commit().await?;
            if changed.rows_affected() == 0 {
                return Ok(());
            }
        }
    }
}

pub(super) fn operation(row: &SqliteRow) -> Result<Operation, StoreError> {
    let kind = OperationKind::parse(get(row, 2)?)?;
    Ok(Operation {
        id: id(row, 0)?,
        project: text(row, 1)?,
        kind,
        filter: OperationFilter::parse(kind, get(row, 3)?)?,
        limit: get(row, 4)?,
        state: OperationState::parse(get(row, 5)?),
        total: get(row, 6)?,
        done: get(row, 7)?,
        counts: ReplayCounts {
            deliveries: get(row, 12)?,
            open: get(row, 13)?,
            pending: get(row, 14)?,
        },
        created_at: get(row, 8)?,
        updated_at: get(row, 9)?,
        cursor: get(row, 10)?,
        last: get(row, 11)?,
    })
}
