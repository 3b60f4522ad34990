//! What one call of a trigger asked for: it commits with the acknowledgement,
//! or not at all.

use std::{borrow::Cow, collections::BTreeMap};

use super::event::NewEvent;

/// Everything that a call asked of the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effects {
    /// Events to record, in the order of the calls; each has its message id.
    pub emitted: Vec<NewEvent>,
    /// Reads to re-check and writes to apply.
    pub state: StateUse,
}

impl Effects {
    /// Whether there is nothing to commit and nothing to re-check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.emitted.is_empty() && self.state.is_empty()
    }
}

/// How a call used its trigger's state.
///
/// Reads are kept with the *value* that was seen. A settle finds the same
/// values, or the call is run again: values that are the same lead to the same
/// result, whoever wrote them in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateUse {
    /// Keys that were read before the call itself wrote them, with what was
    /// there; `None` for an absent key.
    pub reads: BTreeMap<String, Option<Vec<u8>>>,
    /// Listings, each with its answer, as it was without the call's own writes.
    pub listings: Vec<Listing>,
    /// What each key is to become.
    pub writes: BTreeMap<String, Write>,
}

impl StateUse {
    /// Whether the state was neither read nor written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.listings.is_empty() && self.writes.is_empty()
    }
}

/// A listing of keys and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Keys that begin with this.
    pub prefix: String,
    /// Keys behind this one, in byte order.
    pub after: Option<String>,
    /// How many at the most.
    pub limit: u32,
    /// The keys that were there.
    pub keys: Vec<String>,
}

/// What a key is to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// This value.
    Set(Vec<u8>),
    /// Absent.
    Delete,
    /// Its value plus this, as decimal integers.
    Add(i64),
}

/// A value that an increment can't add to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The value is no decimal integer.
    #[error("the value of `{0}` is no decimal integer")]
    NotInteger(String),
    /// The sum doesn't fit into 64 bits.
    #[error("the sum at `{0}` is beyond 64 bits")]
    Overflow(String),
}

impl Write {
    /// What the key holds afterwards, given what it held before.
    ///
    /// # Errors
    /// When this is an addition and the value is no integer or the sum too large.
    pub fn apply<'a>(
        &'a self,
        key: &str,
        before: Option<&[u8]>,
    ) -> Result<Option<Cow<'a, [u8]>>, AddError> {
        match self {
            Self::Set(value) => Ok(Some(Cow::Borrowed(value))),
            Self::Delete => Ok(None),
            Self::Add(delta) => {
                let sum = integer(key, before)?
                    .checked_add(*delta)
                    .ok_or_else(|| AddError::Overflow(key.to_owned()))?;
                Ok(Some(Cow::Owned(sum.to_string().into_bytes())))
            }
        }
    }

    /// This write followed by an addition, as one write.
    ///
    /// # Errors
    /// As [`Write::apply`].
    pub fn then_add(&self, key: &str, delta: i64) -> Result<Self, AddError> {
        match self {
            Self::Add(first) => first
                .checked_add(delta)
                .map(Self::Add)
                .ok_or_else(|| AddError::Overflow(key.to_owned())),
            Self::Set(_) | Self::Delete => {
                let before = self.apply(key, None)?;
                let add = Self::Add(delta);
                let after = add.apply(key, before.as_deref())?;
                Ok(after.map_or(Self::Delete, |value| Self::Set(value.into_owned())))
            }
        }
    }
}

fn integer(key: &str, value: Option<&[u8]>) -> Result<i64, AddError> {
    let Some(value) = value else { return Ok(0) };
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| AddError::NotInteger(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_know_their_bounds() {
        let add = |delta, before: Option<&str>| {
            Write::Add(delta).apply("k", before.map(str::as_bytes)).map(|v| v.map(Cow::into_owned))
        };
        assert_eq!(add(5, None), Ok(Some(b"5".to_vec())));
        assert_eq!(add(-5, Some("3")), Ok(Some(b"-2".to_vec())));
        assert_eq!(add(1, Some("x")), Err(AddError::NotInteger("k".into())));
        assert_eq!(add(1, Some(&i64::MAX.to_string())), Err(AddError::Overflow("k".into())));
    }

    #[test]
    fn an_addition_joins_the_write_before_it() {
        assert_eq!(Write::Add(2).then_add("k", 3), Ok(Write::Add(5)));
        assert_eq!(Write::Delete.then_add("k", 3), Ok(Write::Set(b"3".to_vec())));
        assert_eq!(Write::Set(b"4".to_vec()).then_add("k", 3), Ok(Write::Set(b"7".to_vec())));
        Write::Set(b"four".to_vec()).then_add("k", 3).expect_err("no integer");
    }
}
