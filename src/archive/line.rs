//! One event as a line of NDJSON.

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{
    model::{
        UnixMillis,
        attempt::{Attempt, LogLine},
        outcome::FailureKind,
    },
    store::{AgedEvent, DeliveryRow, DeliveryState},
};

/// An event with everything that goes with it; names as in the HTTP interface.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line<'a> {
    message_id: Uuid,
    project: &'a str,
    resource: &'a str,
    aggregate_id: &'a str,
    event_name: &'a str,
    schema_version: u32,
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_key: Option<&'a str>,
    created_at: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<UnixMillis>,
    dispatched_at: Option<UnixMillis>,
    claims: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    deliveries: Vec<Delivery<'a>>,
    attempts: Vec<Call<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Delivery<'a> {
    trigger: &'a str,
    generation: u32,
    state: DeliveryState,
    cause: &'a str,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    created_at: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<UnixMillis>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Call<'a> {
    trigger: &'a str,
    number: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    started_at: UnixMillis,
    duration_us: u64,
    cpu_us: u64,
    memory_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    logs: &'a [LogLine],
}

impl<'a> Line<'a> {
    pub(super) fn of(aged: &'a AgedEvent) -> Self {
        let (row, event) = (&aged.row, &aged.row.event);
        Self {
            message_id: event.message_id,
            project: &event.project,
            resource: &event.resource,
            aggregate_id: &event.aggregate_id,
            event_name: &event.event_name,
            schema_version: event.schema_version,
            payload: raw(&event.payload),
            meta: event.meta.as_deref().and_then(raw),
            dedup_key: event.dedup_key.as_deref(),
            created_at: event.created_at,
            available_at: event.available_at,
            dispatched_at: row.dispatched_at,
            claims: row.claims,
            result: row.result.as_deref().and_then(raw),
            deliveries: aged.deliveries.iter().map(Delivery::of).collect(),
            attempts: aged.attempts.iter().map(Call::of).collect(),
        }
    }
}

impl<'a> Delivery<'a> {
    fn of(row: &'a DeliveryRow) -> Self {
        Self {
            trigger: &row.trigger,
            generation: row.generation,
            state: row.state,
            cause: &row.cause,
            attempts: row.attempts,
            kind: row.kind,
            last_error: row.last_error.as_deref(),
            created_at: row.created_at,
            ended_at: row.ended_at,
        }
    }
}

impl<'a> Call<'a> {
    fn of(attempt: &'a Attempt) -> Self {
        Self {
            trigger: &attempt.trigger,
            number: attempt.number,
            digest: attempt.digest.as_deref(),
            started_at: attempt.started_at,
            duration_us: attempt.usage.duration_us,
            cpu_us: attempt.usage.cpu_us,
            memory_bytes: attempt.usage.memory_bytes,
            kind: attempt.failure,
            error: attempt.error.as_deref(),
            logs: &attempt.logs,
        }
    }
}

/// JSON text to the letter, but for line breaks, which JSON has only between
/// its tokens; as a JSON string if a database took for JSON what isn't.
fn raw(text: &str) -> Option<Box<RawValue>> {
    let line = text.replace(['\n', '\r'], " ");
    RawValue::from_string(line).or_else(|_| serde_json::value::to_raw_value(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_kept_to_the_letter_on_one_line() {
        for (text, line) in [
            (
                r#"{"n": 1e400, "s": "\u0000\n", "s": 1}"#,
                r#"{"n": 1e400, "s": "\u0000\n", "s": 1}"#,
            ),
            ("{\r\n\t\"a\": [\n1]\n}", "{  \t\"a\": [ 1] }"),
            ("not\nJSON", r#""not\nJSON""#),
        ] {
            assert_eq!(raw(text).expect("some JSON").get().trim(), line);
        }
    }
}
