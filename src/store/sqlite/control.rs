//! Projects, triggers and the control version.

use sqlx::{Connection as _, SqliteConnection, query, sqlite::SqliteRow};

use super::{Sqlite, fault, get, maybe_text, now, text};
use crate::{
    model::{
        capability::Allow,
        trigger::{Trigger, TriggerSpec},
    },
    store::{
        ControlVersion, Definitions, Project, StoreError, TriggerGone,
        rows::{from_json, to_json},
    },
};

const VERSION: &str = "SELECT version FROM {p}control_version";

const PROJECTS: &str = "SELECT name, enabled, created_at, allow_json FROM {p}project
      WHERE ?1 IS NULL OR name = ?1 ORDER BY name";

const TRIGGERS: &str =
    "SELECT project_id, name, spec_json, paused, revision, created_at, updated_at
       FROM {p}trigger WHERE (?1 IS NULL OR project_id = ?1) AND (?2 IS NULL OR name = ?2)
      ORDER BY project_id, name";

impl Sqlite {
    pub(super) async fn version(&self) -> Result<ControlVersion, StoreError> {
        let row = query(self.sql.of(VERSION)).fetch_one(&self.readers).await.map_err(fault)?;
        get(&row, 0).map(ControlVersion)
    }

    /// Raises the control version and answers the new one.
    pub(super) async fn raise(&self, db: &mut SqliteConnection) -> Result<i64, StoreError> {
        let row = query(
            self.sql.of("UPDATE {p}control_version SET version = version + 1 RETURNING version"),
        )
        .fetch_one(db)
        .await
        .map_err(fault)?;
        get(&row, 0)
    }

    pub(super) async fn all_definitions(&self) -> Result<Definitions, StoreError> {
        let mut db = self.readers.acquire().await.map_err(fault)?;
        let mut tx = db.begin().await.map_err(fault)?;
        let version = query(self.sql.of(VERSION)).fetch_one(&mut *tx).await.map_err(fault)?;
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
        tx.rollback().await.map_err(fault)?;
        Ok(Definitions {
            version: ControlVersion(get(&version, 0)?),
            projects: projects.iter().map(project).collect::<Result<_, _>>()?,
            triggers: triggers.iter().map(trigger).collect::<Result<_, _>>()?,
            active: active
                .iter()
                .map(|row| Ok((text(row, 0)?, text(row, 1)?, text(row, 2)?)))
                .collect::<Result<_, StoreError>>()?,
            secrets,
        })
    }

    pub(super) async fn create_project(&self, name: &str) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let now = now(&mut tx).await?;
        let new = query(self.sql.of(
            "INSERT INTO {p}project (name, created_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        ))
        .bind(name)
        .bind(now)
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
        let mut tx = self.writer.begin_firm().await?;
        let found = query(self.sql.of("UPDATE {p}project SET enabled = ?2 WHERE name = ?1"))
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
        let mut tx = self.writer.begin_firm().await?;
        let found = query(self.sql.of("UPDATE {p}project SET allow_json = ?2 WHERE name = ?1"))
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
            .fetch_all(&self.readers)
            .await
            .map_err(fault)?;
        rows.iter().map(project).collect()
    }

    pub(super) async fn drop_project(&self, name: &str) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let found = query(self.sql.of("DELETE FROM {p}project WHERE name = ?1"))
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
            .rows_affected()
            > 0;
        if found {
            for sql in [
                "DELETE FROM {p}trigger WHERE project_id = ?1",
                "DELETE FROM {p}plugin WHERE project_id = ?1",
                "DELETE FROM {p}plugin_version WHERE project_id = ?1",
                "DELETE FROM {p}secret WHERE project_id = ?1",
                "DELETE FROM {p}api_key WHERE project_id = ?1",
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
        let mut tx = self.writer.begin_firm().await?;
        let row =
            query(self.sql.of("SELECT (?2 IS NULL OR EXISTS (SELECT 1 FROM {p}plugin_version
                             WHERE project_id = ?1 AND plugin_name = ?2
                               AND (?3 IS NULL OR digest = ?3)))
                AND NOT EXISTS (SELECT 1 FROM json_each(?5) granted
                                 WHERE granted.value NOT IN (SELECT s.name FROM {p}secret s
                                                              WHERE s.project_id = ?1)),
                    EXISTS (SELECT 1 FROM {p}trigger WHERE project_id = ?1 AND name = ?4)"))
            .bind(project)
            .bind(spec.target.plugin())
            .bind(spec.target.digest())
            .bind(name)
            .bind(to_json(&spec.grants.secrets)?)
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
        let (known, old): (bool, bool) = (get(&row, 0)?, get(&row, 1)?);
        if !known {
            return Ok(None);
        }
        let revision = self.raise(&mut tx).await?;
        let now = now(&mut tx).await?;
        query(self.sql.of(
            "INSERT INTO {p}trigger (project_id, name, spec_json, revision, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5)
             ON CONFLICT (project_id, name)
             DO UPDATE SET spec_json = excluded.spec_json, revision = excluded.revision,
                           updated_at = excluded.updated_at",
        ))
        .bind(project)
        .bind(name)
        .bind(to_json(spec)?)
        .bind(revision)
        .bind(now)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        self.wake.ring();
        Ok(Some(!old))
    }

    pub(super) async fn list_triggers(
        &self,
        project: &str,
        name: Option<&str>,
    ) -> Result<Vec<Trigger>, StoreError> {
        let rows = query(self.sql.of(TRIGGERS))
            .bind(project)
            .bind(name)
            .fetch_all(&self.readers)
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
        let mut tx = self.writer.begin_firm().await?;
        let revision = self.raise(&mut tx).await?;
        let now = now(&mut tx).await?;
        let found =
            query(self.sql.of("UPDATE {p}trigger SET paused = ?3, revision = ?4, updated_at = ?5
              WHERE project_id = ?1 AND name = ?2 AND (?6 IS NULL OR revision = ?6)"))
            .bind(project)
            .bind(name)
            .bind(reason)
            .bind(revision)
            .bind(now)
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
        let mut tx = self.writer.begin_firm().await?;
        let gone = query(self.sql.of("DELETE FROM {p}trigger WHERE project_id = ?1 AND name = ?2"))
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
}

fn project(row: &SqliteRow) -> Result<Project, StoreError> {
    let allow: Option<String> = get(row, 3)?;
    Ok(Project {
        name: text(row, 0)?,
        enabled: get(row, 1)?,
        allow: allow.map(|json| from_json("a project", &json)).transpose()?.unwrap_or_default(),
        created_at: get(row, 2)?,
    })
}

fn trigger(row: &SqliteRow) -> Result<Trigger, StoreError> {
    Ok(Trigger {
        project: text(row, 0)?,
        name: text(row, 1)?,
        spec: from_json("a trigger", get(row, 2)?)?,
        paused: maybe_text(row, 3)?,
        revision: get(row, 4)?,
        created_at: get(row, 5)?,
        updated_at: get(row, 6)?,
    })
}
