//! `outrigger dead-letters`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    Context, operation,
    output::{Column, Show},
    page::Page,
    time::Time,
};

#[derive(Debug, Subcommand)]
pub(super) enum DeadLetters {
    /// List dead letters, the newest first
    List(List),
    /// Give dead letters new attempts: by id, or all that match
    Requeue(Which),
    /// Delete dead letters: by id, or all that match
    Purge(Which),
}

#[derive(Debug, Args)]
pub(super) struct Filter {
    /// Of this trigger
    #[arg(long)]
    trigger: Option<String>,
    /// Of this event name
    #[arg(long)]
    event_name: Option<String>,
    /// Of this aggregate
    #[arg(long)]
    aggregate_id: Option<String>,
    /// That died of this, such as `reject` or `deadline`
    #[arg(long)]
    kind: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    page: Page,
}

#[derive(Debug, Args)]
pub(super) struct Which {
    /// These alone, by the ids that `list` shows
    #[arg(conflicts_with_all = [
        "trigger", "event_name", "aggregate_id", "kind", "since", "until", "limit", "all", "dry_run",
    ])]
    ids: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
    /// That died at or after this, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Time>,
    /// That died before this
    #[arg(long, value_name = "TIME")]
    until: Option<Time>,
    /// At the most so many
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// All of the project's, where no filter is given
    #[arg(long)]
    all: bool,
    /// Only say how many there are
    #[arg(long)]
    dry_run: bool,
    /// Don't wait for the end
    #[arg(long)]
    no_wait: bool,
}

const COLUMNS: [Column; 8] = [
    ("ID", "/id", Show::Plain),
    ("TRIGGER", "/trigger", Show::Plain),
    ("EVENT", "/eventName", Show::Plain),
    ("AGGREGATE", "/aggregateId", Show::Plain),
    ("ATTEMPTS", "/attempts", Show::Plain),
    ("KIND", "/kind", Show::Plain),
    ("DIED", "/diedAt", Show::Time),
    ("LAST ERROR", "/lastError", Show::Short(60)),
];

impl DeadLetters {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Self::List(List { filter, page }) => {
                let client = context.client()?;
                let path = ["projects", context.project()?, "dead-letters"];
                let query = page.query(&filter.members());
                let answer = client.send(client.call(Method::GET, &path)?.query(&query)).await?;
                context.out.list(&answer, &COLUMNS, "There is no dead letter.");
            }
            Self::Requeue(which) => which.apply(context, "requeue", "requeued").await?,
            Self::Purge(which) => which.apply(context, "purge", "deleted").await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Filter {
    fn members(&self) -> [(&'static str, &Option<String>); 4] {
        [
            ("trigger", &self.trigger),
            ("eventName", &self.event_name),
            ("aggregateId", &self.aggregate_id),
            ("kind", &self.kind),
        ]
    }
}

impl Which {
    async fn apply(self, context: &Context, verb: &str, done: &str) -> Result<()> {
        let (client, out, project) = (context.client()?, context.out, context.project()?);
        let path = ["projects", project, "dead-letters"];
        if !self.ids.is_empty() {
            for id in &self.ids {
                let id = id.to_string();
                let answer = client.post(&[&path[..], &[&id, verb]].concat(), &json!({})).await?;
                if !out.json(&answer) {
                    out.line(format_args!("dead letter {id} is {done}"));
                }
            }
            return Ok(());
        }
        let body = self.body();
        if body.keys().all(|member| member == "dryRun" || member == "limit") && !self.all {
            bail!("say which: ids, a filter such as --trigger NAME, or --all");
        }
        let mut answer = client.post(&[&path[..], &[verb]].concat(), &body.into()).await?;
        if !self.dry_run && !self.no_wait {
            answer = operation::follow(&client, project, answer).await?;
        }
        if out.json(&answer) {
            return Ok(());
        }
        let value = answer.value();
        match (value["matches"].as_i64(), value["state"].as_str()) {
            (Some(matches), _) => out.line(format_args!("{matches} dead letters match")),
            (None, Some("running")) => {
                let id = value["id"].as_str().unwrap_or_default();
                out.line(format_args!("operation {id}: {} of {}", value["done"], value["total"]));
            }
            _ => {
                let open = value["open"].as_i64().unwrap_or(0);
                let count = value["done"].as_i64().unwrap_or(0) - open;
                out.line(format_args!("{count} dead letters are {done}"));
                if open > 0 {
                    out.line(format_args!("{open} are skipped: their events are replayed now"));
                }
            }
        }
        Ok(())
    }

    fn body(&self) -> Map<String, Value> {
        let filter =
            self.filter.members().map(|(name, value)| (name, value.clone().map(Value::from)));
        let rest = [
            ("since", self.since.map(|time| time.0.into())),
            ("until", self.until.map(|time| time.0.into())),
            ("limit", self.limit.map(Value::from)),
            ("dryRun", self.dry_run.then_some(true.into())),
        ];
        let members = filter.into_iter().chain(rest);
        members.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}
