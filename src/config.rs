//! What a host is told: `outrigger.toml`, and `OUTRIGGER_…` variables, which
//! have the last word.
//!
//! Every key of the file is a variable too. What is unknown, out of range or
//! contradicts itself is refused at start, with the key's name. Nothing else
//! reads the environment.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de};

pub use environment::Environment;
pub(crate) use environment::listing;
pub use http::Http;
pub use secret::{DatabaseUrl, Secret};

use crate::{
    api,
    model::units::{Bytes, Span},
    router, sandbox,
    secrets::{BadKey, Keyring},
    store,
};

mod defaults;
mod environment;
mod http;
mod rules;
mod secret;
#[cfg(test)]
mod tests;

/// The file that is read if no other is named and it exists.
pub const DEFAULT_FILE: &str = "outrigger.toml";

/// Everything that a host is told; each section is a table of the file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where events and definitions are kept.
    pub database: Database,
    /// Where people and programs reach the host.
    pub server: Server,
    /// What an event may be.
    pub events: Events,
    /// How events are claimed and delivered.
    pub router: Router,
    /// What plugins may use.
    pub sandbox: Sandbox,
    /// What plugins may send.
    pub http: Http,
    /// What projects' secrets are sealed with.
    pub secrets: Secrets,
    /// What the host says about itself.
    pub log: Log,
}

/// `[database]`: where events and definitions are kept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// `postgres://…`, `sqlite:path` or `sqlite::memory:`.
    /// `OUTRIGGER_DATABASE_URL`, `sqlite:outrigger.db`.
    pub url: DatabaseUrl,
    /// Before every table name. `OUTRIGGER_TABLE_PREFIX`, `outrigger_`.
    #[serde(deserialize_with = "prefix")]
    pub table_prefix: store::Prefix,
    /// Lanes of a new PostgreSQL schema; an existing one keeps its own.
    /// `OUTRIGGER_LANES`, 16.
    pub lanes: u16,
    /// Connections for the router and the interface together.
    /// `OUTRIGGER_CONNECTIONS`, 10.
    pub connections: u32,
    /// How long to wait for a connection, a lock or an answer.
    /// `OUTRIGGER_DATABASE_PATIENCE`, `10s`.
    pub patience: Span,
    /// How a sleeping host learns of new events. `OUTRIGGER_WAKE`, `notify`.
    pub wake: Wake,
}

/// How a sleeping host learns of new events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// PostgreSQL tells it; polling goes on, slowly.
    #[default]
    Notify,
    /// By polling alone.
    Poll,
}

/// `[server]`: where people and programs reach the host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address and port; port 0 takes a free one.
    /// `OUTRIGGER_LISTEN`, `127.0.0.1:8080`.
    pub listen: SocketAddr,
    /// A key that may do everything. `OUTRIGGER_ADMIN_KEY`; without one, and
    /// with no such key in the database, the host makes one and prints it once.
    pub admin_key: Option<Secret>,
    /// Largest body of a request that isn't an upload.
    /// `OUTRIGGER_BODY_MAX`, `8MiB`.
    pub body_max: Bytes,
}

/// `[events]`: what an event may be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    /// Largest payload, recorded or emitted. `OUTRIGGER_PAYLOAD_MAX`, `1MiB`.
    pub payload_max: Bytes,
    /// Longest chain of events that each emitted the next, so that an event
    /// which triggers itself comes to an end. `OUTRIGGER_HOPS_MAX`, 64.
    pub hops_max: u32,
    /// How long an acknowledged event is kept: the reach of its dedup key.
    /// `OUTRIGGER_RETENTION`, `7days`.
    pub retention: Span,
    /// A folder for files of the events that are to be deleted, each with its
    /// deliveries and attempts; several hosts may share it. `OUTRIGGER_ARCHIVE`;
    /// without one, they are just deleted.
    pub archive: Option<PathBuf>,
}

/// `[router]`: how events are claimed and delivered.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Router {
    /// Longest wait before looking for events unasked; shorter than the lease.
    /// `OUTRIGGER_POLL_INTERVAL`, `1s`.
    pub poll_interval: Span,
    /// Rows of one claim at the most. `OUTRIGGER_BATCH_SIZE`, 500.
    pub batch_size: u32,
    /// How long a claim holds unless it is renewed: what a host that died
    /// delays its events by. `OUTRIGGER_LEASE`, `60s`.
    pub lease: Span,
    /// Calls in flight, all triggers together; not more than sandbox slots.
    /// `OUTRIGGER_CONCURRENCY`, 64.
    pub concurrency: u32,
    /// Times that its host dies with a delivery, all but the first with
    /// nothing else running, before it becomes a dead letter.
    /// `OUTRIGGER_DEATHS_MAX`, 3.
    pub deaths_max: u32,
    /// How long a soft stop lets calls in flight end. `OUTRIGGER_GRACE`, `20s`.
    pub grace: Span,
    /// The projects that this host works for, all if absent; in the variable
    /// separated by commas. `OUTRIGGER_PROJECTS`.
    pub projects: Option<Vec<String>>,
}

/// `[sandbox]`: what plugins may use on this host, whatever their triggers say.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// Calls that run at once; each reserves about 16 GiB of address space and
    /// no memory. `OUTRIGGER_SANDBOX_SLOTS`, 256.
    pub slots: u32,
    /// Longest deadline of one call; a trigger's own limit can only be lower,
    /// as with what follows. `OUTRIGGER_SANDBOX_DEADLINE_MAX`, `1h`.
    pub deadline_max: Span,
    /// Longest time on a processor of one call.
    /// `OUTRIGGER_SANDBOX_CPU_MAX`, `1m`.
    pub cpu_max: Span,
    /// Largest memory of one call. `OUTRIGGER_SANDBOX_MEMORY_MAX`, `256MiB`.
    pub memory_max: Bytes,
    /// Memory of all calls together; one project gets three quarters of it. The
    /// first 2 MiB of each call aren't counted.
    /// `OUTRIGGER_SANDBOX_MEMORY_TOTAL`, `4GiB`.
    pub memory_total: Bytes,
    /// Elements of all tables of one call together.
    /// `OUTRIGGER_SANDBOX_TABLE_ELEMENTS`, 100000.
    pub table_elements: u32,
    /// Core instances of one component. `OUTRIGGER_SANDBOX_INSTANCES`, 64.
    pub instances: u32,
    /// Deepest stack of a guest's calls; the same for every trigger.
    /// `OUTRIGGER_SANDBOX_STACK_MAX`, `512KiB`.
    pub stack_max: Bytes,
    /// Largest component that is accepted. `OUTRIGGER_COMPONENT_MAX`, `32MiB`.
    pub component_max: Bytes,
    /// Longest log of one attempt; what comes later is dropped and counted.
    /// `OUTRIGGER_SANDBOX_LOG_BYTES`, `64KiB`.
    pub log_bytes: Bytes,
    /// Longest line in it; longer ones are cut.
    /// `OUTRIGGER_SANDBOX_LOG_LINE_BYTES`, `8KiB`.
    pub log_line_bytes: Bytes,
    /// Events that one call may emit. `OUTRIGGER_SANDBOX_EMIT_COUNT`, 1000.
    pub emit_count: u32,
    /// Bytes that the events of one call may have together.
    /// `OUTRIGGER_SANDBOX_EMIT_BYTES`, `4MiB`.
    pub emit_bytes: Bytes,
    /// Largest value of one key in a trigger's state.
    /// `OUTRIGGER_SANDBOX_STATE_VALUE_BYTES`, `1MiB`.
    pub state_value_bytes: Bytes,
    /// State keys that one call may touch, and that one listing may return.
    /// `OUTRIGGER_SANDBOX_STATE_KEYS`, 1000.
    pub state_keys: u32,
    /// Bytes of state that one call may read and write together.
    /// `OUTRIGGER_SANDBOX_STATE_BYTES`, `16MiB`.
    pub state_bytes: Bytes,
    /// Requests of one call that are under way at once.
    /// `OUTRIGGER_SANDBOX_REQUESTS`, 8.
    pub requests: u32,
    /// Bytes that the bodies of one call's requests may have together.
    /// `OUTRIGGER_SANDBOX_REQUEST_BYTES`, `4MiB`.
    pub request_bytes: Bytes,
    /// Bytes that the bodies of their responses may have together.
    /// `OUTRIGGER_SANDBOX_RESPONSE_BYTES`, `4MiB`.
    pub response_bytes: Bytes,
}

/// `[secrets]`: what projects' secrets are sealed with; the same on all hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// 32 bytes in hex or base64, such as `openssl rand -hex 32` makes; without
    /// it no secret can be set. `OUTRIGGER_SECRETS_KEY`.
    pub key: Option<Secret>,
    /// Keys that it has replaced: they open what `outrigger secrets rotate` has
    /// not sealed anew; in the variable separated by commas.
    /// `OUTRIGGER_SECRETS_PREVIOUS_KEYS`.
    pub previous_keys: Vec<Secret>,
}

/// `[log]`: what the host says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Which messages, as `level` or `target=level,…`. `OUTRIGGER_LOG`,
    /// `info,sqlx=warn,wasmtime_wasi_http=error`: guests' slips are for their
    /// own logs.
    pub filter: String,
    /// Their shape, `text` or `json`. `OUTRIGGER_LOG_FORMAT`, `text`.
    pub format: LogFormat,
}

/// The shape of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A setting that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The file is no TOML.
    #[error("{file}, line {line}: {why}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A key, or the variable that sets it, has a value that can't be used.
    #[error("{key}: {why}")]
    Key {
        /// The key as it is called where it was set.
        key: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Config {
    /// Reads the file (`file`, else `OUTRIGGER_CONFIG`, else
    /// [`DEFAULT_FILE`] if it exists), then the variables.
    ///
    /// # Errors
    /// When the file can't be read, or a setting can't be used; names it.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Self, ConfigError> {
        environment.refuse_unknown()?;
        let named = file.or_else(|| environment.get("OUTRIGGER_CONFIG").map(Path::new));
        let text = match named {
            Some(file) => Some((file, read(file)?)),
            None if Path::new(DEFAULT_FILE).exists() => {
                Some((Path::new(DEFAULT_FILE), read(Path::new(DEFAULT_FILE))?))
            }
            None => None,
        };
        let mut table = match &text {
            Some((file, text)) => parse(file, text)?,
            None => toml::Table::new(),
        };
        environment.overlay(&mut table)?;
        let config: Self = table.try_into().map_err(|error| environment.explain(&error))?;
        rules::check(&config).map_err(|(key, why)| environment.at(key, why))?;
        Ok(config)
    }

    /// Checks ranges, and what settings must be to each other, once more:
    /// whoever changes a loaded value calls this.
    ///
    /// # Errors
    /// Names the first key that can't be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        rules::check(self).map_err(|(key, why)| ConfigError::Key { key: key.to_owned(), why })
    }

    /// What the store is told.
    #[must_use]
    pub fn store(&self) -> store::Options {
        let database = &self.database;
        store::Options {
            prefix: database.table_prefix.clone(),
            lanes: database.lanes,
            connections: database.connections,
            patience: database.patience.get(),
            notify: database.wake == Wake::Notify,
        }
    }

    /// What the router is told.
    #[must_use]
    pub fn router(&self) -> router::Settings {
        let router = &self.router;
        router::Settings {
            batch: router.batch_size,
            lease: router.lease.get(),
            poll: router.poll_interval.get(),
            concurrency: usize::try_from(router.concurrency).unwrap_or(usize::MAX),
            deaths: router.deaths_max,
            retention: self.events.retention.get(),
            archive: self.events.archive.clone(),
            projects: router.projects.clone(),
        }
    }

    /// What the HTTP interface is told.
    #[must_use]
    pub fn api(&self) -> api::Settings {
        let admin_key = self.server.admin_key.as_ref();
        api::Settings {
            admin_key: admin_key.map(|key| api::KeyHash::of(key.expose())),
            body_max: self.server.body_max,
            component_max: self.sandbox.component_max,
            payload_max: self.events.payload_max,
            stall_after: self.router.lease.get() / 2,
            grace: self.router.grace.get(),
            ..api::Settings::default()
        }
    }

    /// What secrets are sealed and opened with.
    ///
    /// # Errors
    /// Names the key that can't be used.
    pub fn keyring(&self) -> Result<Keyring, ConfigError> {
        rules::keyring(&self.secrets).map_err(|(key, BadKey)| ConfigError::Key {
            key: key.to_owned(),
            why: BadKey.to_string(),
        })
    }

    /// What the sandbox is told.
    #[must_use]
    pub fn sandbox(&self) -> sandbox::Settings {
        let own = &self.sandbox;
        sandbox::Settings {
            slots: own.slots,
            deadline_max: own.deadline_max,
            cpu_max: own.cpu_max,
            memory_max: own.memory_max,
            memory_total: own.memory_total,
            table_elements: own.table_elements,
            instances: own.instances,
            stack_max: own.stack_max,
            component_max: own.component_max,
            log_bytes: own.log_bytes,
            log_line_bytes: own.log_line_bytes,
            emit_count: own.emit_count,
            emit_bytes: own.emit_bytes,
            payload_max: self.events.payload_max,
            hops_max: self.events.hops_max,
            state_value_bytes: own.state_value_bytes,
            state_keys: own.state_keys,
            state_bytes: own.state_bytes,
            requests: own.requests,
            request_bytes: own.request_bytes,
            response_bytes: own.response_bytes,
            http: (&self.http).into(),
        }
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(file)
        .map_err(|source| ConfigError::Read { file: file.display().to_string(), source })
}

/// The error says where, but doesn't quote the line: it may hold a secret.
fn parse(file: &Path, text: &str) -> Result<toml::Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        ConfigError::Syntax {
            file: file.display().to_string(),
            line: 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count(),
            why: error.message().to_owned(),
        }
    })
}

fn prefix<'de, D: Deserializer<'de>>(from: D) -> Result<store::Prefix, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}
