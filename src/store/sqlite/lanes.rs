//! Who holds the one lane, and where there is work in it.

use std::time::Duration;

use sqlx::query;
use uuid::Uuid;

use super::lock::HostLock;
use super::{LANE, Sqlite, fault, get, now, now_ms, text};
use crate::{
    model::Lane,
    store::{
        Claim, Held, HostId, Row, StoreError, Survey,
        rows::{millis, to_json},
    },
};

impl Sqlite {
    /// Takes the file's lock for this process, or finds that it has it.
    pub(super) fn hold_file(&self) -> Result<(), StoreError> {
        self.lock.as_ref().map_or(Ok(()), HostLock::hold)
    }

    /// The file's lock proves that whoever held the lane in another process
    /// is gone, so it is taken over whatever its lease says.
    pub(super) async fn take_over(
        &self,
        host: HostId,
        want: usize,
        lease: Duration,
    ) -> Result<Vec<Lane>, StoreError> {
        if want == 0 {
            return Ok(Vec::new());
        }
        self.hold_file()?;
        let mut tx = self.writer.begin().await?;
        let taken = query(self.sql.of(concat!(
            "UPDATE {p}lane SET holder = ?1, lease_until = 0
              WHERE lane = 0 AND (holder IS NULL OR holder <> ?1 OR lease_until < ",
            now_ms!(),
            ")"
        )))
        .bind(host.0.to_string())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        if taken.rows_affected() == 0 {
            return Ok(Vec::new());
        }
        // Nobody else can claim from here on, so what is claimed can be looked
        // up without the write lock: a backlog may be long.
        let claimed = |sql| async move {
            let rows = query(self.sql.of(sql)).fetch_all(&self.readers).await.map_err(fault)?;
            let ids = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
            to_json(&ids)
        };
        let events = claimed(
            "SELECT pk FROM {p}outbox INDEXED BY {p}outbox_due
              WHERE lane = 0 AND dispatched_at IS NULL AND available_at IS NULL
                AND claim_id IS NOT NULL
             UNION ALL
             SELECT pk FROM {p}outbox INDEXED BY {p}outbox_scheduled
              WHERE lane = 0 AND dispatched_at IS NULL AND available_at IS NOT NULL
                AND claim_id IS NOT NULL",
        )
        .await?;
        let deliveries = claimed(
            "SELECT id FROM {p}delivery INDEXED BY {p}delivery_open
              WHERE state IN ('ready', 'blocked') AND claim_id IS NOT NULL",
        )
        .await?;
        let mut tx = self.writer.begin().await?;
        let taken = query(self.sql.of(concat!(
            "UPDATE {p}lane SET lease_until = ?2 + ",
            now_ms!(),
            " WHERE lane = 0 AND holder = ?1"
        )))
        .bind(host.0.to_string())
        .bind(millis(lease))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        if taken.rows_affected() == 0 {
            return Ok(Vec::new());
        }
        query(self.sql.of("UPDATE {p}outbox SET trials = trials + 1
              WHERE pk IN (SELECT alone_event FROM {p}lane)
                AND dispatched_at IS NULL AND claim_id IS NOT NULL"))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        query(self.sql.of("UPDATE {p}delivery SET trials = trials + 1
              WHERE id IN (SELECT alone_delivery FROM {p}lane)
                AND state IN ('ready', 'blocked') AND claim_id IS NOT NULL"))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        query(self.sql.of("UPDATE {p}lane SET alone_event = NULL, alone_delivery = NULL"))
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        query(self.sql.of("UPDATE {p}outbox SET claim_id = NULL, claimed_until = NULL
              WHERE pk IN (SELECT value FROM json_each(?1)) AND dispatched_at IS NULL"))
        .bind(events)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        query(self.sql.of("UPDATE {p}delivery SET claim_id = NULL, claimed_until = NULL
              WHERE id IN (SELECT value FROM json_each(?1)) AND state IN ('ready', 'blocked')"))
        .bind(deliveries)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(vec![LANE])
    }

    pub(super) async fn extend_lanes(
        &self,
        host: HostId,
        lease: Duration,
    ) -> Result<Vec<Lane>, StoreError> {
        let mut tx = self.writer.begin().await?;
        // A take-over that broke off has not cleared the claims: its lease is
        // 0 until it is begun again.
        let rows = query(self.sql.of(concat!(
            "UPDATE {p}lane SET lease_until = ?2 + ",
            now_ms!(),
            " WHERE holder = ?1 AND lease_until > 0 RETURNING lane"
        )))
        .bind(host.0.to_string())
        .bind(millis(lease))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    pub(super) async fn let_go(&self, host: HostId, lanes: &[Lane]) -> Result<(), StoreError> {
        let mut tx = self.writer.begin().await?;
        query(self.sql.of("UPDATE {p}lane SET holder = NULL, lease_until = 0,
                     alone_event = NULL, alone_delivery = NULL
              WHERE holder = ?1 AND lane IN (SELECT value FROM json_each(?2))"))
        .bind(host.0.to_string())
        .bind(to_json(&lanes)?)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await
    }

    pub(super) async fn note_alone(
        &self,
        host: HostId,
        claim: Option<&Claim>,
    ) -> Result<Held, StoreError> {
        let (event, delivery) = match claim.map(Claim::row) {
            Some(Row::Event(pk)) => (Some(pk), None),
            Some(Row::Delivery(id)) => (None, Some(id)),
            None => (None, None),
        };
        let mut tx = self.writer.begin().await?;
        let noted = query(
            self.sql
                .of("UPDATE {p}lane SET alone_event = ?2, alone_delivery = ?3 WHERE holder = ?1"),
        )
        .bind(host.0.to_string())
        .bind(event)
        .bind(delivery)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(if noted.rows_affected() > 0 { Held::Yes } else { Held::Lost })
    }

    pub(super) async fn holders(&self) -> Result<Vec<(Lane, Option<HostId>, i64)>, StoreError> {
        let rows = query(self.sql.of(concat!(
            "SELECT lane, holder, max(lease_until - ",
            now_ms!(),
            ", 0) FROM {p}lane ORDER BY lane"
        )))
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| {
                let holder: Option<&str> = get(row, 1)?;
                let holder = holder.and_then(|id| Uuid::try_parse(id).ok()).map(HostId);
                Ok((get(row, 0)?, holder, get(row, 2)?))
            })
            .collect()
    }

    pub(super) async fn holder(&self, lane: Lane) -> Result<Option<HostId>, StoreError> {
        let holders = self.holders().await?;
        Ok(holders.into_iter().find(|(of, _, left)| *of == lane && *left > 0).and_then(|h| h.1))
    }

    pub(super) async fn find_newcomers(
        &self,
        lanes: &[Lane],
        known: &[String],
    ) -> Result<Vec<(Lane, String)>, StoreError> {
        if !lanes.contains(&LANE) {
            return Ok(Vec::new());
        }
        // One probe for each gap between two known projects.
        let rows = query(self.sql.of("WITH known(name) AS (
                 SELECT value FROM json_each(?1) UNION ALL SELECT '')
             SELECT (SELECT o.project_id FROM {p}outbox o INDEXED BY {p}outbox_due
                      WHERE o.lane = 0 AND o.dispatched_at IS NULL AND o.available_at IS NULL
                        AND o.project_id > k.name
                      ORDER BY o.project_id LIMIT 1) AS next
               FROM known k
              WHERE next IS NOT NULL AND next NOT IN (SELECT name FROM known)"))
        .bind(to_json(&known)?)
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        rows.iter().map(|row| Ok((LANE, text(row, 0)?))).collect()
    }

    pub(super) async fn find_work(&self, lanes: &[Lane]) -> Result<Survey, StoreError> {
        self.wake.look().await;
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let mut survey = Survey { now: now(&mut db).await?, ..Survey::default() };
        if lanes.contains(&LANE) {
            // From project to project, however many events one of them has.
            let rows = query(self.sql.of("WITH RECURSIVE seam(project) AS (
                     SELECT (SELECT project_id FROM {p}outbox INDEXED BY {p}outbox_due
                              WHERE lane = 0 AND dispatched_at IS NULL AND available_at IS NULL
                              ORDER BY project_id LIMIT 1)
                     UNION ALL
                     SELECT (SELECT project_id FROM {p}outbox INDEXED BY {p}outbox_due
                              WHERE lane = 0 AND project_id > seam.project
                                AND dispatched_at IS NULL AND available_at IS NULL
                              ORDER BY project_id LIMIT 1)
                       FROM seam WHERE project IS NOT NULL)
                 SELECT project FROM seam WHERE project IS NOT NULL"))
            .fetch_all(&mut *db)
            .await
            .map_err(fault)?;
            for row in &rows {
                survey.seams.push((LANE, text(row, 0)?));
            }
            let due = query(self.sql.of(
                "SELECT available_at FROM {p}outbox INDEXED BY {p}outbox_scheduled
                  WHERE lane = 0 AND dispatched_at IS NULL AND available_at IS NOT NULL
                    AND (claim_id IS NULL OR claimed_until < ?1)
                  ORDER BY available_at LIMIT 1",
            ))
            .bind(survey.now)
            .fetch_optional(&mut *db)
            .await
            .map_err(fault)?;
            let due = due.map(|row| get::<i64>(&row, 0)).transpose()?;
            survey.scheduled_in = due.map(|at| (at - survey.now).max(0));
        }
        // A comparison of pairs would use the index for the project alone.
        let rows = query(self.sql.of("WITH RECURSIVE pair(id) AS (
                 SELECT (SELECT id FROM {p}delivery INDEXED BY {p}delivery_ready
                          WHERE state = 'ready' ORDER BY project_id, trigger_name LIMIT 1)
                 UNION ALL
                 SELECT coalesce(
                     (SELECT n.id FROM {p}delivery n INDEXED BY {p}delivery_ready
                       WHERE n.state = 'ready' AND n.project_id = d.project_id
                         AND n.trigger_name > d.trigger_name
                       ORDER BY n.trigger_name LIMIT 1),
                     (SELECT n.id FROM {p}delivery n INDEXED BY {p}delivery_ready
                       WHERE n.state = 'ready' AND n.project_id > d.project_id
                       ORDER BY n.project_id, n.trigger_name LIMIT 1))
                   FROM pair CROSS JOIN {p}delivery d ON d.id = pair.id)
             SELECT d.project_id, d.trigger_name
               FROM pair CROSS JOIN {p}delivery d ON d.id = pair.id"))
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        for row in &rows {
            survey.deliveries.push((text(row, 0)?, text(row, 1)?));
        }
        Ok(survey)
    }
}
