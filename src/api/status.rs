//! Counts: of everything, and of one project.

use std::{sync::Arc, time::Duration};

use axum::{Json as Answered, extract::State};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::{
    Api, App, Shared,
    extract::{Params, Path},
    page::Items,
    problem::{Answer, Problem},
    routes::Routes,
};
use crate::store::{HostInfo, ProjectCounts, Status, TriggerCounts};

/// For how long counts are good.
const FRESH: Duration = Duration::from_secs(1);

pub(super) fn routes(routes: Routes) -> Routes {
    routes.get("/v1/status", &[], all).get("/v1/projects/{project}/status", &[], one).get(
        "/v1/hosts",
        &["limit", "cursor"],
        hosts,
    )
}

/// The last counts. Whoever finds them too old counts again, the others wait
/// for that: many callers cost the database no more than one.
#[derive(Default)]
pub(super) struct Cache(Mutex<Option<(Instant, Arc<Status>)>>);

impl Cache {
    /// Counts that are a second old at the most.
    pub(super) async fn get(&self, api: &Api) -> Answer<Arc<Status>> {
        let mut last = self.0.lock().await;
        if let Some((at, status)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(status));
        }
        let status = Arc::new(api.store.status().await?);
        *last = Some((Instant::now(), Arc::clone(&status)));
        Ok(status)
    }

    /// Counts of this moment.
    pub(super) async fn fresh(&self, api: &Api) -> Answer<Arc<Status>> {
        self.forget().await;
        self.get(api).await
    }

    /// Lets the next caller count again.
    pub(super) async fn forget(&self) {
        self.0.lock().await.take();
    }
}

/// Counts of deliveries of any set of triggers.
#[derive(Debug, Default, Serialize)]
struct Deliveries {
    retrying: i64,
    blocked: i64,
    dead: i64,
}

impl Deliveries {
    fn of<'a>(triggers: impl Iterator<Item = &'a TriggerCounts>) -> Self {
        triggers.fold(Self::default(), |sum, trigger| Self {
            retrying: sum.retrying + trigger.retrying,
            blocked: sum.blocked + trigger.blocked,
            dead: sum.dead + trigger.dead,
        })
    }
}

#[derive(Serialize)]
struct ProjectView<'a> {
    #[serde(flatten)]
    deliveries: Deliveries,
    #[serde(flatten)]
    counts: &'a ProjectCounts,
}

/// One project's counts.
pub(super) fn project(counts: &ProjectCounts) -> Value {
    let deliveries = Deliveries::of(counts.triggers.values());
    // Text keys and integers alone: this can't fail.
    serde_json::to_value(ProjectView { deliveries, counts }).unwrap_or_default()
}

async fn all(State(app): State<Shared>) -> Answer<Answered<Value>> {
    let status = app.status.get(&app.api).await?;
    let projects = || status.projects.values();
    let sum = |count: fn(&ProjectCounts) -> i64| projects().map(count).sum::<i64>();
    let deliveries = Deliveries::of(projects().flat_map(|counts| counts.triggers.values()));
    let mut view = health(&app);
    view.extend(object(json!({
        "now": status.now,
        "pending": sum(|counts| counts.pending),
        "inFlight": sum(|counts| counts.in_flight),
        "scheduled": sum(|counts| counts.scheduled),
        "dispatched": sum(|counts| counts.dispatched),
        "retrying": deliveries.retrying,
        "blocked": deliveries.blocked,
        "dead": deliveries.dead,
        "projects": status.projects.iter().map(|(name, counts)| (name.clone(), project(counts)))
            .collect::<Map<_, _>>(),
    })));
    if let Some(oldest) = projects().filter_map(|counts| counts.oldest_pending_ms).max() {
        view.insert("oldestPendingMs".into(), oldest.into());
    }
    Ok(Answered(view.into()))
}

async fn one(State(app): State<Shared>, Path(name): Path<String>) -> Answer<Answered<Value>> {
    let mut status = app.status.get(&app.api).await?;
    if !status.projects.contains_key(&name) {
        // It may be younger than the counts.
        if app.api.store.project(&name).await?.is_none() {
            return Err(Problem::no_project(&name));
        }
        status = app.status.fresh(&app.api).await?;
    }
    let empty = ProjectCounts { exists: true, ..ProjectCounts::default() };
    let mut view = health(&app);
    view.insert("now".into(), status.now.into());
    view.extend(object(project(status.projects.get(&name).unwrap_or(&empty))));
    Ok(Answered(view.into()))
}

/// How the router of this host fares.
fn health(app: &App) -> Map<String, Value> {
    let health = app.api.pulse.health(app.api.settings.stall_after);
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut view = Map::new();
    view.insert("stalled".into(), health.stalled_for.is_some().into());
    if let Some(span) = health.stalled_for {
        view.insert("stalledForMs".into(), millis(span).into());
    }
    if let Some((message, ago)) = health.last_error {
        view.insert("lastError".into(), json!({ "message": message, "agoMs": millis(ago) }));
    }
    view
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

async fn hosts(State(app): State<Shared>, params: Params) -> Answer<Answered<Items<HostInfo>>> {
    let mut hosts = app.api.store.hosts().await?;
    let place = |host: &HostInfo| host.id.to_string();
    hosts.sort_by_cached_key(place);
    Items::sorted(hosts, &params, place).map(Answered)
}
