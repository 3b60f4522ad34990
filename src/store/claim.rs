//! The proof that a result may be written.

use uuid::Uuid;

use crate::model::Lane;

/// A lease on one row, as the database gave it.
///
/// Only the store makes one, and it can't be copied: whoever settles a row
/// has claimed it. The database has the last word on whether it still holds.
#[derive(Debug)]
pub struct Claim {
    pub(super) row: Row,
    pub(super) id: Uuid,
    pub(super) lane: Lane,
}

/// Which row a claim is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    /// An outbox row, by its pk.
    Event(i64),
    /// A delivery, by its id.
    Delivery(i64),
}

impl Claim {
    /// The row.
    #[must_use]
    pub const fn row(&self) -> Row {
        self.row
    }

    /// The row's lane.
    #[must_use]
    pub const fn lane(&self) -> Lane {
        self.lane
    }
}

/// A row and the claim on it: a row may have had others before, which prove
/// nothing any more.
pub(super) type Proof = (Row, Uuid);

/// What a claim says.
pub(super) const fn proof(claim: &Claim) -> Proof {
    (claim.row, claim.id)
}

/// Whether a claim still holds: losing it is a value, not an error.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It holds.
    Yes,
    /// It holds, and somebody is writing to the row: nothing was changed.
    Busy,
    /// Somebody else has the row, or it has ended.
    Lost,
}
