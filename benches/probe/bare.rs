//! Calls with nothing but what WebAssembly needs for them: no router, no
//! judgement of results, no log that is kept.

use std::time::Duration;

use anyhow::{Result, bail};
use bindings::{TriggerPre, exports::outrigger::trigger::handler};
use outrigger::model::event::Event;
use wasmtime::{
    Engine, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline,
    component::{Component, HasSelf, Linker, ResourceTable},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

mod bindings {
    wasmtime::component::bindgen!({
        path: "wit/trigger.wit",
        world: "outrigger:trigger/trigger",
        imports: { default: async },
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// What a call may take of time and memory: a trigger's defaults.
const DEADLINE: Duration = Duration::from_secs(10);
const MEMORY: usize = 64 << 20;

/// How often a guest that computes lets others have their turn.
const TICK: Duration = Duration::from_millis(10);

/// A component that is ready to be called.
pub(crate) struct Bare {
    engine: Engine,
    pre: TriggerPre<Data>,
}

struct Data {
    wasi: WasiCtx,
    table: ResourceTable,
    limits: StoreLimits,
    emitted: u32,
}

impl Bare {
    pub(crate) fn new(engine: &Engine, bytes: &[u8]) -> Result<Self> {
        Self::link(engine, bytes).map_err(said)
    }

    fn link(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        bindings::Trigger::add_to_linker::<_, HasSelf<_>>(&mut linker, |data| data)?;
        let component = Component::from_binary(engine, bytes)?;
        let pre = TriggerPre::new(linker.instantiate_pre(&component)?)?;
        // The host's own thread rests while none of its calls runs.
        let ticks = engine.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(TICK);
                ticks.increment_epoch();
            }
        });
        Ok(Self { engine: engine.clone(), pre })
    }

    /// A store, an instance, a call, and all of it dropped.
    pub(crate) async fn call(&self, event: &Event) -> Result<()> {
        let data = Data {
            wasi: WasiCtx::builder().build(),
            table: ResourceTable::new(),
            limits: StoreLimitsBuilder::new().memory_size(MEMORY).build(),
            emitted: 0,
        };
        let mut store = Store::new(&self.engine, data);
        store.limiter(|data| &mut data.limits);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| {
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        let message_id = event.message_id.to_string();
        let run = async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let given = handler::Event {
                message_id: &message_id,
                project: &event.project,
                resource: &event.resource,
                aggregate_id: &event.aggregate_id,
                event_name: &event.event_name,
                schema_version: event.schema_version,
                payload: &event.payload,
                meta: &[],
                dedup_key: event.dedup_key.as_deref(),
                created_at_ms: event.created_at.unsigned_abs(),
                position: event.pk.unsigned_abs(),
                attrs: &[],
            };
            let attempt = handler::Attempt {
                trigger: "bare",
                number: 1,
                max: 5,
                deadline_ms: 10_000,
                idempotency_key: &message_id,
                attrs: &[],
            };
            instance.outrigger_trigger_handler().call_handle(&mut store, given, attempt).await
        };
        match tokio::time::timeout(DEADLINE, run).await?.map_err(said)? {
            Ok(()) => Ok(()),
            Err(failure) => bail!("the plugin failed: {failure:?}"),
        }
    }
}

fn said(error: wasmtime::Error) -> anyhow::Error {
    anyhow::Error::from_boxed(error.into_boxed_dyn_error())
}

impl WasiView for Data {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

mod imports {
    use super::{
        Data,
        bindings::outrigger::trigger::{config, emit, log, secrets, state, types},
    };

    impl types::Host for Data {}

    impl emit::Host for Data {
        async fn emit(&mut self, _: emit::NewEvent) -> Result<String, emit::Error> {
            self.emitted += 1;
            Ok(format!("{:036}", self.emitted))
        }
    }

    impl state::Host for Data {
        async fn get(&mut self, _: String) -> Result<Option<Vec<u8>>, state::Error> {
            Ok(None)
        }

        async fn set(&mut self, _: String, _: Vec<u8>) -> Result<(), state::Error> {
            Ok(())
        }

        async fn delete(&mut self, _: String) -> Result<(), state::Error> {
            Ok(())
        }

        async fn increment(&mut self, _: String, _: i64) -> Result<(), state::Error> {
            Ok(())
        }

        async fn keys(
            &mut self,
            _: String,
            _: Option<String>,
            _: u32,
        ) -> Result<Vec<String>, state::Error> {
            Ok(Vec::new())
        }
    }

    impl config::Host for Data {
        async fn get(&mut self, _: String) -> Option<String> {
            None
        }

        async fn all(&mut self) -> Vec<(String, String)> {
            Vec::new()
        }
    }

    impl secrets::Host for Data {
        async fn get(&mut self, _: String) -> Option<String> {
            None
        }
    }

    impl log::Host for Data {
        async fn log(&mut self, _: log::Level, _: String) {}
    }
}
