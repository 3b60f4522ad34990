//! `outrigger plugins`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Value, json};

use super::{
    Context,
    client::{Answer, Client},
    input,
    output::{Column, Output, Show},
    plugin_test, scaffold,
};
use crate::sandbox::Sandbox;

#[derive(Debug, Subcommand)]
pub(super) enum Plugins {
    /// Upload a component; the first version is active at once
    Push(Push),
    /// List plugins
    List,
    /// Show a plugin's versions
    Show(Name),
    /// Make a version the active one
    Activate {
        #[command(flatten)]
        plugin: Name,
        /// Its digest, or enough of it to tell it from the others
        digest: String,
    },
    /// Delete a plugin that no trigger names
    Delete(Name),
    /// Write a project that builds a plugin
    New(scaffold::New),
    /// Call a component once in the real sandbox, with no host needed
    Test(plugin_test::Test),
    /// Check a component as an upload would be, with no host needed
    Check {
        /// The component
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(super) struct Name {
    /// The plugin
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct Push {
    #[command(flatten)]
    plugin: Name,
    /// The component
    file: PathBuf,
    /// Make it the active version
    #[arg(long)]
    activate: bool,
    /// Only check whether the host would accept it
    #[arg(long)]
    dry_run: bool,
}

const COLUMNS: [Column; 4] = [
    ("NAME", "/name", Show::Plain),
    ("ACTIVE", "/active", Show::Digest),
    ("VERSIONS", "/count", Show::Plain),
    ("UPLOADED", "/versions/0/createdAt", Show::Time),
];

const VERSIONS: [Column; 5] = [
    ("DIGEST", "/digest", Show::Plain),
    ("ACTIVE", "/active", Show::Plain),
    ("BYTES", "/size", Show::Plain),
    ("COMPILE MS", "/compileMs", Show::Plain),
    ("UPLOADED", "/createdAt", Show::Time),
];

const VERSION: [Column; 7] = [
    ("digest", "/digest", Show::Plain),
    ("active", "/active", Show::Plain),
    ("bytes", "/size", Show::Plain),
    ("compile ms", "/compileMs", Show::Plain),
    ("asks for", "/capabilities", Show::Plain),
    ("imports", "/imports", Show::Plain),
    ("exports", "/exports", Show::Plain),
];

/// How long an upload may take, compiling it included.
const UPLOAD: Duration = Duration::from_mins(10);

impl Plugins {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let out = context.out;
        match self {
            Self::New(new) => return new.run(out),
            Self::Check { file } => return check(context, input::bytes(&file)?).await,
            Self::Test(test) => return test.run(context).await,
            _ => {}
        }
        let (client, project) = (context.client()?, context.project()?);
        let path = ["projects", project, "plugins"];
        match self {
            Self::Push(Push { plugin: Name { name }, file, activate, dry_run }) => {
                let bytes = input::bytes(&file)?;
                let options = [("activate", activate), ("dryRun", dry_run)];
                let answer = upload(&client, project, &name, bytes, &options).await?;
                if !out.json(&answer) {
                    out.item(answer.value(), &VERSION);
                }
            }
            Self::List => list(out, &client.get(&path).await?),
            Self::Show(Name { name }) => {
                let answer = client.get(&[&path[..], &[&name]].concat()).await?;
                if !out.json(&answer) {
                    out.table(versions(&answer), &VERSIONS);
                }
            }
            Self::Activate { plugin: Name { name }, digest } => {
                let plugin = client.get(&[&path[..], &[&name]].concat()).await?;
                let digest = complete(&name, &digest, versions(&plugin))?;
                let body = json!({ "digest": digest });
                let answer =
                    client.post(&[&path[..], &[&name, "activate"]].concat(), &body).await?;
                if !out.json(&answer) {
                    out.line(format_args!("plugin {name} is at {digest}"));
                }
            }
            Self::Delete(Name { name }) => {
                client.delete(&[&path[..], &[&name]].concat()).await?;
                out.note(format_args!("plugin {name} is deleted"));
            }
            Self::New(_) | Self::Test(_) | Self::Check { .. } => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Uploads a component.
pub(super) async fn upload(
    client: &Client,
    project: &str,
    name: &str,
    bytes: Vec<u8>,
    options: &[(&str, bool)],
) -> Result<Answer> {
    let request = client
        .call(Method::PUT, &["projects", project, "plugins", name])?
        .query(options)
        .header(CONTENT_TYPE, "application/wasm")
        .timeout(UPLOAD)
        .body(bytes);
    client.send(request).await
}

fn list(out: Output, answer: &Answer) {
    if out.json(answer) {
        return;
    }
    let counted = |plugin: &Value| {
        let mut row = plugin.clone();
        row["count"] = plugin["versions"].as_array().map_or(0, Vec::len).into();
        row
    };
    let plugins: Vec<Value> =
        answer.value()["items"].as_array().into_iter().flatten().map(counted).collect();
    if plugins.is_empty() {
        out.note("There is no plugin: `outrigger plugins push NAME FILE`.");
    } else {
        out.table(&plugins, &COLUMNS);
    }
}

fn versions(plugin: &Answer) -> &[Value] {
    plugin.value()["versions"].as_array().map_or(&[], Vec::as_slice)
}

/// The one digest that begins so.
fn complete<'a>(name: &str, start: &str, versions: &'a [Value]) -> Result<&'a str> {
    let digests = versions.iter().filter_map(|version| version["digest"].as_str());
    let mut found = digests.filter(|digest| !start.is_empty() && digest.starts_with(start));
    match (found.next(), found.next()) {
        (Some(digest), None) => Ok(digest),
        (None, _) => {
            bail!("the plugin `{name}` has no version `{start}`; `plugins show` lists them")
        }
        (Some(_), Some(_)) => {
            bail!("`{start}` begins more than one version of the plugin `{name}`")
        }
    }
}

async fn check(context: &Context, bytes: Vec<u8>) -> Result<ExitCode> {
    let plugin = Sandbox::new(context.config()?.sandbox())?.load(bytes).await?;
    let mut info = serde_json::to_value(&plugin.info)?;
    info["capabilities"] = serde_json::to_value(plugin.info.capabilities())?;
    if context.out.is_json() {
        context.out.line(info);
    } else {
        context.out.item(&info, &VERSION);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_may_be_cut_short_while_it_is_clear() {
        let versions = [json!({"digest": "abc1"}), json!({"digest": "abd2"})];
        assert_eq!(complete("p", "abc", &versions).expect("one"), "abc1");
        assert_eq!(complete("p", "abd2", &versions).expect("one"), "abd2");
        for bad in ["", "ab", "x", "abc11"] {
            assert!(complete("p", bad, &versions).is_err(), "{bad}");
        }
    }
}
