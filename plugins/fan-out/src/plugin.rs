//! The plugin as the host sees it.

wit_bindgen::generate!({ path: "../../wit", world: "trigger" });

use exports::outrigger::trigger::handler::Guest;
use outrigger::trigger::{
    config,
    emit::{self, Due, NewEvent},
    log::{Level, log},
    types::{Attempt, Event, Failure, Retry},
};

use crate::{Item, Names, Order, Reservation};

struct FanOut;

export!(FanOut);

impl Guest for FanOut {
    fn handle(event: Event, _attempt: Attempt) -> Result<(), Failure> {
        let order = Order::parse(&event.payload).map_err(Failure::Reject)?;
        let names = Names::from_config(config::get);
        for item in &order.items {
            reserve(&names, &event.aggregate_id, item)?;
        }
        log(Level::Info, &format!("{} × {}", order.items.len(), names.event_name));
        Ok(())
    }
}

fn reserve(names: &Names, order_id: &str, item: &Item) -> Result<(), Failure> {
    let reservation = Reservation { order_id, sku: &item.sku, quantity: item.quantity };
    let payload = serde_json::to_string(&reservation).map_err(|error| retry(error.to_string()))?;
    emit::emit(&NewEvent {
        resource: names.resource.clone(),
        aggregate_id: item.sku.clone(),
        event_name: names.event_name.clone(),
        schema_version: 1,
        payload,
        meta: Vec::new(),
        dedup_key: None,
        due: Due::Now,
    })?;
    Ok(())
}

/// A failure that isn't the event's fault, so that a later attempt may succeed.
fn retry(message: String) -> Failure {
    Failure::Retry(Retry { message, after_ms: None })
}

impl From<emit::Error> for Failure {
    fn from(error: emit::Error) -> Self {
        use emit::Error::{Denied, Invalid, Limit, Other};
        match error {
            // An order with more items than one call may emit stays one.
            Limit(text) => Failure::Reject(format!("emit: {text}")),
            Denied(text) | Invalid(text) | Other(text) => retry(format!("emit: {text}")),
        }
    }
}
