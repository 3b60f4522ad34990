//! Calls of one batch, one after another in one instance.

use std::{sync::Arc, time::Duration};

use outrigger::{
    model::{attempt::Source, outcome::FailureKind},
    sandbox::{Batch, Call, Plugin, Report, Sandbox, Settings},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{call, email, probe, probe_with, texts};
use crate::guests;

/// A call for an aggregate; `like` is of the same trigger.
fn next(like: &Call, aggregate: &str, steps: &Value) -> Call {
    let mut call = Call { trigger: Arc::clone(&like.trigger), ..call(steps) };
    Arc::make_mut(&mut call.event).aggregate_id = aggregate.into();
    call
}

fn visit() -> Value {
    json!([{"op": "visit"}])
}

/// What an instance has seen, as a call reports it.
fn seen(report: &Report) -> String {
    assert!(report.result.is_ok(), "{report:?}");
    texts(&report.logs, Source::Log).concat()
}

async fn one_by_one(batch: &Batch, first: &Call, count: u32) -> Vec<String> {
    let mut all = Vec::new();
    for n in 1..=count {
        all.push(seen(&batch.call(next(first, &format!("o-{n}"), &visit())).await));
    }
    all
}

#[tokio::test]
async fn a_call_finds_what_the_one_before_it_left_and_others_never_do() {
    let probe = probe().await;
    let first = call(&visit());
    let batch = Batch::new(&probe);
    let all = one_by_one(&batch, &first, 3).await;
    assert_eq!(all, ["probe/o-1", "probe/o-1 probe/o-2", "probe/o-1 probe/o-2 probe/o-3"]);
    let other = Batch::new(&probe).call(next(&first, "o-4", &visit())).await;
    assert_eq!(seen(&other), "probe/o-4", "another batch");
    let alone = probe.call(next(&first, "o-5", &visit())).await;
    assert_eq!(seen(&alone), "probe/o-5", "no batch");
    let mut revised = next(&first, "o-6", &visit());
    Arc::make_mut(&mut revised.trigger).config.clear();
    assert_eq!(seen(&batch.call(revised).await), "probe/o-6", "another revision");
}

#[tokio::test]
async fn a_call_that_fails_takes_its_instance_along() {
    let first = call(&visit());
    for (step, kind) in [
        (json!({"op": "panic", "message": "boom"}), FailureKind::Trap),
        (json!({"op": "exit", "code": 3}), FailureKind::Trap),
        (json!({"op": "recurse"}), FailureKind::Stack),
        (json!({"op": "allocate", "mib": 200}), FailureKind::Memory),
        (json!({"op": "loop"}), FailureKind::Deadline),
        (json!({"op": "sleep", "ms": 60_000}), FailureKind::Deadline),
        (json!({"op": "get", "key": "away"}), FailureKind::HostFault),
    ] {
        let batch = Batch::new(&probe().await);
        one_by_one(&batch, &first, 2).await;
        let steps = json!([{"op": "visit"}, step]);
        let deadline = match kind {
            FailureKind::Deadline => Duration::from_millis(300),
            _ => Duration::from_mins(1),
        };
        let failed = batch.call(Call { deadline, ..next(&first, "bad", &steps) }).await;
        assert_eq!(failed.result.expect_err("a failure").kind, kind, "{step}");
        let last = "probe/o-1 probe/o-2 probe/bad";
        assert_eq!(texts(&failed.logs, Source::Log), [last], "{step}");
        assert_eq!(one_by_one(&batch, &first, 1).await, ["probe/o-1"], "after {step}");
    }
    // What was returned is no fault of the instance.
    let batch = Batch::new(&probe().await);
    one_by_one(&batch, &first, 1).await;
    for op in ["retry", "reject"] {
        let failed = batch.call(next(&first, "x", &json!([{"op": op, "message": "no"}]))).await;
        failed.result.expect_err("a failure");
    }
    assert_eq!(one_by_one(&batch, &first, 1).await, ["probe/o-1 probe/o-1"]);
}

#[tokio::test]
async fn what_belongs_to_a_call_is_its_own() {
    let batch = Batch::new(&probe().await);
    let first = call(&visit());
    let asks = |n: u32| {
        json!([
            {"op": "stdout", "text": format!("out {n}")}, {"op": "stderr", "text": format!("err {n}")},
            {"op": "increment", "key": format!("k{n}"), "by": 1},
            email(json!({"payload": {"n": n}})), {"op": "visit"},
        ])
    };
    let mut ids = Vec::new();
    for n in 1..=3 {
        let report = batch.call(next(&first, &n.to_string(), &asks(n))).await;
        assert_eq!(texts(&report.logs, Source::Stdout), [format!("out {n}")]);
        assert_eq!(texts(&report.logs, Source::Stderr), [format!("err {n}")]);
        let visits = texts(&report.logs, Source::Log).last().unwrap().split(' ').count();
        assert_eq!(visits, n as usize, "in one instance");
        let effects = report.result.expect("done");
        let [event] = &effects.emitted[..] else { panic!("{effects:?}") };
        assert_eq!(event.payload, json!({"n": n}).to_string());
        assert_eq!(effects.state.writes.into_keys().collect::<Vec<_>>(), [format!("k{n}")]);
        ids.push(event.message_id);
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "counted anew for each call: {ids:?}");

    // A log that is full, and a rejected call's wishes, end with their call.
    let many: Vec<_> = (0..20).map(|_| json!({"op": "big", "bytes": 8000})).collect();
    batch.call(next(&first, "big", &json!(many))).await;
    let void = json!([{"op": "increment", "key": "k", "by": 1}, {"op": "reject", "message": "no"}]);
    batch.call(next(&first, "void", &void)).await.result.expect_err("rejected");
    let report = batch.call(next(&first, "after", &visit())).await;
    assert_eq!(report.logs.len(), 1, "{:?}", report.logs);
    assert!(report.result.expect("done").is_empty());
}

#[tokio::test]
async fn memory_and_deadline_are_counted_for_each_call() {
    let batch = Batch::new(&probe().await);
    let first = call(&visit());
    let small = batch.call(next(&first, "a", &visit())).await.usage.memory_bytes;
    let allocate = json!([{"op": "allocate", "mib": 16}]);
    let large = batch.call(next(&first, "b", &allocate)).await.usage.memory_bytes;
    assert!(large >= small + (16 << 20), "{small} {large}");
    let after = batch.call(next(&first, "c", &visit())).await;
    assert_eq!(after.usage.memory_bytes, large, "what the instance has grown to is held");

    // Together longer than one deadline, each well within it.
    for n in 0..6 {
        let steps = json!([{"op": "sleep", "ms": 150}, {"op": "visit"}]);
        let slow = Call { deadline: Duration::from_millis(600), ..next(&first, "s", &steps) };
        let report = batch.call(slow).await;
        let seen = seen(&report).split(' ').count();
        assert_eq!(seen, 3 + n, "{report:?}");
        assert!(report.usage.duration_us >= 150_000, "{:?}", report.usage);
    }
}

#[tokio::test]
async fn instances_that_wait_leave_slots_to_others() {
    let sandbox = Sandbox::new(Settings { slots: 4, ..Settings::default() }).expect("a sandbox");
    let probe: Arc<Plugin> = sandbox.load(guests::probe()).await.expect("a plugin");
    let first = call(&visit());
    let batch = Batch::new(&probe);
    one_by_one(&batch, &first, 1).await;
    assert_eq!(sandbox.free_slots(), 3, "one waits for its next call");

    // Four others at once: it gives way.
    let mut others = JoinSet::new();
    for _ in 0..4 {
        let (probe, steps) = (Arc::clone(&probe), json!([{"op": "sleep", "ms": 200}]));
        others.spawn(async move { probe.call(call(&steps)).await });
    }
    while let Some(report) = others.join_next().await {
        assert!(report.expect("no panic").result.is_ok());
    }
    assert_eq!(sandbox.free_slots(), 4);
    assert_eq!(one_by_one(&batch, &first, 1).await, ["probe/o-1"], "it was ended");

    // At most a part of the slots is held, whatever ran at once.
    let mut calls = JoinSet::new();
    for n in 0..4 {
        let (batch, steps) = (Arc::clone(&batch), json!([{"op": "sleep", "ms": 100}]));
        let call = next(&first, &n.to_string(), &steps);
        calls.spawn(async move { batch.call(call).await });
    }
    while let Some(report) = calls.join_next().await {
        assert!(report.expect("no panic").result.is_ok());
    }
    assert!(sandbox.free_slots() >= 3, "{}", sandbox.free_slots());
    drop(batch);
    assert_eq!(sandbox.free_slots(), 4, "nothing outlives its batch");
}

#[tokio::test]
async fn an_instance_serves_only_so_many_calls() {
    let probe = probe_with(Settings { slots: 8, ..Settings::default() }).await;
    let batch = Batch::new(&probe);
    let first = call(&visit());
    let mut starts = 0;
    for _ in 0..1_001 {
        let seen = seen(&batch.call(next(&first, "o", &visit())).await);
        starts += u32::from(seen == "probe/o");
    }
    assert!((2..20).contains(&starts), "{starts} instances for 1,001 calls");
}
