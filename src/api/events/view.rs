//! Events, deliveries and attempts as they are shown.

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{
    model::{Lane, UnixMillis, attempt::LogLine, outcome::FailureKind},
    store::{AttemptRow, DeliveryRow, DeliveryState, EventRow, EventStatus, Subject},
};

/// An event and where it stands.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EventView {
    message_id: Uuid,
    pk: i64,
    resource: String,
    aggregate_id: String,
    event_name: String,
    schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_key: Option<String>,
    created_at: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<UnixMillis>,
    lane: Lane,
    status: EventStatus,
    claims: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatched_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
}

impl EventView {
    /// An event with its payload and meta.
    pub(in crate::api) fn whole(row: EventRow) -> Self {
        let payload = raw(row.event.payload.clone());
        let meta = row.event.meta.clone().and_then(raw);
        Self { payload, meta, ..Self::line(row) }
    }

    /// An event as one of a list, without what may be large.
    pub(in crate::api) fn line(row: EventRow) -> Self {
        let event = row.event;
        Self {
            message_id: event.message_id,
            pk: event.pk,
            resource: event.resource,
            aggregate_id: event.aggregate_id,
            event_name: event.event_name,
            schema_version: event.schema_version,
            payload: None,
            meta: None,
            dedup_key: event.dedup_key,
            created_at: event.created_at,
            available_at: event.available_at,
            lane: event.lane,
            status: row.status,
            claims: row.claims,
            dispatched_at: row.dispatched_at,
            result: row.result.and_then(raw),
        }
    }
}

/// JSON text as it is; as a JSON string if a database took for JSON what isn't.
fn raw(text: String) -> Option<Box<RawValue>> {
    let quoted = serde_json::to_string(&text);
    RawValue::from_string(text).or_else(|_| RawValue::from_string(quoted?)).ok()
}

/// A pair of event and trigger with a row of its own.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct DeliveryView {
    id: i64,
    message_id: Uuid,
    trigger: String,
    resource: String,
    aggregate_id: String,
    event_name: String,
    generation: u32,
    state: DeliveryState,
    cause: String,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<UnixMillis>,
    claimed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    created_at: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_by: Option<Uuid>,
}

impl From<DeliveryRow> for DeliveryView {
    fn from(row: DeliveryRow) -> Self {
        let open = matches!(row.state, DeliveryState::Ready | DeliveryState::Blocked);
        Self {
            id: row.id,
            message_id: row.message_id,
            trigger: row.trigger,
            resource: row.resource,
            aggregate_id: row.aggregate_id,
            event_name: row.event_name,
            generation: row.generation,
            state: row.state,
            cause: row.cause,
            attempts: row.attempts,
            due_at: open.then_some(row.due_at),
            claimed: row.claimed,
            kind: row.kind,
            last_error: row.last_error,
            created_at: row.created_at,
            ended_at: row.ended_at,
            blocked_by: row.blocked_by,
        }
    }
}

/// One invocation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct AttemptView {
    id: i64,
    message_id: Uuid,
    #[serde(flatten)]
    subject: Option<SubjectView>,
    trigger: String,
    number: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    started_at: UnixMillis,
    duration_us: u64,
    cpu_us: u64,
    memory_bytes: u64,
    failed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    logs: Vec<LogLine>,
}

/// What an attempt's event is about.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SubjectView {
    resource: String,
    aggregate_id: String,
    event_name: String,
}

impl From<Subject> for SubjectView {
    fn from(Subject { resource, aggregate_id, event_name }: Subject) -> Self {
        Self { resource, aggregate_id, event_name }
    }
}

impl From<AttemptRow> for AttemptView {
    fn from(AttemptRow { id, attempt, subject }: AttemptRow) -> Self {
        Self {
            id,
            subject: subject.map(SubjectView::from),
            message_id: attempt.message_id,
            trigger: attempt.trigger,
            number: attempt.number,
            digest: attempt.digest,
            started_at: attempt.started_at,
            duration_us: attempt.usage.duration_us,
            cpu_us: attempt.usage.cpu_us,
            memory_bytes: attempt.usage.memory_bytes,
            failed: attempt.failure.is_some(),
            kind: attempt.failure,
            error: attempt.error,
            logs: attempt.logs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_to_the_letter() {
        for text in ["1e400", r#"{"b":1,"a":"\ud800"}"#, "[ ]"] {
            assert_eq!(raw(text.into()).map(|raw| raw.get().to_owned()).as_deref(), Some(text));
        }
        assert_eq!(
            raw("{a:1}".into()).map(|raw| raw.get().to_owned()).as_deref(),
            Some("\"{a:1}\"")
        );
    }
}
