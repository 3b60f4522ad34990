//! Claiming events and deliveries, and giving claims back.

use std::{collections::HashMap, time::Duration};

use sqlx::{Row as _, postgres::PgRow, query};
use uuid::Uuid;

use super::{Postgres, Texts, column, fault};
use crate::{
    model::{Lane, event::Event},
    store::{
        Claim, Claimed, ClaimedDelivery, ClaimedEvent, Held, Horizon, HostId, Row, Seam,
        StoreError,
        claim::proof,
        rows::{chain_of, millis},
    },
};

/// The columns of [`event`], of a table called `o`.
macro_rules! event_columns {
    () => {
        "o.pk, o.message_id, o.project_id, o.resource, o.aggregate_id, o.event_name, \
         o.schema_version, o.payload_json::text AS payload, o.meta_json::text AS meta, \
         o.dedup_key, o.created_at, o.available_at, o.lane"
    };
}
pub(super) use event_columns;

/// What a payload takes when it is read, of an outbox called `o`, however
/// well it is compressed.
macro_rules! payload_bytes {
    () => {
        "CASE WHEN pg_column_compression(o.payload_json) IS NULL THEN pg_column_size(o.payload_json)
              ELSE octet_length(o.payload_json::text) END"
    };
}

/// The clock, and a claim's [`Horizon`]: what it sees of other transactions,
/// and its own number.
macro_rules! now {
    () => {
        "now AS MATERIALIZED (
             SELECT {p}now_ms() AS ms, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS ended,
                    pg_current_xact_id()::text::bigint AS begun)"
    };
}

/// Names of triggers with an open delivery of the row's key. Most of the time
/// no key has one, and the first test, which runs once a statement, says so.
macro_rules! open_triggers {
    () => {
        "CASE WHEN (SELECT EXISTS (SELECT FROM {p}delivery d
                     WHERE d.state IN ('ready', 'blocked') AND d.chain > 0))
               AND EXISTS (SELECT FROM {p}delivery d
                     WHERE d.project_id = o.project_id AND d.resource = o.resource
                       AND d.aggregate_id = o.aggregate_id AND d.chain = 1
                       AND d.state IN ('ready', 'blocked'))
         THEN ARRAY(
             WITH RECURSIVE t AS (
                 (SELECT d.trigger_name FROM {p}delivery d
                   WHERE d.project_id = o.project_id AND d.resource = o.resource
                     AND d.aggregate_id = o.aggregate_id AND d.chain = 1
                     AND d.state IN ('ready', 'blocked')
                   ORDER BY d.trigger_name LIMIT 1)
                 UNION ALL
                 SELECT (SELECT d.trigger_name FROM {p}delivery d
                          WHERE d.project_id = o.project_id AND d.resource = o.resource
                            AND d.aggregate_id = o.aggregate_id AND d.chain = 1
                            AND d.state IN ('ready', 'blocked')
                            AND d.trigger_name > t.trigger_name
                          ORDER BY d.trigger_name LIMIT 1)
                   FROM t WHERE t.trigger_name IS NOT NULL)
             SELECT t.trigger_name FROM t WHERE t.trigger_name IS NOT NULL)
         ELSE ARRAY[]::text[] END AS open"
    };
}

/// Claims deliveries and their events: `$1` the host, `$2` lanes, `$3` to `$5`
/// projects, triggers and how many of each, `$6` the claim, `$7` its lease,
/// `$8` how many behind each, `$9` bytes.
///
/// - `picked` are heads that are due.
/// - `run` is what each head blocks, as far as nothing in between is held.
/// - `chosen` is as much of both as fits, heads first.
macro_rules! claim_deliveries {
    () => {
        concat!(
            "WITH now AS MATERIALIZED (SELECT {p}now_ms() AS ms),
             held AS MATERIALIZED (
                 SELECT lane FROM {p}lane WHERE holder = $1 AND lane = ANY($2)
                  ORDER BY lane FOR KEY SHARE),
             picked AS MATERIALIZED (
                 SELECT one.id FROM unnest($3::text[], $4::text[], $5::bigint[])
                        AS t(project, trigger, cap), LATERAL (
                     SELECT r.id FROM held h, LATERAL (
                         SELECT d.id, d.due_at FROM {p}delivery d
                          WHERE d.state = 'ready' AND d.project_id = t.project
                            AND d.trigger_name = t.trigger AND d.lane = h.lane
                            AND d.due_at <= (SELECT ms FROM now)
                            AND (d.claim_id IS NULL OR d.claimed_until < (SELECT ms FROM now))
                          ORDER BY d.lane, d.due_at, d.id LIMIT t.cap) r
                      ORDER BY r.due_at, r.id LIMIT t.cap) one),
             head AS MATERIALIZED (
                 SELECT d.* FROM {p}delivery d
                  WHERE d.id = ANY (ARRAY(SELECT id FROM picked))
                    AND d.chain > 0 AND d.attempts = 0 AND $8 > 0),
             run AS MATERIALIZED (
                 SELECT behind.id, h.id AS head, behind.place FROM head h, LATERAL (
                     SELECT w.id, row_number() OVER line AS place, first_value(w.id) OVER line = h.id AND bool_and(
                                w.id = h.id OR w.state = 'blocked' AND w.free) OVER line AS follows
                       FROM (SELECT d.id, d.event_pk, d.state, d.claim_id IS NULL
                                    OR d.claimed_until < (SELECT ms FROM now) AS free
                               FROM {p}delivery d
                              WHERE d.state IN ('ready', 'blocked') AND d.chain > 0
                                AND (d.project_id, d.resource, d.aggregate_id, d.trigger_name, d.chain)
                                  >= (h.project_id, h.resource, h.aggregate_id, h.trigger_name, h.chain)
                                AND (d.project_id, d.resource, d.aggregate_id, d.trigger_name, d.chain)
                                  <= (h.project_id, h.resource, h.aggregate_id, h.trigger_name, h.chain)
                              ORDER BY d.project_id, d.resource, d.aggregate_id, d.trigger_name,
                                       d.chain, d.event_pk LIMIT $8 + 1) w
                     WINDOW line AS (ORDER BY w.event_pk)) behind
                  WHERE behind.follows AND behind.id <> h.id),
             chosen AS MATERIALIZED (
                 SELECT b.id FROM (
                     SELECT c.id, row_number() OVER heads_first AS place, sum(coalesce(", payload_bytes!(), ", 0)) OVER heads_first AS bytes
                       FROM (SELECT id, 0 AS behind, 0 AS head, 0 AS place FROM picked
                             UNION ALL SELECT id, 1, head, place FROM run) c
                       JOIN {p}delivery d USING (id) LEFT JOIN {p}outbox o ON o.pk = d.event_pk
                     WINDOW heads_first AS (
                         ORDER BY c.behind, c.head, c.place, c.id ROWS UNBOUNDED PRECEDING)) b
                  WHERE b.place = 1 OR b.bytes <= $9),
             taken AS (
                 UPDATE {p}delivery d
                    SET claim_id = $6, claimed_until = (SELECT ms FROM now) + $7,
                        claims = d.claims + 1
                  WHERE d.id = ANY (ARRAY(SELECT id FROM chosen))
                    AND d.state IN ('ready', 'blocked')
                    AND (d.claim_id IS NULL OR d.claimed_until < (SELECT ms FROM now))
                 RETURNING d.id, d.event_pk, d.trigger_name, d.attempts, d.generation, d.claims,
                           d.trials, d.chain)
             SELECT ",
            event_columns!(),
            ", t.claims, (SELECT ms FROM now) AS now, t.id AS delivery, t.trigger_name,
               t.attempts, t.generation, t.trials, t.chain, t.event_pk
             FROM taken t LEFT JOIN {p}outbox o ON o.pk = t.event_pk"
        )
    };
}

impl Postgres {
    pub(super) async fn take_events(
        &self,
        host: HostId,
        seams: &[Seam],
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        let id = Uuid::new_v4();
        // - `held` locks the lanes against being taken over meanwhile: a
        //   take-over waits for this claim and clears it, or comes first and
        //   leaves nothing to claim here.
        // - Row comparisons on the index's three columns leave the planner no
        //   other index that yields the order.
        // - The outer UPDATE looks at each row again, and takes an array, so
        //   that no plan can run the LIMIT twice.
        let rows = query(self.sql.of(concat!(
            "WITH ",
            now!(),
            ",
             held AS MATERIALIZED (
                 SELECT lane FROM {p}lane WHERE holder = $1 AND lane = ANY($2)
                  ORDER BY lane FOR KEY SHARE),
             picked AS MATERIALIZED (
                 SELECT r.pk, s.lane, s.project, r.bytes
                   FROM unnest($2::smallint[], $3::text[], $4::bigint[], $5::bigint[])
                        AS s(lane, project, above, cap)
                   JOIN held USING (lane), LATERAL (
                     SELECT o.pk, ",
            payload_bytes!(),
            " AS bytes FROM {p}outbox o
                      WHERE o.dispatched_at IS NULL AND o.available_at IS NULL
                        AND (o.lane, o.project_id, o.pk) > (s.lane, s.project, s.above)
                        AND (o.lane, o.project_id, o.pk) <= (s.lane, s.project, 9223372036854775807)
                        AND (o.claim_id IS NULL OR o.claimed_until < (SELECT ms FROM now))
                      ORDER BY o.lane, o.project_id, o.pk LIMIT s.cap) r),
             total AS MATERIALIZED (SELECT coalesce(sum(bytes), 0) <= $8 AS fits FROM picked),
             parts AS MATERIALIZED (
                 -- One of each seam, then the second of each, as far as they fit.
                 SELECT f.pk FROM (
                     SELECT n.pk, row_number() OVER fair AS place, sum(n.bytes) OVER fair AS bytes
                       FROM (SELECT p.*, row_number() OVER (
                                        PARTITION BY p.lane, p.project ORDER BY p.pk) AS nth
                               FROM picked p WHERE NOT (SELECT fits FROM total)) n
                     WINDOW fair AS (ORDER BY n.nth, n.lane, n.project ROWS UNBOUNDED PRECEDING)) f
                  WHERE f.bytes <= $8 OR f.place = 1)
             UPDATE {p}outbox o
                SET claim_id = $6, claimed_until = (SELECT ms FROM now) + $7, claims = o.claims + 1
              WHERE o.pk = ANY (ARRAY(SELECT pk FROM picked WHERE (SELECT fits FROM total)
                                      UNION ALL SELECT pk FROM parts))
                AND o.dispatched_at IS NULL
                AND (o.claim_id IS NULL OR o.claimed_until < (SELECT ms FROM now))
             RETURNING ",
            event_columns!(),
            ", o.claims, o.trials, (SELECT ms FROM now) AS now, (SELECT ended FROM now) AS ended, \
               (SELECT begun FROM now) AS begun, NOT (SELECT fits FROM total) AS cut, ",
            open_triggers!()
        )))
        .bind(host.0)
        .bind(column(seams, |s| s.lane))
        .bind(column(seams, |s| &*s.project) as Texts)
        .bind(column(seams, |s| s.above))
        .bind(column(seams, |s| i64::from(s.limit)))
        .bind(id)
        .bind(millis(lease))
        .bind(signed(bytes))
        .fetch_all(&mut *self.claims.lent().await?)
        .await
        .map_err(fault)?;
        claimed_events(id, &rows)
    }

    pub(super) async fn take_scheduled(
        &self,
        host: HostId,
        lanes: &[Lane],
        projects: &[String],
        limit: u32,
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        let id = Uuid::new_v4();
        let rows = query(self.sql.of(concat!(
            "WITH ",
            now!(),
            ",
             held AS MATERIALIZED (
                 SELECT lane FROM {p}lane WHERE holder = $1 AND lane = ANY($2)
                  ORDER BY lane FOR KEY SHARE),
             picked AS MATERIALIZED (
                 SELECT b.pk, b.place FROM (
                 SELECT r.pk, row_number() OVER due AS place, sum(r.bytes) OVER due AS bytes
                   FROM held h, LATERAL (
                     SELECT o.pk, o.available_at, ",
            payload_bytes!(),
            " AS bytes FROM {p}outbox o
                      WHERE o.lane = h.lane AND o.dispatched_at IS NULL
                        AND o.available_at <= (SELECT ms FROM now)
                        AND o.project_id = ANY($3)
                        AND (o.claim_id IS NULL OR o.claimed_until < (SELECT ms FROM now))
                      ORDER BY o.lane, o.available_at, o.pk LIMIT $4) r
                 WINDOW due AS (ORDER BY r.available_at, r.pk ROWS UNBOUNDED PRECEDING)) b
                  WHERE b.place = 1 OR b.place <= $4 AND b.bytes <= $7)
             UPDATE {p}outbox o
                SET claim_id = $5, claimed_until = (SELECT ms FROM now) + $6, claims = o.claims + 1
              WHERE o.pk = ANY (ARRAY(SELECT pk FROM picked))
                AND o.dispatched_at IS NULL
                AND (o.claim_id IS NULL OR o.claimed_until < (SELECT ms FROM now))
             RETURNING ",
            event_columns!(),
            ", o.claims, o.trials, (SELECT ms FROM now) AS now, (SELECT ended FROM now) AS ended, \
               (SELECT begun FROM now) AS begun, false AS cut, ",
            open_triggers!()
        )))
        .bind(host.0)
        .bind(lanes)
        .bind(projects)
        .bind(i64::from(limit))
        .bind(id)
        .bind(millis(lease))
        .bind(signed(bytes))
        .fetch_all(&mut *self.claims.lent().await?)
        .await
        .map_err(fault)?;
        claimed_events(id, &rows)
    }

    pub(super) async fn take_deliveries(
        &self,
        host: HostId,
        lanes: &[Lane],
        triggers: &[(String, String, u32)],
        run: u32,
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedDelivery>, StoreError> {
        let id = Uuid::new_v4();
        let rows = query(self.sql.of(claim_deliveries!()))
            .bind(host.0)
            .bind(lanes)
            .bind(column(triggers, |t| &*t.0) as Texts)
            .bind(column(triggers, |t| &*t.1) as Texts)
            .bind(column(triggers, |t| i64::from(t.2)))
            .bind(id)
            .bind(millis(lease))
            .bind(i64::from(run))
            .bind(signed(bytes))
            .fetch_all(&mut *self.claims.lent().await?)
            .await
            .map_err(fault)?;
        let mut claimed = Claimed {
            rows: Vec::with_capacity(rows.len()),
            now: 0,
            horizon: Horizon::default(),
            cut: false,
        };
        let mut orphans = Vec::new();
        for row in &rows {
            claimed.now = named(row, "now")?;
            let delivery: i64 = named(row, "delivery")?;
            if row.try_get::<Option<i64>, _>("pk").map_err(fault)?.is_none() {
                orphans.push(delivery);
                continue;
            }
            let event = event(row)?;
            claimed.rows.push(ClaimedDelivery {
                claim: Claim { row: Row::Delivery(delivery), id, lane: event.lane },
                trigger: named(row, "trigger_name")?,
                attempts: count(row, "attempts")?,
                generation: count(row, "generation")?,
                claims: count(row, "claims")?,
                trials: count(row, "trials")?,
                chain: chain_of(named(row, "chain")?),
                event,
            });
        }
        claimed.rows.sort_by_key(|d| (d.event.pk, d.generation));
        if !orphans.is_empty() {
            self.bury_orphans(&orphans, id).await?;
        }
        Ok(claimed)
    }

    /// Extends claims, but waits for nobody: a settle locks rows in an order of
    /// its own, and who waits here while holding others would meet it.
    pub(super) async fn extend(
        &self,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<Vec<Held>, StoreError> {
        let parts = Parts::of(claims);
        let rows = query(self.sql.of("WITH now AS MATERIALIZED (SELECT {p}now_ms() AS ms),
             events AS MATERIALIZED (
                 SELECT o.pk FROM unnest($1::bigint[], $2::uuid[]) AS c(pk, id)
                   JOIN {p}outbox o ON o.pk = c.pk
                  WHERE o.claim_id = c.id AND o.dispatched_at IS NULL
                    FOR NO KEY UPDATE OF o SKIP LOCKED),
             e AS (UPDATE {p}outbox o SET claimed_until = (SELECT ms FROM now) + $5
                    WHERE o.pk = ANY (ARRAY(SELECT pk FROM events))
                   RETURNING o.pk, o.claim_id),
             deliveries AS MATERIALIZED (
                 SELECT d.id FROM unnest($3::bigint[], $4::uuid[]) AS c(id, claim)
                   JOIN {p}delivery d ON d.id = c.id
                  WHERE d.claim_id = c.claim AND d.state IN ('ready', 'blocked')
                    FOR NO KEY UPDATE OF d SKIP LOCKED),
             d AS (UPDATE {p}delivery d SET claimed_until = (SELECT ms FROM now) + $5
                    WHERE d.id = ANY (ARRAY(SELECT id FROM deliveries))
                   RETURNING d.id, d.claim_id)
             SELECT false, pk, claim_id, true FROM e
             UNION ALL SELECT true, id, claim_id, true FROM d
             UNION ALL SELECT false, o.pk, o.claim_id, false
               FROM unnest($1::bigint[], $2::uuid[]) AS c(pk, id) JOIN {p}outbox o ON o.pk = c.pk
              WHERE o.claim_id = c.id AND o.dispatched_at IS NULL
                AND o.pk <> ALL (ARRAY(SELECT pk FROM events))
             UNION ALL SELECT true, d.id, d.claim_id, false
               FROM unnest($3::bigint[], $4::uuid[]) AS c(id, claim)
               JOIN {p}delivery d ON d.id = c.id
              WHERE d.claim_id = c.claim AND d.state IN ('ready', 'blocked')
                AND d.id <> ALL (ARRAY(SELECT id FROM deliveries))"))
        .bind(&parts.events)
        .bind(&parts.event_claims)
        .bind(&parts.deliveries)
        .bind(&parts.delivery_claims)
        .bind(millis(lease))
        .fetch_all(&mut *self.leases.lent().await?)
        .await
        .map_err(fault)?;
        let mut held = HashMap::with_capacity(rows.len());
        for row in &rows {
            let pk = get(row, 1)?;
            let of = if get(row, 0)? { Row::Delivery(pk) } else { Row::Event(pk) };
            let how = if get(row, 3)? { Held::Yes } else { Held::Busy };
            held.insert((of, get(row, 2)?), how);
        }
        Ok(claims.iter().map(|claim| held.remove(&proof(claim)).unwrap_or(Held::Lost)).collect())
    }

    /// Gives claims back, waiting for nobody while it holds rows, as [`Self::extend`].
    pub(super) async fn give_back(&self, claims: &[&Claim]) -> Result<(), StoreError> {
        let parts = Parts::of(claims);
        loop {
            let row = query(self.sql.of("WITH events AS MATERIALIZED (
                     SELECT o.pk FROM unnest($1::bigint[], $2::uuid[]) AS c(pk, id)
                       JOIN {p}outbox o ON o.pk = c.pk
                      WHERE o.claim_id = c.id AND o.dispatched_at IS NULL
                        FOR NO KEY UPDATE OF o SKIP LOCKED),
                 e AS (UPDATE {p}outbox o
                          SET claim_id = NULL, claimed_until = NULL, claims = o.claims - 1
                        WHERE o.pk = ANY (ARRAY(SELECT pk FROM events))),
                 deliveries AS MATERIALIZED (
                     SELECT d.id FROM unnest($3::bigint[], $4::uuid[]) AS c(id, claim)
                       JOIN {p}delivery d ON d.id = c.id
                      WHERE d.claim_id = c.claim AND d.state IN ('ready', 'blocked')
                        FOR NO KEY UPDATE OF d SKIP LOCKED),
                 d AS (UPDATE {p}delivery d
                          SET claim_id = NULL, claimed_until = NULL, claims = d.claims - 1
                        WHERE d.id = ANY (ARRAY(SELECT id FROM deliveries)))
                 SELECT EXISTS (
                            SELECT FROM unnest($1::bigint[], $2::uuid[]) AS c(pk, id)
                              JOIN {p}outbox o ON o.pk = c.pk
                             WHERE o.claim_id = c.id AND o.dispatched_at IS NULL
                               AND o.pk <> ALL (ARRAY(SELECT pk FROM events)))
                     OR EXISTS (
                            SELECT FROM unnest($3::bigint[], $4::uuid[]) AS c(id, claim)
                              JOIN {p}delivery d ON d.id = c.id
                             WHERE d.claim_id = c.claim AND d.state IN ('ready', 'blocked')
                               AND d.id <> ALL (ARRAY(SELECT id FROM deliveries)))"))
            .bind(&parts.events)
            .bind(&parts.event_claims)
            .bind(&parts.deliveries)
            .bind(&parts.delivery_claims)
            .fetch_one(&mut *self.leases.lent().await?)
            .await
            .map_err(fault)?;
            if !get::<bool>(&row, 0)? {
                return Ok(());
            }
            // Somebody else is at one of the rows.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Claims as the arrays that statements take.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) events: Vec<i64>,
    pub(super) event_claims: Vec<Uuid>,
    pub(super) deliveries: Vec<i64>,
    pub(super) delivery_claims: Vec<Uuid>,
}

impl Parts {
    pub(super) fn of(claims: &[&Claim]) -> Self {
        let mut parts = Self::default();
        for claim in claims {
            match claim.row {
                Row::Event(pk) => {
                    parts.events.push(pk);
                    parts.event_claims.push(claim.id);
                }
                Row::Delivery(id) => {
                    parts.deliveries.push(id);
                    parts.delivery_claims.push(claim.id);
                }
            }
        }
        parts
    }
}

fn claimed_events(id: Uuid, rows: &[PgRow]) -> Result<Claimed<ClaimedEvent>, StoreError> {
    let mut claimed = Claimed {
        rows: Vec::with_capacity(rows.len()),
        now: 0,
        horizon: Horizon::default(),
        cut: false,
    };
    for row in rows {
        let event = event(row)?;
        claimed.now = named(row, "now")?;
        claimed.cut = named(row, "cut")?;
        claimed.horizon = Horizon { ended: named(row, "ended")?, begun: named(row, "begun")? };
        claimed.rows.push(ClaimedEvent {
            claim: Claim { row: Row::Event(event.pk), id, lane: event.lane },
            claims: count(row, "claims")?,
            trials: count(row, "trials")?,
            open: named(row, "open")?,
            event,
        });
    }
    claimed.rows.sort_by_key(|row| row.event.pk);
    Ok(claimed)
}

/// The event in a row of [`event_columns`], by position: this is read for
/// every event that passes through.
pub(super) fn event(row: &PgRow) -> Result<Event, StoreError> {
    Ok(Event {
        pk: get(row, 0)?,
        message_id: get(row, 1)?,
        project: get(row, 2)?,
        resource: get(row, 3)?,
        aggregate_id: get(row, 4)?,
        event_name: get(row, 5)?,
        schema_version: u32::try_from(get::<i32>(row, 6)?).unwrap_or(0),
        payload: get(row, 7)?,
        meta: get(row, 8)?,
        dedup_key: get(row, 9)?,
        created_at: get(row, 10)?,
        available_at: get(row, 11)?,
        lane: get(row, 12)?,
    })
}

pub(super) fn get<'r, T>(row: &'r PgRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(index).map_err(fault)
}

pub(super) fn named<'r, T>(row: &'r PgRow, name: &str) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(name).map_err(fault)
}

/// A count, which the schema keeps as a signed integer.
pub(super) fn count(row: &PgRow, name: &str) -> Result<u32, StoreError> {
    Ok(u32::try_from(named::<i32>(row, name)?).unwrap_or(0))
}

/// A count of bytes as a parameter.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
