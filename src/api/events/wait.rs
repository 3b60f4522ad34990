//! `?wait=`: until an event is settled.

use std::{collections::BTreeMap, time::Duration};

use axum::{Json as Answered, http::StatusCode, response::IntoResponse as _};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::Instant};
use uuid::Uuid;

use crate::{
    api::{App, page::LIMIT_MAX, problem::Answer},
    model::UnixMillis,
    router::Pulse,
    store::{DeliveryFilter, EventRow, EventStatus, PageRequest},
};

/// How soon the row is looked at first; another host may settle it unseen.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// How far apart later looks are.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// A place among those whom the router tells of a settled event.
pub(super) struct Watch<'a> {
    pulse: &'a Pulse,
    message_id: Uuid,
    settled: oneshot::Receiver<()>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(pulse: &'a Pulse, message_id: Uuid) -> Self {
        Self { pulse, message_id, settled: pulse.watch(message_id) }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.settled.close();
        self.pulse.unwatch(self.message_id);
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Waited {
    message_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_at: Option<UnixMillis>,
    triggers: BTreeMap<String, String>,
}

/// Waits, and answers 200 if every matching trigger has ended or spilled by
/// then, else 202.
pub(super) async fn answer(
    app: &App,
    project: &str,
    message_id: Uuid,
    mut watch: Watch<'_>,
    at_most: Duration,
) -> Answer {
    let deadline = Instant::now() + at_most;
    let mut pause = FIRST_LOOK;
    let mut told = false;
    let settled = loop {
        let next_look = Instant::now() + pause;
        let last = next_look >= deadline || app.stopping.is_cancelled();
        tokio::select! {
            _ = &mut watch.settled, if !told => told = true,
            () = app.stopping.cancelled(), if !last => {}
            () = tokio::time::sleep_until(next_look.min(deadline)) => {}
        }
        let row = app.api.store.event(project, message_id).await?;
        match row.filter(|row| row.status == EventStatus::Dispatched) {
            Some(row) => break Some(row),
            None if last => break None,
            None => pause = (pause * 2).min(LAST_LOOK),
        }
    };
    let Some(row) = settled else {
        let waited = Waited { message_id, published_at: None, triggers: BTreeMap::new() };
        return Ok((StatusCode::ACCEPTED, Answered(waited)).into_response());
    };
    let triggers = states(app, project, &row).await?;
    let waited = Waited { message_id, published_at: row.dispatched_at, triggers };
    Ok(Answered(waited).into_response())
}

/// Where each trigger stands: its delivery's state if it spilled, else its outcome.
async fn states(app: &App, project: &str, row: &EventRow) -> Answer<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Result {
        outcome: String,
    }
    let results: BTreeMap<String, Result> =
        row.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut states: BTreeMap<String, String> =
        results.into_iter().map(|(trigger, result)| (trigger, result.outcome)).collect();
    let filter = DeliveryFilter { message_id: Some(row.event.message_id), ..Default::default() };
    let page = PageRequest { limit: LIMIT_MAX, ..PageRequest::default() };
    let deliveries = app.api.store.deliveries(project, &filter, &page).await?;
    for delivery in deliveries.items.into_iter().filter(|delivery| delivery.generation == 0) {
        states.insert(delivery.trigger, delivery.state.as_str().to_owned());
    }
    Ok(states)
}
