//! What the host says about itself: one line per message on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, fmt, util::TryInitError};
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// The shape of the lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object each, with the message's fields.
    Json,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter can't be read.
    #[error("`{filter}` is no log filter; write `info`, or `warn,outrigger=debug`: {source}")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// It is set up already.
    #[error("the log is set up already: {0}")]
    Twice(#[from] TryInitError),
}

/// Sends messages that pass the filter (`level` or `target=level,…`) to
/// standard error; standard output belongs to commands.
///
/// # Errors
/// When the filter can't be read, or this was done before.
pub fn init(filter: &str, format: Format) -> Result<(), TelemetryError> {
    let filter = parse(filter)?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = fmt::layer().with_writer(std::io::stderr);
    match format {
        Format::Text => {
            let colours = std::io::stderr().is_terminal();
            registry.with(layer.with_ansi(colours)).try_init()?;
        }
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init()?,
    }
    Ok(())
}

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    let error = |source| TelemetryError::Filter { filter: filter.to_owned(), source };
    // An empty filter would mute everything, errors too.
    let written = if filter.trim().is_empty() { "info" } else { filter };
    EnvFilter::builder().parse(written).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_or_refused() {
        for good in ["", "info", "warn,outrigger=debug", "outrigger::router=trace"] {
            parse(good).expect(good);
        }
        for bad in ["outrigger=loud", "a=b=c"] {
            let error = parse(bad).expect_err(bad);
            assert!(error.to_string().contains(bad), "{error}");
        }
    }
}
