//! Calls of one trigger in one claimed batch, which may follow one another in
//! one instance: for runtimes that take long to start.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Call, Plugin, Report, live::Live, meta::Meta};

/// What one instance may see of a batch.
const CALLS_MAX: u32 = 1_000;
const AGE_MAX: Duration = Duration::from_secs(10);

/// Of all slots, one in so many may be held by instances that wait.
const IDLE_PART: u32 = 4;

/// Calls of one plugin version for one trigger and batch. What a call leaves in
/// the guest's memory may be seen by the next. Nothing is kept of a call that
/// didn't return, and nothing when this is dropped.
pub struct Batch {
    plugin: Arc<Plugin>,
    idle: Mutex<Vec<(Live, OwnedSemaphorePermit)>>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl Batch {
    /// A batch that has made no calls.
    #[must_use]
    pub fn new(plugin: &Arc<Plugin>) -> Arc<Self> {
        let batch = Arc::new(Self { plugin: Arc::clone(plugin), idle: Mutex::default() });
        plugin.sandbox.idle.add(&batch);
        batch
    }

    /// Handles one event as [`Plugin::call`] does, in an instance that an
    /// earlier call of the same trigger has left, if one is free.
    pub async fn call(&self, call: Call) -> Report {
        let plugin = &*self.plugin;
        let meta = Meta::parse(call.event.meta.as_deref());
        let mut live = if let Some(mut live) = self.take(&call) {
            live.begin(&call, &meta, &plugin.sandbox.settings);
            live
        } else {
            let slot = plugin.sandbox.slot().await;
            Live::new(plugin, &call, &meta, slot)
        };
        let report = live.call(plugin, &call, &meta).await;
        self.keep(live);
        report
    }

    fn take(&self, call: &Call) -> Option<Live> {
        let (live, _) = self.idle().pop()?;
        // Another revision of the trigger has another configuration or grants.
        Some(live).filter(|live| live.is_for(call) && live.may_go_on(CALLS_MAX, AGE_MAX))
    }

    fn keep(&self, live: Live) {
        let sandbox = &self.plugin.sandbox;
        if !live.may_go_on(CALLS_MAX, AGE_MAX) {
            return;
        }
        let Some(permit) = sandbox.idle.permit() else { return };
        self.idle().push((live, permit));
        // Looked at afterwards, so that nobody who found no free slot, and no
        // idle instance before this one, waits for it.
        if sandbox.free_slots() == 0 {
            let gone = self.idle().pop();
            drop(gone);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Live, OwnedSemaphorePermit)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The idle instances of all batches.
pub(super) struct Idle {
    room: Arc<Semaphore>,
    batches: Mutex<Vec<Weak<Batch>>>,
}

impl Idle {
    /// Room for a part of so many slots.
    pub(super) fn new(slots: u32) -> Self {
        let room = Arc::new(Semaphore::new((slots / IDLE_PART) as usize));
        Self { room, batches: Mutex::default() }
    }

    /// Ends an instance that waits, if there is one, so that its slot is free.
    pub(super) fn make_room(&self) {
        let batches: Vec<Arc<Batch>> = self.batches().iter().filter_map(Weak::upgrade).collect();
        let gone = batches.iter().find_map(|batch| batch.idle().pop());
        drop(gone);
    }

    fn add(&self, batch: &Arc<Batch>) {
        let mut batches = self.batches();
        batches.retain(|batch| batch.strong_count() > 0);
        batches.push(Arc::downgrade(batch));
    }

    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    fn batches(&self) -> MutexGuard<'_, Vec<Weak<Batch>>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
