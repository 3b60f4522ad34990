//! Plugins: uploaded, looked up, activated, deleted.

use axum::{
    Json as Answered,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse as _,
};
use serde::{Deserialize, Serialize};

use super::{
    App, Shared, body,
    extract::{Json, Params, Path},
    page::Items,
    problem::{Answer, Kind, Problem},
    projects,
    routes::Routes,
};
use crate::{
    model::{
        UnixMillis,
        capability::{Allow, Capability},
        names,
        plugin::{Plugin, PluginInfo, PluginVersion},
    },
    sandbox::UploadError,
};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/projects/{project}/plugins", &["limit", "cursor"], list)
        .put("/v1/projects/{project}/plugins/{name}", &["activate", "dryRun"], put)
        .get("/v1/projects/{project}/plugins/{name}", &[], get)
        .delete("/v1/projects/{project}/plugins/{name}", &[], delete)
        .post("/v1/projects/{project}/plugins/{name}/activate", &[], activate)
}

/// What is said of a version that was uploaded or activated.
#[derive(Serialize)]
struct VersionView {
    #[serde(flatten)]
    info: PluginInfo,
    capabilities: Vec<Capability>,
    active: bool,
}

impl VersionView {
    fn new(info: PluginInfo, active: bool) -> Self {
        Self { capabilities: info.capabilities(), info, active }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PluginView {
    name: String,
    active: Option<String>,
    versions: Vec<Version>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    #[serde(flatten)]
    version: VersionView,
    created_at: UnixMillis,
}

impl From<Plugin> for PluginView {
    fn from(plugin: Plugin) -> Self {
        let active = plugin.versions.iter().find(|version| version.active);
        let active = active.map(|version| version.info.digest.clone());
        let version = |PluginVersion { info, active, created_at }| Version {
            version: VersionView::new(info, active),
            created_at,
        };
        Self {
            name: plugin.name,
            active,
            versions: plugin.versions.into_iter().map(version).collect(),
        }
    }
}

async fn put(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    params: Params,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (activate, dry_run) = (params.flag("activate")?, params.flag("dryRun")?);
    names::name("name", &name)?;
    let allow = projects::existing(&app, &project).await?.allow;
    let busy = || {
        let detail = "other uploads of the project are under way; send this one after them";
        Problem::new(Kind::Unavailable, detail)
    };
    let _room = app.api.sandbox.reserve(&project).ok_or_else(busy)?;
    let bytes = body::read(&headers, body, app.api.settings.component_max).await?;
    let bytes = Bytes::from(bytes);
    let plugin = app.api.sandbox.load_for(&project, bytes.clone()).await?;
    let mut new = false;
    if !dry_run {
        let first = app.api.store.plugin(&project, &name).await?.is_none();
        if activate || first {
            may_be_active(&allow, &plugin.info)?;
        }
        new = app.api.store.put_plugin(&project, &name, &plugin.info, &bytes, activate).await?;
        app.api.store.wake();
    }
    let active = is_active(&app, &project, &name, &plugin.info.digest).await?;
    let view = VersionView::new(plugin.info.clone(), active);
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answered(view)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a digest as an object")]
struct Activate {
    digest: String,
}

/// The version is compiled here before it is activated: one that this host
/// can't run stays inactive.
async fn activate(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    Json(Activate { digest }): Json<Activate>,
) -> Answer<Answered<VersionView>> {
    let unknown = || {
        let detail = format!("the plugin `{name}` has no version {digest}");
        Problem::new(Kind::UnknownPlugin, detail)
    };
    let store = &app.api.store;
    let allow = projects::existing(&app, &project).await?.allow;
    let versions = existing(&app, &project, &name).await?.versions;
    let Some(version) = versions.iter().find(|version| version.info.digest == digest) else {
        return Err(unknown());
    };
    may_be_active(&allow, &version.info)?;
    let bytes = store.plugin_bytes(&project, &digest).await?.ok_or_else(unknown)?;
    let plugin = app.api.sandbox.load_for(&project, bytes).await?;
    if !store.activate_plugin(&project, &name, &digest).await? {
        return Err(unknown());
    }
    store.wake();
    Ok(Answered(VersionView::new(plugin.info.clone(), true)))
}

/// Refuses a version that asks for what no trigger of the project may grant: it
/// could be called, and would fail there.
fn may_be_active(allow: &Allow, info: &PluginInfo) -> Answer<()> {
    let mut missing = info.capabilities();
    missing.retain(|capability| allow.forbids(*capability));
    let Some(first) = missing.first() else { return Ok(()) };
    let listed = |of: fn(Capability) -> &'static str| {
        missing.iter().map(|one| format!("`{}`", of(*one))).collect::<Vec<_>>().join(", ")
    };
    let (imports, names) = (listed(Capability::interface), listed(Capability::as_str));
    let detail = format!(
        "the component imports {imports}, and the project allows no {names}: build it without \
         that, or have an operator add {names} to what the project allows"
    );
    Err(Problem::new(Kind::NotAllowed, detail).with("missing", first.as_str()))
}

async fn list(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<PluginView>>> {
    projects::existing(&app, &project).await?;
    let plugins = app.api.store.plugins(&project).await?;
    let views = plugins.into_iter().map(PluginView::from).collect();
    Items::sorted(views, &params, |plugin: &PluginView| plugin.name.clone()).map(Answered)
}

async fn get(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
) -> Answer<Answered<PluginView>> {
    projects::existing(&app, &project).await?;
    Ok(Answered(existing(&app, &project, &name).await?.into()))
}

async fn delete(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
) -> Answer<StatusCode> {
    projects::existing(&app, &project).await?;
    match app.api.store.delete_plugin(&project, &name).await? {
        None => Err(unknown(&name)),
        Some(users) if users.is_empty() => Ok(StatusCode::NO_CONTENT),
        Some(users) => {
            let detail = format!("these triggers use the plugin `{name}`: {}", users.join(", "));
            Err(Problem::new(Kind::PluginInUse, detail).with("triggers", users))
        }
    }
}

async fn existing(app: &App, project: &str, name: &str) -> Answer<Plugin> {
    app.api.store.plugin(project, name).await?.ok_or_else(|| unknown(name))
}

async fn is_active(app: &App, project: &str, name: &str, digest: &str) -> Answer<bool> {
    let plugin = app.api.store.plugin(project, name).await?;
    let versions = plugin.map(|plugin| plugin.versions).unwrap_or_default();
    Ok(versions.iter().any(|version| version.active && version.info.digest == digest))
}

fn unknown(name: &str) -> Problem {
    Problem::new(Kind::UnknownPlugin, format!("there is no plugin `{name}`"))
}

impl From<UploadError> for Problem {
    fn from(error: UploadError) -> Self {
        let kind = match error {
            UploadError::TooLarge { .. } => Kind::TooLarge,
            UploadError::CompilerAway { .. } => Kind::Unavailable,
            _ => Kind::BadComponent,
        };
        let problem = Self::new(kind, error.to_string()).with("reason", error.reason());
        match error {
            UploadError::TooComplex { limit, .. } => problem.with("limit", limit.name()),
            _ => problem,
        }
    }
}
