//! The record of one invocation.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{UnixMillis, outcome::FailureKind};

/// How loud a log line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// Every step.
    Trace,
    /// For whoever looks for a fault.
    Debug,
    /// What was done.
    Info,
    /// What should not happen often.
    Warn,
    /// What should not happen.
    Error,
}

/// Where a log line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The `log` interface.
    Log,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The host, such as a marker for what was cut.
    Host,
}

/// One line of an attempt's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Microseconds since the call began.
    pub at_us: u64,
    /// How loud.
    pub level: Level,
    /// Where from.
    pub source: Source,
    /// The line, without its line feed.
    pub text: String,
}

/// What was measured while a call ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Wall-clock time in microseconds.
    pub duration_us: u64,
    /// Time on a processor in microseconds.
    pub cpu_us: u64,
    /// Largest sum of the instance's linear memories, in bytes.
    pub memory_bytes: u64,
}

/// One invocation, as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The event.
    pub message_id: Uuid,
    /// The event's outbox row.
    pub event_pk: i64,
    /// The tenant.
    pub project: String,
    /// The trigger.
    pub trigger: String,
    /// 1 at the first.
    pub number: u32,
    /// The plugin version that ran, if one did.
    pub digest: Option<String>,
    /// When it began, by the database's clock.
    pub started_at: UnixMillis,
    /// What it used.
    pub usage: Usage,
    /// Why it failed, if it did.
    pub failure: Option<FailureKind>,
    /// The failure's message.
    pub error: Option<String>,
    /// Its log.
    pub logs: Vec<LogLine>,
}
