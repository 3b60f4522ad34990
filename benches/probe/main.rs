//! Two measurements that a host is held against, each printed as one line of
//! JSON: `probe ceiling` is how fast a database takes claims and settles when
//! nothing else is done, `probe sandbox` what a call costs above a bare one.
//!
//! ```sh
//! cargo bench --bench probe -- ceiling --database-url postgres://… --events 200000
//! cargo bench --bench probe -- sandbox --plugin plugin.wasm --calls 20000
//! ```

mod bare;
mod ceiling;
mod sandbox;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Measures what a host is held against.
#[derive(Parser)]
#[command(name = "probe")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Given by `cargo bench`; says nothing
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Claims and settles as fast as the database takes them, with no router and no calls
    Ceiling(ceiling::Ceiling),
    /// A call as the router makes it, against a bare one in the same engine
    Sandbox(sandbox::Sandboxed),
}

/// As the host has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let measured = match Arguments::parse().command {
        Some(Command::Ceiling(ceiling)) => ceiling.run(),
        Some(Command::Sandbox(sandboxed)) => sandboxed.run(),
        // `cargo bench` with no arguments runs every benchmark there is.
        None => return usage(),
    };
    match measured {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("probe: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    match Arguments::command().print_help() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
