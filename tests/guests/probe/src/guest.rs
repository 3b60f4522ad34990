//! The plugin as the host sees it: does one step after the other.

wit_bindgen::generate!({ path: "../../../wit", world: "trigger" });

use std::{
    hint::black_box,
    io::{self, Write as _},
    process,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use exports::outrigger::trigger::handler::Guest;
use outrigger::trigger::{
    config,
    emit::{self, Due, NewEvent},
    log::{Level, log},
    secrets, state,
    types::{Attempt, Event, Failure, Retry},
};
use serde_json::{Value, json};

use crate::{Channel, Emit, LogLevel, Script, Step, add, found, http, object, text_of};

struct Probe;

export!(Probe);

impl Guest for Probe {
    fn handle(event: Event, attempt: Attempt) -> Result<(), Failure> {
        let script = Script::parse(&event.payload).map_err(Failure::Reject)?;
        script.steps.into_iter().try_for_each(|step| run(step, &event, &attempt))
    }
}

fn run(step: Step, event: &Event, attempt: &Attempt) -> Result<(), Failure> {
    match step {
        Step::Log { level, text } => log(level.into(), &text),
        Step::Stdout { text } => println!("{text}"),
        Step::Stderr { text } => eprintln!("{text}"),
        Step::Config { key } => {
            let value = config::get(&key);
            info(&found(&key, value.as_deref().map(str::as_bytes)));
        }
        Step::Secret { name, show } => {
            let value = secrets::get(&name);
            tell(&found(&name, value.as_deref().map(str::as_bytes)), show)?;
        }
        Step::Visit {} => info(&visits(event, attempt)),
        Step::Dump {} => info(&dump(event, attempt).to_string()),
        Step::Big { bytes } => info(&"x".repeat(bytes)),

        Step::Emit(step) => refused(step.ignore, emit_one(&step))?,
        Step::EmitMany { count, event_name, ignore } => {
            refused(ignore, emit_many(event, count, &event_name))?;
        }

        Step::Get { key, ignore } => refused(ignore, get(&key))?,
        Step::Set { key, value, ignore } => {
            let stored = state::set(&key, text_of(&value).as_bytes());
            refused(ignore, stored.map_err(state_text))?;
        }
        Step::Delete { key, ignore } => refused(ignore, state::delete(&key).map_err(state_text))?,
        Step::Increment { key, by, ignore } => {
            refused(ignore, state::increment(&key, by).map_err(state_text))?;
        }
        Step::ReadAddWrite { key, by, ignore } => refused(ignore, read_add_write(&key, by))?,
        Step::Append { key, text, ignore } => refused(ignore, append(&key, &text))?,
        Step::Keys { prefix, after, limit, ignore } => {
            refused(ignore, keys(&prefix, after.as_deref(), limit))?;
        }

        Step::Retry { message, after_ms } => {
            return Err(Failure::Retry(Retry { message, after_ms }));
        }
        Step::Reject { message } => return Err(Failure::Reject(message)),
        Step::RetryUntil { attempt: first } => {
            if attempt.number < first {
                return Err(retry(format!("attempt {} of {first}", attempt.number)));
            }
        }

        Step::Panic { message } => panic!("{message}"),
        Step::Loop {} => endless(),
        Step::Sleep { ms } => thread::sleep(Duration::from_millis(ms)),
        Step::Spin { ms } => spin(Duration::from_millis(ms)),
        Step::Allocate { mib } => drop(black_box(vec![1_u8; mib << 20])),
        Step::Recurse {} => {
            black_box(recurse(black_box(0)));
        }
        Step::Http(step) => refused(step.ignore, http::send(&step).map(|said| info(&said)))?,
        Step::HttpHold { count, request } => {
            refused(request.ignore, http::hold(&request, count).map(|said| info(&said)))?;
        }
        Step::HttpAll { count, request } => {
            refused(request.ignore, http::all(&request, count).map(|said| info(&said)))?;
        }
        Step::Exit { code } => process::exit(code),
    }
    Ok(())
}

fn tell(text: &str, channel: Channel) -> Result<(), Failure> {
    match channel {
        Channel::Log => info(text),
        Channel::Stdout => println!("{text}"),
        Channel::Pieces => {
            let (first, rest) = text.split_at(text.len() / 2);
            print!("{first}");
            // A flush that fails shows in what is missing.
            let _ = io::stdout().flush();
            println!("{rest}");
        }
        Channel::Stderr => eprintln!("{text}"),
        Channel::Panic => panic!("{text}"),
        Channel::Retry => return Err(retry(text.into())),
        Channel::Reject => return Err(Failure::Reject(text.into())),
        Channel::State => {
            state::set("shown", text.as_bytes()).map_err(|error| retry(state_text(error)))?;
        }
        Channel::Key => state::increment(text, 1).map_err(|error| retry(state_text(error)))?,
    }
    Ok(())
}

/// What the host refused is logged where the step says so, and ends the call
/// with a retry elsewhere.
fn refused(ignore: bool, result: Result<(), String>) -> Result<(), Failure> {
    match result {
        Err(text) if ignore => {
            info(&text);
            Ok(())
        }
        result => result.map_err(retry),
    }
}

fn emit_one(step: &Emit) -> Result<(), String> {
    let due = match (step.after_ms, step.at_ms) {
        (Some(delay), _) => Due::AfterMs(delay),
        (None, Some(time)) => Due::AtMs(time),
        (None, None) => Due::Now,
    };
    let meta = step.meta.iter();
    let id = emit::emit(&NewEvent {
        resource: step.resource.clone(),
        aggregate_id: step.aggregate_id.clone(),
        event_name: step.event_name.clone(),
        schema_version: step.schema_version,
        payload: step.payload_text(),
        meta: meta.map(|(key, value)| (key.clone(), text_of(value))).collect(),
        dedup_key: step.dedup_key.clone(),
        due,
    })
    .map_err(emit_text)?;
    log(Level::Debug, &format!("emitted {id}"));
    Ok(())
}

fn emit_many(event: &Event, count: u32, event_name: &str) -> Result<(), String> {
    for index in 0..count {
        emit::emit(&NewEvent {
            resource: event.resource.clone(),
            aggregate_id: event.aggregate_id.clone(),
            event_name: event_name.into(),
            schema_version: 1,
            payload: json!({"index": index}).to_string(),
            meta: Vec::new(),
            dedup_key: None,
            due: Due::Now,
        })
        .map_err(emit_text)?;
    }
    log(Level::Debug, &format!("emitted {count}"));
    Ok(())
}

fn get(key: &str) -> Result<(), String> {
    let value = state::get(key).map_err(state_text)?;
    info(&found(key, value.as_deref()));
    Ok(())
}

fn read_add_write(key: &str, by: i64) -> Result<(), String> {
    let stored = state::get(key).map_err(state_text)?;
    let sum = add(stored.as_deref(), by)?;
    state::set(key, sum.to_string().as_bytes()).map_err(state_text)
}

fn append(key: &str, text: &str) -> Result<(), String> {
    let mut value = state::get(key).map_err(state_text)?.unwrap_or_default();
    value.extend_from_slice(text.as_bytes());
    value.push(b',');
    state::set(key, &value).map_err(state_text)
}

fn keys(prefix: &str, after: Option<&str>, limit: u32) -> Result<(), String> {
    let keys = state::keys(prefix, after, limit).map_err(state_text)?;
    info(&keys.join(","));
    Ok(())
}

/// Remembers a call in the instance's memory.
fn visits(event: &Event, attempt: &Attempt) -> String {
    static VISITS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut visits = VISITS.lock().expect("an instance has one thread");
    visits.push(format!("{}/{}", attempt.trigger, event.aggregate_id));
    visits.join(" ")
}

fn dump(event: &Event, attempt: &Attempt) -> Value {
    json!({
        "event": {
            "messageId": event.message_id,
            "project": event.project,
            "resource": event.resource,
            "aggregateId": event.aggregate_id,
            "eventName": event.event_name,
            "schemaVersion": event.schema_version,
            "payload": event.payload,
            "meta": object(event.meta.clone()),
            "dedupKey": event.dedup_key,
            "createdAtMs": event.created_at_ms,
            "position": event.position,
            "attrs": object(event.attrs.clone()),
        },
        "attempt": {
            "trigger": attempt.trigger,
            "number": attempt.number,
            "max": attempt.max,
            "deadlineMs": attempt.deadline_ms,
            "idempotencyKey": attempt.idempotency_key,
            "attrs": object(attempt.attrs.clone()),
        },
    })
}

fn endless() -> ! {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {}
}

/// Adds on the way back, so that no loop can replace the calls.
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    if black_box(depth) == u64::MAX {
        return 0;
    }
    recurse(depth + 1) + black_box(depth)
}

fn info(text: &str) {
    log(Level::Info, text);
}

fn retry(message: String) -> Failure {
    Failure::Retry(Retry { message, after_ms: None })
}

fn state_text(error: state::Error) -> String {
    use state::Error::{Denied, Invalid, Limit, Other, Unavailable};
    match error {
        Denied(text) => format!("state denied: {text}"),
        Limit(text) => format!("state limit: {text}"),
        Unavailable(text) => format!("state unavailable: {text}"),
        Invalid(text) => format!("state invalid: {text}"),
        Other(text) => format!("state: {text}"),
    }
}

fn emit_text(error: emit::Error) -> String {
    use emit::Error::{Denied, Invalid, Limit, Other};
    match error {
        Denied(text) => format!("emit denied: {text}"),
        Limit(text) => format!("emit limit: {text}"),
        Invalid(text) => format!("emit invalid: {text}"),
        Other(text) => format!("emit: {text}"),
    }
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Trace => Self::Trace,
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Warn => Self::Warn,
            LogLevel::Error => Self::Error,
        }
    }
}
