//! Secrets, as they are sealed.

use sqlx::{PgConnection, postgres::PgRow, query};

use super::{
    Postgres,
    claims::{get, named},
    fault,
};
use crate::{
    secrets::STAMP_BYTES,
    store::{SealedSecret, SecretInfo, SecretPut, StoreError},
};

impl Postgres {
    pub(super) async fn store_secret(
        &self,
        project: &str,
        name: &str,
        sealed: &[u8],
        most: u32,
    ) -> Result<SecretPut, StoreError> {
        let mut tx = self.pool.begin().await?;
        // Definitions change one after another, so the count holds.
        self.raise(&mut tx).await?;
        let row = query(self.sql.of(
            "SELECT count(*), count(*) FILTER (WHERE name = $2) FROM {p}secret WHERE project_id = $1",
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
        query(self.sql.of("INSERT INTO {p}secret (project_id, name, sealed, updated_at)
             VALUES ($1, $2, $3, {p}now_ms())
             ON CONFLICT (project_id, name)
             DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at"))
        .bind(project)
        .bind(name)
        .bind(sealed)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(if known == 0 { SecretPut::New } else { SecretPut::Replaced })
    }

    pub(super) async fn list_secrets(&self, project: &str) -> Result<Vec<SecretInfo>, StoreError> {
        let rows = query(
            self.sql
                .of("SELECT name, updated_at FROM {p}secret WHERE project_id = $1 ORDER BY name"),
        )
        .bind(project)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let info = |row| Ok(SecretInfo { name: get(row, 0)?, updated_at: get(row, 1)? });
        rows.iter().map(info).collect()
    }

    pub(super) async fn sealed_of(
        &self,
        project: &str,
        names: &[String],
    ) -> Result<Vec<SealedSecret>, StoreError> {
        let rows = query(self.sql.of("SELECT project_id, name, sealed FROM {p}secret
              WHERE project_id = $1 AND name = ANY($2) ORDER BY name"))
        .bind(project)
        .bind(names)
        .fetch_all(&mut *self.router.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter().map(sealed).collect()
    }

    pub(super) async fn drop_secret(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let mut tx = self.pool.begin().await?;
        // Raised first: no trigger can come to be granted it meanwhile.
        self.raise(&mut tx).await?;
        let rows = query(self.sql.of("SELECT name FROM {p}trigger
              WHERE project_id = $1
                AND $2 IN (SELECT json_array_elements_text(
                                      spec_json::json -> 'grants' -> 'secrets'))
              ORDER BY name"))
        .bind(project)
        .bind(name)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let users = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<String>, _>>()?;
        if !users.is_empty() {
            return Ok(Some(users));
        }
        let gone = query(self.sql.of("DELETE FROM {p}secret WHERE project_id = $1 AND name = $2"))
            .bind(project)
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        if gone.rows_affected() == 0 {
            return Ok(None);
        }
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
              WHERE $1::text IS NULL OR (project_id, name) > ($1, $2::text)
              ORDER BY project_id, name LIMIT $3"))
        .bind(project)
        .bind(name)
        .bind(i64::from(limit))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter().map(sealed).collect()
    }

    /// The value stays the same, so what hosts have opened stays good, and the
    /// control version as it is.
    pub(super) async fn replace_sealed(
        &self,
        old: &SealedSecret,
        sealed: &[u8],
    ) -> Result<bool, StoreError> {
        let done = query(self.sql.of("UPDATE {p}secret SET sealed = $4
              WHERE project_id = $1 AND name = $2 AND sealed = $3"))
        .bind(&old.project)
        .bind(&old.name)
        .bind(&old.sealed)
        .bind(sealed)
        .execute(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        Ok(done.rows_affected() > 0)
    }

    /// What tells one value of a secret from the next, for all of them.
    pub(super) async fn stamps(
        &self,
        db: &mut PgConnection,
    ) -> Result<Vec<(String, String, Vec<u8>)>, StoreError> {
        let rows = query(
            self.sql.of("SELECT project_id, name, substring(sealed FROM 1 FOR $1) FROM {p}secret"),
        )
        .bind(i32::try_from(STAMP_BYTES).unwrap_or(i32::MAX))
        .fetch_all(db)
        .await
        .map_err(fault)?;
        rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?))).collect()
    }
}

fn sealed(row: &PgRow) -> Result<SealedSecret, StoreError> {
    Ok(SealedSecret {
        project: named(row, "project_id")?,
        name: named(row, "name")?,
        sealed: named(row, "sealed")?,
    })
}
