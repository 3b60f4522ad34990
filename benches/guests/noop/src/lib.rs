//! A plugin that does nothing: what its calls cost is the router's own part.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod plugin {
    wit_bindgen::generate!({ path: "../../../wit", world: "trigger" });

    use exports::outrigger::trigger::handler::{Attempt, Event, Failure, Guest};

    struct Noop;

    export!(Noop);

    impl Guest for Noop {
        fn handle(_event: Event, _attempt: Attempt) -> Result<(), Failure> {
            Ok(())
        }
    }
}
