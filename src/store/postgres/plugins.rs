//! Plugins and their versions.

use sqlx::{query, query_scalar};

use super::{
    Postgres,
    claims::{get, named},
    fault,
};
use crate::{
    model::plugin::{Plugin, PluginInfo, PluginVersion},
    store::{
        StoreError,
        rows::{from_json, to_json},
    },
};

impl Postgres {
    pub(super) async fn store_plugin(
        &self,
        project: &str,
        name: &str,
        info: &PluginInfo,
        bytes: &[u8],
        activate: bool,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        self.raise(&mut tx).await?;
        let new = query(self.sql.of(
            "INSERT INTO {p}plugin_version (project_id, plugin_name, digest, info_json, component,
                 created_at)
             VALUES ($1, $2, $3, $4, $5, {p}now_ms()) ON CONFLICT DO NOTHING",
        ))
        .bind(project)
        .bind(name)
        .bind(&info.digest)
        .bind(to_json(info)?)
        .bind(bytes)
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected()
            > 0;
        query(self.sql.of(
            "INSERT INTO {p}plugin AS p (project_id, name, active_digest, created_at)
             VALUES ($1, $2, $3, {p}now_ms())
             ON CONFLICT (project_id, name)
             DO UPDATE SET active_digest = CASE WHEN $4 THEN $3 ELSE p.active_digest END",
        ))
        .bind(project)
        .bind(name)
        .bind(&info.digest)
        .bind(activate)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(new)
    }

    pub(super) async fn set_active(
        &self,
        project: &str,
        name: &str,
        digest: &str,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        self.raise(&mut tx).await?;
        let found = query(self.sql.of(
            "UPDATE {p}plugin SET active_digest = $3 WHERE project_id = $1 AND name = $2
                AND EXISTS (SELECT FROM {p}plugin_version
                             WHERE project_id = $1 AND plugin_name = $2 AND digest = $3)",
        ))
        .bind(project)
        .bind(name)
        .bind(digest)
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected()
            > 0;
        tx.commit().await?;
        Ok(found)
    }

    pub(super) async fn list_plugins(
        &self,
        project: &str,
        name: Option<&str>,
    ) -> Result<Vec<Plugin>, StoreError> {
        let rows = query(self.sql.of(
            "SELECT p.name, v.info_json, v.digest = p.active_digest AS active, v.created_at
               FROM {p}plugin p
               JOIN {p}plugin_version v ON v.project_id = p.project_id AND v.plugin_name = p.name
              WHERE p.project_id = $1 AND ($2::text IS NULL OR p.name = $2)
              ORDER BY p.name, v.created_at DESC, v.digest",
        ))
        .bind(project)
        .bind(name)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let mut plugins: Vec<Plugin> = Vec::new();
        for row in &rows {
            let name: String = named(row, "name")?;
            let version = PluginVersion {
                info: from_json("a plugin version", named(row, "info_json")?)?,
                active: named(row, "active")?,
                created_at: named(row, "created_at")?,
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
        query_scalar(self.sql.of(
            "SELECT component FROM {p}plugin_version WHERE project_id = $1 AND digest = $2 LIMIT 1",
        ))
        .bind(project)
        .bind(digest)
        .fetch_optional(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)
    }

    pub(super) async fn drop_plugin(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let mut tx = self.pool.begin().await?;
        // Raised first: no trigger can come to name the plugin meanwhile.
        self.raise(&mut tx).await?;
        let rows = query(self.sql.of(
            "SELECT name FROM {p}trigger
              WHERE project_id = $1 AND spec_json::json -> 'target' ->> 'plugin' = $2 ORDER BY name",
        ))
        .bind(project)
        .bind(name)
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let users = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<String>, _>>()?;
        if !users.is_empty() {
            return Ok(Some(users));
        }
        let gone = query(self.sql.of("DELETE FROM {p}plugin WHERE project_id = $1 AND name = $2"))
            .bind(project)
            .bind(name)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        if gone.rows_affected() == 0 {
            return Ok(None);
        }
        query(
            self.sql.of("DELETE FROM {p}plugin_version WHERE project_id = $1 AND plugin_name = $2"),
        )
        .bind(project)
        .bind(name)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(Some(users))
    }
}
