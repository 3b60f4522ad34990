//! `POST …/events/{messageId}/replay` and `POST …/events/replay`.

use std::collections::BTreeMap;

use axum::{Json as Answered, extract::State, response::IntoResponse as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::list;
use crate::{
    api::{
        App, Shared,
        extract::{Json, JsonOrNothing, Path},
        operations,
        problem::{Answer, Kind, Problem},
        projects,
    },
    model::{UnixMillis, names},
    router::matcher::{Matched, Matcher},
    store::{ReplayFilter, Replayed},
};

/// To which triggers: to all that match, if none is named.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
pub(super) struct To {
    trigger: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    message_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u32>,
    /// Delivered again.
    triggers: Vec<String>,
    /// Skipped, since their deliveries are still open.
    open: Vec<String>,
    /// Left out, since their `when` can't be evaluated.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unmatched: BTreeMap<String, String>,
}

pub(super) async fn one(
    State(app): State<Shared>,
    Path((project, message_id)): Path<(String, Uuid)>,
    JsonOrNothing(To { trigger }): JsonOrNothing<To>,
) -> Answer {
    projects::existing(&app, &project).await?;
    let store = &app.api.store;
    let triggers = named(&app, &project, trigger.as_deref()).await?;
    let Some(row) = store.event(&project, message_id).await? else {
        return Err(list::unknown(&project, message_id));
    };
    let Matched { to, unclear } = triggers.matched(&row.event);
    if let Some(name) = trigger.filter(|_| to.is_empty()) {
        let why =
            unclear.into_iter().next().map_or_else(String::new, |(_, why)| format!(": {why}"));
        let why = format!("names `{name}`, which doesn't match the event{why}");
        return Err(Problem::field("trigger", why));
    }
    match store.replay(&project, message_id, &to).await? {
        // It was old, and has just been deleted.
        Replayed::Unknown => Err(list::unknown(&project, message_id)),
        Replayed::Pending => {
            let detail = "the event isn't dispatched yet: its triggers will get it without a \
                          replay; `waits` of the event says what for";
            Err(Problem::new(Kind::NotDispatched, detail))
        }
        Replayed::Yes { generation, triggers, open } => {
            store.wake();
            let unmatched = unclear.into_iter().collect();
            let receipt = Receipt { message_id, generation, triggers, open, unmatched };
            Ok(Answered(receipt).into_response())
        }
    }
}

/// The project's triggers, or the one of a name, which must be there.
async fn named(app: &App, project: &str, name: Option<&str>) -> Answer<Matcher> {
    if let Some(name) = name {
        names::text("trigger", name)?;
        if app.api.store.trigger(project, name).await?.is_none() {
            let detail = format!("the project `{project}` has no trigger `{name}`");
            return Err(Problem::new(Kind::UnknownTrigger, detail));
        }
    }
    Ok(Matcher::new(app.api.store.triggers(project).await?, name))
}

/// Which events are meant: all of the project if nothing is said, which must be
/// said as `{}`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a filter as an object")]
pub(super) struct Bulk {
    resource: Option<String>,
    aggregate_id: Option<String>,
    event_name: Option<String>,
    since: Option<UnixMillis>,
    until: Option<UnixMillis>,
    trigger: Option<String>,
    limit: Option<i64>,
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn many(
    State(app): State<Shared>,
    Path(project): Path<String>,
    Json(bulk): Json<Bulk>,
) -> Answer {
    let texts = [
        ("resource", &bulk.resource),
        ("aggregateId", &bulk.aggregate_id),
        ("eventName", &bulk.event_name),
    ];
    for (field, text) in texts {
        text.as_deref().map_or(Ok(()), |text| names::text(field, text))?;
    }
    if bulk.limit.is_some_and(|limit| limit < 1) {
        return Err(Problem::field("limit", "is less than 1"));
    }
    projects::existing(&app, &project).await?;
    named(&app, &project, bulk.trigger.as_deref()).await?;
    let Bulk { limit, dry_run, .. } = bulk;
    let filter = ReplayFilter {
        resource: bulk.resource,
        aggregate_id: bulk.aggregate_id,
        event_name: bulk.event_name,
        since: bulk.since,
        until: bulk.until,
        trigger: bulk.trigger,
    };
    if dry_run {
        let matches = app.api.store.count_events(&project, &filter).await?;
        return Ok(Answered(json!({ "matches": matches })).into_response());
    }
    let operation = app.api.store.start_replay(&project, &filter, limit).await?;
    Ok(operations::accepted(&app, operation))
}
