//! What interrupts guests that compute for long.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use tokio::sync::Semaphore;
use wasmtime::Engine;

/// How often a guest that computes lets others have their turn.
const TICK: Duration = Duration::from_millis(10);

/// Moves the engine's epoch on while a call holds a slot, until it is dropped.
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Default)]
struct Shared {
    /// Whether it waits for a call.
    asleep: AtomicBool,
    over: AtomicBool,
}

impl Ticker {
    /// Starts a thread of its own: it must go on when guests keep every worker
    /// of the runtime busy. All of `slots` are free now.
    pub(super) fn start(engine: Engine, slots: Arc<Semaphore>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let all = slots.available_permits();
        let tick = move || {
            let idle = || slots.available_permits() == all && !told.over.load(Ordering::SeqCst);
            while !told.over.load(Ordering::SeqCst) {
                if idle() {
                    told.asleep.store(true, Ordering::SeqCst);
                    // A call that began before this is seen now; one that
                    // begins later sees this.
                    if idle() {
                        thread::park();
                    }
                    told.asleep.store(false, Ordering::SeqCst);
                }
                thread::sleep(TICK);
                engine.increment_epoch();
            }
        };
        let handle = thread::Builder::new().name("sandbox-tick".into()).spawn(tick)?;
        Ok(Self { shared, thread: handle.thread().clone() })
    }

    /// To be called once a call has taken its slot.
    pub(super) fn wake(&self) {
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}
