//! What the types of the settings can't say.

use super::{Config, Secret, Secrets};
use crate::{
    model::{
        names::{self, Invalid},
        units::{Bytes, Span},
    },
    secrets::{BadKey, Keyring},
};

/// Checks ranges, and what settings must be to each other. The error is the
/// key and what is wrong with it.
pub(super) fn check(config: &Config) -> Result<(), (&'static str, String)> {
    ranges(config)?;
    relations(config)?;
    admin_key(config)?;
    projects(config)?;
    keyring(&config.secrets).map_err(|(key, why)| (key, why.to_string()))?;
    config.sandbox().validate().map_err(in_sandbox)
}

type Rule = (&'static str, bool, &'static str);

fn first_broken(rules: impl IntoIterator<Item = Rule>) -> Result<(), (&'static str, String)> {
    match rules.into_iter().find(|(_, holds, _)| !holds) {
        Some((key, _, why)) => Err((key, why.to_owned())),
        None => Ok(()),
    }
}

fn ranges(config: &Config) -> Result<(), (&'static str, String)> {
    let Config { database, server, events, router, .. } = config;
    let (milli, second, hour) = (Span::from_millis(1), Span::from_secs(1), Span::from_secs(3600));
    let ten_years = Span::from_secs(3650 * 86_400);
    let scheme = database.url.expose().split_once(':').map_or("", |(scheme, _)| scheme);
    first_broken([
        (
            "database.url",
            ["postgres", "postgresql", "sqlite"].contains(&scheme),
            "begins with neither `postgres:` nor `sqlite:`",
        ),
        ("database.lanes", (1..=1024).contains(&database.lanes), "is not between 1 and 1024"),
        (
            "database.connections",
            (2..=1000).contains(&database.connections),
            "is not between 2 and 1000",
        ),
        (
            "database.patience",
            (milli..=hour).contains(&database.patience),
            "is not between 1ms and 1h",
        ),
        (
            "server.body_max",
            (Bytes::kib(1)..=Bytes::mib(1024)).contains(&server.body_max),
            "is not between 1KiB and 1GiB",
        ),
        ("events.hops_max", (1..=10_000).contains(&events.hops_max), "is not between 1 and 10000"),
        (
            "events.retention",
            (second..=ten_years).contains(&events.retention),
            "is not between 1s and 3650days",
        ),
        (
            "events.archive",
            events.archive.as_ref().is_none_or(|folder| !folder.as_os_str().is_empty()),
            "is empty; leave it out to archive nothing",
        ),
        (
            "router.batch_size",
            (1..=10_000).contains(&router.batch_size),
            "is not between 1 and 10000",
        ),
        ("router.lease", (second..=hour).contains(&router.lease), "is not between 1s and 1h"),
        ("router.poll_interval", router.poll_interval >= milli, "is shorter than 1ms"),
        (
            "router.concurrency",
            (1..=10_000).contains(&router.concurrency),
            "is not between 1 and 10000",
        ),
        ("router.deaths_max", (3..=100).contains(&router.deaths_max), "is not between 3 and 100"),
        ("router.grace", router.grace <= hour, "is longer than 1h"),
    ])
}

fn relations(config: &Config) -> Result<(), (&'static str, String)> {
    let Config { server, events, router, sandbox, .. } = config;
    first_broken([
        (
            "router.poll_interval",
            router.poll_interval < router.lease,
            "is not shorter than the lease: a claim would run out between two looks",
        ),
        (
            "router.concurrency",
            router.concurrency <= sandbox.slots,
            "is more than `sandbox.slots`: calls would hold their claims and wait",
        ),
        (
            "server.body_max",
            server.body_max >= events.payload_max,
            "is less than `events.payload_max`: the largest event couldn't be sent",
        ),
        (
            "sandbox.state_bytes",
            sandbox.state_bytes >= sandbox.state_value_bytes,
            "is less than `sandbox.state_value_bytes`",
        ),
        (
            "sandbox.log_bytes",
            sandbox.log_bytes >= sandbox.log_line_bytes,
            "is less than `sandbox.log_line_bytes`",
        ),
    ])
}

/// Shortest admin key, in bytes.
const ADMIN_KEY_MIN: usize = 12;

/// It travels in a header, so it is kept to what may stand there.
fn admin_key(config: &Config) -> Result<(), (&'static str, String)> {
    let Some(key) = &config.server.admin_key else { return Ok(()) };
    let key = key.expose();
    if key.len() < ADMIN_KEY_MIN {
        return Err(("server.admin_key", format!("is shorter than {ADMIN_KEY_MIN} characters")));
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = "may have only visible ASCII characters, and no space";
        return Err(("server.admin_key", why.into()));
    }
    Ok(())
}

/// What secrets are sealed and opened with. A wrong key is named, not shown.
pub(super) fn keyring(secrets: &Secrets) -> Result<Keyring, (&'static str, BadKey)> {
    let previous = || secrets.previous_keys.iter().map(Secret::expose);
    Keyring::new(None, previous()).map_err(|why| ("secrets.previous_keys", why))?;
    let current = secrets.key.as_ref().map(Secret::expose);
    Keyring::new(current, previous()).map_err(|why| ("secrets.key", why))
}

fn projects(config: &Config) -> Result<(), (&'static str, String)> {
    let projects = config.router.projects.as_deref();
    if projects.is_some_and(<[_]>::is_empty) {
        return Err(("router.projects", "is empty; leave it out for all projects".into()));
    }
    for name in projects.unwrap_or_default() {
        names::name("the name", name)
            .map_err(|error| ("router.projects", format!("`{name}`: {error}")))?;
    }
    Ok(())
}

/// The sandbox checks its own settings; two of them are called otherwise here.
fn in_sandbox(error: Invalid) -> (&'static str, String) {
    let key = match error.field {
        "payload_max" => "events.payload_max",
        "hops_max" => "events.hops_max",
        "slots" => "sandbox.slots",
        "deadline_max" => "sandbox.deadline_max",
        "cpu_max" => "sandbox.cpu_max",
        "memory_max" => "sandbox.memory_max",
        "memory_total" => "sandbox.memory_total",
        "table_elements" => "sandbox.table_elements",
        "instances" => "sandbox.instances",
        "stack_max" => "sandbox.stack_max",
        "requests" => "sandbox.requests",
        "connections" => "http.connections",
        "requests_per_call" => "http.requests_per_call",
        "connect_timeout" => "http.connect_timeout",
        "read_timeout" => "http.read_timeout",
        "component_max" => "sandbox.component_max",
        "log_line_bytes" => "sandbox.log_line_bytes",
        "state_value_bytes" => "sandbox.state_value_bytes",
        _ => return ("sandbox", error.to_string()),
    };
    (key, error.why)
}
