//! Dead letters: looked at, requeued, purged; singly and in bulk.

use axum::{Json as Answered, extract::State, http::StatusCode, response::IntoResponse as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{
    Shared,
    extract::{Json, Params, Path},
    operations,
    page::{self, Items},
    problem::{Answer, Kind, Problem},
    projects,
    routes::Routes,
};
use crate::{
    model::{UnixMillis, names, outcome::FailureKind},
    store::{DeadLetterFilter, DeliveryRow, OperationKind, Requeued},
};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get(
            "/v1/projects/{project}/dead-letters",
            &["trigger", "eventName", "aggregateId", "kind", "limit", "cursor", "since", "until"],
            list,
        )
        .post("/v1/projects/{project}/dead-letters/requeue", &[], requeue_many)
        .post("/v1/projects/{project}/dead-letters/purge", &[], purge_many)
        .post("/v1/projects/{project}/dead-letters/{id}/requeue", &[], requeue)
        .post("/v1/projects/{project}/dead-letters/{id}/purge", &[], purge)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeadLetter {
    id: i64,
    message_id: Uuid,
    trigger: String,
    resource: String,
    aggregate_id: String,
    event_name: String,
    generation: u32,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    died_at: Option<UnixMillis>,
}

impl From<DeliveryRow> for DeadLetter {
    fn from(row: DeliveryRow) -> Self {
        Self {
            id: row.id,
            message_id: row.message_id,
            trigger: row.trigger,
            resource: row.resource,
            aggregate_id: row.aggregate_id,
            event_name: row.event_name,
            generation: row.generation,
            attempts: row.attempts,
            kind: row.kind,
            last_error: row.last_error,
            died_at: row.ended_at,
        }
    }
}

async fn list(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<DeadLetter>>> {
    let mut page = page::request(&params)?;
    let filter = DeadLetterFilter {
        trigger: params.text("trigger"),
        event_name: params.text("eventName"),
        aggregate_id: params.text("aggregateId"),
        kind: params.one_of("kind")?,
        since: page.since.take(),
        until: page.until.take(),
    };
    projects::existing(&app, &project).await?;
    let page = app.api.store.dead_letters(&project, &filter, &page).await?;
    Ok(Answered(Items::page(page, DeadLetter::from)))
}

async fn requeue(State(app): State<Shared>, Path((project, id)): Path<(String, i64)>) -> Answer {
    projects::existing(&app, &project).await?;
    match app.api.store.requeue(&project, id).await? {
        Requeued::Yes => {
            app.api.store.wake();
            Ok(Answered(json!({ "id": id, "state": "ready" })).into_response())
        }
        Requeued::Unknown => Err(unknown(id)),
        Requeued::Open => {
            let detail = "its event is being delivered to its trigger again; wait for that to end";
            Err(Problem::new(Kind::StillOpen, detail))
        }
    }
}

async fn purge(
    State(app): State<Shared>,
    Path((project, id)): Path<(String, i64)>,
) -> Answer<StatusCode> {
    projects::existing(&app, &project).await?;
    let purged = app.api.store.purge(&project, id).await?;
    if purged { Ok(StatusCode::NO_CONTENT) } else { Err(unknown(id)) }
}

fn unknown(id: i64) -> Problem {
    Problem::new(Kind::UnknownDeadLetter, format!("there is no dead letter {id}"))
}

/// Which dead letters are meant: all of the project if nothing is said, which
/// must be said as `{}`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a filter as an object")]
struct Bulk {
    trigger: Option<String>,
    event_name: Option<String>,
    aggregate_id: Option<String>,
    kind: Option<FailureKind>,
    since: Option<UnixMillis>,
    until: Option<UnixMillis>,
    limit: Option<i64>,
    #[serde(default)]
    dry_run: bool,
}

async fn requeue_many(
    State(app): State<Shared>,
    Path(project): Path<String>,
    Json(bulk): Json<Bulk>,
) -> Answer {
    start(&app, &project, OperationKind::RequeueDeadLetters, bulk).await
}

async fn purge_many(
    State(app): State<Shared>,
    Path(project): Path<String>,
    Json(bulk): Json<Bulk>,
) -> Answer {
    start(&app, &project, OperationKind::PurgeDeadLetters, bulk).await
}

async fn start(app: &Shared, project: &str, kind: OperationKind, bulk: Bulk) -> Answer {
    let Bulk { limit, dry_run, .. } = bulk;
    let texts = [
        ("trigger", &bulk.trigger),
        ("eventName", &bulk.event_name),
        ("aggregateId", &bulk.aggregate_id),
    ];
    for (field, text) in texts {
        text.as_deref().map_or(Ok(()), |text| names::text(field, text))?;
    }
    if limit.is_some_and(|limit| limit < 1) {
        return Err(Problem::field("limit", "is less than 1"));
    }
    let filter = DeadLetterFilter {
        trigger: bulk.trigger,
        event_name: bulk.event_name,
        aggregate_id: bulk.aggregate_id,
        kind: bulk.kind,
        since: bulk.since,
        until: bulk.until,
    };
    projects::existing(app, project).await?;
    if dry_run {
        let matches = app.api.store.count_dead(project, &filter).await?;
        return Ok(Answered(json!({ "matches": matches })).into_response());
    }
    let operation = app.api.store.start(project, kind, &filter, limit).await?;
    Ok(operations::accepted(app, operation))
}
