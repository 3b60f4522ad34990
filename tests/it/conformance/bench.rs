//! One migrated store for one test, and short ways to say what it does.

use std::{env, fs, ops::AsyncFn, path::PathBuf, sync::Arc, time::Duration};

use outrigger::{
    model::{
        Lane,
        attempt::{Attempt, Usage},
        effect::{Effects, StateUse, Write},
        event::{Event, NewEvent},
        outcome::FailureKind,
    },
    store::{
        ClaimedDelivery, ClaimedEvent, DeliveryFilter, DeliveryRow, End, HostId, Options,
        PageRequest, Recorded, Seam, Settled, Settlement, Spill, SpillCause, Store, StoreError,
        TriggerEffects, connect,
    },
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use uuid::Uuid;

/// Which database a test runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Database {
    Postgres,
    SqliteFile,
    SqliteMemory,
}

/// Runs one behaviour on a database of its own.
pub(super) async fn run(database: Database, behaviour: impl AsyncFn(&Bench)) {
    let bench = Bench::new(database).await;
    bench.store.migrate().await.expect("migrates");
    behaviour(&bench).await;
    bench.clear().await;
}

pub(super) struct Bench {
    pub(super) database: Database,
    pub(super) store: Arc<dyn Store>,
    pub(super) host: HostId,
    url: String,
    options: Options,
    folder: Option<PathBuf>,
}

/// Long enough for nothing to run out.
pub(super) const LONG: Duration = Duration::from_mins(1);

/// What most tests call their project and their trigger.
pub(super) const SHOP: &str = "shop";
pub(super) const MAIL: &str = "mail";

impl Bench {
    pub(super) async fn new(database: Database) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        let prefix = format!("t{id}_").parse().expect("a safe prefix");
        let options = Options { prefix, lanes: 4, connections: 4, ..Options::default() };
        let (url, folder) = match database {
            Database::Postgres => {
                let url = env::var("OUTRIGGER_TEST_POSTGRES").expect(
                    "OUTRIGGER_TEST_POSTGRES names no PostgreSQL database to test on, \
                     such as postgres://postgres@127.0.0.1/postgres",
                );
                (url, None)
            }
            Database::SqliteFile => {
                let folder = env::temp_dir().join(format!("outrigger-{id}"));
                fs::create_dir(&folder).expect("a new folder");
                (format!("sqlite:{}/outrigger.db", folder.display()), Some(folder))
            }
            Database::SqliteMemory => ("sqlite::memory:".to_owned(), None),
        };
        let store = connect(&url, &options).await.expect("connects");
        let host = HostId(Uuid::new_v4());
        Self { database, store, host, url, options, folder }
    }

    /// Another store on the same database, as another process would have it.
    pub(super) async fn again(&self) -> Arc<dyn Store> {
        self.with(&self.options).await
    }

    pub(super) async fn with(&self, options: &Options) -> Arc<dyn Store> {
        connect(&self.url, options).await.expect("connects")
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The database's file.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.as_ref().expect("a file").join("outrigger.db")
    }

    /// Runs SQL as an application would, `{p}` standing for the prefix.
    pub(super) async fn sql(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(sql.replace("{p}", self.options.prefix.as_str()));
        match self.database {
            Database::Postgres => {
                let mut db = sqlx::PgConnection::connect(&self.url).await?;
                let done = db.execute(sqlx::raw_sql(sql)).await?;
                db.close().await?;
                Ok(done.rows_affected())
            }
            Database::SqliteFile => {
                let mut db = sqlx::SqliteConnection::connect(&self.url).await?;
                let done = db.execute(sqlx::raw_sql(sql)).await?;
                db.close().await?;
                Ok(done.rows_affected())
            }
            Database::SqliteMemory => panic!("memory has no other connections"),
        }
    }

    /// Takes away what the test made.
    async fn clear(&self) {
        if let Some(folder) = &self.folder {
            fs::remove_dir_all(folder).expect("its folder goes");
        }
        if self.database == Database::Postgres {
            let sql = "DO $$ DECLARE r record; BEGIN
                FOR r IN SELECT tablename FROM pg_tables WHERE starts_with(tablename, '{p}') LOOP
                    EXECUTE format('DROP TABLE %I CASCADE', r.tablename);
                END LOOP;
                DROP FUNCTION IF EXISTS {p}wake, {p}now_ms CASCADE;
                DROP SEQUENCE IF EXISTS {p}asleep_until;
            END $$";
            self.sql(sql).await.expect("its tables go");
        }
    }

    pub(super) fn lanes(&self) -> Vec<Lane> {
        (0..self.store.lanes()).collect()
    }

    /// Holds every lane.
    pub(super) async fn hold(&self) {
        let want = self.lanes().len();
        self.store.take_lanes(self.host, want, LONG).await.expect("takes lanes");
        let held = self.store.renew_lanes(self.host, LONG).await.expect("renews lanes");
        assert_eq!(held, self.lanes());
    }

    pub(super) async fn record(&self, events: &[NewEvent]) -> Vec<Uuid> {
        let recorded = self.store.record(events).await.expect("records");
        let id = |one| match one {
            Recorded::New { message_id, .. } | Recorded::Duplicate { message_id, .. } => message_id,
        };
        recorded.into_iter().map(id).collect()
    }

    /// Seams of everything that there is.
    pub(super) async fn seams(&self, above: i64, limit: u32) -> Vec<Seam> {
        let survey = self.store.survey(&self.lanes()).await.expect("surveys");
        let seam = |(lane, project)| Seam { lane, project, above, limit };
        survey.seams.into_iter().map(seam).collect()
    }

    pub(super) async fn claim_for(&self, lease: Duration) -> Vec<ClaimedEvent> {
        let seams = self.seams(0, 1000).await;
        self.store.claim_events(self.host, &seams, u64::MAX, lease).await.expect("claims").rows
    }

    pub(super) async fn claim(&self) -> Vec<ClaimedEvent> {
        self.claim_for(LONG).await
    }

    /// Claims the only event there is.
    pub(super) async fn claim_one(&self) -> ClaimedEvent {
        let [event] = self.claim().await.try_into().expect("one event");
        event
    }

    /// Records one event, holding the lanes, and claims it.
    pub(super) async fn claim_new(&self, event: NewEvent) -> ClaimedEvent {
        let id = self.record(&[event]).await[0];
        let claimed = self.claim().await;
        let [event] = claimed.try_into().expect("one event");
        assert_eq!(event.event.message_id, id);
        event
    }

    pub(super) async fn deliver_for(&self, limit: u32, lease: Duration) -> Vec<ClaimedDelivery> {
        self.deliver_runs(limit, 0, lease).await
    }

    /// Claims deliveries that are due, and so many that each of them blocks.
    pub(super) async fn deliver_runs(
        &self,
        limit: u32,
        run: u32,
        lease: Duration,
    ) -> Vec<ClaimedDelivery> {
        let survey = self.store.survey(&self.lanes()).await.expect("surveys");
        let triggers: Vec<_> =
            survey.deliveries.into_iter().map(|(project, name)| (project, name, limit)).collect();
        let lanes = self.lanes();
        let claimed =
            self.store.claim_deliveries(self.host, &lanes, &triggers, run, u64::MAX, lease).await;
        claimed.expect("claims").rows
    }

    /// Claims every delivery that is due.
    pub(super) async fn deliver(&self) -> Vec<ClaimedDelivery> {
        self.deliver_for(1000, LONG).await
    }

    pub(super) async fn settle(&self, group: Vec<Settlement>) -> Vec<Settled> {
        self.store.settle(&group, LONG).await.expect("settles")
    }

    /// Settles one, which must go well.
    pub(super) async fn write(&self, settlement: Settlement) {
        assert_eq!(self.settle(vec![settlement]).await, [Settled::Done]);
    }

    /// Records an event for which [`MAIL`] fails at once: a delivery that is
    /// due, blocked or dead.
    pub(super) async fn spilled(&self, aggregate: &str, spill: Spill) -> DeliveryRow {
        let claimed = self.claim_new(order(aggregate)).await;
        let id = claimed.event.message_id;
        self.write(done(claimed).spill(spill)).await;
        self.delivery(id).await
    }

    /// The one delivery of an event.
    pub(super) async fn delivery(&self, event: Uuid) -> DeliveryRow {
        let filter = DeliveryFilter { message_id: Some(event), ..DeliveryFilter::default() };
        let page = self.store.deliveries(SHOP, &filter, &all()).await.expect("lists");
        let [row] = page.items.try_into().expect("one delivery");
        row
    }

    pub(super) async fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.store.state_value(SHOP, MAIL, key).await.expect("reads")
    }
}

/// Everything there is.
pub(super) fn all() -> PageRequest {
    PageRequest { limit: 1000, ..PageRequest::default() }
}

/// An event of one aggregate.
pub(super) fn order(aggregate: &str) -> NewEvent {
    NewEvent::new(SHOP, "order", aggregate, "order.placed", r#"{"total": 1}"#)
}

pub(super) fn keyed(aggregate: &str, key: &str) -> NewEvent {
    NewEvent { dedup_key: Some(key.to_owned()), ..order(aggregate) }
}

/// The event's dispatch, to add to.
pub(super) fn done(claimed: ClaimedEvent) -> Settlement {
    Settlement {
        claim: claimed.claim.into(),
        event: Arc::new(claimed.event),
        end: End::Dispatched { result_json: "{}".to_owned(), spills: Vec::new() },
        effects: Vec::new(),
        attempts: Vec::new(),
    }
}

/// What became of a delivery.
pub(super) fn ended(claimed: ClaimedDelivery, end: End) -> Settlement {
    Settlement {
        claim: claimed.claim.into(),
        event: Arc::new(claimed.event),
        end,
        effects: Vec::new(),
        attempts: Vec::new(),
    }
}

pub(super) fn well() -> End {
    End::Done { trigger: MAIL.to_owned() }
}

pub(super) fn dead(attempts: u32) -> End {
    let error = (FailureKind::Reject, "no".to_owned());
    End::Dead { trigger: MAIL.to_owned(), attempts, error }
}

pub(super) fn again(attempts: u32, after_ms: i64) -> End {
    let error = (FailureKind::Retry, "later".to_owned());
    End::Again { trigger: MAIL.to_owned(), attempts, after_ms, error }
}

/// A first attempt that failed, tried again at once.
pub(super) fn failed() -> Spill {
    Spill {
        trigger: MAIL.to_owned(),
        ordered: true,
        cause: SpillCause::Failed,
        attempts: 1,
        after_ms: 0,
        error: Some((FailureKind::Retry, "not now".to_owned())),
        dead: false,
    }
}

/// A pair that never ran, since an earlier one is open.
pub(super) fn blocked() -> Spill {
    Spill { cause: SpillCause::Blocked, attempts: 0, error: None, ..failed() }
}

pub(super) fn dead_at_once() -> Spill {
    let error = Some((FailureKind::Reject, "never".to_owned()));
    Spill { dead: true, error, ..failed() }
}

/// Additions to a settlement.
pub(super) trait Adding: Sized {
    fn spill(self, spill: Spill) -> Self;
    fn effects(self, trigger: &str, effects: Effects) -> Self;
    fn attempt(self, trigger: &str, failure: Option<FailureKind>, error: Option<&str>) -> Self;

    fn emit(self, events: Vec<NewEvent>) -> Self {
        self.effects(MAIL, Effects { emitted: events, ..Effects::default() })
    }

    fn state(self, state: StateUse) -> Self {
        self.effects(MAIL, Effects { state, ..Effects::default() })
    }
}

impl Adding for Settlement {
    fn spill(mut self, spill: Spill) -> Self {
        if let End::Dispatched { spills, .. } = &mut self.end {
            spills.push(spill);
        }
        self
    }

    fn effects(mut self, trigger: &str, effects: Effects) -> Self {
        self.effects.push(TriggerEffects { trigger: trigger.to_owned(), effects });
        self
    }

    fn attempt(mut self, trigger: &str, failure: Option<FailureKind>, error: Option<&str>) -> Self {
        let attempt = attempt_of(&self.event, trigger, failure, error);
        self.attempts.push(attempt);
        self
    }
}

pub(super) fn attempt_of(
    event: &Event,
    trigger: &str,
    failure: Option<FailureKind>,
    error: Option<&str>,
) -> Attempt {
    Attempt {
        message_id: event.message_id,
        event_pk: event.pk,
        project: event.project.clone(),
        trigger: trigger.to_owned(),
        number: 1,
        digest: None,
        started_at: 1000,
        usage: Usage { duration_us: 3, cpu_us: 2, memory_bytes: 65_536 },
        failure,
        error: error.map(str::to_owned),
        logs: Vec::new(),
    }
}

/// A write of one key.
pub(super) fn set(key: &str, value: &str) -> StateUse {
    writing(key, Write::Set(value.as_bytes().to_vec()))
}

pub(super) fn writing(key: &str, write: Write) -> StateUse {
    StateUse { writes: [(key.to_owned(), write)].into(), ..StateUse::default() }
}

/// That, having read this key before.
pub(super) fn having_read(key: &str, seen: Option<&str>, then: StateUse) -> StateUse {
    let seen = seen.map(|value| value.as_bytes().to_vec());
    StateUse { reads: [(key.to_owned(), seen)].into(), ..then }
}

/// Tries until it holds, for what the database's clock has to bring about.
pub(super) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..500 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it didn't come to hold within 5 s");
}

/// What an error must be.
pub(super) fn refused(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(_))
}
