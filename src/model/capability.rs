//! What a plugin may do beyond returning a result: what it imports, what its
//! trigger grants, and what its project allows.

use serde::{Deserialize, Serialize};

use super::{
    http::{self, HttpGrant},
    names::Invalid,
    pattern::Pattern,
    trigger::Grants,
};

/// A kind of thing that a plugin may ask of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Capability {
    /// To record events.
    Emit,
    /// To keep state.
    State,
    /// To send HTTP requests.
    Http,
    /// To read secrets.
    Secrets,
    /// To write to the attempt's log; no trigger grants it, every plugin may.
    Log,
}

impl Capability {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Emit, Self::State, Self::Http, Self::Secrets, Self::Log];

    /// Its name in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Emit => "emit",
            Self::State => "state",
            Self::Http => "http",
            Self::Secrets => "secrets",
            Self::Log => "log",
        }
    }

    /// The interface that a plugin imports to have it, without its version.
    #[must_use]
    pub const fn interface(self) -> &'static str {
        match self {
            Self::Emit => "outrigger:trigger/emit",
            Self::State => "outrigger:trigger/state",
            Self::Http => "wasi:http/outgoing-handler",
            Self::Secrets => "outrigger:trigger/secrets",
            Self::Log => "outrigger:trigger/log",
        }
    }

    /// What a component with these imports asks for.
    #[must_use]
    pub fn asked(imports: &[String]) -> Vec<Self> {
        let imported = |interface: &str| {
            imports.iter().any(|import| import.split('@').next() == Some(interface))
        };
        Self::ALL.into_iter().filter(|capability| imported(capability.interface())).collect()
    }
}

/// What a project allows its triggers to grant; what isn't said is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allow {
    /// Requests, each as an entry of `grants.http`; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<Vec<String>>,
    /// Names of events that may be emitted; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emit: Option<Vec<Pattern>>,
    /// Whether secrets may be read.
    pub secrets: bool,
    /// Whether state may be kept.
    pub state: bool,
}

impl Default for Allow {
    fn default() -> Self {
        Self { http: None, emit: None, secrets: true, state: true }
    }
}

impl Allow {
    /// Checks what the types can't say.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        http::check("allow.http", self.http.as_deref().unwrap_or_default())
    }

    /// Checks that a trigger grants nothing beyond it.
    ///
    /// # Errors
    /// Names the grant, and what is allowed.
    pub fn admit(&self, grants: &Grants) -> Result<(), Invalid> {
        let refuse = |field, what: &str, allowed: String| {
            let why = format!("has `{what}`, which the project doesn't allow; it allows {allowed}");
            Err(Invalid::new(field, why))
        };
        if let Some(allowed) = &self.http {
            let all = grants_of(allowed);
            let within = |grant: &HttpGrant| all.iter().any(|allowed| grant.is_within(allowed));
            if let Some(grant) = grants_of(&grants.http).iter().find(|grant| !within(grant)) {
                return refuse("grants.http", &grant.to_string(), listed(&all));
            }
        }
        if let Some(allowed) = &self.emit {
            let within =
                |pattern: &Pattern| allowed.iter().any(|allowed| allowed.includes(pattern));
            if let Some(pattern) = grants.emit.iter().find(|pattern| !within(pattern)) {
                return refuse("grants.emit", pattern.as_str(), listed(allowed));
            }
        }
        if !self.secrets && !grants.secrets.is_empty() {
            return Err(Invalid::new("grants.secrets", "has entries; the project allows none"));
        }
        if !self.state && grants.state {
            return Err(Invalid::new("grants.state", "is true, which the project doesn't allow"));
        }
        Ok(())
    }

    /// What is in force of a trigger's grants: what it grants and this allows.
    /// Of two patterns that only overlap, nothing is.
    #[must_use]
    pub fn narrow(&self, grants: &Grants) -> Grants {
        let http = match &self.http {
            None => grants.http.clone(),
            Some(allowed) => {
                let allowed = grants_of(allowed);
                let granted = grants_of(&grants.http);
                let met = granted.iter().flat_map(|a| allowed.iter().filter_map(|b| a.meet(b)));
                distinct(met.map(|grant| grant.to_string()))
            }
        };
        let emit = match &self.emit {
            None => grants.emit.clone(),
            Some(allowed) => {
                let met = grants.emit.iter().flat_map(|a| {
                    allowed.iter().filter_map(move |b| {
                        if b.includes(a) { Some(a) } else { a.includes(b).then_some(b) }
                    })
                });
                distinct(met.cloned())
            }
        };
        let secrets = if self.secrets { grants.secrets.clone() } else { Vec::new() };
        Grants { http, emit, secrets, state: grants.state && self.state, ..grants.clone() }
    }

    /// Whether it allows nothing of a capability.
    #[must_use]
    pub fn forbids(&self, capability: Capability) -> bool {
        match capability {
            Capability::Emit => self.emit.as_ref().is_some_and(Vec::is_empty),
            Capability::State => !self.state,
            Capability::Http => self.http.as_ref().is_some_and(Vec::is_empty),
            Capability::Secrets => !self.secrets,
            Capability::Log => false,
        }
    }
}

/// The entries that can be read, which is all that were checked.
fn grants_of(entries: &[String]) -> Vec<HttpGrant> {
    entries.iter().filter_map(|entry| entry.parse().ok()).collect()
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut all, item| {
        if !all.contains(&item) {
            all.push(item);
        }
        all
    })
}

fn listed<T: std::fmt::Display>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".into();
    }
    items.iter().map(|item| format!("`{item}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(json: &str) -> Allow {
        serde_json::from_str(json).expect(json)
    }

    fn grants(json: &str) -> Grants {
        serde_json::from_str(json).expect(json)
    }

    #[test]
    fn imports_say_what_is_asked_for() {
        let imports = [
            "wasi:http/outgoing-handler@0.2.12",
            "wasi:http/types@0.2.12",
            "outrigger:trigger/log@1.0.0",
            "outrigger:trigger/state@1.3.0",
            "outrigger:trigger/types@1.0.0",
            "outrigger:trigger/emitter@1.0.0",
        ];
        let asked = Capability::asked(&imports.map(str::to_owned));
        assert_eq!(asked, [Capability::State, Capability::Http, Capability::Log]);
        assert_eq!(Capability::asked(&["wasi:http/types@0.2.0".into()]), []);
        for capability in Capability::ALL {
            let json = serde_json::to_value(capability).expect("JSON");
            assert_eq!(json, capability.as_str());
        }
    }

    #[test]
    fn what_is_not_said_is_allowed() {
        let all =
            grants(r#"{"http": ["a.example"], "emit": ["*"], "secrets": ["S"], "state": true}"#);
        let any = allow("{}");
        assert_eq!(any, Allow::default());
        assert_eq!(any.admit(&all), Ok(()));
        assert_eq!(any.narrow(&all), all);
        assert!(Capability::ALL.into_iter().all(|capability| !any.forbids(capability)));
    }

    #[test]
    fn a_grant_beyond_it_is_named() {
        let few = allow(
            r#"{"http": ["*.example.com", "GET b.example"], "emit": ["email.*"],
                "secrets": false, "state": false}"#,
        );
        for (json, field, said) in [
            (r#"{"http": ["a.example.com", "a.example"]}"#, "grants.http", "`a.example`"),
            (r#"{"http": ["b.example"]}"#, "grants.http", "`GET b.example`"),
            (r#"{"emit": ["email.sent", "*"]}"#, "grants.emit", "it allows `email.*`"),
            (r#"{"emit": ["email*"]}"#, "grants.emit", "`email*`"),
            (r#"{"secrets": ["S"]}"#, "grants.secrets", "none"),
            (r#"{"state": true}"#, "grants.state", "doesn't allow"),
        ] {
            let error = few.admit(&grants(json)).expect_err(json);
            assert_eq!(error.field, field, "{json}");
            assert!(error.to_string().contains(said), "{json}: {error}");
        }
        for json in [
            "{}",
            r#"{"http": ["GET a.example.com", "https://b.a.example.com"]}"#,
            r#"{"http": ["GET https://b.example"], "emit": ["email.*", "email.a.*"]}"#,
        ] {
            assert_eq!(few.admit(&grants(json)), Ok(()), "{json}");
        }
        assert!(allow(r#"{"http": ["a/b"]}"#).validate().is_err());
        serde_json::from_str::<Allow>(r#"{"htpp": []}"#).expect_err("an unknown field");
    }

    #[test]
    fn what_is_in_force_is_what_both_say() {
        let few = allow(
            r#"{"http": ["GET a.example", "*.b.example"], "emit": ["email.*", "x"],
                "secrets": false, "state": false}"#,
        );
        let asked = grants(
            r#"{"http": ["https://a.example", "c.b.example", "d.example", "*.example"],
                "emit": ["email.sent", "*", "y"], "secrets": ["S"], "state": true}"#,
        );
        let force = few.narrow(&asked);
        assert_eq!(
            force.http,
            ["GET https://a.example", "c.b.example", "GET a.example", "*.b.example"]
        );
        let emit: Vec<_> = force.emit.iter().map(Pattern::as_str).collect();
        assert_eq!(emit, ["email.sent", "email.*", "x"]);
        assert!(force.secrets.is_empty() && !force.state);
        assert_eq!(few.admit(&force), Ok(()));
        let none = allow(r#"{"http": [], "emit": [], "secrets": false, "state": false}"#);
        let left = none.narrow(&asked);
        assert_eq!(left, Grants::default());
        let forbidden = Capability::ALL.into_iter().filter(|c| none.forbids(*c)).count();
        assert_eq!(forbidden, 4, "all but the log");
    }
}
