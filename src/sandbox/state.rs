//! State as one call sees it: reads are recorded, writes are kept until the
//! call is settled, and reads see the call's own writes.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use super::{
    Call, Settings, StateReader,
    caps::{Cap, Caps},
    refusal::Refusal,
};
use crate::model::{
    effect::{Listing, StateUse, Write},
    names::MAX_TEXT,
    units::Bytes,
};

/// What a listing costs beside its keys.
const LISTING_COST: usize = 64;

/// One call's use of its trigger's state.
pub(super) struct State {
    /// Why it may not, if the trigger has no grant.
    denied: Option<String>,
    reader: Arc<dyn StateReader>,
    keys_max: Cap<u32>,
    bytes_max: Cap<Bytes>,
    value_max: Bytes,
    keys: u32,
    bytes: usize,
    /// Why the last read failed, if the database was away.
    away: Option<String>,
    used: StateUse,
}

impl State {
    /// Nothing read or written yet.
    pub(super) fn new(call: &Call, caps: &Caps, settings: &Settings) -> Self {
        let denied = (!call.trigger.state).then(|| {
            let trigger = &call.trigger.name;
            format!(
                "the trigger `{trigger}` may keep no state; \
                 add `\"grants\": {{\"state\": true}}` to it"
            )
        });
        Self {
            denied,
            reader: Arc::clone(&call.state),
            keys_max: caps.state_keys,
            bytes_max: caps.state_bytes,
            value_max: settings.state_value_bytes,
            keys: 0,
            bytes: 0,
            away: None,
            used: StateUse::default(),
        }
    }

    /// Why state could not be read, if it couldn't.
    pub(super) fn away(&self) -> Option<&str> {
        self.away.as_deref()
    }

    /// What was read and written.
    pub(super) fn finish(&mut self) -> StateUse {
        std::mem::take(&mut self.used)
    }

    /// The value of a key.
    pub(super) async fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, Refusal> {
        self.check_key(&key)?;
        match self.used.writes.get(&key) {
            Some(Write::Set(value)) => return Ok(Some(value.clone())),
            Some(Write::Delete) => return Ok(None),
            Some(Write::Add(_)) | None => self.read(&key).await?,
        }
        let before = self.used.reads.get(&key).and_then(Option::as_deref);
        match self.used.writes.get(&key) {
            Some(write) => Ok(write.apply(&key, before)?.map(Cow::into_owned)),
            None => Ok(before.map(<[u8]>::to_vec)),
        }
    }

    /// Gives a key a value.
    pub(super) fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), Refusal> {
        self.check_key(&key)?;
        if value.len() > self.value_max.as_usize() {
            let (max, has) = (self.value_max, value.len());
            return Err(Refusal::Limit(format!(
                "the value has {has} bytes; this host's `sandbox.state_value_bytes` is {max}"
            )));
        }
        self.write(key, Write::Set(value))
    }

    /// Removes a key.
    pub(super) fn delete(&mut self, key: String) -> Result<(), Refusal> {
        self.check_key(&key)?;
        self.write(key, Write::Delete)
    }

    /// Adds to a key without reading it.
    pub(super) fn increment(&mut self, key: String, delta: i64) -> Result<(), Refusal> {
        self.check_key(&key)?;
        let write = match self.used.writes.get(&key) {
            Some(write) => write.then_add(&key, delta)?,
            None => Write::Add(delta),
        };
        if let Some(before) = self.used.reads.get(&key) {
            write.apply(&key, before.as_deref())?;
        }
        self.write(key, write)
    }

    /// Keys with a prefix, in byte order, behind `after`.
    pub(super) async fn keys(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, Refusal> {
        self.check_grant()?;
        check_text("prefix", &prefix)?;
        after.as_deref().map_or(Ok(()), |after| check_text("after", after))?;
        if limit > self.keys_max.max {
            let cap = self.keys_max;
            return Err(Refusal::Limit(format!(
                "a listing of {limit} keys is asked for; {cap}: ask for fewer, and go on with \
                 `after`"
            )));
        }
        if limit == 0 {
            return Ok(Vec::new());
        }
        let own: BTreeMap<&str, bool> = self
            .used
            .writes
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && Some(*key) > after.as_ref())
            .map(|(key, write)| (key.as_str(), *write != Write::Delete))
            .collect();
        // Enough keys that those which this call deleted don't shorten the answer.
        let deleted = own.values().filter(|kept| !**kept).count();
        let asked = limit.saturating_add(u32::try_from(deleted).unwrap_or(u32::MAX));
        let base = self.reader.keys(&prefix, after.as_deref(), asked).await;
        let base = base.map_err(|why| unavailable(&mut self.away, why))?;
        let cost = base.iter().map(|key| key.len() + LISTING_COST / 2).sum::<usize>();
        let bytes = self.bytes + cost + prefix.len() + LISTING_COST;
        self.check_bytes(bytes)?;
        let mut keys: Vec<String> =
            base.iter().filter(|key| !own.contains_key(key.as_str())).cloned().collect();
        keys.extend(own.iter().filter(|(_, kept)| **kept).map(|(key, _)| (*key).to_owned()));
        keys.sort_unstable();
        keys.truncate(limit as usize);
        self.bytes = bytes;
        self.used.listings.push(Listing { prefix, after, limit: asked, keys: base });
        Ok(keys)
    }

    /// Records what a key holds, unless that was done.
    async fn read(&mut self, key: &str) -> Result<(), Refusal> {
        if self.used.reads.contains_key(key) {
            return Ok(());
        }
        let keys = self.touch(key)?;
        let value = self.reader.get(key).await;
        let value = value.map_err(|why| unavailable(&mut self.away, why))?;
        let bytes = self.bytes + key.len() + value.as_ref().map_or(0, Vec::len);
        self.check_bytes(bytes)?;
        (self.keys, self.bytes) = (keys, bytes);
        self.used.reads.insert(key.to_owned(), value);
        Ok(())
    }

    fn write(&mut self, key: String, write: Write) -> Result<(), Refusal> {
        let keys = self.touch(&key)?;
        let before = self.used.writes.get(&key).map_or(0, |write| key.len() + size(write));
        let bytes = self.bytes - before + key.len() + size(&write);
        self.check_bytes(bytes)?;
        (self.keys, self.bytes) = (keys, bytes);
        self.used.writes.insert(key, write);
        Ok(())
    }

    /// The number of keys touched once this one is, if it may be.
    fn touch(&self, key: &str) -> Result<u32, Refusal> {
        if self.used.reads.contains_key(key) || self.used.writes.contains_key(key) {
            return Ok(self.keys);
        }
        if self.keys >= self.keys_max.max {
            let cap = self.keys_max;
            return Err(Refusal::Limit(format!("the call touches too many keys of state; {cap}")));
        }
        Ok(self.keys + 1)
    }

    fn check_bytes(&self, bytes: usize) -> Result<(), Refusal> {
        if bytes > self.bytes_max.max.as_usize() {
            let cap = self.bytes_max;
            return Err(Refusal::Limit(format!("the call uses {bytes} bytes of state; {cap}")));
        }
        Ok(())
    }

    fn check_key(&self, key: &str) -> Result<(), Refusal> {
        self.check_grant()?;
        if key.is_empty() {
            return Err(Refusal::Invalid("the key is empty".into()));
        }
        check_text("key", key)
    }

    fn check_grant(&self) -> Result<(), Refusal> {
        self.denied.clone().map_or(Ok(()), |why| Err(Refusal::Denied(why)))
    }
}

fn check_text(what: &str, text: &str) -> Result<(), Refusal> {
    if text.len() > MAX_TEXT {
        let has = text.len();
        return Err(Refusal::Limit(format!("`{what}` may have {MAX_TEXT} bytes; it has {has}")));
    }
    if text.contains('\0') {
        return Err(Refusal::Invalid(format!("`{what}` has U+0000, which can't be stored")));
    }
    Ok(())
}

fn size(write: &Write) -> usize {
    match write {
        Write::Set(value) => value.len(),
        Write::Delete | Write::Add(_) => 0,
    }
}

fn unavailable(away: &mut Option<String>, why: String) -> Refusal {
    *away = Some(why.clone());
    Refusal::Unavailable(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::call::tests::{Memory, call};

    fn state(values: &[(&str, &str)], settings: &Settings) -> State {
        let values = values.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let reader = Arc::new(Memory { values, ..Memory::default() });
        state_of(&Call { state: reader, ..call("{}") }, settings)
    }

    fn state_of(call: &Call, settings: &Settings) -> State {
        State::new(call, &Caps::of(&call.trigger.limits, settings), settings)
    }

    async fn get(state: &mut State, key: &str) -> Option<String> {
        let value = state.get(key.into()).await.expect("a value");
        value.map(|value| String::from_utf8(value).expect("text"))
    }

    fn limit<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        match result {
            Err(Refusal::Limit(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn reads_see_own_writes_and_record_what_was_there() {
        let mut state = state(&[("a", "1"), ("b", "2")], &Settings::default());
        assert_eq!(get(&mut state, "a").await.as_deref(), Some("1"));
        assert_eq!(get(&mut state, "none").await, None);
        state.set("a".into(), b"x".to_vec()).expect("set");
        state.set("b".into(), b"y".to_vec()).expect("set");
        state.delete("c".into()).expect("deleted");
        assert_eq!(get(&mut state, "a").await.as_deref(), Some("x"));
        assert_eq!(get(&mut state, "b").await.as_deref(), Some("y"));
        assert_eq!(get(&mut state, "c").await, None);
        let used = state.finish();
        let reads = [("a".into(), Some(b"1".to_vec())), ("none".into(), None)];
        assert_eq!(used.reads, BTreeMap::from(reads), "written before it was read: no read");
        assert_eq!(used.writes.len(), 3);
    }

    #[tokio::test]
    async fn an_increment_reads_nothing_until_its_sum_is_asked_for() {
        let mut state = state(&[("n", "40"), ("t", "text")], &Settings::default());
        state.increment("n".into(), 1).expect("added");
        state.increment("n".into(), 1).expect("added");
        state.increment("t".into(), 1).expect("not known yet");
        assert!(state.used.reads.is_empty());
        assert_eq!(get(&mut state, "n").await.as_deref(), Some("42"));
        assert_eq!(state.used.writes["n"], Write::Add(2));
        assert_eq!(state.used.reads["n"], Some(b"40".to_vec()));
        let not_integer = Refusal::Invalid("the value of `t` is no decimal integer".into());
        assert_eq!(state.get("t".into()).await, Err(not_integer.clone()));
        assert_eq!(state.increment("t".into(), 1), Err(not_integer.clone()), "known now");
        state.set("t".into(), b"5".to_vec()).expect("set");
        state.increment("t".into(), 2).expect("added to what was set");
        assert_eq!(state.used.writes["t"], Write::Set(b"7".to_vec()));
        state.set("t".into(), b"text".to_vec()).expect("set");
        assert_eq!(state.increment("t".into(), 1), Err(not_integer));
        state.increment("n".into(), i64::MAX).expect_err("beyond 64 bits");
        assert_eq!(state.used.writes["n"], Write::Add(2), "a refusal changes nothing");
    }

    #[tokio::test]
    async fn listings_join_what_is_there_and_what_was_written() {
        let values = [("k1", ""), ("k2", ""), ("k3", ""), ("k4", ""), ("k5", ""), ("l", "")];
        let mut state = state(&values, &Settings::default());
        let keys = async |state: &mut State, after: Option<&str>, limit| {
            let keys = state.keys("k".into(), after.map(str::to_owned), limit).await;
            keys.expect("keys").join(" ")
        };
        assert_eq!(keys(&mut state, None, 0).await, "");
        assert!(state.used.is_empty());
        assert_eq!(keys(&mut state, None, 2).await, "k1 k2");
        state.delete("k1".into()).expect("deleted");
        state.delete("k3".into()).expect("deleted");
        state.set("k".into(), vec![]).expect("set");
        state.increment("k35".into(), 1).expect("added");
        state.set("m".into(), vec![]).expect("set");
        assert_eq!(keys(&mut state, None, 3).await, "k k2 k35");
        assert_eq!(keys(&mut state, Some("k2"), 2).await, "k35 k4");
        assert_eq!(keys(&mut state, Some("k2"), 100).await, "k35 k4 k5");
        let listing = |after: Option<&str>, limit, keys: &[&str]| Listing {
            prefix: "k".into(),
            after: after.map(str::to_owned),
            limit,
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        assert_eq!(
            state.used.listings,
            [
                listing(None, 2, &["k1", "k2"]),
                listing(None, 5, &["k1", "k2", "k3", "k4", "k5"]),
                listing(Some("k2"), 3, &["k3", "k4", "k5"]),
                listing(Some("k2"), 101, &["k3", "k4", "k5"]),
            ]
        );
    }

    #[tokio::test]
    async fn without_a_grant_nothing_is_read() {
        let mut call = call("{}");
        Arc::make_mut(&mut call.trigger).state = false;
        let mut state = state_of(&call, &Settings::default());
        let Err(Refusal::Denied(text)) = state.get("k".into()).await else { panic!("granted") };
        assert!(text.contains(r#""grants": {"state": true}"#), "{text}");
        assert!(matches!(state.increment("k".into(), 1), Err(Refusal::Denied(_))));
        assert!(matches!(state.keys(String::new(), None, 1).await, Err(Refusal::Denied(_))));
        assert!(state.finish().is_empty());
    }

    #[tokio::test]
    async fn a_database_that_is_away_is_said() {
        let away = Arc::new(Memory { away: true, ..Memory::default() });
        let mut state = state_of(&Call { state: away, ..call("{}") }, &Settings::default());
        assert_eq!(state.away(), None);
        assert_eq!(state.get("k".into()).await, Err(Refusal::Unavailable("away".into())));
        assert_eq!(state.away(), Some("away"));
        assert!(state.finish().is_empty());
    }

    #[tokio::test]
    async fn caps_are_named() {
        let settings = Settings {
            state_value_bytes: "10B".parse().expect("a size"),
            state_keys: 3,
            state_bytes: "30B".parse().expect("a size"),
            ..Settings::default()
        };
        let mut state = state(&[("big", &"x".repeat(40))], &settings);
        assert!(
            limit(state.set("k".into(), vec![0; 11]))
                .contains("`sandbox.state_value_bytes` is 10B")
        );
        assert!(limit(state.get("big".into()).await).contains("`sandbox.state_bytes` is 30B"));
        state.set("a".into(), vec![0; 10]).expect("set");
        state.set("b".into(), vec![0; 10]).expect("set");
        assert!(limit(state.set("c".into(), vec![0; 10])).contains("`sandbox.state_bytes` is 30B"));
        state.set("a".into(), vec![]).expect("smaller");
        state.set("c".into(), vec![0; 10]).expect("there is room again");
        assert!(limit(state.increment("d".into(), 1)).contains("`sandbox.state_keys` is 3"));
        state.increment("a".into(), 1).expect_err("no integer, but no limit either");
        assert!(
            limit(state.keys(String::new(), None, 4).await).contains("`sandbox.state_keys` is 3")
        );
        assert!(limit(state.delete("x".repeat(MAX_TEXT + 1))).contains("`key` may have 512 bytes"));
        for bad in ["", "a\0"] {
            assert!(matches!(state.delete(bad.into()), Err(Refusal::Invalid(_))));
        }
    }
}
