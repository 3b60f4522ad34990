//! Reading and writing triggers' state.

use sqlx::{PgConnection, query};

use super::{Postgres, Texts, claims::get, column, fault};
use crate::store::{
    StateEntry, StoreError,
    overlay::{Needs, Overlay},
};

/// Keys with the prefix `$3`, behind `$4`, the first `$5`.
macro_rules! keys_of {
    ($columns:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM {p}state
              WHERE project_id = $1 AND trigger_name = $2
                AND key >= $3 AND key > $4 AND starts_with(key, $3)
              ORDER BY key LIMIT $5"
        )
    };
}

impl Postgres {
    pub(super) async fn value(
        &self,
        project: &str,
        trigger: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let row = query(self.sql.of(
            "SELECT value FROM {p}state WHERE project_id = $1 AND trigger_name = $2 AND key = $3",
        ))
        .bind(project)
        .bind(trigger)
        .bind(key)
        .fetch_optional(&mut *self.router.lent().await?)
        .await
        .map_err(fault)?;
        row.map(|row| get(&row, 0)).transpose()
    }

    pub(super) async fn key_list(
        &self,
        db: &mut PgConnection,
        (project, trigger): (&str, &str),
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let rows = query(self.sql.of(keys_of!("key")))
            .bind(project)
            .bind(trigger)
            .bind(prefix)
            .bind(after.unwrap_or(""))
            .bind(i64::from(limit))
            .fetch_all(db)
            .await
            .map_err(fault)?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    pub(super) async fn entries(
        &self,
        project: &str,
        trigger: &str,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StateEntry>, StoreError> {
        let rows = query(self.sql.of(keys_of!("key, value, version")))
            .bind(project)
            .bind(trigger)
            .bind(prefix)
            .bind(after.unwrap_or(""))
            .bind(i64::from(limit))
            .fetch_all(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)?;
        let entry =
            |row| Ok(StateEntry { key: get(row, 0)?, value: get(row, 1)?, version: get(row, 2)? });
        rows.iter().map(entry).collect()
    }

    /// Locks and loads the state that a group touches.
    pub(super) async fn load_state(
        &self,
        db: &mut PgConnection,
        needs: &Needs,
    ) -> Result<Overlay, StoreError> {
        let mut overlay = Overlay::default();
        let owners: Vec<_> = needs.owners.iter().collect();
        // One lock for each trigger, in sorted order, so that two hosts'
        // settles wait for each other instead of deadlocking.
        query(self.sql.of("SELECT pg_advisory_xact_lock(k.h)
               FROM (SELECT DISTINCT hashtextextended('{p}state',
                                hashtextextended(o.trigger, hashtextextended(o.project, 0))) AS h
                       FROM unnest($1::text[], $2::text[]) AS o(project, trigger)
                      ORDER BY h) k"))
        .bind(column(&owners, |o| &*o.0) as Texts)
        .bind(column(&owners, |o| &*o.1) as Texts)
        .execute(&mut *db)
        .await
        .map_err(fault)?;
        let places: Vec<_> = needs.places.iter().collect();
        let rows = query(self.sql.of("SELECT s.project_id, s.trigger_name, s.key, s.value
               FROM unnest($1::text[], $2::text[], $3::text[]) AS k(project, trigger, key)
               JOIN {p}state s ON s.project_id = k.project AND s.trigger_name = k.trigger
                              AND s.key = k.key"))
        .bind(column(&places, |p| &*p.0) as Texts)
        .bind(column(&places, |p| &*p.1) as Texts)
        .bind(column(&places, |p| &*p.2) as Texts)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        for row in &rows {
            overlay.stored.insert((get(row, 0)?, get(row, 1)?, get(row, 2)?), get(row, 3)?);
        }
        for (range, limit) in &needs.ranges {
            let (project, trigger, prefix, after) = range;
            let owner = (&**project, &**trigger);
            let keys = self.key_list(db, owner, prefix, after.as_deref(), *limit).await?;
            overlay.listed.insert(range.clone(), keys);
        }
        Ok(overlay)
    }

    pub(super) async fn write_state(
        &self,
        db: &mut PgConnection,
        overlay: &Overlay,
    ) -> Result<(), StoreError> {
        let (mut sets, mut deletes) = (Vec::new(), Vec::new());
        for (place, value) in overlay.changes() {
            match value {
                Some(value) => sets.push((place, value)),
                None => deletes.push(place),
            }
        }
        if !sets.is_empty() {
            query(self.sql.of("INSERT INTO {p}state AS s (project_id, trigger_name, key, value)
                 SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
                 ON CONFLICT (project_id, trigger_name, key)
                 DO UPDATE SET value = excluded.value, version = s.version + 1"))
            .bind(column(&sets, |s| &*s.0.0) as Texts)
            .bind(column(&sets, |s| &*s.0.1) as Texts)
            .bind(column(&sets, |s| &*s.0.2) as Texts)
            .bind(column(&sets, |s| s.1))
            .execute(&mut *db)
            .await
            .map_err(fault)?;
        }
        if !deletes.is_empty() {
            query(self.sql.of(
                "DELETE FROM {p}state s
                  USING unnest($1::text[], $2::text[], $3::text[]) AS k(project, trigger, key)
                  WHERE s.project_id = k.project AND s.trigger_name = k.trigger AND s.key = k.key",
            ))
            .bind(column(&deletes, |d| &*d.0) as Texts)
            .bind(column(&deletes, |d| &*d.1) as Texts)
            .bind(column(&deletes, |d| &*d.2) as Texts)
            .execute(&mut *db)
            .await
            .map_err(fault)?;
        }
        Ok(())
    }
}
