//! What the world's imports do.

use super::bindings::outrigger::trigger::{config, emit, log, secrets, state, types};
use crate::{
    model::attempt::{Level, Source},
    sandbox::{
        data::Data,
        emit::{Due, Wish},
        refusal::Refusal,
    },
};

impl types::Host for Data {}

impl emit::Host for Data {
    async fn emit(&mut self, event: emit::NewEvent) -> Result<String, emit::Error> {
        let id = self.emitter.emit(event.into());
        Ok(self.noted(id)?.to_string())
    }
}

impl state::Host for Data {
    async fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, state::Error> {
        let value = self.state.get(key).await;
        Ok(self.noted(value)?)
    }

    async fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), state::Error> {
        let done = self.state.set(key, value);
        Ok(self.noted(done)?)
    }

    async fn delete(&mut self, key: String) -> Result<(), state::Error> {
        let done = self.state.delete(key);
        Ok(self.noted(done)?)
    }

    async fn increment(&mut self, key: String, delta: i64) -> Result<(), state::Error> {
        let done = self.state.increment(key, delta);
        Ok(self.noted(done)?)
    }

    async fn keys(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, state::Error> {
        let keys = self.state.keys(prefix, after, limit).await;
        Ok(self.noted(keys)?)
    }
}

impl config::Host for Data {
    async fn get(&mut self, key: String) -> Option<String> {
        self.trigger.config.get(&key).cloned()
    }

    async fn all(&mut self) -> Vec<(String, String)> {
        self.trigger.config.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

impl secrets::Host for Data {
    /// No trigger can be granted a secret yet, so there is none to be had.
    async fn get(&mut self, _name: String) -> Option<String> {
        None
    }
}

impl log::Host for Data {
    async fn log(&mut self, level: log::Level, message: String) {
        let level = match level {
            log::Level::Trace => Level::Trace,
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        };
        self.logs.push(level, Source::Log, &message);
    }
}

impl From<emit::NewEvent> for Wish {
    fn from(event: emit::NewEvent) -> Self {
        Self {
            resource: event.resource,
            aggregate_id: event.aggregate_id,
            event_name: event.event_name,
            schema_version: event.schema_version,
            payload: event.payload,
            meta: event.meta,
            dedup_key: event.dedup_key,
            due: match event.due {
                emit::Due::Now => Due::Now,
                emit::Due::AfterMs(millis) => Due::AfterMs(millis),
                emit::Due::AtMs(millis) => Due::AtMs(millis),
            },
        }
    }
}

impl From<Refusal> for emit::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Denied(why) => Self::Denied(why),
            Refusal::Limit(why) => Self::Limit(why),
            Refusal::Invalid(why) => Self::Invalid(why),
            Refusal::Unavailable(why) => Self::Other(why),
        }
    }
}

impl From<Refusal> for state::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Denied(why) => Self::Denied(why),
            Refusal::Limit(why) => Self::Limit(why),
            Refusal::Unavailable(why) => Self::Unavailable(why),
            Refusal::Invalid(why) => Self::Invalid(why),
        }
    }
}
