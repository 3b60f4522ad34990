//! What SQLite alone promises: one host for a file, and room for applications.

use std::time::{Duration, Instant};

use outrigger::store::{HostId, Options, StoreError, connect};
use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use uuid::Uuid;

use super::bench::{Bench, Database, LONG, done, order, run};

#[tokio::test]
async fn one_host_holds_a_file() {
    run(Database::SqliteFile, async |bench: &Bench| {
        bench.hold().await;
        let other = bench.again().await;
        let host = HostId(Uuid::new_v4());
        let error = other.take_lanes(host, 1, LONG).await.expect_err("is held");
        assert!(matches!(error, StoreError::Setting(_)), "{error:?}");
        assert!(error.to_string().contains("another host"), "{error}");
        assert_eq!(bench.store.lane_holder(0).await.expect("tells"), Some(bench.host));
        // Everything but running a host goes on.
        other.migrate().await.expect("migrates");
        other.record(&[order("a")]).await.expect("records");
        assert_eq!(other.status().await.expect("counts").projects["shop"].pending, 1);
    })
    .await;
}

#[tokio::test]
async fn a_dead_hosts_lane_is_taken_at_once() {
    run(Database::SqliteFile, async |bench: &Bench| {
        let former = bench.again().await;
        let host = HostId(Uuid::new_v4());
        assert_eq!(former.take_lanes(host, 1, LONG).await.expect("takes"), [0]);
        bench.record(&[order("a")]).await;
        let seams = bench.seams(0, 9).await;
        assert_eq!(
            former.claim_events(host, &seams, u64::MAX, LONG).await.expect("claims").rows.len(),
            1
        );
        // Gone without a word, its leases far from over.
        drop(former);
        bench.hold().await;
        assert_eq!(bench.claim_one().await.claims, 2);
    })
    .await;
}

#[tokio::test]
async fn applications_get_their_turn_beside_a_full_drain() {
    run(Database::SqliteFile, async |bench: &Bench| {
        bench.hold().await;
        let file = bench.file();
        let prefix = bench.options().prefix.clone();
        let writing = tokio::spawn(async move { write_for_a_while(file, prefix.as_str()).await });
        let mut drained = 0;
        while !writing.is_finished() {
            let events: Vec<_> = (0..500).map(|n| order(&n.to_string())).collect();
            bench.record(&events).await;
            let claimed = bench.claim().await;
            drained += claimed.len();
            bench.settle(claimed.into_iter().map(done).collect()).await;
        }
        let (written, longest) = writing.await.expect("no insert is refused");
        assert!(written >= 20 && drained >= 500, "{written} written, {drained} drained");
        assert!(longest < Duration::from_secs(4), "{longest:?}");
    })
    .await;
}

/// Inserts like a driver with default settings, for three seconds; answers how
/// often, and how long the longest took.
async fn write_for_a_while(file: std::path::PathBuf, prefix: &str) -> (usize, Duration) {
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(5));
    let mut db = SqliteConnection::connect_with(&options).await.expect("connects");
    let sql = format!(
        "INSERT INTO {prefix}outbox (project_id, resource, aggregate_id, event_name, payload_json)
         VALUES ('shop', 'order', 'mine', 'order.placed', '{{}}')"
    );
    let (began, mut written, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(3) {
        let one = Instant::now();
        sqlx::query(sqlx::AssertSqlSafe(sql.as_str())).execute(&mut db).await.expect("inserts");
        longest = longest.max(one.elapsed());
        written += 1;
    }
    (written, longest)
}

#[tokio::test]
async fn what_is_no_database_is_named() {
    for url in ["sqlite:", "sqlite:/nowhere/at/all/outrigger.db", "sqlite:a?mode=odd"] {
        let Err(error) = connect(url, &Options::default()).await else { panic!("{url}") };
        assert!(matches!(error, StoreError::Setting(_)), "{url}: {error:?}");
    }
}
