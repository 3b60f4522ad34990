//! Projects, triggers, keys, hosts and the control version.

use std::time::Duration;

use sqlx::{PgConnection, postgres::PgRow, query, query_scalar};
use uuid::Uuid;

use super::{
    Postgres,
    claims::{get, named},
    fault,
};
use crate::{
    model::{
        capability::Allow,
        trigger::{Trigger, TriggerSpec},
    },
    store::{
        ApiKey, ControlVersion, Definitions, HostId, HostInfo, KeyRow, Project, StoreError,
        TriggerGone,
        rows::{from_json, millis, role_name, role_of, to_json},
    },
};

const PROJECTS: &str = "SELECT name, enabled, created_at, allow_json FROM {p}project
      WHERE $1::text IS NULL OR name = $1 ORDER BY name";

const TRIGGERS: &str = "SELECT project_id, name, spec_json, paused, revision, created_at, updated_at
       FROM {p}trigger WHERE ($1::text IS NULL OR project_id = $1) AND ($2::text IS NULL OR name = $2)
      ORDER BY project_id, name";

impl Postgres {
    pub(super) async fn version(&self) -> Result<ControlVersion, StoreError> {
        query_scalar(self.sql.of("SELECT version FROM {p}control_version"))
            .fetch_one(&mut *self.claims.lent().await?)
            .await
            .map(ControlVersion)
            .map_err(fault)
    }

    /// Raises the control version, which also makes definitions change one
    /// after another, and answers the new one.
    pub(super) async fn raise(&self, db: &mut PgConnection) -> Result<i64, StoreError> {
        query_scalar(
            self.sql.of("UPDATE {p}control_version SET version = version + 1 RETURNING version"),
        )
        .fetch_one(db)
        .await
        .map_err(fault)
    }

    pub(super) async fn all_definitions(&self) -> Result<Definitions, StoreError> {
        let mut tx = self.pool.begin().await?;
        query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        let version = query_scalar(self.sql.of("SELECT version FROM {p}control_version"))
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
        let projects = query(self.sql.of(PROJECTS))
            .bind(None::<&str>)
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
        let triggers = query(self.sql.of(TRIGGERS))
            .bind(None::<&str>)
            .bind(None::<&str>)
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
        let active = query(self.sql.of("SELECT project_id, name, active_digest FROM {p}plugin"))
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
        let secrets = self.stamps(&mut tx).await?;
        tx.commit().await?;
        Ok(Definitions {
            version: ControlVersion(version),
            projects: projects.iter().map(project).collect::<Result<_, _>>()?,
            triggers: triggers.iter().map(trigger).collect::<Result<_, _>>()?,
            active: active
                .iter()
                .map(|row| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?)))
                .collect::<Result<_, StoreError>>()?,
            secrets,
        })
    }

    pub(super) async fn create_project(&self, name: &str) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let new =
            query(self.sql.of("INSERT INTO {p}project (name, created_at) VALUES ($1, {p}now_ms())
             ON CONFLICT DO NOTHING"))
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
            .rows_affected()
                > 0;
        if new {
            self.raise(&mut tx).await?;
        }
        tx.commit().await?;
        // Its events may have been waiting.
        self.wake.ring();
        Ok(new)
    }

    pub(super) async fn switch_project(
        &self,
        name: &str,
        enabled: bool,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let found = query(self.sql.of("UPDATE {p}project SET enabled = $2 WHERE name = $1"))
            .bind(name)
            .bind(enabled)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
            .rows_affected()
            > 0;
        if found {
            self.raise(&mut tx).await?;
        }
        tx.commit().await?;
        self.wake.ring();
        Ok(found)
    }

    pub(super) async fn set_allow(&self, name: &str, allow: &Allow) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let found = query(self.sql.of("UPDATE {p}project SET allow_json = $2 WHERE name = $1"))
            .bind(name)
            .bind(to_json(allow)?)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
            .rows_affected()
            > 0;
        if found {
            self.raise(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(found)
    }

    pub(super) async fn list_projects(
        &self,
        name: Option<&str>,
    ) -> Result<Vec<Project>, StoreError> {
        let rows = query(self.sql.of(PROJECTS))
            .bind(name)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        rows.iter().map(project).collect()
    }

    pub(super) async fn drop_project(&self, name: &str) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let found = query(self.sql.of("DELETE FROM {p}project WHERE name = $1"))
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
            .rows_affected()
            > 0;
        if found {
            for sql in [
                "DELETE FROM {p}trigger WHERE project_id = $1",
                "DELETE FROM {p}plugin WHERE project_id = $1",
                "DELETE FROM {p}plugin_version WHERE project_id = $1",
                "DELETE FROM {p}secret WHERE project_id = $1",
                "DELETE FROM {p}api_key WHERE project_id = $1",
            ] {
                query(self.sql.of(sql)).bind(name).execute(&mut *tx).await.map_err(fault)?;
            }
            self.raise(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(found)
    }

    pub(super) async fn store_trigger(
        &self,
        project: &str,
        name: &str,
        spec: &TriggerSpec,
    ) -> Result<Option<bool>, StoreError> {
        let mut tx = self.pool.begin().await?;
        let revision = self.raise(&mut tx).await?;
        // Definitions change one after another, so neither plugin nor secret can
        // be deleted between this look and the commit.
        let known: bool = query_scalar(self.sql.of(
            "SELECT ($2::text IS NULL OR EXISTS (SELECT FROM {p}plugin_version
                             WHERE project_id = $1 AND plugin_name = $2
                               AND ($3::text IS NULL OR digest = $3)))
                AND NOT EXISTS (SELECT FROM unnest($4::text[]) AS granted(name)
                                 WHERE NOT EXISTS (SELECT FROM {p}secret s
                                        WHERE s.project_id = $1 AND s.name = granted.name))",
        ))
        .bind(project)
        .bind(spec.target.plugin())
        .bind(spec.target.digest())
        .bind(&spec.grants.secrets)
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        if !known {
            return Ok(None);
        }
        let new: bool = query_scalar(self.sql.of(
            "INSERT INTO {p}trigger (project_id, name, spec_json, revision, created_at, updated_at)
             SELECT $1, $2, $3, $4, n.ms, n.ms FROM (SELECT {p}now_ms() AS ms) n
             ON CONFLICT (project_id, name)
             DO UPDATE SET spec_json = excluded.spec_json, revision = excluded.revision,
                           updated_at = excluded.updated_at
             RETURNING xmax = 0",
        ))
        .bind(project)
        .bind(name)
        .bind(to_json(spec)?)
        .bind(revision)
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(Some(new))
    }

    pub(super) async fn list_triggers(
        &self,
        project: &str,
        name: Option<&str>,
    ) -> Result<Vec<Trigger>, StoreError> {
        let rows = query(self.sql.of(TRIGGERS))
            .bind(project)
            .bind(name)
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        rows.iter().map(trigger).collect()
    }

    pub(super) async fn set_paused(
        &self,
        project: &str,
        name: &str,
        reason: Option<&str>,
        only: Option<i64>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let revision = self.raise(&mut tx).await?;
        let found = query(
            self.sql
                .of("UPDATE {p}trigger SET paused = $3, revision = $4, updated_at = {p}now_ms()
              WHERE project_id = $1 AND name = $2 AND ($5::bigint IS NULL OR revision = $5)"),
        )
        .bind(project)
        .bind(name)
        .bind(reason)
        .bind(revision)
        .bind(only)
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected()
            > 0;
        if !found {
            return Ok(false);
        }
        tx.commit().await?;
        self.wake.ring();
        Ok(true)
    }

    pub(super) async fn drop_trigger(
        &self,
        project: &str,
        name: &str,
    ) -> Result<TriggerGone, StoreError> {
        let mut tx = self.pool.begin().await?;
        let gone = query(self.sql.of("DELETE FROM {p}trigger WHERE project_id = $1 AND name = $2"))
            .bind(project)
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        if gone.rows_affected() == 0 {
            return Ok(TriggerGone::Unknown);
        }
        self.raise(&mut tx).await?;
        tx.commit().await?;
        Ok(TriggerGone::Yes)
    }

    pub(super) async fn store_key(&self, row: &KeyRow) -> Result<(), StoreError> {
        query(self.sql.of(
            "INSERT INTO {p}api_key (id, name, project_id, role, hash, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, {p}now_ms(), $6)",
        ))
        .bind(row.key.id)
        .bind(&row.key.name)
        .bind(&row.key.project)
        .bind(role_name(row.key.role))
        .bind(&row.hash[..])
        .bind(row.key.expires_at)
        .execute(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        Ok(())
    }

    pub(super) async fn list_keys(&self, hash: Option<&[u8]>) -> Result<Vec<ApiKey>, StoreError> {
        let rows = query(self.sql.of(
            "SELECT id, name, project_id, role, created_at, expires_at FROM {p}api_key
              WHERE $1::bytea IS NULL
                 OR (hash = $1 AND coalesce(expires_at, 9223372036854775807) > {p}now_ms())
              ORDER BY created_at, id",
        ))
        .bind(hash)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| {
                Ok(ApiKey {
                    id: get(row, 0)?,
                    name: get(row, 1)?,
                    project: get(row, 2)?,
                    role: role_of(get(row, 3)?)?,
                    created_at: get(row, 4)?,
                    expires_at: get(row, 5)?,
                })
            })
            .collect()
    }

    pub(super) async fn drop_key(&self, id: Uuid) -> Result<bool, StoreError> {
        let gone = query(self.sql.of("DELETE FROM {p}api_key WHERE id = $1"))
            .bind(id)
            .execute(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        Ok(gone.rows_affected() > 0)
    }

    pub(super) async fn beat(
        &self,
        host: HostId,
        name: &str,
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let live: i64 =
            query_scalar(self.sql.of("WITH n AS MATERIALIZED (SELECT {p}now_ms() AS ms),
             gone AS (DELETE FROM {p}host h USING n WHERE h.heartbeat_at < n.ms - 10 * $4::bigint),
             me AS (INSERT INTO {p}host (id, name, version, started_at, heartbeat_at)
                    SELECT $1, $2, $3, ms, ms FROM n
                        ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at)
             SELECT 1 + count(*) FROM {p}host h, n
              WHERE h.id <> $1 AND h.heartbeat_at >= n.ms - $4"))
            .bind(host.0)
            .bind(name)
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(millis(lease))
            .fetch_one(&mut *self.leases.lent().await?)
            .await
            .map_err(fault)?;
        Ok(usize::try_from(live).unwrap_or(1))
    }

    pub(super) async fn leave(&self, host: HostId) -> Result<(), StoreError> {
        query(self.sql.of("DELETE FROM {p}host WHERE id = $1"))
            .bind(host.0)
            .execute(&mut *self.leases.lent().await?)
            .await
            .map_err(fault)?;
        Ok(())
    }

    pub(super) async fn list_hosts(&self) -> Result<Vec<HostInfo>, StoreError> {
        let rows = query(self.sql.of(
            "SELECT id, name, version, started_at, heartbeat_at FROM {p}host ORDER BY started_at, id",
        ))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| {
                Ok(HostInfo {
                    id: get(row, 0)?,
                    name: get(row, 1)?,
                    version: get(row, 2)?,
                    started_at: get(row, 3)?,
                    heartbeat_at: get(row, 4)?,
                })
            })
            .collect()
    }
}

fn project(row: &PgRow) -> Result<Project, StoreError> {
    let allow: Option<String> = get(row, 3)?;
    Ok(Project {
        name: get(row, 0)?,
        enabled: get(row, 1)?,
        allow: allow.map(|json| from_json("a project", &json)).transpose()?.unwrap_or_default(),
        created_at: get(row, 2)?,
    })
}

fn trigger(row: &PgRow) -> Result<Trigger, StoreError> {
    Ok(Trigger {
        project: named(row, "project_id")?,
        name: named(row, "name")?,
        spec: from_json("a trigger", named(row, "spec_json")?)?,
        revision: named(row, "revision")?,
        paused: named(row, "paused")?,
        created_at: named(row, "created_at")?,
        updated_at: named(row, "updated_at")?,
    })
}
