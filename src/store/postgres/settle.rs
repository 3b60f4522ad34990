//! Writing results: the rows that are still held, and the effects of those
//! alone, in one transaction.

use std::{collections::HashSet, time::Duration};

use sqlx::{AssertSqlSafe, PgConnection, query};
use uuid::Uuid;

use super::{
    Postgres, Texts,
    claims::{Parts, get},
    column, fault,
    pool::Tx,
    record::insert_events,
};
use crate::{
    model::{
        attempt::Attempt,
        event::{Event, NewEvent},
        names::storable,
        outcome::FailureKind,
    },
    store::{
        Chain, Claim, End, Row, Settled, Settlement, Spill, StoreError,
        claim::{Proof, proof},
        overlay::{Needs, hold_up},
        replay::Key,
        rows::{chain_code, millis, plain, to_json},
    },
};

/// Longest error text that is kept, in bytes.
const MAX_ERROR: usize = 8 << 10;

impl Postgres {
    pub(super) async fn write_group(
        &self,
        group: &[Settlement],
        within: Duration,
    ) -> Result<Vec<Settled>, StoreError> {
        let work = async {
            let mut tx = self.begin_bounded(within).await?;
            if let Some(plain) = plain(group) {
                if self.dispatch_held(&mut tx, &plain).await? {
                    self.write_rest(&mut tx, &group.iter().collect::<Vec<_>>()).await?;
                    tx.commit().await?;
                    return Ok(vec![Settled::Done; group.len()]);
                }
                // Some are lost: one by one, it is found out which.
                tx.rollback().await?;
                tx = self.begin_bounded(within).await?;
            }
            let verdicts = self.write_rows(&mut tx, group).await?;
            tx.commit().await?;
            Ok(verdicts)
        };
        tokio::time::timeout(within, work)
            .await
            .unwrap_or_else(|late| Err(StoreError::Busy(late.into())))
    }

    /// A transaction in which a wait for a lock ends before the leases do, and
    /// which ends then too if this host is heard of no more.
    async fn begin_bounded(&self, within: Duration) -> Result<Tx, StoreError> {
        let millis = millis(within).max(1);
        let begin = format!(
            "BEGIN; SET LOCAL lock_timeout = {millis}; SET LOCAL statement_timeout = {millis};
             SET LOCAL idle_in_transaction_session_timeout = {millis}"
        );
        self.router.begin_with(AssertSqlSafe(begin)).await
    }

    /// Dispatches events in the same statement that finds out whether their
    /// claims hold. Answers whether all do; if not, the transaction is to be
    /// rolled back.
    async fn dispatch_held(
        &self,
        db: &mut PgConnection,
        plain: &[(i64, Uuid, &str)],
    ) -> Result<bool, StoreError> {
        let updated = query(self.sql.of("UPDATE {p}outbox o
                SET dispatched_at = (SELECT {p}now_ms()), result_json = r.result::json,
                    claim_id = NULL, claimed_until = NULL
               FROM unnest($1::bigint[], $2::uuid[], $3::text[]) AS r(pk, claim, result)
              WHERE o.pk = r.pk AND o.claim_id = r.claim AND o.dispatched_at IS NULL"))
        .bind(column(plain, |one| one.0))
        .bind(column(plain, |one| one.1))
        .bind(column(plain, |one| one.2) as Texts)
        .execute(db)
        .await
        .map_err(fault)?
        .rows_affected();
        Ok(updated == plain.len() as u64)
    }

    async fn write_rows(
        &self,
        db: &mut PgConnection,
        group: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        let mut held = self.lock_held(db, group).await?;
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
        self.dispatch(db, &accepted).await?;
        self.end_deliveries(db, &accepted).await?;
        self.write_rest(db, &accepted).await?;
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or(Settled::Done)).collect())
    }

    /// What comes with rows that have ended.
    async fn write_rest(
        &self,
        db: &mut PgConnection,
        ended: &[&Settlement],
    ) -> Result<(), StoreError> {
        self.spill(db, ended).await?;
        self.emit(db, ended).await?;
        self.keep_attempts(db, ended).await?;
        self.count(db, ended).await
    }

    /// Locks the rows whose claims still hold.
    async fn lock_held(
        &self,
        db: &mut PgConnection,
        group: &[Settlement],
    ) -> Result<HashSet<Proof>, StoreError> {
        let claims: Vec<&Claim> = column(group, |s| &*s.claim);
        let parts = Parts::of(&claims);
        let mut held = HashSet::with_capacity(group.len());
        if !parts.events.is_empty() {
            let rows = query(self.sql.of("SELECT o.pk, c.id
                   FROM (SELECT * FROM unnest($1::bigint[], $2::uuid[]) AS u(pk, id)
                          ORDER BY pk) c
                   JOIN {p}outbox o ON o.pk = c.pk
                  WHERE o.claim_id = c.id AND o.dispatched_at IS NULL
                    FOR NO KEY UPDATE OF o"))
            .bind(&parts.events)
            .bind(&parts.event_claims)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            for row in &rows {
                held.insert((Row::Event(get(row, 0)?), get(row, 1)?));
            }
        }
        if !parts.deliveries.is_empty() {
            let rows = query(self.sql.of("SELECT d.id, c.claim
                   FROM (SELECT * FROM unnest($1::bigint[], $2::uuid[]) AS u(id, claim)
                          ORDER BY id) c
                   JOIN {p}delivery d ON d.id = c.id
                  WHERE d.claim_id = c.claim AND d.state IN ('ready', 'blocked')
                    FOR NO KEY UPDATE OF d"))
            .bind(&parts.deliveries)
            .bind(&parts.delivery_claims)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            for row in &rows {
                held.insert((Row::Delivery(get(row, 0)?), get(row, 1)?));
            }
        }
        Ok(held)
    }

    async fn dispatch(
        &self,
        db: &mut PgConnection,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let (mut pks, mut results) = (Vec::new(), Vec::new());
        for settlement in group {
            if let (Row::Event(pk), End::Dispatched { result_json, .. }) =
                (settlement.claim.row, &settlement.end)
            {
                pks.push(pk);
                results.push(&**result_json);
            }
        }
        if pks.is_empty() {
            return Ok(());
        }
        query(self.sql.of("UPDATE {p}outbox o
                SET dispatched_at = (SELECT {p}now_ms()), result_json = r.result::json,
                    claim_id = NULL, claimed_until = NULL
               FROM unnest($1::bigint[], $2::text[]) AS r(pk, result)
              WHERE o.pk = r.pk"))
        .bind(&pks)
        .bind(&results as &Texts)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    async fn end_deliveries(
        &self,
        db: &mut PgConnection,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let mut ends = Vec::new();
        for settlement in group {
            let Row::Delivery(id) = settlement.claim.row else { continue };
            ends.push(match &settlement.end {
                End::Dispatched { .. } => continue,
                // A delivery that ends well has made one attempt more.
                End::Done { .. } => (id, "done", None, 0, None),
                End::Again { attempts, after_ms, error, .. } => {
                    (id, "ready", Some(*attempts), *after_ms, Some(error))
                }
                End::Dead { attempts, error, .. } => (id, "dead", Some(*attempts), 0, Some(error)),
            });
        }
        if ends.is_empty() {
            return Ok(());
        }
        query(self.sql.of(
            "UPDATE {p}delivery d
                SET state = CASE WHEN e.state = 'ready' THEN d.state ELSE e.state END, attempts = coalesce(e.attempts, d.attempts + 1),
                    claim_id = NULL, claimed_until = NULL, claims = 0, trials = 0,
                    due_at = CASE e.state WHEN 'ready' THEN n.ms + e.after ELSE d.due_at END,
                    ended_at = CASE e.state WHEN 'ready' THEN NULL ELSE n.ms END,
                    last_kind = coalesce(e.kind, d.last_kind),
                    last_error = coalesce(e.error, d.last_error)
               FROM unnest($1::bigint[], $2::text[], $3::int[], $4::bigint[], $5::text[], $6::text[])
                    AS e(id, state, attempts, after, kind, error),
                    (SELECT {p}now_ms() AS ms) n
              WHERE d.id = e.id",
        ))
        .bind(column(&ends, |e| e.0))
        .bind(column(&ends, |e| e.1) as Texts)
        .bind(column(&ends, |e| e.2.map(|n| i32::try_from(n).unwrap_or(i32::MAX))))
        .bind(column(&ends, |e| e.3))
        .bind(column(&ends, |e| e.4.map(|error| error.0.as_str())))
        .bind(column(&ends, |e| e.4.map(|error| storable(&error.1, MAX_ERROR))))
        .execute(&mut *db)
        .await
        .map_err(fault)?;
        let ended: Vec<i64> = ends.iter().filter(|e| e.1 != "ready").map(|e| e.0).collect();
        self.release_successors(db, &ended).await
    }

    /// After these deliveries ended: the first one that is left of each of
    /// their keys is no longer blocked. A statement of its own, so that it
    /// sees what others inserted while they waited for the ended ones' locks.
    /// Row comparisons and the whole order leave but one index to walk.
    pub(super) async fn release_successors(
        &self,
        db: &mut PgConnection,
        ended: &[i64],
    ) -> Result<(), StoreError> {
        if ended.is_empty() {
            return Ok(());
        }
        query(self.sql.of(
            "UPDATE {p}delivery d
                SET state = 'ready', due_at = greatest(d.due_at, (SELECT {p}now_ms()))
              WHERE d.state = 'blocked' AND d.id = ANY (ARRAY(
                  SELECT n.id
                    FROM (SELECT DISTINCT e.project_id, e.resource, e.aggregate_id,
                                 e.trigger_name, e.chain
                            FROM {p}delivery e WHERE e.id = ANY($1) AND e.chain > 0) k,
                         LATERAL (
                             SELECT o.id FROM {p}delivery o
                              WHERE o.state IN ('ready', 'blocked') AND o.chain > 0
                                AND (o.project_id, o.resource, o.aggregate_id, o.trigger_name, o.chain)
                                  >= (k.project_id, k.resource, k.aggregate_id, k.trigger_name, k.chain)
                                AND (o.project_id, o.resource, o.aggregate_id, o.trigger_name, o.chain)
                                  <= (k.project_id, k.resource, k.aggregate_id, k.trigger_name, k.chain)
                              ORDER BY o.project_id, o.resource, o.aggregate_id, o.trigger_name,
                                       o.chain, o.event_pk LIMIT 1) n))",
        ))
        .bind(ended)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    async fn spill(&self, db: &mut PgConnection, group: &[&Settlement]) -> Result<(), StoreError> {
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
        let open = self.lock_predecessors(db, &spills).await?;
        let mut waiting: HashSet<_> = open.iter().map(|k| (&*k.0, &*k.1, &*k.2, &*k.3)).collect();
        let mut states = Vec::with_capacity(spills.len());
        for (event, spill) in &spills {
            let key = (&*event.project, &*event.resource, &*event.aggregate_id, &*spill.trigger);
            states.push(match spill {
                Spill { dead: true, .. } => "dead",
                Spill { ordered: true, .. } if !waiting.insert(key) => "blocked",
                _ => "ready",
            });
        }
        query(self.sql.of(
            "INSERT INTO {p}delivery (event_pk, message_id, project_id, trigger_name, resource,
                 aggregate_id, event_name, lane, chain, state, cause, attempts, claims, trials,
                 due_at, last_kind, last_error, created_at, ended_at)
             SELECT s.pk, s.message, s.project, s.trigger, s.resource, s.aggregate, s.name, s.lane,
                    s.chain, s.state, s.cause, s.attempts, (s.cause = 'suspect')::int,
                    (s.cause = 'suspect')::int, n.ms + s.after, s.kind, s.error, n.ms,
                    CASE s.state WHEN 'dead' THEN n.ms END
               FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[],
                           $7::text[], $8::smallint[], $9::smallint[], $10::text[], $11::text[],
                           $12::int[], $13::bigint[], $14::text[], $15::text[])
                    AS s(pk, message, project, trigger, resource, aggregate, name, lane, chain,
                         state, cause, attempts, after, kind, error),
                    (SELECT {p}now_ms() AS ms) n
                 ON CONFLICT DO NOTHING",
        ))
        .bind(column(&spills, |s| s.0.pk))
        .bind(column(&spills, |s| s.0.message_id))
        .bind(column(&spills, |s| &*s.0.project) as Texts)
        .bind(column(&spills, |s| &*s.1.trigger) as Texts)
        .bind(column(&spills, |s| &*s.0.resource) as Texts)
        .bind(column(&spills, |s| &*s.0.aggregate_id) as Texts)
        .bind(column(&spills, |s| &*s.0.event_name) as Texts)
        .bind(column(&spills, |s| s.0.lane))
        .bind(column(&spills, |s| i16::from(s.1.ordered)))
        .bind(&states as &Texts)
        .bind(column(&spills, |s| s.1.cause.as_str()) as Texts)
        .bind(column(&spills, |s| i32::try_from(s.1.attempts).unwrap_or(i32::MAX)))
        .bind(column(&spills, |s| s.1.after_ms))
        .bind(column(&spills, |s| s.1.error.as_ref().map(|e| e.0.as_str())))
        .bind(column(&spills, |s| s.1.error.as_ref().map(|e| storable(&e.1, MAX_ERROR))))
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    /// Locks the last open delivery of each key that an ordered spill joins,
    /// and answers the keys that have one.
    async fn lock_predecessors(
        &self,
        db: &mut PgConnection,
        spills: &[(&Event, &Spill)],
    ) -> Result<Vec<(String, String, String, String)>, StoreError> {
        let keys: std::collections::BTreeSet<_> = spills
            .iter()
            .filter(|(_, spill)| spill.ordered && !spill.dead)
            .map(|(e, s)| (&*e.project, &*e.resource, &*e.aggregate_id, &*s.trigger))
            .collect();
        self.lock_last(db, &keys.into_iter().collect::<Vec<_>>(), Chain::Events).await
    }

    /// Locks the last open delivery of each of these keys in a chain, in the
    /// order of their ids, and answers the keys that have one. Whoever ends that
    /// delivery does so before, and it isn't found, or waits, and finds what
    /// joins the chain to release.
    pub(super) async fn lock_last(
        &self,
        db: &mut PgConnection,
        keys: &[Key<'_>],
        chain: Chain,
    ) -> Result<Vec<(String, String, String, String)>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        loop {
            let found = self.find_last(db, keys, chain).await?;
            let ids: Vec<i64> = found.iter().map(|(_, id)| *id).collect();
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let locked = query(self.sql.of("SELECT id FROM {p}delivery
                  WHERE id = ANY($1) AND state IN ('ready', 'blocked')
                  ORDER BY id FOR NO KEY UPDATE"))
            .bind(&ids)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            if locked.len() == ids.len() {
                return Ok(found.into_iter().map(|(key, _)| key).collect());
            }
            // One has ended meanwhile: another may be the last one now.
        }
    }

    async fn find_last(
        &self,
        db: &mut PgConnection,
        keys: &[Key<'_>],
        chain: Chain,
    ) -> Result<Vec<((String, String, String, String), i64)>, StoreError> {
        let rows = query(self.sql.of("SELECT k.project, k.resource, k.aggregate, k.trigger, p.id
               FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
                    AS k(project, resource, aggregate, trigger), LATERAL (
                 SELECT d.id FROM {p}delivery d
                  WHERE d.state IN ('ready', 'blocked') AND d.chain > 0
                    AND (d.project_id, d.resource, d.aggregate_id, d.trigger_name, d.chain)
                      >= (k.project, k.resource, k.aggregate, k.trigger, $5)
                    AND (d.project_id, d.resource, d.aggregate_id, d.trigger_name, d.chain)
                      <= (k.project, k.resource, k.aggregate, k.trigger, $5)
                  ORDER BY d.project_id DESC, d.resource DESC, d.aggregate_id DESC,
                           d.trigger_name DESC, d.chain DESC, d.event_pk DESC
                  LIMIT 1) p"))
        .bind(column(keys, |k| k.0) as Texts)
        .bind(column(keys, |k| k.1) as Texts)
        .bind(column(keys, |k| k.2) as Texts)
        .bind(column(keys, |k| k.3) as Texts)
        .bind(chain_code(chain))
        .fetch_all(db)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| Ok(((get(row, 0)?, get(row, 1)?, get(row, 2)?, get(row, 3)?), get(row, 4)?)))
            .collect()
    }

    async fn emit(&self, db: &mut PgConnection, group: &[&Settlement]) -> Result<(), StoreError> {
        let events: Vec<&NewEvent> = group
            .iter()
            .flat_map(|settlement| &settlement.effects)
            .flat_map(|one| &one.effects.emitted)
            .collect();
        if events.is_empty() {
            return Ok(());
        }
        query(self.sql.of(insert_events!()))
            .bind(column(&events, |e| e.message_id.unwrap_or_else(Uuid::now_v7)))
            .bind(column(&events, |e| &*e.project) as Texts)
            .bind(column(&events, |e| &*e.resource) as Texts)
            .bind(column(&events, |e| &*e.aggregate_id) as Texts)
            .bind(column(&events, |e| &*e.event_name) as Texts)
            .bind(column(&events, |e| i32::try_from(e.schema_version).unwrap_or(i32::MAX)))
            .bind(column(&events, |e| &*e.payload) as Texts)
            .bind(column(&events, |e| e.meta.as_deref()))
            .bind(column(&events, |e| e.dedup_key.as_deref()))
            .bind(column(&events, |e| e.available_at))
            .execute(db)
            .await
            .map_err(fault)?;
        Ok(())
    }

    async fn keep_attempts(
        &self,
        db: &mut PgConnection,
        group: &[&Settlement],
    ) -> Result<(), StoreError> {
        let attempts: Vec<&Attempt> = group.iter().flat_map(|s| &s.attempts).collect();
        if attempts.is_empty() {
            return Ok(());
        }
        let logs = attempts
            .iter()
            .map(|a| if a.logs.is_empty() { Ok(None) } else { to_json(&a.logs).map(Some) })
            .collect::<Result<Vec<_>, _>>()?;
        query(self.sql.of(
            "INSERT INTO {p}attempt (event_pk, message_id, project_id, trigger_name, number, digest,
                 started_at, duration_us, cpu_us, memory_bytes, kind, error, logs_json)
             SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::int[],
                 $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[],
                 $12::text[], $13::text[])",
        ))
        .bind(column(&attempts, |a| a.event_pk))
        .bind(column(&attempts, |a| a.message_id))
        .bind(column(&attempts, |a| &*a.project) as Texts)
        .bind(column(&attempts, |a| &*a.trigger) as Texts)
        .bind(column(&attempts, |a| i32::try_from(a.number).unwrap_or(i32::MAX)))
        .bind(column(&attempts, |a| a.digest.as_deref()))
        .bind(column(&attempts, |a| a.started_at))
        .bind(column(&attempts, |a| signed(a.usage.duration_us)))
        .bind(column(&attempts, |a| signed(a.usage.cpu_us)))
        .bind(column(&attempts, |a| signed(a.usage.memory_bytes)))
        .bind(column(&attempts, |a| a.failure.map(FailureKind::as_str)))
        .bind(column(&attempts, |a| a.error.as_ref().map(|e| storable(e, MAX_ERROR))))
        .bind(logs)
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }

    /// Adds to the totals, in sorted order, each host mostly to a shard of its
    /// own.
    async fn count(&self, db: &mut PgConnection, group: &[&Settlement]) -> Result<(), StoreError> {
        let totals = crate::store::rows::totals(group);
        let totals: Vec<_> = totals.iter().collect();
        query(self.sql.of(
            "INSERT INTO {p}counter AS c (project_id, trigger_name, shard, done, failed)
             SELECT t.project, t.trigger, pg_backend_pid() % 16, t.done, t.failed
               FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
                    AS t(project, trigger, done, failed)
             ON CONFLICT (project_id, trigger_name, shard)
             DO UPDATE SET done = c.done + excluded.done, failed = c.failed + excluded.failed",
        ))
        .bind(column(&totals, |t| t.0.0) as Texts)
        .bind(column(&totals, |t| t.0.1) as Texts)
        .bind(column(&totals, |t| t.1.0))
        .bind(column(&totals, |t| t.1.1))
        .execute(db)
        .await
        .map_err(fault)?;
        Ok(())
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
