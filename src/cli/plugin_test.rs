//! `outrigger plugins test`: one call in the real sandbox, with no host and no
//! database.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use super::{Context, input, secrets};
use crate::{
    model::{
        effect::{Effects, Write},
        event::{Event, NewEvent},
        outcome::Failure,
        secret::SecretValue,
        trigger::TriggerSpec,
    },
    sandbox::{Call, Report, Sandbox, Secrets, StateReader, TriggerView},
};

#[derive(Debug, Args)]
pub(super) struct Test {
    /// The component
    file: PathBuf,
    /// The event, as `POST …/events` takes it; `-` is standard input
    #[arg(long, value_name = "FILE")]
    event: PathBuf,
    /// The trigger's document, for its config, grants and limits; without
    /// one, everything is granted but HTTP requests
    #[arg(long, value_name = "FILE")]
    trigger: Option<PathBuf>,
    /// A host that it may send requests to, repeatable, as an entry of
    /// `grants.http`; an address that isn't public needs the setting
    /// `http.allow` too
    #[arg(long, value_name = "HOST")]
    allow_http: Vec<String>,
    /// State that is there before, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    state: Vec<(String, String)>,
    /// A secret that the trigger's document grants, or any without one; its
    /// value is the file's, and kept out of what is printed; repeatable
    #[arg(long, value_name = "NAME=FILE", value_parser = pair)]
    secret: Vec<(String, String)>,
    /// Number of the attempt
    #[arg(long, default_value_t = 1)]
    attempt: u32,
}

fn pair(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("`{text}` has no `=`"))
}

/// An event as the HTTP interface takes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Recorded {
    resource: String,
    aggregate_id: String,
    event_name: String,
    #[serde(default = "one")]
    schema_version: u32,
    payload: Box<RawValue>,
    meta: Option<Box<RawValue>>,
    dedup_key: Option<String>,
    available_at: Option<i64>,
}

const fn one() -> u32 {
    1
}

impl Test {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let bytes = input::bytes(&self.file)?;
        let event =
            event(&input::text(&self.event)?).with_context(|| self.event.display().to_string())?;
        let spec = self.spec()?;
        let secrets = self.secrets(&spec)?;
        let plugin = Sandbox::new(context.config()?.sandbox())?.load(bytes).await?;
        let state: BTreeMap<String, Vec<u8>> =
            self.state.into_iter().map(|(key, value)| (key, value.into_bytes())).collect();
        let call = Call {
            idempotency_key: format!("{}/test", event.message_id),
            now_ms: event.created_at,
            event: Arc::new(event),
            trigger: Arc::new(TriggerView { secrets, ..TriggerView::new("test", &spec) }),
            attempt: self.attempt,
            max_attempts: spec.retry.max_attempts,
            deadline: spec.limits.deadline.get(),
            state: Arc::new(Given(state)),
        };
        let report = plugin.call(call).await;
        print(context, &report)?;
        Ok(if report.result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn spec(&self) -> Result<TriggerSpec> {
        let document = match &self.trigger {
            Some(file) => input::document(file)?,
            None => json!({
                "match": {}, "target": {"plugin": "test"}, "grants": {
                    "emit": ["*"], "state": true,
                    "secrets": self.secret.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                }
            }),
        };
        let mut spec: TriggerSpec = serde_json::from_value(document).context("the trigger")?;
        spec.grants.http.extend(self.allow_http.iter().cloned());
        spec.validate().context("the trigger")?;
        Ok(spec)
    }

    /// The secrets that are granted; one that wasn't given would be absent on
    /// no host.
    fn secrets(&self, spec: &TriggerSpec) -> Result<Secrets> {
        let given = self.secret.iter().map(|(name, file)| secret(name, file));
        let mut given = given.collect::<Result<BTreeMap<_, _>>>()?;
        given.retain(|name, _| spec.grants.secrets.contains(name));
        if let Some(name) = spec.grants.secrets.iter().find(|name| !given.contains_key(*name)) {
            bail!("the trigger is granted the secret `{name}`: give it with --secret {name}=FILE");
        }
        Secrets::new(given).map_err(anyhow::Error::msg)
    }
}

fn secret(name: &str, file: &str) -> Result<(String, SecretValue)> {
    let value = secrets::value(Path::new(file))?;
    let value = SecretValue::new(value).with_context(|| format!("the secret `{name}`"))?;
    Ok((name.to_owned(), value))
}

fn event(text: &str) -> Result<Event> {
    let given: Recorded = serde_json::from_str(text)?;
    let new = NewEvent {
        schema_version: given.schema_version,
        meta: given.meta.map(|meta| meta.get().to_owned()),
        dedup_key: given.dedup_key,
        available_at: given.available_at,
        ..NewEvent::new(
            "test",
            given.resource,
            given.aggregate_id,
            given.event_name,
            given.payload.get(),
        )
    };
    if let Err(error) = new.validate(usize::MAX) {
        bail!(error);
    }
    Ok(Event {
        pk: 1,
        message_id: Uuid::nil(),
        project: new.project,
        resource: new.resource,
        aggregate_id: new.aggregate_id,
        event_name: new.event_name,
        schema_version: new.schema_version,
        payload: new.payload,
        meta: new.meta,
        dedup_key: new.dedup_key,
        created_at: 0,
        available_at: new.available_at,
        lane: 0,
    })
}

/// State that was given on the command line.
struct Given(BTreeMap<String, Vec<u8>>);

#[async_trait]
impl StateReader for Given {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(self.0.get(key).cloned())
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, String> {
        let keys = self.0.keys().filter(|key| {
            key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after)
        });
        Ok(keys.take(limit as usize).cloned().collect())
    }
}

fn print(context: &Context, report: &Report) -> Result<()> {
    let out = context.out;
    let usage = report.usage;
    let (outcome, effects) = match &report.result {
        Ok(effects) => (json!({ "outcome": "ok" }), effects_of(effects)),
        Err(Failure { kind, message, after_ms }) => (
            json!({ "outcome": kind.as_str(), "message": message, "afterMs": after_ms }),
            Vec::new(),
        ),
    };
    if out.is_json() {
        let whole = json!({
            "result": outcome, "effects": effects, "logs": report.logs,
            "durationUs": usage.duration_us, "cpuUs": usage.cpu_us,
            "memoryBytes": usage.memory_bytes
        });
        out.line(serde_json::to_string_pretty(&whole)?);
        return Ok(());
    }
    match &report.result {
        Ok(_) => out.line("ok"),
        Err(failure) => out.line(format_args!("{}: {}", failure.kind.as_str(), failure.message)),
    }
    for effect in effects {
        out.line(format_args!("effect  {effect}"));
    }
    for line in &report.logs {
        let level = serde_json::to_value(line.level)?;
        out.line(format_args!(
            "log     {:>6} µs  {}  {}",
            line.at_us,
            level.as_str().unwrap_or_default(),
            line.text
        ));
    }
    out.line(format_args!(
        "used    {} µs, {} µs of them on a processor, {} KiB of memory",
        usage.duration_us,
        usage.cpu_us,
        usage.memory_bytes >> 10
    ));
    Ok(())
}

fn effects_of(effects: &Effects) -> Vec<Value> {
    let emitted = effects.emitted.iter().map(|event| {
        json!({ "emit": {
            "resource": event.resource, "aggregateId": event.aggregate_id,
            "eventName": event.event_name, "payload": parsed(&event.payload)
        }})
    });
    let written = effects.state.writes.iter().map(|(key, write)| match write {
        Write::Set(value) => json!({ "set": key, "value": String::from_utf8_lossy(value) }),
        Write::Delete => json!({ "delete": key }),
        Write::Add(delta) => json!({ "increment": key, "by": delta }),
    });
    emitted.chain(written).collect()
}

fn parsed(payload: &str) -> Value {
    serde_json::from_str(payload).unwrap_or_else(|_| payload.into())
}
