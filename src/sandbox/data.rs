//! What a store holds beside the guest's instance: what belongs to one call is
//! made anew for each.

use std::{collections::BTreeSet, sync::Arc};

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::{
    Call, Settings, TriggerView, emit::Emitter, limits::Limiter, logs::Logs, meta::Meta,
    state::State,
};
use crate::model::{
    attempt::{Level, Source},
    effect::Effects,
    names::{MAX_NAME, storable},
};

/// Handles that a guest may hold at once, of the host's resources and in all.
pub(super) const HANDLES: usize = 1_000;

/// Random bytes that a guest may ask for at once.
const RANDOM_BYTES: u64 = 64 << 10;

/// Names of secrets that one call's log asks a grant for.
const UNGRANTED: usize = 8;

/// Everything that a guest can reach during one call.
pub(super) struct Data {
    pub(super) trigger: Arc<TriggerView>,
    pub(super) emitter: Emitter,
    pub(super) state: State,
    pub(super) logs: Logs,
    pub(super) limiter: Limiter,
    /// Secrets that were asked for and not granted, as far as the log says so.
    ungranted: BTreeSet<String>,
    wasi: WasiCtx,
    table: ResourceTable,
}

impl Data {
    /// A call's data before it begins.
    pub(super) fn new(call: &Call, meta: &Meta, logs: &Logs, settings: &Settings) -> Self {
        let memory = call.trigger.memory.min(settings.memory_max);
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES);
        Self {
            trigger: Arc::clone(&call.trigger),
            emitter: Emitter::new(call, meta, settings),
            state: State::new(call, settings),
            logs: logs.clone(),
            limiter: Limiter::new(memory.as_usize()),
            ungranted: BTreeSet::new(),
            wasi: wasi(logs),
            table,
        }
    }

    /// Makes ready for another call of the same trigger.
    pub(super) fn begin(&mut self, call: &Call, meta: &Meta, settings: &Settings) {
        self.emitter = Emitter::new(call, meta, settings);
        self.state = State::new(call, settings);
        self.logs.begin(settings);
        self.limiter.begin();
        self.ungranted.clear();
    }

    /// The value of a secret, if the trigger is granted it. If not, the log
    /// says what to ask for.
    pub(super) fn secret(&mut self, name: &str) -> Option<String> {
        if let Some(value) = self.trigger.secrets.get(name) {
            return Some(value.expose().to_owned());
        }
        let (trigger, name) = (&self.trigger.name, storable(name, MAX_NAME));
        if self.ungranted.len() < UNGRANTED && !self.ungranted.contains(&name) {
            let text = format!(
                "the trigger `{trigger}` is granted no secret `{name}`; add `\"grants\": \
                 {{\"secrets\": [\"{name}\"]}}` to it"
            );
            self.logs.push(Level::Warn, Source::Host, &text);
            self.ungranted.insert(name);
        }
        None
    }

    /// What the call asked for.
    pub(super) fn effects(&mut self) -> Effects {
        Effects { emitted: self.emitter.finish(), state: self.state.finish() }
    }
}

/// Clocks, random numbers and two output streams: toolchains import far more,
/// and find it there and empty.
fn wasi(logs: &Logs) -> WasiCtx {
    WasiCtx::builder()
        .stdout(logs.stream(Source::Stdout))
        .stderr(logs.stream(Source::Stderr))
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .max_random_size(RANDOM_BYTES)
        .build()
}

impl WasiView for Data {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}
