//! Applications record events, and consumers work once, in transactions of
//! their own: on SQLite and on PostgreSQL from one list.

use std::str::FromStr as _;

use outrigger::{
    inbox::{Inbox, InboxError},
    model::event::NewEvent,
    outbox::{Connection, RecordError, Recorder},
    store::{self, Options, Prefix},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, SqliteConnection,
    sqlite::SqliteConnectOptions,
};
use uuid::Uuid;

use crate::database::Database;

fn event() -> NewEvent {
    NewEvent::new("shop", "order", "o-1", "order.placed", r#"{"total": 1e400, "s": "\u0000"}"#)
}

fn with_key(key: &str) -> NewEvent {
    NewEvent { dedup_key: Some(key.into()), ..event() }
}

/// A database with the tables of a prefix that isn't the default one.
struct Place {
    database: Database,
    prefix: Prefix,
}

impl Place {
    async fn on(database: Database) -> Self {
        let prefix: Prefix = "rec_".parse().unwrap();
        let options = Options { prefix: prefix.clone(), ..Options::default() };
        store::connect(&database.url, &options).await.unwrap().migrate().await.unwrap();
        Self { database, prefix }
    }

    async fn sqlite() -> (Self, SqliteConnection) {
        let place = Self::on(Database::sqlite()).await;
        let options = SqliteConnectOptions::from_str(&place.database.url).unwrap();
        let connection = options.connect().await.unwrap();
        (place, connection)
    }

    async fn postgres() -> (Self, PgConnection) {
        let place = Self::on(Database::postgres().await).await;
        let connection = place.another().await;
        (place, connection)
    }

    /// Another connection to PostgreSQL.
    async fn another(&self) -> PgConnection {
        PgConnection::connect(&self.database.url).await.unwrap()
    }

    fn sql(&self, template: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(template.replace("{p}", self.prefix.as_str()))
    }

    fn recorder(&self) -> Recorder {
        Recorder::with_prefix(self.prefix.clone())
    }

    fn inbox(&self) -> Inbox {
        Inbox::with_prefix(&self.prefix)
    }
}

/// Both databases, from one list: each body sees a place and a connection.
macro_rules! on_both {
    ($($name:ident => |$place:ident, $connection:ident| $body:block)*) => {
        mod sqlite {
            use super::*;
            type Connected = SqliteConnection;
            $(#[tokio::test]
            async fn $name() {
                let ($place, mut $connection) = Place::sqlite().await;
                $body
            })*
        }

        mod postgres {
            use super::*;
            type Connected = PgConnection;
            $(#[tokio::test]
            async fn $name() {
                let ($place, mut $connection) = Place::postgres().await;
                $body
            })*
        }
    };
}

macro_rules! count {
    ($place:ident, $connection:expr, $table:literal) => {{
        let sql = $place.sql(concat!("SELECT count(*) FROM {p}", $table));
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut $connection).await.unwrap()
    }};
}

on_both! {
    an_event_is_there_exactly_if_the_transaction_commits => |place, connection| {
        let mut tx = connection.begin().await.unwrap();
        place.recorder().record(&mut tx, &event()).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(count!(place, connection, "outbox"), 0);

        let mut tx = connection.begin().await.unwrap();
        let id = place.recorder().record(&mut tx, &event()).await.unwrap();
        tx.commit().await.unwrap();
        let sql = place.sql(
            "SELECT CAST(message_id AS text), CAST(payload_json AS text), schema_version FROM {p}outbox",
        );
        let row = sqlx::query(sql).fetch_one(&mut connection).await.unwrap();
        assert_eq!(row.get::<String, _>(0), id.to_string());
        assert_eq!(row.get::<String, _>(1), event().payload, "to the letter");
    }

    a_trace_context_goes_through => |place, connection| {
        let meta = r#"{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#;
        let event = NewEvent {
            meta: Some(meta.into()),
            schema_version: 7,
            available_at: Some(4_000_000_000_000),
            message_id: Some(Uuid::from_u128(77)),
            ..event()
        };
        let id = place.recorder().record(&mut connection, &event).await.unwrap();
        assert_eq!(id, Uuid::from_u128(77));
        let sql = place.sql("SELECT CAST(meta_json AS text), available_at FROM {p}outbox");
        let row = sqlx::query(sql).fetch_one(&mut connection).await.unwrap();
        assert_eq!((row.get::<String, _>(0).as_str(), row.get::<i64, _>(1)), (meta, 4_000_000_000_000));
        let error = place.recorder().record(&mut connection, &event).await.expect_err("used");
        assert!(matches!(error, RecordError::MessageIdUsed(used) if used == id), "{error}");
    }

    a_used_dedup_key_says_so_and_leaves_the_transaction_intact => |place, connection| {
        let mut tx = connection.begin().await.unwrap();
        place.recorder().record(&mut tx, &with_key("k")).await.unwrap();
        let error = place.recorder().record(&mut tx, &with_key("k")).await.expect_err("used");
        assert!(matches!(&error, RecordError::DedupKeyUsed(key) if key == "k"), "{error}");
        let other = NewEvent { project: "crm".into(), ..with_key("k") };
        place.recorder().record(&mut tx, &other).await.expect("a key is a project's own");
        for _ in 0..2 {
            place.recorder().record(&mut tx, &with_key("")).await.expect("no key at all");
        }
        tx.commit().await.unwrap();
        assert_eq!(count!(place, connection, "outbox"), 4);
    }

    what_is_no_event_is_refused_at_the_door => |place, connection| {
        let mut tx = connection.begin().await.unwrap();
        for wrong in [
            NewEvent { resource: String::new(), ..event() },
            NewEvent { payload: "{".into(), ..event() },
            NewEvent { meta: Some("[]".into()), ..event() },
            with_key("a\0b"),
        ] {
            let error = place.recorder().record(&mut tx, &wrong).await.expect_err("refused");
            assert!(matches!(error, RecordError::Invalid(_)), "{error}");
        }
        let small = place.recorder().with_payload_max("8B".parse().expect("a size"));
        small.record(&mut tx, &event()).await.expect_err("too large");
        place.recorder().record(&mut tx, &event()).await.expect("the transaction is intact");
        tx.commit().await.unwrap();
        assert_eq!(count!(place, connection, "outbox"), 1);
    }

    work_is_done_once_for_each_consumer => |place, connection| {
        let (inbox, id) = (place.inbox(), Uuid::new_v4());
        let mut done = Vec::new();
        for consumer in ["billing", "billing", "search"] {
            let mut tx = connection.begin().await.unwrap();
            let result = inbox
                .process(&mut tx, consumer, id, async |db: &mut Connected| {
                    place.recorder().record(db, &event()).await.unwrap();
                    Ok::<_, InboxError>(consumer)
                })
                .await;
            tx.commit().await.unwrap();
            done.push(result.expect("no error"));
        }
        assert_eq!(done, [Some("billing"), None, Some("search")]);
        assert_eq!(count!(place, connection, "outbox"), 2);
    }

    work_that_fails_leaves_nothing_behind => |place, connection| {
        let inbox = place.inbox();
        let mut tx = connection.begin().await.unwrap();
        place.recorder().record(&mut tx, &with_key("before")).await.unwrap();
        let failed: Result<Option<()>, InboxError> = inbox
            .process(&mut tx, "billing", "m-1", async |db: &mut Connected| {
                place.recorder().record(db, &with_key("within")).await.unwrap();
                // Aborts a transaction on PostgreSQL.
                sqlx::query("SELECT nothing FROM nowhere").execute(db).await?;
                Ok(())
            })
            .await;
        failed.expect_err("no such table");
        place.recorder().record(&mut tx, &with_key("after")).await.expect("the transaction is intact");
        tx.commit().await.unwrap();
        let counts = (count!(place, connection, "outbox"), count!(place, connection, "inbox"));
        assert_eq!(counts, (2, 0));
        let again = inbox
            .process(&mut connection, "billing", "m-1", async |_: &mut Connected| {
                Ok::<_, InboxError>(5)
            })
            .await;
        assert_eq!(again.expect("no error"), Some(5), "it comes again, and is done");
        assert_eq!(count!(place, connection, "inbox"), 1);
    }

    a_rollback_forgets_the_message => |place, connection| {
        for _ in 0..2 {
            let mut tx = connection.begin().await.unwrap();
            let done = place
                .inbox()
                .process(&mut tx, "billing", "m-1", async |_: &mut Connected| {
                    Ok::<_, InboxError>(())
                })
                .await;
            assert_eq!(done.expect("no error"), Some(()));
            tx.rollback().await.unwrap();
        }
        let nameless = place
            .inbox()
            .process(&mut connection, "", "m-1", async |_: &mut Connected| {
                Ok::<_, InboxError>(())
            })
            .await;
        assert!(matches!(nameless, Err(InboxError::Invalid(_))));
    }

    an_inbox_can_stand_alone => |place, connection| {
        let inbox = Inbox::with_table(&format!("{}apart", place.prefix)).expect("a name");
        for _ in 0..2 {
            inbox.create_in(&place.database.url).await.unwrap();
        }
        let done = inbox
            .process(&mut connection, "c", "m", async |_: &mut Connected| {
                Ok::<_, InboxError>(())
            })
            .await;
        assert_eq!(done.expect("no error"), Some(()));
        assert_eq!(count!(place, connection, "apart"), 1);
        assert!(Inbox::with_table("a; drop").is_err());
    }
}

/// Records in a spawned task: what is handed out can be sent.
#[tokio::test]
async fn both_run_in_a_spawned_task() {
    async fn at<C: Connection>(connection: &mut C, place: &Place) -> Result<Uuid, RecordError> {
        place.recorder().record(connection, &event()).await
    }
    let (place, mut connection) = Place::sqlite().await;
    let task = tokio::spawn(async move {
        let mut tx = connection.begin().await.unwrap();
        at(&mut tx, &place).await.unwrap();
        let done = place
            .inbox()
            .process(&mut tx, "c", "m", async |db: &mut SqliteConnection| {
                sqlx::query("SELECT 1").execute(db).await?;
                Ok::<_, InboxError>(1)
            })
            .await;
        tx.commit().await.unwrap();
        done
    });
    assert_eq!(task.await.unwrap().expect("no error"), Some(1));
}

/// The winner of a dedup key rolls back: who waited for it is recorded.
#[tokio::test]
async fn a_dedup_key_that_was_rolled_back_is_free() {
    let (place, mut first) = Place::postgres().await;
    let mut second = place.another().await;
    let mut winner = first.begin().await.unwrap();
    place.recorder().record(&mut winner, &with_key("k")).await.unwrap();
    let recorder = place.recorder();
    let waits = tokio::spawn(async move { recorder.record(&mut second, &with_key("k")).await });
    wait_for_lock(&place).await;
    winner.rollback().await.unwrap();
    waits.await.unwrap().expect("recorded after all");
}

/// Two deliveries of one message at once: one works, the other waits and finds it done.
#[tokio::test]
async fn a_message_that_comes_twice_at_once_is_done_once() {
    let (place, mut first) = Place::postgres().await;
    let mut second = place.another().await;
    let mut tx = first.begin().await.unwrap();
    let work = async |_: &mut PgConnection| Ok::<_, InboxError>(());
    let done = place.inbox().process(&mut tx, "c", "m", work).await.expect("no error");
    let inbox = place.inbox();
    let waits = tokio::spawn(async move { inbox.process(&mut second, "c", "m", work).await });
    wait_for_lock(&place).await;
    tx.commit().await.unwrap();
    let other = waits.await.unwrap().expect("no error");
    assert_eq!((done, other), (Some(()), None));
}

/// An application needs the right to INSERT on one table and nothing else.
#[tokio::test]
async fn recording_needs_no_right_but_to_insert() {
    let (place, mut connection) = Place::postgres().await;
    let role = format!("app_{}", Uuid::new_v4().simple());
    let grant = format!(
        "CREATE ROLE {role}; GRANT INSERT ON {}outbox TO {role}; SET ROLE {role}",
        place.prefix
    );
    sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut connection).await.unwrap();
    place.recorder().record(&mut connection, &with_key("k")).await.unwrap();
    let error = place.recorder().record(&mut connection, &with_key("k")).await.expect_err("used");
    assert!(matches!(error, RecordError::DedupKeyUsed(_)), "{error}");
    let reset = format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(reset)).execute(&mut connection).await.unwrap();
}

/// Until somebody waits for a lock on one of the place's tables.
async fn wait_for_lock(place: &Place) {
    let mut connection = place.another().await;
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'";
    for _ in 0..500 {
        let waiting: i64 = sqlx::query_scalar(sql)
            .bind(place.prefix.as_str())
            .fetch_one(&mut connection)
            .await
            .unwrap();
        if waiting > 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("nobody waits");
}
