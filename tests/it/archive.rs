//! Old events are in a file before they are deleted, whatever goes wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outrigger::{
    embed::{Builder, Failure, On, Router},
    model::{
        event::NewEvent,
        trigger::{Record, RetryPolicy},
        units::Span,
    },
    router::Settings,
    store::{AttemptFilter, EventFilter, PageRequest, Recorded, Store},
};
use serde_json::{Value, json, value::RawValue};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{database::Database, hosts::eventually};

macro_rules! on_both {
    ($($behaviour:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                super::$behaviour(&crate::database::Database::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $behaviour() {
                super::$behaviour(&crate::database::Database::postgres().await).await;
            })+
        }
    };
}

on_both! {
    what_is_old_is_archived_whole_and_then_deleted
    a_death_between_file_and_deletion_loses_nothing
    without_a_file_nothing_is_deleted
    a_folder_that_cannot_be_written_is_refused_at_the_start
}

const SOON: Duration = Duration::from_mins(1);

/// A folder of a test's own, deleted with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("outrigger-archive-{}", Uuid::new_v4().simple());
        Self(std::env::temp_dir().join(name))
    }

    /// Names of files with this ending.
    fn files(&self, ending: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
        paths.sort();
        paths
    }

    /// Every line of every file; payloads as the text that they are.
    fn lines(&self) -> Vec<Value> {
        let mut lines = Vec::new();
        for path in self.files(".ndjson.gz") {
            let mut text = String::new();
            let file = fs::File::open(&path).unwrap();
            flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
            assert!(text.ends_with('\n'));
            lines.extend(text.lines().map(line));
        }
        lines
    }

    fn ids(&self) -> BTreeSet<Uuid> {
        self.lines()
            .iter()
            .map(|line| line["messageId"].as_str().unwrap().parse().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be a file, or not there at all.
        let _ = fs::remove_file(&self.0).or_else(|_| fs::remove_dir_all(&self.0));
    }
}

fn line(text: &str) -> Value {
    let fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).unwrap();
    let fields = fields.into_iter().map(|(name, raw)| {
        let payload = name == "payload";
        let value =
            if payload { json!(raw.get()) } else { serde_json::from_str(raw.get()).unwrap() };
        (name, value)
    });
    Value::Object(fields.collect())
}

/// A router that keeps events for a second, and then archives them. One that
/// is called `fickle` takes two attempts, `hopeless` is a dead letter.
fn builder(database: &Database, folder: &Path) -> Builder {
    let settings = Settings {
        lease: Duration::from_secs(2),
        retention: Duration::from_secs(1),
        archive: Some(folder.to_owned()),
        ..Settings::default()
    };
    let retry = RetryPolicy { initial: Span::from_millis(1), ..RetryPolicy::default() };
    let on = On::event("*").retry(retry).record(Record::All);
    Builder::new(&database.url).project("shop").router(settings).trigger(
        "ship",
        on,
        |event, ctx| async move {
            match &*event.event_name {
                "hopeless" => Err(Failure::reject("never")),
                "fickle" if ctx.attempt() == 1 => Err(Failure::retry("not at once")),
                _ => Ok(()),
            }
        },
    )
}

async fn record(router: &Router, name: &str, count: usize) -> BTreeSet<Uuid> {
    let mut ids = BTreeSet::new();
    for n in 0..count {
        let event = NewEvent {
            // Spread over lines, and more than a number can hold.
            payload: format!("{{\n  \"n\": {n},\n  \"big\": 1e400,\n  \"n\": \"\\u0000\"\n}}"),
            meta: Some(r#"{"k": "v"}"#.into()),
            ..NewEvent::new("shop", "order", format!("o-{n}"), name, "")
        };
        match router.record(&event).await.unwrap() {
            Recorded::New { message_id, .. } => ids.insert(message_id),
            Recorded::Duplicate { .. } => panic!("it has no dedup key"),
        };
    }
    ids
}

/// Events that are in the database.
async fn left(store: &dyn Store) -> BTreeSet<Uuid> {
    let page = PageRequest { limit: 1000, ..PageRequest::default() };
    let rows = store.events("shop", &EventFilter::default(), &page).await.unwrap().items;
    rows.into_iter().map(|row| row.event.message_id).collect()
}

async fn until_left(store: &dyn Store, count: usize) {
    eventually("old events are deleted", SOON, async || {
        let left = left(store).await.len();
        if left == count { Ok(()) } else { Err(left) }
    })
    .await;
}

async fn sql(router: &Router, statement: &str) {
    let statement = AssertSqlSafe(statement.to_owned());
    match (router.sqlite(), router.postgres()) {
        (Some(pool), _) => drop(sqlx::raw_sql(statement).execute(pool).await.unwrap()),
        (_, Some(pool)) => drop(sqlx::raw_sql(statement).execute(pool).await.unwrap()),
        _ => panic!("it is one or the other"),
    }
}

async fn what_is_old_is_archived_whole_and_then_deleted(database: &Database) {
    let folder = Folder::new();
    let router = builder(database, &folder.0).start().await.unwrap();
    let plain = record(&router, "plain", 300).await;
    let fickle = record(&router, "fickle", 10).await;
    let hopeless = record(&router, "hopeless", 3).await;
    let store = Arc::clone(router.store());
    until_left(&*store, 3).await;
    assert_eq!(left(&*store).await, hopeless, "dead letters stay");
    let lines = folder.lines();
    let by_id: BTreeMap<Uuid, &Value> = lines
        .iter()
        .map(|line| (line["messageId"].as_str().unwrap().parse().unwrap(), line))
        .collect();
    assert_eq!((by_id.len(), lines.len()), (310, 310), "each is there once");
    for id in &plain {
        let line = by_id[id];
        assert_eq!(line["result"]["ship"]["outcome"], "done", "{line}");
        assert_eq!((&line["deliveries"], &line["project"]), (&json!([]), &json!("shop")));
        assert_eq!(line["meta"], json!({"k": "v"}));
        let payload = line["payload"].as_str().unwrap();
        let letters = r#""big": 1e400,   "n": "\u0000" }"#;
        assert!(payload.ends_with(letters), "{payload}");
        assert!(line["dispatchedAt"].as_i64() >= line["createdAt"].as_i64(), "{line}");
    }
    for id in &fickle {
        let line = by_id[id];
        assert_eq!(line["result"]["ship"]["kind"], "retry", "{line}");
        assert_eq!(line["deliveries"][0]["state"], "done", "{line}");
        let numbers: Vec<_> =
            line["attempts"].as_array().unwrap().iter().map(|a| a["number"].clone()).collect();
        assert_eq!(numbers, [1, 2], "{line}");
        assert_eq!(line["attempts"][0]["error"], "not at once", "{line}");
    }
    let page = PageRequest { limit: 1000, ..PageRequest::default() };
    let attempts = store.attempts("shop", &AttemptFilter::default(), &page).await.unwrap();
    assert_eq!(attempts.items.len(), 3, "those of dead letters");
    assert!(folder.files(".partial").is_empty());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.0), 0o700);
        assert!(folder.files(".ndjson.gz").iter().all(|path| mode(path) == 0o600));
    }
    assert!(router.metrics().contains("outrigger_archived_events_total 310\n"));
    router.stop(SOON).await;
}

/// A database that refuses to delete holds the router up exactly there.
async fn a_death_between_file_and_deletion_loses_nothing(database: &Database) {
    let folder = Folder::new();
    let router = builder(database, &folder.0).start().await.unwrap();
    let (refuse, allow) = if router.sqlite().is_some() {
        (
            "CREATE TRIGGER keep BEFORE DELETE ON outrigger_outbox
             BEGIN SELECT RAISE(ABORT, 'not now'); END",
            "DROP TRIGGER keep",
        )
    } else {
        (
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
             CREATE TRIGGER keep BEFORE DELETE ON outrigger_outbox
                 FOR EACH ROW EXECUTE FUNCTION keep()",
            "DROP TRIGGER keep ON outrigger_outbox",
        )
    };
    sql(&router, refuse).await;
    let events = record(&router, "plain", 250).await;
    eventually("they are in a file", SOON, async || {
        let there = folder.ids();
        if there == events { Ok(()) } else { Err(there.len()) }
    })
    .await;
    let files = folder.files(".ndjson.gz");
    // It tries again, and writes no further file for that.
    eventually("it tried to delete them", SOON, async || {
        let health = router.health(SOON);
        let said = health.last_error.as_ref().is_some_and(|(error, _)| error.contains("not now"));
        if said { Ok(()) } else { Err(health) }
    })
    .await;
    assert_eq!(left(&**router.store()).await, events, "none is deleted");
    assert_eq!(folder.files(".ndjson.gz"), files);
    // Dies here, having begun another file.
    fs::write(folder.0.join("20200101T000000.000Z-x-0.ndjson.gz.partial"), "broken").unwrap();
    drop(router);

    let mut again = None;
    eventually("the next one starts", SOON, async || {
        match builder(database, &folder.0).start().await {
            Ok(router) => {
                again = Some(router);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    let router = again.unwrap();
    sql(&router, allow).await;
    until_left(&**router.store(), 0).await;
    assert_eq!(folder.ids(), events, "all are there");
    assert_eq!(folder.lines().len(), 500, "each twice: readers tell by the id");
    assert!(folder.files(".partial").is_empty(), "what was begun is cleared away");
    router.stop(SOON).await;
}

async fn without_a_file_nothing_is_deleted(database: &Database) {
    let folder = Folder::new();
    let router = builder(database, &folder.0).start().await.unwrap();
    // Something else is where the folder was.
    fs::remove_dir_all(&folder.0).unwrap();
    fs::write(&folder.0, "").unwrap();
    let events = record(&router, "plain", 50).await;
    let failed = |metrics: &str| {
        let line = metrics.lines().find(|l| l.starts_with("outrigger_archive_failures_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    eventually("a file couldn't be written", SOON, async || {
        let failed = failed(&router.metrics());
        if failed > Some(0) { Ok(()) } else { Err(failed) }
    })
    .await;
    assert_eq!(left(&**router.store()).await, events, "all are kept");
    fs::remove_file(&folder.0).unwrap();
    until_left(&**router.store(), 0).await;
    assert_eq!(folder.ids(), events);
    router.stop(SOON).await;
}

async fn a_folder_that_cannot_be_written_is_refused_at_the_start(database: &Database) {
    let file = Folder::new();
    fs::write(&file.0, "").unwrap();
    let Err(error) = builder(database, &file.0.join("within")).start().await else {
        panic!("it starts");
    };
    let error = error.to_string();
    assert!(error.starts_with("archive ") && error.contains("within"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_share_a_folder_archive_each_event_once() {
    let (database, folder) = (Database::postgres().await, Folder::new());
    let first = builder(&database, &folder.0).start().await.unwrap();
    let second = builder(&database, &folder.0).start().await.unwrap();
    let store = Arc::clone(first.store());
    eventually("lanes are shared out", SOON, async || {
        let holders: Vec<_> = store.lane_holders().await.unwrap();
        let first = holders.iter().filter(|(_, holder, _)| *holder == holders[0].1).count();
        let all = holders.iter().all(|(_, holder, _)| holder.is_some());
        if all && first == 8 { Ok(()) } else { Err(holders) }
    })
    .await;
    let events = record(&first, "plain", 400).await;
    until_left(&*store, 0).await;
    assert_eq!(folder.ids(), events);
    assert_eq!(folder.lines().len(), 400, "none was archived by both");
    let hosts: BTreeSet<_> = folder
        .files(".ndjson.gz")
        .iter()
        .map(|path| path.to_str().unwrap().rsplit('-').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(hosts.len(), 2, "both had a part in it: {hosts:?}");
    first.stop(SOON).await;
    second.stop(SOON).await;
}
