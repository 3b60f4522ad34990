//! An event's meta: what a guest sees of it, and what its own events inherit.

use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::event::{CAUSE_FIELD, HOPS_FIELD};

/// Meta fields that only the host writes begin with this.
pub(super) const RESERVED: &str = "outrigger.";

/// Trace context, which emitted events inherit.
pub(super) const TRACE_FIELD: &str = "traceparent";

/// An event's meta, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// All but the host's fields, in their order: string values as they are,
    /// others as JSON text.
    pub(super) fields: Vec<(String, String)>,
    /// How many triggers in a row emitted up to this event.
    pub(super) hops: u32,
    /// The event whose trigger emitted this one.
    pub(super) cause: Option<String>,
}

impl Meta {
    /// Takes JSON text apart. Whoever writes to the outbox can write meta, so
    /// nothing is expected of it: what is no object has no fields.
    pub(super) fn parse(json: Option<&str>) -> Self {
        let mut meta = Self::default();
        let Some(json) = json else { return meta };
        let fields = serde_json::Deserializer::from_str(json).deserialize_map(Fields);
        for (key, value) in fields.unwrap_or_default() {
            match key.as_str() {
                HOPS_FIELD => meta.hops = value.parse().unwrap_or(0),
                CAUSE_FIELD => meta.cause = Some(value),
                key if key.starts_with(RESERVED) => {}
                _ => meta.fields.push((key, value)),
            }
        }
        meta
    }

    /// The trace that the event belongs to.
    pub(super) fn trace(&self) -> Option<&str> {
        let field = self.fields.iter().find(|(key, _)| key == TRACE_FIELD);
        field.map(|(_, value)| value.as_str())
    }

    /// What only the host can say about the event.
    pub(super) fn attrs(&self) -> Vec<(&'static str, String)> {
        let mut attrs = vec![("hops", self.hops.to_string())];
        attrs.extend(self.cause.iter().map(|cause| ("cause", cause.clone())));
        attrs
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            fields.push((plain(key), plain(value)));
        }
        Ok(fields)
    }
}

/// A JSON string's text; the JSON itself of anything else, and of a string that
/// is no Unicode text (`"\ud800"`).
fn plain(json: &RawValue) -> String {
    let json = json.get();
    let text = json.starts_with('"').then(|| serde_json::from_str(json).ok()).flatten();
    text.unwrap_or_else(|| json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_text_and_the_hosts_are_apart() {
        let meta = Meta::parse(Some(
            r#"{"z": "text\n", "n": 1e400, "o": {"a": [1]}, "s": "\ud800", "\ud800": null,
                "traceparent": "00-a-b-01", "outrigger.hops": 3, "outrigger.cause": "c",
                "outrigger.later": 1}"#,
        ));
        let fields: Vec<_> =
            meta.fields.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            fields,
            [
                ("z", "text\n"),
                ("n", "1e400"),
                ("o", r#"{"a": [1]}"#),
                ("s", r#""\ud800""#),
                (r#""\ud800""#, "null"),
                ("traceparent", "00-a-b-01"),
            ]
        );
        assert_eq!(meta.attrs(), [("hops", "3".to_owned()), ("cause", "c".to_owned())]);
        assert_eq!(meta.trace(), Some("00-a-b-01"));
    }

    #[test]
    fn anything_can_be_there() {
        for json in ["", "[]", "null", "{", r#""text""#] {
            assert_eq!(Meta::parse(Some(json)), Meta::default(), "{json}");
        }
        let text = Meta::parse(Some(r#"{"outrigger.hops": "2"}"#));
        assert_eq!(text.hops, 2);
        assert_eq!(Meta::parse(Some(r#"{"outrigger.hops": -1}"#)).hops, 0);
        assert_eq!(Meta::parse(None), Meta::default());
    }
}
