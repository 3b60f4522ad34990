//! What a trigger may do: what its plugin imports, it grants, and its project
//! allows.

use serde::Serialize;

use crate::model::{
    capability::{Allow, Capability},
    http::HttpGrant,
    pattern::Pattern,
    plugin::{Plugin, PluginInfo},
    trigger::{Grants, Target, TriggerSpec},
};

/// Each capability that a trigger can grant.
#[derive(Serialize)]
pub(super) struct Capabilities {
    emit: Entry<Vec<Pattern>>,
    state: Entry<bool>,
    http: Entry<Vec<String>>,
    secrets: Entry<Vec<String>>,
}

/// One capability, from each side.
#[derive(Serialize)]
struct Entry<T> {
    /// Whether the plugin asks for it.
    imported: bool,
    /// What the trigger grants.
    granted: T,
    /// What is in force.
    effective: T,
    /// Which side keeps it back, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Capabilities {
    /// Those of a trigger, whose plugin is one of these.
    pub(super) fn of(spec: &TriggerSpec, allow: &Allow, plugins: &[Plugin]) -> Self {
        let side = Side {
            asked: match &spec.target {
                Target::Embedded => Capability::ALL.into(),
                Target::Plugin { name, .. } => {
                    let plugin = plugins.iter().find(|plugin| plugin.name == *name);
                    let version = plugin.and_then(|plugin| version(plugin, spec));
                    version.map(PluginInfo::capabilities).unwrap_or_default()
                }
            },
            allow,
        };
        let (granted, narrowed) = (&spec.grants, allow.narrow(&spec.grants));
        let Grants { http, emit, secrets, state, .. } = narrowed;
        // However an entry is written, narrowing it to itself is no change.
        let same = granted.http.iter().all(|entry| {
            let entry = entry.parse::<HttpGrant>().map(|grant| grant.to_string());
            allow.http.is_none() || entry.is_ok_and(|entry| http.contains(&entry))
        });
        Self {
            http: side.entry(Capability::Http, granted.http.clone(), http, same),
            secrets: {
                let same = secrets == granted.secrets;
                side.entry(Capability::Secrets, granted.secrets.clone(), secrets, same)
            },
            emit: {
                let same = granted.emit.iter().all(|pattern| emit.contains(pattern));
                side.entry(Capability::Emit, granted.emit.clone(), emit, same)
            },
            state: {
                let same = state == granted.state;
                side.entry(Capability::State, granted.state, state, same)
            },
        }
    }
}

/// The version that the trigger runs.
fn version<'a>(plugin: &'a Plugin, spec: &TriggerSpec) -> Option<&'a PluginInfo> {
    let meant = |digest: &str| spec.target.digest().is_none_or(|wanted| wanted == digest);
    let mut versions = plugin.versions.iter();
    let found = versions.find(|version| {
        let pinned = spec.target.digest().is_some();
        meant(&version.info.digest) && (pinned || version.active)
    });
    found.map(|version| &version.info)
}

/// Whether nothing is in it.
trait Nothing: Default + PartialEq {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl<T: Default + PartialEq> Nothing for T {}

struct Side<'a> {
    asked: Vec<Capability>,
    allow: &'a Allow,
}

impl Side<'_> {
    /// `whole` says whether the project allows all that is granted.
    fn entry<T: Nothing>(
        &self,
        capability: Capability,
        granted: T,
        narrowed: T,
        whole: bool,
    ) -> Entry<T> {
        let imported = self.asked.contains(&capability);
        let (name, interface) = (capability.as_str(), capability.interface());
        let hint = if imported && self.allow.forbids(capability) {
            Some(format!("the plugin imports `{interface}`, and the project allows no `{name}`"))
        } else if imported && granted.is_nothing() {
            Some(format!("the plugin imports `{interface}`; to let it, add `{name}` to the grants"))
        } else if !whole {
            Some(format!("the project doesn't allow all of `grants.{name}`"))
        } else if !imported && !granted.is_nothing() {
            Some(format!("the plugin doesn't import `{interface}`, so the grant is of no use"))
        } else {
            None
        };
        let effective = if imported { narrowed } else { T::default() };
        Entry { imported, granted, effective, hint }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::plugin::PluginVersion;

    fn plugin(imports: &[&str]) -> Plugin {
        let info = PluginInfo {
            digest: "d".into(),
            size: 1,
            imports: imports.iter().map(|import| (*import).to_owned()).collect(),
            exports: Vec::new(),
            compile_ms: 1,
        };
        let version = PluginVersion { info, active: true, created_at: 0 };
        Plugin { project: "shop".into(), name: "p".into(), versions: vec![version] }
    }

    fn of(grants: &Value, allow: &Value, plugins: &[Plugin]) -> Value {
        let spec = json!({"match": {}, "target": {"plugin": "p"}, "grants": grants});
        let spec = serde_json::from_value(spec).expect("a trigger");
        let allow = serde_json::from_value(allow.clone()).expect("an allowance");
        serde_json::to_value(Capabilities::of(&spec, &allow, plugins)).expect("JSON")
    }

    #[test]
    fn in_force_is_what_all_sides_say() {
        let plugins =
            [plugin(&["wasi:http/outgoing-handler@0.2.3", "outrigger:trigger/emit@1.0.0"])];
        let grants = json!({"http": ["*.example"], "emit": ["email.*"], "state": true});
        let all = of(&grants, &json!({}), &plugins);
        assert_eq!(
            all,
            json!({
                "http": {"imported": true, "granted": ["*.example"], "effective": ["*.example"]},
                "emit": {"imported": true, "granted": ["email.*"], "effective": ["email.*"]},
                "state": {
                    "imported": false, "granted": true, "effective": false,
                    "hint": "the plugin doesn't import `outrigger:trigger/state`, so the grant is \
                             of no use",
                },
                "secrets": {"imported": false, "granted": [], "effective": []},
            })
        );
        let some = of(&grants, &json!({"http": ["a.example"], "emit": []}), &plugins);
        assert_eq!(some["http"]["effective"], json!(["a.example"]));
        assert!(some["http"]["hint"].as_str().expect("a hint").contains("all of `grants.http`"));
        assert_eq!(some["emit"]["effective"], json!([]));
        assert!(some["emit"]["hint"].as_str().expect("a hint").contains("allows no `emit`"));
        let none = of(&json!({}), &json!({"http": ["*.example"]}), &plugins);
        assert!(none["http"]["hint"].as_str().expect("a hint").contains("add `http`"));
        let reworded =
            of(&json!({"http": ["HTTPS://A.example"]}), &json!({"http": ["*.example"]}), &plugins);
        assert_eq!(reworded["http"]["hint"], Value::Null, "{reworded}");
    }
}
