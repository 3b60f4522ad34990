//! The command line: one file per group of commands.
//!
//! `serve` and `migrate` are the host; the others talk to one through
//! `client` and print what it answers through `output`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};

use self::{client::Client, output::Output};
use crate::config::{Config, Environment, LogFormat, Secret};
use crate::telemetry;

mod apply;
mod attempt;
mod client;
mod compile;
mod dead_letters;
mod events;
mod input;
mod keys;
mod logs;
mod migrate;
mod operation;
mod output;
mod page;
mod plugin_test;
mod plugins;
mod projects;
mod replay;
mod scaffold;
mod secrets;
mod serve;
mod status;
mod time;
mod triggers;

/// Where a host is looked for if nobody says otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Routes events from a transactional outbox to WebAssembly triggers.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    shared: Shared,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Shared {
    /// Configuration file [`OUTRIGGER_CONFIG`; `./outrigger.toml` if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The host to talk to [`OUTRIGGER_URL`; `http://127.0.0.1:8080`]
    #[arg(long, global = true, value_name = "URL", help_heading = "Talking to a host")]
    url: Option<String>,
    /// API key [`OUTRIGGER_KEY`, else `OUTRIGGER_ADMIN_KEY`]
    #[arg(long, global = true, value_name = "KEY", help_heading = "Talking to a host")]
    key: Option<Secret>,
    /// Project [`OUTRIGGER_PROJECT`, where a command needs one]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Talking to a host")]
    project: Option<String>,
    /// Print what the host answers, as JSON
    #[arg(long, global = true, help_heading = "Talking to a host")]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a host: router and HTTP interface in one process
    Serve(serve::Serve),
    /// Bring the database's tables to this program's version
    Migrate(migrate::Migrate),
    /// Make a project's plugins and triggers what files say they are
    Apply(apply::Apply),
    /// Show counts and health
    Status,
    /// Record events, look at them, deliver them again
    #[command(subcommand)]
    Events(events::Events),
    /// Put triggers, pause them, look at them
    #[command(subcommand)]
    Triggers(triggers::Triggers),
    /// Write, check and upload plugins
    #[command(subcommand)]
    Plugins(plugins::Plugins),
    /// Look at dead letters, give them new attempts, delete them
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLetters),
    /// Set secrets, which triggers can be granted
    #[command(subcommand)]
    Secrets(secrets::Secrets),
    /// Make and delete API keys
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Create, disable and delete projects
    #[command(subcommand)]
    Projects(projects::Projects),
    /// Compile a component for the process that started this one
    #[command(hide = true)]
    CompileComponent(compile::Compile),
}

impl Cli {
    /// Runs the one command that must not have what others begin with: threads,
    /// settings, a log. `None` for the others.
    #[must_use]
    pub fn run_bare(&self) -> Option<ExitCode> {
        match &self.command {
            Command::CompileComponent(command) => Some(command.run()),
            _ => None,
        }
    }
}

/// Runs one command; the code is what the process ends with.
///
/// # Errors
/// When the command can't be carried out; the message is for whoever typed it.
pub async fn run(cli: Cli, environment: Environment) -> Result<ExitCode> {
    let Cli { shared, command } = cli;
    let context = Context { out: Output::new(shared.json), shared, environment };
    match command {
        Command::Serve(command) => command.run(&context).await,
        Command::Migrate(command) => command.run(&context).await,
        Command::Apply(command) => command.run(&context).await,
        Command::Status => status::run(&context).await,
        Command::Events(command) => command.run(&context).await,
        Command::Triggers(command) => command.run(&context).await,
        Command::Plugins(command) => command.run(&context).await,
        Command::DeadLetters(command) => command.run(&context).await,
        Command::Secrets(command) => command.run(&context).await,
        Command::Keys(command) => command.run(&context).await,
        Command::Projects(command) => command.run(&context).await,
        Command::CompileComponent(command) => Ok(command.run()),
    }
}

/// An error and its causes on one line, none repeated: many say theirs already.
#[must_use]
pub fn explain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut said, cause| {
        let cause = cause.to_string();
        if !said.contains(&cause) {
            let colon = if said.is_empty() { "" } else { ": " };
            said.push_str(colon);
            said.push_str(&cause);
        }
        said
    })
}

/// What every command is given.
struct Context {
    shared: Shared,
    environment: Environment,
    out: Output,
}

impl Context {
    /// The configuration of a host, for commands that are one.
    fn config(&self) -> Result<Config> {
        Config::load(self.shared.config.as_deref(), &self.environment)
            .context("the configuration can't be used")
    }

    /// Begins to log as the configuration says.
    fn log(config: &Config) -> Result<()> {
        let format = match config.log.format {
            LogFormat::Text => telemetry::Format::Text,
            LogFormat::Json => telemetry::Format::Json,
        };
        telemetry::init(&config.log.filter, format).context("log.filter (OUTRIGGER_LOG)")
    }

    /// A client of the host that was named.
    fn client(&self) -> Result<Client> {
        let url = self.shared.url.as_deref().or_else(|| self.environment.get("OUTRIGGER_URL"));
        let key = self.shared.key.as_ref().map(Secret::expose);
        let key = key
            .or_else(|| self.environment.get("OUTRIGGER_KEY"))
            .or_else(|| self.environment.get("OUTRIGGER_ADMIN_KEY"));
        Client::new(url.unwrap_or(DEFAULT_URL), key)
    }

    /// The project that was named.
    fn project(&self) -> Result<&str> {
        let named = self.shared.project.as_deref();
        named
            .or_else(|| self.environment.get("OUTRIGGER_PROJECT"))
            .context("say which project: --project NAME, or OUTRIGGER_PROJECT")
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("no route").context("the database: no route").context("start");
        assert_eq!(explain(&error), "start: the database: no route");
    }
}
