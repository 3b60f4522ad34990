//! The sandbox with real plugins: good ones, and all kinds of bad ones.

mod batch;
mod http;
mod uploads;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use outrigger::{
    model::{
        attempt::{LogLine, Source},
        effect::{Listing, Write},
        event::Event,
        outcome::FailureKind,
        secret::SecretValue,
        trigger::Limits,
        units::{Bytes, Span},
    },
    sandbox::{Call, Plugin, Report, Sandbox, Secrets, Settings, StateReader, TriggerView},
};
use serde_json::{Value, json};
use tokio::{
    sync::{OnceCell, Semaphore},
    task::JoinSet,
};
use uuid::Uuid;

use crate::guests;

/// One probe for all tests: compiling it takes the longest of all.
async fn probe() -> Arc<Plugin> {
    static PROBE: OnceCell<Arc<Plugin>> = OnceCell::const_new();
    PROBE.get_or_init(|| probe_with(Settings::default())).await.clone()
}

async fn probe_with(settings: Settings) -> Arc<Plugin> {
    let sandbox = Sandbox::new(settings).expect("a sandbox");
    sandbox.load(guests::probe()).await.expect("the probe is a plugin")
}

struct Stored(BTreeMap<String, Vec<u8>>);

#[async_trait]
impl StateReader for Stored {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        if key == "away" { Err("no database".into()) } else { Ok(self.0.get(key).cloned()) }
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, String> {
        let keys = self.0.keys().filter(|key| key.starts_with(prefix));
        let keys = keys.filter(|key| after.is_none_or(|after| key.as_str() > after));
        Ok(keys.take(limit as usize).cloned().collect())
    }
}

/// A call whose event tells the probe to do these steps, with every grant.
pub(crate) fn call(steps: &Value) -> Call {
    let stored = [("n", "40"), ("t", "text"), ("k1", ""), ("k2", ""), ("k3", "")];
    let stored = stored.map(|(key, value)| (key.to_owned(), value.into()));
    Call {
        event: Arc::new(Event {
            pk: 7,
            message_id: Uuid::from_u128(0x0a),
            project: "shop".into(),
            resource: "order".into(),
            aggregate_id: "o-1".into(),
            event_name: "order.placed".into(),
            schema_version: 2,
            payload: json!({ "do": steps }).to_string(),
            meta: Some(r#"{"user": {"id": 1}, "traceparent": "t", "outrigger.hops": 1}"#.into()),
            dedup_key: Some("d".into()),
            created_at: 1_700_000_000_123,
            available_at: None,
            lane: 3,
        }),
        trigger: Arc::new(TriggerView {
            name: "probe".into(),
            config: BTreeMap::from([("from".into(), "shop@example.com".into())]),
            emit: vec!["email.*".parse().expect("a pattern")],
            state: true,
            http: Vec::new(),
            secrets: Secrets::default(),
            limits: Limits::default(),
        }),
        attempt: 2,
        max_attempts: 5,
        deadline: Duration::from_secs(20),
        idempotency_key: "key".into(),
        now_ms: 1_700_000_001_000,
        state: Arc::new(Stored(stored.into())),
    }
}

async fn run(steps: Value) -> Report {
    probe().await.call(call(&steps)).await
}

fn texts(logs: &[LogLine], source: Source) -> Vec<&str> {
    logs.iter().filter(|line| line.source == source).map(|line| line.text.as_str()).collect()
}

fn email(more: Value) -> Value {
    let mut step = json!({
        "op": "emit", "resource": "email", "aggregateId": "1", "eventName": "email.asked",
    });
    if let (Value::Object(step), Value::Object(more)) = (&mut step, more) {
        step.extend(more);
    }
    step
}

#[tokio::test]
async fn a_plugin_sees_its_event_and_attempt() {
    let report = run(json!([{"op": "dump"}])).await;
    assert!(report.result.expect("done").is_empty());
    let seen: Value = serde_json::from_str(texts(&report.logs, Source::Log)[0]).expect("JSON");
    assert_eq!(
        seen,
        json!({
            "event": {
                "messageId": "00000000-0000-0000-0000-00000000000a",
                "project": "shop", "resource": "order", "aggregateId": "o-1",
                "eventName": "order.placed", "schemaVersion": 2,
                "payload": r#"{"do":[{"op":"dump"}]}"#,
                "meta": {"user": r#"{"id": 1}"#, "traceparent": "t"},
                "dedupKey": "d", "createdAtMs": 1_700_000_000_123_u64, "position": 7,
                "attrs": {"hops": "1"},
            },
            "attempt": {
                "trigger": "probe", "number": 2, "max": 5, "deadlineMs": 20_000,
                "idempotencyKey": "key", "attrs": {},
            },
        })
    );
    assert!(report.usage.duration_us >= report.usage.cpu_us && report.usage.cpu_us > 0);
    assert!((64 << 10..64 << 20).contains(&report.usage.memory_bytes), "{:?}", report.usage);
}

#[tokio::test]
async fn each_failure_has_its_kind_and_says_why() {
    for (step, kind, said) in [
        (json!({"op": "panic", "message": "boom"}), FailureKind::Trap, "boom"),
        (json!({"op": "exit", "code": 3}), FailureKind::Trap, "exited with status"),
        (json!({"op": "big", "bytes": 5 << 20}), FailureKind::BadResult, "more than 4194304 bytes"),
        (json!({"op": "allocate", "mib": 200}), FailureKind::Memory, "`limits.memory` is 64MiB"),
        (json!({"op": "recurse"}), FailureKind::Stack, "too deep"),
        (json!({"op": "loop"}), FailureKind::Deadline, "not done after 300ms"),
        (json!({"op": "sleep", "ms": 60_000}), FailureKind::Deadline, "not done after 300ms"),
        (json!({"op": "spin", "ms": 60_000}), FailureKind::Deadline, "not done after 300ms"),
        (json!({"op": "loop"}), FailureKind::Cpu, "the trigger's `limits.cpu` is 200ms"),
        (json!({"op": "spin", "ms": 60_000}), FailureKind::Cpu, "`limits.cpu` is 200ms"),
        (json!({"op": "retry", "message": "later", "afterMs": 7}), FailureKind::Retry, "later"),
        (json!({"op": "reject", "message": "never"}), FailureKind::Reject, "never"),
    ] {
        let log = json!({"op": "log", "level": "warn", "text": "about to"});
        let steps = json!([log, {"op": "stdout", "text": "out"}, email(json!({})), step]);
        let deadline = match kind {
            FailureKind::Deadline => Duration::from_millis(300),
            _ => Duration::from_mins(1),
        };
        let probe = probe().await;
        let began = Instant::now();
        let mut call = Call { deadline, ..call(&steps) };
        if kind == FailureKind::Cpu {
            Arc::make_mut(&mut call.trigger).limits.cpu = Span::from_millis(200);
            Arc::make_mut(&mut call.trigger).limits.deadline = Span::from_secs(60);
        }
        let report = probe.call(call).await;
        assert!(began.elapsed() < Duration::from_secs(30), "{step}");
        let failure = report.result.expect_err("a failure");
        assert_eq!(failure.kind, kind, "{}", failure.message);
        assert!(failure.message.contains(said), "{said}: {}", failure.message);
        let after = (kind == FailureKind::Retry).then_some(7);
        assert_eq!(failure.after_ms, after);
        assert_eq!(texts(&report.logs, Source::Log)[0], "about to", "{step}");
        assert_eq!(texts(&report.logs, Source::Stdout), ["out"], "{step}");
    }
}

#[tokio::test]
async fn the_time_on_a_processor_is_told_from_waiting() {
    let sleep = run(json!([{"op": "sleep", "ms": 300}])).await.usage;
    assert!(sleep.duration_us >= 300_000 && sleep.cpu_us < 250_000, "{sleep:?}");
    let spin = run(json!([{"op": "spin", "ms": 100}])).await.usage;
    assert!(spin.cpu_us >= 50_000, "{spin:?}");
}

#[tokio::test]
async fn memory_is_what_the_trigger_and_the_host_allow() {
    let with = |memory, mib| {
        let mut call = call(&json!([{"op": "allocate", "mib": mib}]));
        Arc::make_mut(&mut call.trigger).limits.memory = memory;
        call
    };
    let probe = probe_with(Settings { memory_max: Bytes::mib(32), ..Settings::default() }).await;
    let report = probe.call(with(Bytes::mib(512), 16)).await;
    assert!(report.result.is_ok(), "{report:?}");
    assert!(report.usage.memory_bytes > 16 << 20);
    let failure = probe.call(with(Bytes::mib(512), 48)).await.result.expect_err("too much");
    assert!(
        failure.message.contains("this host's `sandbox.memory_max` is 32MiB"),
        "{}",
        failure.message
    );
    let failure = probe.call(with(Bytes::kib(64), 0)).await.result.expect_err("no room to start");
    assert_eq!(failure.kind, FailureKind::Memory, "{}", failure.message);
    assert!(failure.message.contains("is 64KiB"), "{}", failure.message);
}

/// State that is read once somebody says so.
struct Gate {
    arrived: Semaphore,
    open: Semaphore,
}

#[async_trait]
impl StateReader for Gate {
    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, String> {
        self.arrived.add_permits(1);
        self.open.acquire().await.expect("it isn't closed").forget();
        Ok(None)
    }

    async fn keys(&self, _: &str, _: Option<&str>, _: u32) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn no_project_takes_all_the_memory_that_there_is() {
    let settings = Settings {
        memory_max: Bytes::mib(32),
        memory_total: Bytes::mib(64),
        ..Settings::default()
    };
    let probe = probe_with(settings).await;
    let gate = Arc::new(Gate { arrived: Semaphore::new(0), open: Semaphore::new(0) });
    let take = |project: &str, mib: u32, hold: bool| {
        let allocate = json!({"op": "allocate", "mib": mib});
        let steps =
            if hold { json!([allocate, {"op": "get", "key": "k"}]) } else { json!([allocate]) };
        let mut call = Call { state: Arc::clone(&gate) as _, ..call(&steps) };
        Arc::make_mut(&mut call.event).project = project.into();
        let probe = Arc::clone(&probe);
        async move { probe.call(call).await }
    };
    let mut holders = JoinSet::new();
    for _ in 0..2 {
        holders.spawn(take("shop", 20, true));
    }
    gate.arrived.acquire_many(2).await.expect("both hold it").forget();
    let failure = take("shop", 20, false).await.result.expect_err("it has its share");
    assert_eq!(failure.kind, FailureKind::HostFault, "{}", failure.message);
    assert!(failure.message.contains("`sandbox.memory_total` is 64MiB"), "{}", failure.message);
    assert!(take("crm", 10, false).await.result.is_ok(), "a neighbour has room");
    assert!(take("shop", 0, false).await.result.is_ok(), "as has who needs little");
    gate.open.add_permits(2);
    while let Some(report) = holders.join_next().await {
        assert!(report.expect("no panic").result.is_ok());
    }
    assert!(take("shop", 20, false).await.result.is_ok(), "it was given back");
}

#[tokio::test]
async fn what_is_printed_is_logged_by_line() {
    let steps = json!([
        {"op": "stdout", "text": "one\ntwo"},
        {"op": "stderr", "text": "three"},
        {"op": "config", "key": "from"},
        {"op": "config", "key": "to"},
        {"op": "secret", "name": "KEY"},
        {"op": "big", "bytes": 20_000},
    ]);
    let report = run(steps).await;
    assert_eq!(texts(&report.logs, Source::Stdout), ["one", "two"]);
    assert_eq!(texts(&report.logs, Source::Stderr), ["three"]);
    let logged = texts(&report.logs, Source::Log);
    assert_eq!(logged[..3], ["from=shop@example.com", "to absent", "KEY absent"]);
    assert_eq!(logged[3].len(), 8192 + "… (cut)".len());

    let many: Vec<_> = (0..20).map(|_| json!({"op": "big", "bytes": 8000})).collect();
    let report = run(json!(many)).await;
    assert_eq!(texts(&report.logs, Source::Log).len(), 8);
    let mark = texts(&report.logs, Source::Host)[0];
    assert_eq!(
        mark,
        "12 more lines (96000 bytes) were dropped; this host's `sandbox.log_bytes` is 64KiB"
    );
}

#[tokio::test]
async fn a_secret_is_answered_by_grant_and_never_shown() {
    let value = |text: &str| SecretValue::new(text.into()).expect("a value");
    let secrets = [("KEY".into(), value("open-sesame"))].into();
    let secrets = Secrets::new(secrets).expect("secrets");
    assert!(!format!("{secrets:?}").contains("sesame"), "{secrets:?}");
    for (channel, kind) in [
        ("log", None),
        ("stdout", None),
        ("pieces", None),
        ("stderr", None),
        ("panic", Some(FailureKind::Trap)),
        ("retry", Some(FailureKind::Retry)),
        ("reject", Some(FailureKind::Reject)),
    ] {
        let step = json!({"op": "secret", "name": "KEY", "show": channel});
        let mut call = call(&json!([step]));
        Arc::make_mut(&mut call.trigger).secrets = secrets.clone();
        let report = probe().await.call(call).await;
        let said = format!("{report:?}");
        assert!(said.contains("KEY=[secret KEY]") && !said.contains("sesame"), "{channel}: {said}");
        assert_eq!(report.result.err().map(|failure| failure.kind), kind, "{channel}");
    }
    let report = run(json!([
        {"op": "secret", "name": "KEY"},
        {"op": "secret", "name": "KEY"},
        {"op": "panic", "message": "no key"},
    ]))
    .await;
    let [said] = texts(&report.logs, Source::Host)[..] else { panic!("{report:?}") };
    assert!(said.contains(r#"`"grants": {"secrets": ["KEY"]}`"#), "{said}");
    let failure = report.result.expect_err("no secret");
    assert_eq!(failure.kind, FailureKind::Denied, "{}", failure.message);
}

#[tokio::test]
async fn emitted_events_are_kept_for_the_settle_with_the_same_ids_each_time() {
    let steps = json!([
        email(json!({"payload": {"a": 1}, "dedupKey": "k", "meta": {"m": "x"}, "afterMs": 500})),
        email(json!({"eventName": "sms.asked", "ignore": true})),
        email(json!({"payloadText": "{", "ignore": true})),
        email(json!({"meta": {"outrigger.hops": "0"}, "ignore": true})),
        email(json!({"atMs": 5})),
    ]);
    let report = run(steps.clone()).await;
    let refused: Vec<_> = texts(&report.logs, Source::Log)
        .into_iter()
        .filter(|text| !text.starts_with("emitted "))
        .collect();
    assert!(refused[0].contains("denied: the trigger `probe` may not emit `sms.asked`"));
    assert!(refused[0].contains(r#"`"grants": {"emit": ["sms.asked"]}`"#), "{}", refused[0]);
    assert!(refused[1].contains("invalid: payload is not JSON"), "{}", refused[1]);
    assert!(refused[2].contains("invalid: the meta field `outrigger.hops`"), "{}", refused[2]);

    let effects = report.result.expect("done");
    let [first, last] = &effects.emitted[..] else { panic!("{effects:?}") };
    assert_eq!((&*first.project, &*first.payload), ("shop", r#"{"a":1}"#));
    assert_eq!(
        (first.dedup_key.as_deref(), first.available_at),
        (Some("k"), Some(1_700_000_001_500))
    );
    assert_eq!(last.available_at, Some(5));
    let meta: Value = serde_json::from_str(first.meta.as_deref().expect("meta")).expect("JSON");
    let cause = "00000000-0000-0000-0000-00000000000a";
    assert_eq!(
        meta,
        json!({"m": "x", "traceparent": "t", "outrigger.cause": cause, "outrigger.hops": 2})
    );
    let id = first.message_id.expect("an id").to_string();
    assert_eq!(texts(&report.logs, Source::Log)[0], format!("emitted {id}"));
    assert_ne!(first.message_id, last.message_id);

    let again = run(steps).await;
    assert_eq!(again.result.expect("done"), effects, "a retry emits the same");
}

#[tokio::test]
async fn one_call_emits_only_so_much() {
    let steps = json!([{"op": "emitMany", "count": 1001, "eventName": "email.x", "ignore": true}]);
    let report = run(steps).await;
    assert_eq!(report.result.expect("done").emitted.len(), 1000);
    assert_eq!(
        texts(&report.logs, Source::Log),
        ["emit limit: the call emits too many events; this host's `sandbox.emit_count` is 1000"]
    );
}

#[tokio::test]
async fn state_is_read_and_written_as_one_call_sees_it() {
    let report = run(json!([
        {"op": "readAddWrite", "key": "n", "by": 2},
        {"op": "get", "key": "n"},
        {"op": "increment", "key": "n", "by": 1},
        {"op": "increment", "key": "fresh", "by": 5},
        {"op": "get", "key": "t"},
        {"op": "increment", "key": "t", "by": 1, "ignore": true},
        {"op": "get", "key": "none"},
        {"op": "delete", "key": "k1"},
        {"op": "set", "key": "k25", "value": "x"},
        {"op": "keys", "prefix": "k", "limit": 3},
        {"op": "set", "key": "", "value": "x", "ignore": true},
        {"op": "get", "key": "away", "ignore": true},
    ]))
    .await;
    assert_eq!(
        texts(&report.logs, Source::Log),
        [
            "n=42",
            "t=text",
            "state invalid: the value of `t` is no decimal integer",
            "none absent",
            "k2,k25,k3",
            "state invalid: the key is empty",
            "state unavailable: no database",
        ]
    );
    let used = report.result.expect("done").state;
    let read = |key: &str, value: Option<&str>| (key.to_owned(), value.map(Into::into));
    let reads = [read("n", Some("40")), read("none", None), read("t", Some("text"))];
    assert_eq!(used.reads, BTreeMap::from(reads));
    let keys = ["k1", "k2", "k3"].map(str::to_owned).into();
    assert_eq!(used.listings, [Listing { prefix: "k".into(), after: None, limit: 4, keys }]);
    let set = |value: &str| Write::Set(value.into());
    let writes = [
        ("fresh".to_owned(), Write::Add(5)),
        ("k1".to_owned(), Write::Delete),
        ("k25".to_owned(), set("x")),
        ("n".to_owned(), set("43")),
    ];
    assert_eq!(used.writes, BTreeMap::from(writes));

    let mut denied = call(&json!([{"op": "get", "key": "n", "ignore": true}]));
    Arc::make_mut(&mut denied.trigger).state = false;
    let report = probe().await.call(denied).await;
    assert!(texts(&report.logs, Source::Log)[0].contains(
        r#"denied: the trigger `probe` may keep no state; add `"grants": {"state": true}` to it"#
    ));
}

#[tokio::test]
async fn a_trap_leaves_the_next_call_a_fresh_start() {
    let probe = probe().await;
    for _ in 0..20 {
        let bad = probe.call(call(&json!([{"op": "panic", "message": "boom"}]))).await;
        assert!(bad.result.is_err());
        let good = probe.call(call(&json!([{"op": "log", "text": "fine"}]))).await;
        assert!(good.result.is_ok(), "{good:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_of_a_busy_guest_go_on() {
    let probe = probe().await;
    let mut loops = JoinSet::new();
    for _ in 0..4 {
        let probe = Arc::clone(&probe);
        let call = Call { deadline: Duration::from_secs(2), ..call(&json!([{"op": "loop"}])) };
        loops.spawn(async move { probe.call(call).await });
    }
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < Duration::from_secs(1) {
        let neighbour = tokio::spawn({
            let probe = Arc::clone(&probe);
            async move { probe.call(call(&json!([{"op": "stdout", "text": "x"}]))).await }
        });
        let neighbour = neighbour.await.expect("no panic");
        assert!(neighbour.result.is_ok(), "{neighbour:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        calls += 1;
    }
    assert!(calls >= 5, "{calls} calls in a second beside four loops");
    while let Some(report) = loops.join_next().await {
        let report = report.expect("no panic");
        assert_eq!(report.result.expect_err("stopped").kind, FailureKind::Deadline);
        assert!(report.usage.duration_us < 6_000_000, "{:?}", report.usage);
        assert!(report.usage.cpu_us > 100_000, "{:?}", report.usage);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_than_slots_wait_for_one() {
    let settings = Settings { slots: 8, ..Settings::default() };
    let sandbox = Sandbox::new(settings).expect("a sandbox");
    let probe = sandbox.load(guests::probe()).await.expect("the probe is a plugin");
    let mut calls = JoinSet::new();
    for n in 0..200 {
        let probe = Arc::clone(&probe);
        let step = match n % 4 {
            0 => json!({"op": "panic", "message": "boom"}),
            1 => json!({"op": "sleep", "ms": 20}),
            2 => json!({"op": "allocate", "mib": 20}),
            _ => json!({"op": "log", "text": "x"}),
        };
        calls.spawn(async move { (n, probe.call(call(&json!([step]))).await) });
    }
    while let Some(done) = calls.join_next().await {
        let (n, report) = done.expect("no panic");
        match report.result {
            Err(failure) => assert_eq!((n % 4, failure.kind), (0, FailureKind::Trap)),
            Ok(_) => assert_ne!(n % 4, 0),
        }
    }
    assert_eq!(sandbox.free_slots(), 8);
}

#[tokio::test]
async fn a_call_that_is_dropped_frees_its_slot_and_those_that_wait_go_on() {
    let settings = Settings { slots: 1, ..Settings::default() };
    let sandbox = Sandbox::new(settings).expect("a sandbox");
    let probe = sandbox.load(guests::probe()).await.expect("the probe is a plugin");
    for step in [json!({"op": "loop"}), json!({"op": "sleep", "ms": 60_000})] {
        let stuck = probe.call(call(&json!([step])));
        let stuck = tokio::time::timeout(Duration::from_millis(50), stuck).await;
        assert!(stuck.is_err(), "{stuck:?}");
        assert_eq!(sandbox.free_slots(), 1);
    }
    let report = probe.call(call(&json!([]))).await;
    assert!(report.result.is_ok(), "{report:?}");
}

#[tokio::test]
async fn two_thousand_calls_leave_nothing_behind() {
    let probe = probe_with(Settings { slots: 2, ..Settings::default() }).await;
    let payloads = [
        json!([{"op": "increment", "key": "n", "by": 1}, email(json!({}))]),
        json!([{"op": "panic", "message": "boom"}]),
    ];
    let calls = payloads.each_ref().map(call);
    let mut peaks = BTreeSet::new();
    let mut spent = Duration::ZERO;
    for n in 0..2_000 {
        // One in ten traps.
        let trap = n % 10 == 9;
        let began = Instant::now();
        let report = probe.call(calls[usize::from(trap)].clone()).await;
        if !trap {
            spent += began.elapsed();
            peaks.insert(report.usage.memory_bytes);
        }
        assert_eq!(report.result.is_err(), trap, "call {n}: {report:?}");
    }
    assert_eq!(peaks.len(), 1, "each call starts anew: {peaks:?}");
    println!("{:?} for a call with an increment and an emitted event", spent / 1_800);
}
