//! Dead letters and what sets them in motion again.

use std::collections::{BTreeSet, HashSet};

use sqlx::{
    PgConnection, Postgres as Db,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
    query_scalar,
};
use uuid::Uuid;

use super::{
    Postgres,
    claims::{get, named},
    column, fault,
};
use crate::{
    model::outcome::FailureKind,
    store::{
        Chain, DeadLetterFilter, Operation, OperationFilter, OperationKind, OperationState,
        ReplayCounts, Requeued, StoreError, rows::to_json,
    },
};

/// Dead letters of a filter, as bound by [`bind_filter`].
macro_rules! dead_matching {
    () => {
        "d.state = 'dead' AND d.project_id = $1
         AND ($2::text IS NULL OR d.trigger_name = $2)
         AND ($3::text IS NULL OR d.event_name = $3)
         AND ($4::text IS NULL OR d.aggregate_id = $4)
         AND ($5::text IS NULL OR d.last_kind = $5)
         AND ($6::bigint IS NULL OR d.ended_at >= $6)
         AND ($7::bigint IS NULL OR d.ended_at < $7)"
    };
}
pub(super) use dead_matching;

/// Binds `$1` to `$7` of [`dead_matching`].
pub(super) fn bind_filter<'q>(
    query: Query<'q, Db, PgArguments>,
    project: &'q str,
    filter: &'q DeadLetterFilter,
) -> Query<'q, Db, PgArguments> {
    query
        .bind(project)
        .bind(filter.trigger.as_deref())
        .bind(filter.event_name.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.kind.map(FailureKind::as_str))
        .bind(filter.since)
        .bind(filter.until)
}

impl Postgres {
    pub(super) async fn requeue_one(&self, project: &str, id: i64) -> Result<Requeued, StoreError> {
        let mut tx = self.pool.begin().await?;
        let ours: Option<i64> =
            query_scalar(self.sql.of(
                "SELECT id FROM {p}delivery WHERE id = $1 AND project_id = $2 AND state = 'dead'
                FOR UPDATE",
            ))
            .bind(id)
            .bind(project)
            .fetch_optional(&mut *tx)
            .await
            .map_err(fault)?;
        if ours.is_none() {
            return Ok(Requeued::Unknown);
        }
        if self.requeue_all(&mut tx, project, &[id]).await? == 0 {
            return Ok(Requeued::Open);
        }
        tx.commit().await?;
        self.wake.ring();
        Ok(Requeued::Yes)
    }

    /// Gives locked dead letters new attempts, but for those whose event is
    /// being delivered to their trigger again already. They are ordered among
    /// themselves, and block nothing newer: the first of a key runs, unless one
    /// that was re-driven before is still open. Answers how many there are.
    async fn requeue_all(
        &self,
        db: &mut PgConnection,
        project: &str,
        ids: &[i64],
    ) -> Result<i64, StoreError> {
        self.redrive_turn(db, project).await?;
        let rows = query(self.sql.of("SELECT DISTINCT ON (d.event_pk, d.trigger_name)
                    d.id, d.resource, d.aggregate_id, d.trigger_name, d.chain > 0
               FROM {p}delivery d
              WHERE d.id = ANY($1) AND NOT EXISTS (
                  SELECT FROM {p}delivery o
                   WHERE o.event_pk = d.event_pk AND o.trigger_name = d.trigger_name
                     AND o.state IN ('ready', 'blocked'))
              ORDER BY d.event_pk, d.trigger_name, d.generation"))
        .bind(ids)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut letters = Vec::with_capacity(rows.len());
        for row in &rows {
            let key = (project, get::<&str>(row, 1)?, get::<&str>(row, 2)?, get::<&str>(row, 3)?);
            letters.push((get::<i64>(row, 0)?, key, get::<bool>(row, 4)?));
        }
        let keys: BTreeSet<_> = letters.iter().filter(|l| l.2).map(|l| l.1).collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let last = self.lock_last(db, &keys, Chain::Redriven).await?;
        let mut waiting: HashSet<_> = last.iter().map(|k| (&*k.0, &*k.1, &*k.2, &*k.3)).collect();
        let blocked: Vec<bool> =
            letters.iter().map(|(_, key, ordered)| *ordered && !waiting.insert(*key)).collect();
        query(self.sql.of("UPDATE {p}delivery d
                SET state = CASE WHEN r.blocked THEN 'blocked' ELSE 'ready' END,
                    chain = CASE WHEN d.chain = 0 THEN 0 ELSE 2 END,
                    attempts = 0, claims = (d.last_kind IS NOT DISTINCT FROM 'hostDeath')::int,
                    trials = 0, due_at = {p}now_ms(), ended_at = NULL,
                    claim_id = NULL, claimed_until = NULL
               FROM unnest($1::bigint[], $2::bool[]) AS r(id, blocked)
              WHERE d.id = r.id"))
        .bind(column(&letters, |l| l.0))
        .bind(&blocked)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(i64::try_from(letters.len()).unwrap_or(i64::MAX))
    }

    pub(super) async fn purge_one(&self, project: &str, id: i64) -> Result<bool, StoreError> {
        let gone = query(
            self.sql
                .of("DELETE FROM {p}delivery WHERE id = $1 AND project_id = $2 AND state = 'dead'"),
        )
        .bind(id)
        .bind(project)
        .execute(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        Ok(gone.rows_affected() > 0)
    }

    pub(super) async fn dead_count(
        &self,
        project: &str,
        filter: &DeadLetterFilter,
    ) -> Result<i64, StoreError> {
        let sql = concat!("SELECT count(*) FROM {p}delivery d WHERE ", dead_matching!());
        let row = bind_filter(query(self.sql.of(sql)), project, filter)
            .fetch_one(&mut *self.pool.lent().await?)
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
        let row = query(self.sql.of(
            "INSERT INTO {p}operation (id, project_id, kind, filter_json, max_items, state, total,
                 last_id, created_at, updated_at)
             SELECT $1, $2, $3, $4, $5::bigint, 'running', least($6, coalesce($5, $6)),
                    (SELECT coalesce(max(id), 0) FROM {p}delivery), n.ms, n.ms
               FROM (SELECT {p}now_ms() AS ms) n
             RETURNING *",
        ))
        .bind(Uuid::new_v4())
        .bind(project)
        .bind(kind.name())
        .bind(to_json(filter)?)
        .bind(limit)
        .bind(total)
        .fetch_one(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        operation(&row)
    }

    pub(super) async fn one_operation(
        &self,
        project: &str,
        id: Uuid,
    ) -> Result<Option<Operation>, StoreError> {
        let row =
            query(self.sql.of("SELECT * FROM {p}operation WHERE id = $1 AND project_id = $2"))
                .bind(id)
                .bind(project)
                .fetch_optional(&mut *self.pool.lent().await?)
                .await
                .map_err(fault)?;
        row.as_ref().map(operation).transpose()
    }

    pub(super) async fn cancel_operation(
        &self,
        project: &str,
        id: Uuid,
    ) -> Result<Option<Operation>, StoreError> {
        query(self.sql.of("UPDATE {p}operation SET state = 'cancelled', updated_at = {p}now_ms()
              WHERE id = $1 AND project_id = $2 AND state = 'running'"))
        .bind(id)
        .bind(project)
        .execute(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        self.one_operation(project, id).await
    }

    pub(super) async fn advance_one(&self, batch: u32) -> Result<bool, StoreError> {
        // Most of the time there is nothing to do, and no transaction to begin.
        let some: bool = query_scalar(self.sql.of("SELECT EXISTS (SELECT FROM {p}operation
              WHERE state = 'running' AND kind IN ('requeue', 'purge'))"))
        .fetch_one(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        if !some {
            return Ok(false);
        }
        let mut tx = self.pool.begin().await?;
        let row = query(self.sql.of("SELECT * FROM {p}operation
              WHERE state = 'running' AND kind IN ('requeue', 'purge')
              ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED"))
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(row) = row else { return Ok(false) };
        let work = operation(&row)?;
        let left = work.limit.map_or(i64::MAX, |limit| limit - work.done);
        let sql = concat!(
            "SELECT d.id FROM {p}delivery d WHERE ",
            dead_matching!(),
            " AND d.id > $8 AND d.id <= $9 ORDER BY d.id LIMIT $10 FOR UPDATE"
        );
        let take = i64::from(batch).min(left.max(0));
        let rows = bind_filter(query(self.sql.of(sql)), &work.project, work.filter.dead_letters()?)
            .bind(work.cursor)
            .bind(work.last)
            .bind(take)
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
        let ids = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
        let found = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let mut counts = ReplayCounts::default();
        match work.kind {
            _ if ids.is_empty() => {}
            OperationKind::ReplayEvents => {}
            OperationKind::RequeueDeadLetters => {
                counts.deliveries = self.requeue_all(&mut tx, &work.project, &ids).await?;
                counts.open = found - counts.deliveries;
            }
            OperationKind::PurgeDeadLetters => {
                query(self.sql.of("DELETE FROM {p}delivery WHERE id = ANY($1)"))
                    .bind(&ids)
                    .execute(&mut *tx)
                    .await
                    .map_err(fault)?;
            }
        }
        let through = found < i64::from(batch) || found >= left;
        query(self.sql.of(
            "UPDATE {p}operation SET done = done + $2, position = $3, updated_at = {p}now_ms(),
                    state = CASE WHEN $4 THEN 'done' ELSE state END,
                    deliveries = deliveries + $5, open = open + $6
              WHERE id = $1",
        ))
        .bind(work.id)
        .bind(found)
        .bind(ids.last().copied().unwrap_or(work.cursor))
        .bind(through)
        .bind(counts.deliveries)
        .bind(counts.open)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(true)
    }

    pub(super) async fn delivery_count(
        &self,
        project: &str,
        trigger: &str,
    ) -> Result<i64, StoreError> {
        query_scalar(self.sql.of(
            "SELECT (SELECT count(*) FROM {p}delivery WHERE project_id = $1 AND trigger_name = $2
                        AND state IN ('ready', 'blocked'))
                  + (SELECT count(*) FROM {p}delivery WHERE project_id = $1 AND trigger_name = $2
                        AND state = 'dead')",
        ))
        .bind(project)
        .bind(trigger)
        .fetch_one(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)
    }

    pub(super) async fn end_all(
        &self,
        project: &str,
        trigger: &str,
        dead: bool,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let sql = if dead {
            self.sql.of(
                "UPDATE {p}delivery SET state = 'dead', ended_at = {p}now_ms(), claim_id = NULL,
                        claimed_until = NULL,
                        last_error = coalesce(last_error, 'its trigger was deleted')
                  WHERE project_id = $1 AND trigger_name = $2 AND state IN ('ready', 'blocked')",
            )
        } else {
            self.sql.of("DELETE FROM {p}delivery WHERE project_id = $1 AND trigger_name = $2
                            AND state IN ('ready', 'blocked', 'dead')")
        };
        query(sql).bind(project).bind(trigger).execute(&mut *tx).await.map_err(fault)?;
        query(self.sql.of("DELETE FROM {p}state WHERE project_id = $1 AND trigger_name = $2"))
            .bind(project)
            .bind(trigger)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await
    }

    /// Ends deliveries whose event was deleted by hand.
    pub(super) async fn bury_orphans(&self, ids: &[i64], claim: Uuid) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        query(self.sql.of(
            "UPDATE {p}delivery SET state = 'dead', ended_at = {p}now_ms(), claim_id = NULL,
                    claimed_until = NULL, last_kind = 'hostFault', last_error = 'the event is gone'
              WHERE id = ANY($1) AND claim_id = $2",
        ))
        .bind(ids)
        .bind(claim)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        self.release_successors(&mut tx, ids).await?;
        tx.commit().await
    }

    pub(super) async fn delete_rows_of(&self, project: &str) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        for sql in [
            "DELETE FROM {p}attempt WHERE project_id = $1",
            "DELETE FROM {p}delivery WHERE project_id = $1",
            "DELETE FROM {p}state WHERE project_id = $1",
            "DELETE FROM {p}counter WHERE project_id = $1",
            "DELETE FROM {p}operation WHERE project_id = $1",
            "DELETE FROM {p}outbox WHERE project_id = $1",
        ] {
            query(self.sql.of(sql)).bind(project).execute(&mut *tx).await.map_err(fault)?;
        }
        tx.commit().await
    }
}

pub(super) fn operation(row: &PgRow) -> Result<Operation, StoreError> {
    let kind = OperationKind::parse(named(row, "kind")?)?;
    Ok(Operation {
        id: named(row, "id")?,
        project: named(row, "project_id")?,
        kind,
        filter: OperationFilter::parse(kind, named(row, "filter_json")?)?,
        limit: named(row, "max_items")?,
        state: OperationState::parse(named(row, "state")?),
        total: named(row, "total")?,
        done: named(row, "done")?,
        counts: ReplayCounts {
            deliveries: named(row, "deliveries")?,
            open: named(row, "open")?,
            pending: named(row, "pending")?,
        },
        created_at: named(row, "created_at")?,
        updated_at: named(row, "updated_at")?,
        cursor: named(row, "position")?,
        last: named(row, "last_id")?,
    })
}
