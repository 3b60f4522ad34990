//! Replays: dispatched events that are delivered again.

use std::collections::HashSet;

use sqlx::{
    PgConnection, Postgres as Db,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
    query_scalar,
};
use uuid::Uuid;

use super::{
    Postgres, Texts,
    claims::{event, event_columns, get},
    column, fault,
    redrive::operation,
};
use crate::store::{
    Chain, Destination, Operation, OperationKind, OperationState, ReplayBatch, ReplayFilter,
    Replayed, StoreError,
    replay::{Again, LOOKS, Made, Part, deliveries, keys, wanted},
    rows::{chain_code, to_json},
};

/// Events of a filter, as bound by [`bind_filter`].
macro_rules! events_matching {
    () => {
        "o.project_id = $1
         AND ($2::text IS NULL OR o.resource = $2)
         AND ($3::text IS NULL OR o.aggregate_id = $3)
         AND ($4::text IS NULL OR o.event_name = $4)
         AND ($5::bigint IS NULL OR o.created_at >= $5)
         AND ($6::bigint IS NULL OR o.created_at < $6)"
    };
}

/// Binds `$1` to `$6` of [`events_matching`].
fn bind_filter<'q>(
    query: Query<'q, Db, PgArguments>,
    project: &'q str,
    filter: &'q ReplayFilter,
) -> Query<'q, Db, PgArguments> {
    query
        .bind(project)
        .bind(filter.resource.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.event_name.as_deref())
        .bind(filter.since)
        .bind(filter.until)
}

impl Postgres {
    pub(super) async fn replay_one(
        &self,
        project: &str,
        message_id: Uuid,
        to: &[Destination],
    ) -> Result<Replayed, StoreError> {
        let mut tx = self.pool.begin().await?;
        let pk: Option<i64> = query_scalar(
            self.sql.of("SELECT pk FROM {p}outbox WHERE message_id = $1 AND project_id = $2"),
        )
        .bind(message_id)
        .bind(project)
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(pk) = pk else { return Ok(Replayed::Unknown) };
        let made = self.replay_all(&mut tx, project, &[(pk, to)]).await?;
        tx.commit().await?;
        self.wake.ring();
        Ok(made.one().unwrap_or(Replayed::Unknown))
    }

    /// Makes deliveries for events. They are ordered among what is re-driven,
    /// and block nothing newer.
    async fn replay_all(
        &self,
        db: &mut PgConnection,
        project: &str,
        wanted: &[(i64, &[Destination])],
    ) -> Result<Made, StoreError> {
        self.redrive_turn(db, project).await?;
        let pks: Vec<i64> = wanted.iter().map(|one| one.0).collect();
        // Nothing deletes the events from here on, and what their settles
        // spilled is in sight of the next statement.
        let rows = query(self.sql.of("SELECT o.pk, o.resource, o.aggregate_id FROM {p}outbox o
              WHERE o.pk = ANY($1) AND o.project_id = $2 AND o.dispatched_at IS NOT NULL
              ORDER BY o.pk FOR NO KEY UPDATE"))
        .bind(&pks)
        .bind(project)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            let pk = get(row, 0)?;
            let to = wanted.iter().find(|one| one.0 == pk).map_or(&[][..], |one| one.1);
            events.push(Again { pk, project, resource: get(row, 1)?, aggregate: get(row, 2)?, to });
        }
        let rows = query(self.sql.of("SELECT d.event_pk, d.trigger_name FROM {p}delivery d
              WHERE d.event_pk = ANY($1) AND d.state IN ('ready', 'blocked')"))
        .bind(&pks)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut open = HashSet::with_capacity(rows.len());
        for row in &rows {
            open.insert((get(row, 0)?, get(row, 1)?));
        }
        let joined: Vec<_> = keys(&events, &open).into_iter().collect();
        let last = self.lock_last(db, &joined, Chain::Redriven).await?;
        let waiting = last.iter().map(|k| (&*k.0, &*k.1, &*k.2, &*k.3)).collect();
        let new = deliveries(&events, &open, waiting);
        let left: Vec<i64> =
            pks.iter().copied().filter(|pk| events.iter().all(|event| event.pk != *pk)).collect();
        let mut made = Made { pending: self.there(&mut *db, &left).await?, ..Made::default() };
        made.found = !events.is_empty();
        for event in &events {
            let names = event.to.iter().map(|to| (event.pk, to.trigger.clone()));
            made.open.extend(names.filter(|pair| open.contains(pair)));
        }
        if new.is_empty() {
            return Ok(made);
        }
        query(self.sql.of("UPDATE {p}outbox SET replays = replays + 1 WHERE pk = ANY($1)"))
            .bind(column(&new, |d| d.pk))
            .execute(&mut *db)
            .await
            .map_err(fault)?;
        let rows = query(self.sql.of(
            "INSERT INTO {p}delivery (event_pk, message_id, project_id, trigger_name, resource,
                 aggregate_id, event_name, lane, generation, chain, state, cause, due_at, created_at)
             SELECT o.pk, o.message_id, o.project_id, s.trigger, o.resource, o.aggregate_id,
                    o.event_name, o.lane, o.replays, s.chain, s.state, 'replay', n.ms, n.ms
               FROM unnest($1::bigint[], $2::text[], $3::smallint[], $4::text[]) WITH ORDINALITY
                    AS s(pk, trigger, chain, state, place)
               JOIN {p}outbox o ON o.pk = s.pk, (SELECT {p}now_ms() AS ms) n
              ORDER BY s.place
             RETURNING event_pk, trigger_name, generation",
        ))
        .bind(column(&new, |d| d.pk))
        .bind(column(&new, |d| d.trigger) as Texts)
        .bind(column(&new, |d| chain_code(if d.ordered { Chain::Redriven } else { Chain::None })))
        .bind(column(&new, |d| d.state) as Texts)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let generation = u32::try_from(get::<i32>(row, 2)?).unwrap_or(0);
            made.deliveries.push((get(row, 0)?, get(row, 1)?, generation));
        }
        Ok(made)
    }

    /// How many of these events are there: the others were old, and are gone.
    async fn there(&self, db: &mut PgConnection, pks: &[i64]) -> Result<i64, StoreError> {
        if pks.is_empty() {
            return Ok(0);
        }
        query_scalar(self.sql.of("SELECT count(*) FROM {p}outbox WHERE pk = ANY($1)"))
            .bind(pks)
            .fetch_one(db)
            .await
            .map_err(fault)
    }

    pub(super) async fn event_count(
        &self,
        project: &str,
        filter: &ReplayFilter,
    ) -> Result<i64, StoreError> {
        let sql = concat!("SELECT count(*) FROM {p}outbox o WHERE ", events_matching!());
        let row = bind_filter(query(self.sql.of(sql)), project, filter)
            .fetch_one(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        get(&row, 0)
    }

    pub(super) async fn begin_replay(
        &self,
        project: &str,
        filter: &ReplayFilter,
        limit: Option<i64>,
    ) -> Result<Operation, StoreError> {
        let total = self.event_count(project, filter).await?;
        let row = query(self.sql.of(
            "INSERT INTO {p}operation (id, project_id, kind, filter_json, max_items, state, total,
                 last_id, created_at, updated_at)
             SELECT $1, $2, $3, $4, $5::bigint, 'running', least($6, coalesce($5, $6)),
                    (SELECT coalesce(max(pk), 0) FROM {p}outbox), n.ms, n.ms
               FROM (SELECT {p}now_ms() AS ms) n
             RETURNING *",
        ))
        .bind(Uuid::new_v4())
        .bind(project)
        .bind(OperationKind::ReplayEvents.name())
        .bind(to_json(filter)?)
        .bind(limit)
        .bind(total)
        .fetch_one(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        operation(&row)
    }

    /// Replays take turns, and are read without a lock: matching takes as long
    /// as it takes.
    pub(super) async fn next_replay(&self, batch: u32) -> Result<Option<ReplayBatch>, StoreError> {
        let row = query(self.sql.of("SELECT * FROM {p}operation
              WHERE state = 'running' AND kind = 'replay' ORDER BY updated_at, id LIMIT 1"))
        .fetch_optional(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let Some(work) = row.as_ref().map(operation).transpose()? else { return Ok(None) };
        let look = query(self.sql.of("SELECT max(pk), count(*) FROM (
                 SELECT pk FROM {p}outbox WHERE pk > $1 AND pk <= $2 ORDER BY pk LIMIT $3) o"))
        .bind(work.cursor)
        .bind(work.last)
        .bind(LOOKS)
        .fetch_one(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let last = get::<Option<i64>>(&look, 0)?.unwrap_or(work.cursor);
        let end = get::<i64>(&look, 1)? < LOOKS;
        let left = work.limit.map_or(i64::MAX, |limit| (limit - work.done).max(0));
        let take = i64::from(batch).min(left);
        let sql = concat!(
            "SELECT o.pk, o.dispatched_at IS NOT NULL, octet_length(o.payload_json::text)::bigint
               FROM {p}outbox o WHERE ",
            events_matching!(),
            " AND o.pk > $7 AND o.pk <= $8 ORDER BY o.pk LIMIT $9"
        );
        let rows = bind_filter(query(self.sql.of(sql)), &work.project, work.filter.events()?)
            .bind(work.cursor)
            .bind(last)
            .bind(take)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let found = |row: &PgRow| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?));
        let found = rows.iter().map(found).collect::<Result<Vec<_>, StoreError>>()?;
        let part = Part::of(&work, &found, take, last, end);
        let sql = concat!(
            "SELECT ",
            event_columns!(),
            " FROM {p}outbox o WHERE o.pk = ANY($1) ORDER BY o.pk"
        );
        let rows = query(self.sql.of(sql))
            .bind(&part.pks)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(ReplayBatch { operation: work, events, part }))
    }

    pub(super) async fn write_replay(
        &self,
        batch: &ReplayBatch,
        to: &[Vec<Destination>],
    ) -> Result<(), StoreError> {
        let ReplayBatch { operation: work, part, .. } = batch;
        let mut tx = self.pool.begin().await?;
        let row = query(self.sql.of("SELECT * FROM {p}operation WHERE id = $1 FOR UPDATE"))
            .bind(work.id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(fault)?;
        let now = row.as_ref().map(operation).transpose()?;
        if now.is_none_or(|now| now.state != OperationState::Running || now.cursor != work.cursor) {
            return Ok(());
        }
        let wanted: Vec<_> = wanted(batch, to).into_iter().collect();
        let made = self.replay_all(&mut tx, &work.project, &wanted).await?;
        let counts = made.counts(part.pending);
        query(self.sql.of(
            "UPDATE {p}operation SET done = done + $2, position = $3, deliveries = deliveries + $4,
                    open = open + $5, pending = pending + $6, updated_at = {p}now_ms(),
                    state = CASE WHEN $7 THEN 'done' ELSE state END
              WHERE id = $1",
        ))
        .bind(work.id)
        .bind(part.seen)
        .bind(part.position)
        .bind(counts.deliveries)
        .bind(counts.open)
        .bind(counts.pending)
        .bind(part.through)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(())
    }

    /// Waits for this transaction's turn to re-drive deliveries of a project:
    /// what joins a chain must see what others let join it.
    pub(super) async fn redrive_turn(
        &self,
        db: &mut PgConnection,
        project: &str,
    ) -> Result<(), StoreError> {
        query(
            self.sql.of("SELECT pg_advisory_xact_lock(hashtextextended('{p}redrive ' || $1, 0))"),
        )
        .bind(project)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }
}
