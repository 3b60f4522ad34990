//! API keys and hosts.

use std::time::Duration;

use sqlx::query;
use uuid::Uuid;

use super::{Sqlite, fault, get, id, maybe_text, now, now_ms, text};
use crate::store::{
    ApiKey, HostId, HostInfo, KeyRow, StoreError,
    rows::{millis, role_name, role_of},
};

impl Sqlite {
    pub(super) async fn store_key(&self, row: &KeyRow) -> Result<(), StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let now = now(&mut tx).await?;
        query(self.sql.of(
            "INSERT INTO {p}api_key (id, name, project_id, role, hash, created_at, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        ))
        .bind(row.key.id.to_string())
        .bind(&row.key.name)
        .bind(&row.key.project)
        .bind(role_name(row.key.role))
        .bind(&row.hash[..])
        .bind(now)
        .bind(row.key.expires_at)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await
    }

    pub(super) async fn list_keys(&self, hash: Option<&[u8]>) -> Result<Vec<ApiKey>, StoreError> {
        let sql = match hash {
            Some(_) => concat!(
                "SELECT id, name, project_id, role, created_at, expires_at FROM {p}api_key
                  WHERE hash = ?1 AND (expires_at IS NULL OR expires_at > ",
                now_ms!(),
                ")"
            ),
            None => {
                "SELECT id, name, project_id, role, created_at, expires_at FROM {p}api_key
                  WHERE ?1 IS NULL ORDER BY created_at, id"
            }
        };
        let rows =
            query(self.sql.of(sql)).bind(hash).fetch_all(&self.readers).await.map_err(fault)?;
        rows.iter()
            .map(|row| {
                Ok(ApiKey {
                    id: id(row, 0)?,
                    name: maybe_text(row, 1)?,
                    project: maybe_text(row, 2)?,
                    role: role_of(get(row, 3)?)?,
                    created_at: get(row, 4)?,
                    expires_at: get(row, 5)?,
                })
            })
            .collect()
    }

    pub(super) async fn drop_key(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let gone = query(self.sql.of("DELETE FROM {p}api_key WHERE id = ?1"))
            .bind(id.to_string())
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await?;
        Ok(gone.rows_affected() > 0)
    }

    pub(super) async fn beat(
        &self,
        host: HostId,
        name: &str,
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let mut tx = self.writer.begin().await?;
        let now = now(&mut tx).await?;
        let lease = millis(lease);
        query(self.sql.of("DELETE FROM {p}host WHERE heartbeat_at < ?1"))
            .bind(now.saturating_sub(lease.saturating_mul(10)))
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        query(self.sql.of("INSERT INTO {p}host (id, name, version, started_at, heartbeat_at)
             VALUES (?1, ?2, ?3, ?4, ?4)
             ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at"))
        .bind(host.0.to_string())
        .bind(name)
        .bind(env!("CARGO_PKG_VERSION"))
        .bind(now)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        let row = query(self.sql.of("SELECT count(*) FROM {p}host WHERE heartbeat_at >= ?1"))
            .bind(now.saturating_sub(lease))
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await?;
        Ok(usize::try_from(get::<i64>(&row, 0)?).unwrap_or(1))
    }

    pub(super) async fn leave(&self, host: HostId) -> Result<(), StoreError> {
        let mut tx = self.writer.begin().await?;
        query(self.sql.of("DELETE FROM {p}host WHERE id = ?1"))
            .bind(host.0.to_string())
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await
    }

    pub(super) async fn list_hosts(&self) -> Result<Vec<HostInfo>, StoreError> {
        let rows =
            query(self.sql.of("SELECT id, name, version, started_at, heartbeat_at FROM {p}host
              ORDER BY started_at, id"))
            .fetch_all(&self.readers)
            .await
            .map_err(fault)?;
        rows.iter()
            .map(|row| {
                Ok(HostInfo {
                    id: id(row, 0)?,
                    name: text(row, 1)?,
                    version: text(row, 2)?,
                    started_at: get(row, 3)?,
                    heartbeat_at: get(row, 4)?,
                })
            })
            .collect()
    }
}
