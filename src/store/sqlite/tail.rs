//! Attempts: page by page, and as they come.

use sqlx::{query, sqlite::SqliteRow};

use super::{
    Sqlite, fault, get,
    lists::{attempt, attempt_columns, by_id},
    maybe_text, paged, text,
};
use crate::{
    model::outcome::FailureKind,
    store::{AttemptFilter, AttemptRow, Page, PageRequest, StoreError, Subject, rows::to_json},
};

/// The columns of [`attempt_row`], of a table called `d`.
macro_rules! attempt_row_columns {
    () => {
        concat!(
            attempt_columns!(),
            ", (SELECT o.resource FROM {p}outbox o WHERE o.pk = d.event_pk),
               (SELECT o.aggregate_id FROM {p}outbox o WHERE o.pk = d.event_pk),
               (SELECT o.event_name FROM {p}outbox o WHERE o.pk = d.event_pk)"
        )
    };
}

macro_rules! attempts_wanted {
    () => {
        "(?5 IS NULL OR d.started_at >= ?5) AND (?6 IS NULL OR d.started_at < ?6)
         AND (?7 = 0 OR d.kind IS NOT NULL) AND (?9 IS NULL OR d.kind = ?9)"
    };
}

impl Sqlite {
    pub(super) async fn attempt_page(
        &self,
        project: &str,
        filter: &AttemptFilter,
        page: &PageRequest,
    ) -> Result<Page<AttemptRow>, StoreError> {
        let sql = match filter.message_id {
            Some(_) => concat!(
                "SELECT ",
                attempt_row_columns!(),
                " FROM {p}attempt d
                  WHERE d.event_pk = (SELECT o.pk FROM {p}outbox o WHERE o.message_id = ?8)
                    AND d.project_id = ?1 AND (?2 IS NULL OR d.trigger_name = ?2)
                    AND d.id < ?3 AND ",
                attempts_wanted!(),
                " ORDER BY d.id DESC LIMIT ?4"
            ),
            None => by_id!(
                attempt_row_columns!(),
                "attempt",
                "attempt_trigger",
                "true",
                "<",
                "DESC",
                attempts_wanted!()
            ),
        };
        let rows = query(self.sql.of(sql))
            .bind(project)
            .bind(filter.trigger.as_deref())
            .bind(page.cursor.unwrap_or(i64::MAX))
            .bind(i64::from(page.limit))
            .bind(page.since)
            .bind(page.until)
            .bind(filter.failed)
            .bind(filter.message_id.map(|id| id.to_string()))
            .bind(filter.kind.map(FailureKind::as_str))
            .fetch_all(&self.readers)
            .await
            .map_err(fault)?;
        let items = rows.iter().map(|row| attempt_row(row, project));
        Ok(paged(items.collect::<Result<Vec<_>, _>>()?, page, |row| row.id))
    }

    pub(super) async fn last_attempt(&self) -> Result<i64, StoreError> {
        let row = query(self.sql.of("SELECT coalesce(max(id), 0) FROM {p}attempt"))
            .fetch_one(&self.readers)
            .await
            .map_err(fault)?;
        get(&row, 0)
    }

    /// Along the primary key, from its end.
    pub(super) async fn last_attempts(
        &self,
        project: &str,
        above: i64,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError> {
        let rows = query(
            self.sql.of("SELECT id FROM {p}attempt NOT INDEXED WHERE id > ?2 AND project_id = ?1
              ORDER BY id DESC LIMIT ?3"),
        )
        .bind(project)
        .bind(above)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        rows.iter().rev().map(|row| get(row, 0)).collect()
    }

    pub(super) async fn these_attempts(
        &self,
        project: &str,
        ids: &[i64],
    ) -> Result<Vec<AttemptRow>, StoreError> {
        let rows = query(self.sql.of(concat!(
            "SELECT ",
            attempt_row_columns!(),
            " FROM {p}attempt d NOT INDEXED
              WHERE d.id IN (SELECT value FROM json_each(?2)) AND d.project_id = ?1 ORDER BY d.id"
        )))
        .bind(project)
        .bind(to_json(&ids)?)
        .fetch_all(&self.readers)
        .await
        .map_err(fault)?;
        rows.iter().map(|row| attempt_row(row, project)).collect()
    }
}

fn attempt_row(row: &SqliteRow, project: &str) -> Result<AttemptRow, StoreError> {
    let subject = |resource| -> Result<Subject, StoreError> {
        Ok(Subject { resource, aggregate_id: text(row, 14)?, event_name: text(row, 15)? })
    };
    Ok(AttemptRow {
        id: get(row, 0)?,
        attempt: attempt(row, project)?,
        subject: maybe_text(row, 13)?.map(subject).transpose()?,
    })
}
