//! Projects, plugins, triggers, keys and hosts.

use std::time::Duration;

use outrigger::{
    model::{
        capability::Allow,
        plugin::PluginInfo,
        trigger::{Target, TargetVersion, TriggerSpec},
    },
    secrets::STAMP_BYTES,
    store::{ApiKey, HostId, KeyRow, Role, SealedSecret, SecretPut, TriggerGone},
};
use uuid::Uuid;

use super::bench::{Bench, LONG, MAIL, SHOP, until};

fn info(digest: char) -> PluginInfo {
    PluginInfo {
        digest: digest.to_string().repeat(64),
        size: 3,
        imports: vec!["outrigger:trigger/log@1.0.0".into()],
        exports: vec!["outrigger:trigger/handler@1.0.0".into()],
        compile_ms: 7,
    }
}

async fn put_plugin(bench: &Bench, name: &str, digest: char, activate: bool) -> bool {
    let info = info(digest);
    let bytes = [digest as u8, 0, 255];
    bench.store.put_plugin(SHOP, name, &info, &bytes, activate).await.expect("puts")
}

fn spec(plugin: &str) -> TriggerSpec {
    let json = format!(r#"{{"match": {{}}, "target": {{"plugin": "{plugin}"}}}}"#);
    serde_json::from_str(&json).expect("a document")
}

async fn put_trigger(bench: &Bench, spec: &TriggerSpec) -> Option<bool> {
    bench.store.put_trigger(SHOP, MAIL, spec).await.expect("puts")
}

/// Digests of a plugin, the newest first, and which is active.
async fn versions(bench: &Bench, name: &str) -> (String, String) {
    let plugin = bench.store.plugin(SHOP, name).await.expect("looks").expect("is there");
    let first = |v: &&outrigger::model::plugin::PluginVersion| v.info.digest[..1].to_owned();
    let all = plugin.versions.iter().map(|v| first(&v)).collect();
    (all, plugin.versions.iter().filter(|v| v.active).map(|v| first(&v)).collect())
}

pub(super) async fn projects_come_and_go(bench: &Bench) {
    let store = &bench.store;
    assert!(store.put_project(SHOP).await.expect("creates"));
    assert!(!store.put_project(SHOP).await.expect("leaves"));
    assert!(store.put_project("a").await.expect("creates"));
    let names = |projects: Vec<outrigger::store::Project>| -> Vec<String> {
        projects.into_iter().map(|project| project.name).collect()
    };
    assert_eq!(names(store.projects().await.expect("lists")), ["a", SHOP]);
    assert!(store.enable_project(SHOP, false).await.expect("disables"));
    assert!(!store.enable_project("none", false).await.expect("answers"));
    let shop = store.project(SHOP).await.expect("looks").expect("is there");
    assert!(!shop.enabled && shop.created_at > 0);
    assert_eq!(store.project("none").await.expect("looks"), None);
    assert_eq!(shop.allow, Allow::default());
    let version = store.control_version().await.expect("answers");
    let few = Allow { http: Some(vec!["a.example".into()]), state: false, ..Allow::default() };
    assert!(store.allow(SHOP, &few).await.expect("sets"));
    assert!(!store.allow("none", &few).await.expect("answers"));
    assert!(store.control_version().await.expect("answers") > version);
    store.put_project(SHOP).await.expect("leaves");
    assert_eq!(store.project(SHOP).await.expect("looks").expect("is there").allow, few);
    let definitions = store.definitions().await.expect("reads").projects;
    assert!(definitions.iter().any(|project| project.name == SHOP && project.allow == few));
    put_plugin(bench, "p", 'a', false).await;
    put_trigger(bench, &spec("p")).await;
    assert!(store.delete_project(SHOP).await.expect("deletes"));
    assert!(!store.delete_project(SHOP).await.expect("answers"));
    assert!(store.plugins(SHOP).await.expect("lists").is_empty());
    assert!(store.triggers(SHOP).await.expect("lists").is_empty());
    store.ping().await.expect("answers");
}

pub(super) async fn every_change_raises_the_version(bench: &Bench) {
    let store = &bench.store;
    let mut last = store.control_version().await.expect("tells");
    let mut rises = async |what: &str| {
        let version = store.control_version().await.expect("tells");
        assert!(version > last, "{what}");
        last = version;
    };
    store.put_project(SHOP).await.expect("creates");
    rises("a project").await;
    store.enable_project(SHOP, false).await.expect("disables");
    rises("a disabled project").await;
    put_plugin(bench, "p", 'a', false).await;
    rises("a first version").await;
    put_plugin(bench, "p", 'b', true).await;
    rises("an active version").await;
    store.activate_plugin(SHOP, "p", &info('a').digest).await.expect("activates");
    rises("an activation").await;
    put_trigger(bench, &spec("p")).await;
    rises("a trigger").await;
    put_trigger(bench, &spec("p")).await;
    rises("a replaced trigger").await;
    store.pause_trigger(SHOP, MAIL, Some("why"), None).await.expect("pauses");
    rises("a paused trigger").await;
    store.pause_trigger(SHOP, MAIL, None, None).await.expect("resumes");
    rises("a resumed trigger").await;
    store.delete_trigger(SHOP, MAIL).await.expect("deletes");
    rises("a deleted trigger").await;
    put_secret(bench, "K", b"sealed").await;
    rises("a secret").await;
    put_secret(bench, "K", b"sealed anew").await;
    rises("another value").await;
    store.delete_secret(SHOP, "K").await.expect("deletes");
    rises("a deleted secret").await;
    store.delete_project(SHOP).await.expect("deletes");
    rises("a deleted project").await;
}

pub(super) async fn a_trigger_needs_its_plugin(bench: &Bench) {
    assert_eq!(put_trigger(bench, &spec("p")).await, None);
    assert_eq!(bench.store.trigger(SHOP, MAIL).await.expect("looks"), None);
    put_plugin(bench, "p", 'a', false).await;
    let mut pinned = spec("p");
    let version = TargetVersion::Digest(info('b').digest);
    pinned.target = Target::Plugin { name: "p".into(), version };
    assert_eq!(put_trigger(bench, &pinned).await, None);
    assert_eq!(put_trigger(bench, &spec("p")).await, Some(true));
    put_plugin(bench, "p", 'b', false).await;
    assert_eq!(put_trigger(bench, &pinned).await, Some(false));
    let trigger = bench.store.trigger(SHOP, MAIL).await.expect("looks").expect("is there");
    assert_eq!((&trigger.spec, &*trigger.project, &trigger.paused), (&pinned, SHOP, &None));
    assert_eq!(bench.store.triggers(SHOP).await.expect("lists"), [trigger]);
    assert!(bench.store.triggers("other").await.expect("lists").is_empty());
}

pub(super) async fn a_replaced_trigger_stays_paused(bench: &Bench) {
    put_plugin(bench, "p", 'a', false).await;
    put_trigger(bench, &spec("p")).await;
    let look = async || bench.store.trigger(SHOP, MAIL).await.expect("looks").expect("is there");
    let first = look().await;
    let pause =
        async |name, why| bench.store.pause_trigger(SHOP, name, why, None).await.expect("answers");
    assert!(pause(MAIL, Some("by hand")).await && !pause("none", Some("why")).await);
    assert_eq!(put_trigger(bench, &spec("p")).await, Some(false));
    let paused = look().await;
    assert_eq!(paused.paused.as_deref(), Some("by hand"));
    assert!(paused.revision > first.revision && paused.created_at == first.created_at);
    assert!(pause(MAIL, None).await && look().await.paused.is_none());
    let at = async |revision| {
        bench.store.pause_trigger(SHOP, MAIL, Some("why"), Some(revision)).await.expect("answers")
    };
    let (stale, current) = (paused.revision, look().await.revision);
    assert!(!at(stale).await && look().await.paused.is_none(), "somebody has changed it since");
    assert!(at(current).await && look().await.paused.is_some());
    let delete = async || bench.store.delete_trigger(SHOP, MAIL).await.expect("answers");
    assert_eq!((delete().await, delete().await), (TriggerGone::Yes, TriggerGone::Unknown));
}

pub(super) async fn the_first_version_is_active(bench: &Bench) {
    assert!(put_plugin(bench, "p", 'a', false).await);
    assert!(put_plugin(bench, "p", 'b', false).await);
    assert_eq!(versions(bench, "p").await.1, "a");
    assert!(put_plugin(bench, "p", 'c', true).await);
    assert_eq!(versions(bench, "p").await.1, "c");
    let activate = async |name, digest| {
        let digest = info(digest).digest;
        bench.store.activate_plugin(SHOP, name, &digest).await.expect("answers")
    };
    assert!(activate("p", 'b').await && !activate("p", 'z').await && !activate("q", 'a').await);
    assert_eq!(versions(bench, "p").await.1, "b");
    assert_eq!(versions(bench, "p").await.0.len(), 3);
    let bytes = async |project, digest| {
        bench.store.plugin_bytes(project, &info(digest).digest).await.expect("reads")
    };
    assert_eq!(bytes(SHOP, 'b').await, Some(vec![b'b', 0, 255]));
    assert_eq!((bytes(SHOP, 'z').await, bytes("other", 'b').await), (None, None));
    assert_eq!(bench.store.plugin(SHOP, "q").await.expect("looks"), None);
}

pub(super) async fn the_same_bytes_are_one_version(bench: &Bench) {
    assert!(put_plugin(bench, "p", 'a', false).await);
    assert!(put_plugin(bench, "p", 'b', false).await);
    assert!(!put_plugin(bench, "p", 'b', false).await);
    assert_eq!(versions(bench, "p").await.1, "a");
    assert!(!put_plugin(bench, "p", 'b', true).await);
    assert_eq!(versions(bench, "p").await.1, "b");
    assert!(put_plugin(bench, "other", 'b', false).await, "another plugin's version");
    let names: Vec<_> = bench.store.plugins(SHOP).await.expect("lists");
    let names: Vec<_> = names.iter().map(|p| (&*p.name, p.versions.len())).collect();
    assert_eq!(names, [("other", 1), ("p", 2)]);
    let plugin = bench.store.plugin(SHOP, "other").await.expect("looks").expect("is there");
    assert_eq!((&plugin.versions[0].info, plugin.versions[0].active), (&info('b'), true));
}

pub(super) async fn a_named_plugin_is_not_deleted(bench: &Bench) {
    put_plugin(bench, "p", 'a', false).await;
    put_trigger(bench, &spec("p")).await;
    let delete = async |name| bench.store.delete_plugin(SHOP, name).await.expect("answers");
    assert_eq!(delete("p").await, Some(vec![MAIL.to_owned()]));
    assert_eq!(versions(bench, "p").await.1, "a");
    bench.store.delete_trigger(SHOP, MAIL).await.expect("deletes");
    assert_eq!((delete("p").await, delete("p").await), (Some(vec![]), None));
    assert_eq!(bench.store.plugin_bytes(SHOP, &info('a').digest).await.expect("reads"), None);
    assert_eq!(put_trigger(bench, &spec("p")).await, None);
}

async fn put_secret(bench: &Bench, name: &str, sealed: &[u8]) -> SecretPut {
    bench.store.put_secret(SHOP, name, sealed, 2).await.expect("puts")
}

async fn sealed_of(bench: &Bench, names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let rows = bench.store.sealed_secrets(SHOP, &names).await.expect("reads").into_iter();
    rows.map(|row| (row.name, row.sealed)).collect()
}

pub(super) async fn secrets_come_and_go(bench: &Bench) {
    bench.store.put_project(SHOP).await.expect("creates");
    assert_eq!(put_secret(bench, "b", b"one").await, SecretPut::New);
    assert_eq!(put_secret(bench, "a", &[0, 255, 7]).await, SecretPut::New);
    assert_eq!(put_secret(bench, "c", b"one too many").await, SecretPut::Full);
    assert_eq!(put_secret(bench, "b", b"two").await, SecretPut::Replaced);
    let listed = bench.store.secrets(SHOP).await.expect("lists");
    let names: Vec<_> = listed.iter().map(|secret| &*secret.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(listed.iter().all(|secret| secret.updated_at > 0));
    assert!(bench.store.secrets("other").await.expect("lists").is_empty());
    let a = ("a".to_owned(), vec![0, 255, 7]);
    assert_eq!(sealed_of(bench, &["b", "a", "c"]).await, [a, ("b".into(), b"two".to_vec())]);
    let delete = async |name| bench.store.delete_secret(SHOP, name).await.expect("answers");
    assert_eq!((delete("a").await, delete("a").await), (Some(vec![]), None));
    assert_eq!(put_secret(bench, "c", b"in its place").await, SecretPut::New);
    bench.store.delete_project(SHOP).await.expect("deletes");
    assert!(bench.store.secrets(SHOP).await.expect("lists").is_empty());
}

pub(super) async fn a_trigger_needs_its_secrets(bench: &Bench) {
    bench.store.put_project(SHOP).await.expect("creates");
    put_plugin(bench, "p", 'a', false).await;
    put_secret(bench, "a", b"sealed").await;
    let granted = |names: &[&str]| {
        let mut spec = spec("p");
        spec.grants.secrets = names.iter().map(|name| (*name).to_owned()).collect();
        spec
    };
    assert_eq!(put_trigger(bench, &granted(&["a", "b"])).await, None);
    put_secret(bench, "b", &[9; STAMP_BYTES + 5]).await;
    assert_eq!(put_trigger(bench, &granted(&["a", "b"])).await, Some(true));
    let all = bench.store.definitions().await.expect("reads");
    let mut stamps = all.secrets;
    stamps.sort();
    let of = |name: &str, stamp: Vec<u8>| (SHOP.to_owned(), name.to_owned(), stamp);
    assert_eq!(stamps, [of("a", b"sealed".to_vec()), of("b", vec![9; STAMP_BYTES])]);
    let delete = async |name| bench.store.delete_secret(SHOP, name).await.expect("answers");
    assert_eq!(delete("a").await, Some(vec![MAIL.to_owned()]));
    assert_eq!(sealed_of(bench, &["a"]).await.len(), 1, "it is still there");
    assert_eq!(put_trigger(bench, &granted(&["b"])).await, Some(false));
    assert_eq!((delete("a").await, delete("b").await), (Some(vec![]), Some(vec![MAIL.to_owned()])));
}

pub(super) async fn a_secret_is_sealed_anew_only_as_it_was_read(bench: &Bench) {
    for (project, name) in [("a", "z"), (SHOP, "x"), (SHOP, "y")] {
        bench.store.put_secret(project, name, b"old", 2).await.expect("puts");
    }
    let version = bench.store.control_version().await.expect("tells");
    let page = async |after| bench.store.all_sealed(after, 2).await.expect("reads");
    let place = |row: &SealedSecret| format!("{}/{}", row.project, row.name);
    let first = page(None).await;
    assert_eq!(first.iter().map(place).collect::<Vec<_>>(), ["a/z", "shop/x"]);
    let rest = page(Some((SHOP, "x"))).await;
    assert_eq!(rest.iter().map(place).collect::<Vec<_>>(), ["shop/y"]);
    assert!(page(Some((SHOP, "y"))).await.is_empty());
    let reseal = async |row, sealed: &[u8]| bench.store.reseal(row, sealed).await.expect("answers");
    assert!(reseal(&rest[0], b"new").await);
    assert!(!reseal(&rest[0], b"newer").await, "it isn't what was read any more");
    assert_eq!(sealed_of(bench, &["y"]).await, [("y".to_owned(), b"new".to_vec())]);
    assert_eq!(bench.store.control_version().await.expect("tells"), version);
}

pub(super) async fn definitions_are_one_snapshot(bench: &Bench) {
    bench.store.put_project(SHOP).await.expect("creates");
    put_plugin(bench, "p", 'a', false).await;
    put_plugin(bench, "p", 'b', true).await;
    put_trigger(bench, &spec("p")).await;
    let all = bench.store.definitions().await.expect("reads");
    assert_eq!(all.version, bench.store.control_version().await.expect("tells"));
    assert_eq!(all.projects, bench.store.projects().await.expect("lists"));
    assert_eq!(all.triggers, bench.store.triggers(SHOP).await.expect("lists"));
    assert_eq!(all.triggers[0].revision, all.version.0);
    assert_eq!(all.active, [(SHOP.into(), "p".into(), info('b').digest)]);
}

fn key(hash: u8, role: Role) -> KeyRow {
    let key = ApiKey {
        id: Uuid::new_v4(),
        name: Some(format!("key {hash}")),
        project: (hash == 1).then(|| SHOP.to_owned()),
        role,
        created_at: 0,
        expires_at: None,
    };
    KeyRow { key, hash: [hash; 32] }
}

pub(super) async fn keys_are_found_by_their_hash(bench: &Bench) {
    let roles = [Role::Admin, Role::Operator, Role::Developer, Role::Publisher, Role::Viewer];
    for (hash, role) in (0..).zip(roles) {
        let stored = key(hash, role);
        bench.store.put_key(&stored).await.expect("stores");
        let found = bench.store.key_by_hash(&[hash; 32]).await.expect("looks").expect("is there");
        assert!(found.created_at > 0);
        assert_eq!(ApiKey { created_at: 0, ..found }, stored.key);
    }
    assert_eq!(bench.store.key_by_hash(&[9; 32]).await.expect("looks"), None);
    bench.store.put_key(&key(0, Role::Viewer)).await.expect_err("the hash is used");
    let keys = bench.store.keys().await.expect("lists");
    assert!(keys.len() == 5 && keys.iter().map(|k| k.created_at).is_sorted());
    assert!(bench.store.delete_key(keys[0].id).await.expect("deletes"));
    assert!(!bench.store.delete_key(keys[0].id).await.expect("answers"));
    assert_eq!(bench.store.keys().await.expect("lists"), keys[1..]);
}

pub(super) async fn an_expired_key_is_none(bench: &Bench) {
    let now = bench.store.survey(&[]).await.expect("surveys").now;
    for (hash, expires_at) in [(1, now - 1), (2, now + 60_000)] {
        let mut row = key(hash, Role::Admin);
        row.key.expires_at = Some(expires_at);
        bench.store.put_key(&row).await.expect("stores");
    }
    assert_eq!(bench.store.key_by_hash(&[1; 32]).await.expect("looks"), None);
    let found = bench.store.key_by_hash(&[2; 32]).await.expect("looks").expect("is there");
    assert_eq!(found.expires_at, Some(now + 60_000));
    assert_eq!(bench.store.keys().await.expect("lists").len(), 2);
}

pub(super) async fn hosts_are_heard_of(bench: &Bench) {
    let other = HostId(Uuid::new_v4());
    let beat =
        async |host, lease| bench.store.heartbeat(host, "host:1", lease).await.expect("beats");
    assert_eq!((beat(bench.host, LONG).await, beat(other, LONG).await), (1, 2));
    assert_eq!(beat(other, LONG).await, 2);
    let hosts = bench.store.hosts().await.expect("lists");
    assert!(hosts.len() == 2 && hosts.iter().all(|h| h.name == "host:1" && h.started_at > 0));
    bench.store.goodbye(bench.host).await.expect("leaves");
    assert_eq!(beat(other, LONG).await, 1);
    assert_eq!(beat(bench.host, LONG).await, 2);
    // One not heard of for ten times the lease is forgotten.
    until(async || {
        beat(other, Duration::from_millis(1)).await;
        bench.store.hosts().await.expect("lists").len() == 1
    })
    .await;
}

pub(super) async fn migrating_again_changes_nothing(bench: &Bench) {
    bench.store.put_project(SHOP).await.expect("creates");
    bench.store.migrate().await.expect("migrates again");
    assert!(bench.store.project(SHOP).await.expect("looks").is_some());
}
