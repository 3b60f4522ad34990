//! A network between hosts and their database that cuts, delays and swallows.

use std::time::{Duration, Instant};

use outrigger::store::{HostId, Options, Store, connect};
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    QUICK,
    load::{LONG, Load, count, triggers},
    proxy::{Proxy, Weather},
};
use crate::{
    database::Database,
    hosts::{Host, eventually},
    scenarios::alone,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_fails_in_every_way_costs_nothing() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let proxy = Proxy::start(&database.url).await;
    let first = Host::with(proxy.url(), &QUICK).await;
    triggers(&first).await;
    let _second = Host::with(proxy.url(), &QUICK).await;
    let load = Load { events: 6000, aggregates: 200 };
    let writer = tokio::spawn(load.record_all(database.url.clone(), Duration::from_millis(500)));

    let end = Instant::now() + Duration::from_secs(20);
    let mut faults = Vec::new();
    while Instant::now() < end {
        sleep(Duration::from_millis(fastrand::u64(200..900))).await;
        match fastrand::u8(..8) {
            0 | 1 => {
                faults.push("cut");
                proxy.cut();
            }
            2..=5 => {
                faults.push("answers lost");
                proxy.cut_before_answers();
            }
            6 => {
                faults.push("slow");
                proxy.weather(Weather::Slow(Duration::from_millis(fastrand::u64(200..3000))));
                sleep(Duration::from_secs(1)).await;
                proxy.weather(Weather::Fair);
            }
            _ => {
                faults.push("hole");
                proxy.weather(Weather::Hole);
                sleep(Duration::from_millis(fastrand::u64(500..3000))).await;
                proxy.weather(Weather::Fair);
            }
        }
    }
    assert!(proxy.swallowed() > 0, "no answer was lost: {faults:?}");
    writer.await.unwrap();
    load.drained(&database.url).await;
    load.check(&database.url, &format!("{faults:?}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_hears_nothing_lets_go_and_comes_back() {
    let _alone = alone().await;
    let database = Database::postgres().await;
    let proxy = Proxy::start(&database.url).await;
    let far = Host::with(proxy.url(), &QUICK).await;
    triggers(&far).await;
    let near = Host::with(&database.url, &QUICK).await;
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let most = "SELECT max(n) FROM (SELECT count(*) AS n FROM outrigger_lane
                                     WHERE holder IS NOT NULL GROUP BY holder) h";
    let evenly = "SELECT count(DISTINCT holder) FROM outrigger_lane WHERE holder IS NOT NULL";
    eventually("lanes are shared out", LONG, async || {
        let seen = (count(&mut rows, most).await, count(&mut rows, evenly).await);
        if seen == (8, 2) { Ok(()) } else { Err(seen) }
    })
    .await;

    // Under load, so that it is cut off in the middle of transactions.
    let load = Load { events: 6000, aggregates: 200 };
    let writer = tokio::spawn(load.record_all(database.url.clone(), Duration::from_millis(100)));
    eventually("the far host is at work", LONG, async || {
        let done = far.metric("outrigger_dispatched_events_total").await;
        if done > 100 { Ok(()) } else { Err(done) }
    })
    .await;
    proxy.weather(Weather::Hole);
    eventually("the near host has all lanes", LONG, async || {
        let most = count(&mut rows, most).await;
        if most == 16 { Ok(()) } else { Err(most) }
    })
    .await;
    eventually("the far host holds nothing and says why", LONG, async || {
        let (ready, held) = (far.ready().await, far.metric("outrigger_held_rows").await);
        let said = ready.as_ref().is_err_and(|why| why.contains("the database"));
        if said && held == 0 { Ok(()) } else { Err((ready, held)) }
    })
    .await;
    writer.await.unwrap();
    load.drained(&database.url).await;

    proxy.weather(Weather::Fair);
    eventually("the far host has its share again", LONG, async || {
        let seen = (count(&mut rows, most).await, count(&mut rows, evenly).await);
        if seen == (8, 2) { Ok(()) } else { Err(seen) }
    })
    .await;
    eventually("the far host is ready", LONG, async || far.ready().await).await;
    load.check(&database.url, "a hole").await;
    // It works again, too: nothing of it still waits for an answer from then.
    let before = far.metric("outrigger_dispatched_events_total").await;
    let more = "INSERT INTO outrigger_outbox
                    (project_id, resource, aggregate_id, event_name, payload_json)
                SELECT 'shop', 'plain', i::text, 'plain.done', '{}' FROM generate_series(1, 400) i";
    rows.execute(more).await.unwrap();
    load.drained(&database.url).await;
    assert!(far.metric("outrigger_dispatched_events_total").await > before);
    assert_eq!(near.get("/healthz").await["status"], "ok");
}

/// A store behind a proxy, with few connections and little patience.
async fn behind(proxy: &Proxy) -> std::sync::Arc<dyn Store> {
    let options =
        Options { connections: 2, patience: Duration::from_secs(1), ..Options::default() };
    let store = connect(proxy.url(), &options).await.unwrap();
    store.migrate().await.unwrap();
    store
}

/// Uses every kind of connection.
async fn exchange(store: &dyn Store) -> Result<(), outrigger::store::StoreError> {
    store.control_version().await?;
    store.projects().await?;
    store.heartbeat(HostId(Uuid::new_v4()), "far", Duration::from_mins(1)).await?;
    store.state_value("shop", "orders", "key").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_on_their_way_back_lose_no_place() {
    let database = Database::postgres().await;
    let proxy = Proxy::start(&database.url).await;
    let store = behind(&proxy).await;
    exchange(&*store).await.unwrap();
    proxy.weather(Weather::Mute);
    let mut failed = 0;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        failed += u32::from(exchange(&*store).await.is_err());
        sleep(Duration::from_millis(10)).await;
    }
    proxy.weather(Weather::Fair);
    // No connection has answered two pings: the fault was there.
    assert!(failed > 0, "nothing fell silent");
    eventually("all connections are back", LONG, async || {
        exchange(&*store).await.map_err(|error| error.to_string())
    })
    .await;
    for _ in 0..20 {
        exchange(&*store).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_was_given_up_as_it_began_takes_nothing_with_it() {
    let database = Database::postgres().await;
    let proxy = Proxy::start(&database.url).await;
    let store = behind(&proxy).await;
    let (host, lease) = (HostId(Uuid::new_v4()), Duration::from_mins(1));
    store.heartbeat(host, "far", lease).await.unwrap();
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    for turn in 0..20 {
        // Given up anywhere on its way, mostly before its `BEGIN` is answered.
        proxy.weather(Weather::Slow(Duration::from_millis(20)));
        let given_up = Duration::from_millis(10 + 5 * (turn % 10));
        let taken = timeout(given_up, store.take_lanes(host, 1, lease)).await;
        proxy.weather(Weather::Fair);
        // Whatever a connection was at, what it writes next is written.
        for _ in 0..3 {
            let new = HostId(Uuid::new_v4());
            eventually("a heartbeat", LONG, async || {
                store.heartbeat(new, "far", lease).await.map_err(|error| error.to_string())?;
                Ok::<_, String>(())
            })
            .await;
            let seen: bool =
                sqlx::query_scalar("SELECT EXISTS (SELECT FROM outrigger_host WHERE id = $1)")
                    .bind(new.0)
                    .fetch_one(&mut rows)
                    .await
                    .unwrap();
            assert!(seen, "turn {turn}, {taken:?}: a heartbeat that isn't there");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_falls_silent_is_replaced() {
    let database = Database::postgres().await;
    let proxy = Proxy::start(&database.url).await;
    let store = behind(&proxy).await;
    let mut rows = PgConnection::connect(&database.url).await.unwrap();
    let record = "INSERT INTO outrigger_outbox
                      (project_id, resource, aggregate_id, event_name, payload_json)
                  VALUES ('shop', 'plain', '1', 'plain.done', '{}')";
    let mut told = async || {
        let waits = async {
            store.wait_for_events(Duration::from_secs(4)).await;
            Ok(())
        };
        let records = async {
            sleep(Duration::from_millis(300)).await;
            rows.execute(record).await.unwrap();
            sleep(Duration::from_secs(2)).await;
            Err("nothing was told")
        };
        tokio::select! { told = waits => told, not = records => not }
    };
    eventually("it is told", LONG, &mut told).await;
    proxy.weather(Weather::Hole);
    // The second asks to be told once more, and is never answered.
    for _ in 0..2 {
        store.wait_for_events(Duration::from_secs(5)).await;
    }
    proxy.weather(Weather::Fair);
    eventually("it is told again", LONG, &mut told).await;
}
