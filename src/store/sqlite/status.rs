//! Counts of everything.

use sqlx::{Connection as _, SqliteConnection, query};

use super::{Sqlite, fault, get, maybe_text, now, text};
use crate::store::{Status, StoreError, rows::to_json};

/// Counts stop here: beyond it, a number says no more than "many", and
/// counting would take longer than people wait.
const MAX_COUNT: i64 = 1_000_000;

/// Claimed rows are looked for among so many of the oldest of each project:
/// claims begin there.
const HEAD: i64 = 10_000;

impl Sqlite {
    /// What is open is counted along the partial indexes, up to a bound, and
    /// what has ended comes from the totals.
    pub(super) async fn tally(&self) -> Result<Status, StoreError> {
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let mut tx = db.begin().await.map_err(fault)?;
        let mut status = Status { now: now(&mut tx).await?, ..Status::default() };
        self.tally_events(&mut tx, &mut status).await?;
        self.tally_deliveries(&mut tx, &mut status).await?;
        self.tally_errors(&mut tx, &mut status).await?;
        self.tally_totals(&mut tx, &mut status).await?;
        tx.rollback().await.map_err(fault)?;
        Ok(status)
    }

    async fn tally_events(
        &self,
        db: &mut SqliteConnection,
        status: &mut Status,
    ) -> Result<(), StoreError> {
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
             SELECT s.project,
                    (SELECT count(*) FROM (
                         SELECT 1 FROM {p}outbox INDEXED BY {p}outbox_due
                          WHERE lane = 0 AND project_id = s.project
                            AND dispatched_at IS NULL AND available_at IS NULL LIMIT ?2)),
                    (SELECT count(*) FROM (
                         SELECT claim_id, claimed_until FROM {p}outbox INDEXED BY {p}outbox_due
                          WHERE lane = 0 AND project_id = s.project
                            AND dispatched_at IS NULL AND available_at IS NULL
                          ORDER BY pk LIMIT ?3)
                      WHERE claim_id IS NOT NULL AND claimed_until >= ?1),
                    (SELECT created_at FROM (
                         SELECT pk, created_at, claim_id, claimed_until
                           FROM {p}outbox INDEXED BY {p}outbox_due
                          WHERE lane = 0 AND project_id = s.project
                            AND dispatched_at IS NULL AND available_at IS NULL
                          ORDER BY pk LIMIT ?3)
                      WHERE claim_id IS NULL OR claimed_until < ?1
                      ORDER BY pk LIMIT 1)
               FROM seam s WHERE s.project IS NOT NULL"))
        .bind(status.now)
        .bind(MAX_COUNT)
        .bind(HEAD)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let counts = status.projects.entry(text(row, 0)?).or_default();
            counts.in_flight = get(row, 2)?;
            counts.pending = get::<i64>(row, 1)? - counts.in_flight;
            let oldest = get::<Option<i64>>(row, 3)?;
            counts.oldest_pending_ms = oldest.map(|at| (status.now - at).max(0));
        }
        let rows = query(self.sql.of("SELECT project_id, total(later), total(busy), count(*)
               FROM (SELECT project_id, available_at > ?1 AS later,
                            claim_id IS NOT NULL AND claimed_until >= ?1 AS busy
                       FROM {p}outbox INDEXED BY {p}outbox_scheduled
                      WHERE lane = 0 AND dispatched_at IS NULL AND available_at IS NOT NULL
                      LIMIT ?2)
              GROUP BY project_id"))
        .bind(status.now)
        .bind(MAX_COUNT)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let counts = status.projects.entry(text(row, 0)?).or_default();
            let busy: i64 = get(row, 2)?;
            counts.scheduled = get(row, 1)?;
            counts.in_flight += busy;
            counts.pending += get::<i64>(row, 3)? - counts.scheduled - busy;
        }
        Ok(())
    }

    async fn tally_deliveries(
        &self,
        db: &mut SqliteConnection,
        status: &mut Status,
    ) -> Result<(), StoreError> {
        let rows = query(self.sql.of("SELECT 0, project_id, trigger_name, count(*) FROM (
                 SELECT project_id, trigger_name FROM {p}delivery INDEXED BY {p}delivery_ready
                  WHERE state = 'ready' LIMIT ?1) GROUP BY project_id, trigger_name
             UNION ALL
             SELECT 1, project_id, trigger_name, count(*) FROM (
                 SELECT project_id, trigger_name FROM {p}delivery INDEXED BY {p}delivery_open
                  WHERE state IN ('ready', 'blocked') LIMIT ?1) GROUP BY project_id, trigger_name
             UNION ALL
             SELECT 2, project_id, trigger_name, count(*) FROM (
                 SELECT project_id, trigger_name FROM {p}delivery INDEXED BY {p}delivery_dead
                  WHERE state = 'dead' LIMIT ?1) GROUP BY project_id, trigger_name"))
        .bind(MAX_COUNT)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let project = status.projects.entry(text(row, 1)?).or_default();
            let counts = project.triggers.entry(text(row, 2)?).or_default();
            match get::<i64>(row, 0)? {
                0 => counts.retrying = get(row, 3)?,
                1 => counts.blocked = get(row, 3)?,
                _ => counts.dead = get(row, 3)?,
            }
        }
        for counts in status.projects.values_mut().flat_map(|p| p.triggers.values_mut()) {
            // What is open and not ready.
            counts.blocked = (counts.blocked - counts.retrying).max(0);
        }
        Ok(())
    }

    /// The newest error of each trigger: among its dead letters and those that
    /// are retried last.
    async fn tally_errors(
        &self,
        db: &mut SqliteConnection,
        status: &mut Status,
    ) -> Result<(), StoreError> {
        let pairs: Vec<(&String, &String)> = status
            .projects
            .iter()
            .flat_map(|(project, counts)| {
                let failing = counts.triggers.iter().filter(|(_, t)| t.retrying + t.dead > 0);
                failing.map(move |(trigger, _)| (project, trigger))
            })
            .collect();
        let rows = query(self.sql.of("SELECT t.value ->> 0, t.value ->> 1, (
                 SELECT last_error FROM (
                     SELECT id, last_error FROM (
                         SELECT id, last_error FROM {p}delivery INDEXED BY {p}delivery_ready
                          WHERE project_id = t.value ->> 0 AND trigger_name = t.value ->> 1
                            AND lane = 0 AND state = 'ready' ORDER BY due_at DESC LIMIT 100)
                     UNION ALL
                     SELECT id, last_error FROM (
                         SELECT id, last_error FROM {p}delivery INDEXED BY {p}delivery_dead
                          WHERE project_id = t.value ->> 0 AND trigger_name = t.value ->> 1
                            AND state = 'dead' ORDER BY id DESC LIMIT 1))
                  WHERE last_error IS NOT NULL ORDER BY id DESC LIMIT 1)
               FROM json_each(?1) t"))
        .bind(to_json(&pairs)?)
        .fetch_all(db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let project = status.projects.entry(text(row, 0)?).or_default();
            project.triggers.entry(text(row, 1)?).or_default().last_error = maybe_text(row, 2)?;
        }
        Ok(())
    }

    async fn tally_totals(
        &self,
        db: &mut SqliteConnection,
        status: &mut Status,
    ) -> Result<(), StoreError> {
        let rows = query(self.sql.of("SELECT project_id, trigger_name, sum(done), sum(failed)
               FROM {p}counter GROUP BY project_id, trigger_name"))
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let project = status.projects.entry(text(row, 0)?).or_default();
            match text(row, 1)? {
                none if none.is_empty() => project.dispatched = get(row, 2)?,
                trigger => {
                    let counts = project.triggers.entry(trigger).or_default();
                    (counts.done, counts.failed) = (get(row, 2)?, get(row, 3)?);
                }
            }
        }
        let rows =
            query(self.sql.of("SELECT name FROM {p}project")).fetch_all(db).await.map_err(fault)?;
        for row in &rows {
            status.projects.entry(text(row, 0)?).or_default().exists = true;
        }
        Ok(())
    }
}
