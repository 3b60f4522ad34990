//! Reading and writing triggers' state.

use std::fmt::Write as _;

use sqlx::{Sqlite as Db, SqliteConnection, query, query::Query, sqlite::SqliteArguments};

use super::{Sqlite, fault, get};
use crate::store::{
    StateEntry, StoreError,
    overlay::{Needs, Overlay},
    rows::to_json,
};

/// Keys from `?3` on, behind `?4`, before `?5`, the first `?6`.
macro_rules! keys_of {
    ($columns:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM {p}state
              WHERE project_id = ?1 AND trigger_name = ?2 AND key >= ?3 AND key > ?4 AND key < ?5
              ORDER BY key LIMIT ?6"
        )
    };
}

/// Binds what [`keys_of`] asks for.
fn bind_range<'q>(
    query: Query<'q, Db, SqliteArguments>,
    (project, trigger): (&'q str, &'q str),
    prefix: &'q str,
    after: Option<&'q str>,
    limit: u32,
) -> Query<'q, Db, SqliteArguments> {
    let query = query.bind(project).bind(trigger).bind(prefix).bind(after.unwrap_or(""));
    let query = match successor(prefix) {
        Some(end) => query.bind(end),
        // To SQLite every blob is larger than any text.
        None => query.bind(Vec::<u8>::new()),
    };
    query.bind(i64::from(limit))
}

/// The first text behind all that begin with `prefix`; none if nothing is.
fn successor(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // Past the gap in which no characters are.
        let next =
            if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

impl Sqlite {
    pub(super) async fn value(
        &self,
        project: &str,
        trigger: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let row = query(self.sql.of(
            "SELECT value FROM {p}state WHERE project_id = ?1 AND trigger_name = ?2 AND key = ?3",
        ))
        .bind(project)
        .bind(trigger)
        .bind(key)
        .fetch_optional(&self.readers)
        .await
        .map_err(fault)?;
        row.map(|row| get(&row, 0)).transpose()
    }

    pub(super) async fn key_list(
        &self,
        db: &mut SqliteConnection,
        owner: (&str, &str),
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let rows = bind_range(query(self.sql.of(keys_of!("key"))), owner, prefix, after, limit)
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
        let sql = self.sql.of(keys_of!("key, value, version"));
        let rows = bind_range(query(sql), (project, trigger), prefix, after, limit)
            .fetch_all(&self.readers)
            .await
            .map_err(fault)?;
        let entry =
            |row| Ok(StateEntry { key: get(row, 0)?, value: get(row, 1)?, version: get(row, 2)? });
        rows.iter().map(entry).collect()
    }

    /// Loads the state that a group touches; nobody else writes meanwhile.
    pub(super) async fn load_state(
        &self,
        db: &mut SqliteConnection,
        needs: &Needs,
    ) -> Result<Overlay, StoreError> {
        let mut overlay = Overlay::default();
        let places: Vec<_> = needs.places.iter().collect();
        let rows = query(self.sql.of("SELECT k.key, s.value
               FROM json_each(?1) k CROSS JOIN {p}state s
              WHERE s.project_id = k.value ->> 0 AND s.trigger_name = k.value ->> 1
                AND s.key = k.value ->> 2"))
        .bind(to_json(&places)?)
        .fetch_all(&mut *db)
        .await
        .map_err(fault)?;
        for row in &rows {
            let at = usize::try_from(get::<i64>(row, 0)?).unwrap_or(usize::MAX);
            if let Some(place) = places.get(at) {
                overlay.stored.insert((*place).clone(), get(row, 1)?);
            }
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
        db: &mut SqliteConnection,
        overlay: &Overlay,
    ) -> Result<(), StoreError> {
        let (mut sets, mut deletes) = (Vec::new(), Vec::new());
        for (place, value) in overlay.changes() {
            match value {
                // Values are bytes, which JSON can't carry.
                Some(value) => sets.push((&place.0, &place.1, &place.2, hex(value))),
                None => deletes.push(place),
            }
        }
        if !sets.is_empty() {
            query(self.sql.of("INSERT INTO {p}state AS s (project_id, trigger_name, key, value)
                 SELECT w.value ->> 0, w.value ->> 1, w.value ->> 2, unhex(w.value ->> 3)
                   FROM json_each(?1) w WHERE true
                 ON CONFLICT (project_id, trigger_name, key)
                 DO UPDATE SET value = excluded.value, version = s.version + 1"))
            .bind(to_json(&sets)?)
            .execute(&mut *db)
            .await
            .map_err(fault)?;
        }
        if !deletes.is_empty() {
            query(self.sql.of("DELETE FROM {p}state WHERE (project_id, trigger_name, key) IN (
                     SELECT k.value ->> 0, k.value ->> 1, k.value ->> 2 FROM json_each(?1) k)"))
            .bind(to_json(&deletes)?)
            .execute(&mut *db)
            .await
            .map_err(fault)?;
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String can't fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::successor;

    #[test]
    fn a_range_ends_behind_its_prefix() {
        assert_eq!(successor("a/").as_deref(), Some("a0"));
        assert_eq!(successor("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(successor("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(successor("\u{10ffff}"), None);
        assert_eq!(successor(""), None);
    }
}
