//! Triggers: put, paused, resumed, deleted, and what they keep.

use axum::{Json as Answered, extract::State, http::StatusCode, response::IntoResponse as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    App, Shared,
    extract::{Json, JsonOrNothing, Params, Path},
    page::Items,
    problem::{Answer, Kind, Problem},
    projects,
    routes::Routes,
};
use crate::{
    model::{
        UnixMillis,
        capability::Allow,
        names,
        plugin::Plugin,
        trigger::{Target, Trigger, TriggerSpec},
    },
    router::matcher,
    store::TriggerGone,
};

mod capabilities;
mod state;

use capabilities::Capabilities;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/projects/{project}/triggers", &["limit", "cursor"], list)
        .put("/v1/projects/{project}/triggers/{name}", &[], put)
        .get("/v1/projects/{project}/triggers/{name}", &[], get)
        .delete("/v1/projects/{project}/triggers/{name}", &["deliveries"], delete)
        .post("/v1/projects/{project}/triggers/{name}/pause", &[], pause)
        .post("/v1/projects/{project}/triggers/{name}/resume", &[], resume)
        .get(
            "/v1/projects/{project}/triggers/{name}/state",
            &["prefix", "after", "limit"],
            state::list,
        )
}

/// A trigger, its document as it can be put again.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TriggerView {
    name: String,
    spec: TriggerSpec,
    capabilities: Capabilities,
    revision: i64,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_reason: Option<String>,
    created_at: UnixMillis,
    updated_at: UnixMillis,
}

impl TriggerView {
    fn new(trigger: Trigger, allow: &Allow, plugins: &[Plugin]) -> Self {
        Self {
            capabilities: Capabilities::of(&trigger.spec, allow, plugins),
            name: trigger.name,
            spec: trigger.spec,
            revision: trigger.revision,
            paused: trigger.paused.is_some(),
            pause_reason: trigger.paused.filter(|reason| !reason.is_empty()),
            created_at: trigger.created_at,
            updated_at: trigger.updated_at,
        }
    }
}

async fn put(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    Json(spec): Json<TriggerSpec>,
) -> Answer {
    names::name("name", &name)?;
    check(&app, &spec)?;
    projects::existing(&app, &project).await?.allow.admit(&spec.grants)?;
    let Some(new) = app.api.store.put_trigger(&project, &name, &spec).await? else {
        return Err(missing(&app, &project, &spec).await?);
    };
    app.api.store.wake();
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answered(view(&app, &project, &name).await?)).into_response())
}

fn check(app: &App, spec: &TriggerSpec) -> Answer<()> {
    spec.validate()?;
    if spec.target == Target::Embedded {
        let why = "says `embedded`, which only an application with the code in it can put; \
                   name a `plugin`";
        return Err(Problem::field("target", why));
    }
    if let Some(when) = &spec.matches.when {
        matcher::check_when(when).map_err(|why| Problem::field("match.when", why))?;
    }
    app.api.sandbox.admit(&spec.limits)?;
    Ok(())
}

/// What a document names that isn't there.
async fn missing(app: &App, project: &str, spec: &TriggerSpec) -> Answer<Problem> {
    let there = app.api.store.secrets(project).await?;
    let granted = &spec.grants.secrets;
    match granted.iter().find(|name| there.iter().all(|secret| secret.name != **name)) {
        Some(name) => {
            let why = format!("names `{name}`, which isn't there: set it first");
            Ok(Problem::field("grants.secrets", why))
        }
        None => no_target(app, project, &spec.target).await,
    }
}

async fn no_target(app: &App, project: &str, target: &Target) -> Answer<Problem> {
    let plugin = target.plugin().unwrap_or_default();
    let there = app.api.store.plugin(project, plugin).await?.is_some();
    Ok(match target.digest() {
        Some(digest) if there => {
            let why = format!("names {digest}, which the plugin `{plugin}` doesn't have");
            Problem::field("target.version", why)
        }
        _ => Problem::field("target.plugin", format!("names `{plugin}`, which isn't there")),
    })
}

async fn list(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<TriggerView>>> {
    let allow = projects::existing(&app, &project).await?.allow;
    let triggers = app.api.store.triggers(&project).await?;
    let plugins = app.api.store.plugins(&project).await?;
    let view = |trigger| TriggerView::new(trigger, &allow, &plugins);
    let views = triggers.into_iter().map(view).collect();
    Items::sorted(views, &params, |trigger: &TriggerView| trigger.name.clone()).map(Answered)
}

async fn get(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
) -> Answer<Answered<TriggerView>> {
    projects::existing(&app, &project).await?;
    view(&app, &project, &name).await.map(Answered)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a pause as an object")]
struct Pause {
    reason: String,
}

async fn pause(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    JsonOrNothing(Pause { reason }): JsonOrNothing<Pause>,
) -> Answer<Answered<TriggerView>> {
    if !reason.is_empty() {
        names::text("reason", &reason)?;
    }
    switch(&app, &project, &name, Some(&reason)).await
}

async fn resume(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
) -> Answer<Answered<TriggerView>> {
    switch(&app, &project, &name, None).await
}

async fn switch(
    app: &App,
    project: &str,
    name: &str,
    paused: Option<&str>,
) -> Answer<Answered<TriggerView>> {
    if !app.api.store.pause_trigger(project, name, paused, None).await? {
        return Err(unknown(app, project, name).await?);
    }
    app.api.store.wake();
    view(app, project, name).await.map(Answered)
}

/// What becomes of the deliveries of a trigger that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Deliveries {
    Drop,
    Dead,
}

/// The definition goes first, so that nothing new comes; then what is left.
/// A deletion that broke off in between can be asked for again.
async fn delete(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    params: Params,
) -> Answer {
    let choice: Option<Deliveries> = params.one_of("deliveries")?;
    let count = app.api.store.count_deliveries(&project, &name).await?;
    if count == 0 && app.api.store.trigger(&project, &name).await?.is_none() {
        return Err(unknown(&app, &project, &name).await?);
    }
    if count > 0 && choice.is_none() {
        let detail = format!(
            "the trigger `{name}` has {count} open or dead deliveries; say `?deliveries=drop` to \
             delete them, or `?deliveries=dead` to keep them as dead letters"
        );
        return Err(Problem::new(Kind::DeliveriesLeft, detail).with("deliveries", count));
    }
    // One that spills just now is kept, unless it is said to be dropped.
    let dead = choice != Some(Deliveries::Drop);
    super::to_the_end(async move {
        let gone = app.api.store.delete_trigger(&project, &name).await?;
        app.api.store.end_trigger(&project, &name, dead).await?;
        app.api.metrics.forget_trigger(&project, &name);
        let (dropped, dead) = if dead { (0, count) } else { (count, 0) };
        let went = json!({
            "trigger": name,
            "existed": gone == TriggerGone::Yes,
            "deliveries": { "dropped": dropped, "dead": dead },
        });
        Ok(Answered(went).into_response())
    })
    .await
}

async fn view(app: &App, project: &str, name: &str) -> Answer<TriggerView> {
    let store = &app.api.store;
    let Some(trigger) = store.trigger(project, name).await? else {
        return Err(unknown(app, project, name).await?);
    };
    let plugin = match trigger.spec.target.plugin() {
        Some(plugin) => store.plugin(project, plugin).await?,
        None => None,
    };
    let allow = store.project(project).await?.map(|project| project.allow).unwrap_or_default();
    Ok(TriggerView::new(trigger, &allow, plugin.as_slice()))
}

/// There is no such trigger, or not even the project.
async fn unknown(app: &App, project: &str, name: &str) -> Answer<Problem> {
    if app.api.store.project(project).await?.is_none() {
        return Ok(Problem::no_project(project));
    }
    let detail = format!("the project `{project}` has no trigger `{name}`");
    Ok(Problem::new(Kind::UnknownTrigger, detail))
}
