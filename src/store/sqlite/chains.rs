//! Deliveries of one trigger and ordering key, one behind the other.

use std::collections::{HashMap, HashSet};

use sqlx::{SqliteConnection, query};

use super::{Sqlite, fault, get, text};
use crate::{
    model::{UnixMillis, event::Event},
    store::{
        Chain, StoreError,
        rows::{chain_code, to_json},
    },
};

pub(super) use crate::store::replay::Key;

/// For each claimed event, the triggers that have an open delivery of its key.
pub(super) struct Open {
    /// Which key each event has, as an index into the triggers.
    keys: Vec<usize>,
    triggers: HashMap<usize, Vec<String>>,
}

impl Open {
    /// The triggers of the event at this place.
    pub(super) fn take(&mut self, at: usize) -> Vec<String> {
        let key = self.keys.get(at).copied().unwrap_or(usize::MAX);
        self.triggers.get(&key).cloned().unwrap_or_default()
    }
}

impl Sqlite {
    pub(super) async fn open_triggers(
        &self,
        db: &mut SqliteConnection,
        events: impl Iterator<Item = &Event>,
    ) -> Result<Open, StoreError> {
        let mut open = Open { keys: Vec::new(), triggers: HashMap::new() };
        let events: Vec<&Event> = events.collect();
        let mut kinds: Vec<(&str, &str)> = Vec::new();
        for event in &events {
            let kind = (&*event.project, &*event.resource);
            // A claim has few, and the last one is the likeliest.
            if !kinds.iter().rev().any(|known| *known == kind) {
                kinds.push(kind);
            }
        }
        // Most of the time no key at all has one, or only those of others.
        let rows = query(self.sql.of("SELECT k.key FROM json_each(?1) k
              WHERE EXISTS (SELECT 1 FROM {p}delivery d INDEXED BY {p}delivery_run
                             WHERE d.project_id = k.value ->> 0 AND d.resource = k.value ->> 1
                               AND d.state IN ('ready', 'blocked') AND d.chain > 0)"))
        .bind(to_json(&kinds)?)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut some: HashSet<&(&str, &str)> = HashSet::new();
        for row in &rows {
            let place = usize::try_from(get::<i64>(row, 0)?).unwrap_or(usize::MAX);
            some.extend(kinds.get(place));
        }
        if some.is_empty() {
            return Ok(open);
        }
        let mut places = HashMap::new();
        let mut keys = Vec::new();
        for event in events {
            if !some.contains(&(&*event.project, &*event.resource)) {
                open.keys.push(usize::MAX);
                continue;
            }
            let key = (&*event.project, &*event.resource, &*event.aggregate_id);
            let place = *places.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len() - 1
            });
            open.keys.push(place);
        }
        // From trigger to trigger, however many deliveries one of them has.
        let rows =
            query(self.sql.of("WITH RECURSIVE t(place, project, resource, aggregate, name) AS (
                 SELECT k.key, k.value ->> 0, k.value ->> 1, k.value ->> 2, '' FROM json_each(?1) k
                 UNION ALL
                 SELECT t.place, t.project, t.resource, t.aggregate, (
                     SELECT d.trigger_name FROM {p}delivery d INDEXED BY {p}delivery_run
                      WHERE d.project_id = t.project AND d.resource = t.resource
                        AND d.aggregate_id = t.aggregate AND d.trigger_name > t.name
                        AND d.chain = 1 AND d.state IN ('ready', 'blocked') AND d.chain > 0
                      ORDER BY d.trigger_name LIMIT 1)
                   FROM t WHERE t.name IS NOT NULL)
             SELECT place, name FROM t WHERE name <> ''"))
            .bind(to_json(&keys)?)
            .fetch_all(db)
            .await
            .map_err(fault)?;
        for row in &rows {
            let place = usize::try_from(get::<i64>(row, 0)?).unwrap_or(usize::MAX);
            open.triggers.entry(place).or_default().push(text(row, 1)?);
        }
        Ok(open)
    }

    /// Which of these keys have an open delivery in this chain.
    pub(super) async fn waiting<'a>(
        &self,
        db: &mut SqliteConnection,
        chain: Chain,
        keys: impl Iterator<Item = Key<'a>>,
    ) -> Result<HashSet<Key<'a>>, StoreError> {
        let keys: HashSet<Key<'a>> = keys.collect();
        if keys.is_empty() {
            return Ok(keys);
        }
        let keys: Vec<Key<'a>> = keys.into_iter().collect();
        let rows = query(self.sql.of("SELECT k.key FROM json_each(?1) k WHERE EXISTS (
                 SELECT 1 FROM {p}delivery d INDEXED BY {p}delivery_run
                  WHERE d.project_id = k.value ->> 0 AND d.resource = k.value ->> 1
                    AND d.aggregate_id = k.value ->> 2 AND d.trigger_name = k.value ->> 3
                    AND d.chain = ?2 AND d.state IN ('ready', 'blocked') AND d.chain > 0)"))
        .bind(to_json(&keys)?)
        .bind(chain_code(chain))
        .fetch_all(db)
        .await
        .map_err(fault)?;
        let mut waiting = HashSet::with_capacity(rows.len());
        for row in &rows {
            let place = usize::try_from(get::<i64>(row, 0)?).unwrap_or(usize::MAX);
            waiting.extend(keys.get(place).copied());
        }
        Ok(waiting)
    }

    /// After these deliveries, which were not blocked, ended: the first one
    /// that is left of each of their keys no longer waits. Answers how many.
    pub(super) async fn release_successors(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        ended: &[i64],
    ) -> Result<u64, StoreError> {
        if ended.is_empty() {
            return Ok(0);
        }
        let released =
            query(self.sql.of("UPDATE {p}delivery SET state = 'ready', due_at = max(due_at, ?2)
              WHERE state = 'blocked' AND id IN (
                  SELECT (SELECT o.id FROM {p}delivery o INDEXED BY {p}delivery_run
                           WHERE o.project_id = e.project_id AND o.resource = e.resource
                             AND o.aggregate_id = e.aggregate_id
                             AND o.trigger_name = e.trigger_name AND o.chain = e.chain
                             AND o.state IN ('ready', 'blocked') AND o.chain > 0
                           ORDER BY o.event_pk, o.id LIMIT 1)
                    FROM {p}delivery e
                   WHERE e.id IN (SELECT value FROM json_each(?1)) AND e.chain > 0)"))
            .bind(to_json(&ended)?)
            .bind(now)
            .execute(db)
            .await
            .map_err(fault)?;
        Ok(released.rows_affected())
    }

    /// Gives dead letters new attempts, but for those whose event is being
    /// delivered to their trigger again already. They are ordered among
    /// themselves, and block nothing newer. Answers how many there are.
    pub(super) async fn requeue_all(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        ids: &[i64],
    ) -> Result<u64, StoreError> {
        let rows = query(self.sql.of(
            "SELECT d.id, d.project_id, d.resource, d.aggregate_id, d.trigger_name, d.chain,
                    d.event_pk
               FROM {p}delivery d
              WHERE d.id IN (SELECT value FROM json_each(?1)) AND d.state = 'dead'
                AND NOT EXISTS (SELECT 1 FROM {p}delivery o
                                 WHERE o.event_pk = d.event_pk AND o.trigger_name = d.trigger_name
                                   AND o.state IN ('ready', 'blocked'))
              ORDER BY d.event_pk, d.generation",
        ))
        .bind(to_json(&ids)?)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        let mut letters = Vec::with_capacity(rows.len());
        let mut pairs = HashSet::with_capacity(rows.len());
        for row in &rows {
            // Of two letters of one pair, the older one goes first.
            if !pairs.insert((get::<i64>(row, 6)?, text(row, 4)?)) {
                continue;
            }
            let key = (text(row, 1)?, text(row, 2)?, text(row, 3)?, text(row, 4)?);
            letters.push((get::<i64>(row, 0)?, key, get::<i64>(row, 5)? > 0));
        }
        let ordered = letters.iter().filter(|letter| letter.2).map(|letter| key(&letter.1));
        let mut waiting = self.waiting(db, Chain::Redriven, ordered).await?;
        let states: Vec<_> = letters
            .iter()
            .map(|(id, of, ordered)| {
                // The first of each key runs, unless one is open already.
                let blocked = *ordered && !waiting.insert(key(of));
                (id, if blocked { "blocked" } else { "ready" })
            })
            .collect();
        let requeued = query(self.sql.of("UPDATE {p}delivery
                SET state = r.value ->> 1, chain = CASE chain WHEN 0 THEN 0 ELSE 2 END,
                    attempts = 0, claims = last_kind IS 'hostDeath', trials = 0, due_at = ?2, ended_at = NULL
               FROM json_each(?1) r
              WHERE {p}delivery.id = r.value ->> 0"))
        .bind(to_json(&states)?)
        .bind(now)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(requeued.rows_affected())
    }
}

fn key(columns: &(String, String, String, String)) -> Key<'_> {
    (&columns.0, &columns.1, &columns.2, &columns.3)
}
