//! Between what columns hold and what the words mean, the same for both databases.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use serde::{Serialize, de::DeserializeOwned};
use sqlx::AssertSqlSafe;

use super::{Chain, End, Prefix, Role, Settled, Settlement, StoreError};
use crate::model::outcome::FailureKind;

/// SQL templates with the table prefix filled in: `{p}outbox`.
///
/// A template is a literal in the source, and the prefix is checked to be
/// safe, so that what comes out is safe as well. Each is filled in once.
#[derive(Debug)]
pub(super) struct Sql {
    prefix: Prefix,
    filled: RwLock<HashMap<(usize, usize), Arc<str>>>,
}

impl Sql {
    pub(super) fn new(prefix: Prefix) -> Self {
        Self { prefix, filled: RwLock::default() }
    }

    pub(super) fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The template with every `{p}` replaced.
    pub(super) fn of(&self, template: &'static str) -> AssertSqlSafe<Arc<str>> {
        // A literal's address stands for its text: cheaper than hashing it.
        let key = (template.as_ptr().addr(), template.len());
        if let Some(sql) = self.filled.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return AssertSqlSafe(Arc::clone(sql));
        }
        let sql: Arc<str> = template.replace("{p}", self.prefix.as_str()).into();
        let mut filled = self.filled.write().unwrap_or_else(PoisonError::into_inner);
        filled.insert(key, Arc::clone(&sql));
        AssertSqlSafe(sql)
    }
}

pub(super) const fn chain_code(chain: Chain) -> i16 {
    match chain {
        Chain::None => 0,
        Chain::Events => 1,
        Chain::Redriven => 2,
    }
}

pub(super) const fn chain_of(code: i16) -> Chain {
    match code {
        1 => Chain::Events,
        2 => Chain::Redriven,
        _ => Chain::None,
    }
}

/// The kind in a column; a name of a newer version's counts as a host fault.
pub(super) fn kind_of(column: Option<String>) -> Option<FailureKind> {
    column.map(|name| FailureKind::parse(&name).unwrap_or(FailureKind::HostFault))
}

pub(super) fn to_json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Refused(error.into()))
}

pub(super) fn from_json<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Refused(format!("{what} in the database: {error}").into()))
}

/// A span as the milliseconds that the database reckons with.
pub(super) fn millis(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Holds up the events that come after a lost one in its ordering key: written
/// without it, they would overtake it.
pub(super) fn hold_up(group: &[Settlement], verdicts: &mut [Option<Settled>]) {
    let lost: Vec<usize> = (0..group.len())
        .filter(|at| matches!(verdicts.get(*at), Some(Some(Settled::Lost))))
        .collect();
    for (at, (settlement, verdict)) in group.iter().zip(verdicts).enumerate() {
        let before = lost.iter().take_while(|before| **before < at);
        let mut before = before.filter_map(|before| group.get(*before));
        if verdict.is_none() && before.any(|lost| settlement.follows(lost)) {
            *verdict = Some(Settled::Conflict(Vec::new()));
        }
    }
}

/// What a group adds to the totals: per project, with an empty trigger name,
/// events dispatched; per trigger, calls that ended well and that failed.
pub(super) fn totals<'a>(group: &[&'a Settlement]) -> BTreeMap<(&'a str, &'a str), (i64, i64)> {
    let mut totals: BTreeMap<_, (i64, i64)> = BTreeMap::new();
    for settlement in group {
        let project = &*settlement.event.project;
        match &settlement.end {
            End::Dispatched { spills, .. } => {
                totals.entry((project, "")).or_default().0 += 1;
                for spill in spills.iter().filter(|spill| spill.error.is_some()) {
                    totals.entry((project, &*spill.trigger)).or_default().1 += 1;
                }
            }
            End::Done { .. } => {}
            End::Again { trigger, .. } | End::Dead { trigger, .. } => {
                totals.entry((project, &**trigger)).or_default().1 += 1;
            }
        }
        for one in &settlement.effects {
            totals.entry((project, &*one.trigger)).or_default().0 += 1;
        }
    }
    totals
}

/// A role's name in SQL.
pub(super) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Admin => "admin",
        Role::Operator => "operator",
        Role::Developer => "developer",
        Role::Publisher => "publisher",
        Role::Viewer => "viewer",
    }
}

/// The role of that name.
pub(super) fn role_of(name: &str) -> Result<Role, StoreError> {
    [Role::Admin, Role::Operator, Role::Developer, Role::Publisher, Role::Viewer]
        .into_iter()
        .find(|role| role_name(*role) == name)
        .ok_or_else(|| StoreError::Schema(format!("a key with the unknown role `{name}`")))
}
