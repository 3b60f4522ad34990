//! Outbox rows: recorded, read and listed.

use std::collections::HashMap;

use serde::Deserialize;
use sqlx::{SqliteConnection, query, sqlite::SqliteRow};
use uuid::Uuid;

use super::{Sqlite, count, fault, get, id, maybe_text, now, paged, text};
use crate::{
    model::{
        Lane,
        event::{Event, NewEvent},
    },
    store::{
        EventFilter, EventRow, EventStatus, Page, PageRequest, Recorded, StoreError, rows::to_json,
    },
};

/// The columns of [`event`], of a table called `o`.
macro_rules! event_columns {
    () => {
        "o.pk, o.message_id, o.project_id, o.resource, o.aggregate_id, o.event_name, \
         o.schema_version, o.payload_json, o.meta_json, o.dedup_key, o.created_at, \
         o.available_at, o.lane"
    };
}
pub(super) use event_columns;

/// How many columns [`event_columns`] has.
pub(super) const EVENT_COLUMNS: usize = 13;

/// What [`Gathered`] is made of. An id may have been written as a blob, which
/// JSON can't hold; other columns are checked to be text.
macro_rules! gathered_columns {
    () => {
        "o.pk, CAST(o.message_id AS TEXT), o.project_id, o.resource, o.aggregate_id, \
         o.event_name, o.schema_version, o.payload_json, o.meta_json, o.dedup_key, o.created_at, \
         o.available_at, o.lane, o.claims, o.trials"
    };
}
pub(super) use gathered_columns;

/// Where a row of `o` stands at `?1`.
macro_rules! standing {
    () => {
        "CASE WHEN o.dispatched_at IS NOT NULL THEN 'dispatched'
              WHEN o.claim_id IS NOT NULL AND o.claimed_until >= ?1 THEN 'claimed'
              WHEN o.available_at > ?1 THEN 'scheduled'
              ELSE 'pending' END"
    };
}

/// The start of a query for [`event_row`]s.
macro_rules! event_rows {
    () => {
        concat!(
            "SELECT ",
            event_columns!(),
            ", o.claims, o.dispatched_at, o.result_json, ",
            standing!(),
            " FROM {p}outbox o "
        )
    };
}

pub(super) use event_rows;
pub(super) use standing;

/// What [`Sqlite::event_page`] filters and orders by.
macro_rules! wanted {
    () => {
        concat!(
            " o.project_id = ?2 AND o.pk < ?3
              AND (?4 IS NULL OR o.resource = ?4)
              AND (?5 IS NULL OR o.aggregate_id = ?5)
              AND (?6 IS NULL OR o.event_name = ?6)
              AND (?7 IS NULL OR o.created_at >= ?7)
              AND (?8 IS NULL OR o.created_at < ?8)
              AND (?9 IS NULL OR ?9 = ",
            standing!(),
            ") ORDER BY o.pk DESC LIMIT ?10"
        )
    };
}

impl Sqlite {
    pub(super) async fn insert_events(
        &self,
        events: &[NewEvent],
    ) -> Result<Vec<Recorded>, StoreError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.writer.begin_firm().await?;
        let events: Vec<&NewEvent> = events.iter().collect();
        let (ids, mut new) = self.insert(&mut tx, &events).await?;
        let lost: Vec<_> = events
            .iter()
            .zip(&ids)
            .filter(|(_, id)| !new.contains_key(*id))
            .map(|(event, id)| (&event.project, event.dedup_key.as_deref(), id))
            .collect();
        let mut first = self.first_of(&mut tx, &lost).await?.into_iter();
        let mut recorded = Vec::with_capacity(ids.len());
        for message_id in ids {
            recorded.push(match new.remove(&message_id) {
                Some(created_at) => Recorded::New { message_id, created_at },
                None => first.next().ok_or_else(|| {
                    StoreError::Refused("an event was neither recorded nor found".into())
                })?,
            });
        }
        tx.commit().await?;
        self.wake.ring();
        Ok(recorded)
    }

    /// Inserts events in order; one whose dedup key or message id is there
    /// already is left out. Answers the ids of all, and when those that are
    /// new were created.
    pub(super) async fn insert(
        &self,
        db: &mut SqliteConnection,
        events: &[&NewEvent],
    ) -> Result<(Vec<Uuid>, HashMap<Uuid, i64>), StoreError> {
        let ids: Vec<Uuid> =
            events.iter().map(|e| e.message_id.unwrap_or_else(Uuid::now_v7)).collect();
        let values: Vec<_> = events
            .iter()
            .zip(&ids)
            .map(|(e, id)| {
                (
                    id,
                    &e.project,
                    &e.resource,
                    &e.aggregate_id,
                    &e.event_name,
                    e.schema_version,
                    &e.payload,
                    &e.meta,
                    &e.dedup_key,
                    e.available_at,
                )
            })
            .collect();
        // `WHERE true` keeps the parser from taking ON for a join's.
        let rows = query(self.sql.of(
            "INSERT INTO {p}outbox (message_id, project_id, resource, aggregate_id, event_name,
                 schema_version, payload_json, meta_json, dedup_key, available_at)
             SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4,
                    e.value ->> 5, e.value ->> 6, e.value ->> 7, e.value ->> 8, e.value ->> 9
               FROM json_each(?1) e WHERE true ORDER BY e.key
                 ON CONFLICT DO NOTHING
             RETURNING message_id, created_at",
        ))
        .bind(to_json(&values)?)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        let mut new = HashMap::with_capacity(rows.len());
        for row in &rows {
            new.insert(id(row, 0)?, get(row, 1)?);
        }
        Ok((ids, new))
    }

    /// The events that were there first, in the order of `lost`.
    async fn first_of(
        &self,
        db: &mut SqliteConnection,
        lost: &[(&String, Option<&str>, &Uuid)],
    ) -> Result<Vec<Recorded>, StoreError> {
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        let rows = query(self.sql.of("SELECT o.message_id, o.created_at
               FROM json_each(?1) e CROSS JOIN {p}outbox o
              WHERE o.pk = coalesce(
                    (SELECT k.pk FROM {p}outbox k
                      WHERE k.project_id = e.value ->> 0 AND k.dedup_key = e.value ->> 1
                        AND k.dedup_key <> ''),
                    (SELECT m.pk FROM {p}outbox m WHERE m.message_id = e.value ->> 2))
              ORDER BY e.key"))
        .bind(to_json(&lost)?)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| {
                Ok(Recorded::Duplicate { message_id: id(row, 0)?, created_at: get(row, 1)? })
            })
            .collect()
    }

    pub(super) async fn one_event(
        &self,
        project: &str,
        message_id: Uuid,
    ) -> Result<Option<EventRow>, StoreError> {
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let now = now(&mut db).await?;
        let sql = concat!(event_rows!(), "WHERE o.message_id = ?2 AND o.project_id = ?3");
        let row = query(self.sql.of(sql))
            .bind(now)
            .bind(message_id.to_string())
            .bind(project)
            .fetch_optional(&mut *db)
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
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let now = now(&mut db).await?;
        // Each way of asking has the index that finds few rows among millions.
        let sql = match filter {
            EventFilter { dedup_key: Some(_), .. } => concat!(
                event_rows!(),
                "WHERE o.dedup_key = ?11 AND o.dedup_key <> '' AND ",
                wanted!()
            ),
            EventFilter { status: None | Some(EventStatus::Dispatched), .. } => {
                concat!(event_rows!(), "NOT INDEXED WHERE ?11 IS NULL AND ", wanted!())
            }
            _ => concat!(
                event_rows!(),
                "WHERE ?11 IS NULL AND o.pk IN (
                     SELECT pk FROM (
                         SELECT o.pk FROM {p}outbox o INDEXED BY {p}outbox_due
                          WHERE o.lane = 0 AND o.dispatched_at IS NULL AND o.available_at IS NULL
                            AND ",
                wanted!(),
                ") UNION ALL SELECT pk FROM (
                         SELECT o.pk FROM {p}outbox o INDEXED BY {p}outbox_scheduled
                          WHERE o.lane = 0 AND o.dispatched_at IS NULL
                            AND o.available_at IS NOT NULL AND ",
                wanted!(),
                ")) ORDER BY o.pk DESC LIMIT ?10"
            ),
        };
        let status = filter.status.map(|status| match status {
            EventStatus::Pending => "pending",
            EventStatus::Claimed => "claimed",
            EventStatus::Scheduled => "scheduled",
            EventStatus::Dispatched => "dispatched",
        });
        let rows = query(self.sql.of(sql))
            .bind(now)
            .bind(project)
            .bind(page.cursor.unwrap_or(i64::MAX))
            .bind(filter.resource.as_deref())
            .bind(filter.aggregate_id.as_deref())
            .bind(filter.event_name.as_deref())
            .bind(page.since)
            .bind(page.until)
            .bind(status)
            .bind(i64::from(page.limit))
            .bind(filter.dedup_key.as_deref())
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
        let items = rows.iter().map(event_row).collect::<Result<Vec<_>, _>>()?;
        Ok(paged(items, page, |row| row.event.pk))
    }
}

/// The event in a row of [`event_columns`].
pub(super) fn event(row: &SqliteRow) -> Result<Event, StoreError> {
    Ok(Event {
        pk: get(row, 0)?,
        message_id: id(row, 1)?,
        project: text(row, 2)?,
        resource: text(row, 3)?,
        aggregate_id: text(row, 4)?,
        event_name: text(row, 5)?,
        schema_version: count(row, 6)?,
        payload: text(row, 7)?,
        meta: maybe_text(row, 8)?,
        dedup_key: maybe_text(row, 9)?,
        created_at: get(row, 10)?,
        available_at: get(row, 11)?,
        lane: get(row, 12)?,
    })
}

/// A claimed event as one of an array in JSON.
#[derive(Deserialize)]
pub(super) struct Gathered(
    i64,
    Uuid,
    String,
    String,
    String,
    String,
    u32,
    String,
    Option<String>,
    Option<String>,
    i64,
    Option<i64>,
    Lane,
    u32,
    u32,
);

impl Gathered {
    /// The event, how often it was claimed, and its trials.
    pub(super) fn event(self) -> (Event, (u32, u32)) {
        let event = Event {
            pk: self.0,
            message_id: self.1,
            project: self.2,
            resource: self.3,
            aggregate_id: self.4,
            event_name: self.5,
            schema_version: self.6,
            payload: self.7,
            meta: self.8,
            dedup_key: self.9,
            created_at: self.10,
            available_at: self.11,
            lane: self.12,
        };
        (event, (self.13, self.14))
    }
}

pub(super) fn event_row(row: &SqliteRow) -> Result<EventRow, StoreError> {
    Ok(EventRow {
        event: event(row)?,
        status: match get::<&str>(row, EVENT_COLUMNS + 3)? {
            "dispatched" => EventStatus::Dispatched,
            "claimed" => EventStatus::Claimed,
            "scheduled" => EventStatus::Scheduled,
            _ => EventStatus::Pending,
        },
        claims: count(row, EVENT_COLUMNS)?,
        dispatched_at: get(row, EVENT_COLUMNS + 1)?,
        result: maybe_text(row, EVENT_COLUMNS + 2)?,
    })
}
