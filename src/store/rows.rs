//! Between what columns hold and what the words mean, the same for both databases.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use serde::{Serialize, de::DeserializeOwned};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{
    AgedEvent, Chain, DeliveryRow, End, EventRow, Prefix, Role, Row, Settlement, StoreError,
};
use crate::model::{attempt::Attempt, outcome::FailureKind};

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

/// Of a group in which every event ends without touching state, each pk, claim
/// and result, by pk: nothing but its claims can be in the way of writing it.
pub(super) fn plain(group: &[Settlement]) -> Option<Vec<(i64, Uuid, &str)>> {
    let mut rows = group
        .iter()
        .map(|s| match (s.claim.row, &s.end) {
            (Row::Event(pk), End::Dispatched { result_json, .. })
                if s.effects.iter().all(|one| one.effects.state.is_empty()) =>
            {
                Some((pk, s.claim.id, &**result_json))
            }
            _ => None,
        })
        .collect::<Option<Vec<_>>>()?;
    rows.sort_unstable_by_key(|row| row.0);
    Some(rows)
}

/// Bytes of payloads that are read at once to be archived.
const AGED_BYTES: i64 = 8 << 20;

/// Which of the rows that were looked at (pk, whether it may go, bytes) are
/// taken, and the pk of the last row that is done with.
pub(super) fn take_aged(rows: &[(i64, bool, i64)], batch: u32) -> (Vec<i64>, Option<i64>) {
    let (mut taken, mut bytes, mut last) = (Vec::new(), 0, None);
    for (pk, old, size) in rows {
        if *old {
            let fits = taken.is_empty() || bytes + size <= AGED_BYTES;
            if taken.len() >= batch as usize || !fits {
                break;
            }
            taken.push(*pk);
            bytes += size;
        }
        last = Some(*pk);
    }
    (taken, last)
}

/// Events with what belongs to them.
pub(super) fn whole(
    rows: Vec<EventRow>,
    deliveries: Vec<DeliveryRow>,
    attempts: Vec<Attempt>,
) -> Vec<AgedEvent> {
    let place: HashMap<Uuid, usize> =
        rows.iter().enumerate().map(|(index, row)| (row.event.message_id, index)).collect();
    let mut events: Vec<AgedEvent> = rows
        .into_iter()
        .map(|row| AgedEvent { row, deliveries: Vec::new(), attempts: Vec::new() })
        .collect();
    for delivery in deliveries {
        if let Some(index) = place.get(&delivery.message_id) {
            events[*index].deliveries.push(delivery);
        }
    }
    for attempt in attempts {
        if let Some(index) = place.get(&attempt.message_id) {
            events[*index].attempts.push(attempt);
        }
    }
    events
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
