//! Logs every event, counts each kind and remembers the last of each aggregate.
//!
//! This file decides what is written where and is tested natively; `plugin.rs`
//! hands it to the host.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod plugin;

use serde_json::json;

/// What is kept of an event. The payload isn't: it may be private.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Id of the event, the same at every delivery.
    pub message_id: &'a str,
    /// The kind of thing that it is about.
    pub resource: &'a str,
    /// Which one of that kind.
    pub aggregate_id: &'a str,
    /// What happened.
    pub event_name: &'a str,
    /// Rises within one aggregate.
    pub position: u64,
    /// Id of the event whose trigger emitted this one; none where an
    /// application recorded it.
    pub cause: Option<&'a str>,
}

impl Entry<'_> {
    /// The line to log.
    #[must_use]
    pub fn line(&self) -> String {
        let cause = match self.cause {
            Some(cause) => format!(", caused by {cause}"),
            None => String::new(),
        };
        format!(
            "{} of {}/{} at {}{cause}",
            self.event_name, self.resource, self.aggregate_id, self.position
        )
    }

    /// Where events of this name are counted.
    #[must_use]
    pub fn count_key(&self) -> String {
        format!("count/{}", self.event_name)
    }

    /// Where the last event of this aggregate is remembered.
    #[must_use]
    pub fn last_key(&self) -> String {
        format!("last/{}/{}", self.resource, self.aggregate_id)
    }

    /// What is remembered there: JSON text.
    #[must_use]
    pub fn last_value(&self) -> String {
        json!({
            "eventName": self.event_name,
            "messageId": self.message_id,
            "position": self.position,
        })
        .to_string()
    }
}

/// Looks up one of an event's attributes.
#[must_use]
pub fn attr<'a>(attrs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let (_, value) = attrs.iter().find(|(key, _)| key == name)?;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry {
        message_id: "m-1",
        resource: "order",
        aggregate_id: "o-1",
        event_name: "order.placed",
        position: 42,
        cause: None,
    };

    #[test]
    fn the_line_names_the_cause_if_there_is_one() {
        assert_eq!(ENTRY.line(), "order.placed of order/o-1 at 42");
        let caused = Entry { cause: Some("m-0"), ..ENTRY };
        assert_eq!(caused.line(), "order.placed of order/o-1 at 42, caused by m-0");
    }

    #[test]
    fn state_is_kept_by_name_and_by_aggregate() {
        assert_eq!(ENTRY.count_key(), "count/order.placed");
        assert_eq!(ENTRY.last_key(), "last/order/o-1");
        let quoted = Entry { event_name: "a \"quoted\" name", ..ENTRY };
        assert_eq!(
            quoted.last_value(),
            r#"{"eventName":"a \"quoted\" name","messageId":"m-1","position":42}"#
        );
    }

    #[test]
    fn an_attribute_is_found_by_name() {
        let attrs = [("a".into(), "1".into()), ("b".into(), "2".into())];
        assert_eq!(attr(&attrs, "b"), Some("2"));
        assert_eq!(attr(&attrs, "c"), None);
    }
}
