//! One outbox row: before it is recorded, and as it was read.

use uuid::Uuid;

use super::{
    Lane, UnixMillis,
    names::{self, Invalid},
};

/// An event to record.
///
/// Payload and meta are JSON *text* and are kept to the letter: numbers beyond
/// 64 bits, key order and escapes arrive as they were written.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The tenant.
    pub project: String,
    /// The kind of thing that the event is about, such as `order`.
    pub resource: String,
    /// Which one of that kind; with project and resource the ordering key.
    pub aggregate_id: String,
    /// What happened, such as `order.placed`.
    pub event_name: String,
    /// Version of the payload's shape, 1 by default.
    pub schema_version: u32,
    /// JSON text.
    pub payload: String,
    /// JSON text of an object, if there is any.
    pub meta: Option<String>,
    /// At most one event of a project has the same non-empty key.
    pub dedup_key: Option<String>,
    /// When the event falls due; at once if `None`.
    pub available_at: Option<UnixMillis>,
    /// Its id; drawn by the database if `None`.
    pub message_id: Option<Uuid>,
}

impl NewEvent {
    /// An event with the required fields, all else at its default.
    pub fn new(
        project: impl Into<String>,
        resource: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_name: impl Into<String>,
        payload: impl Into<String>,
    ) -> Self {
        Self {
            project: project.into(),
            resource: resource.into(),
            aggregate_id: aggregate_id.into(),
            event_name: event_name.into(),
            schema_version: 1,
            payload: payload.into(),
            meta: None,
            dedup_key: None,
            available_at: None,
            message_id: None,
        }
    }

    /// Checks everything that the database would refuse, or that no trigger
    /// could use, so that it is refused at the door with a reason.
    ///
    /// # Errors
    /// Names the first field that is wrong.
    pub fn validate(&self, max_payload: usize) -> Result<(), Invalid> {
        names::text("project", &self.project)?;
        names::text("resource", &self.resource)?;
        names::text("aggregateId", &self.aggregate_id)?;
        names::text("eventName", &self.event_name)?;
        if i32::try_from(self.schema_version).is_err() {
            return Err(Invalid::new("schemaVersion", "is larger than 2147483647"));
        }
        if let Some(key) = self.dedup_key.as_deref().filter(|key| !key.is_empty()) {
            names::text("dedupKey", key)?;
        }
        if self.payload.len() > max_payload {
            let why = format!("has {} bytes; the limit is {max_payload}", self.payload.len());
            return Err(Invalid::new("payload", why));
        }
        json("payload", &self.payload)?;
        if let Some(meta) = &self.meta {
            if meta.len() > MAX_META {
                let why = format!("has {} bytes; the limit is {MAX_META}", meta.len());
                return Err(Invalid::new("meta", why));
            }
            json("meta", meta)?;
            if !meta.trim_start().starts_with('{') {
                return Err(Invalid::new("meta", "is not a JSON object"));
            }
        }
        if self.available_at.is_some_and(|at| at < 0) {
            return Err(Invalid::new("availableAt", "is before 1970"));
        }
        Ok(())
    }
}

/// Longest meta, in bytes of JSON.
pub const MAX_META: usize = 64 << 10;

/// Levels that JSON may be nested: less than what either database takes.
pub const MAX_DEPTH: usize = 500;

fn json(field: &'static str, text: &str) -> Result<(), Invalid> {
    serde_json::from_str::<&serde_json::value::RawValue>(text)
        .map_err(|error| Invalid::new(field, format!("is not JSON: {error}")))?;
    if depth(text) > MAX_DEPTH {
        return Err(Invalid::new(field, format!("is nested deeper than {MAX_DEPTH} levels")));
    }
    Ok(())
}

/// How deep valid JSON is nested.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// An outbox row as it was claimed or looked up.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Rises within one ordering key: the position.
    pub pk: i64,
    /// The same at every delivery: what receivers deduplicate by.
    pub message_id: Uuid,
    /// The tenant.
    pub project: String,
    /// The kind of thing that the event is about.
    pub resource: String,
    /// Which one of that kind.
    pub aggregate_id: String,
    /// What happened.
    pub event_name: String,
    /// Version of the payload's shape.
    pub schema_version: u32,
    /// JSON text.
    pub payload: String,
    /// JSON text of an object.
    pub meta: Option<String>,
    /// The application's key, if it gave one.
    pub dedup_key: Option<String>,
    /// When it was recorded.
    pub created_at: UnixMillis,
    /// When it falls due, if that was said.
    pub available_at: Option<UnixMillis>,
    /// The hash class of its ordering key.
    pub lane: Lane,
}

impl Event {
    /// The payload, as a value of the application's own type.
    ///
    /// # Errors
    /// When the payload has another shape.
    pub fn decode<T: serde::de::DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.payload)
    }
}

/// Host-written part of meta: who caused an event, and how far it is from the
/// one that an application recorded.
pub const CAUSE_FIELD: &str = "outrigger.cause";

/// How many triggers in a row emitted up to this event; in meta beside [`CAUSE_FIELD`].
pub const HOPS_FIELD: &str = "outrigger.hops";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::MAX_TEXT;

    fn event() -> NewEvent {
        NewEvent::new("shop", "order", "o-1", "order.placed", r#"{"total": 1}"#)
    }

    #[test]
    fn json_is_kept_to_the_letter_or_refused() {
        for payload in [r#""\u0000""#, r#""\ud800""#, "1e400", "\"\u{1f980}\"", "[]", " {} "] {
            let event = NewEvent { payload: payload.into(), ..event() };
            assert_eq!(event.validate(1000), Ok(()), "{payload}");
        }
        for payload in ["", "{", "\"\0\"", "{}{}", "nul", "'a'"] {
            let event = NewEvent { payload: payload.into(), ..event() };
            assert_eq!(event.validate(1000).expect_err(payload).field, "payload");
        }
    }

    #[test]
    fn nesting_is_counted_outside_of_texts() {
        for (json, levels) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[[1],{}]}"#, 3),
            (r#"["[[\"[["]"#, 1),
            (r#"["\\",[]]"#, 2),
        ] {
            assert_eq!(depth(json), levels, "{json}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1);
        let event = NewEvent { payload: deep, ..event() };
        assert_eq!(event.validate(10_000).expect_err("too deep").field, "payload");
    }

    #[test]
    fn each_field_is_checked() {
        let long = "x".repeat(MAX_TEXT + 1);
        for (field, wrong) in [
            ("resource", NewEvent { resource: String::new(), ..event() }),
            ("aggregateId", NewEvent { aggregate_id: long.clone(), ..event() }),
            ("eventName", NewEvent { event_name: "a\0".into(), ..event() }),
            ("dedupKey", NewEvent { dedup_key: Some(long), ..event() }),
            ("meta", NewEvent { meta: Some("[]".into()), ..event() }),
            ("schemaVersion", NewEvent { schema_version: u32::MAX, ..event() }),
            ("availableAt", NewEvent { available_at: Some(-1), ..event() }),
            ("payload", NewEvent { payload: format!("{:1100}", 1), ..event() }),
        ] {
            assert_eq!(wrong.validate(1000).expect_err(field).field, field);
        }
        let empty_key = NewEvent { dedup_key: Some(String::new()), ..event() };
        assert_eq!(empty_key.validate(1000), Ok(()));
    }
}
