//! Liveness, readiness and metrics.

use std::time::Duration;

use axum::{Json as Answered, extract::State, http::header, response::IntoResponse as _};
use serde_json::{Value, json};

use super::{
    Shared,
    problem::{Answer, Kind, Problem},
    routes::Routes,
};

/// How long the database may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Calls that need no key.
pub(super) fn open_routes() -> Routes {
    Routes::default().get("/healthz", &[], alive).get("/readyz", &[], ready)
}

pub(super) fn routes(routes: Routes) -> Routes {
    routes.get("/metrics", &[], metrics)
}

async fn alive() -> Answered<Value> {
    Answered(json!({ "status": "ok" }))
}

async fn ready(State(app): State<Shared>) -> Answer<Answered<Value>> {
    let health = app.api.pulse.health(app.api.settings.stall_after);
    if let Some(span) = health.stalled_for {
        let mut detail = format!("the router has got nothing done for {} s", span.as_secs());
        if let Some(reason) = health.reason {
            detail = format!("{detail}: {reason}");
        }
        return Err(Problem::new(Kind::Stalled, detail));
    }
    match tokio::time::timeout(PATIENCE, app.api.store.ping()).await {
        Ok(Ok(())) => Ok(Answered(json!({ "status": "ok" }))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let detail = format!("the database didn't answer within {} s", PATIENCE.as_secs());
            Err(Problem::new(Kind::Unavailable, detail))
        }
    }
}

/// This host's counters, and counts of everything if the database answers.
async fn metrics(State(app): State<Shared>) -> Answer {
    let health = app.api.pulse.health(app.api.settings.stall_after);
    app.api.metrics.health(health.stalled_for.is_some(), health.in_flight);
    let status = app.status.get(&app.api).await.ok();
    let text = app.api.metrics.encode(status.as_deref());
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response())
}
