//! What a call of an application's own code asks for: checked and bounded as
//! if a guest asked for it.

use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use super::{
    Call, Settings,
    caps::Caps,
    emit::{Emitter, Wish},
    meta::Meta,
    refusal::Refusal,
    state::State,
};
use crate::model::effect::Effects;

/// What one call has asked for so far. It may be shared with tasks that the
/// call began; once the call has ended, they are refused.
pub struct Asked {
    emitter: Mutex<Option<Emitter>>,
    state: tokio::sync::Mutex<Option<State>>,
}

impl Asked {
    /// Nothing asked for yet.
    #[must_use]
    pub fn new(call: &Call, settings: &Settings) -> Self {
        let meta = Meta::parse(call.event.meta.as_deref());
        let caps = Caps::of(&call.trigger.limits, settings);
        Self {
            emitter: Mutex::new(Some(Emitter::new(call, &meta, &caps, settings))),
            state: tokio::sync::Mutex::new(Some(State::new(call, &caps, settings))),
        }
    }

    /// Adds an event and answers the message id that it will have.
    ///
    /// # Errors
    /// When the event can't be recorded or is beyond a bound.
    pub fn emit(&self, wish: Wish) -> Result<Uuid, Refusal> {
        let mut emitter = self.emitter.lock().unwrap_or_else(PoisonError::into_inner);
        emitter.as_mut().ok_or_else(ended)?.emit(wish)
    }

    /// The value of a key of the trigger's state, `None` if it is absent.
    ///
    /// # Errors
    /// When the key can't be one, a bound is reached, or the database fails.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let mut state = self.state.lock().await;
        state.as_mut().ok_or_else(ended)?.get(key.to_owned()).await
    }

    /// Keys that begin with `prefix` and come behind `after`, in byte order.
    ///
    /// # Errors
    /// As [`Asked::get`].
    pub async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, Refusal> {
        let mut state = self.state.lock().await;
        let state = state.as_mut().ok_or_else(ended)?;
        state.keys(prefix.to_owned(), after.map(str::to_owned), limit).await
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// When the key can't be one, or a bound is reached.
    pub async fn set(&self, key: &str, value: Vec<u8>) -> Result<(), Refusal> {
        self.state.lock().await.as_mut().ok_or_else(ended)?.set(key.to_owned(), value)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Asked::set`].
    pub async fn delete(&self, key: &str) -> Result<(), Refusal> {
        self.state.lock().await.as_mut().ok_or_else(ended)?.delete(key.to_owned())
    }

    /// Adds to a key, a decimal integer, without reading it.
    ///
    /// # Errors
    /// As [`Asked::set`], and when the value is known to be no integer.
    pub async fn increment(&self, key: &str, by: i64) -> Result<(), Refusal> {
        self.state.lock().await.as_mut().ok_or_else(ended)?.increment(key.to_owned(), by)
    }

    /// Everything that was asked for; nothing more is taken.
    pub async fn finish(&self) -> Effects {
        let emitter = self.emitter.lock().unwrap_or_else(PoisonError::into_inner).take();
        let state = self.state.lock().await.take();
        Effects {
            emitted: emitter.map(|mut emitter| emitter.finish()).unwrap_or_default(),
            state: state.map(|mut state| state.finish()).unwrap_or_default(),
        }
    }
}

fn ended() -> Refusal {
    Refusal::Invalid("the call has ended; what is asked for now has nothing to commit with".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::call::tests::call;

    #[tokio::test]
    async fn nothing_is_taken_once_the_call_has_ended() {
        let asked = Asked::new(&call("{}"), &Settings::default());
        asked.set("k", b"v".to_vec()).await.expect("set");
        let effects = asked.finish().await;
        assert_eq!(effects.state.writes.len(), 1);
        let late = asked.set("k", b"w".to_vec()).await.expect_err("too late");
        assert!(late.to_string().contains("has ended"), "{late}");
        assert!(asked.get("k").await.is_err());
        assert!(asked.finish().await.is_empty());
    }
}
