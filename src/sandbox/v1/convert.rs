//! Between the world's types and the model's.

use super::bindings::exports::outrigger::trigger::handler;
use crate::{
    model::outcome::{Failure, FailureKind},
    sandbox::{Call, Secrets, failure::returned, meta::Meta},
};

/// What a handler is given, held while it is lent to the call.
pub(super) struct Sent<'a> {
    call: &'a Call,
    message_id: String,
    meta: Vec<(&'a str, &'a str)>,
    attrs: Vec<(&'static str, String)>,
}

impl<'a> Sent<'a> {
    pub(super) fn new(call: &'a Call, meta: &'a Meta) -> Self {
        Self {
            call,
            message_id: call.event.message_id.to_string(),
            meta: meta.fields.iter().map(|(key, value)| (&**key, &**value)).collect(),
            attrs: meta.attrs(),
        }
    }

    /// Lends the event's attributes in the shape that the world wants.
    pub(super) fn attrs(&self) -> Vec<(&str, &str)> {
        self.attrs.iter().map(|(key, value)| (*key, &**value)).collect()
    }

    pub(super) fn event<'b>(&'b self, attrs: &'b [(&'b str, &'b str)]) -> handler::Event<'b> {
        let event = &*self.call.event;
        handler::Event {
            message_id: &self.message_id,
            project: &event.project,
            resource: &event.resource,
            aggregate_id: &event.aggregate_id,
            event_name: &event.event_name,
            schema_version: event.schema_version,
            payload: &event.payload,
            meta: &self.meta,
            dedup_key: event.dedup_key.as_deref(),
            created_at_ms: event.created_at.try_into().unwrap_or(0),
            position: event.pk.try_into().unwrap_or(0),
            attrs,
        }
    }

    pub(super) fn attempt(&self) -> handler::Attempt<'_> {
        let call = self.call;
        handler::Attempt {
            trigger: &call.trigger.name,
            number: call.attempt,
            max: call.max_attempts,
            deadline_ms: call.deadline.as_millis().try_into().unwrap_or(u32::MAX),
            idempotency_key: &call.idempotency_key,
            attrs: &[],
        }
    }
}

/// What a handler returned instead of ok.
pub(super) fn failure(failure: handler::Failure, secrets: &Secrets) -> Failure {
    match failure {
        handler::Failure::Retry(retry) => {
            returned(FailureKind::Retry, &retry.message, retry.after_ms, secrets)
        }
        handler::Failure::Reject(why) => returned(FailureKind::Reject, &why, None, secrets),
    }
}
