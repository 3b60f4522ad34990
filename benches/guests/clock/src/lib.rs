//! A plugin that logs when it was called, in microseconds since the epoch: the
//! benchmark compares that with the commit of the event.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod plugin {
    wit_bindgen::generate!({ path: "../../../wit", world: "trigger" });

    use std::time::{SystemTime, UNIX_EPOCH};

    use exports::outrigger::trigger::handler::{Attempt, Event, Failure, Guest};
    use outrigger::trigger::log::{Level, log};

    struct Clock;

    export!(Clock);

    impl Guest for Clock {
        fn handle(_event: Event, _attempt: Attempt) -> Result<(), Failure> {
            #[expect(
                clippy::disallowed_methods,
                reason = "the machine's clock is what is asked for"
            )]
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_err(|error| Failure::Reject(error.to_string()))?;
            log(Level::Info, &now.as_micros().to_string());
            Ok(())
        }
    }
}
