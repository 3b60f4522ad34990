//! A plugin that reads its event's JSON and logs a line, the same as `js` and
//! `py` beside it do: what differs is the language.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod plugin {
    wit_bindgen::generate!({ path: "../../../wit", world: "trigger" });

    use exports::outrigger::trigger::handler::{Attempt, Event, Failure, Guest};
    use outrigger::trigger::log::{Level, log};
    use serde_json::Value;

    struct Parse;

    export!(Parse);

    impl Guest for Parse {
        fn handle(event: Event, _attempt: Attempt) -> Result<(), Failure> {
            let payload: Value = serde_json::from_str(&event.payload)
                .map_err(|error| Failure::Reject(error.to_string()))?;
            log(Level::Info, &format!("{} {}", event.event_name, payload["n"]));
            Ok(())
        }
    }
}
