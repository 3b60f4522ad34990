//! One call of a plugin, in a store of its own.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use wasmtime::{Store, UpdateDeadline};

use super::{
    Sandbox,
    data::{Data, HANDLES},
    failure::{self, Fault},
    logs::Logs,
    meta::Meta,
    v1,
};
use crate::model::{
    UnixMillis,
    attempt::{LogLine, Usage},
    effect::Effects,
    event::Event,
    outcome::{Failure, FailureKind},
    pattern::Pattern,
    plugin::PluginInfo,
    trigger::TriggerSpec,
    units::Bytes,
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
    /// Time from the start of the guest until the call is stopped: the least of
    /// the trigger's deadline and what the lease still has.
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
    /// Whether it may keep state.
    pub state: bool,
    /// Memory of one call.
    pub memory: Bytes,
}

impl TriggerView {
    /// What a trigger's document says to the sandbox.
    #[must_use]
    pub fn new(name: &str, spec: &TriggerSpec) -> Self {
        Self {
            name: name.to_owned(),
            config: spec.config.clone(),
            emit: spec.grants.emit.clone(),
            state: spec.grants.state,
            memory: spec.limits.memory,
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
        // Declared first, so that it is given back after the store is gone.
        let slot = self.sandbox.slot().await;
        let settings = &self.sandbox.settings;
        let meta = Meta::parse(call.event.meta.as_deref());
        let logs = Logs::new(settings);
        let data = Data::new(&call, &meta, &logs, settings);
        let mut store = self.store(data);

        let began = Instant::now();
        let mut cpu = Duration::ZERO;
        let run = tokio::time::timeout(call.deadline, self.run(&mut store, &call, &meta));
        let result = metered(run, &mut cpu).await;
        let data = store.into_data();
        drop(slot);

        let usage = Usage {
            duration_us: micros(began.elapsed()),
            cpu_us: micros(cpu),
            memory_bytes: data.limiter.peak() as u64,
        };
        let (logs, stderr) = logs.finish();
        let away = data.state.away().map(str::to_owned);
        let result = match result {
            Ok(Ok(Ok(()))) => Ok(data.into_effects()),
            Ok(Ok(Err(failure))) => Err(failure),
            Ok(Err(fault)) => {
                Err(failure::explain(&fault, &data.limiter, &stderr, &call.trigger, settings))
            }
            Err(_) => {
                let deadline = call.deadline;
                let message = format!("the plugin was not done after {deadline:?}");
                Err(Failure::new(FailureKind::Deadline, message))
            }
        };
        let result = result.map_err(|failure| match away {
            Some(why) => without_state(&why, &failure),
            None => failure,
        });
        Report { result, usage, logs }
    }

    async fn run(
        &self,
        store: &mut Store<Data>,
        call: &Call,
        meta: &Meta,
    ) -> Result<Result<(), Failure>, Fault> {
        let handler = self.handler.instantiate(store).await.map_err(Fault::Instantiate)?;
        handler.handle(store, call, meta).await.map_err(Fault::Run)
    }

    fn store(&self, data: Data) -> Store<Data> {
        let mut store = Store::new(&self.sandbox.engine, data);
        store.limiter(|data| &mut data.limiter);
        store.set_hostcall_fuel(self.sandbox.settings.hostcall_bytes());
        store.set_max_component_handles(HANDLES);
        // At each tick others get their turn, and the deadline is looked at.
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| {
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        store
    }
}

/// The failure of a call that couldn't read its state: not the plugin's fault,
/// whatever it made of it.
fn without_state(why: &str, failure: &Failure) -> Failure {
    let message = format!("the trigger's state could not be read: {why}; {}", failure.message);
    Failure { kind: FailureKind::HostFault, message, after_ms: failure.after_ms }
}

/// Adds up the time that a future spends running rather than waiting.
async fn metered<F: Future>(future: F, spent: &mut Duration) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let began = Instant::now();
        let poll = future.as_mut().poll(context);
        *spent += began.elapsed();
        poll
    })
    .await
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
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
                state: true,
                memory: Bytes::mib(64),
            }),
            attempt: 1,
            max_attempts: 5,
            deadline: Duration::from_secs(10),
            idempotency_key: "key".into(),
            now_ms: 1_000_000,
            state: Arc::new(Memory::default()),
        }
    }

    #[tokio::test]
    async fn waiting_is_not_running() {
        let mut spent = Duration::ZERO;
        metered(tokio::time::sleep(Duration::from_millis(200)), &mut spent).await;
        assert!(spent < Duration::from_millis(150), "{spent:?}");
    }
}
