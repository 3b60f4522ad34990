//! `POST …/events`: one event, or many, each on its own.

use axum::{
    Json as Answered,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::wait::{self, Watch};
use crate::{
    api::{
        App, Shared,
        extract::{JsonText, Params, Path, parse, wrong},
        problem::{Answer, Kind, Problem},
        projects,
    },
    model::{UnixMillis, event::NewEvent, names, units::Span},
    store::Recorded,
};

/// Events of one request at the most.
const BATCH_MAX: usize = 1000;

/// Longest wait for an event to be settled.
const WAIT_MAX: Span = Span::from_secs(60);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an event as an object")]
struct Body {
    resource: String,
    aggregate_id: String,
    event_name: String,
    #[serde(default = "first_version")]
    schema_version: u32,
    payload: Box<RawValue>,
    meta: Option<Box<RawValue>>,
    dedup_key: Option<String>,
    available_at: Option<UnixMillis>,
}

const fn first_version() -> u32 {
    1
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    message_id: Uuid,
    created_at: UnixMillis,
}

/// What became of one event of many.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    status: u16,
    #[serde(flatten)]
    receipt: Option<Receipt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Problem>,
}

pub(super) async fn record(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
    headers: HeaderMap,
    JsonText(text): JsonText,
) -> Answer {
    let wait = wait_span(&params)?;
    let key = idempotency_key(&headers)?;
    projects::existing(&app, &project).await?;
    if !text.trim_start().starts_with('[') {
        return record_one(&app, &project, &text, key, wait).await;
    }
    if wait.is_some() {
        return Err(Problem::new(Kind::BadQuery, "`wait` is for a single event, not for an array"));
    }
    if key.is_some() {
        let detail =
            "`Idempotency-Key` is for a single event; give each of an array its `dedupKey`";
        return Err(Problem::new(Kind::BadHeader, detail));
    }
    record_many(&app, &project, &text).await
}

async fn record_one(
    app: &App,
    project: &str,
    text: &str,
    key: Option<String>,
    wait: Option<Span>,
) -> Answer {
    let mut event = new_event(app, project, text)?;
    let idempotent = key.is_some();
    match (&event.dedup_key, key) {
        (None, key) => event.dedup_key = key,
        (Some(own), Some(key)) if *own != key => {
            let why = "differs from the header `Idempotency-Key`; send one of them";
            return Err(Problem::field("dedupKey", why));
        }
        _ => {}
    }
    // The id is drawn here and watched first, so that no settle is missed.
    let drawn = Uuid::now_v7();
    event.message_id = Some(drawn);
    let watch = wait.map(|_| Watch::new(&app.api.pulse, drawn));
    let kept = idempotent.then(|| event.clone());
    let recorded = app.recorder.record(vec![event]).await?;
    let Some(recorded) = recorded.into_iter().next() else {
        return Err(Problem::new(Kind::Internal, "the event was not answered for"));
    };
    let (receipt, watch) = match recorded {
        Recorded::New { message_id, created_at } => {
            app.api.store.wake();
            (Receipt { message_id, created_at }, watch)
        }
        Recorded::Duplicate { message_id, created_at } => {
            let Some(event) = kept else { return Err(used(message_id)) };
            refuse_another(app, &event, message_id).await?;
            let watch = wait.map(|_| Watch::new(&app.api.pulse, message_id));
            (Receipt { message_id, created_at }, watch)
        }
    };
    let again = receipt.message_id != drawn;
    let mut response = match (wait, watch) {
        (Some(span), Some(watch)) => {
            wait::answer(app, project, receipt.message_id, watch, span.get()).await?
        }
        _ => created(project, &receipt, again),
    };
    if again {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn record_many(app: &App, project: &str, text: &str) -> Answer {
    let texts: Vec<&RawValue> = serde_json::from_str(text)
        .map_err(|error| Problem::new(Kind::BadJson, error.to_string()))?;
    if texts.len() > BATCH_MAX {
        let detail = format!("there are {} events; the limit is {BATCH_MAX}", texts.len());
        return Err(Problem::new(Kind::TooLarge, detail));
    }
    let mut wrong = Vec::new();
    let mut events = Vec::with_capacity(texts.len());
    for (place, text) in texts.iter().enumerate() {
        match new_event(app, project, text.get()) {
            Ok(event) => events.push(event),
            Err(problem) => wrong.push((place, Item::refused(problem, None))),
        }
    }
    let recorded = if events.is_empty() { Vec::new() } else { app.recorder.record(events).await? };
    if recorded.iter().any(|recorded| matches!(recorded, Recorded::New { .. })) {
        app.api.store.wake();
    }
    let mut items: Vec<Item> = recorded.iter().map(Item::of).collect();
    // In rising order, so that each lands where it was.
    for (place, item) in wrong {
        items.insert(place.min(items.len()), item);
    }
    Ok(Answered(serde_json::json!({ "events": items })).into_response())
}

impl Item {
    fn of(recorded: &Recorded) -> Self {
        match *recorded {
            Recorded::New { message_id, created_at } => Self {
                status: StatusCode::CREATED.as_u16(),
                receipt: Some(Receipt { message_id, created_at }),
                error: None,
            },
            Recorded::Duplicate { message_id, created_at } => {
                Self::refused(used(message_id), Some(Receipt { message_id, created_at }))
            }
        }
    }

    fn refused(problem: Problem, receipt: Option<Receipt>) -> Self {
        Self { status: problem.status().as_u16(), receipt, error: Some(problem) }
    }
}

fn new_event(app: &App, project: &str, text: &str) -> Answer<NewEvent> {
    let body: Body = parse(text)?;
    let payload_max = app.api.settings.payload_max;
    let payload = body.payload.get();
    if payload.len() > payload_max.as_usize() {
        let detail = format!("`payload` has {} bytes; the limit is {payload_max}", payload.len());
        return Err(Problem::new(Kind::TooLarge, detail).with("field", "payload"));
    }
    let event = NewEvent {
        schema_version: body.schema_version,
        meta: body.meta.map(|meta| meta.get().to_owned()),
        dedup_key: body.dedup_key.filter(|key| !key.is_empty()),
        available_at: body.available_at,
        ..NewEvent::new(project, body.resource, body.aggregate_id, body.event_name, payload)
    };
    event.validate(payload_max.as_usize())?;
    Ok(event)
}

fn wait_span(params: &Params) -> Answer<Option<Span>> {
    let what = "a duration such as `5s`, `60s` at the most";
    match params.parse::<Span>("wait", what)? {
        Some(span) if span > WAIT_MAX => Err(wrong("wait", &span.to_string(), what)),
        span => Ok(span),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Answer<Option<String>> {
    let bad = |why: &str| Problem::new(Kind::BadHeader, format!("`Idempotency-Key` {why}"));
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad("stands there twice"));
    }
    let key = std::str::from_utf8(value.as_bytes()).map_err(|_| bad("is not UTF-8"))?;
    names::text("Idempotency-Key", key).map_err(|error| bad(&error.why))?;
    Ok(Some(key.to_owned()))
}

fn used(message_id: Uuid) -> Problem {
    let detail = format!("the event {message_id} has this dedup key; nothing was recorded");
    Problem::new(Kind::Duplicate, detail).with("messageId", message_id.to_string())
}

/// An idempotency key that stands for another event would swallow this one.
async fn refuse_another(app: &App, event: &NewEvent, first: Uuid) -> Answer<()> {
    let Some(row) = app.api.store.event(&event.project, first).await? else { return Ok(()) };
    let there = row.event;
    let same = there.resource == event.resource
        && there.aggregate_id == event.aggregate_id
        && there.event_name == event.event_name
        && there.schema_version == event.schema_version
        && same_json(&there.payload, &event.payload);
    if same {
        return Ok(());
    }
    let detail = format!("this key stands for the event {first}, which says something else");
    Err(Problem::new(Kind::KeyReused, detail).with("messageId", first.to_string()))
}

fn same_json(a: &str, b: &str) -> bool {
    let value = |text| serde_json::from_str::<Value>(text).ok();
    a == b || value(a).is_some_and(|a| value(b) == Some(a))
}

fn created(project: &str, receipt: &Receipt, again: bool) -> Response {
    let status = if again { StatusCode::OK } else { StatusCode::CREATED };
    let location = format!("/v1/projects/{project}/events/{}", receipt.message_id);
    (status, [(header::LOCATION, location)], Answered(receipt)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_json_may_be_written_in_two_ways() {
        assert!(same_json(r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#));
        assert!(same_json("1e400", "1e400"));
        assert!(!same_json(r#"{"a":1}"#, r#"{"a":2}"#));
    }
}
