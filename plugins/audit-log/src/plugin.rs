//! The plugin as the host sees it.

wit_bindgen::generate!({ path: "../../wit", world: "trigger" });

use exports::outrigger::trigger::handler::Guest;
use outrigger::trigger::{
    log::{Level, log},
    state,
    types::{Attempt, Event, Failure, Retry},
};

use crate::{Entry, attr};

struct AuditLog;

export!(AuditLog);

impl Guest for AuditLog {
    fn handle(event: Event, _attempt: Attempt) -> Result<(), Failure> {
        let entry = Entry {
            message_id: &event.message_id,
            resource: &event.resource,
            aggregate_id: &event.aggregate_id,
            event_name: &event.event_name,
            position: event.position,
            cause: attr(&event.attrs, "cause"),
        };
        log(Level::Info, &entry.line());
        // Neither reads anything, so that concurrent calls never conflict.
        state::increment(&entry.count_key(), 1)?;
        state::set(&entry.last_key(), entry.last_value().as_bytes())?;
        Ok(())
    }
}

impl From<state::Error> for Failure {
    fn from(error: state::Error) -> Self {
        use state::Error::{Denied, Invalid, Limit, Other, Unavailable};
        let (Denied(text) | Limit(text) | Unavailable(text) | Invalid(text) | Other(text)) = error;
        Failure::Retry(Retry { message: format!("state: {text}"), after_ms: None })
    }
}
