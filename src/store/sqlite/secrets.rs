//! Secrets, as they are sealed.

use sqlx::{SqliteConnection, query, sqlite::SqliteRow};

use super::{Sqlite, fault, get, now, text};
use crate::{
    secrets::STAMP_BYTES,
    store::{SealedSecret, SecretInfo, SecretPut, StoreError, rows::to_json},
};

impl Sqlite {
    pub(super) async fn store_secret(
        &self,
        project: &str,
        name: &str,
        sealed: &[u8],
        most: u32,
    ) -> Result<SecretPut, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let row = query(self.sql.of(
            "SELECT count(*), coalesce(sum(name = ?2), 0) FROM {p}secret WHERE project_id = ?1",
        ))
        .bind(project)
        .bind(name)
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        let (count, known): (i64, i64) = (get(&row, 0)?, get(&row, 1)?);
        if known == 0 && count >= i64::from(most) {
            return Ok(SecretPut::Full);
        }
        let now = now(&mut tx).await?;
        query(self.sql.of(
            "INSERT INTO {p}secret (project_id, name, sealed, updated_at) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (project_id, name)
             DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at",
        ))
        .bind(project)
        .bind(name)
        .bind(sealed)
        .bind(now)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        self.raise(&mut tx).await?;
        tx.commit().await?;
        self.wake.ring();
        Ok(if known == 0 { SecretPut::New } else { SecretPut::Replaced })
    }

    pub(super) async fn list_secrets(&self, project: &str) -> Result<Vec<SecretInfo>, StoreError> {
        let rows = query(
            self.sql
                .of("SELECT name, updated_at FROM {p}secret WHERE project_id = ?1 ORDER BY name"),
        )
        .bind(project)
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        let info = |row| Ok(SecretInfo { name: text(row, 0)?, updated_at: get(row, 1)? });
        rows.iter().map(info).collect()
    }

    pub(super) async fn sealed_of(
        &self,
        project: &str,
        names: &[String],
    ) -> Result<Vec<SealedSecret>, StoreError> {
        let rows = query(self.sql.of("SELECT project_id, name, sealed FROM {p}secret
              WHERE project_id = ?1 AND name IN (SELECT value FROM json_each(?2)) ORDER BY name"))
        .bind(project)
        .bind(to_json(&names)?)
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        rows.iter().map(sealed).collect()
    }

    pub(super) async fn drop_secret(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let rows = query(self.sql.of("SELECT name FROM {p}trigger
              WHERE project_id = ?1
                AND ?2 IN (SELECT value FROM json_each(spec_json, '$.grants.secrets'))
              ORDER BY name"))
        .bind(project)
        .bind(name)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let users = rows.iter().map(|row| text(row, 0)).collect::<Result<Vec<_>, _>>()?;
        if !users.is_empty() {
            return Ok(Some(users));
        }
        let gone = query(self.sql.of("DELETE FROM {p}secret WHERE project_id = ?1 AND name = ?2"))
            .bind(project)
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        if gone.rows_affected() == 0 {
            return Ok(None);
        }
        self.raise(&mut tx).await?;
        tx.commit().await?;
        Ok(Some(users))
    }

    pub(super) async fn sealed_page(
        &self,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<SealedSecret>, StoreError> {
        let (project, name) = after.unzip();
        let rows = query(self.sql.of("SELECT project_id, name, sealed FROM {p}secret
              WHERE ?1 IS NULL OR (project_id, name) > (?1, ?2)
              ORDER BY project_id, name LIMIT ?3"))
        .bind(project)
        .bind(name)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        rows.iter().map(sealed).collect()
    }

    /// The value stays the same, so what the host has opened stays good, and
    /// the control version as it is.
    pub(super) async fn replace_sealed(
        &self,
        old: &SealedSecret,
        sealed: &[u8],
    ) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let done = query(self.sql.of(
            "UPDATE {p}secret SET sealed = ?4 WHERE project_id = ?1 AND name = ?2 AND sealed = ?3",
        ))
        .bind(&old.project)
        .bind(&old.name)
        .bind(&old.sealed)
        .bind(sealed)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(done.rows_affected() > 0)
    }

    /// What tells one value of a secret from the next, for all of them.
    pub(super) async fn stamps(
        &self,
        db: &mut SqliteConnection,
    ) -> Result<Vec<(String, String, Vec<u8>)>, StoreError> {
        let rows =
            query(self.sql.of("SELECT project_id, name, substr(sealed, 1, ?1) FROM {p}secret"))
                .bind(i64::try_from(STAMP_BYTES).unwrap_or(i64::MAX))
                .fetch_all(db)
                .await
                .map_err(fault)?;
        rows.iter().map(|row| Ok((text(row, 0)?, text(row, 1)?, get(row, 2)?))).collect()
    }
}

fn sealed(row: &SqliteRow) -> Result<SealedSecret, StoreError> {
    Ok(SealedSecret { project: text(row, 0)?, name: text(row, 1)?, sealed: get(row, 2)? })
}
