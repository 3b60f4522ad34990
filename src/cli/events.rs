//! `outrigger events`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode, header::CONTENT_TYPE};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::{
    Context, attempt,
    client::Answer,
    input,
    output::{Column, Output, Show, clean},
    page::Page,
    replay::Replay,
    time::{self, Time},
};
use crate::model::units::Span;

#[derive(Debug, Subcommand)]
pub(super) enum Events {
    /// Record an event: by flags, or as JSON from a file or standard input
    Publish(Publish),
    /// List events, the newest first
    List(List),
    /// Show an event: where it stands, why it waits, its attempts and logs
    Show {
        /// The event's message id
        message_id: Uuid,
    },
    /// Deliver events again: one by its message id, or all that match
    Replay(Replay),
}

#[derive(Debug, Args)]
pub(super) struct Publish {
    /// JSON of one event, or of an array of them; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "resource")]
    file: Option<PathBuf>,
    /// The kind of thing that the event is about, such as `order`
    #[arg(long, requires_all = ["aggregate_id", "event_name", "payload"])]
    resource: Option<String>,
    /// Which one of that kind
    #[arg(long, requires = "resource")]
    aggregate_id: Option<String>,
    /// What happened, such as `order.placed`
    #[arg(long, requires = "resource")]
    event_name: Option<String>,
    /// JSON
    #[arg(long, value_name = "JSON", requires = "resource")]
    payload: Option<String>,
    /// A JSON object beside the payload
    #[arg(long, value_name = "JSON", requires = "resource")]
    meta: Option<String>,
    /// Version of the payload's shape
    #[arg(long, value_name = "N", requires = "resource")]
    schema_version: Option<u32>,
    /// A project's events each have another one
    #[arg(long, value_name = "KEY", requires = "resource")]
    dedup_key: Option<String>,
    /// When it falls due, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", requires = "resource")]
    at: Option<Time>,
    /// Wait until its triggers have ended, for so long at the most
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    resource: &'a str,
    aggregate_id: &'a str,
    event_name: &'a str,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<i64>,
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Of this resource
    #[arg(long)]
    resource: Option<String>,
    /// Of this aggregate
    #[arg(long)]
    aggregate_id: Option<String>,
    /// Of this name
    #[arg(long)]
    event_name: Option<String>,
    /// With this dedup key
    #[arg(long)]
    dedup_key: Option<String>,
    /// pending, claimed, scheduled or dispatched
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    page: Page,
}

const COLUMNS: [Column; 6] = [
    ("MESSAGE ID", "/messageId", Show::Plain),
    ("RESOURCE", "/resource", Show::Plain),
    ("AGGREGATE", "/aggregateId", Show::Plain),
    ("EVENT", "/eventName", Show::Plain),
    ("STATUS", "/status", Show::Plain),
    ("CREATED", "/createdAt", Show::Time),
];

const MEMBERS: [Column; 11] = [
    ("message id", "/messageId", Show::Plain),
    ("resource", "/resource", Show::Plain),
    ("aggregate", "/aggregateId", Show::Plain),
    ("event", "/eventName", Show::Plain),
    ("schema version", "/schemaVersion", Show::Plain),
    ("dedup key", "/dedupKey", Show::Plain),
    ("status", "/status", Show::Plain),
    ("created", "/createdAt", Show::Time),
    ("due", "/availableAt", Show::Time),
    ("dispatched", "/dispatchedAt", Show::Time),
    ("claims", "/claims", Show::Plain),
];

const RESULTS: [Column; 5] = [
    ("TRIGGER", "/trigger", Show::Plain),
    ("OUTCOME", "/outcome", Show::Plain),
    ("ATTEMPT", "/attempt", Show::Plain),
    ("MICROSECONDS", "/durationUs", Show::Plain),
    ("VERSION", "/digest", Show::Digest),
];

const DELIVERIES: [Column; 7] = [
    ("DELIVERY", "/id", Show::Plain),
    ("TRIGGER", "/trigger", Show::Plain),
    ("REPLAY", "/generation", Show::Plain),
    ("STATE", "/state", Show::Plain),
    ("ATTEMPTS", "/attempts", Show::Plain),
    ("DUE", "/dueAt", Show::Time),
    ("LAST ERROR", "/lastError", Show::Short(80)),
];

impl Events {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let (client, out, project) = (context.client()?, context.out, context.project()?);
        match self {
            Self::Publish(publish) => return publish.run(context).await,
            Self::List(list) => {
                let request = client.call(Method::GET, &["projects", project, "events"])?;
                let answer = client.send(request.query(&list.query())).await?;
                out.list(&answer, &COLUMNS, "There is no such event.");
            }
            Self::Replay(replay) => replay.run(context).await?,
            Self::Show { message_id } => {
                let id = message_id.to_string();
                let answer = client.get(&["projects", project, "events", &id]).await?;
                if !out.json(&answer) {
                    show(out, &answer);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Publish {
    async fn run(self, context: &Context) -> Result<ExitCode> {
        let (client, out) = (context.client()?, context.out);
        let request = client.call(Method::POST, &["projects", context.project()?, "events"])?;
        let mut request = request.header(CONTENT_TYPE, "application/json").body(self.body()?);
        if let Some(wait) = self.wait {
            let patience = wait.get() + std::time::Duration::from_secs(30);
            request = request.query(&[("wait", wait.to_string())]).timeout(patience);
        }
        let answer = client.send(request).await?;
        let refused = refused(&answer);
        if !out.json(&answer) {
            receipt(out, &answer);
            if answer.status == StatusCode::ACCEPTED {
                out.note("It is recorded, and not dispatched yet.");
            }
        }
        Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// The event as JSON, payload and meta to the letter.
    fn body(&self) -> Result<String> {
        let given = (&self.resource, &self.aggregate_id, &self.event_name, &self.payload);
        let (Some(resource), Some(aggregate_id), Some(event_name), Some(payload)) = given else {
            return input::text(self.file.as_deref().unwrap_or(Path::new("-")));
        };
        let meta = self.meta.as_deref().map(|meta| json("--meta", meta)).transpose()?;
        let body = Body {
            resource,
            aggregate_id,
            event_name,
            payload: json("--payload", payload)?,
            meta,
            schema_version: self.schema_version,
            dedup_key: self.dedup_key.as_deref(),
            available_at: self.at.map(|at| at.0),
        };
        Ok(serde_json::to_string(&body)?)
    }
}

impl List {
    fn query(&self) -> Vec<(&'static str, String)> {
        let filters = [
            ("resource", &self.resource),
            ("aggregateId", &self.aggregate_id),
            ("eventName", &self.event_name),
            ("dedupKey", &self.dedup_key),
            ("status", &self.status),
        ];
        self.page.query(&filters)
    }
}

fn json<'a>(flag: &str, text: &'a str) -> Result<&'a RawValue> {
    serde_json::from_str(text).with_context(|| format!("{flag} is no JSON"))
}

/// Whether an event of an array was refused.
fn refused(answer: &Answer) -> bool {
    let items = answer.value()["events"].as_array();
    items.is_some_and(|items| items.iter().any(|item| item["error"].is_object()))
}

fn receipt(out: Output, answer: &Answer) {
    let value = answer.value();
    let Some(items) = value["events"].as_array() else {
        out.line(clean(value["messageId"].as_str().unwrap_or_default()));
        for (trigger, state) in value["triggers"].as_object().into_iter().flatten() {
            let state = state.as_str().unwrap_or_default();
            out.line(format_args!("{}  {}", clean(trigger), clean(state)));
        }
        return;
    };
    for item in items {
        let said = |value: &Value| clean(value.as_str().unwrap_or_default());
        match &item["error"] {
            Value::Null => out.line(said(&item["messageId"])),
            error => {
                out.line(format_args!("{}: {}", said(&error["title"]), said(&error["detail"])));
            }
        }
    }
}

fn show(out: Output, answer: &Answer) {
    let event = answer.value();
    out.item(event, &MEMBERS);
    for member in ["payload", "meta"] {
        if let Some(text) = answer.raw(member) {
            out.line(format_args!("{member:<14}  {}", clean(&text)));
        }
    }
    for wait in event["waits"].as_array().into_iter().flatten() {
        out.line(format_args!("waits           {}", why(wait)));
    }
    let named = |(trigger, result): (&String, &Value)| {
        let mut row = result.clone();
        row["trigger"] = trigger.as_str().into();
        row
    };
    let results = event["result"].as_object().into_iter().flatten();
    section(out, &results.map(named).collect::<Vec<_>>(), &RESULTS);
    section(out, event["deliveries"].as_array().map_or(&[][..], Vec::as_slice), &DELIVERIES);
    for attempt in event["attempts"].as_array().into_iter().flatten() {
        attempt::show(out, attempt);
    }
}

fn section(out: Output, rows: &[Value], columns: &[Column]) {
    if !rows.is_empty() {
        out.line("");
        out.table(rows, columns);
    }
}

/// A reason to wait: its members, as the host names them.
fn why(wait: &Value) -> String {
    let members = wait.as_object().into_iter().flatten();
    let reason = clean(wait["reason"].as_str().unwrap_or_default());
    members.filter(|(name, _)| *name != "reason").fold(reason, |said, (name, value)| {
        let value = match value {
            Value::String(text) => clean(text),
            Value::Number(millis) if name == "until" => {
                time::show(millis.as_i64().unwrap_or_default())
            }
            Value::Object(host) => {
                let name = host.get("name").or_else(|| host.get("id"));
                clean(name.and_then(Value::as_str).unwrap_or_default())
            }
            other => other.to_string(),
        };
        format!("{said}, {name} {value}")
    })
}
