//! Whether a call may send a request: what its trigger grants.

use std::sync::Arc;

use crate::{
    model::{
        event::Event,
        http::{HttpGrant, Outgoing},
    },
    sandbox::{Call, TriggerView},
};

/// What one trigger may send.
pub(super) struct Grants {
    trigger: Arc<TriggerView>,
    event: Arc<Event>,
}

impl Grants {
    pub(super) fn new(call: &Call) -> Self {
        Self { trigger: Arc::clone(&call.trigger), event: Arc::clone(&call.event) }
    }

    /// The project whose trigger it is.
    pub(super) fn project(&self) -> &str {
        &self.event.project
    }

    /// Checks a request before anything is done for it.
    ///
    /// # Errors
    /// Names the grant to ask for.
    pub(super) fn check(&self, request: &Outgoing) -> Result<(), String> {
        let trigger = &self.trigger;
        if !trigger.http.iter().any(|grant| grant.covers(request)) {
            let (name, grant) = (&trigger.name, HttpGrant::for_request(request));
            return Err(format!(
                "the trigger `{name}` may not send {request}; \
                 add `\"grants\": {{\"http\": [\"{grant}\"]}}` to it"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::http::Scheme, sandbox::call::tests::call};

    #[test]
    fn the_missing_grant_is_named() {
        let mut call = call("{}");
        let trigger = Arc::make_mut(&mut call.trigger);
        trigger.http = vec!["GET a.example".parse().expect("a grant")];
        let grants = Grants::new(&call);
        let request = |method: &str, authority: &str| {
            Outgoing::new(method, Scheme::Https, authority).expect(authority)
        };
        assert_eq!(grants.check(&request("GET", "A.example.")), Ok(()));
        let why = grants.check(&request("POST", "a.example")).expect_err("another method");
        assert_eq!(
            why,
            "the trigger `probe` may not send POST https://a.example; \
             add `\"grants\": {\"http\": [\"a.example\"]}` to it"
        );
        let why = grants.check(&request("GET", "a.example:8443")).expect_err("another port");
        assert!(why.contains(r#"{"http": ["a.example:8443"]}"#), "{why}");
    }
}
