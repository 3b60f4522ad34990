//! `outrigger apply`: a project's plugins and triggers, as files say they are.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::Args;
use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Context, client::Client, input, plugins};
use crate::model::trigger::TriggerSpec;

/// Each file is one document, TOML or JSON:
///
/// `{project, plugins: {name: path}, triggers: {name: {match, target, …}}}`
///
/// Paths of plugins are seen from the document. Secrets that triggers are
/// granted must be there: `outrigger secrets set` comes first. What is there and isn't named
/// is left alone; to apply the same again changes nothing.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Apply {
    /// The documents; `-` for standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only say what would change
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    project: Option<String>,
    #[serde(default)]
    plugins: BTreeMap<String, PathBuf>,
    #[serde(default)]
    triggers: BTreeMap<String, Value>,
}

/// A document with the components that it names.
struct Read {
    document: Document,
    components: Vec<(String, Vec<u8>)>,
}

impl Read {
    fn from(file: &Path) -> Result<Self> {
        let document: Document = serde_json::from_value(input::document(file)?)
            .with_context(|| file.display().to_string())?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let component = |(name, path): (&String, &PathBuf)| {
            let bytes = input::bytes(&folder.join(path));
            Ok((name.clone(), bytes.with_context(|| format!("plugin {name}"))?))
        };
        let components = document.plugins.iter().map(component).collect::<Result<_>>()?;
        Ok(Self { document, components })
    }
}

/// What was done to one thing.
#[derive(Serialize)]
struct Change {
    kind: &'static str,
    name: String,
    done: &'static str,
}

impl Apply {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let client = context.client()?;
        // All of it is read before anything is changed.
        let files = self.files.iter().map(|file| Read::from(file));
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut changes = Vec::new();
        for Read { document, components } in files {
            let project = match (&context.shared.project, &document.project) {
                (Some(named), _) | (None, Some(named)) => named,
                (None, None) => context.project()?,
            };
            let step = Step { client: &client, project, dry_run: self.dry_run };
            let mut say = |change: Change| {
                if !context.out.is_json() {
                    context
                        .out
                        .line(format_args!("{:<9} {} {}", change.done, change.kind, change.name));
                }
                changes.push(change);
            };
            say(step.project().await?);
            for (name, bytes) in components {
                say(step.plugin(&name, bytes).await.with_context(|| format!("plugin {name}"))?);
            }
            for (name, spec) in &document.triggers {
                say(step.trigger(name, spec).await.with_context(|| format!("trigger {name}"))?);
            }
        }
        if context.out.is_json() {
            context.out.line(json!({ "changes": changes }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One thing at a time, looked at before it is changed.
struct Step<'a> {
    client: &'a Client,
    project: &'a str,
    dry_run: bool,
}

impl Step<'_> {
    async fn project(&self) -> Result<Change> {
        let path = ["projects", self.project];
        let found = self.client.find(self.client.call(Method::GET, &path)?).await?;
        let done = match found {
            Some(_) => "unchanged",
            None if self.dry_run => "created",
            None => {
                self.client.put(&path, &json!({})).await?;
                "created"
            }
        };
        Ok(Change { kind: "project", name: self.project.to_owned(), done })
    }

    async fn plugin(&self, name: &str, bytes: Vec<u8>) -> Result<Change> {
        let digest = format!("{:x}", Sha256::digest(&bytes));
        let there = ["projects", self.project, "plugins", name];
        let found = self.client.find(self.client.call(Method::GET, &there)?).await?;
        let active = found.as_ref().and_then(|plugin| plugin.value()["active"].as_str());
        let done = match active {
            Some(active) if active == digest => "unchanged",
            Some(_) => "changed",
            None => "created",
        };
        if done != "unchanged" && !self.dry_run {
            plugins::upload(self.client, self.project, name, bytes, &[("activate", true)]).await?;
        }
        Ok(Change { kind: "plugin", name: name.to_owned(), done })
    }

    async fn trigger(&self, name: &str, spec: &Value) -> Result<Change> {
        let path = ["projects", self.project, "triggers", name];
        let found = self.client.find(self.client.call(Method::GET, &path)?).await?;
        let there = found.as_ref().map(|trigger| &trigger.value()["spec"]);
        let done = match there {
            Some(there) if same(there, spec) => "unchanged",
            Some(_) => "changed",
            None => "created",
        };
        if done != "unchanged" && !self.dry_run {
            let answer = self.client.put(&path, spec).await?;
            debug_assert!(matches!(answer.status, StatusCode::OK | StatusCode::CREATED));
        }
        Ok(Change { kind: "trigger", name: name.to_owned(), done })
    }
}

/// Whether two documents say the same once every default is filled in.
fn same(there: &Value, wanted: &Value) -> bool {
    let whole = |spec: &Value| serde_json::from_value::<TriggerSpec>(spec.clone()).ok();
    whole(there).is_some_and(|there| whole(wanted) == Some(there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_make_no_difference() {
        let short = json!({"match": {}, "target": {"plugin": "p"}});
        let spec: TriggerSpec = serde_json::from_value(short.clone()).expect("valid");
        let long = serde_json::to_value(spec).expect("JSON");
        assert!(same(&long, &short));
        assert!(!same(&long, &json!({"match": {}, "target": {"plugin": "q"}})));
        assert!(!same(&long, &json!({"match": {}, "target": {"plugin": "p"}, "newer": 1})));
    }
}
