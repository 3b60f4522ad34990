//! `GET …/events` and `GET …/events/{messageId}`.

use axum::{Json as Answered, extract::State};
use serde::Serialize;
use uuid::Uuid;

use super::{
    AttemptView, DeliveryView, EventView,
    why::{self, Wait},
};
use crate::{
    api::{
        App, Shared,
        extract::{Params, Path},
        page::{self, Items, LIMIT_MAX},
        problem::{Answer, Kind, Problem},
    },
    store::{AttemptFilter, DeliveryFilter, EventFilter, PageRequest},
};

pub(super) const FILTERS: &[&str] = &[
    "resource",
    "aggregateId",
    "eventName",
    "dedupKey",
    "status",
    "limit",
    "cursor",
    "since",
    "until",
];

/// Attempts that one event is shown with, the newest.
const ATTEMPTS: u32 = 100;

pub(super) async fn list(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<EventView>>> {
    let filter = EventFilter {
        resource: params.text("resource"),
        aggregate_id: params.text("aggregateId"),
        event_name: params.text("eventName"),
        dedup_key: params.text("dedupKey"),
        status: params.one_of("status")?,
    };
    let page = page::request(&params)?;
    let page = app.api.store.events(&project, &filter, &page).await?;
    if page.items.is_empty() {
        known(&app, &project).await?;
    }
    Ok(Answered(Items::page(page, EventView::line)))
}

#[derive(Serialize)]
pub(super) struct Whole {
    #[serde(flatten)]
    event: EventView,
    deliveries: Vec<DeliveryView>,
    attempts: Vec<AttemptView>,
    waits: Vec<Wait>,
}

pub(super) async fn get(
    State(app): State<Shared>,
    Path((project, message_id)): Path<(String, Uuid)>,
) -> Answer<Answered<Whole>> {
    let store = &app.api.store;
    let Some(row) = store.event(&project, message_id).await? else {
        known(&app, &project).await?;
        return Err(unknown(&project, message_id));
    };
    let filter = DeliveryFilter { message_id: Some(message_id), ..DeliveryFilter::default() };
    let page = PageRequest { limit: LIMIT_MAX, ..PageRequest::default() };
    let deliveries = store.deliveries(&project, &filter, &page).await?.items;
    let filter = AttemptFilter { message_id: Some(message_id), ..AttemptFilter::default() };
    let page = PageRequest { limit: ATTEMPTS, ..PageRequest::default() };
    let attempts = store.attempts(&project, &filter, &page).await?.items;
    let waits = why::waits(&app, &project, &row, &deliveries).await?;
    Ok(Answered(Whole {
        event: EventView::whole(row),
        deliveries: deliveries.into_iter().map(DeliveryView::from).collect(),
        attempts: attempts.into_iter().map(AttemptView::from).collect(),
        waits,
    }))
}

pub(super) fn unknown(project: &str, message_id: Uuid) -> Problem {
    let detail = format!("the project `{project}` has no event {message_id}");
    Problem::new(Kind::UnknownEvent, detail)
}

/// A project that nobody created may have events, which wait for it. One that
/// has none either is a mistake.
async fn known(app: &App, project: &str) -> Answer<()> {
    let page = PageRequest { limit: 1, ..PageRequest::default() };
    if app.api.store.project(project).await?.is_some() {
        return Ok(());
    }
    let any = app.api.store.events(project, &EventFilter::default(), &page).await?;
    if any.items.is_empty() { Err(Problem::no_project(project)) } else { Ok(()) }
}
