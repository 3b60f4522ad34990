//! Keeps a running total per customer and announces milestones.
//!
//! This file decides what an order means and is tested natively; `plugin.rs`
//! asks the host for what that takes.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod plugin;

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// The milestone where the trigger's configuration doesn't say another.
pub const DEFAULT_MILESTONE: NonZeroU64 = NonZeroU64::new(1000).expect("1000 is not zero");

/// What the plugin reads of an order; other fields are ignored.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Order {
    /// Who ordered.
    pub customer: String,
    /// Price of the whole order, in the currency's smallest unit.
    pub total: u64,
}

impl Order {
    /// Reads the payload of `order.placed`.
    ///
    /// # Errors
    /// Says what is wrong with the payload.
    pub fn parse(payload: &str) -> Result<Self, String> {
        let order: Self = serde_json::from_str(payload)
            .map_err(|error| format!("the payload is no order: {error}"))?;
        if order.customer.is_empty() {
            return Err("the payload is no order: `customer` is empty".into());
        }
        Ok(order)
    }

    /// Where this customer's total is kept.
    #[must_use]
    pub fn total_key(&self) -> String {
        format!("total/{}", self.customer)
    }
}

/// Payload of `customer.milestone`.
#[derive(Debug, PartialEq, Serialize)]
pub struct Milestone<'a> {
    /// Whose total it is.
    pub customer: &'a str,
    /// The total, this order included.
    pub total: u64,
    /// The highest milestone that this order reached.
    pub milestone: u64,
}

/// Reads the configured milestone.
///
/// # Errors
/// When it is anything but a whole number above 0.
pub fn milestone_step(configured: Option<&str>) -> Result<NonZeroU64, String> {
    let Some(text) = configured else {
        return Ok(DEFAULT_MILESTONE);
    };
    text.parse()
        .map_err(|_| format!("config `milestone` must be a whole number above 0, not `{text}`"))
}

/// Reads a total as it is stored: decimal digits, or nothing before the first order.
///
/// # Errors
/// When something else is stored.
pub fn stored_total(stored: Option<&[u8]>) -> Result<u64, String> {
    let Some(bytes) = stored else {
        return Ok(0);
    };
    let text = String::from_utf8_lossy(bytes);
    text.parse().map_err(|_| format!("the stored total is no whole number: `{text}`"))
}

/// The highest multiple of `step` above `before` that `after` reaches, if any.
#[must_use]
pub fn milestone_reached(before: u64, after: u64, step: NonZeroU64) -> Option<u64> {
    let milestone = after / step * step.get();
    (milestone > before).then_some(milestone)
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
    fn an_order_needs_a_customer_and_a_whole_total() {
        let order = Order::parse(r#"{"orderId": "o-1", "customer": "c-1", "total": 120}"#);
        let expected = Order { customer: "c-1".into(), total: 120 };
        assert_eq!(order, Ok(expected));

        for (payload, complaint) in [
            ("{", "EOF"),
            ("[]", "invalid length 0"),
            (r#"{"total": 120}"#, "missing field `customer`"),
            (r#"{"customer": "", "total": 120}"#, "`customer` is empty"),
            (r#"{"customer": "c-1"}"#, "missing field `total`"),
            (r#"{"customer": "c-1", "total": "120"}"#, "invalid type"),
            (r#"{"customer": "c-1", "total": 1.5}"#, "floating point"),
            (r#"{"customer": "c-1", "total": -1}"#, "integer `-1`"),
        ] {
            let message = Order::parse(payload).expect_err(payload);
            assert!(message.contains(complaint), "{payload}: {message}");
        }
    }

    #[test]
    fn the_milestone_is_configurable() {
        assert_eq!(milestone_step(None), Ok(DEFAULT_MILESTONE));
        assert_eq!(milestone_step(Some("50")).map(NonZeroU64::get), Ok(50));
        for wrong in ["0", "-1", "many", "1.5", ""] {
            let message = milestone_step(Some(wrong)).expect_err(wrong);
            assert!(message.contains(&format!("`{wrong}`")), "{message}");
        }
    }

    #[test]
    fn a_stored_total_is_decimal() {
        assert_eq!(stored_total(None), Ok(0));
        assert_eq!(stored_total(Some(b"1200")), Ok(1200));
        assert!(stored_total(Some(b"12 apples")).is_err());
        assert!(stored_total(Some(b"\xff")).is_err());
    }

    #[test]
    fn a_milestone_is_reached_once() {
        for (before, after, reached) in [
            (0, 999, None),
            (0, 1000, Some(1000)),
            (999, 1001, Some(1000)),
            (1000, 1500, None),
            (1500, 4200, Some(4000)),
            (1000, 1000, None),
        ] {
            let milestone = milestone_reached(before, after, DEFAULT_MILESTONE);
            assert_eq!(milestone, reached, "{before} to {after}");
        }
    }
}
