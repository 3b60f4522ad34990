//! The plugin as the host sees it.

wit_bindgen::generate!({ path: "../../wit", world: "trigger" });

use exports::outrigger::trigger::handler::Guest;
use outrigger::trigger::{
    config,
    emit::{self, Due, NewEvent},
    log::{Level, log},
    state,
    types::{Attempt, Event, Failure, Retry},
};

use crate::{Milestone, Order, milestone_reached, milestone_step, stored_total};

struct OrderTotals;

export!(OrderTotals);

impl Guest for OrderTotals {
    fn handle(event: Event, _attempt: Attempt) -> Result<(), Failure> {
        let order = Order::parse(&event.payload).map_err(Failure::Reject)?;
        let step = milestone_step(config::get("milestone").as_deref()).map_err(retry)?;

        let key = order.total_key();
        let before = stored_total(state::get(&key)?.as_deref()).map_err(retry)?;
        let Some(total) = before.checked_add(order.total) else {
            return Err(Failure::Reject(format!(
                "{before} and {} are too much to add",
                order.total
            )));
        };
        state::set(&key, total.to_string().as_bytes())?;
        log(
            Level::Info,
            &format!("{} ordered for {}, {total} in all", order.customer, order.total),
        );

        if let Some(milestone) = milestone_reached(before, total, step) {
            announce(&Milestone { customer: &order.customer, total, milestone })?;
        }
        Ok(())
    }
}

fn announce(milestone: &Milestone) -> Result<(), Failure> {
    let payload = serde_json::to_string(milestone).map_err(|error| retry(error.to_string()))?;
    emit::emit(&NewEvent {
        resource: "customer".into(),
        aggregate_id: milestone.customer.into(),
        event_name: "customer.milestone".into(),
        schema_version: 1,
        payload,
        meta: Vec::new(),
        dedup_key: None,
        due: Due::Now,
    })?;
    log(Level::Info, &format!("{} reached {}", milestone.customer, milestone.milestone));
    Ok(())
}

/// A failure that isn't the event's fault, so that a later attempt may succeed.
fn retry(message: String) -> Failure {
    Failure::Retry(Retry { message, after_ms: None })
}

impl From<state::Error> for Failure {
    fn from(error: state::Error) -> Self {
        use state::Error::{Denied, Invalid, Limit, Other, Unavailable};
        let (Denied(text) | Limit(text) | Unavailable(text) | Invalid(text) | Other(text)) = error;
        retry(format!("state: {text}"))
    }
}

impl From<emit::Error> for Failure {
    fn from(error: emit::Error) -> Self {
        use emit::Error::{Denied, Invalid, Limit, Other};
        let (Denied(text) | Limit(text) | Invalid(text) | Other(text)) = error;
        retry(format!("emit: {text}"))
    }
}
