//! What a store holds beside the guest's instance: what belongs to one call is
//! made anew for each.

use std::{collections::BTreeSet, sync::Arc};

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtxView, WasiHttpView};

use super::{
    Call, Settings, TriggerView,
    budget::{Budget, Hold},
    caps::Caps,
    emit::Emitter,
    http::{Client, Http},
    limits::Limiter,
    logs::Logs,
    meta::Meta,
    meter::Meter,
    refusal::Refusal,
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
    pub(super) caps: Caps,
    pub(super) meter: Meter,
    /// What the call was refused first for want of a grant, or by a limit.
    refused: Option<Refusal>,
    /// Secrets that it asked for and isn't granted, as far as the log says so.
    ungranted: BTreeSet<String>,
    pub(super) emitter: Emitter,
    pub(super) state: State,
    pub(super) http: Http,
    pub(super) logs: Logs,
    pub(super) limiter: Limiter,
    wasi: WasiCtx,
    table: ResourceTable,
}

impl Data {
    /// A call's data before it begins.
    pub(super) fn new(
        call: &Call,
        meta: &Meta,
        settings: &Settings,
        budget: &Arc<Budget>,
        client: &Arc<Client>,
    ) -> Self {
        let caps = Caps::of(&call.trigger.limits, settings);
        let logs = Logs::new(&caps, settings, &call.trigger.secrets);
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES);
        Self {
            trigger: Arc::clone(&call.trigger),
            caps,
            meter: Meter::new(),
            refused: None,
            ungranted: BTreeSet::new(),
            emitter: Emitter::new(call, meta, &caps, settings),
            state: State::new(call, &caps, settings),
            http: Http::new(call, &caps, &logs, client),
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
        self.http.begin(call, caps, &self.logs);
        self.logs.begin(caps, settings);
        self.limiter.begin();
        self.meter.begin();
        self.refused = None;
        self.ungranted.clear();
    }

    /// Passes an answer on to the guest, and remembers the first refusal that
    /// may be why the guest gives up.
    pub(super) fn noted<T>(&mut self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Err(refusal @ (Refusal::Denied(_) | Refusal::Limit(_))) = &answer {
            self.refused.get_or_insert_with(|| refusal.clone());
        }
        answer
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
            self.refused.get_or_insert(Refusal::Denied(text));
        }
        None
    }

    /// The first refusal of the call.
    pub(super) fn refused(&self) -> Option<&Refusal> {
        self.refused.as_ref().or_else(|| self.http.refused())
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

impl WasiHttpView for Data {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.http.view(&mut self.table)
    }
}
