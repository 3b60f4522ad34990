//! A trigger: what to do with which events, as its document says it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    UnixMillis, http,
    names::{self, Invalid},
    pattern::{Pattern, Versions},
    secret::GRANTS_MAX,
    units::{Bytes, Rate, Span},
};

/// A trigger's document: everything but `match` and `target` has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TriggerSpec {
    /// Which events.
    #[serde(rename = "match")]
    pub matches: Match,
    /// What they are delivered to.
    pub target: Target,
    /// What the plugin can read through `config`.
    #[serde(default)]
    pub config: BTreeMap<String, String>,
    /// What the plugin may do.
    #[serde(default)]
    pub grants: Grants,
    /// What one call may use.
    #[serde(default)]
    pub limits: Limits,
    /// What follows a failure.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Whether the events of one aggregate wait for each other.
    #[serde(default)]
    pub order: Order,
    /// How far apart calls are kept.
    #[serde(default)]
    pub isolation: Isolation,
    /// Which attempts are kept.
    #[serde(default)]
    pub record: Record,
}

/// Which events a trigger takes; all four must hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Match {
    /// The resource, `*` as a wildcard.
    #[serde(default = "Pattern::any")]
    pub resource: Pattern,
    /// The event name, `*` as a wildcard.
    #[serde(default = "Pattern::any")]
    pub event_name: Pattern,
    /// The schema version.
    #[serde(default = "Versions::any")]
    pub schema_version: Versions,
    /// A CEL expression over `payload`, `meta` and the event's fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
}

/// What a trigger delivers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TargetFields", into = "TargetFields")]
pub enum Target {
    /// A plugin of the same project.
    Plugin {
        /// Its name.
        name: String,
        /// Its active version, or one by its digest.
        version: TargetVersion,
    },
    /// Code of an application: only hosts within it can deliver.
    Embedded,
}

impl Target {
    /// The plugin's name, if it is one.
    #[must_use]
    pub fn plugin(&self) -> Option<&str> {
        match self {
            Self::Plugin { name, .. } => Some(name),
            Self::Embedded => None,
        }
    }

    /// The digest of the one version that is meant, if one is.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::Plugin { version: TargetVersion::Digest(digest), .. } => Some(digest),
            Self::Plugin { .. } | Self::Embedded => None,
        }
    }
}

/// A target as documents write it.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Target", rename_all = "camelCase", deny_unknown_fields)]
struct TargetFields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plugin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<TargetVersion>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    embedded: bool,
}

impl TryFrom<TargetFields> for Target {
    type Error = &'static str;

    fn try_from(fields: TargetFields) -> Result<Self, Self::Error> {
        match fields {
            TargetFields { plugin: Some(name), version, embedded: false } => {
                Ok(Self::Plugin { name, version: version.unwrap_or_default() })
            }
            TargetFields { plugin: None, version: None, embedded: true } => Ok(Self::Embedded),
            TargetFields { plugin: None, embedded: false, .. } => Err("it names no `plugin`"),
            _ => Err("it is either a `plugin` or `embedded`"),
        }
    }
}

impl From<Target> for TargetFields {
    fn from(target: Target) -> Self {
        match target {
            Target::Plugin { name, version } => {
                Self { plugin: Some(name), version: Some(version), embedded: false }
            }
            Target::Embedded => Self { plugin: None, version: None, embedded: true },
        }
    }
}

/// Which version of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum TargetVersion {
    /// Whichever is active when the attempt is claimed.
    #[default]
    Active,
    /// Always this one: the SHA-256 of its bytes, in hex.
    Digest(String),
}

impl From<String> for TargetVersion {
    fn from(text: String) -> Self {
        match text.as_str() {
            "active" => Self::Active,
            _ => Self::Digest(text),
        }
    }
}

impl From<TargetVersion> for String {
    fn from(version: TargetVersion) -> Self {
        match version {
            TargetVersion::Active => "active".into(),
            TargetVersion::Digest(digest) => digest,
        }
    }
}

/// What a plugin may do beyond returning a result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Grants {
    /// Requests that it may send, each as an [`HttpGrant`](super::http::HttpGrant).
    pub http: Vec<String>,
    /// Event names that it may emit, `*` as a wildcard.
    pub emit: Vec<Pattern>,
    /// Secrets of the project that it may read, by their names.
    pub secrets: Vec<String>,
    /// SQL statements that it may run, by their registered names.
    pub statements: Vec<String>,
    /// Whether it may keep state.
    pub state: bool,
}

/// What one call may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Wall-clock time of one call.
    pub deadline: Span,
    /// Time on a processor of one call.
    pub cpu: Span,
    /// Linear memory, all of an instance's memories together.
    pub memory: Bytes,
    /// Elements of all of an instance's tables together. What is absent here
    /// and below is as much as the host gives to any call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_elements: Option<u32>,
    /// Core instances that the component consists of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Log of one attempt; what comes later is dropped and counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<Bytes>,
    /// Events that one call may emit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emit_count: Option<u32>,
    /// Bytes that they may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emit_bytes: Option<Bytes>,
    /// Keys of state that one call may touch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_keys: Option<u32>,
    /// Bytes of state that one call may read and write together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<Bytes>,
    /// Outgoing requests of one call that are under way at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// Bytes that their bodies may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<Bytes>,
    /// Bytes that their responses' bodies may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<Bytes>,
    /// Calls in flight at once on one host.
    pub concurrency: u32,
    /// Calls begun per second, minute or hour on one host, evenly; a second's
    /// worth may begin at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline: Span::from_secs(10),
            cpu: Span::from_secs(5),
            memory: Bytes::mib(64),
            table_elements: None,
            instances: None,
            log_bytes: None,
            emit_count: None,
            emit_bytes: None,
            state_keys: None,
            state_bytes: None,
            requests: None,
            request_bytes: None,
            response_bytes: None,
            concurrency: 16,
            rate: None,
        }
    }
}

/// What follows a failure that may be tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; then it is a dead letter.
    pub max_attempts: u32,
    /// Wait before the second attempt.
    pub initial: Span,
    /// What each wait is multiplied by for the next one.
    pub factor: f64,
    /// The longest wait.
    pub max: Span,
    /// Share of the wait that is random, 0 to 1.
    pub jitter: f64,
    /// Once so many calls have failed in a row on one host, for three events or
    /// more, the trigger pauses itself where a dead letter would come next; 0 is
    /// never.
    pub pause_after: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial: Span::from_secs(1),
            factor: 2.0,
            max: Span::from_secs(600),
            jitter: 0.2,
            pause_after: 50,
        }
    }
}

/// Whether the events of one aggregate wait for each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Events of one ordering key reach the trigger one after another.
    #[default]
    Aggregate,
    /// In any order, at the same time.
    None,
}

/// How far apart calls are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// A fresh instance for every call.
    #[default]
    Event,
    /// Calls for events of one claimed batch may follow one another in one
    /// instance, and see what earlier ones left in its memory.
    Batch,
}

/// Which attempts are kept; failures always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Record {
    /// Every one.
    All,
    /// Failures alone.
    Failures,
    /// Failures, and successes up to a rate on each host.
    Rate(Rate),
}

impl Default for Record {
    fn default() -> Self {
        Self::Rate(Rate::per_second(20))
    }
}

impl TryFrom<String> for Record {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "all" => Ok(Self::All),
            "failures" => Ok(Self::Failures),
            _ => text.parse().map(Self::Rate).map_err(|_| {
                format!("`{text}` is none of `all`, `failures` and a rate such as `20/s`")
            }),
        }
    }
}

impl From<Record> for String {
    fn from(record: Record) -> Self {
        match record {
            Record::All => "all".into(),
            Record::Failures => "failures".into(),
            Record::Rate(rate) => rate.to_string(),
        }
    }
}

/// Longest configuration of a trigger, keys and values together, in bytes.
const MAX_CONFIG: usize = 256 << 10;

impl TriggerSpec {
    /// Checks what the document's types can't say, and refuses what this host
    /// doesn't do: a setting is never ignored.
    ///
    /// # Errors
    /// Names the field that is wrong or not supported.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(plugin) = self.target.plugin() {
            names::name("target.plugin", plugin)?;
        }
        if let Some(digest) = self.target.digest() {
            let hex = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
            if !hex || digest.bytes().any(|b| b.is_ascii_uppercase()) {
                let why = "is neither `active` nor a digest of 64 lower-case hex digits";
                return Err(Invalid::new("target.version", why));
            }
        }
        self.refuse_unsupported()?;
        http::check("grants.http", &self.grants.http)?;
        if self.isolation == Isolation::Batch && self.target.plugin().is_none() {
            return Err(Invalid::new("isolation", "is `batch`, which is for plugins alone"));
        }
        self.check_secrets()?;
        self.check_ranges()?;
        let config: usize = self.config.iter().map(|(k, v)| k.len() + v.len()).sum();
        if config > MAX_CONFIG {
            let why = format!("has {config} bytes; the limit is {MAX_CONFIG}");
            return Err(Invalid::new("config", why));
        }
        if self.config.iter().any(|(k, v)| k.contains('\0') || v.contains('\0')) {
            return Err(Invalid::new("config", "contains U+0000, which can't be stored"));
        }
        Ok(())
    }

    fn refuse_unsupported(&self) -> Result<(), Invalid> {
        let refusals = [("grants.statements", !self.grants.statements.is_empty())];
        match refusals.into_iter().find(|(_, asked)| *asked) {
            Some((field, _)) => Err(Invalid::new(field, "is not supported by this version")),
            None => Ok(()),
        }
    }

    fn check_secrets(&self) -> Result<(), Invalid> {
        let wrong = |why: String| Err(Invalid::new("grants.secrets", why));
        let granted = &self.grants.secrets;
        if !granted.is_empty() && self.target.plugin().is_none() {
            return wrong("is for plugins alone".into());
        }
        if granted.len() > GRANTS_MAX {
            return wrong(format!("names {} secrets; the limit is {GRANTS_MAX}", granted.len()));
        }
        for (index, name) in granted.iter().enumerate() {
            if let Err(Invalid { why, .. }) = names::name("grants.secrets", name) {
                return wrong(format!("names `{name}`, which {why}"));
            }
            if granted[..index].contains(name) {
                return wrong(format!("names `{name}` twice"));
            }
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<(), Invalid> {
        let (limits, retry) = (&self.limits, &self.retry);
        let (hour, day) = (Span::from_secs(3600), Span::from_secs(86_400));
        let ranges: [(&str, bool, &str); 11] = [
            (
                "limits.deadline",
                (Span::from_millis(1)..=hour).contains(&limits.deadline),
                "is not between 1ms and 1h",
            ),
            (
                "limits.cpu",
                (Span::from_millis(1)..=hour).contains(&limits.cpu),
                "is not between 1ms and 1h",
            ),
            ("limits.instances", limits.instances != Some(0), "is 0: every component has one"),
            (
                "limits.memory",
                (Bytes::kib(64)..=Bytes::mib(4096)).contains(&limits.memory),
                "is not between 64KiB and 4GiB",
            ),
            (
                "limits.concurrency",
                (1..=10_000).contains(&limits.concurrency),
                "is not between 1 and 10000",
            ),
            (
                "retry.maxAttempts",
                (1..=1000).contains(&retry.max_attempts),
                "is not between 1 and 1000",
            ),
            ("retry.initial", retry.initial <= day, "is longer than a day"),
            (
                "retry.max",
                retry.max >= retry.initial && retry.max <= Span::from_secs(30 * 86_400),
                "is shorter than `retry.initial` or longer than 30 days",
            ),
            ("retry.factor", (1.0..=100.0).contains(&retry.factor), "is not between 1 and 100"),
            ("retry.jitter", (0.0..=1.0).contains(&retry.jitter), "is not between 0 and 1"),
            ("retry.pauseAfter", retry.pause_after <= 1_000_000, "is more than 1000000"),
        ];
        match ranges.into_iter().find(|(_, holds, _)| !holds) {
            Some((field, _, why)) => Err(Invalid::new(field, why)),
            None => Ok(()),
        }
    }
}

/// A trigger as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// The tenant.
    pub project: String,
    /// Its name, unique within the project.
    pub name: String,
    /// Its document.
    pub spec: TriggerSpec,
    /// The control version at its last change.
    pub revision: i64,
    /// Whether its deliveries wait, and why.
    pub paused: Option<String>,
    /// When it was first put.
    pub created_at: UnixMillis,
    /// When it was last put, paused or resumed.
    pub updated_at: UnixMillis,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<TriggerSpec, String> {
        let spec: TriggerSpec = serde_json::from_str(json).map_err(|e| e.to_string())?;
        spec.validate().map_err(|e| e.to_string())?;
        Ok(spec)
    }

    #[test]
    fn a_short_document_has_every_default() {
        let spec = parse(r#"{"match": {}, "target": {"plugin": "p"}}"#).expect("valid");
        assert_eq!(spec.limits, Limits::default());
        assert_eq!(spec.retry.max_attempts, 5);
        assert_eq!(spec.order, Order::Aggregate);
        let version = TargetVersion::Active;
        assert_eq!(spec.target, Target::Plugin { name: "p".into(), version });
        let again = serde_json::to_string(&spec).expect("JSON");
        assert_eq!(parse(&again).expect("its own output"), spec);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (field, rest) in [
            ("retyr", r#""retyr": {}"#),
            (
                "grants.http has `a.example/x`",
                r#""grants": {"http": ["b.example", "a.example/x"]}"#,
            ),
            ("grants.secrets", r#""grants": {"secrets": ["a/b"]}"#),
            ("`S` twice", r#""grants": {"secrets": ["S", "T", "S"]}"#),
            ("grants.statements", r#""grants": {"statements": ["s"]}"#),
            ("unknown variant `none`", r#""isolation": "none""#),
            ("retry.maxAttempts", r#""retry": {"maxAttempts": 0}"#),
            ("retry.factor", r#""retry": {"factor": 0.5}"#),
            ("retry.jitter", r#""retry": {"jitter": 2}"#),
            ("limits.memory", r#""limits": {"memory": "1KiB"}"#),
            ("limits.cpu", r#""limits": {"cpu": "2h"}"#),
            ("limits.instances", r#""limits": {"instances": 0}"#),
            ("`5` is no duration", r#""limits": {"deadline": "5"}"#),
            ("`often` is none of", r#""record": "often""#),
        ] {
            let json = format!(r#"{{"match": {{}}, "target": {{"plugin": "p"}}, {rest}}}"#);
            let error = parse(&json).expect_err(rest);
            assert!(error.contains(field), "{rest}: {error}");
        }
        for (field, json) in [
            ("target", r#"{"match": {}}"#),
            ("match", r#"{"target": {"plugin": "p"}}"#),
            ("pattern", r#"{"match": {"eventName": "["}, "target": {"plugin": "p"}}"#),
            ("target.version", r#"{"match": {}, "target": {"plugin": "p", "version": "1"}}"#),
            ("no `plugin`", r#"{"match": {}, "target": {}}"#),
            ("either a", r#"{"match": {}, "target": {"plugin": "p", "embedded": true}}"#),
            ("isolation", r#"{"match": {}, "target": {"embedded": true}, "isolation": "batch"}"#),
            (
                "alone",
                r#"{"match": {}, "target": {"embedded": true}, "grants": {"secrets": ["S"]}}"#,
            ),
        ] {
            let error = parse(json).expect_err(json);
            assert!(error.contains(field), "{json}: {error}");
        }
    }
}
