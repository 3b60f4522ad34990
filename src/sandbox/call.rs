//! What a call of a plugin is told, and what comes of it.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Sandbox, Secrets, live::Live, meta::Meta, v1};
use crate::model::{
    UnixMillis,
    attempt::{LogLine, Usage},
    effect::Effects,
    event::Event,
    http::HttpGrant,
    outcome::Failure,
    pattern::Pattern,
    plugin::PluginInfo,
    trigger::{Limits, TriggerSpec},
};

/// What a call is told and given.
#[derive(Clone)]
pub struct Call {
    /// The event to handle.
    pub event: Arc<Event>,
    /// The trigger that it is handled for.
    pub trigger: Arc<TriggerView>,
    /// 1 at the first.
    pub attempt: u32,
    /// Attempts in all.
    pub max_attempts: u32,
    /// Time from the start of the guest until the call is stopped, if the
    /// trigger's own deadline isn't shorter.
    pub deadline: Duration,
    /// The same at every attempt of this delivery; ids of emitted events are
    /// derived from it.
    pub idempotency_key: String,
    /// The database's clock as last seen: what `after-ms` is added to.
    pub now_ms: UnixMillis,
    /// Where state is read from.
    pub state: Arc<dyn StateReader>,
}

/// A trigger as the sandbox needs it; built once per revision.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerView {
    /// Its name.
    pub name: String,
    /// What `config` returns.
    pub config: BTreeMap<String, String>,
    /// Event names that it may emit.
    pub emit: Vec<Pattern>,
    /// Requests that it may send.
    pub http: Vec<HttpGrant>,
    /// Whether it may keep state.
    pub state: bool,
    /// What one call may use.
    pub limits: Limits,
    /// Secrets that it is granted.
    pub secrets: Secrets,
}

impl TriggerView {
    /// What a trigger's document says to the sandbox; with no secrets, which
    /// are elsewhere.
    #[must_use]
    pub fn new(name: &str, spec: &TriggerSpec) -> Self {
        Self {
            name: name.to_owned(),
            config: spec.config.clone(),
            emit: spec.grants.emit.clone(),
            // Checked when it was put; what can't be read grants nothing.
            http: spec.grants.http.iter().filter_map(|grant| grant.parse().ok()).collect(),
            state: spec.grants.state,
            limits: spec.limits.clone(),
            secrets: Secrets::default(),
        }
    }
}

/// Reads the committed state of one trigger.
#[async_trait]
pub trait StateReader: Send + Sync {
    /// The value of a key, `None` if there is none.
    ///
    /// # Errors
    /// What to tell the plugin when the database doesn't answer.
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String>;

    /// The first `limit` keys that begin with `prefix` and come behind `after`,
    /// in byte order.
    ///
    /// # Errors
    /// As [`StateReader::get`].
    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, String>;
}

/// Everything that came of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What to commit, or why there is nothing to.
    pub result: Result<Effects, Failure>,
    /// What it used.
    pub usage: Usage,
    /// What it logged and printed, whatever the result.
    pub logs: Vec<LogLine>,
}

/// A compiled plugin version; clone the `Arc` and call it as often as wanted.
pub struct Plugin {
    /// What was found out about it.
    pub info: PluginInfo,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) handler: v1::Handler,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Handles one event. Whatever happens is in the report.
    ///
    /// Waits for a free slot first, and that wait has no end and is no part of
    /// the deadline: whoever may lose the claim meanwhile drops the future,
    /// which ends the call at any point and frees its slot.
    pub async fn call(&self, call: Call) -> Report {
        let slot = self.sandbox.slot().await;
        let meta = Meta::parse(call.event.meta.as_deref());
        Live::new(self, &call, &meta, slot).call(self, &call, &meta).await
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// State that is a map, and goes away when told to.
    #[derive(Default)]
    pub(in crate::sandbox) struct Memory {
        pub(in crate::sandbox) values: BTreeMap<String, Vec<u8>>,
        pub(in crate::sandbox) away: bool,
        pub(in crate::sandbox) asked: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl StateReader for Memory {
        async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
            self.asked.lock().expect("no panic").push(key.to_owned());
            if self.away { Err("away".into()) } else { Ok(self.values.get(key).cloned()) }
        }

        async fn keys(
            &self,
            prefix: &str,
            after: Option<&str>,
            limit: u32,
        ) -> Result<Vec<String>, String> {
            let keys = self.values.keys().filter(|key| key.starts_with(prefix));
            let keys = keys.filter(|key| after.is_none_or(|after| key.as_str() > after));
            Ok(keys.take(limit as usize).cloned().collect())
        }
    }

    /// A call for an event with this payload, and every grant.
    pub(in crate::sandbox) fn call(payload: &str) -> Call {
        Call {
            event: Arc::new(Event {
                pk: 7,
                message_id: uuid::Uuid::from_u128(1),
                project: "shop".into(),
                resource: "order".into(),
                aggregate_id: "o-1".into(),
                event_name: "order.placed".into(),
                schema_version: 1,
                payload: payload.into(),
                meta: None,
                dedup_key: None,
                created_at: 1_000_000,
                available_at: None,
                lane: 0,
            }),
            trigger: Arc::new(TriggerView {
                name: "probe".into(),
                config: BTreeMap::new(),
                emit: vec!["email.*".parse().expect("a pattern")],
                http: Vec::new(),
                state: true,
                limits: Limits::default(),
                secrets: Secrets::default(),
            }),
            attempt: 1,
            max_attempts: 5,
            deadline: Duration::from_secs(10),
            idempotency_key: "key".into(),
            now_ms: 1_000_000,
            state: Arc::new(Memory::default()),
        }
    }
}
