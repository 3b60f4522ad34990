//! An event that takes its host down with it.
//!
//! The host is a process of its own: this very program, which runs nothing but
//! [`host`] then, and aborts at the event. There is no such thing in the
//! library.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use outrigger::{
    embed::{Builder, On},
    model::{event::NewEvent, trigger::Record},
    router::Settings,
    store::{
        self, DeadLetterFilter, EventFilter, Options, PageRequest, ProjectCounts, Recorded, Store,
    },
};
use uuid::Uuid;

use crate::{database::Database, scenarios::alone};

/// The database of the host to be.
const URL: &str = "OUTRIGGER_TEST_POISON_URL";

const EVENTS: usize = 5000;

/// What it takes at the most, on a slow machine that does other things too.
const LONG: Duration = Duration::from_mins(4);

/// Where such a process begins: it is a host until it dies. As one test among
/// others it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn host() {
    let Ok(url) = env::var(URL) else { return };
    let settings = Settings { lease: Duration::from_secs(1), ..Settings::default() };
    let settings = Settings { poll: Duration::from_millis(200), ..settings };
    let _router = Builder::new(url)
        .project("shop")
        .router(settings)
        .trigger("ship", On::event("*").record(Record::Failures), |event, ctx| async move {
            let payload: serde_json::Value = event.decode()?;
            if payload["poison"] == true {
                std::process::abort();
            }
            ctx.state().increment("n", 1).await?;
            Ok(())
        })
        .start()
        .await
        .expect("the host starts");
    std::future::pending::<()>().await;
}

/// A host process; killed when it is dropped.
struct Host(Child);

impl Host {
    fn start(url: &str) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "poison::host", "--nocapture"])
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn has_died(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Whoever is gone already needs no killing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn counts(store: &dyn Store) -> ProjectCounts {
    store.status().await.unwrap().projects.remove("shop").unwrap_or_default()
}

/// Whether every event is dispatched and no delivery is open.
async fn is_through(store: &dyn Store) -> bool {
    // The second look is for what the last dispatch has spilled.
    for _ in 0..2 {
        let counts = counts(store).await;
        let open = counts.triggers.values().any(|t| t.retrying + t.blocked > 0);
        if counts.dispatched != i64::try_from(EVENTS).unwrap() || open {
            return false;
        }
    }
    true
}

/// Records all events, the poison among them, and answers its id.
async fn record(store: &dyn Store) -> Uuid {
    let event = |n: usize| {
        let payload = if n == EVENTS / 2 { r#"{"poison": true}"# } else { "{}" };
        NewEvent::new("shop", "order", format!("o-{}", n % 500), "order.placed", payload)
    };
    let events: Vec<_> = (0..EVENTS).map(event).collect();
    let mut ids = Vec::new();
    for part in events.chunks(1000) {
        for recorded in store.record(part).await.unwrap() {
            match recorded {
                Recorded::New { message_id, .. } => ids.push(message_id),
                Recorded::Duplicate { .. } => panic!("they have no dedup keys"),
            }
        }
    }
    ids[EVENTS / 2]
}

async fn one_event_that_aborts_its_host_dies_alone_after_three_deaths(database: &Database) {
    let _alone = alone().await;
    let store = store::connect(&database.url, &Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.put_project("shop").await.unwrap();
    let poison = record(&*store).await;

    let end = Instant::now() + LONG;
    let (mut deaths, mut host) = (0, Host::start(&database.url));
    while !is_through(&*store).await {
        if host.has_died() {
            deaths += 1;
            assert!(deaths <= 3, "it kills one host after another: {:?}", counts(&*store).await);
            host = Host::start(&database.url);
        }
        assert!(Instant::now() < end, "after {deaths} deaths: {:?}", counts(&*store).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(deaths, 3);
    assert!(!host.has_died(), "the last one lives");

    let page = PageRequest { limit: 1000, ..PageRequest::default() };
    let dead = store.dead_letters("shop", &DeadLetterFilter::default(), &page).await.unwrap();
    let [letter] = dead.items.try_into().expect("one dead letter");
    assert_eq!((letter.message_id, &*letter.trigger), (poison, "ship"), "{letter:?}");
    let row = store.event("shop", poison).await.unwrap().unwrap();
    // Once for each death, and perhaps once to bury it.
    assert!((3..=4).contains(&row.claims), "{row:?}");
    // All others were handled, whatever they were claimed with.
    let n = store.state_value("shop", "ship", "n").await.unwrap().unwrap();
    assert_eq!(String::from_utf8(n).unwrap(), (EVENTS - 1).to_string());
    let mut cursor = None;
    loop {
        let page = PageRequest { cursor, ..page.clone() };
        let events = store.events("shop", &EventFilter::default(), &page).await.unwrap();
        for row in events.items.iter().filter(|row| row.event.message_id != poison) {
            assert!(row.result.as_ref().is_some_and(|r| r.contains("\"ship\"")), "{row:?}");
        }
        cursor = events.next;
        if cursor.is_none() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_that_aborts_its_host_dies_alone_after_three_deaths_on_postgres() {
    let database = Database::postgres().await;
    one_event_that_aborts_its_host_dies_alone_after_three_deaths(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_that_aborts_its_host_dies_alone_after_three_deaths_on_sqlite() {
    let database = Database::sqlite();
    one_event_that_aborts_its_host_dies_alone_after_three_deaths(&database).await;
}
