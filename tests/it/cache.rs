//! Artifacts on disk, as hosts find and leave them.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    database::{self, Database},
    guests,
    hosts::Host,
};

/// A folder of a test's own, for a cache and for logs; deleted with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("outrigger-artifacts-{}", database::name()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    /// Starts a host with this cache, which writes its log here.
    async fn host(&self, name: &str, database: &Database) -> Host {
        self.host_at(name, database, &self.cache()).await
    }

    async fn host_at(&self, name: &str, database: &Database, cache: &Path) -> Host {
        let log = File::create(self.0.join(name)).unwrap();
        let settings = [("OUTRIGGER_CACHE", cache.to_str().unwrap())];
        let host = Host::logging(&database.url, &settings, log.into()).await;
        host.ok(Method::PUT, "/v1/projects/shop", Some(json!({}))).await;
        host
    }

    /// Lines that a host has written since it began, of warnings alone.
    fn warnings(&self, name: &str) -> Vec<String> {
        let log = fs::read_to_string(self.0.join(name)).unwrap();
        log.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
    }

    fn artifacts(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cache()).unwrap();
        let mut paths: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap() != "key")
            .collect();
        paths.sort_unstable();
        paths
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Uploads the probe, and answers what is said of it.
async fn push(host: &Host) -> Value {
    let (status, answer) = host.upload("shop", "probe", guests::probe()).await;
    assert!(status.is_success(), "{status} {answer}");
    answer
}

async fn runs(host: &Host) {
    let trigger = json!({"match": {}, "target": {"plugin": "probe"}});
    host.trigger("shop", "t", trigger).await;
    let event = json!({
        "resource": "order", "aggregateId": "a", "eventName": "x", "payload": {"do": []}
    });
    let answer = host.ok(Method::POST, "/v1/projects/shop/events?wait=30s", Some(event)).await;
    assert_eq!(answer["triggers"]["t"], "done", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_is_compiled_once_for_all_hosts_and_starts() {
    let (folder, database, other) = (Folder::new(), Database::sqlite(), Database::sqlite());
    let mut host = folder.host("log", &database).await;
    let first = push(&host).await;
    assert!(first["compileMs"].as_u64().unwrap() > 0, "{first}");
    assert_eq!(folder.artifacts().len(), 1);
    runs(&host).await;
    host.kill();
    // A compiler with so little memory can't compile anything.
    let log = File::create(folder.0.join("log")).unwrap();
    let cache = folder.cache();
    let settings =
        [("OUTRIGGER_CACHE", cache.to_str().unwrap()), ("OUTRIGGER_COMPILE_MEMORY", "128MiB")];
    let host = Host::logging(&database.url, &settings, log.into()).await;
    runs(&host).await;
    drop(host);
    let host = folder.host("log", &other).await;
    assert_eq!(push(&host).await["compileMs"], first["compileMs"], "what it took at first");
    assert_eq!(folder.artifacts().len(), 1);
    assert_eq!(folder.warnings("log"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_that_start_on_an_empty_folder_share_it() {
    let folder = Folder::new();
    let (one, two) = (Database::sqlite(), Database::sqlite());
    let (first, second) = tokio::join!(folder.host("one", &one), folder.host("two", &two));
    tokio::join!(push(&first), push(&second));
    tokio::join!(runs(&first), runs(&second));
    assert_eq!(folder.artifacts().len(), 1, "{:?}", folder.artifacts());
    assert_eq!(push(&first).await["compileMs"], push(&second).await["compileMs"]);
    for log in ["one", "two"] {
        assert_eq!(folder.warnings(log), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_that_somebody_changed_is_compiled_again_and_replaced() {
    type Spoil = fn(&Path, &Path);
    let (folder, database) = (Folder::new(), Database::sqlite());
    let host = folder.host("log", &database).await;
    push(&host).await;
    let path = folder.artifacts().remove(0);
    let good = fs::read(&path).unwrap();
    let (status, answer) = host.upload("shop", "other", guests::component("noop")).await;
    assert!(status.is_success(), "{status} {answer}");
    let other = folder.artifacts().into_iter().find(|other| *other != path).unwrap();
    let spoils: [(&str, Spoil); 8] = [
        ("its MAC doesn't fit", |path, _| {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("its MAC doesn't fit", |path, _| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("its MAC doesn't fit", |path, _| fs::write(path, [0; 4096]).unwrap()),
        ("it is cut off", |path, _| fs::write(path, "").unwrap()),
        ("another name", |path, other| {
            fs::copy(other, path).unwrap();
        }),
        ("others have rights", |path, _| {
            fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
        }),
        ("symbolic link", |path, other| {
            fs::remove_file(path).unwrap();
            symlink(other, path).unwrap();
        }),
        // Where the tests aren't root's, nobody can give a file away.
        ("somebody else|its MAC", |path, _| {
            if std::os::unix::fs::chown(path, Some(12_345), None).is_err() {
                fs::write(path, "x".repeat(100)).unwrap();
            }
        }),
    ];
    let mut said = 0;
    for (why, spoil) in spoils {
        spoil(&path, &other);
        push(&host).await;
        let warnings = folder.warnings("log");
        assert_eq!(warnings.len(), said + 1, "{why}: {warnings:?}");
        let last = warnings.last().unwrap();
        assert!(why.split('|').any(|why| last.contains(why)), "{why}: {last}");
        said += 1;
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600);
        assert_eq!(fs::read(&path).unwrap().len(), good.len(), "{why}: it is whole again");
        push(&host).await;
        assert_eq!(folder.warnings("log").len(), said, "{why}: it is used again");
    }
    runs(&host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_can_not_be_written_to_costs_nothing_else() {
    let (folder, database) = (Folder::new(), Database::sqlite());
    let host = folder.host_at("log", &database, Path::new("/proc/outrigger")).await;
    for name in ["one", "two"] {
        let (status, answer) = host.upload("shop", name, guests::probe()).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    push(&host).await;
    runs(&host).await;
    let warnings = folder.warnings("log");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("artifacts can't be kept"), "{warnings:?}");
}
