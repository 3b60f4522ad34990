//! `outrigger projects`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use reqwest::StatusCode;
use serde_json::json;

use super::{
    Context, input,
    output::{Column, Show},
};

#[derive(Debug, Subcommand)]
pub(super) enum Projects {
    /// Create a project, or leave it as it is
    Create {
        #[command(flatten)]
        project: Name,
        /// What its triggers may grant, TOML or JSON: `{http: […], emit: […],
        /// secrets: bool, state: bool}`, everything that isn't named; `-` is
        /// standard input. Of a project that is there, it is changed
        #[arg(long, value_name = "FILE")]
        allow: Option<PathBuf>,
    },
    /// List projects
    List,
    /// Deliver a project's events again
    Enable(Name),
    /// Let a project's events wait
    Disable(Name),
    /// Delete a project with everything that belongs to it
    Delete {
        #[command(flatten)]
        project: Name,
        /// Confirms that events, plugins, triggers, state, secrets and keys go too
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Name {
    /// The project
    name: String,
}

const COLUMNS: [Column; 3] = [
    ("NAME", "/name", Show::Plain),
    ("ENABLED", "/enabled", Show::Plain),
    ("CREATED", "/createdAt", Show::Time),
];

impl Projects {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let (client, out) = (context.client()?, context.out);
        match self {
            Self::Create { project: Name { name }, allow } => {
                let allow = allow.map(|file| input::document(&file)).transpose()?;
                let replaced = allow.is_some();
                let body = allow.map_or_else(|| json!({}), |allow| json!({ "allow": allow }));
                let answer = client.put(&["projects", &name], &body).await?;
                if !out.json(&answer) {
                    let new = answer.status == StatusCode::CREATED;
                    let what = match (new, replaced) {
                        (true, _) => "is created",
                        (false, false) => "was there",
                        (false, true) => "was there; what it allows is replaced by the file's",
                    };
                    out.line(format_args!("project {name} {what}"));
                }
            }
            Self::List => {
                let answer = client.get(&["projects"]).await?;
                out.list(
                    &answer,
                    &COLUMNS,
                    "There is no project: `outrigger projects create NAME`.",
                );
            }
            Self::Enable(Name { name }) => {
                let answer = client.post(&["projects", &name, "enable"], &json!({})).await?;
                if !out.json(&answer) {
                    out.line(format_args!("project {name} is enabled"));
                }
            }
            Self::Disable(Name { name }) => {
                let answer = client.post(&["projects", &name, "disable"], &json!({})).await?;
                if !out.json(&answer) {
                    out.line(format_args!("project {name} is disabled; its events wait"));
                }
            }
            Self::Delete { project: Name { name }, yes } => {
                if !yes {
                    bail!(
                        "this deletes all events, plugins, triggers, state, secrets and keys of \
                         the project `{name}`; confirm with --yes"
                    );
                }
                let answer = client.delete(&["projects", &name]).await?;
                if !out.json(&answer) {
                    let went = |what| answer.value()[what].as_i64().unwrap_or(0);
                    out.line(format_args!(
                        "project {name} is deleted, with {} plugins, {} triggers, {} secrets and \
                         {} keys",
                        went("plugins"),
                        went("triggers"),
                        went("secrets"),
                        went("keys")
                    ));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
