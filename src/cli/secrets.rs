//! `outrigger secrets`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, bail};
use clap::Subcommand;
use reqwest::StatusCode;
use serde_json::json;

use super::{
    Context, input,
    output::{Column, Output, Show},
};
use crate::{
    secrets::Keyring,
    store::{self, SealedSecret, Store},
};

#[derive(Debug, Subcommand)]
pub(super) enum Secrets {
    /// Set a secret: its value comes from a file or standard input, never from
    /// the command line, where others can see it. A line feed at its end is
    /// left out
    Set {
        /// The secret, as triggers are granted it
        name: String,
        /// The file with its value; `-` for standard input
        #[arg(long, value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
    /// List secrets, without their values, and which triggers are granted them
    List,
    /// Delete a secret that no trigger is granted
    Delete {
        /// The secret
        name: String,
    },
    /// Seal all secrets of the configured database with `secrets.key`, those that
    /// `secrets.previous_keys` sealed; can be repeated, and hosts may run
    Rotate,
}

const COLUMNS: [Column; 3] = [
    ("NAME", "/name", Show::Plain),
    ("UPDATED", "/updatedAt", Show::Time),
    ("TRIGGERS", "/triggers", Show::Plain),
];

impl Secrets {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let out = context.out;
        if matches!(self, Self::Rotate) {
            return rotate(context).await;
        }
        let (client, project) = (context.client()?, context.project()?);
        let path = ["projects", project, "secrets"];
        match self {
            Self::Set { name, file } => {
                let body = json!({ "value": value(&file)? });
                let answer = client.put(&[&path[..], &[&name]].concat(), &body).await?;
                if !out.json(&answer) {
                    let new = answer.status == StatusCode::CREATED;
                    let what = if new { "is set" } else { "has another value" };
                    out.line(format_args!("secret {name} {what}"));
                }
            }
            Self::List => {
                let answer = client.get(&path).await?;
                out.list(&answer, &COLUMNS, "There is no secret: `outrigger secrets set`.");
            }
            Self::Delete { name } => {
                client.delete(&[&path[..], &[&name]].concat()).await?;
                out.note(format_args!("secret {name} is deleted"));
            }
            Self::Rotate => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The text of a file, without the line feed that most ways to write one add.
pub(super) fn value(file: &Path) -> Result<String> {
    let mut text = input::text(file)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// Secrets that are read at once.
const PART: u32 = 50;

/// Goes through all secrets. Each is replaced by itself, so that what breaks
/// off can be done again.
async fn rotate(context: &Context) -> Result<ExitCode> {
    let config = context.config()?;
    let keyring = config.keyring()?;
    if !keyring.can_seal() {
        bail!("secrets.key (OUTRIGGER_SECRETS_KEY) isn't set: there is nothing to seal with");
    }
    let store = store::connect(config.database.url.expose(), &config.store()).await?;
    store.migrate().await?;
    let mut rotation = Rotation { keyring, store: &*store, sealed: 0, current: 0, failed: 0 };
    let mut after: Option<(String, String)> = None;
    loop {
        let from = after.as_ref().map(|(project, name)| (&**project, &**name));
        let part = store.all_sealed(from, PART).await?;
        let Some(last) = part.last() else { break };
        after = Some((last.project.clone(), last.name.clone()));
        for secret in &part {
            rotation.seal_anew(context.out, secret).await?;
        }
    }
    let Rotation { sealed, current, failed, .. } = rotation;
    if context.out.is_json() {
        context.out.line(json!({ "sealed": sealed, "current": current, "failed": failed }));
    } else {
        context.out.line(format_args!(
            "{sealed} secrets are sealed with the current key, {current} were before, {failed} failed"
        ));
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Rotation<'a> {
    keyring: Keyring,
    store: &'a dyn Store,
    sealed: u32,
    current: u32,
    failed: u32,
}

impl Rotation<'_> {
    async fn seal_anew(&mut self, out: Output, secret: &SealedSecret) -> Result<()> {
        let SealedSecret { project, name, sealed } = secret;
        if self.keyring.is_current(sealed) {
            self.current += 1;
            return Ok(());
        }
        match self.keyring.open(project, name, sealed) {
            Ok(value) => {
                let anew = self.keyring.seal(project, name, &value)?;
                // One that was set meanwhile is sealed with the key of its host.
                let replaced = self.store.reseal(secret, &anew).await?;
                self.sealed += u32::from(replaced);
            }
            Err(error) => {
                out.note(format_args!("secret {name} of project {project}: {error}"));
                self.failed += 1;
            }
        }
        Ok(())
    }
}
