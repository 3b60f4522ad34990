//! The migrations of both databases, their names filled in.

use super::Prefix;

/// One step of a schema.
pub(super) struct Migration {
    /// Rises by one from step to step.
    pub(super) version: i64,
    /// What it is called in the table of applied steps.
    pub(super) name: &'static str,
    /// Its statements.
    pub(super) sql: String,
}

/// Which database a migration is written for.
#[derive(Clone, Copy)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

/// Every step, the oldest first.
pub(super) fn migrations(
    dialect: Dialect,
    prefix: &Prefix,
    inbox: &str,
    lanes: u16,
) -> Vec<Migration> {
    let texts: &[(&'static str, &str)] = match dialect {
        Dialect::Postgres => &[
            ("init", include_str!("../../migrations/postgres/0001_init.sql")),
            ("inbox", include_str!("../../migrations/postgres/0002_inbox.sql")),
            ("replay", include_str!("../../migrations/postgres/0003_replay.sql")),
            ("trials", include_str!("../../migrations/postgres/0004_trials.sql")),
            ("ids in time", include_str!("../../migrations/postgres/0005_ids_in_time.sql")),
            ("allow", include_str!("../../migrations/postgres/0006_allow.sql")),
        ],
        Dialect::Sqlite => &[
            ("init", include_str!("../../migrations/sqlite/0001_init.sql")),
            ("inbox", include_str!("../../migrations/sqlite/0002_inbox.sql")),
            ("replay", include_str!("../../migrations/sqlite/0003_replay.sql")),
            ("trials", include_str!("../../migrations/sqlite/0004_trials.sql")),
            ("allow", include_str!("../../migrations/sqlite/0005_allow.sql")),
        ],
    };
    let fill = |text: &str| {
        text.replace("{p}", prefix.as_str())
            .replace("{lanes}", &lanes.to_string())
            .replace("{inbox}", inbox)
    };
    (1..)
        .zip(texts)
        .map(|(version, &(name, text))| Migration { version, name, sql: fill(text) })
        .collect()
}
