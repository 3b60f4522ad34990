//! What a store holds beside the guest's instance: what belongs to one call is
//! made anew for each.

use std::sync::Arc;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::{
    Call, Settings, TriggerView,
    budget::{Budget, Hold},
    caps::Caps,
    emit::Emitter,
    limits::Limiter,
    logs::Logs,
    meta::Meta,
    meter::Meter,
    refusal::Refusal,
    state::State,
};
use crate::model::{attempt::Source, effect::Effects};

/// Handles that a guest may hold at once, of the host's resources and in all.
pub(super) const HANDLES: usize = 1_000;

/// Random bytes that a guest may ask for at once.
const RANDOM_BYTES: u64 = 64 << 10;

/// Everything that a guest can reach during one call.
pub(super) struct Data {
    pub(super) trigger: Arc<TriggerView>,
    pub(super) caps: Caps,
    pub(super) meter: Meter,
    /// What the call was refused first for want of a grant, or by a limit.
    refused: Option<Refusal>,
    pub(super) emitter: Emitter,
    pub(super) state: State,
    pub(super) logs: Logs,
    pub(super) limiter: Limiter,
    wasi: WasiCtx,
    table: ResourceTable,
}

impl Data {
    /// A call's data before it begins.
    pub(super) fn new(call: &Call, meta: &Meta, settings: &Settings, budget: &Arc<Budget>) -> Self {
        let caps = Caps::of(&call.trigger.limits, settings);
        let logs = Logs::new(&caps, settings);
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES);
        Self {
            trigger: Arc::clone(&call.trigger),
            caps,
            meter: Meter::new(),
            refused: None,
            emitter: Emitter::new(call, meta, &caps, settings),
            state: State::new(call, &caps, settings),
            limiter: Limiter::new(call, &caps, Hold::new(budget)),
            wasi: wasi(&logs),
            logs,
            table,
        }
    }

    /// Makes ready for another call of the same trigger.
    pub(super) fn begin(&mut self, call: &Call, meta: &Meta, settings: &Settings) {
        let caps = &self.caps;
        self.emitter = Emitter::new(call, meta, caps, settings);
        self.state = State::new(call, caps, settings);
        self.logs.begin(caps, settings);
        self.limiter.begin();
        self.meter.begin();
        self.refused = None;
    }

    /// Passes an answer on to the guest, and remembers the first refusal that
    /// may be why the guest gives up.
    pub(super) fn noted<T>(&mut self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Err(refusal @ (Refusal::Denied(_) | Refusal::Limit(_))) = &answer {
            self.refused.get_or_insert_with(|| refusal.clone());
        }
        answer
    }

    /// The first refusal of the call.
    pub(super) fn refused(&self) -> Option<&Refusal> {
        self.refused.as_ref()
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
