//! Events that a call emits: checked at once, recorded when the call is settled.

use std::sync::Arc;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    Call, Settings, TriggerView,
    caps::{Cap, Caps},
    meta::{Meta, RESERVED, TRACE_FIELD},
    refusal::Refusal,
};
use crate::model::{
    UnixMillis,
    event::{CAUSE_FIELD, Event, HOPS_FIELD, MAX_META, NewEvent},
    units::Bytes,
};

/// When an emitted event falls due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// When it is recorded.
    Now,
    /// So many milliseconds after the call.
    AfterMs(u32),
    /// At this time, in milliseconds since the epoch.
    AtMs(u64),
}

/// An event as a call asks for it; it will be of the same project.
#[derive(Debug, Clone)]
pub struct Wish {
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
    /// Fields of its meta; those of the host are added.
    pub meta: Vec<(String, String)>,
    /// At most one event of a project has the same non-empty key.
    pub dedup_key: Option<String>,
    /// When it falls due.
    pub due: Due,
}

/// The events that one call has emitted so far.
#[derive(Debug)]
pub(super) struct Emitter {
    event: Arc<Event>,
    trigger: Arc<TriggerView>,
    idempotency_key: String,
    now_ms: UnixMillis,
    hops: u32,
    trace: Option<String>,
    count_max: Cap<u32>,
    bytes_max: Cap<Bytes>,
    payload_max: Bytes,
    hops_max: u32,
    calls: u32,
    bytes: usize,
    emitted: Vec<NewEvent>,
}

impl Emitter {
    /// Nothing emitted yet.
    pub(super) fn new(call: &Call, meta: &Meta, caps: &Caps, settings: &Settings) -> Self {
        Self {
            event: Arc::clone(&call.event),
            trigger: Arc::clone(&call.trigger),
            idempotency_key: call.idempotency_key.clone(),
            now_ms: call.now_ms,
            hops: meta.hops.saturating_add(1),
            trace: meta.trace().map(str::to_owned),
            count_max: caps.emit_count,
            bytes_max: caps.emit_bytes,
            payload_max: settings.payload_max,
            hops_max: settings.hops_max,
            calls: 0,
            bytes: 0,
            emitted: Vec::new(),
        }
    }

    /// Adds an event and returns the message id that it will have.
    pub(super) fn emit(&mut self, wish: Wish) -> Result<Uuid, Refusal> {
        let index = self.calls;
        self.calls = self.calls.saturating_add(1);
        self.check_grant(&wish)?;
        self.check_caps(&wish)?;
        let event = self.event(wish, index)?;
        event
            .validate(self.payload_max.as_usize())
            .map_err(|invalid| Refusal::Invalid(invalid.to_string()))?;
        let bytes = self.bytes + size(&event);
        if bytes > self.bytes_max.max.as_usize() {
            let cap = self.bytes_max;
            return limit(format!("the events of one call have {bytes} bytes together; {cap}"));
        }
        self.bytes = bytes;
        let id = event.message_id.unwrap_or_default();
        self.emitted.push(event);
        Ok(id)
    }

    /// What was emitted, in the order of the calls.
    pub(super) fn finish(&mut self) -> Vec<NewEvent> {
        std::mem::take(&mut self.emitted)
    }

    fn check_grant(&self, wish: &Wish) -> Result<(), Refusal> {
        let name = &wish.event_name;
        if self.trigger.emit.iter().any(|pattern| pattern.covers(name)) {
            return Ok(());
        }
        let trigger = &self.trigger.name;
        Err(Refusal::Denied(format!(
            "the trigger `{trigger}` may not emit `{name}`; \
             add `\"grants\": {{\"emit\": [\"{name}\"]}}` to it"
        )))
    }

    fn check_caps(&self, wish: &Wish) -> Result<(), Refusal> {
        if self.emitted.len() >= self.count_max.max as usize {
            return limit(format!("the call emits too many events; {}", self.count_max));
        }
        if self.hops > self.hops_max {
            return limit(format!(
                "too many triggers in a row emit (is an event triggering itself?); this host's \
                 `events.hops_max` is {}",
                self.hops_max
            ));
        }
        let payload = wish.payload.len();
        if payload > self.payload_max.as_usize() {
            let max = self.payload_max;
            return limit(format!(
                "the payload has {payload} bytes; this host's `events.payload_max` is {max}"
            ));
        }
        let meta: usize = wish.meta.iter().map(|(key, value)| key.len() + value.len()).sum();
        if meta > MAX_META {
            return limit(format!("meta may have {MAX_META} bytes; this one has {meta}"));
        }
        Ok(())
    }

    fn event(&self, wish: Wish, index: u32) -> Result<NewEvent, Refusal> {
        let available_at = match wish.due {
            Due::Now => None,
            Due::AfterMs(millis) => Some(self.now_ms.saturating_add(millis.into())),
            Due::AtMs(millis) => Some(UnixMillis::try_from(millis).map_err(|_| {
                Refusal::Invalid(format!("due at {millis} ms after 1970 is no time"))
            })?),
        };
        Ok(NewEvent {
            project: self.event.project.clone(),
            resource: wish.resource,
            aggregate_id: wish.aggregate_id,
            event_name: wish.event_name,
            schema_version: wish.schema_version,
            payload: wish.payload,
            meta: Some(self.meta(wish.meta)?),
            dedup_key: wish.dedup_key.filter(|key| !key.is_empty()),
            available_at,
            message_id: Some(self.id(index)),
        })
    }

    fn meta(&self, fields: Vec<(String, String)>) -> Result<String, Refusal> {
        let mut meta = Map::new();
        for (key, value) in fields {
            if key.starts_with(RESERVED) {
                return Err(Refusal::Invalid(format!(
                    "the meta field `{key}` begins with `{RESERVED}`, which is the host's"
                )));
            }
            if meta.contains_key(&key) {
                return Err(Refusal::Invalid(format!("the meta field `{key}` is there twice")));
            }
            meta.insert(key, Value::String(value));
        }
        if let Some(trace) = &self.trace {
            meta.entry(TRACE_FIELD).or_insert_with(|| trace.as_str().into());
        }
        meta.insert(CAUSE_FIELD.into(), self.event.message_id.to_string().into());
        meta.insert(HOPS_FIELD.into(), self.hops.into());
        Ok(Value::Object(meta).to_string())
    }

    /// The same at every attempt. The idempotency key is part of it because a
    /// replay has another one: what it emits is new, like its delivery.
    fn id(&self, index: u32) -> Uuid {
        // No slash is in a trigger's name, so no two triggers give the same text.
        let name = format!("{}/{}/{index}", self.trigger.name, self.idempotency_key);
        Uuid::new_v5(&self.event.message_id, name.as_bytes())
    }
}

fn limit<T>(text: String) -> Result<T, Refusal> {
    Err(Refusal::Limit(text))
}

fn size(event: &NewEvent) -> usize {
    let texts = [&event.resource, &event.aggregate_id, &event.event_name, &event.payload];
    let optional = [&event.meta, &event.dedup_key];
    texts.into_iter().map(String::len).sum::<usize>()
        + optional.into_iter().flatten().map(String::len).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::call::tests::call;

    fn emitter(meta: &str, settings: &Settings) -> Emitter {
        emitter_of(&call("{}"), &Meta::parse(Some(meta)), settings)
    }

    fn emitter_of(call: &Call, meta: &Meta, settings: &Settings) -> Emitter {
        Emitter::new(call, meta, &Caps::of(&call.trigger.limits, settings), settings)
    }

    fn wish() -> Wish {
        Wish {
            resource: "email".into(),
            aggregate_id: "1".into(),
            event_name: "email.asked".into(),
            schema_version: 1,
            payload: "{}".into(),
            meta: vec![],
            dedup_key: Some(String::new()),
            due: Due::Now,
        }
    }

    #[test]
    fn an_emitted_event_knows_where_it_comes_from() {
        let settings = Settings::default();
        let meta = r#"{"traceparent": "t", "other": 1, "outrigger.hops": 2}"#;
        let mut emitter = emitter(meta, &settings);
        let first = emitter.emit(wish()).expect("emitted");
        let meta = vec![("traceparent".into(), "mine".into()), ("k".into(), "1".into())];
        let due = Due::AfterMs(5);
        let second = emitter.emit(Wish { meta, due, ..wish() }).expect("emitted");
        assert_ne!(first, second);
        let events = emitter.finish();
        let cause = call("{}").event.message_id;
        assert_eq!(events[0].message_id, Some(first));
        assert_eq!((&*events[0].project, &events[0].dedup_key), ("shop", &None));
        assert_eq!(
            events[0].meta.as_deref(),
            Some(&*format!(
                r#"{{"outrigger.cause":"{cause}","outrigger.hops":3,"traceparent":"t"}}"#
            ))
        );
        let meta = events[1].meta.as_deref().expect("meta");
        assert!(meta.contains(r#""k":"1""#) && meta.contains(r#""traceparent":"mine""#), "{meta}");
        assert_eq!((events[0].available_at, events[1].available_at), (None, Some(1_000_005)));
    }

    #[test]
    fn ids_are_the_same_again_but_not_for_a_replay_or_another_trigger() {
        let settings = Settings::default();
        let id = |change: fn(&mut Call)| {
            let mut call = call("{}");
            change(&mut call);
            let mut emitter = emitter_of(&call, &Meta::default(), &settings);
            emitter.emit(wish()).expect("emitted")
        };
        let first = id(|_| {});
        assert_eq!(first, id(|call| call.attempt = 7));
        assert_ne!(first, id(|call| call.idempotency_key.push_str("/1")));
        assert_ne!(first, id(|call| Arc::make_mut(&mut call.trigger).name.push('2')));
    }

    #[test]
    fn what_is_refused_says_why() {
        let settings = Settings {
            emit_count: 2,
            emit_bytes: "200B".parse().expect("a size"),
            payload_max: "100B".parse().expect("a size"),
            ..Settings::default()
        };
        let mut emitter = emitter("{}", &settings);
        let long = "1".repeat(101);
        let twice = vec![("a".into(), String::new()), ("a".into(), String::new())];
        for (wish, expected) in [
            (Wish { event_name: "sms.asked".into(), ..wish() }, r#"{"emit": ["sms.asked"]}"#),
            (Wish { payload: long, ..wish() }, "`events.payload_max` is 100B"),
            (Wish { payload: "{".into(), ..wish() }, "payload is not JSON"),
            (Wish { resource: String::new(), ..wish() }, "resource is empty"),
            (Wish { meta: vec![("outrigger.hops".into(), "0".into())], ..wish() }, "the host's"),
            (Wish { meta: twice, ..wish() }, "twice"),
            (Wish { meta: vec![("a".into(), "x".repeat(MAX_META))], ..wish() }, "65536 bytes"),
            (Wish { due: Due::AtMs(u64::MAX), ..wish() }, "is no time"),
        ] {
            let refusal = format!("{:?}", emitter.emit(wish).expect_err(expected));
            assert!(refusal.replace('\\', "").contains(expected), "{expected}: {refusal}");
        }
        let payload = "1".repeat(50);
        emitter.emit(Wish { payload, ..wish() }).expect("the first");
        let payload = "1".repeat(90);
        let refusal = emitter.emit(Wish { payload, ..wish() }).expect_err("too much");
        let said = refusal.to_string();
        assert!(said.ends_with("together; this host's `sandbox.emit_bytes` is 200B"), "{said}");
    }

    #[test]
    fn counts_and_chains_come_to_an_end() {
        let settings = Settings { emit_count: 2, hops_max: 3, ..Settings::default() };
        let mut few = emitter("{}", &settings);
        few.emit(wish()).expect("the first");
        few.emit(wish()).expect("the second");
        let refusal = few.emit(wish()).expect_err("the third");
        assert!(
            matches!(refusal, Refusal::Limit(why) if why.ends_with("`sandbox.emit_count` is 2"))
        );
        emitter(r#"{"outrigger.hops": 2}"#, &settings).emit(wish()).expect("the third hop");
        let refusal = emitter(r#"{"outrigger.hops": 3}"#, &settings).emit(wish());
        assert!(
            matches!(refusal, Err(Refusal::Limit(text)) if text.ends_with("`events.hops_max` is 3"))
        );
    }
}
