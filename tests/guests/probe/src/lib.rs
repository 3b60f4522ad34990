//! A plugin that does what an event's payload tells it, for integration tests.
//!
//! The payload is `{"do": [step, …]}`, each step an object with `op` and that
//! op's fields, such as `{"op": "set", "key": "a", "value": "1"}`; see [`Step`].
//! The whole script is read before its first step is done, so an unknown op or
//! field is a reject without side effects. Without `do` nothing is done.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod guest;
#[cfg(target_arch = "wasm32")]
mod http;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A payload. Fields beside `do` are ignored: they are the test's own.
#[derive(Debug, PartialEq, Default, Deserialize)]
pub struct Script {
    /// What to do, in order.
    #[serde(rename = "do", default)]
    pub steps: Vec<Step>,
}

impl Script {
    /// Reads a payload.
    ///
    /// # Errors
    /// Says what can't be understood.
    pub fn parse(payload: &str) -> Result<Self, String> {
        serde_json::from_str(payload).map_err(|error| format!("bad script: {error}"))
    }
}

/// One thing to do. Where a step has `ignore`, it says to log the host's
/// refusal and go on; otherwise a refusal ends the call with a retry.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// Logs a line.
    Log {
        #[serde(default)]
        level: LogLevel,
        text: String,
    },
    /// Prints a line to standard output.
    Stdout { text: String },
    /// Prints a line to standard error.
    Stderr { text: String },
    /// Emits an event and logs `emitted ID` at debug.
    Emit(Box<Emit>),
    /// Emits this many events about the aggregate of the event at hand, each
    /// with payload `{"index": N}`; logs `emitted COUNT` at debug.
    EmitMany {
        count: u32,
        event_name: String,
        #[serde(default)]
        ignore: bool,
    },
    /// Logs `KEY=VALUE` or `KEY absent`.
    Get {
        key: String,
        #[serde(default)]
        ignore: bool,
    },
    /// Stores a string as it is, any other value as JSON text.
    Set {
        key: String,
        value: Value,
        #[serde(default)]
        ignore: bool,
    },
    /// Deletes a key.
    Delete {
        key: String,
        #[serde(default)]
        ignore: bool,
    },
    /// Adds without reading.
    Increment {
        key: String,
        by: i64,
        #[serde(default)]
        ignore: bool,
    },
    /// Gets a decimal integer (0 if absent), adds, sets: a read that can be overtaken.
    ReadAddWrite {
        key: String,
        by: i64,
        #[serde(default)]
        ignore: bool,
    },
    /// Gets, appends the text and a comma, sets: shows the order of calls.
    Append {
        key: String,
        text: String,
        #[serde(default)]
        ignore: bool,
    },
    /// Logs the keys with a prefix, joined by commas.
    Keys {
        #[serde(default)]
        prefix: String,
        #[serde(default)]
        after: Option<String>,
        limit: u32,
        #[serde(default)]
        ignore: bool,
    },
    /// Logs `KEY=VALUE` or `KEY absent`.
    Config { key: String },
    /// Shows `NAME=VALUE` or `NAME absent`, in the log if nothing else is said.
    Secret {
        name: String,
        #[serde(default)]
        show: Channel,
    },
    /// Fails, to be tried again.
    Retry {
        message: String,
        #[serde(default)]
        after_ms: Option<u32>,
    },
    /// Fails for good.
    Reject { message: String },
    /// Fails, to be tried again, before this attempt.
    RetryUntil { attempt: u32 },
    /// Panics.
    Panic { message: String },
    /// Never ends, without a single host call.
    Loop {},
    /// Waits in the host.
    Sleep { ms: u64 },
    /// Stays busy, asking the clock all the time.
    Spin { ms: u64 },
    /// Allocates and touches memory.
    Allocate { mib: usize },
    /// Calls itself until the stack ends.
    Recurse {},
    /// Logs which calls this instance has seen, this one included: trigger and
    /// aggregate of each, in order.
    Visit {},
    /// Logs the event and attempt as one line of JSON; `{"event": …, "attempt": …}` with
    /// `meta` and `attrs` as objects.
    Dump {},
    /// Logs a line of this many bytes.
    Big { bytes: usize },
    /// Sends a request and logs the response as `STATUS BODY`.
    Http(Box<Http>),
    /// Sends requests at once, leaves them open, and logs `COUNT are open`.
    HttpHold {
        count: u32,
        #[serde(flatten)]
        request: Box<Http>,
    },
    /// Sends requests at once, and logs `COUNT were read` once they are.
    HttpAll {
        count: u32,
        #[serde(flatten)]
        request: Box<Http>,
    },
    /// Ends the process: success for 0, failure for any other code.
    Exit { code: i32 },
}

/// The request that [`Step::Http`] sends.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    #[serde(default = "get")]
    pub method: String,
    pub url: String,
    #[serde(default)]
    pub headers: Map<String, Value>,
    #[serde(default)]
    pub body: Option<String>,
    /// A body of so many bytes.
    #[serde(default)]
    pub body_bytes: Option<usize>,
    /// Whether to go where a redirect points.
    #[serde(default)]
    pub follow: bool,
    #[serde(default)]
    pub connect_ms: Option<u64>,
    #[serde(default)]
    pub ignore: bool,
}

fn get() -> String {
    "GET".into()
}

/// Where [`Step::Secret`] shows it.
#[derive(Debug, PartialEq, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Channel {
    #[default]
    Log,
    Stdout,
    /// Standard output, in two writes.
    Pieces,
    Stderr,
    /// The message of a panic.
    Panic,
    /// The message of a retry.
    Retry,
    /// The message of a reject.
    Reject,
    /// A key of the state that holds a text and is incremented: it can't be.
    Key,
    /// The value of the state's key `shown`.
    State,
}

/// The event that [`Step::Emit`] emits.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Emit {
    pub resource: String,
    pub aggregate_id: String,
    pub event_name: String,
    /// Any JSON; `{}` if absent.
    #[serde(default)]
    pub payload: Option<Value>,
    /// The payload's text to the letter, instead of `payload`: bad JSON too.
    #[serde(default)]
    pub payload_text: Option<String>,
    #[serde(default = "first_version")]
    pub schema_version: u32,
    #[serde(default)]
    pub dedup_key: Option<String>,
    /// Falls due after this many milliseconds.
    #[serde(default)]
    pub after_ms: Option<u32>,
    /// Falls due at this time, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub at_ms: Option<u64>,
    /// An object of strings; other values travel as JSON text.
    #[serde(default)]
    pub meta: Map<String, Value>,
    #[serde(default)]
    pub ignore: bool,
}

fn first_version() -> u32 {
    1
}

impl Emit {
    /// The payload to emit.
    #[must_use]
    pub fn payload_text(&self) -> String {
        match (&self.payload_text, &self.payload) {
            (Some(text), _) => text.clone(),
            (None, Some(value)) => value.to_string(),
            (None, None) => "{}".into(),
        }
    }
}

/// The levels of the attempt's log.
#[derive(Debug, PartialEq, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Trace,
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

/// A string as it is, any other value as JSON text.
#[must_use]
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What a get logs.
#[must_use]
pub fn found(key: &str, value: Option<&[u8]>) -> String {
    match value {
        Some(bytes) => format!("{key}={}", String::from_utf8_lossy(bytes)),
        None => format!("{key} absent"),
    }
}

/// Adds to a decimal integer as it is stored.
///
/// # Errors
/// When something else is stored, or the sum is beyond 64 bits.
pub fn add(stored: Option<&[u8]>, by: i64) -> Result<i64, String> {
    let text = String::from_utf8_lossy(stored.unwrap_or(b"0"));
    text.parse::<i64>()
        .ok()
        .and_then(|number| number.checked_add(by))
        .ok_or_else(|| format!("can't add {by} to `{text}`"))
}

/// Pairs as a JSON object, the form in which `dump` logs `meta` and `attrs`.
#[must_use]
pub fn object(pairs: Vec<(String, String)>) -> Value {
    pairs.into_iter().map(|(key, value)| (key, json!(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_steps_there_is_nothing_to_do() {
        for payload in ["{}", r#"{"total": 1}"#, r#"{"do": []}"#] {
            assert_eq!(Script::parse(payload), Ok(Script::default()), "{payload}");
        }
    }

    #[test]
    fn each_op_is_understood() {
        for step in [
            r#"{"op": "log", "level": "warn", "text": "t"}"#,
            r#"{"op": "log", "text": "t"}"#,
            r#"{"op": "stdout", "text": "t"}"#,
            r#"{"op": "stderr", "text": "t"}"#,
            r#"{"op": "emit", "resource": "r", "aggregateId": "a", "eventName": "n"}"#,
            r#"{"op": "emitMany", "count": 2, "eventName": "n", "ignore": true}"#,
            r#"{"op": "get", "key": "k"}"#,
            r#"{"op": "set", "key": "k", "value": "v"}"#,
            r#"{"op": "delete", "key": "k"}"#,
            r#"{"op": "increment", "key": "k", "by": -1}"#,
            r#"{"op": "readAddWrite", "key": "k", "by": 1}"#,
            r#"{"op": "append", "key": "k", "text": "t"}"#,
            r#"{"op": "keys", "prefix": "p", "after": "q", "limit": 3}"#,
            r#"{"op": "config", "key": "k"}"#,
            r#"{"op": "secret", "name": "N"}"#,
            r#"{"op": "retry", "message": "m", "afterMs": 5}"#,
            r#"{"op": "reject", "message": "m"}"#,
            r#"{"op": "retryUntil", "attempt": 3}"#,
            r#"{"op": "panic", "message": "m"}"#,
            r#"{"op": "loop"}"#,
            r#"{"op": "sleep", "ms": 1}"#,
            r#"{"op": "spin", "ms": 1}"#,
            r#"{"op": "allocate", "mib": 1}"#,
            r#"{"op": "recurse"}"#,
            r#"{"op": "visit"}"#,
            r#"{"op": "dump"}"#,
            r#"{"op": "big", "bytes": 9}"#,
            r#"{"op": "http", "url": "http://a.example/b", "ignore": true}"#,
            r#"{"op": "httpHold", "count": 2, "url": "http://a.example", "method": "POST"}"#,
            r#"{"op": "httpAll", "count": 2, "url": "http://a.example", "bodyBytes": 5}"#,
            r#"{"op": "exit", "code": 0}"#,
        ] {
            let script = Script::parse(&format!(r#"{{"do": [{step}]}}"#));
            assert_eq!(script.map(|script| script.steps.len()), Ok(1), "{step}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (step, complaint) in [
            (r#"{"op": "dance"}"#, "unknown variant `dance`"),
            (r#"{"key": "k"}"#, "missing field `op`"),
            (r#"{"op": "get"}"#, "missing field `key`"),
            (r#"{"op": "get", "key": "k", "name": "n"}"#, "unknown field `name`"),
            (r#"{"op": "log", "level": "loud", "text": "t"}"#, "unknown variant `loud`"),
        ] {
            let message = Script::parse(&format!(r#"{{"do": [{step}]}}"#)).expect_err(step);
            assert!(message.contains(complaint), "{message}");
        }
    }

    #[test]
    fn an_emitted_payload_is_json_or_the_text_as_given() {
        for (fields, text) in [
            ("", "{}"),
            (r#", "payload": {"a": [1, null]}"#, r#"{"a":[1,null]}"#),
            (r#", "payload": "text""#, r#""text""#),
            (r#", "payloadText": "{""#, "{"),
        ] {
            let step = format!(
                r#"{{"op": "emit", "resource": "r", "aggregateId": "a", "eventName": "n"{fields}}}"#
            );
            let script = Script::parse(&format!(r#"{{"do": [{step}]}}"#)).expect(fields);
            let [Step::Emit(emit)] = script.steps.as_slice() else {
                panic!("{script:?}");
            };
            assert_eq!(emit.payload_text(), text);
            assert_eq!(emit.schema_version, 1);
        }
    }

    #[test]
    fn stored_integers_are_decimal() {
        assert_eq!(add(None, 2), Ok(2));
        assert_eq!(add(Some(b"40"), 2), Ok(42));
        assert!(add(Some(b"forty"), 2).is_err());
        assert!(add(Some(i64::MAX.to_string().as_bytes()), 1).is_err());
    }

    #[test]
    fn values_are_logged_as_text() {
        assert_eq!(found("k", None), "k absent");
        assert_eq!(found("k", Some(b"v")), "k=v");
        assert_eq!(text_of(&json!("v")), "v");
        assert_eq!(text_of(&json!({"v": 1})), r#"{"v":1}"#);
        let pairs = vec![("b".into(), "2".into()), ("a".into(), "1".into())];
        assert_eq!(object(pairs), json!({"a": "1", "b": "2"}));
    }
}
