//! How fast a database takes the claims and settles that a router makes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use outrigger::{
    model::{Lane, effect::Effects, event::NewEvent},
    store::{
        self, Claimed, ClaimedEvent, End, HostId, Options, Prefix, Seam, Settled, Settlement,
        Store, StoreError, TriggerEffects,
    },
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Events that are recorded in one transaction, by [`store::Queue::record`].
const RECORDED: u64 = 5_000;

/// How long lanes and claims hold.
const LEASE: Duration = Duration::from_mins(1);

/// Payloads of one claim, in bytes: a router's own bound.
const CLAIM_BYTES: u64 = 32 << 20;

/// What a router writes of an event that one trigger handled.
const RESULT: &str = r#"{"order-totals":{"outcome":"done","attempt":1,"durationUs":152,"digest":"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}}"#;
const TRIGGER: &str = "order-totals";

#[derive(Args)]
pub(crate) struct Ceiling {
    /// `postgres://…` or `sqlite:path`; migrated first
    #[arg(long, value_name = "URL")]
    database_url: String,
    /// Before every table name
    #[arg(long, default_value = "outrigger_")]
    prefix: Prefix,
    /// Events to record, claim and settle
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Aggregates that they are of
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    aggregates: u64,
    /// Tasks, each with lanes of its own; as many as are fastest on most machines
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Rows of one claim, and of the settle that follows
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    claim: u32,
}

impl Ceiling {
    pub(crate) fn run(self) -> Result<Value> {
        let runtime = tokio::runtime::Runtime::new().context("the runtime")?;
        runtime.block_on(self.measure())
    }

    async fn measure(self) -> Result<Value> {
        let options = Options {
            prefix: self.prefix.clone(),
            // A claim and a settle of each worker at once.
            connections: (2 * self.workers + 2).max(10),
            patience: Duration::from_secs(30),
            ..Options::default()
        };
        let store = store::connect(&self.database_url, &options).await?;
        store.migrate().await.context("migrating")?;
        store.join()?;
        let host = HostId(Uuid::new_v4());
        let all = usize::try_from(store.lanes())?;
        let lanes = store.take_lanes(host, all, LEASE).await?;
        ensure!(
            lanes.len() == all,
            "another host holds lanes of this database; stop it, or wait until its lease ends"
        );
        // A project of this run alone: what earlier ones left counts for nothing.
        let project = format!("probe-{}", Uuid::now_v7().simple());
        store.put_project(&project).await?;
        self.record(&*store, &project).await.context("recording")?;

        let renewing = tokio::spawn(renew(Arc::clone(&store), host));
        let began = Instant::now();
        let mut workers = JoinSet::new();
        for own in shares(&lanes, self.workers as usize) {
            let (store, project) = (Arc::clone(&store), project.clone());
            workers.spawn(drain(store, host, own, project, self.claim));
        }
        let mut settled = 0;
        while let Some(worker) = workers.join_next().await {
            settled += worker.context("a worker")??;
        }
        let seconds = began.elapsed().as_secs_f64();
        renewing.abort();
        store.yield_lanes(host, &lanes).await?;
        ensure!(settled == self.events, "{settled} of {} events were settled", self.events);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = self.events as f64 / seconds;
        Ok(json!({ "events": self.events, "seconds": seconds, "perSecond": rate }))
    }

    async fn record(&self, store: &dyn Store, project: &str) -> Result<(), StoreError> {
        let event = |n: u64| {
            let aggregate = format!("o-{}", n % self.aggregates);
            let payload = json!({
                "total": n % 500, "currency": "EUR",
                "customer": format!("c-{}", n % 997), "items": [{"sku": "a-17", "count": 2}],
            });
            NewEvent::new(project, "order", aggregate, "order.placed", payload.to_string())
        };
        let mut first = 0;
        while first < self.events {
            let end = self.events.min(first + RECORDED);
            store.record(&(first..end).map(event).collect::<Vec<_>>()).await?;
            first = end;
        }
        Ok(())
    }
}

/// The lanes of each worker that has some.
fn shares(lanes: &[Lane], workers: usize) -> Vec<Vec<Lane>> {
    let mut shares = vec![Vec::new(); workers.min(lanes.len())];
    let count = shares.len().max(1);
    for (n, lane) in lanes.iter().enumerate() {
        shares[n % count].push(*lane);
    }
    shares
}

/// Keeps the lanes.
async fn renew(store: Arc<dyn Store>, host: HostId) {
    loop {
        tokio::time::sleep(LEASE / 4).await;
        if let Err(error) = store.renew_lanes(host, LEASE).await {
            eprintln!("probe: renewing leases: {error}");
        }
    }
}

/// Claims and settles all there is in these lanes, each claim while the one
/// before it is settled. Answers how many rows that were.
async fn drain(
    store: Arc<dyn Store>,
    host: HostId,
    lanes: Vec<Lane>,
    project: String,
    most: u32,
) -> Result<u64> {
    let seam = |lane| Seam { lane, project: project.clone(), above: 0, limit: 0 };
    let mut seams: Vec<Seam> = lanes.into_iter().map(seam).collect();
    let mut settled = 0;
    let mut rows = claim(&*store, host, &mut seams, most).await?;
    while !rows.is_empty() {
        let count = rows.len() as u64;
        let (written, next) =
            tokio::join!(settle(&*store, rows), claim(&*store, host, &mut seams, most));
        written?;
        settled += count;
        rows = next?;
    }
    Ok(settled)
}

/// Claims above the marks and moves them: everything was committed before, so
/// nothing comes late. Lanes that have no more are left out from then on.
async fn claim(
    store: &dyn Store,
    host: HostId,
    seams: &mut Vec<Seam>,
    most: u32,
) -> Result<Vec<ClaimedEvent>> {
    if seams.is_empty() {
        return Ok(Vec::new());
    }
    let limit = most.div_ceil(u32::try_from(seams.len())?);
    for seam in seams.iter_mut() {
        seam.limit = limit;
    }
    let Claimed { rows, cut, .. } = store.claim_events(host, seams, CLAIM_BYTES, LEASE).await?;
    seams.retain_mut(|seam| {
        let pks = rows.iter().filter(|row| row.event.lane == seam.lane).map(|row| row.event.pk);
        let (count, last) =
            pks.fold((0, seam.above), |(count, last), pk| (count + 1, last.max(pk)));
        seam.above = last;
        cut || count == limit
    });
    Ok(rows)
}

/// Writes that one trigger handled these events, and asked for nothing.
async fn settle(store: &dyn Store, rows: Vec<ClaimedEvent>) -> Result<()> {
    let group: Vec<Settlement> = rows
        .into_iter()
        .map(|row| Settlement {
            claim: Arc::new(row.claim),
            event: Arc::new(row.event),
            end: End::Dispatched { result_json: RESULT.to_owned(), spills: Vec::new() },
            effects: vec![TriggerEffects {
                trigger: TRIGGER.to_owned(),
                effects: Effects::default(),
            }],
            attempts: Vec::new(),
        })
        .collect();
    let verdicts = store.settle(&group, LEASE / 2).await?;
    if let Some(other) = verdicts.into_iter().find(|verdict| *verdict != Settled::Done) {
        bail!("an event was not settled: {other:?}");
    }
    Ok(())
}
