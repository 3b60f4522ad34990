//! Bulk work: its progress, its end, and who carries it out.

use std::time::Duration;

use axum::{
    Json as Answered,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use uuid::Uuid;

use super::{
    App, Shared,
    extract::Path,
    problem::{Answer, Kind, Problem},
    projects,
    routes::Routes,
};
use crate::{router::replay, store::Operation};

/// Dead letters of one transaction.
const BATCH: u32 = 200;

/// How long to leave a database alone that didn't answer.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn routes(routes: Routes) -> Routes {
    routes.get("/v1/projects/{project}/operations/{id}", &[], get).post(
        "/v1/projects/{project}/operations/{id}/cancel",
        &[],
        cancel,
    )
}

async fn get(
    State(app): State<Shared>,
    Path((project, id)): Path<(String, Uuid)>,
) -> Answer<Answered<Operation>> {
    projects::existing(&app, &project).await?;
    let operation = app.api.store.operation(&project, id).await?;
    operation.map(Answered).ok_or_else(|| unknown(id))
}

async fn cancel(
    State(app): State<Shared>,
    Path((project, id)): Path<(String, Uuid)>,
) -> Answer<Answered<Operation>> {
    projects::existing(&app, &project).await?;
    let operation = app.api.store.cancel(&project, id).await?;
    operation.map(Answered).ok_or_else(|| unknown(id))
}

/// What is said of bulk work that was asked for and stored.
pub(super) fn accepted(app: &App, operation: Operation) -> Response {
    app.bulk.notify_one();
    let location = format!("/v1/projects/{}/operations/{}", operation.project, operation.id);
    let headers = [(header::LOCATION, location)];
    (StatusCode::ACCEPTED, headers, Answered(operation)).into_response()
}

fn unknown(id: Uuid) -> Problem {
    Problem::new(Kind::UnknownOperation, format!("there is no operation {id}"))
}

/// Carries out bulk work whenever there is some, until the host stops. What is
/// left then, any host goes on with.
pub(super) async fn work(app: &App) {
    let wanted = async {
        loop {
            app.bulk.notified().await;
            advance(app).await;
        }
    };
    tokio::select! {
        () = wanted => {}
        () = app.stopping.cancelled() => {}
    }
}

async fn advance(app: &App) {
    loop {
        match replay::advance(&*app.api.store, BATCH).await {
            // Requeued and replayed deliveries can run.
            Ok(more) => {
                app.api.store.wake();
                if !more {
                    return;
                }
            }
            Err(error) if error.is_passing() => {
                tracing::warn!(%error, "bulk work waits for the database");
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => {
                tracing::error!(%error, "bulk work stopped");
                return;
            }
        }
    }
}
