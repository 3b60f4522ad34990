//! Turns one order into a stock reservation per item.
//!
//! This file decides what an order asks for and is tested natively;
//! `plugin.rs` asks the host to emit it.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod plugin;

use serde::{Deserialize, Serialize};

/// What the plugin reads of an order; other fields are ignored.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Order {
    /// What was ordered; may be empty.
    pub items: Vec<Item>,
}

/// One line of an order.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Item {
    /// Which article.
    pub sku: String,
    /// How many, at least 1.
    pub quantity: u32,
}

impl Order {
    /// Reads the payload of `order.placed`.
    ///
    /// # Errors
    /// Says what is wrong with the payload.
    pub fn parse(payload: &str) -> Result<Self, String> {
        let order: Self = serde_json::from_str(payload)
            .map_err(|error| format!("the payload is no order: {error}"))?;
        for (index, item) in order.items.iter().enumerate() {
            if item.sku.is_empty() {
                return Err(format!("the `sku` of item {index} is empty"));
            }
            if item.quantity == 0 {
                return Err(format!("the `quantity` of item {index} is 0"));
            }
        }
        Ok(order)
    }
}

/// Payload of a reservation.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation<'a> {
    /// The order that it is for.
    pub order_id: &'a str,
    /// Which article.
    pub sku: &'a str,
    /// How many.
    pub quantity: u32,
}

/// What the emitted events are called.
#[derive(Debug, PartialEq)]
pub struct Names {
    /// Config `resource`, `stock` by default.
    pub resource: String,
    /// Config `eventName`, `stock.reserve` by default.
    pub event_name: String,
}

impl Names {
    /// Reads the names from the trigger's configuration.
    pub fn from_config(get: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            resource: get("resource").unwrap_or_else(|| "stock".into()),
            event_name: get("eventName").unwrap_or_else(|| "stock.reserve".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_event_is_an_order() {
        let event: serde_json::Value =
            serde_json::from_str(include_str!("../event.json")).expect("JSON");
        let order = Order::parse(&event["payload"].to_string());
        assert!(order.is_ok(), "{order:?}");
    }

    #[test]
    fn an_order_lists_its_items() {
        let order = Order::parse(r#"{"items": [{"sku": "tea", "quantity": 2, "note": "hot"}]}"#);
        let tea = Item { sku: "tea".into(), quantity: 2 };
        assert_eq!(order, Ok(Order { items: vec![tea] }));
        let empty = Order { items: Vec::new() };
        assert_eq!(Order::parse(r#"{"items": []}"#), Ok(empty));
    }

    #[test]
    fn a_wrong_payload_is_explained() {
        for (payload, complaint) in [
            ("{", "EOF"),
            ("{}", "missing field `items`"),
            (r#"{"items": {}}"#, "invalid type: map"),
            (r#"{"items": [{"quantity": 1}]}"#, "missing field `sku`"),
            (r#"{"items": [{"sku": "tea"}]}"#, "missing field `quantity`"),
            (r#"{"items": [{"sku": "", "quantity": 1}]}"#, "`sku` of item 0"),
            (r#"{"items": [{"sku": "tea", "quantity": 0}]}"#, "`quantity` of item 0"),
            (r#"{"items": [{"sku": "tea", "quantity": -1}]}"#, "integer `-1`"),
        ] {
            let message = Order::parse(payload).expect_err(payload);
            assert!(message.contains(complaint), "{payload}: {message}");
        }
    }

    #[test]
    fn names_come_from_the_configuration_or_have_defaults() {
        let defaults = Names { resource: "stock".into(), event_name: "stock.reserve".into() };
        assert_eq!(Names::from_config(|_| None), defaults);

        let configured = Names::from_config(|key| Some(format!("my-{key}")));
        assert_eq!(configured.resource, "my-resource");
        assert_eq!(configured.event_name, "my-eventName");
    }
}
