//! Attempts: page by page, and as they come.

use sqlx::{postgres::PgRow, query, query_scalar};

use super::{
    Postgres,
    claims::{get, named},
    fault,
    inspect::{attempt, attempt_columns, paged},
};
use crate::{
    model::outcome::FailureKind,
    store::{AttemptFilter, AttemptRow, Page, PageRequest, StoreError, Subject},
};

/// The columns of [`attempt_row`], of a table called `a`.
macro_rules! attempt_rows {
    () => {
        concat!(
            "SELECT ",
            attempt_columns!(),
            ", o.resource, o.aggregate_id, o.event_name
               FROM {p}attempt a LEFT JOIN {p}outbox o ON o.pk = a.event_pk"
        )
    };
}

impl Postgres {
    pub(super) async fn attempt_page(
        &self,
        project: &str,
        filter: &AttemptFilter,
        page: &PageRequest,
    ) -> Result<Page<AttemptRow>, StoreError> {
        let rows = query(self.sql.of(concat!(
            attempt_rows!(),
            " WHERE a.project_id = $1
                AND ($2::text IS NULL OR a.trigger_name = $2)
                AND ($3::uuid IS NULL OR a.event_pk =
                      (SELECT o.pk FROM {p}outbox o WHERE o.message_id = $3))
                AND (NOT $4 OR a.kind IS NOT NULL)
                AND ($5::bigint IS NULL OR a.id < $5)
                AND ($6::bigint IS NULL OR a.started_at >= $6)
                AND ($7::bigint IS NULL OR a.started_at < $7)
                AND ($8::text IS NULL OR a.kind = $8)
              ORDER BY a.id DESC LIMIT $9"
        )))
        .bind(project)
        .bind(filter.trigger.as_deref())
        .bind(filter.message_id)
        .bind(filter.failed)
        .bind(page.cursor)
        .bind(page.since)
        .bind(page.until)
        .bind(filter.kind.map(FailureKind::as_str))
        .bind(i64::from(page.limit))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        let items = rows.iter().map(attempt_row).collect::<Result<Vec<_>, _>>()?;
        Ok(paged(items, page, |row| row.id))
    }

    pub(super) async fn last_attempt(&self) -> Result<i64, StoreError> {
        query_scalar(self.sql.of("SELECT coalesce(max(id), 0) FROM {p}attempt"))
            .fetch_one(&mut *self.pool.lent().await?)
            .await
            .map_err(fault)
    }

    /// Along the primary key, from its end: the project is written so that its
    /// own index, along which all that it has would be sorted, is out of
    /// question.
    pub(super) async fn last_attempts(
        &self,
        project: &str,
        above: i64,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError> {
        let mut ids: Vec<i64> = query_scalar(
            self.sql.of("SELECT id FROM {p}attempt WHERE id > $2 AND project_id || '' = $1
              ORDER BY id DESC LIMIT $3"),
        )
        .bind(project)
        .bind(above)
        .bind(i64::from(limit))
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        ids.reverse();
        Ok(ids)
    }

    pub(super) async fn these_attempts(
        &self,
        project: &str,
        ids: &[i64],
    ) -> Result<Vec<AttemptRow>, StoreError> {
        let rows = query(self.sql.of(concat!(
            attempt_rows!(),
            " WHERE a.id = ANY($2) AND a.project_id || '' = $1 ORDER BY a.id"
        )))
        .bind(project)
        .bind(ids)
        .fetch_all(&mut *self.pool.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter().map(attempt_row).collect()
    }
}

fn attempt_row(row: &PgRow) -> Result<AttemptRow, StoreError> {
    let resource: Option<String> = named(row, "resource")?;
    let subject = |resource| -> Result<Subject, StoreError> {
        let (aggregate_id, event_name) = (named(row, "aggregate_id")?, named(row, "event_name")?);
        Ok(Subject { resource, aggregate_id, event_name })
    };
    Ok(AttemptRow {
        id: get(row, 0)?,
        attempt: attempt(row)?,
        subject: resource.map(subject).transpose()?,
    })
}
