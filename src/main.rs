//! The `outrigger` program: a host, and the commands that talk to one.

use std::process::ExitCode;

use clap::Parser as _;
use outrigger::{
    cli::{self, Cli},
    config::Environment,
};

/// Every call allocates, on one thread, what is freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.run_bare().unwrap_or_else(|| run(cli))
}

#[tokio::main]
async fn run(cli: Cli) -> ExitCode {
    let done = match Environment::of_process() {
        Ok(environment) => cli::run(cli, environment).await,
        Err(error) => Err(error.into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {}", cli::explain(&error));
        ExitCode::FAILURE
    })
}
