//! Plugins and their versions.

use sqlx::query;

use super::{Sqlite, fault, get, now, text};
use crate::{
    model::plugin::{Plugin, PluginInfo, PluginVersion},
    store::{
        StoreError,
        rows::{from_json, to_json},
    },
};

impl Sqlite {
    pub(super) async fn store_plugin(
        &self,
        project: &str,
        name: &str,
        info: &PluginInfo,
        bytes: &[u8],
        activate: bool,
    ) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let now = now(&mut tx).await?;
        let new = query(self.sql.of(
            "INSERT INTO {p}plugin_version (project_id, plugin_name, digest, info_json, component,
                 created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        ))
        .bind(project)
        .bind(name)
        .bind(&info.digest)
        .bind(to_json(info)?)
        .bind(bytes)
        .bind(now)
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected()
            > 0;
        let changed = query(self.sql.of(
            "INSERT INTO {p}plugin AS p (project_id, name, active_digest, created_at)
             VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (project_id, name)
             DO UPDATE SET active_digest = excluded.active_digest
                WHERE ?5 AND p.active_digest <> excluded.active_digest",
        ))
        .bind(project)
        .bind(name)
        .bind(&info.digest)
        .bind(now)
        .bind(activate)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        if changed.rows_affected() > 0 {
            self.raise(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(new)
    }

    pub(super) async fn set_active(
        &self,
        project: &str,
        name: &str,
        digest: &str,
    ) -> Result<bool, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let found = query(self.sql.of(
            "UPDATE {p}plugin SET active_digest = ?3 WHERE project_id = ?1 AND name = ?2
                AND EXISTS (SELECT 1 FROM {p}plugin_version
                             WHERE project_id = ?1 AND plugin_name = ?2 AND digest = ?3)",
        ))
        .bind(project)
        .bind(name)
        .bind(digest)
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

    pub(super) async fn list_plugins(
        &self,
        project: &str,
        name: Option<&str>,
    ) -> Result<Vec<Plugin>, StoreError> {
        // Two uploads within a millisecond are told apart by their rowids.
        let rows = query(self.sql.of(
            "SELECT p.name, v.info_json, v.digest = p.active_digest, v.created_at
               FROM {p}plugin p
               JOIN {p}plugin_version v ON v.project_id = p.project_id AND v.plugin_name = p.name
              WHERE p.project_id = ?1 AND (?2 IS NULL OR p.name = ?2)
              ORDER BY p.name, v.created_at DESC, v.rowid DESC",
        ))
        .bind(project)
        .bind(name)
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        let mut plugins: Vec<Plugin> = Vec::new();
        for row in &rows {
            let name = text(row, 0)?;
            let version = PluginVersion {
                info: from_json("a plugin version", get(row, 1)?)?,
                active: get(row, 2)?,
                created_at: get(row, 3)?,
            };
            match plugins.last_mut().filter(|plugin| plugin.name == name) {
                Some(plugin) => plugin.versions.push(version),
                None => plugins.push(Plugin {
                    project: project.to_owned(),
                    name,
                    versions: vec![version],
                }),
            }
        }
        Ok(plugins)
    }

    pub(super) async fn component(
        &self,
        project: &str,
        digest: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let row = query(self.sql.of(
            "SELECT component FROM {p}plugin_version WHERE project_id = ?1 AND digest = ?2 LIMIT 1",
        ))
        .bind(project)
        .bind(digest)
        .fetch_optional(&self.readers)
        .await
        .map_err(fault)?;
        row.map(|row| get(&row, 0)).transpose()
    }

    pub(super) async fn drop_plugin(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let mut tx = self.writer.begin_firm().await?;
        let rows = query(self.sql.of("SELECT name FROM {p}trigger
              WHERE project_id = ?1 AND spec_json ->> '$.target.plugin' = ?2 ORDER BY name"))
        .bind(project)
        .bind(name)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let users = rows.iter().map(|row| text(row, 0)).collect::<Result<Vec<_>, _>>()?;
        if !users.is_empty() {
            return Ok(Some(users));
        }
        let gone = query(self.sql.of("DELETE FROM {p}plugin WHERE project_id = ?1 AND name = ?2"))
            .bind(project)
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        if gone.rows_affected() == 0 {
            return Ok(None);
        }
        query(
            self.sql.of("DELETE FROM {p}plugin_version WHERE project_id = ?1 AND plugin_name = ?2"),
        )
        .bind(project)
        .bind(name)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        self.raise(&mut tx).await?;
        tx.commit().await?;
        Ok(Some(users))
    }
}
