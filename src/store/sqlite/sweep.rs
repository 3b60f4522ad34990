//! Deleting what is old, or whose project is gone.

use std::{sync::atomic::Ordering, time::Duration};

use sqlx::{SqliteConnection, query};

use super::{Sqlite, fault, get, now};
use crate::store::{
    StoreError,
    rows::{millis, to_json},
};

/// How many rows are looked at for each one that may go.
const LOOKS: i64 = 4;

/// Rows of one transaction where a project's go.
const BATCH: i64 = 1_000;

impl Sqlite {
    /// One small batch, from where the last one ended: events that must stay
    /// are passed once a round, not each time.
    pub(super) async fn delete_old(
        &self,
        retention: Duration,
        batch: u32,
    ) -> Result<u64, StoreError> {
        let looks = i64::from(batch).saturating_mul(LOOKS);
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let cut = now(&mut db).await?.saturating_sub(millis(retention));
        let rows = query(self.sql.of("SELECT o.pk, o.dispatched_at >= ?2,
                    o.dispatched_at < ?2 AND NOT EXISTS (
                        SELECT 1 FROM {p}delivery d
                         WHERE d.event_pk = o.pk AND d.state <> 'done')
               FROM {p}outbox o NOT INDEXED
              WHERE o.pk > ?1 ORDER BY o.pk LIMIT ?3"))
        .bind(self.swept.load(Ordering::Relaxed))
        .bind(cut)
        .bind(looks)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        drop(db);
        let (mut old, mut recent, mut last) = (Vec::new(), 0_usize, 0_i64);
        for row in &rows {
            if old.len() >= batch as usize {
                break;
            }
            last = get(row, 0)?;
            recent += usize::from(get::<Option<bool>>(row, 1)?.unwrap_or(false));
            if get::<Option<bool>>(row, 2)?.unwrap_or(false) {
                old.push(last);
            }
        }
        // The end of the table, or of what is old: the next round begins.
        let through = (rows.len() as u64) < looks.unsigned_abs() || recent * 2 > rows.len();
        let end = if through && old.len() < batch as usize { 0 } else { last };
        if old.is_empty() {
            self.swept.store(end, Ordering::Relaxed);
            return Ok(0);
        }
        let mut tx = self.writer.begin().await?;
        let rows = query(self.sql.of("DELETE FROM {p}outbox
              WHERE pk IN (SELECT value FROM json_each(?1)) AND dispatched_at IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM {p}delivery d
                                 WHERE d.event_pk = {p}outbox.pk AND d.state <> 'done')
             RETURNING pk"))
        .bind(to_json(&old)?)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let gone = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
        self.delete_with(&mut tx, &gone).await?;
        tx.commit().await?;
        self.swept.store(end, Ordering::Relaxed);
        Ok(gone.len() as u64)
    }

    /// Deletes what belongs to events.
    pub(super) async fn delete_with(
        &self,
        db: &mut SqliteConnection,
        pks: &[i64],
    ) -> Result<(), StoreError> {
        let pks = to_json(&pks)?;
        for sql in [
            "DELETE FROM {p}attempt WHERE event_pk IN (SELECT value FROM json_each(?1))",
            "DELETE FROM {p}delivery WHERE event_pk IN (SELECT value FROM json_each(?1))",
        ] {
            query(self.sql.of(sql)).bind(&pks).execute(&mut *db).await.map_err(fault)?;
        }
        Ok(())
    }

    pub(super) async fn delete_rows_of(&self, project: &str) -> Result<(), StoreError> {
        // Rows are looked up without the write lock, and deleted batch by batch.
        for (find, delete) in [
            (
                "SELECT pk FROM {p}outbox NOT INDEXED
                  WHERE project_id = ?1 AND pk > ?2 ORDER BY pk LIMIT ?3",
                "DELETE FROM {p}outbox WHERE pk IN (SELECT value FROM json_each(?1))",
            ),
            (
                "SELECT id FROM {p}delivery NOT INDEXED
                  WHERE project_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
                "DELETE FROM {p}delivery WHERE id IN (SELECT value FROM json_each(?1))",
            ),
            (
                "SELECT id FROM {p}attempt NOT INDEXED
                  WHERE project_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
                "DELETE FROM {p}attempt WHERE id IN (SELECT value FROM json_each(?1))",
            ),
        ] {
            let mut last = 0_i64;
            loop {
                let rows = query(self.sql.of(find))
                    .bind(project)
                    .bind(last)
                    .bind(BATCH)
                    .fetch_all(&self.readers)
                    .await
                    .map_err(fault)?;
                let ids = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
                let Some(end) = ids.last() else { break };
                last = *end;
                let mut tx = self.writer.begin_firm().await?;
                query(self.sql.of(delete))
                    .bind(to_json(&ids)?)
                    .execute(&mut *tx)
                    .await
                    .map_err(fault)?;
                tx.commit().await?;
            }
        }
        let mut tx = self.writer.begin_firm().await?;
        for sql in [
            "DELETE FROM {p}state WHERE project_id = ?1",
            "DELETE FROM {p}counter WHERE project_id = ?1",
            "DELETE FROM {p}operation WHERE project_id = ?1",
        ] {
            query(self.sql.of(sql)).bind(project).execute(&mut *tx).await.map_err(fault)?;
        }
        tx.commit().await
    }
}
