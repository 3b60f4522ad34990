//! Who holds which lane.

use std::time::Duration;

use sqlx::query;
use uuid::Uuid;

use super::{Postgres, claims::get, fault};
use crate::{
    model::Lane,
    store::{Claim, Held, HostId, Row, StoreError, rows::millis},
};

/// The least that a take-over waits for a lock, or a statement, in milliseconds.
const LEAST_WAIT_MS: i64 = 150;

impl Postgres {
    pub(super) async fn take_over(
        &self,
        host: HostId,
        want: usize,
        lease: Duration,
    ) -> Result<Vec<Lane>, StoreError> {
        let mut tx = self.leases.begin().await?;
        // What waits for too long ends here: were it given up on this side
        // alone, it would keep the connection that renewals need.
        query(
            "SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)",
        )
        .bind(millis(lease / 6).max(LEAST_WAIT_MS).to_string())
        .bind(millis(lease / 4).max(LEAST_WAIT_MS).to_string())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        // Locked lanes are being claimed in or taken by somebody: not free.
        let rows = query(self.sql.of("SELECT lane FROM {p}lane
              WHERE holder IS NULL OR lease_until < {p}now_ms()
              ORDER BY lane LIMIT $1 FOR UPDATE SKIP LOCKED"))
        .bind(i64::try_from(want).unwrap_or(i64::MAX))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let lanes = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<Lane>, _>>()?;
        if lanes.is_empty() {
            return Ok(lanes);
        }
        query(self.sql.of("WITH alone AS MATERIALIZED (
                 SELECT alone_event, alone_delivery FROM {p}lane WHERE lane = ANY($1)
                    AND (alone_event IS NOT NULL OR alone_delivery IS NOT NULL)),
             event AS (
                 UPDATE {p}outbox SET trials = trials + 1
                  WHERE pk = ANY (ARRAY(SELECT alone_event FROM alone))
                    AND dispatched_at IS NULL AND claim_id IS NOT NULL)
             UPDATE {p}delivery SET trials = trials + 1
              WHERE id = ANY (ARRAY(SELECT alone_delivery FROM alone))
                AND state IN ('ready', 'blocked') AND claim_id IS NOT NULL"))
        .bind(&lanes)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        query(self.sql.of(
            "UPDATE {p}lane SET holder = $1, alone_event = NULL, alone_delivery = NULL, lease_until = {p}now_ms() + $2 WHERE lane = ANY($3)",
        ))
        .bind(host.0)
        .bind(millis(lease))
        .bind(&lanes)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        // Waits for a settle under way, and leaves later ones nothing to match.
        query(self.sql.of("UPDATE {p}outbox SET claim_id = NULL, claimed_until = NULL
              WHERE lane = ANY($1) AND dispatched_at IS NULL AND claim_id IS NOT NULL"))
        .bind(&lanes)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        query(self.sql.of("UPDATE {p}delivery SET claim_id = NULL, claimed_until = NULL
              WHERE lane = ANY($1) AND state IN ('ready', 'blocked') AND claim_id IS NOT NULL"))
        .bind(&lanes)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(lanes)
    }

    pub(super) async fn extend_lanes(
        &self,
        host: HostId,
        lease: Duration,
    ) -> Result<Vec<Lane>, StoreError> {
        let rows = query(self.sql.of(
            "UPDATE {p}lane SET lease_until = {p}now_ms() + $2 WHERE holder = $1 RETURNING lane",
        ))
        .bind(host.0)
        .bind(millis(lease))
        .fetch_all(&mut *self.leases.lent().await?)
        .await
        .map_err(fault)?;
        let mut lanes = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<Lane>, _>>()?;
        lanes.sort_unstable();
        Ok(lanes)
    }

    pub(super) async fn let_go(&self, host: HostId, lanes: &[Lane]) -> Result<(), StoreError> {
        query(self.sql.of(
            "UPDATE {p}lane SET holder = NULL, alone_event = NULL, alone_delivery = NULL, lease_until = 0 WHERE holder = $1 AND lane = ANY($2)",
        ))
        .bind(host.0)
        .bind(lanes)
        .execute(&mut *self.leases.lent().await?)
        .await
        .map_err(fault)?;
        Ok(())
    }

    pub(super) async fn note_alone(
        &self,
        host: HostId,
        claim: Option<&Claim>,
    ) -> Result<Held, StoreError> {
        let lane = claim.map(Claim::lane);
        let (event, delivery) = match claim.map(Claim::row) {
            Some(Row::Event(pk)) => (Some(pk), None),
            Some(Row::Delivery(id)) => (None, Some(id)),
            None => (None, None),
        };
        let rows = query(self.sql.of("UPDATE {p}lane
                    SET alone_event = CASE WHEN lane = $2 THEN $3::bigint END,
                        alone_delivery = CASE WHEN lane = $2 THEN $4::bigint END
              WHERE holder = $1
                AND (lane = $2 OR alone_event IS NOT NULL OR alone_delivery IS NOT NULL)
             RETURNING lane"))
        .bind(host.0)
        .bind(lane)
        .bind(event)
        .bind(delivery)
        .fetch_all(&mut *self.leases.lent().await?)
        .await
        .map_err(fault)?;
        let noted = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<Lane>, _>>()?;
        Ok(if lane.is_none_or(|lane| noted.contains(&lane)) { Held::Yes } else { Held::Lost })
    }

    pub(super) async fn holders(&self) -> Result<Vec<(Lane, Option<HostId>, i64)>, StoreError> {
        let rows = query(self.sql.of(
            "SELECT lane, holder, greatest(lease_until - {p}now_ms(), 0) FROM {p}lane ORDER BY lane",
        ))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| Ok((get(row, 0)?, get::<Option<Uuid>>(row, 1)?.map(HostId), get(row, 2)?)))
            .collect()
    }
}
