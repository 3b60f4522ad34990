//! `outrigger events replay`.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    Context, operation,
    output::{Output, clean},
    time::Time,
};

#[derive(Debug, Args)]
pub(super) struct Replay {
    /// This event alone, by its message id
    #[arg(conflicts_with_all = [
        "resource", "aggregate_id", "event_name", "since", "until", "limit", "all", "dry_run",
        "no_wait",
    ])]
    message_id: Option<Uuid>,
    /// To this trigger alone, not to each that matches
    #[arg(long)]
    trigger: Option<String>,
    /// Of this resource
    #[arg(long)]
    resource: Option<String>,
    /// Of this aggregate
    #[arg(long)]
    aggregate_id: Option<String>,
    /// Of this name
    #[arg(long)]
    event_name: Option<String>,
    /// Recorded at or after this, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Time>,
    /// Recorded before this
    #[arg(long, value_name = "TIME")]
    until: Option<Time>,
    /// At the most so many events
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// All of the project's, where no filter is given
    #[arg(long)]
    all: bool,
    /// Only say how many events there are
    #[arg(long)]
    dry_run: bool,
    /// Don't wait until all deliveries are made
    #[arg(long)]
    no_wait: bool,
}

impl Replay {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let (client, out, project) = (context.client()?, context.out, context.project()?);
        if let Some(id) = self.message_id {
            let id = id.to_string();
            let path = ["projects", project, "events", &id, "replay"];
            let answer = client.post(&path, &self.body().into()).await?;
            if !out.json(&answer) {
                receipt(out, answer.value());
            }
            return Ok(());
        }
        let body = self.body();
        let narrow = ["resource", "aggregateId", "eventName", "since", "until"];
        if !narrow.iter().any(|member| body.contains_key(*member)) && !self.all {
            bail!("say which: a message id, a filter such as --resource NAME, or --all");
        }
        let path = ["projects", project, "events", "replay"];
        let mut answer = client.post(&path, &body.into()).await?;
        if !self.dry_run && !self.no_wait {
            answer = operation::follow(&client, project, answer).await?;
        }
        if !out.json(&answer) {
            progress(out, answer.value());
        }
        Ok(())
    }

    fn body(&self) -> Map<String, Value> {
        let members = [
            ("trigger", self.trigger.as_deref().map(Value::from)),
            ("resource", self.resource.as_deref().map(Value::from)),
            ("aggregateId", self.aggregate_id.as_deref().map(Value::from)),
            ("eventName", self.event_name.as_deref().map(Value::from)),
            ("since", self.since.map(|time| json!(time.0))),
            ("until", self.until.map(|time| json!(time.0))),
            ("limit", self.limit.map(Value::from)),
            ("dryRun", self.dry_run.then_some(true.into())),
        ];
        members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

fn receipt(out: Output, value: &Value) {
    let names = |member: &str| -> Vec<String> {
        let names = value[member].as_array().into_iter().flatten();
        names.filter_map(Value::as_str).map(clean).collect()
    };
    let (triggers, open) = (names("triggers"), names("open"));
    for trigger in &triggers {
        out.line(format_args!("{trigger}  replay {}", value["generation"]));
    }
    for trigger in &open {
        out.line(format_args!("{trigger}  skipped: its delivery is still open"));
    }
    for (trigger, why) in value["unmatched"].as_object().into_iter().flatten() {
        let why = clean(why.as_str().unwrap_or_default());
        out.line(format_args!("{}  unmatched: {why}", clean(trigger)));
    }
    if triggers.is_empty() && open.is_empty() {
        out.line("No trigger matches the event.");
    }
}

fn progress(out: Output, value: &Value) {
    if let Some(matches) = value["matches"].as_i64() {
        out.line(format_args!("{matches} events match"));
        return;
    }
    if value["state"] == "running" {
        let id = clean(value["id"].as_str().unwrap_or_default());
        out.line(format_args!("operation {id}: {} of {}", value["done"], value["total"]));
        return;
    }
    out.line(format_args!("{} events make {} deliveries", value["done"], value["deliveries"]));
    for (member, why) in [
        ("open", "deliveries are skipped: they are still open"),
        ("pending", "events are skipped: they are not dispatched yet"),
    ] {
        if let Some(count) = value[member].as_i64().filter(|count| *count > 0) {
            out.line(format_args!("{count} {why}"));
        }
    }
}
