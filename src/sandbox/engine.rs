//! The engine that every plugin runs on, and what keeps it in bounds.

use std::{fmt, io, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    WasmBacktraceDetails, component::Linker,
};

use super::{
    Network, Settings, batch::Idle, budget::Budget, cache::Cache, compile::Turns, data::Data,
    http::Client, ticker::Ticker, v1,
};
use crate::model::{names::Invalid, trigger::Limits};

/// What one component may consist of. Real plugins need this much room: a
/// JavaScript engine has three memories.
pub(super) const MEMORIES: u32 = 4;
pub(super) const TABLES: u32 = 32;

/// Fewest slots that are worth a pool.
const SLOTS_MIN: u32 = 8;

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A setting is wrong.
    #[error("sandbox setting: {0}")]
    Setting(#[from] Invalid),
    /// The WebAssembly engine doesn't work on this machine.
    #[error("the WebAssembly engine can't start: {0}")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The thread that interrupts busy guests can't be started.
    #[error("the sandbox can't start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Compiles plugins and runs them.
pub struct Sandbox {
    pub(super) settings: Settings,
    pub(super) engine: Engine,
    pub(super) linker: Linker<Data>,
    /// The way out for guests' requests.
    pub(super) http: Arc<Client>,
    /// Whose secrets are made ready next to be kept out of logs.
    pub(super) hiding: Turns,
    /// Who compiles next.
    pub(super) turns: Turns,
    /// Where what was compiled is kept.
    pub(super) cache: Option<Cache>,
    /// In front of the pool: without a permit nothing is instantiated.
    slots: Arc<Semaphore>,
    /// The memory of all guests together.
    pub(super) budget: Arc<Budget>,
    /// Instances that hold a slot and wait for their next call.
    pub(super) idle: Idle,
    slot_count: u32,
    pooled: bool,
    ticker: Ticker,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("slots", &self.slot_count)
            .field("pooled", &self.pooled)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Starts an engine. Where the machine has no room for the pool of that
    /// many slots, it takes fewer, or none at all, and warns.
    ///
    /// # Errors
    /// When a setting is wrong, or the engine doesn't work on this machine.
    pub fn new(settings: Settings) -> Result<Arc<Self>, SandboxError> {
        Self::on(settings, Network::default())
    }

    /// Starts an engine whose guests reach the network through this.
    ///
    /// # Errors
    /// As [`Sandbox::new`].
    #[doc(hidden)]
    pub fn on(settings: Settings, network: Network) -> Result<Arc<Self>, SandboxError> {
        settings.validate()?;
        let (engine, slot_count, pooled) = engine(&settings)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(engine_error)?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).map_err(engine_error)?;
        v1::add_to_linker(&mut linker).map_err(engine_error)?;
        let slots = Arc::new(Semaphore::new(slot_count as usize));
        Ok(Arc::new(Self {
            ticker: Ticker::start(engine.clone(), Arc::clone(&slots))?,
            http: Client::new(settings.http.clone(), network),
            hiding: Turns::new(1),
            turns: Turns::new(settings.compilers),
            cache: settings
                .cache
                .as_ref()
                .map(|folder| Cache::new(folder, settings.cache_max, &engine)),
            budget: Budget::new(settings.memory_total.as_usize()),
            settings,
            engine,
            linker,
            slots,
            idle: Idle::new(slot_count),
            slot_count,
            pooled,
        }))
    }

    /// Checks that a trigger asks for no more than this host gives to any.
    ///
    /// # Errors
    /// Names the limit and what this host gives.
    pub fn admit(&self, limits: &Limits) -> Result<(), Invalid> {
        self.settings.admit(limits)
    }

    /// Calls that can run at once.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slot_count
    }

    /// Slots that nothing holds at the moment.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.slots.available_permits()
    }

    /// The engine itself: a benchmark holds calls against bare ones on it.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Waits for a free slot, in the order of asking. Whoever has one and only
    /// waits for a next call gives way.
    pub(super) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let slots = Arc::clone(&self.slots);
        let slot = if let Ok(slot) = slots.clone().try_acquire_owned() {
            Some(slot)
        } else {
            self.idle.make_room();
            // It fails only for a semaphore that was closed, which this never is.
            slots.acquire_owned().await.ok()
        };
        self.ticker.wake();
        slot
    }
}

/// The engine with the largest pool that this machine has room for.
fn engine(settings: &Settings) -> Result<(Engine, u32, bool), SandboxError> {
    let mut slots = settings.slots;
    loop {
        let mut config = config(settings);
        config.allocation_strategy(pool(settings, slots));
        match Engine::new(&config) {
            Ok(engine) => {
                if slots < settings.slots {
                    let asked = settings.slots;
                    tracing::warn!(asked, slots, "not enough address space for all sandbox slots");
                }
                return Ok((engine, slots, true));
            }
            Err(error) if slots / 2 >= SLOTS_MIN => {
                tracing::debug!(slots, error = %error.root_cause(), "no room for the pool");
                slots /= 2;
            }
            Err(error) => {
                let error = error.root_cause().to_string();
                tracing::warn!(error, "no room for a pool of sandbox slots: calls will be slower");
                let engine = Engine::new(&config_without_pool(settings)).map_err(engine_error)?;
                return Ok((engine, settings.slots, false));
            }
        }
    }
}

fn config(settings: &Settings) -> Config {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_nan_canonicalization(true)
        .epoch_interruption(true)
        .concurrency_support(false)
        .memory_init_cow(true)
        .memory_guaranteed_dense_image_size(64 << 20)
        .max_wasm_stack(settings.stack_max.as_usize())
        .async_stack_size(2 << 20)
        .async_stack_zeroing(true)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false)
        .shared_memory(false)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// What the compiler's process uses too, with any settings: they change nothing
/// of what is compiled, and neither does the pool.
pub(super) fn config_without_pool(settings: &Settings) -> Config {
    let mut config = config(settings);
    config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    config
}

/// Each total is a slot's share times the slots, so that a call which holds a
/// permit finds everything it needs.
fn pool(settings: &Settings, slots: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots)
        .total_core_instances(slots * settings.instances)
        .total_memories(slots * MEMORIES)
        .total_tables(slots * TABLES)
        .total_stacks(slots)
        .max_core_instances_per_component(settings.instances)
        .max_memories_per_component(MEMORIES)
        .max_memories_per_module(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_tables_per_module(TABLES)
        .max_component_instance_size(2 << 20)
        .max_core_instance_size(1 << 20)
        .max_memory_size(settings.memory_max.as_usize())
        .table_elements(settings.table_elements as usize)
        .linear_memory_keep_resident(2 << 20)
        .table_keep_resident(128 << 10)
        .async_stack_keep_resident(32 << 10)
        .max_unused_warm_slots(64)
        .decommit_batch_size(1)
        .pagemap_scan(Enabled::Auto);
    pool
}

fn engine_error(error: wasmtime::Error) -> SandboxError {
    SandboxError::Engine(error.into_boxed_dyn_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_stops_it() {
        let settings = Settings { slots: 0, ..Settings::default() };
        let error = Sandbox::new(settings).expect_err("no slots");
        assert_eq!(error.to_string(), "sandbox setting: slots is not between 1 and 10000");
    }

    #[test]
    fn every_slot_is_there_and_free() {
        let sandbox = Sandbox::new(Settings::default()).expect("a sandbox");
        assert_eq!(sandbox.slots() as usize, sandbox.free_slots());
    }

    #[test]
    fn too_many_slots_become_fewer() {
        let sandbox = Sandbox::new(Settings { slots: 10_000, ..Settings::default() });
        let sandbox = sandbox.expect("a sandbox");
        assert!(sandbox.slots() < 10_000 || !sandbox.pooled, "{sandbox:?}");
    }
}
