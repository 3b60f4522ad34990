//! `outrigger migrate`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Context;
use crate::{inbox::Inbox, store};

#[derive(Debug, Args)]
pub(super) struct Migrate {
    /// Only make this, in a database that may have nothing else of it
    #[arg(long, value_enum)]
    only: Option<Part>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    /// The inbox table of a consumer
    Inbox,
}

impl Migrate {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let config = context.config()?;
        Context::log(&config)?;
        let url = &config.database.url;
        match self.only {
            None => store::connect(url.expose(), &config.store()).await?.migrate().await?,
            Some(Part::Inbox) => {
                Inbox::with_prefix(&config.database.table_prefix).create_in(url.expose()).await?;
            }
        }
        if context.out.is_json() {
            context.out.line(json!({ "database": url.to_string() }));
        } else {
            context.out.line(format_args!("{url} is up to date"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
