//! Which triggers an event is for.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cel::{Context, Program, Value};

use crate::{
    model::{
        event::Event,
        trigger::{Match, Order, Trigger},
    },
    store::Destination,
};

/// Longest `when`, in bytes.
const MAX_WHEN: usize = 4 << 10;

/// A compiled `when`.
pub(super) struct When(Program);

/// What an expression may refer to.
const VARIABLES: [&str; 9] = [
    "payload",
    "meta",
    "project",
    "resource",
    "aggregateId",
    "eventName",
    "schemaVersion",
    "messageId",
    "createdAt",
];

impl When {
    pub(super) fn compile(expression: &str) -> Result<Self, String> {
        if expression.len() > MAX_WHEN {
            return Err(format!("is longer than {MAX_WHEN} bytes"));
        }
        // The generated parser behind it panics on some inputs.
        let program = catch_unwind(AssertUnwindSafe(|| Program::compile(expression)))
            .map_err(|_| "is no CEL expression".to_owned())?
            .map_err(|errors| format!("is no CEL expression: {errors}"))?;
        // Variables that a macro binds, as in `exists(i, …)`, are its own.
        let dense: String = expression.chars().filter(|c| !c.is_whitespace()).collect();
        let known = |name: &&str| VARIABLES.contains(name) || dense.contains(&format!("({name},"));
        let unknown =
            program.references().variables().into_iter().find(|n| !known(n)).map(str::to_owned);
        match unknown {
            Some(name) => Err(format!(
                "refers to `{name}`; an event has {}",
                VARIABLES.map(|name| format!("`{name}`")).join(", ")
            )),
            None => Ok(Self(program)),
        }
    }

    /// Whether the expression holds for an event.
    ///
    /// # Errors
    /// When it can't be evaluated for this one, such as for a missing field.
    pub(super) fn holds(&self, facts: &Facts) -> Result<bool, String> {
        let result = catch_unwind(AssertUnwindSafe(|| self.0.execute(&facts.0)));
        match result {
            Ok(Ok(Value::Bool(holds))) => Ok(holds),
            Ok(Ok(other)) => Err(format!("`when` gave {other:?}, which is no boolean")),
            Ok(Err(error)) => Err(format!("`when`: {error}")),
            Err(_) => Err("`when` can't be evaluated".into()),
        }
    }
}

/// Checks a `when` without keeping it.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_when(expression: &str) -> Result<(), String> {
    When::compile(expression).map(drop)
}

/// An event as expressions see it; made once for all triggers, and only if
/// one of them asks.
pub(super) struct Facts(Context<'static, 'static>);

impl Facts {
    pub(super) fn of(event: &Event) -> Result<Self, String> {
        let json = |what: &str, text: &str| {
            serde_json::from_str::<serde_json::Value>(text)
                .map(value)
                .map_err(|error| format!("the {what} can't be read for `when`: {error}"))
        };
        let text = |text: &str| Value::String(Arc::new(text.to_owned()));
        let meta = event.meta.as_deref().unwrap_or("{}");
        let mut context = Context::default();
        context.add_variable_from_value("payload", json("payload", &event.payload)?);
        context.add_variable_from_value("meta", json("meta", meta)?);
        context.add_variable_from_value("project", text(&event.project));
        context.add_variable_from_value("resource", text(&event.resource));
        context.add_variable_from_value("aggregateId", text(&event.aggregate_id));
        context.add_variable_from_value("eventName", text(&event.event_name));
        context.add_variable_from_value("schemaVersion", Value::Int(event.schema_version.into()));
        context.add_variable_from_value("messageId", text(&event.message_id.to_string()));
        context.add_variable_from_value("createdAt", Value::Int(event.created_at));
        Ok(Self(context))
    }
}

/// JSON as CEL's values: whole numbers are integers, so that `payload.n + 1`
/// means what it says.
fn value(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(b),
        serde_json::Value::Number(n) => {
            n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Int)
        }
        serde_json::Value::String(s) => Value::String(Arc::new(s)),
        serde_json::Value::Array(items) => {
            Value::List(Arc::new(items.into_iter().map(value).collect::<Vec<_>>()))
        }
        serde_json::Value::Object(fields) => {
            let map: HashMap<String, Value> =
                fields.into_iter().map(|(name, field)| (name, value(field))).collect();
            Value::Map(map.into())
        }
    }
}

/// A project's triggers, ready to be matched with events that were dispatched
/// before.
pub struct Matcher(Vec<(Trigger, Option<Result<When, String>>)>);

/// Where an event goes, and which triggers couldn't tell, each with the reason.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Triggers that the event is for.
    pub to: Vec<Destination>,
    /// Triggers whose `when` could not be evaluated.
    pub unclear: Vec<(String, String)>,
}

impl Matcher {
    /// Compiles what these triggers match; of all if none is named.
    #[must_use]
    pub fn new(triggers: Vec<Trigger>, only: Option<&str>) -> Self {
        let triggers = triggers.into_iter().filter(|t| only.is_none_or(|name| t.name == name));
        let compiled = triggers.map(|trigger| {
            let when = trigger.spec.matches.when.as_deref().map(When::compile);
            (trigger, when)
        });
        Self(compiled.collect())
    }

    /// Which of the triggers an event is for.
    #[must_use]
    pub fn matched(&self, event: &Event) -> Matched {
        let mut matched = Matched::default();
        let mut facts = None;
        for (trigger, when) in &self.0 {
            match fits(&trigger.spec.matches, when.as_ref(), event, &mut facts) {
                Ok(true) => matched.to.push(Destination {
                    trigger: trigger.name.clone(),
                    ordered: trigger.spec.order == Order::Aggregate,
                }),
                Ok(false) => {}
                Err(why) => matched.unclear.push((trigger.name.clone(), why)),
            }
        }
        matched
    }
}

/// Whether an event is for a trigger. `facts` are made once for all triggers.
///
/// # Errors
/// When its `when` can't be evaluated.
pub(super) fn fits(
    matches: &Match,
    when: Option<&Result<When, String>>,
    event: &Event,
    facts: &mut Option<Result<Facts, String>>,
) -> Result<bool, String> {
    if !covers(matches, event) {
        return Ok(false);
    }
    match when {
        None => Ok(true),
        Some(Err(why)) => Err(format!("`when` {why}")),
        Some(Ok(when)) => match facts.get_or_insert_with(|| Facts::of(event)) {
            Ok(facts) => when.holds(facts),
            Err(why) => Err(why.clone()),
        },
    }
}

/// Whether the patterns and versions cover an event; `when` is asked after.
fn covers(matches: &Match, event: &Event) -> bool {
    matches.resource.covers(&event.resource)
        && matches.event_name.covers(&event.event_name)
        && matches.schema_version.cover(event.schema_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: &str) -> Event {
        Event {
            pk: 1,
            message_id: uuid::Uuid::nil(),
            project: "shop".into(),
            resource: "order".into(),
            aggregate_id: "o-1".into(),
            event_name: "order.placed".into(),
            schema_version: 2,
            payload: payload.into(),
            meta: Some(r#"{"tenant": "a"}"#.into()),
            dedup_key: None,
            created_at: 0,
            available_at: None,
            lane: 0,
        }
    }

    fn holds(when: &str, payload: &str) -> Result<bool, String> {
        When::compile(when)?.holds(&Facts::of(&event(payload))?)
    }

    #[test]
    fn expressions_see_the_event() {
        for (when, expected) in [
            ("payload.total > 100", true),
            ("payload.total + 1 == 121", true),
            ("payload.total > 119.5", true),
            ("payload.items.exists(i, i.sku == 'b')", true),
            ("has(payload.missing) && payload.missing > 1", false),
            ("meta.tenant == 'a' && schemaVersion >= 2", true),
            ("eventName.startsWith('order.') && resource == 'order'", true),
            ("size(payload.items) == 3", false),
        ] {
            let payload = r#"{"total": 120, "items": [{"sku": "a"}, {"sku": "b"}]}"#;
            assert_eq!(holds(when, payload), Ok(expected), "{when}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_no_match_with_a_reason() {
        holds("payload.total > 100", "{}").expect_err("a missing field");
        holds("payload", "{}").expect_err("no boolean");
        holds("payload.total > 100", "[1e400]").expect_err("a number beyond 64 bits");
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for bad in ["payload.total >", "", "((", "payload total", "'open", "unknown > 1"] {
            check_when(bad).expect_err(bad);
        }
        check_when(&"true && ".repeat(1000)).expect_err("too long");
    }
}
