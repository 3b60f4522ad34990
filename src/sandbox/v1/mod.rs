//! `outrigger:trigger@1.0.0`, the first world: the one place where the types
//! that are generated from it are named.

mod convert;
mod imports;

use bindings::exports::outrigger::trigger::handler;
use convert::{Sent, failure};
use wasmtime::{
    Store,
    component::{HasSelf, InstancePre, Linker, types::ComponentItem},
};

use super::{Call, data::Data, meta::Meta};
use crate::model::outcome::Failure;

mod bindings {
    wasmtime::component::bindgen!({
        path: "wit/trigger.wit",
        world: "outrigger:trigger/trigger",
        imports: { default: async },
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// The package of this world, without its version.
pub(super) const PACKAGE: &str = "outrigger:trigger";

/// Its version.
pub(super) const VERSION: &str = "1.0.0";

/// What a plugin exports.
pub(super) const HANDLER: &str = "outrigger:trigger/handler@1.0.0";

/// The interfaces that it offers to plugins.
pub(super) const OFFERED: [&str; 6] = ["config", "emit", "log", "secrets", "state", "types"];

/// Offers the world's imports.
pub(super) fn add_to_linker(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    bindings::Trigger::add_to_linker::<_, HasSelf<_>>(linker, |data| data)
}

/// A plugin that exports this world's handler.
pub(super) struct Handler(bindings::TriggerPre<Data>);

impl Handler {
    /// Checks that the handler is there and has the world's types.
    pub(super) fn new(pre: InstancePre<Data>) -> wasmtime::Result<Self> {
        // The generated code would find out about types at the first call only.
        let component = pre.component();
        let interface = component.get_export_index(None, HANDLER);
        let function = component.get_export(interface.as_ref(), "handle");
        if let Some((ComponentItem::ComponentFunc(function), _)) = function {
            type Arguments<'a> = (handler::Event<'a>, handler::Attempt<'a>);
            type Answer = (Result<(), handler::Failure>,);
            function.typecheck::<Arguments<'_>, Answer>(&pre.instance_type())?;
        }
        bindings::TriggerPre::new(pre).map(Self)
    }

    /// A fresh instance.
    pub(super) async fn instantiate(&self, store: &mut Store<Data>) -> wasmtime::Result<Instance> {
        self.0.instantiate_async(store).await.map(Instance)
    }
}

/// An instance of a plugin.
pub(super) struct Instance(bindings::Trigger);

impl Instance {
    /// Handles one event.
    pub(super) async fn handle(
        &self,
        store: &mut Store<Data>,
        call: &Call,
        meta: &Meta,
    ) -> wasmtime::Result<Result<(), Failure>> {
        let handler = self.0.outrigger_trigger_handler();
        let sent = Sent::new(call, meta);
        let attrs = sent.attrs();
        let result = handler.call_handle(store, sent.event(&attrs), sent.attempt()).await?;
        Ok(result.map_err(|why| failure(why, &call.trigger.secrets)))
    }
}
