//! Writing results: the rows that are still held, and the effects of those
//! alone, in one transaction.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use sqlx::{SqliteConnection, query};

use uuid::Uuid;

use super::{Sqlite, chains::Key, claims::Parts, fault, get, id, now, now_ms};
use crate::{
    model::{
        UnixMillis,
        attempt::Attempt,
        event::{Event, NewEvent},
        names::storable,
        outcome::FailureKind,
    },
    store::{
        Chain, Claim, End, Row, Settled, Settlement, Spill, StoreError,
        claim::{Proof, proof},
        overlay::{Needs, hold_up},
        rows::{plain, to_json, totals},
    },
};

/// Longest error text that is kept, in bytes.
const MAX_ERROR: usize = 8 << 10;

impl Sqlite {
    pub(super) async fn write_group(
        &self,
        group: &[Settlement],
        within: Duration,
    ) -> Result<Vec<Settled>, StoreError> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        let work = async {
            let mut tx = self.writer.begin().await?;
            let began = Instant::now();
            if let Some(plain) = plain(group) {
                if self.dispatch_held(&mut tx, &plain).await? {
                    let all: Vec<&Settlement> = group.iter().collect();
                    let now = now(&mut tx).await?;
                    let ring = self.write_rest(&mut tx, now, &all).await?;
                    return Ok((tx, began, (vec![Settled::Done; group.len()], ring)));
                }
                // Some are lost: one by one, it is found out which.
                tx = tx.again().await?;
            }
            let written = self.write_rows(&mut tx, group).await?;
            Ok((tx, began, written))
        };
        // The commit itself is not cut off: nobody would know what came of it.
        let (tx, began, (verdicts, ring)) = tokio::time::timeout(within, work)
            .await
            .unwrap_or_else(|late| Err(StoreError::Busy(late.into())))?;
        tx.commit().await?;
        self.settles.took(group.len(), began.elapsed());
        if ring {
            self.wake.ring();
        }
        Ok(verdicts)
    }

    /// Dispatches events in the same statement that finds out whether their
    /// claims hold. Answers whether all do; if not, the transaction is to be
    /// rolled back.
    async fn dispatch_held(
        &self,
        db: &mut SqliteConnection,
        plain: &[(i64, Uuid, &str)],
    ) -> Result<bool, StoreError> {
        let mut claims: HashMap<Uuid, BTreeMap<i64, &str>> = HashMap::new();
        for (pk, claim, result) in plain {
            claims.entry(*claim).or_default().insert(*pk, result);
        }
        for (claim, results) in claims {
            let updated = query(self.sql.of(concat!(
                "UPDATE {p}outbox
                    SET dispatched_at = ",
                now_ms!(),
                ", result_json = r.value, claim_id = NULL, claimed_until = NULL
                   FROM json_each(?1) r
                  WHERE pk = CAST(r.key AS INTEGER) AND claim_id = ?2 AND dispatched_at IS NULL"
            )))
            .bind(to_json(&results)?)
            .bind(claim.to_string())
            .execute(&mut *db)
            .await
            .map_err(fault)?
            .rows_affected();
            if updated != results.len() as u64 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers what became of each, and whether there is new work.
    async fn write_rows(
        &self,
        db: &mut SqliteConnection,
        group: &[Settlement],
    ) -> Result<(Vec<Settled>, bool), StoreError> {
        let mut held = self.still_held(db, group).await?;
        let mut verdicts: Vec<Option<Settled>> = group
            .iter()
            .map(|s| (!held.remove(&proof(&s.claim))).then_some(Settled::Lost))
            .collect();
        hold_up(group, &mut verdicts);
        let still = |verdicts: &[Option<Settled>]| -> Vec<&Settlement> {
            group.iter().zip(verdicts).filter(|(_, v)| v.is_none()).map(|(s, _)| s).collect()
        };
        let needs = Needs::of(still(&verdicts).into_iter());
        if !needs.owners.is_empty() {
            let mut overlay = self.load_state(db, &needs).await?;
            for (settlement, verdict) in group.iter().zip(&mut verdicts) {
                if verdict.is_none() {
                    *verdict = overlay.admit(settlement);
                }
            }
            self.write_state(db, &overlay).await?;
        }
        let accepted = still(&verdicts);
        let now = now(db).await?;
        self.dispatch(db, now, &accepted).await?;
        let released = self.end_deliveries(db, now, &accepted).await?;
        let emitted = self.write_rest(db, now, &accepted).await?;
        let ring = released || emitted;
        Ok((verdicts.into_iter().map(|verdict| verdict.unwrap_or(Settled::Done)).collect(), ring))
    }

    /// What comes with rows that have ended. Answers whether there is an event
    /// among it.
    async fn write_rest(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        ended: &[&Settlement],
    ) -> Result<bool, StoreError> {
        self.spill(db, now, ended).await?;
        let emitted: Vec<&NewEvent> =
            ended.iter().flat_map(|s| &s.effects).flat_map(|one| &one.effects.emitted).collect();
        if !emitted.is_empty() {
            // In the order of the calls, which is that of the pks within one
            // ordering key. No other writer could deadlock over dedup keys.
            self.insert(db, &emitted).await?;
        }
        self.keep_attempts(db, ended).await?;
        self.count(db, ended).await?;
        Ok(!emitted.is_empty())
    }

    /// The rows whose claims still hold.
    async fn still_held(
        &self,
        db: &mut SqliteConnection,
        group: &[Settlement],
    ) -> Result<HashSet<Proof>, StoreError> {
        let claims: Vec<&Claim> = group.iter().map(|s| &*s.claim).collect();
        let parts = Parts::of(&claims)?;
        let mut held = HashSet::with_capacity(group.len());
        if let Some(events) = parts.events {
            let rows = query(self.sql.of(
                "SELECT o.pk, o.claim_id FROM json_each(?1) c CROSS JOIN {p}outbox o
                  WHERE o.pk = c.value ->> 0 AND o.claim_id = c.value ->> 1
                    AND o.dispatched_at IS NULL",
            ))
            .bind(events)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            for row in &rows {
                held.insert((Row::Event(get(row, 0)?), id(row, 1)?));
            }
        }
        if let Some(deliveries) = parts.deliveries {
            let rows = query(self.sql.of(
                "SELECT d.id, d.claim_id FROM json_each(?1) c CROSS JOIN {p}delivery d
                  WHERE d.id = c.value ->> 0 AND d.claim_id = c.value ->> 1
                    AND d.state IN ('ready', 'blocked')",
            ))
            .bind(deliveries)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            for row in &rows {
                held.insert((Row::Delivery(get(row, 0)?), id(row, 1)?));
            }
        }
        Ok(held)
    }

    async fn dispatch(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let mut results = Vec::new();
        for settlement in group {
            if let (Row::Event(pk), End::Dispatched { result_json, .. }) =
                (settlement.claim.row, &settlement.end)
            {
                results.push((pk, result_json));
            }
        }
        if results.is_empty() {
            return Ok(());
        }
        query(self.sql.of("UPDATE {p}outbox
                SET dispatched_at = ?2, result_json = r.value ->> 1,
                    claim_id = NULL, claimed_until = NULL
               FROM json_each(?1) r
              WHERE pk = r.value ->> 0"))
        .bind(to_json(&results)?)
        .bind(now)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    /// Answers whether a delivery that was blocked can run now.
    async fn end_deliveries(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        group: &[&Settlement],
    ) -> Result<bool, StoreError> {
        let (mut ends, mut ended) = (Vec::new(), Vec::new());
        for settlement in group {
            let Row::Delivery(id) = settlement.claim.row else { continue };
            let (state, attempts, after_ms, error) = match &settlement.end {
                End::Dispatched { .. } => continue,
                // A delivery that ends well has made one attempt more.
                End::Done { .. } => ("done", None, 0, None),
                End::Again { attempts, after_ms, error, .. } => {
                    ("ready", Some(attempts), *after_ms, Some(error))
                }
                End::Dead { attempts, error, .. } => ("dead", Some(attempts), 0, Some(error)),
            };
            if state != "ready" {
                ended.push(id);
            }
            let (kind, error) = error_columns(error);
            ends.push((id, state, attempts, now.saturating_add(after_ms), kind, error));
        }
        if ends.is_empty() {
            return Ok(false);
        }
        query(self.sql.of("UPDATE {p}delivery
                SET state = CASE e.value ->> 1 WHEN 'ready' THEN state ELSE e.value ->> 1 END,
                    attempts = coalesce(e.value ->> 2, attempts + 1),
                    claim_id = NULL, claimed_until = NULL, claims = 0, trials = 0,
                    due_at = CASE e.value ->> 1 WHEN 'ready' THEN e.value ->> 3 ELSE due_at END,
                    ended_at = CASE e.value ->> 1 WHEN 'ready' THEN NULL ELSE ?2 END,
                    last_kind = coalesce(e.value ->> 4, last_kind),
                    last_error = coalesce(e.value ->> 5, last_error)
               FROM json_each(?1) e
              WHERE {p}delivery.id = e.value ->> 0"))
        .bind(to_json(&ends)?)
        .bind(now)
        .execute(&mut *db)
        .await
        .map_err(fault)?;
        Ok(self.release_successors(db, now, &ended).await? > 0)
    }

    async fn spill(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let spills: Vec<(&Event, &Spill)> = group
            .iter()
            .filter_map(|settlement| match &settlement.end {
                End::Dispatched { spills, .. } => Some((&*settlement.event, spills)),
                _ => None,
            })
            .flat_map(|(event, spills)| spills.iter().map(move |spill| (event, spill)))
            .collect();
        if spills.is_empty() {
            return Ok(());
        }
        let ordered = spills.iter().filter(|(_, spill)| spill.ordered && !spill.dead);
        let keys = ordered.map(|(event, spill)| key(event, spill));
        let mut waiting = self.waiting(db, Chain::Events, keys).await?;
        let mut values = Vec::with_capacity(spills.len());
        for (event, spill) in &spills {
            let state = match spill {
                Spill { dead: true, .. } => "dead",
                Spill { ordered: true, .. } if !waiting.insert(key(event, spill)) => "blocked",
                _ => "ready",
            };
            let (kind, error) = error_columns(spill.error.as_ref());
            values.push((
                event.pk,
                &spill.trigger,
                u8::from(spill.ordered),
                state,
                spill.cause.as_str(),
                spill.attempts,
                now.saturating_add(spill.after_ms),
                kind,
                error,
            ));
        }
        query(self.sql.of(
            "INSERT INTO {p}delivery (event_pk, message_id, project_id, trigger_name, resource,
                 aggregate_id, event_name, lane, chain, state, cause, attempts, due_at, last_kind,
                 last_error, created_at, ended_at, claims, trials)
             SELECT o.pk, o.message_id, o.project_id, s.value ->> 1, o.resource, o.aggregate_id,
                    o.event_name, o.lane, s.value ->> 2, s.value ->> 3, s.value ->> 4,
                    s.value ->> 5, s.value ->> 6, s.value ->> 7, s.value ->> 8, ?2,
                    CASE s.value ->> 3 WHEN 'dead' THEN ?2 END, s.value ->> 4 = 'suspect',
                    s.value ->> 4 = 'suspect'
               FROM json_each(?1) s CROSS JOIN {p}outbox o
              WHERE o.pk = s.value ->> 0
              ORDER BY s.key
                 ON CONFLICT DO NOTHING",
        ))
        .bind(to_json(&values)?)
        .bind(now)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    async fn keep_attempts(
        &self,
        db: &mut SqliteConnection,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let attempts: Vec<&Attempt> = group.iter().flat_map(|s| &s.attempts).collect();
        if attempts.is_empty() {
            return Ok(());
        }
        let mut values = Vec::with_capacity(attempts.len());
        for a in attempts {
            let logs = (!a.logs.is_empty()).then(|| to_json(&a.logs)).transpose()?;
            values.push((
                a.event_pk,
                a.message_id,
                &a.project,
                &a.trigger,
                a.number,
                &a.digest,
                a.started_at,
                signed(a.usage.duration_us),
                signed(a.usage.cpu_us),
                signed(a.usage.memory_bytes),
                a.failure.map(FailureKind::as_str),
                a.error.as_ref().map(|error| storable(error, MAX_ERROR)),
                logs,
            ));
        }
        query(self.sql.of(
            "INSERT INTO {p}attempt (event_pk, message_id, project_id, trigger_name, number, digest,
                 started_at, duration_us, cpu_us, memory_bytes, kind, error, logs_json)
             SELECT a.value ->> 0, a.value ->> 1, a.value ->> 2, a.value ->> 3, a.value ->> 4,
                    a.value ->> 5, a.value ->> 6, a.value ->> 7, a.value ->> 8, a.value ->> 9,
                    a.value ->> 10, a.value ->> 11, a.value ->> 12
               FROM json_each(?1) a ORDER BY a.key",
        ))
        .bind(to_json(&values)?)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    async fn count(
        &self,
        db: &mut SqliteConnection,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let totals = totals(group);
        if totals.is_empty() {
            return Ok(());
        }
        let totals: Vec<_> = totals
            .into_iter()
            .map(|((project, trigger), (done, failed))| (project, trigger, done, failed))
            .collect();
        query(self.sql.of(
            "INSERT INTO {p}counter AS c (project_id, trigger_name, shard, done, failed)
             SELECT t.value ->> 0, t.value ->> 1, 0, t.value ->> 2, t.value ->> 3
               FROM json_each(?1) t WHERE true
             ON CONFLICT (project_id, trigger_name, shard)
             DO UPDATE SET done = c.done + excluded.done, failed = c.failed + excluded.failed",
        ))
        .bind(to_json(&totals)?)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }
}

fn key<'a>(event: &'a Event, spill: &'a Spill) -> Key<'a> {
    (&event.project, &event.resource, &event.aggregate_id, &spill.trigger)
}

fn error_columns(error: Option<&(FailureKind, String)>) -> (Option<&'static str>, Option<String>) {
    error
        .map_or((None, None), |(kind, text)| (Some(kind.as_str()), Some(storable(text, MAX_ERROR))))
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
