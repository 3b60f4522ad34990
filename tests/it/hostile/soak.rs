//! 200,000 calls that fail in every way leave nothing behind.
//!
//! They run in a process of their own: what is counted here is a process's.

use std::{
    fs,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outrigger::{
    model::units::{Bytes, Span},
    sandbox::{Batch, Call, Plugin, Sandbox, Settings},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{guests, sandbox::call, scenarios::alone};

const CALLS: usize = 200_000;
const FIRST: usize = 1_000;

/// Calls at once.
const TASKS: usize = 8;

/// One in so many calls is one of those that take long.
const LONG_EVERY: usize = 200;

/// Until threads that compiled have ended, and stay so.
const IDLE: Duration = Duration::from_secs(1);

/// Set in the process that makes the calls.
const CHILD: &str = "OUTRIGGER_TEST_SOAK";

/// A plugin, and what its event tells it to do.
struct Kind {
    plugin: Arc<Plugin>,
    steps: Value,
    /// Whether the call is dropped before it ends.
    dropped: bool,
}

async fn kinds(sandbox: &Arc<Sandbox>) -> (Vec<Kind>, Vec<Kind>) {
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for (name, _) in super::all() {
        let plugin = sandbox.load(super::component(name)).await.unwrap();
        let steps = json!([{"op": "sleep", "ms": 60_000}]);
        let kind = Kind { plugin, steps, dropped: false };
        if name.starts_with("loop") || name.starts_with("log-a") { &mut long } else { &mut short }
            .push(kind);
    }
    let probe = sandbox.load(guests::probe()).await.unwrap();
    let kind = |steps: Value, dropped: bool| Kind { plugin: Arc::clone(&probe), steps, dropped };
    for steps in [
        json!([]),
        json!([{"op": "panic", "message": "boom"}]),
        json!([{"op": "exit", "code": 3}]),
        json!([{"op": "retry", "message": "later"}]),
        json!([{"op": "reject", "message": "never"}]),
        json!([{"op": "stderr", "text": "oops"}, {"op": "get", "key": "away"}]),
        json!([{"op": "emitMany", "count": 200, "eventName": "email.x"}]),
        json!([{"op": "emitMany", "count": 1, "eventName": "sms.x"}]),
        json!([{"op": "allocate", "mib": 200}]),
    ] {
        short.push(kind(steps, false));
    }
    short.push(kind(json!([{"op": "sleep", "ms": 60_000}]), true));
    long.push(kind(json!([{"op": "spin", "ms": 60_000}]), true));
    (short, long)
}

/// What a process holds.
#[derive(Debug, PartialEq)]
struct Held {
    slots: usize,
    pooled: [u64; 5],
    files: usize,
    threads: u64,
}

fn held(sandbox: &Sandbox) -> Held {
    let pool = sandbox.engine().pooling_allocator_metrics().expect("a pool");
    Held {
        slots: sandbox.free_slots(),
        pooled: [
            pool.component_instances(),
            pool.core_instances(),
            pool.memories() as u64,
            pool.tables() as u64,
            pool.stacks() as u64,
        ],
        files: fs::read_dir("/proc/self/fd").unwrap().count(),
        threads: status("Threads:"),
    }
}

/// A number of this process's status; sizes are in KiB.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

async fn make(sandbox: &Arc<Sandbox>, kinds: &Arc<(Vec<Kind>, Vec<Kind>)>, calls: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (next, kinds) = (Arc::clone(&next), Arc::clone(kinds));
        tasks.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= calls {
                    return;
                }
                let (short, long) = &*kinds;
                let kind = if n % LONG_EVERY == 0 {
                    &long[(n / LONG_EVERY) % long.len()]
                } else {
                    &short[n % short.len()]
                };
                one(kind, n % 3 == 0).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(sandbox.free_slots(), sandbox.slots() as usize);
    tokio::time::sleep(IDLE).await;
}

async fn one(kind: &Kind, batched: bool) {
    let mut call = Call { deadline: Duration::from_millis(20), ..call(&kind.steps) };
    let trigger = Arc::make_mut(&mut call.trigger);
    trigger.limits.cpu = Span::from_millis(10);
    trigger.limits.memory = Bytes::mib(40);
    trigger.limits.emit_count = Some(100);
    let batch = batched.then(|| Batch::new(&kind.plugin));
    let ended = async {
        match &batch {
            Some(batch) => batch.call(call).await,
            None => kind.plugin.call(call).await,
        }
    };
    if kind.dropped {
        // Whoever waits for it gives up.
        let _ = tokio::time::timeout(Duration::from_millis(2), ended).await;
    } else {
        ended.await;
    }
}

#[tokio::test]
async fn calls_that_fail_leave_nothing_behind() {
    let _alone = alone().await;
    let child = tokio::task::spawn_blocking(child).await.unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}\n{errors}");
}

/// Makes the calls in a process of their own.
fn child() -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["hostile::soak::the_calls_themselves", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap()
}

/// Does nothing but where the other one has started it.
#[test]
fn the_calls_themselves() {
    if std::env::var_os(CHILD).is_some() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().thread_keep_alive(IDLE / 10).build().unwrap();
        runtime.block_on(soak());
    }
}

async fn soak() {
    let sandbox = Sandbox::new(Settings { slots: 16, ..Settings::default() }).unwrap();
    let kinds = Arc::new(kinds(&sandbox).await);
    make(&sandbox, &kinds, FIRST).await;
    let (before, resident) = (held(&sandbox), status("VmRSS:"));
    make(&sandbox, &kinds, CALLS - FIRST).await;
    let (after, grown) = (held(&sandbox), status("VmRSS:"));
    println!("after {FIRST} calls {before:?}, {resident} KiB; after {CALLS} {grown} KiB");
    assert_eq!(before.pooled, [0; 5]);
    assert_eq!(after, before);
    assert!(grown * 10 <= resident * 11, "{resident} KiB grew to {grown} KiB");
}
