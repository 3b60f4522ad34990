//! Events that are recorded through the store.

use std::time::{Duration, Instant};

use outrigger::{model::event::NewEvent, store::Recorded};
use uuid::Uuid;

use super::bench::{Bench, SHOP, keyed, order};

pub(super) async fn new_events_and_duplicates_are_told_apart(bench: &Bench) {
    let first = bench.store.record(&[keyed("a", "k")]).await.expect("records");
    let [Recorded::New { message_id, created_at }] = first[..] else { panic!("{first:?}") };
    let second = bench.store.record(&[keyed("b", "k")]).await.expect("records");
    assert_eq!(second, [Recorded::Duplicate { message_id, created_at }]);
    let elsewhere = NewEvent { project: "other".into(), ..keyed("a", "k") };
    let third = bench.store.record(&[elsewhere, keyed("a", ""), keyed("a", "")]).await;
    let third = third.expect("records");
    assert!(third.iter().all(|one| matches!(one, Recorded::New { .. })), "{third:?}");
    assert!(bench.store.record(&[]).await.expect("records").is_empty());
}

pub(super) async fn a_batch_is_recorded_each_on_its_own(bench: &Bench) {
    let batch = [keyed("a", "z"), keyed("b", "y"), keyed("c", "z"), order("d"), keyed("e", "y")];
    let recorded = bench.store.record(&batch).await.expect("records");
    let new = |at: usize| match recorded[at] {
        Recorded::New { message_id, .. } => message_id,
        Recorded::Duplicate { .. } => panic!("{at} is new"),
    };
    let first = |at: usize| match recorded[at] {
        Recorded::Duplicate { message_id, .. } => message_id,
        Recorded::New { .. } => panic!("{at} is a duplicate"),
    };
    assert_eq!((first(2), first(4)), (new(0), new(1)));
    let found = bench.store.event(SHOP, new(3)).await.expect("looks").expect("is there");
    assert_eq!(found.event.aggregate_id, "d");
}

pub(super) async fn a_batch_keeps_its_order(bench: &Bench) {
    bench.hold().await;
    let called = |event, name: &str| NewEvent { event_name: name.into(), ..event };
    let batch = [
        called(keyed("a", "z"), "1"),
        called(order("a"), "2"),
        called(keyed("a", "b"), "3"),
        called(order("a"), "4"),
    ];
    bench.record(&batch).await;
    let claimed: Vec<_> = bench.claim().await.into_iter().map(|e| e.event.event_name).collect();
    assert_eq!(claimed, ["1", "2", "3", "4"]);
}

pub(super) async fn a_known_message_id_is_a_duplicate(bench: &Bench) {
    let id = Uuid::new_v4();
    let event = NewEvent { message_id: Some(id), ..order("a") };
    assert_eq!(bench.record(std::slice::from_ref(&event)).await, [id]);
    let recorded = bench.store.record(&[event, order("b")]).await.expect("records");
    assert!(matches!(recorded[0], Recorded::Duplicate { message_id, .. } if message_id == id));
    assert!(matches!(recorded[1], Recorded::New { .. }));
}

pub(super) async fn text_arrives_to_the_letter(bench: &Bench) {
    bench.hold().await;
    let payloads = [
        r#""\u0000""#,
        r#""\ud800 and \udfff\ud83e""#,
        "\"\u{1f980} \u{10ffff} \u{feff}\"",
        "1e400",
        "[1.0, 123456789012345678901234567890, -0]",
        " {\"b\" : 1,\"a\":2, \"a\":3}\n",
        "null",
        r#""\u0001\t\\ \/ \"""#,
    ];
    for payload in payloads {
        let event = NewEvent {
            payload: payload.into(),
            meta: Some(r#"{"x": "\u0000\ud800", "n": 1e400}"#.into()),
            schema_version: 7,
            dedup_key: Some(format!("\u{1f980}'\"\\ {payload}")),
            available_at: None,
            ..NewEvent::new(SHOP, "örder", "\u{1f980}\u{301} 'x\" \\", "a\tb\n", "")
        };
        let claimed = bench.claim_new(event.clone()).await.event;
        assert_eq!(claimed.payload, payload);
        let is = (&claimed.meta, claimed.schema_version, &claimed.dedup_key);
        assert_eq!(is, (&event.meta, 7, &event.dedup_key));
        let is = (&claimed.resource, &claimed.aggregate_id, &claimed.event_name);
        assert_eq!(is, (&event.resource, &event.aggregate_id, &event.event_name));
        let found = bench.store.event(SHOP, claimed.message_id).await.expect("looks");
        assert_eq!(found.expect("is there").event, claimed);
    }
}

pub(super) async fn recording_ends_a_wait(bench: &Bench) {
    bench.store.survey(&bench.lanes()).await.expect("surveys");
    let began = Instant::now();
    let store = bench.store.clone();
    let waiting = tokio::spawn(async move { store.wait_for_events(Duration::from_secs(20)).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.record(&[order("a")]).await;
    waiting.await.expect("waits");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // One that was said before the wait is not lost.
    bench.store.wake();
    bench.store.wait_for_events(Duration::from_secs(20)).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

pub(super) async fn a_wait_ends_by_itself(bench: &Bench) {
    bench.store.survey(&bench.lanes()).await.expect("surveys");
    let began = Instant::now();
    bench.store.wait_for_events(Duration::from_millis(60)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
}
