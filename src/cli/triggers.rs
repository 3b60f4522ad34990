//! `outrigger triggers`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    Context, input,
    logs::Logs,
    output::{Column, Output, Show, cell, clean},
};

#[derive(Debug, Subcommand)]
pub(super) enum Triggers {
    /// Create or replace a trigger
    Put {
        #[command(flatten)]
        trigger: Name,
        /// Its document, TOML or JSON; `-` for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
    },
    /// List triggers
    List,
    /// Show a trigger with its document
    Show(Name),
    /// Delete a trigger and its state
    Delete {
        #[command(flatten)]
        trigger: Name,
        /// What becomes of its deliveries, if it has any
        #[arg(long, value_enum)]
        deliveries: Option<Deliveries>,
    },
    /// Let a trigger's deliveries wait
    Pause {
        #[command(flatten)]
        trigger: Name,
        /// Why, for whoever looks
        #[arg(long)]
        reason: Option<String>,
    },
    /// Deliver to a trigger again
    Resume(Name),
    /// Show a trigger's attempts with their logs, the newest last
    Logs(Logs),
    /// List what a trigger keeps
    State {
        #[command(flatten)]
        trigger: Name,
        /// Keys that begin with this
        #[arg(long)]
        prefix: Option<String>,
        /// Keys behind this one
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// Entries at the most
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
    },
}

#[derive(Debug, Args)]
pub(super) struct Name {
    /// The trigger
    name: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Deliveries {
    /// Delete them
    Drop,
    /// Keep them as dead letters
    Dead,
}

const COLUMNS: [Column; 7] = [
    ("NAME", "/name", Show::Plain),
    ("PLUGIN", "/spec/target/plugin", Show::Plain),
    ("VERSION", "/spec/target/version", Show::Digest),
    ("RESOURCE", "/spec/match/resource", Show::Plain),
    ("EVENT", "/spec/match/eventName", Show::Plain),
    ("PAUSED", "/paused", Show::Plain),
    ("UPDATED", "/updatedAt", Show::Time),
];

const MEMBERS: [Column; 6] = [
    ("name", "/name", Show::Plain),
    ("revision", "/revision", Show::Plain),
    ("paused", "/paused", Show::Plain),
    ("reason", "/pauseReason", Show::Plain),
    ("created", "/createdAt", Show::Time),
    ("updated", "/updatedAt", Show::Time),
];

const STATE: [Column; 4] = [
    ("KEY", "/key", Show::Plain),
    ("VALUE", "/value", Show::Short(100)),
    ("ENCODING", "/encoding", Show::Plain),
    ("VERSION", "/version", Show::Plain),
];

/// What its plugin asks for or it grants, and what of that is in force.
fn capabilities(out: Output, all: &Value) {
    for (name, one) in all.as_object().into_iter().flatten() {
        let (imported, hint) = (one["imported"] == true, one["hint"].as_str());
        if !imported && hint.is_none() {
            continue;
        }
        let effective = match cell(one, "/effective", Show::Plain) {
            nothing if nothing.is_empty() || nothing == "false" => "nothing".into(),
            all if all == "true" => "yes".into(),
            some => some,
        };
        out.line(format_args!("{name:<8}  {effective}"));
        if let Some(hint) = hint {
            out.line(format_args!("{:<8}  {}", "", clean(hint)));
        }
    }
}

impl Triggers {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let (client, out, project) = (context.client()?, context.out, context.project()?);
        let path = ["projects", project, "triggers"];
        match self {
            Self::Put { trigger: Name { name }, file } => {
                let document = input::document(&file)?;
                let answer = client.put(&[&path[..], &[&name]].concat(), &document).await?;
                if !out.json(&answer) {
                    let new = answer.status == StatusCode::CREATED;
                    let what = if new { "is created" } else { "is replaced" };
                    out.line(format_args!("trigger {name} {what}"));
                }
            }
            Self::List => {
                let answer = client.get(&path).await?;
                out.list(&answer, &COLUMNS, "There is no trigger: `outrigger triggers put`.");
            }
            Self::Show(Name { name }) => {
                let answer = client.get(&[&path[..], &[&name]].concat()).await?;
                if !out.json(&answer) {
                    out.item(answer.value(), &MEMBERS);
                    capabilities(out, &answer.value()["capabilities"]);
                    out.line(format_args!("\n{:#}", answer.value()["spec"]));
                }
            }
            Self::Delete { trigger: Name { name }, deliveries } => {
                let choice = match deliveries {
                    None => &[][..],
                    Some(Deliveries::Drop) => &[("deliveries", "drop")],
                    Some(Deliveries::Dead) => &[("deliveries", "dead")],
                };
                let request = client.call(Method::DELETE, &[&path[..], &[&name]].concat())?;
                let answer = client.send(request.query(choice)).await?;
                if !out.json(&answer) {
                    out.line(format_args!("trigger {name} is deleted"));
                }
            }
            Self::Pause { trigger: Name { name }, reason } => {
                let body = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
                let answer = client.post(&[&path[..], &[&name, "pause"]].concat(), &body).await?;
                if !out.json(&answer) {
                    out.line(format_args!("trigger {name} is paused; its deliveries wait"));
                }
            }
            Self::Resume(Name { name }) => {
                let answer =
                    client.post(&[&path[..], &[&name, "resume"]].concat(), &json!({})).await?;
                if !out.json(&answer) {
                    out.line(format_args!("trigger {name} goes on"));
                }
            }
            Self::Logs(logs) => logs.run(context).await?,
            Self::State { trigger: Name { name }, prefix, after, limit } => {
                let limit = limit.map(|limit| limit.to_string());
                let query = [("prefix", prefix), ("after", after), ("limit", limit)];
                let request = client.call(Method::GET, &[&path[..], &[&name, "state"]].concat())?;
                let given = query.iter().filter(|(_, value)| value.is_some()).collect::<Vec<_>>();
                let answer = client.send(request.query(&given)).await?;
                out.list(&answer, &STATE, "It keeps nothing.");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
