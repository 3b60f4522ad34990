//! `OUTRIGGER_…` variables: which there are, and where each belongs.

use std::{collections::BTreeMap, env, fmt};

use toml::Value;

use super::ConfigError;

/// What kind of value a variable's text stands for.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    List,
}

use Kind::{List, Number, Text};

/// Every setting of a host: variable, section, key.
const SETTINGS: &[(&str, &str, &str, Kind)] = &[
    ("OUTRIGGER_DATABASE_URL", "database", "url", Text),
    ("OUTRIGGER_TABLE_PREFIX", "database", "table_prefix", Text),
    ("OUTRIGGER_LANES", "database", "lanes", Number),
    ("OUTRIGGER_CONNECTIONS", "database", "connections", Number),
    ("OUTRIGGER_DATABASE_PATIENCE", "database", "patience", Text),
    ("OUTRIGGER_WAKE", "database", "wake", Text),
    ("OUTRIGGER_LISTEN", "server", "listen", Text),
    ("OUTRIGGER_ADMIN_KEY", "server", "admin_key", Text),
    ("OUTRIGGER_BODY_MAX", "server", "body_max", Text),
    ("OUTRIGGER_PAYLOAD_MAX", "events", "payload_max", Text),
    ("OUTRIGGER_HOPS_MAX", "events", "hops_max", Number),
    ("OUTRIGGER_RETENTION", "events", "retention", Text),
    ("OUTRIGGER_ARCHIVE", "events", "archive", Text),
    ("OUTRIGGER_POLL_INTERVAL", "router", "poll_interval", Text),
    ("OUTRIGGER_BATCH_SIZE", "router", "batch_size", Number),
    ("OUTRIGGER_LEASE", "router", "lease", Text),
    ("OUTRIGGER_CONCURRENCY", "router", "concurrency", Number),
    ("OUTRIGGER_DEATHS_MAX", "router", "deaths_max", Number),
    ("OUTRIGGER_GRACE", "router", "grace", Text),
    ("OUTRIGGER_PROJECTS", "router", "projects", List),
    ("OUTRIGGER_SANDBOX_SLOTS", "sandbox", "slots", Number),
    ("OUTRIGGER_SANDBOX_DEADLINE_MAX", "sandbox", "deadline_max", Text),
    ("OUTRIGGER_SANDBOX_CPU_MAX", "sandbox", "cpu_max", Text),
    ("OUTRIGGER_SANDBOX_MEMORY_MAX", "sandbox", "memory_max", Text),
    ("OUTRIGGER_SANDBOX_MEMORY_TOTAL", "sandbox", "memory_total", Text),
    ("OUTRIGGER_SANDBOX_TABLE_ELEMENTS", "sandbox", "table_elements", Number),
    ("OUTRIGGER_SANDBOX_INSTANCES", "sandbox", "instances", Number),
    ("OUTRIGGER_SANDBOX_STACK_MAX", "sandbox", "stack_max", Text),
    ("OUTRIGGER_COMPONENT_MAX", "sandbox", "component_max", Text),
    ("OUTRIGGER_SANDBOX_LOG_BYTES", "sandbox", "log_bytes", Text),
    ("OUTRIGGER_SANDBOX_LOG_LINE_BYTES", "sandbox", "log_line_bytes", Text),
    ("OUTRIGGER_SANDBOX_EMIT_COUNT", "sandbox", "emit_count", Number),
    ("OUTRIGGER_SANDBOX_EMIT_BYTES", "sandbox", "emit_bytes", Text),
    ("OUTRIGGER_SANDBOX_STATE_VALUE_BYTES", "sandbox", "state_value_bytes", Text),
    ("OUTRIGGER_SANDBOX_STATE_KEYS", "sandbox", "state_keys", Number),
    ("OUTRIGGER_SANDBOX_STATE_BYTES", "sandbox", "state_bytes", Text),
    ("OUTRIGGER_SANDBOX_REQUESTS", "sandbox", "requests", Number),
    ("OUTRIGGER_SANDBOX_REQUEST_BYTES", "sandbox", "request_bytes", Text),
    ("OUTRIGGER_SANDBOX_RESPONSE_BYTES", "sandbox", "response_bytes", Text),
    ("OUTRIGGER_HTTP_ALLOW", "http", "allow", List),
    ("OUTRIGGER_HTTP_CONNECTIONS", "http", "connections", Number),
    ("OUTRIGGER_HTTP_REQUESTS_PER_CALL", "http", "requests_per_call", Number),
    ("OUTRIGGER_HTTP_CONNECT_TIMEOUT", "http", "connect_timeout", Text),
    ("OUTRIGGER_HTTP_READ_TIMEOUT", "http", "read_timeout", Text),
    ("OUTRIGGER_SECRETS_KEY", "secrets", "key", Text),
    ("OUTRIGGER_SECRETS_PREVIOUS_KEYS", "secrets", "previous_keys", List),
    ("OUTRIGGER_LOG", "log", "filter", Text),
    ("OUTRIGGER_LOG_FORMAT", "log", "format", Text),
];

/// Variables that are read elsewhere: by the commands that talk to a host, and
/// the name of the file itself.
const OTHERS: [&str; 4] =
    ["OUTRIGGER_CONFIG", "OUTRIGGER_URL", "OUTRIGGER_KEY", "OUTRIGGER_PROJECT"];

/// The `OUTRIGGER_…` variables that are set; an empty one counts as not set.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process.
    ///
    /// # Errors
    /// When one isn't UTF-8.
    pub fn of_process() -> Result<Self, ConfigError> {
        env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("OUTRIGGER_"))
            .map(|(name, value)| match value.into_string() {
                Ok(value) => Ok((name, value)),
                Err(_) => Err(ConfigError::Key { key: name, why: "is not UTF-8".into() }),
            })
            .collect()
    }

    /// The value of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Refuses a variable that nothing reads: probably a slip of the pen.
    pub(super) fn refuse_unknown(&self) -> Result<(), ConfigError> {
        let known = |name: &str| {
            OTHERS.contains(&name)
                || SETTINGS.iter().any(|setting| setting.0 == name)
                || name.starts_with("OUTRIGGER_TEST_")
        };
        match self.0.iter().find(|(name, value)| !known(name) && !is_service_link(name, value)) {
            Some((name, _)) => {
                let why = "there is no such setting; `outrigger serve --help` lists them".into();
                Err(ConfigError::Key { key: name.clone(), why })
            }
            None => Ok(()),
        }
    }

    /// Sets the keys that have a variable.
    pub(super) fn overlay(&self, table: &mut toml::Table) -> Result<(), ConfigError> {
        for &(name, section, key, kind) in SETTINGS {
            let Some(text) = self.get(name) else { continue };
            let value = match kind {
                Text => Value::String(text.to_owned()),
                Number => text.trim().parse().map(Value::Integer).map_err(|_| {
                    let why = format!("`{text}` is no whole number");
                    ConfigError::Key { key: name.to_owned(), why }
                })?,
                List => {
                    text.split(',').map(|item| item.trim().to_owned()).collect::<Vec<_>>().into()
                }
            };
            // A section that isn't a table is refused when it is read.
            let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
            if let Some(section) = section.as_table_mut() {
                section.insert(key.to_owned(), value);
            }
        }
        Ok(())
    }

    /// What is wrong with a value, with the key's name as it was set.
    pub(super) fn explain(&self, error: &toml::de::Error) -> ConfigError {
        // The error knows its key, but tells it in its text alone.
        let text = error.to_string();
        let key = text.rsplit_once("in `").and_then(|(_, key)| key.trim_end().strip_suffix('`'));
        self.at(key.unwrap_or("the configuration"), error.message().to_owned())
    }

    /// An error about a key, which is called what it was set by.
    pub(super) fn at(&self, key: &str, why: String) -> ConfigError {
        let set_by = SETTINGS
            .iter()
            .find(|(_, section, name, _)| key.split_once('.') == Some((section, name)))
            .map(|setting| setting.0)
            .filter(|name| self.get(name).is_some());
        ConfigError::Key { key: set_by.unwrap_or(key).to_owned(), why }
    }
}

/// What Kubernetes sets in every container for a service that is named
/// `outrigger` or `outrigger-…`.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_address = value.starts_with("tcp://") || value.starts_with("udp://");
    let of_port = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && is_address)
        || name.split_once("_PORT_").is_some_and(|(_, rest)| of_port(rest))
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

/// The names alone: values may be secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// Every setting as `serve --help` lists it: variable and key of the file.
pub(crate) fn listing() -> String {
    SETTINGS.iter().fold(String::new(), |list, (name, section, key, _)| {
        format!("{list}  {name:<36} {section}.{key}\n")
    })
}
