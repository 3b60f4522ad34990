//! Projects: tenants come and go.

use axum::{
    Extension, Json as Answered,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared,
    auth::Caller,
    extract::{JsonOrNothing, Params, Path},
    page::Items,
    problem::{Answer, Kind, Problem},
    routes::Routes,
    status,
};
use crate::{
    model::{capability::Allow, names},
    store::Project,
};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/projects", &["limit", "cursor"], list)
        .put("/v1/projects/{project}", &[], put)
        .get("/v1/projects/{project}", &[], get)
        .delete("/v1/projects/{project}", &[], delete)
        .post("/v1/projects/{project}/enable", &[], enable)
        .post("/v1/projects/{project}/disable", &[], disable)
}

/// The project of that name.
///
/// # Errors
/// When there is none.
pub(super) async fn existing(app: &Shared, name: &str) -> Answer<Project> {
    app.api.store.project(name).await?.ok_or_else(|| Problem::no_project(name))
}

async fn list(State(app): State<Shared>, params: Params) -> Answer<Answered<Items<Project>>> {
    let projects = app.api.store.projects().await?;
    Items::sorted(projects, &params, |project| project.name.clone()).map(Answered)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a project as an object")]
struct Body {
    /// What its triggers may grant; stays as it is if absent.
    allow: Option<Allow>,
}

async fn put(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    JsonOrNothing(Body { allow }): JsonOrNothing<Body>,
) -> Answer {
    names::name("project", &name)?;
    if let Some(allow) = &allow {
        allow.validate()?;
        if caller.project.is_some() {
            let detail = "what a project allows is set with a key for all projects";
            return Err(Problem::new(Kind::Forbidden, detail));
        }
    }
    let new = app.api.store.put_project(&name).await?;
    if let Some(allow) = &allow {
        app.api.store.allow(&name, allow).await?;
    }
    // Events may have waited for it.
    app.api.store.wake();
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answered(existing(&app, &name).await?)).into_response())
}

async fn get(State(app): State<Shared>, Path(name): Path<String>) -> Answer<Answered<Project>> {
    existing(&app, &name).await.map(Answered)
}

async fn enable(State(app): State<Shared>, Path(name): Path<String>) -> Answer<Answered<Project>> {
    switch(&app, &name, true).await
}

async fn disable(State(app): State<Shared>, Path(name): Path<String>) -> Answer<Answered<Project>> {
    switch(&app, &name, false).await
}

async fn switch(app: &Shared, name: &str, enabled: bool) -> Answer<Answered<Project>> {
    if !app.api.store.enable_project(name, enabled).await? {
        return Err(Problem::no_project(name));
    }
    app.api.store.wake();
    existing(app, name).await.map(Answered)
}

/// Deletes definitions first, so that nothing is delivered any more, then rows.
/// Rows of a project that doesn't exist, or whose deletion broke off, go too.
async fn delete(State(app): State<Shared>, Path(name): Path<String>) -> Answer<Response> {
    let store = &app.api.store;
    let status = app.status.fresh(&app.api).await?;
    let counts = status.projects.get(&name);
    let (plugins, triggers) =
        (store.plugins(&name).await?.len(), store.triggers(&name).await?.len());
    let secrets = store.secrets(&name).await?.len();
    let keys = store.keys().await?.iter().filter(|key| key.project.as_ref() == Some(&name)).count();
    let existed = store.project(&name).await?.is_some();
    if !existed && counts.is_none() {
        return Err(Problem::no_project(&name));
    }
    let went: Value = json!({
        "project": name,
        "existed": existed,
        "plugins": plugins,
        "triggers": triggers,
        "secrets": secrets,
        "keys": keys,
        "rows": counts.map(status::project),
    });
    super::to_the_end(async move {
        app.api.store.delete_project(&name).await?;
        app.api.store.delete_project_data(&name).await?;
        app.status.forget().await;
        Ok(Answered(went).into_response())
    })
    .await
}
