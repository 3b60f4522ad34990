//! Replays: dispatched events that are delivered again.

use std::collections::HashSet;

use sqlx::{Sqlite as Db, SqliteConnection, query, query::Query, sqlite::SqliteArguments};
use uuid::Uuid;

use super::{
    Sqlite,
    events::{event, event_columns},
    fault, get, now,
    operations::{operation, operation_columns},
    text,
};
use crate::{
    model::UnixMillis,
    store::{
        Chain, Destination, Operation, OperationKind, OperationState, ReplayBatch, ReplayFilter,
        Replayed, StoreError,
        replay::{Again, LOOKS, Made, Part, deliveries, keys, wanted},
        rows::{chain_code, to_json},
    },
};

/// Events of a filter, as bound by [`bind_filter`].
macro_rules! events_matching {
    () => {
        "o.project_id = ?1
         AND (?2 IS NULL OR o.resource = ?2)
         AND (?3 IS NULL OR o.aggregate_id = ?3)
         AND (?4 IS NULL OR o.event_name = ?4)
         AND (?5 IS NULL OR o.created_at >= ?5)
         AND (?6 IS NULL OR o.created_at < ?6)"
    };
}

/// Binds `?1` to `?6` of [`events_matching`].
fn bind_filter<'q>(
    query: Query<'q, Db, SqliteArguments>,
    project: &'q str,
    filter: &'q ReplayFilter,
) -> Query<'q, Db, SqliteArguments> {
    query
        .bind(project)
        .bind(filter.resource.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.event_name.as_deref())
        .bind(filter.since)
        .bind(filter.until)
}

impl Sqlite {
    pub(super) async fn replay_one(
        &self,
        project: &str,
        message_id: Uuid,
        to: &[Destination],
    ) -> Result<Replayed, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let row = query(
            self.sql.of("SELECT pk FROM {p}outbox WHERE message_id = ?1 AND project_id = ?2"),
        )
        .bind(message_id.to_string())
        .bind(project)
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(row) = row else { return Ok(Replayed::Unknown) };
        let now = now(&mut tx).await?;
        let made = self.replay_all(&mut tx, now, project, &[(get(&row, 0)?, to)]).await?;
        tx.commit().await?;
        self.wake.ring();
        Ok(made.one().unwrap_or(Replayed::Unknown))
    }

    /// Makes deliveries for events. They are ordered among what is re-driven,
    /// and block nothing newer.
    async fn replay_all(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        project: &str,
        wanted: &[(i64, &[Destination])],
    ) -> Result<Made, StoreError> {
        let pks: Vec<i64> = wanted.iter().map(|one| one.0).collect();
        let pks = to_json(&pks)?;
        let rows = query(self.sql.of("SELECT o.pk, o.resource, o.aggregate_id FROM {p}outbox o
              WHERE o.pk IN (SELECT value FROM json_each(?1)) AND o.project_id = ?2
                AND o.dispatched_at IS NOT NULL
              ORDER BY o.pk"))
        .bind(&pks)
        .bind(project)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push((get::<i64>(row, 0)?, text(row, 1)?, text(row, 2)?));
        }
        let events: Vec<Again<'_>> = found
            .iter()
            .map(|(pk, resource, aggregate)| {
                let to = wanted.iter().find(|one| one.0 == *pk).map_or(&[][..], |one| one.1);
                Again { pk: *pk, project, resource, aggregate, to }
            })
            .collect();
        let rows = query(self.sql.of("SELECT d.event_pk, d.trigger_name
               FROM json_each(?1) e CROSS JOIN {p}delivery d
              WHERE d.event_pk = e.value AND d.state IN ('ready', 'blocked')"))
        .bind(&pks)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut open = HashSet::with_capacity(rows.len());
        for row in &rows {
            open.insert((get(row, 0)?, text(row, 1)?));
        }
        let joined = keys(&events, &open).into_iter();
        let waiting = self.waiting(db, Chain::Redriven, joined).await?;
        let new = deliveries(&events, &open, waiting);
        let left: Vec<i64> = wanted
            .iter()
            .map(|one| one.0)
            .filter(|pk| events.iter().all(|event| event.pk != *pk))
            .collect();
        let mut made = Made { pending: self.there(db, &left).await?, ..Made::default() };
        made.found = !events.is_empty();
        for event in &events {
            let names = event.to.iter().map(|to| (event.pk, to.trigger.clone()));
            made.open.extend(names.filter(|pair| open.contains(pair)));
        }
        if new.is_empty() {
            return Ok(made);
        }
        let chain = |ordered| chain_code(if ordered { Chain::Redriven } else { Chain::None });
        let values: Vec<_> =
            new.iter().map(|d| (d.pk, d.trigger, chain(d.ordered), d.state)).collect();
        let values = to_json(&values)?;
        query(self.sql.of("UPDATE {p}outbox SET replays = replays + 1
              WHERE pk IN (SELECT value ->> 0 FROM json_each(?1))"))
        .bind(&values)
        .execute(&mut *db)
        .await
        .map_err(fault)?;
        let rows = query(self.sql.of(
            "INSERT INTO {p}delivery (event_pk, message_id, project_id, trigger_name, resource,
                 aggregate_id, event_name, lane, generation, chain, state, cause, due_at, created_at)
             SELECT o.pk, o.message_id, o.project_id, s.value ->> 1, o.resource, o.aggregate_id,
                    o.event_name, o.lane, o.replays, s.value ->> 2, s.value ->> 3, 'replay', ?2, ?2
               FROM json_each(?1) s CROSS JOIN {p}outbox o
              WHERE o.pk = s.value ->> 0
              ORDER BY s.key
             RETURNING event_pk, trigger_name, generation",
        ))
        .bind(&values)
        .bind(now)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let generation = u32::try_from(get::<i64>(row, 2)?).unwrap_or(0);
            made.deliveries.push((get(row, 0)?, text(row, 1)?, generation));
        }
        Ok(made)
    }

    /// How many of these events are there: the others were old, and are gone.
    async fn there(&self, db: &mut SqliteConnection, pks: &[i64]) -> Result<i64, StoreError> {
        if pks.is_empty() {
            return Ok(0);
        }
        let row = query(
            self.sql
                .of("SELECT count(*) FROM {p}outbox WHERE pk IN (SELECT value FROM json_each(?1))"),
        )
        .bind(to_json(&pks)?)
        .fetch_one(db)
        .await
        .map_err(fault)?;
        get(&row, 0)
    }

    pub(super) async fn event_count(
        &self,
        project: &str,
        filter: &ReplayFilter,
    ) -> Result<i64, StoreError> {
        let sql =
            concat!("SELECT count(*) FROM {p}outbox o NOT INDEXED WHERE ", events_matching!());
        let row = bind_filter(query(self.sql.of(sql)), project, filter)
            .fetch_one(&self.readers)
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
        let mut tx = self.writer.begin_firm().await?;
        let now = now(&mut tx).await?;
        let row = query(self.sql.of(concat!(
            "INSERT INTO {p}operation (id, project_id, kind, filter_json, max_items, state, total,
                 last_id, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, 'running', ?6,
                     (SELECT coalesce(max(pk), 0) FROM {p}outbox), ?7, ?7)
             RETURNING ",
            operation_columns!()
        )))
        .bind(Uuid::new_v4().to_string())
        .bind(project)
        .bind(OperationKind::ReplayEvents.name())
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

    /// Replays take turns, and are read without the write lock: matching takes
    /// as long as it takes.
    pub(super) async fn next_replay(&self, batch: u32) -> Result<Option<ReplayBatch>, StoreError> {
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let row = query(self.sql.of(concat!(
            "SELECT ",
            operation_columns!(),
            " FROM {p}operation WHERE state = 'running' AND kind = 'replay'
              ORDER BY updated_at, id LIMIT 1"
        )))
        .fetch_optional(&mut *db)
        .await
        .map_err(fault)?;
        let Some(work) = row.as_ref().map(operation).transpose()? else { return Ok(None) };
        let look = query(self.sql.of("SELECT max(pk), count(*) FROM (
                 SELECT pk FROM {p}outbox NOT INDEXED
                  WHERE pk > ?1 AND pk <= ?2 ORDER BY pk LIMIT ?3)"))
        .bind(work.cursor)
        .bind(work.last)
        .bind(LOOKS)
        .fetch_one(&mut *db)
        .await
        .map_err(fault)?;
        let last = get::<Option<i64>>(&look, 0)?.unwrap_or(work.cursor);
        let end = get::<i64>(&look, 1)? < LOOKS;
        let left = work.limit.map_or(i64::MAX, |limit| (limit - work.done).max(0));
        let take = i64::from(batch).min(left);
        let sql = concat!(
            "SELECT o.pk, o.dispatched_at IS NOT NULL, octet_length(o.payload_json)
               FROM {p}outbox o NOT INDEXED WHERE ",
            events_matching!(),
            " AND o.pk > ?7 AND o.pk <= ?8 ORDER BY o.pk LIMIT ?9"
        );
        let rows = bind_filter(query(self.sql.of(sql)), &work.project, work.filter.events()?)
            .bind(work.cursor)
            .bind(last)
            .bind(take)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push((get(row, 0)?, get(row, 1)?, get(row, 2)?));
        }
        let part = Part::of(&work, &found, take, last, end);
        let sql = concat!(
            "SELECT ",
            event_columns!(),
            " FROM {p}outbox o WHERE o.pk IN (SELECT value FROM json_each(?1)) ORDER BY o.pk"
        );
        let rows = query(self.sql.of(sql))
            .bind(to_json(&part.pks)?)
            .fetch_all(&mut *db)
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
        let mut tx = self.writer.begin_firm().await?;
        let unchanged = self
            .find_operation(&mut tx, work.id)
            .await?
            .is_some_and(|now| now.state == OperationState::Running && now.cursor == work.cursor);
        if !unchanged {
            return Ok(());
        }
        let now = now(&mut tx).await?;
        let wanted: Vec<_> = wanted(batch, to).into_iter().collect();
        let made = self.replay_all(&mut tx, now, &work.project, &wanted).await?;
        let counts = made.counts(part.pending);
        query(self.sql.of("UPDATE {p}operation
                SET done = done + ?2, position = ?3, deliveries = deliveries + ?4,
                    open = open + ?5, pending = pending + ?6, updated_at = ?7,
                    state = CASE WHEN ?8 THEN 'done' ELSE state END
              WHERE id = ?1"))
        .bind(work.id.to_string())
        .bind(part.seen)
        .bind(part.position)
        .bind(counts.deliveries)
        .bind(counts.open)
        .bind(counts.pending)
        .bind(now)
        .bind(part.through)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(())
    }
}
