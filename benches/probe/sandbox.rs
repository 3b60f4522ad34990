//! What a call costs as the router makes it, against a bare one.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use outrigger::{
    model::{
        event::{Event, NewEvent},
        trigger::TriggerSpec,
    },
    router::dry::DryRun,
    sandbox::{Sandbox, Settings},
    store::{self, End, Options, Settlement, Store},
    targets::Plugins,
};
use serde_json::{Value, json};

use crate::bare::Bare;

const PROJECT: &str = "probe";

/// Calls of one kind before it is the other's turn.
const CHUNK: u32 = 250;

/// Turns of each kind, at the least.
const TURNS: u32 = 5;

/// What the example plugins understand.
const PAYLOAD: &str =
    r#"{"customer": "c-1", "total": 120, "items": [{"sku": "a-17", "quantity": 2}]}"#;

/// Largest payload, in bytes.
const PAYLOAD_MAX: usize = 1 << 20;

#[derive(Args)]
pub(crate) struct Sandboxed {
    /// A component; what it reads of its state comes from a database in memory, and counts
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Calls of each kind
    #[arg(long, value_parser = clap::value_parser!(u32).range(i64::from(TURNS)..))]
    calls: u32,
    /// What its events say
    #[arg(long, value_name = "JSON", default_value = PAYLOAD)]
    payload: String,
}

impl Sandboxed {
    pub(crate) fn run(self) -> Result<Value> {
        // One thread: what is measured is the time on a processor.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.measure())
    }

    async fn measure(self) -> Result<Value> {
        let name = self.plugin.display();
        let bytes = fs::read(&self.plugin).with_context(|| name.to_string())?;
        let sandbox = Sandbox::new(Settings::default())?;
        let plugin = sandbox.load(bytes.clone()).await.with_context(|| name.to_string())?;
        let store = store::connect("sqlite::memory:", &Options::default()).await?;
        store.migrate().await?;
        store.put_project(PROJECT).await?;
        store.put_plugin(PROJECT, "plugin", &plugin.info, &bytes, true).await?;
        let trigger: TriggerSpec = serde_json::from_value(json!({
            "match": {}, "target": {"plugin": "plugin"}, "grants": {"emit": ["*"], "state": true},
        }))?;
        store.put_trigger(PROJECT, "trigger", &trigger).await?;
        let bare = Bare::new(sandbox.engine(), &bytes)?;
        let router =
            DryRun::new(Arc::clone(&store), Plugins::new(Arc::clone(&sandbox), store.clone()))
                .await?;

        let chunk = CHUNK.min(self.calls / TURNS);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        // The first turn is for caches and the like.
        for turn in 0..=self.calls.div_ceil(chunk) {
            let (bare, executor) = self.turn(&*store, &router, &bare, chunk, turn).await?;
            if turn > 0 {
                without.push(bare);
                with.push(executor);
            }
        }
        let (bare, executor) = (micros(without, chunk), micros(with, chunk));
        Ok(json!({
            "bare": {"microseconds": bare},
            "executor": {"microseconds": executor},
            "ratio": executor / bare,
        }))
    }

    /// How long calls for the same events take, bare and as the router makes
    /// them from claimed rows to what is to be written; either goes first in
    /// every second turn.
    async fn turn(
        &self,
        store: &dyn Store,
        router: &DryRun,
        bare: &Bare,
        count: u32,
        turn: u32,
    ) -> Result<(Duration, Duration)> {
        self.record(store, count).await?;
        let claimed = router.claim(PROJECT, count).await?;
        ensure!(claimed.rows.len() == count as usize, "some events were not claimed");
        let mut without = Duration::ZERO;
        if turn.is_multiple_of(2) {
            without = bare_calls(bare, claimed.rows.iter().map(|row| &row.event)).await?;
        }
        let began = Instant::now();
        let ended = router.call(claimed).await;
        let with = began.elapsed();
        if !turn.is_multiple_of(2) {
            without = bare_calls(bare, ended.settlements().map(|one| &*one.event)).await?;
        }
        ended.settlements().try_for_each(check)?;
        router.settle(ended).await?;
        Ok((without, with))
    }

    /// Records events, each of an aggregate of its own.
    async fn record(&self, store: &dyn Store, count: u32) -> Result<()> {
        let event = |n| {
            let payload = self.payload.as_str();
            NewEvent::new(PROJECT, "order", format!("o-{n}"), "order.placed", payload)
        };
        let events: Vec<_> = (0..count).map(event).collect();
        events.iter().try_for_each(|event| event.validate(PAYLOAD_MAX)).context("--payload")?;
        store.record(&events).await?;
        Ok(())
    }
}

async fn bare_calls(bare: &Bare, events: impl Iterator<Item = &Event>) -> Result<Duration> {
    let began = Instant::now();
    for event in events {
        bare.call(event).await?;
    }
    Ok(began.elapsed())
}

/// What failed is no measurement.
fn check(settlement: &Settlement) -> Result<()> {
    match &settlement.end {
        End::Dispatched { spills, .. } if spills.is_empty() && settlement.effects.len() == 1 => {
            Ok(())
        }
        End::Dispatched { spills, result_json } => {
            let why = spills.iter().find_map(|spill| spill.error.as_ref());
            bail!("a call failed: {}", why.map_or(result_json, |(_, message)| message))
        }
        other => bail!("an event ended otherwise: {other:?}"),
    }
}

/// Microseconds of one call, in the median turn.
fn micros(mut turns: Vec<Duration>, chunk: u32) -> f64 {
    turns.sort_unstable();
    let middle = turns.len() / 2;
    let median =
        if turns.len() % 2 == 1 { turns[middle] } else { (turns[middle - 1] + turns[middle]) / 2 };
    median.as_secs_f64() * 1e6 / f64::from(chunk)
}
