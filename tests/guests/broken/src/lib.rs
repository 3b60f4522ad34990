//! A plugin that panics at every event, for integration tests: a bad deploy.

#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "generated bindings")]
mod guest {
    wit_bindgen::generate!({ path: "../../../wit", world: "trigger" });

    use exports::outrigger::trigger::handler::Guest;
    use outrigger::trigger::types::{Attempt, Event, Failure};

    struct Broken;

    export!(Broken);

    impl Guest for Broken {
        fn handle(_: Event, _: Attempt) -> Result<(), Failure> {
            panic!("a bad deploy");
        }
    }
}
