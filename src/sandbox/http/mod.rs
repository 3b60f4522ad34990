//! `wasi:http` for guests: requests to hosts that their trigger grants, over
//! connections to addresses that were checked.
//!
//! Each request is checked against the grants first (`grants`), then each
//! address that its host's name has at that moment (`addresses`), and the
//! connection is made to a checked one, with no second lookup (`client`,
//! `connection`). A redirect is the guest's to follow: its next request is
//! checked like any other. What a call may send and receive is in `session`,
//! and every byte that it reads is counted (`counted`);
//! whatever is open when it ends is closed.

mod addresses;
mod body;
mod client;
mod connection;
mod counted;
mod grants;
mod hooks;
mod session;
mod settings;

use std::sync::Arc;

pub(super) use client::Client;
pub use client::{Network, Resolve};
use hooks::Hooks;
pub use settings::HttpSettings;
use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView};

use super::{Call, caps::Caps, logs::Logs, refusal::Refusal};

/// Roughly the bytes of one set of header fields; a guest may hold many.
const FIELDS: usize = 32 << 10;

/// One call's HTTP. It costs next to nothing until the first request.
pub(super) struct Http {
    context: WasiHttpCtx,
    hooks: Hooks,
}

impl Http {
    /// Nothing sent yet.
    pub(super) fn new(call: &Call, caps: &Caps, logs: &Logs, client: &Arc<Client>) -> Self {
        let mut context = WasiHttpCtx::new();
        context.set_field_size_limit(FIELDS);
        Self { context, hooks: Hooks::new(call, caps, logs, client) }
    }

    /// Makes ready for another call of the same trigger.
    pub(super) fn begin(&mut self, call: &Call, caps: &Caps, logs: &Logs) {
        self.hooks = self.hooks.next(call, caps, logs);
    }

    /// What the call was refused first, for want of a grant or by a limit.
    pub(super) fn refused(&self) -> Option<&Refusal> {
        self.hooks.refused()
    }

    /// Closes what the call has left open.
    pub(super) fn end(&mut self) {
        self.hooks.end();
    }

    /// What the linked functions work on.
    pub(super) fn view<'a>(&'a mut self, table: &'a mut ResourceTable) -> WasiHttpCtxView<'a> {
        WasiHttpCtxView { hooks: &mut self.hooks, table, ctx: &mut self.context }
    }
}
