//! Claiming events and deliveries, and giving claims back.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use sqlx::{SqliteConnection, query, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    LANE, Sqlite, count,
    events::{EVENT_COLUMNS, Gathered, event, event_columns, gathered_columns},
    fault, gathered, get, id, now_ms, text,
    writer::Tx,
};
use crate::{
    model::{Lane, UnixMillis},
    store::{
        Claim, Claimed, ClaimedDelivery, ClaimedEvent, Held, Horizon, HostId, Row, Seam,
        StoreError,
        claim::proof,
        rows::{chain_of, millis, to_json},
    },
};

/// Rows to claim, within the bytes that one claim may bring; one comes anyway.
struct Picked {
    rows: Vec<i64>,
    left: i64,
    /// Whether there were more than fit.
    cut: bool,
}

impl Picked {
    fn within(bytes: u64) -> Self {
        Self { rows: Vec::new(), left: i64::try_from(bytes).unwrap_or(i64::MAX), cut: false }
    }

    /// Takes a row of (id, bytes) if there is room for it.
    fn add(&mut self, (id, bytes): (i64, i64)) -> bool {
        if bytes > self.left && !self.rows.is_empty() {
            self.cut = true;
            return false;
        }
        self.left -= bytes;
        self.rows.push(id);
        true
    }

    /// Takes such rows, as many as there is room for.
    fn add_all(&mut self, rows: &[SqliteRow]) -> Result<(), StoreError> {
        for row in rows {
            if !self.add((get(row, 0)?, get(row, 1)?)) {
                break;
            }
        }
        Ok(())
    }
}

impl Sqlite {
    pub(super) async fn take_events(
        &self,
        host: HostId,
        seams: &[Seam],
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        let mut tx = self.writer.begin().await?;
        let began = Instant::now();
        let (now, held) = self.fence(&mut tx, host).await?;
        let mut picked = Picked::within(bytes);
        let mut found = Vec::with_capacity(seams.len());
        for seam in seams.iter().filter(|seam| held && seam.lane == LANE) {
            let rows = query(self.sql.of(
                "SELECT CAST(json_group_array(json_array(pk, bytes)) AS BLOB) FROM (
                     SELECT pk, octet_length(payload_json) AS bytes
                       FROM {p}outbox INDEXED BY {p}outbox_due
                      WHERE lane = 0 AND project_id = ?1 AND pk > ?2
                        AND dispatched_at IS NULL AND available_at IS NULL
                        AND (claim_id IS NULL OR claimed_until < ?3)
                      ORDER BY pk LIMIT ?4)",
            ))
            .bind(&seam.project)
            .bind(seam.above)
            .bind(now)
            .bind(i64::from(seam.limit))
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
            found.push(gathered::<Vec<(i64, i64)>>(&rows)?);
        }
        // One of each seam, then the second of each, as far as they fit.
        for nth in 0.. {
            let mut round = found.iter().filter_map(|rows| rows.get(nth)).peekable();
            let over = round.peek().is_none();
            for row in round {
                if !picked.add(*row) {
                    break;
                }
            }
            if over || picked.cut {
                break;
            }
        }
        self.claim_rows(tx, began, &picked, now, lease).await
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
        let mut tx = self.writer.begin().await?;
        let began = Instant::now();
        let (now, held) = self.fence(&mut tx, host).await?;
        let mut picked = Picked::within(bytes);
        if held && lanes.contains(&LANE) {
            let rows = query(self.sql.of(
                "SELECT pk, octet_length(payload_json) FROM {p}outbox INDEXED BY {p}outbox_scheduled
                  WHERE lane = 0 AND available_at <= ?1
                    AND dispatched_at IS NULL AND available_at IS NOT NULL
                    AND project_id IN (SELECT value FROM json_each(?2))
                    AND (claim_id IS NULL OR claimed_until < ?1)
                  ORDER BY available_at, pk LIMIT ?3",
            ))
            .bind(now)
            .bind(to_json(&projects)?)
            .bind(i64::from(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
            picked.add_all(&rows)?;
        }
        self.claim_rows(tx, began, &picked, now, lease).await
    }

    /// The time, and whether this host holds the lane.
    async fn fence(
        &self,
        db: &mut SqliteConnection,
        host: HostId,
    ) -> Result<(UnixMillis, bool), StoreError> {
        let row = query(self.sql.of(concat!(
            "SELECT ",
            now_ms!(),
            ", EXISTS (SELECT 1 FROM {p}lane WHERE lane = 0 AND holder = ?1)"
        )))
        .bind(host.0.to_string())
        .fetch_one(db)
        .await
        .map_err(fault)?;
        Ok((get(&row, 0)?, get(&row, 1)?))
    }

    /// Claims outbox rows that were picked in this transaction.
    async fn claim_rows(
        &self,
        mut tx: Tx,
        began: Instant,
        picked: &Picked,
        now: UnixMillis,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        if picked.rows.is_empty() {
            return Ok(Claimed { rows: Vec::new(), now, horizon: Horizon::default(), cut: false });
        }
        let id = Uuid::new_v4();
        let pks = to_json(&picked.rows)?;
        query(
            self.sql
                .of("UPDATE {p}outbox SET claim_id = ?2, claimed_until = ?3, claims = claims + 1
              WHERE pk IN (SELECT value FROM json_each(?1))"),
        )
        .bind(&pks)
        .bind(id.to_string())
        .bind(now.saturating_add(millis(lease)))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        // All in one value: the driver hands rows over one by one, from a
        // thread of its own.
        let rows = query(self.sql.of(concat!(
            "SELECT CAST(json_group_array(json_array(",
            gathered_columns!(),
            ")) AS BLOB) FROM {p}outbox o
              WHERE o.pk IN (SELECT value FROM json_each(?1))"
        )))
        .bind(&pks)
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        let rows: Vec<Gathered> = gathered(&rows)?;
        let mut events: Vec<_> = rows.into_iter().map(Gathered::event).collect();
        events.sort_by_key(|(event, _)| event.pk);
        let mut open = self.open_triggers(&mut tx, events.iter().map(|(event, _)| event)).await?;
        tx.commit().await?;
        self.claims.took(events.len(), began.elapsed());
        let rows = events
            .into_iter()
            .enumerate()
            .map(|(at, (event, (claims, trials)))| ClaimedEvent {
                claim: Claim { row: Row::Event(event.pk), id, lane: event.lane },
                claims,
                trials,
                open: open.take(at),
                event,
            })
            .collect();
        Ok(Claimed { rows, now, horizon: Horizon::default(), cut: picked.cut })
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
        let mut tx = self.writer.begin().await?;
        let began = Instant::now();
        let (now, held) = self.fence(&mut tx, host).await?;
        let mut picked = Picked::within(bytes);
        let held = held && lanes.contains(&LANE);
        for (project, trigger, limit) in triggers.iter().filter(|_| held) {
            let rows = query(self.sql.of("SELECT d.id, coalesce(octet_length(o.payload_json), 0)
                   FROM {p}delivery d INDEXED BY {p}delivery_ready
                   LEFT JOIN {p}outbox o ON o.pk = d.event_pk
                  WHERE d.project_id = ?1 AND d.trigger_name = ?2 AND d.lane = 0
                    AND d.state = 'ready' AND d.due_at <= ?3
                    AND (d.claim_id IS NULL OR d.claimed_until < ?3)
                  ORDER BY d.due_at, d.id LIMIT ?4"))
            .bind(project)
            .bind(trigger)
            .bind(now)
            .bind(i64::from(*limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
            picked.add_all(&rows)?;
        }
        if picked.rows.is_empty() {
            return Ok(Claimed { rows: Vec::new(), now, horizon: Horizon::default(), cut: false });
        }
        if run > 0 {
            self.pick_runs(&mut tx, &mut picked, run, now).await?;
        }
        let id = Uuid::new_v4();
        let picked = to_json(&picked.rows)?;
        query(
            self.sql
                .of("UPDATE {p}delivery SET claim_id = ?2, claimed_until = ?3, claims = claims + 1
              WHERE id IN (SELECT value FROM json_each(?1))"),
        )
        .bind(&picked)
        .bind(id.to_string())
        .bind(now.saturating_add(millis(lease)))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        let rows = query(self.sql.of(concat!(
            "SELECT ",
            event_columns!(),
            ", d.id, d.trigger_name, d.attempts, d.generation, d.claims, d.chain, d.trials
               FROM {p}delivery d LEFT JOIN {p}outbox o ON o.pk = d.event_pk
              WHERE d.id IN (SELECT value FROM json_each(?1))"
        )))
        .bind(&picked)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let mut claimed = Claimed {
            rows: Vec::with_capacity(rows.len()),
            now,
            horizon: Horizon::default(),
            cut: false,
        };
        let mut orphans = Vec::new();
        for row in &rows {
            let delivery = get(row, EVENT_COLUMNS)?;
            if get::<Option<i64>>(row, 0)?.is_none() {
                orphans.push(delivery);
                continue;
            }
            let event = event(row)?;
            claimed.rows.push(ClaimedDelivery {
                claim: Claim { row: Row::Delivery(delivery), id, lane: event.lane },
                trigger: text(row, EVENT_COLUMNS + 1)?,
                attempts: count(row, EVENT_COLUMNS + 2)?,
                generation: count(row, EVENT_COLUMNS + 3)?,
                claims: count(row, EVENT_COLUMNS + 4)?,
                chain: chain_of(get(row, EVENT_COLUMNS + 5)?),
                trials: count(row, EVENT_COLUMNS + 6)?,
                event,
            });
        }
        self.bury_orphans(&mut tx, now, &orphans).await?;
        tx.commit().await?;
        self.claims.took(claimed.rows.len(), began.elapsed());
        claimed.rows.sort_by_key(|d| (d.event.pk, d.generation));
        Ok(claimed)
    }

    /// Picks what is blocked by heads that were picked and haven't failed yet.
    async fn pick_runs(
        &self,
        db: &mut SqliteConnection,
        picked: &mut Picked,
        run: u32,
        now: UnixMillis,
    ) -> Result<(), StoreError> {
        let heads = query(self.sql.of(
            "SELECT id, project_id, resource, aggregate_id, trigger_name, chain FROM {p}delivery
              WHERE id IN (SELECT value FROM json_each(?1)) AND chain > 0 AND attempts = 0",
        ))
        .bind(to_json(&picked.rows)?)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        for head in &heads {
            let rows = query(self.sql.of("SELECT d.id, coalesce(octet_length(o.payload_json), 0),
                        d.state = 'blocked' AND (d.claim_id IS NULL OR d.claimed_until < ?7)
                   FROM {p}delivery d INDEXED BY {p}delivery_run
                   LEFT JOIN {p}outbox o ON o.pk = d.event_pk
                  WHERE d.project_id = ?1 AND d.resource = ?2 AND d.aggregate_id = ?3
                    AND d.trigger_name = ?4 AND d.chain = ?5 AND d.chain > 0
                    AND d.state IN ('ready', 'blocked')
                  ORDER BY d.event_pk, d.id LIMIT ?6"))
            .bind(text(head, 1)?)
            .bind(text(head, 2)?)
            .bind(text(head, 3)?)
            .bind(text(head, 4)?)
            .bind(get::<i64>(head, 5)?)
            .bind(i64::from(run) + 1)
            .bind(now)
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            let Some((first, behind)) = rows.split_first() else { continue };
            if get::<i64>(first, 0)? != get::<i64>(head, 0)? {
                continue;
            }
            for row in behind {
                if !get::<bool>(row, 2)? || !picked.add((get(row, 0)?, get(row, 1)?)) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Ends deliveries whose event was deleted by hand.
    async fn bury_orphans(
        &self,
        db: &mut SqliteConnection,
        now: UnixMillis,
        ids: &[i64],
    ) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        query(self.sql.of("UPDATE {p}delivery
                SET state = 'dead', ended_at = ?2, claim_id = NULL, claimed_until = NULL,
                    last_kind = 'hostFault', last_error = 'the event is gone'
              WHERE id IN (SELECT value FROM json_each(?1))"))
        .bind(to_json(&ids)?)
        .bind(now)
        .execute(&mut *db)
        .await
        .map_err(fault)?;
        self.release_successors(db, now, ids).await.map(drop)
    }

    pub(super) async fn extend(
        &self,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<Vec<Held>, StoreError> {
        let parts = Parts::of(claims)?;
        let mut held = HashSet::with_capacity(claims.len());
        let mut tx = self.writer.begin().await?;
        if let Some(events) = &parts.events {
            let rows = query(self.sql.of(concat!(
                "UPDATE {p}outbox SET claimed_until = ?2 + ",
                now_ms!(),
                " FROM json_each(?1) c
                  WHERE pk = c.value ->> 0 AND claim_id = c.value ->> 1 AND dispatched_at IS NULL
                 RETURNING pk, claim_id"
            )))
            .bind(events)
            .bind(millis(lease))
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
            for row in &rows {
                held.insert((Row::Event(get(row, 0)?), id(row, 1)?));
            }
        }
        if let Some(deliveries) = &parts.deliveries {
            let rows = query(self.sql.of(concat!(
                "UPDATE {p}delivery SET claimed_until = ?2 + ",
                now_ms!(),
                " FROM json_each(?1) c
                  WHERE {p}delivery.id = c.value ->> 0 AND claim_id = c.value ->> 1
                    AND state IN ('ready', 'blocked')
                 RETURNING id, claim_id"
            )))
            .bind(deliveries)
            .bind(millis(lease))
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
            for row in &rows {
                held.insert((Row::Delivery(get(row, 0)?), id(row, 1)?));
            }
        }
        tx.commit().await?;
        let of = |claim: &&Claim| if held.contains(&proof(claim)) { Held::Yes } else { Held::Lost };
        Ok(claims.iter().map(of).collect())
    }

    pub(super) async fn give_back(&self, claims: &[&Claim]) -> Result<(), StoreError> {
        let parts = Parts::of(claims)?;
        let mut tx = self.writer.begin().await?;
        if let Some(events) = &parts.events {
            query(self.sql.of(
                "UPDATE {p}outbox SET claim_id = NULL, claimed_until = NULL, claims = claims - 1
                   FROM json_each(?1) c
                  WHERE pk = c.value ->> 0 AND claim_id = c.value ->> 1 AND dispatched_at IS NULL",
            ))
            .bind(events)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        }
        if let Some(deliveries) = &parts.deliveries {
            query(self.sql.of(
                "UPDATE {p}delivery SET claim_id = NULL, claimed_until = NULL, claims = claims - 1
                   FROM json_each(?1) c
                  WHERE {p}delivery.id = c.value ->> 0 AND claim_id = c.value ->> 1
                    AND state IN ('ready', 'blocked')",
            ))
            .bind(deliveries)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        }
        tx.commit().await
    }
}

/// Claims as the JSON arrays that statements take; absent where there are none.
pub(super) struct Parts {
    pub(super) events: Option<String>,
    pub(super) deliveries: Option<String>,
}

impl Parts {
    pub(super) fn of(claims: &[&Claim]) -> Result<Self, StoreError> {
        let (mut events, mut deliveries) = (Vec::new(), Vec::new());
        for claim in claims {
            match claim.row {
                Row::Event(pk) => events.push((pk, claim.id)),
                Row::Delivery(id) => deliveries.push((id, claim.id)),
            }
        }
        let json = |rows: Vec<(i64, Uuid)>| (!rows.is_empty()).then(|| to_json(&rows)).transpose();
        Ok(Self { events: json(events)?, deliveries: json(deliveries)? })
    }
}
