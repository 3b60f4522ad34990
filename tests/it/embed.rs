//! Routers inside an application: closures as targets, on an SQLite file, in
//! memory and on PostgreSQL from one list.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use outrigger::{
    embed::{Builder, Context, Emit, Failure, On, Router, StartError},
    inbox::{self, Inbox, InboxError},
    model::{
        event::{Event, NewEvent},
        trigger::{Record, RetryPolicy},
        units::Span,
    },
    outbox,
    router::Settings,
    store::{
        AttemptFilter, DeadLetterFilter, DeliveryFilter, DeliveryRow, EventFilter, PageRequest,
        ProjectCounts, Recorded, Store,
    },
};
use sqlx::{PgConnection, PgPool, SqliteConnection, SqlitePool};
use uuid::Uuid;

use crate::{database::Database, hosts::eventually};

mod beside;
mod failing;

use failing::{
    a_call_past_its_deadline_is_dropped, a_context_outlives_its_call_in_vain,
    a_panic_is_an_attempt_and_harms_nobody, failures_end_as_dead_letters,
    what_a_failed_call_asked_for_is_void,
};

/// Each of these on every database.
macro_rules! on_all {
    ($($behaviour:ident)+) => {
        mod sqlite_file {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                let database = crate::database::Database::sqlite();
                super::$behaviour(&database.url).await;
            })+
        }
        mod sqlite_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                super::$behaviour("sqlite::memory:").await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                let database = crate::database::Database::postgres().await;
                super::$behaviour(&database.url).await;
            })+
        }
    };
}

on_all! {
    an_event_is_delivered_exactly_if_its_transaction_commits
    what_a_call_asks_for_is_done_once
    what_a_failed_call_asked_for_is_void
    failures_end_as_dead_letters
    a_panic_is_an_attempt_and_harms_nobody
    a_call_past_its_deadline_is_dropped
    events_of_an_aggregate_stay_in_order
    a_read_and_written_sum_is_exact
    a_stop_leaves_nothing_claimed
    a_message_that_comes_again_is_processed_once
    a_context_outlives_its_call_in_vain
}

const SOON: Duration = Duration::from_mins(1);

fn builder(url: &str) -> Builder {
    let settings = Settings { lease: Duration::from_secs(2), ..Settings::default() };
    Builder::new(url).project("shop").router(settings)
}

/// Events of a name, with quick retries.
fn on(name: &str) -> On {
    let retry = RetryPolicy {
        max_attempts: 3,
        initial: Span::from_millis(20),
        max: Span::from_millis(20),
        ..RetryPolicy::default()
    };
    On::event(name).retry(retry).record(Record::All)
}

fn order(aggregate: &str, name: &str) -> NewEvent {
    NewEvent::new("shop", "order", aggregate, name, "{}")
}

async fn record(router: &Router, event: &NewEvent) -> Uuid {
    match router.record(event).await.unwrap() {
        Recorded::New { message_id, .. } => message_id,
        Recorded::Duplicate { .. } => panic!("it has no dedup key"),
    }
}

/// Records in a transaction of the application's own.
async fn in_transaction(router: &Router, event: &NewEvent, commits: bool) {
    macro_rules! within {
        ($pool:expr) => {{
            let mut tx = $pool.begin().await.unwrap();
            outbox::record(&mut tx, event).await.unwrap();
            if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }};
    }
    match (router.sqlite(), router.postgres()) {
        (Some(pool), None) => within!(pool),
        (None, Some(pool)) => within!(pool),
        _ => panic!("it is one or the other"),
    }
}

async fn counts(store: &dyn Store) -> ProjectCounts {
    store.status().await.unwrap().projects.remove("shop").unwrap_or_default()
}

/// Waits until so many events are dispatched and no delivery is open.
async fn through(store: &dyn Store, events: i64) {
    eventually("everything is dispatched", SOON, async || {
        let counts = counts(store).await;
        if counts.dispatched == events { Ok(()) } else { Err(counts) }
    })
    .await;
    // Counts are no snapshot: what a dispatch spilled is looked for after it.
    eventually("no delivery is open", SOON, async || {
        let counts = counts(store).await;
        let open = counts.triggers.values().any(|t| t.retrying + t.blocked > 0);
        if counts.dispatched == events && !open { Ok(()) } else { Err(counts) }
    })
    .await;
}

async fn value(store: &dyn Store, trigger: &str, key: &str) -> Option<String> {
    let value = store.state_value("shop", trigger, key).await.unwrap()?;
    Some(String::from_utf8(value).unwrap())
}

async fn dead_letters(store: &dyn Store) -> Vec<DeliveryRow> {
    let page = PageRequest { limit: 1000, ..PageRequest::default() };
    store.dead_letters("shop", &DeadLetterFilter::default(), &page).await.unwrap().items
}

/// What closures have seen, in the order of the calls.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn an_event_is_delivered_exactly_if_its_transaction_commits(url: &str) {
    let seen = Seen::default();
    let notes = seen.clone();
    let router = builder(url)
        .trigger("ship", On::event("order.*").resource("order"), move |event, ctx| {
            let notes = notes.clone();
            async move {
                notes.note(format!("{} {} {}", event.aggregate_id, ctx.attempt(), ctx.trigger()));
                assert_eq!(ctx.idempotency_key(), format!("{}/ship", event.message_id));
                Ok(())
            }
        })
        .start()
        .await
        .unwrap();
    in_transaction(&router, &order("never", "order.placed"), false).await;
    in_transaction(&router, &order("other", "mail.sent"), true).await;
    in_transaction(&router, &order("o-1", "order.placed"), true).await;
    through(&**router.store(), 2).await;
    assert_eq!(seen.all(), ["o-1 1 ship"]);
    router.stop(SOON).await;
}

async fn what_a_call_asks_for_is_done_once(url: &str) {
    // Every event's first attempt asks for the same as its second, and fails.
    let ship = async |event: Arc<Event>, ctx: Context| {
        ctx.state().increment("n", 1).await?;
        ctx.emit(Emit::new("mail", &event.aggregate_id, "mail.due", "{}").meta("k", "v"))?;
        if ctx.attempt() == 1 {
            return Err(Failure::retry("once more"));
        }
        Ok::<_, Failure>(())
    };
    let router = builder(url)
        .trigger("ship", on("order.*"), ship)
        .trigger("mail", on("mail.*"), |event, ctx| async move {
            let seen = ctx.state().get(&event.aggregate_id).await?.is_some();
            ctx.state().set(&event.aggregate_id, if seen { "twice" } else { "once" }).await?;
            Ok(())
        })
        .start()
        .await
        .unwrap();
    for n in 0..50 {
        record(&router, &order(&format!("o-{n}"), "order.placed")).await;
    }
    let store = Arc::clone(router.store());
    through(&*store, 100).await;
    assert_eq!(value(&*store, "ship", "n").await.as_deref(), Some("50"));
    for n in 0..50 {
        let mails = value(&*store, "mail", &format!("o-{n}")).await;
        assert_eq!(mails.as_deref(), Some("once"), "o-{n}");
    }
    let page = PageRequest { limit: 1000, ..PageRequest::default() };
    let mails = EventFilter { event_name: Some("mail.due".into()), ..EventFilter::default() };
    let mails = store.events("shop", &mails, &page).await.unwrap().items;
    assert_eq!(mails.len(), 50);
    let whole = store.event("shop", mails[0].event.message_id).await.unwrap().unwrap();
    let meta = whole.event.meta.unwrap();
    assert!(meta.contains(r#""outrigger.hops":1"#) && meta.contains(r#""k":"v""#), "{meta}");
    router.stop(SOON).await;
}

async fn events_of_an_aggregate_stay_in_order(url: &str) {
    let seen = Seen::default();
    let notes = seen.clone();
    let router = builder(url)
        .trigger("ship", on("*"), move |event, ctx| {
            let notes = notes.clone();
            async move {
                let number: u32 = event.decode()?;
                if number.is_multiple_of(7) && ctx.attempt() < 3 {
                    return Err(Failure::retry("stumbles"));
                }
                notes.note(format!("{} {number:03}", event.aggregate_id));
                Ok(())
            }
        })
        .start()
        .await
        .unwrap();
    for n in 0..200 {
        let aggregate = ["a", "b", "c", "d"][n % 4];
        let event = NewEvent { payload: n.to_string(), ..order(aggregate, "order.placed") };
        record(&router, &event).await;
    }
    through(&**router.store(), 200).await;
    for aggregate in ["a", "b", "c", "d"] {
        let of: Vec<_> = seen.all().into_iter().filter(|s| s.starts_with(aggregate)).collect();
        assert_eq!(of.len(), 50);
        assert!(of.is_sorted(), "{of:?}");
    }
    router.stop(SOON).await;
}

async fn a_read_and_written_sum_is_exact(url: &str) {
    let router = builder(url)
        .trigger("sum", on("*").in_any_order(), |_, ctx| async move {
            let before = ctx.state().get("n").await?.unwrap_or_else(|| b"0".to_vec());
            let before: u32 = String::from_utf8(before)?.parse()?;
            // Others get their turn in between.
            tokio::task::yield_now().await;
            ctx.state().set("n", (before + 1).to_string()).await?;
            Ok(())
        })
        .start()
        .await
        .unwrap();
    for n in 0..200 {
        record(&router, &order(&format!("o-{n}"), "x")).await;
    }
    let store = Arc::clone(router.store());
    through(&*store, 200).await;
    assert_eq!(value(&*store, "sum", "n").await.as_deref(), Some("200"));
    let failed = counts(&*store).await.triggers["sum"].failed;
    assert_eq!(failed, 0, "conflicts are no attempts");
    router.stop(SOON).await;
}

async fn a_stop_leaves_nothing_claimed(url: &str) {
    let begun = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&begun);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let router = builder(url)
        .trigger("ship", on("*").concurrency(4), move |event, _| {
            let (count, gate) = (Arc::clone(&count), Arc::clone(&gate));
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                if event.aggregate_id == "o-0" {
                    // Never ends by itself: the grace does.
                    std::future::pending::<()>().await;
                }
                let _ = gate.acquire().await?;
                Ok(())
            }
        })
        .start()
        .await
        .unwrap();
    for n in 0..100 {
        record(&router, &order(&format!("o-{n}"), "x")).await;
    }
    eventually("calls are in flight", SOON, async || {
        let begun = begun.load(Ordering::SeqCst);
        if begun >= 4 { Ok(()) } else { Err(begun) }
    })
    .await;
    let store = Arc::clone(router.store());
    let stopped = tokio::spawn(router.stop(Duration::from_secs(2)));
    // Those that have begun end within the grace, but for one.
    opens.add_permits(1000);
    tokio::time::timeout(SOON, stopped).await.expect("the grace is kept").unwrap();
    let counts = counts(&*store).await;
    assert_eq!(counts.in_flight, 0, "{counts:?}");
    let page = PageRequest { limit: 1000, ..PageRequest::default() };
    let open = store.deliveries("shop", &DeliveryFilter::default(), &page).await.unwrap();
    assert!(open.items.iter().all(|delivery| !delivery.claimed), "{open:?}");
    let attempts = store.attempts("shop", &AttemptFilter::default(), &page).await.unwrap().items;
    assert!(attempts.iter().all(|row| row.attempt.failure.is_none()), "no attempt is burnt");
    assert!(!attempts.is_empty(), "what could end was settled");
    let holders = store.lane_holders().await.unwrap();
    assert!(holders.iter().all(|(_, holder, _)| holder.is_none()), "{holders:?}");
    assert!(store.hosts().await.unwrap().is_empty());
}

async fn a_message_that_comes_again_is_processed_once(url: &str) {
    let given = Arc::new(std::sync::OnceLock::<(Option<SqlitePool>, Option<PgPool>)>::new());
    let pools = Arc::clone(&given);
    // The first delivery does its work, and then fails: it comes again.
    let router = builder(url)
        .trigger("bill", on("*"), move |event, ctx| {
            let pools = Arc::clone(&pools);
            async move {
                let (sqlite, postgres) = pools.get().ok_or_else(|| Failure::retry("not yet"))?;
                let insert = "INSERT INTO invoices VALUES ('one')";
                let new = if let Some(pool) = sqlite {
                    let mut tx = pool.begin().await?;
                    let work = async |db: &mut SqliteConnection| {
                        sqlx::query(insert).execute(db).await?;
                        Ok::<_, InboxError>(())
                    };
                    let new = inbox::process(&mut tx, "bill", event.message_id, work).await?;
                    tx.commit().await?;
                    new
                } else {
                    let pool = postgres.as_ref().expect("one of the two");
                    let mut tx = pool.begin().await?;
                    let work = async |db: &mut PgConnection| {
                        sqlx::query(insert).execute(db).await?;
                        Ok::<_, InboxError>(())
                    };
                    let new = inbox::process(&mut tx, "bill", event.message_id, work).await?;
                    tx.commit().await?;
                    new
                };
                ctx.state().increment(if new.is_some() { "new" } else { "known" }, 1).await?;
                if new.is_some() {
                    return Err(Failure::retry("the acknowledgement is lost"));
                }
                Ok(())
            }
        })
        .start()
        .await
        .unwrap();
    let create = "CREATE TABLE invoices (order_id text)";
    match (router.sqlite(), router.postgres()) {
        (Some(pool), _) => drop(sqlx::query(create).execute(pool).await.unwrap()),
        (_, Some(pool)) => drop(sqlx::query(create).execute(pool).await.unwrap()),
        _ => panic!("it is one or the other"),
    }
    given.set((router.sqlite().cloned(), router.postgres().cloned())).unwrap();
    record(&router, &order("o-1", "x")).await;
    let store = Arc::clone(router.store());
    through(&*store, 1).await;
    assert_eq!(value(&*store, "bill", "known").await.as_deref(), Some("1"));
    let count = "SELECT count(*) FROM invoices";
    let invoices: i64 = match (router.sqlite(), router.postgres()) {
        (Some(pool), _) => sqlx::query_scalar(count).fetch_one(pool).await.unwrap(),
        (_, Some(pool)) => sqlx::query_scalar(count).fetch_one(pool).await.unwrap(),
        _ => panic!("it is one or the other"),
    };
    assert_eq!(invoices, 1);
    // An inbox of another name can be made on the same connections.
    let apart = Inbox::with_table("apart").unwrap();
    if let Some(pool) = router.sqlite() {
        apart.create_table(&mut *pool.acquire().await.unwrap()).await.unwrap();
    }
    router.stop(SOON).await;
}

/// A router that is dropped is as good as dead: the next one does what it
/// had not, and repeats no effect.
async fn a_dead_router_repeats_no_effect(url: &str) {
    let build = || {
        builder(url)
            .trigger("ship", on("order.*"), |event, ctx| async move {
                ctx.state().increment("n", 1).await?;
                ctx.emit(Emit::new("mail", &event.aggregate_id, "mail.due", "{}"))?;
                Ok(())
            })
            .trigger("mail", on("mail.*"), |_, ctx| async move {
                ctx.state().increment("n", 1).await?;
                Ok(())
            })
    };
    let mut router = build().start().await.unwrap();
    for round in 0..5 {
        for n in 0..200 {
            record(&router, &order(&format!("o-{round}-{n}"), "order.placed")).await;
        }
        drop(router);
        let mut again = None;
        eventually("the next one starts", SOON, async || match build().start().await {
            Ok(router) => {
                again = Some(router);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        })
        .await;
        router = again.unwrap();
    }
    let store = Arc::clone(router.store());
    through(&*store, 2000).await;
    assert_eq!(value(&*store, "ship", "n").await.as_deref(), Some("1000"));
    assert_eq!(value(&*store, "mail", "n").await.as_deref(), Some("1000"));
    router.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_router_repeats_no_effect_on_sqlite() {
    let database = Database::sqlite();
    a_dead_router_repeats_no_effect(&database.url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_router_repeats_no_effect_on_postgres() {
    let database = Database::postgres().await;
    a_dead_router_repeats_no_effect(&database.url).await;
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let ok = |_: Arc<Event>, _: Context| async { Ok(()) };
    let fails = async |builder: Builder| match builder.start().await {
        Ok(_) => panic!("it starts"),
        Err(error) => error,
    };
    let memory = || Builder::new("sqlite::memory:");
    for (builder, said) in [
        (Builder::new("mysql://x"), "`postgres:` nor `sqlite:`"),
        (memory().project("a/b"), "project may have only"),
        (memory().trigger("a b", on("*"), ok), "the trigger `a b`"),
        (memory().trigger("t", on("["), ok), "the trigger `t`: the pattern `[`"),
        (memory().trigger("t", on("*"), ok).trigger("t", on("*"), ok), "is declared twice"),
        (memory().trigger("t", on("*"), ok).retire("t"), "declared and retired"),
        (memory().router(Settings { batch: 0, ..Settings::default() }), "batch is not"),
        (
            memory().router(Settings { poll: SOON, ..Settings::default() }),
            "poll is not shorter than the lease",
        ),
    ] {
        let error = fails(builder).await.to_string();
        assert!(error.contains(said), "{error}");
    }
    let database = Database::sqlite();
    let first = Builder::new(&database.url).start().await.unwrap();
    let error = fails(Builder::new(&database.url)).await;
    assert!(matches!(error, StartError::Store(_)), "one host for a file: {error}");
    first.stop(SOON).await;
}
