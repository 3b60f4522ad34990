//! What others do to the same database.

use std::time::{Duration, Instant};

use outrigger::store::{
    DeadLetterFilter, DeliveryState, EventFilter, EventStatus, Options, Recorded, StoreError,
};

use super::bench::{Bench, Database, MAIL, SHOP, all, blocked, failed, keyed};

/// What an application writes: nothing but the required columns.
const PLAIN: &str =
    "INSERT INTO {p}outbox (project_id, resource, aggregate_id, event_name, payload_json)
    VALUES ('shop', 'order', 'o-1', 'order.placed', '{\"total\" : 1}')";

pub(super) async fn a_plain_insert_has_every_default(bench: &Bench) {
    bench.sql(PLAIN).await.expect("inserts");
    bench.sql(PLAIN).await.expect("inserts another one");
    let page = bench.store.events(SHOP, &EventFilter::default(), &all()).await.expect("lists");
    let [second, first] = page.items.try_into().expect("two");
    let now = bench.store.survey(&[]).await.expect("surveys").now;
    assert!((now - 60_000..=now).contains(&first.event.created_at), "{first:?}");
    assert_ne!(first.event.message_id, second.event.message_id);
    let id = first.event.message_id;
    // In time on PostgreSQL, which has lanes; SQLite's default can't be changed.
    let version = if bench.lanes().len() > 1 { 7 } else { 4 };
    assert_eq!((id.get_version_num(), id.get_variant()), (version, uuid::Variant::RFC4122));
    assert_eq!((first.status, first.claims, first.result), (EventStatus::Pending, 0, None));
    let event = &first.event;
    assert_eq!((event.schema_version, &*event.payload), (1, "{\"total\" : 1}"));
    assert_eq!((&event.meta, &event.dedup_key, event.available_at), (&None, &None, None));
    assert_eq!(
        bench.store.event(SHOP, id).await.expect("looks").expect("is there").event,
        first.event
    );
    bench.hold().await;
    assert_eq!(bench.claim().await.len(), 2);
}

pub(super) async fn unusable_rows_are_refused(bench: &Bench) {
    let row = |columns: &str, values: &str| {
        format!("INSERT INTO {{p}}outbox (event_name, {columns}) VALUES ('order.placed', {values})")
    };
    let with = |column: &str, value: &str| {
        row(
            &format!("project_id, resource, aggregate_id, payload_json, {column}"),
            &format!("'shop', 'order', 'a', '{{}}', {value}"),
        )
    };
    let mut refused = vec![
        row("project_id, resource, aggregate_id, payload_json", "'', 'order', 'a', '{}'"),
        row("project_id, resource, aggregate_id, payload_json", "'shop', '', 'a', '{}'"),
        row("project_id, resource, aggregate_id, payload_json", "'shop', 'order', NULL, '{}'"),
        row("project_id, resource, aggregate_id, payload_json", "'shop', 'order', 'a', '{'"),
        row("project_id, resource, aggregate_id, payload_json", "'shop', 'order', 'a', ''"),
        with("meta_json", "'[]'"),
        with("meta_json", "'nothing'"),
        with("schema_version", "-1"),
        with("message_id", "'no id'"),
        with("available_at", "'tomorrow'"),
        with("created_at", "'now'"),
    ];
    if bench.database != Database::Postgres {
        // SQLite keeps whatever type of value it is given.
        refused.push(row(
            "project_id, resource, aggregate_id, payload_json",
            "'shop', 'order', 'a', x'7b7d'",
        ));
        refused.push(row(
            "project_id, resource, aggregate_id, payload_json",
            "'shop', 'order', x'ff', '{}'",
        ));
        refused.push(with("available_at", "1.5"));
        refused.push(with("message_id", "x'00112233445566778899aabbccddeeff'"));
    }
    for sql in refused {
        assert!(bench.sql(&sql).await.is_err(), "{sql}");
    }
    for sql in [with("meta_json", "'{}'"), with("available_at", "5"), with("schema_version", "0")] {
        bench.sql(&sql).await.expect(&sql);
    }
}

pub(super) async fn a_dedup_key_is_used_once(bench: &Bench) {
    let insert = async |project: &str, key: &str| {
        let sql = format!(
            "INSERT INTO {{p}}outbox (project_id, resource, aggregate_id, event_name, payload_json, dedup_key)
             VALUES ('{project}', 'order', 'a', 'order.placed', '{{}}', {key})"
        );
        bench.sql(&sql).await
    };
    insert(SHOP, "'k'").await.expect("inserts");
    let error = insert(SHOP, "'k'").await.expect_err("is used");
    let error = error.into_database_error().expect("the database's");
    assert!(error.is_unique_violation(), "{error}");
    insert("other", "'k'").await.expect("another project's");
    for key in ["''", "''", "NULL", "NULL"] {
        insert(SHOP, key).await.expect("no key");
    }
    let recorded = bench.store.record(&[keyed("b", "k")]).await.expect("records");
    assert!(matches!(recorded[..], [Recorded::Duplicate { .. }]), "{recorded:?}");
}

pub(super) async fn an_insert_ends_a_wait(bench: &Bench) {
    for round in 0..3 {
        bench.store.survey(&bench.lanes()).await.expect("surveys");
        if round == 1 {
            // Committed between the look and the wait.
            bench.sql(PLAIN).await.expect("inserts");
        }
        let began = Instant::now();
        let store = bench.store.clone();
        let waiting =
            tokio::spawn(async move { store.wait_for_events(Duration::from_secs(20)).await });
        if round != 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            bench.sql(PLAIN).await.expect("inserts");
        }
        if round == 1 && bench.database == Database::Postgres {
            // Found by whoever claims once more before a long wait.
            bench.store.wake();
        }
        waiting.await.expect("waits");
        assert!(began.elapsed() < Duration::from_secs(5), "round {round}: {:?}", began.elapsed());
    }
}

pub(super) async fn a_delivery_whose_event_is_gone_dies(bench: &Bench) {
    bench.hold().await;
    let first = bench.spilled("a", failed()).await;
    let second = bench.spilled("a", blocked()).await;
    let sql = format!("DELETE FROM {{p}}outbox WHERE message_id = '{}'", first.message_id);
    assert_eq!(bench.sql(&sql).await.expect("deletes"), 1);
    assert!(bench.deliver().await.is_empty());
    let letters = bench.store.dead_letters(SHOP, &DeadLetterFilter::default(), &all()).await;
    let [letter] = letters.expect("lists").items.try_into().expect("one");
    assert_eq!((letter.id, letter.last_error.as_deref()), (first.id, Some("the event is gone")));
    assert!(letter.ended_at.is_some() && !letter.claimed);
    assert_eq!(bench.delivery(second.message_id).await.state, DeliveryState::Ready);
    assert_eq!(bench.deliver().await.len(), 1);
    assert_eq!(bench.store.count_deliveries(SHOP, MAIL).await.expect("counts"), 2);
}

pub(super) async fn events_of_no_project_are_counted(bench: &Bench) {
    bench.sql(PLAIN).await.expect("inserts");
    let status = bench.store.status().await.expect("counts");
    assert!(!status.projects[SHOP].exists && status.projects[SHOP].pending == 1);
    bench.store.put_project(SHOP).await.expect("creates");
    assert!(bench.store.status().await.expect("counts").projects[SHOP].exists);
}

/// The same database with tables of its own, which are dropped at the end.
fn elsewhere(bench: &Bench) -> Options {
    let prefix = format!("{}x_", bench.options().prefix).parse().expect("a safe prefix");
    Options { prefix, ..bench.options().clone() }
}

pub(super) async fn hosts_migrate_at_the_same_time(bench: &Bench) {
    let options = elsewhere(bench);
    let stores = futures::future::join_all((0..4).map(|_| bench.with(&options))).await;
    let migrations = stores.iter().map(|store| store.migrate());
    for migrated in futures::future::join_all(migrations).await {
        migrated.expect("migrates");
    }
    assert!(stores[0].put_project(SHOP).await.expect("creates"));
    assert!(!stores[3].put_project(SHOP).await.expect("sees it"));
}

pub(super) async fn a_newer_schema_is_refused(bench: &Bench) {
    let insert = match bench.database {
        Database::Postgres => "INSERT INTO {p}migration (version, name) VALUES (900, 'later')",
        _ => "INSERT INTO {p}migration (version, name, applied_at) VALUES (900, 'later', 0)",
    };
    bench.sql(insert).await.expect("inserts");
    let error = bench.store.migrate().await.expect_err("is too new");
    assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
    assert!(error.to_string().contains("900") && error.to_string().contains("upgrade"), "{error}");
}

pub(super) async fn a_missing_schema_is_named(bench: &Bench) {
    let store = bench.with(&elsewhere(bench)).await;
    let error = store.definitions().await.expect_err("there are no tables");
    assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
    assert!(error.to_string().contains("outrigger migrate"), "{error}");
}

pub(super) async fn another_prefix_is_another_store(bench: &Bench) {
    let store = bench.with(&elsewhere(bench)).await;
    store.migrate().await.expect("migrates");
    store.record(&[keyed("a", "k")]).await.expect("records");
    let here = bench.store.events(SHOP, &EventFilter::default(), &all()).await.expect("lists");
    assert!(here.items.is_empty());
    let recorded = bench.again().await.record(&[keyed("a", "k")]).await.expect("records");
    assert!(matches!(recorded[..], [Recorded::New { .. }]), "{recorded:?}");
}
