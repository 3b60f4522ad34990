//! Looking for work.

use sqlx::query;

use super::{Postgres, claims::get, fault};
use crate::{
    model::Lane,
    store::{StoreError, Survey},
};

impl Postgres {
    pub(super) async fn find_work(&self, lanes: &[Lane]) -> Result<Survey, StoreError> {
        // Two skip scans, one probe for each distinct pair, and one look at
        // the head of each lane's schedule.
        let rows = query(self.sql.of("WITH RECURSIVE seam AS (
                 SELECT l.lane, (SELECT o.project_id FROM {p}outbox o
                                  WHERE o.lane = l.lane AND o.dispatched_at IS NULL
                                    AND o.available_at IS NULL
                                  ORDER BY o.lane, o.project_id LIMIT 1) AS project
                   FROM unnest($1::smallint[]) AS l(lane)
                 UNION ALL
                 SELECT s.lane, (SELECT o.project_id FROM {p}outbox o
                                  WHERE o.lane = s.lane AND o.project_id > s.project
                                    AND o.dispatched_at IS NULL AND o.available_at IS NULL
                                  ORDER BY o.lane, o.project_id LIMIT 1)
                   FROM seam s WHERE s.project IS NOT NULL
             ), pair AS (
                 (SELECT d.project_id AS project, d.trigger_name AS trigger FROM {p}delivery d
                   WHERE d.state = 'ready' ORDER BY d.project_id, d.trigger_name LIMIT 1)
                 UNION ALL
                 SELECT n.project_id, n.trigger_name FROM pair p, LATERAL (
                     SELECT d.project_id, d.trigger_name FROM {p}delivery d
                      WHERE d.state = 'ready'
                        AND (d.project_id, d.trigger_name) > (p.project, p.trigger)
                      ORDER BY d.project_id, d.trigger_name LIMIT 1) n
             )
             SELECT 'seam', lane, project, NULL, NULL::bigint FROM seam WHERE project IS NOT NULL
             UNION ALL SELECT 'pair', 0, project, trigger, NULL FROM pair
             UNION ALL
             SELECT 'now', 0, NULL, NULL, {p}now_ms()
             UNION ALL
             SELECT 'due', 0, NULL, NULL, min(h.at)
               FROM unnest($1::smallint[]) AS l(lane), LATERAL (
                   SELECT o.available_at AS at FROM {p}outbox o
                    WHERE o.lane = l.lane AND o.dispatched_at IS NULL
                      AND o.available_at IS NOT NULL
                    ORDER BY o.lane, o.available_at LIMIT 1) h"))
        .bind(lanes)
        .fetch_all(&mut *self.claims.lent().await?)
        .await
        .map_err(fault)?;
        let mut survey = Survey::default();
        let mut due = None;
        for row in rows {
            match get::<&str>(&row, 0)? {
                "seam" => {
                    let lane: i32 = get(&row, 1)?;
                    survey.seams.push((Lane::try_from(lane).unwrap_or(0), get(&row, 2)?));
                }
                "pair" => survey.deliveries.push((get(&row, 2)?, get(&row, 3)?)),
                "now" => survey.now = get(&row, 4)?,
                _ => due = get(&row, 4)?,
            }
        }
        survey.scheduled_in = due.map(|at: i64| (at - survey.now).max(0));
        Ok(survey)
    }

    pub(super) async fn find_newcomers(
        &self,
        lanes: &[Lane],
        known: &[String],
    ) -> Result<Vec<(Lane, String)>, StoreError> {
        // One probe for each gap between two known projects in each lane. The
        // last gap ends where the next lane begins.
        let rows = query(self.sql.of("SELECT l.lane::int, n.project_id
               FROM unnest($1::smallint[]) AS l(lane),
                    unnest(array_prepend('', $2::text[]),
                           array_append($2::text[], NULL)) AS gap(low, high), LATERAL (
                 SELECT o.project_id FROM {p}outbox o
                  WHERE o.dispatched_at IS NULL AND o.available_at IS NULL
                    AND (o.lane, o.project_id) > (l.lane, gap.low)
                    AND (o.lane, o.project_id) < (
                        l.lane + (gap.high IS NULL)::int::smallint, coalesce(gap.high, ''))
                  ORDER BY o.lane, o.project_id LIMIT 1) n"))
        .bind(lanes)
        .bind(known)
        .fetch_all(&mut *self.claims.lent().await?)
        .await
        .map_err(fault)?;
        rows.iter()
            .map(|row| Ok((Lane::try_from(get::<i32>(row, 0)?).unwrap_or(0), get(row, 1)?)))
            .collect()
    }
}
