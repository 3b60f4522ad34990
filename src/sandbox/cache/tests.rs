use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use uuid::Uuid;

use super::*;
use crate::sandbox::{Settings, engine};

/// A folder of a test's own, deleted with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("outrigger-cache-{}", Uuid::new_v4())))
    }

    fn cache(&self, max: Bytes) -> Cache {
        let engine =
            Engine::new(&engine::config_without_pool(&Settings::default())).expect("an engine");
        Cache::new(&self.0, max, &engine)
    }

    fn path(&self, cache: &Cache, digest: &str) -> PathBuf {
        self.0.join(cache.name(digest))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort_unstable();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn artifact(code: &[u8]) -> Artifact {
    Artifact::new(code.to_vec(), 0, Duration::from_millis(1234))
}

fn age(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).expect("the file");
    let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
    file.set_modified(modified - Duration::from_secs(seconds)).expect("set");
}

/// What this thread logs, line by line.
fn logged(work: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let to = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone());
    tracing::subscriber::with_default(log.finish(), work);
    let bytes = lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    String::from_utf8(bytes).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn what_is_kept_is_found_again_by_another_host() {
    let folder = Folder::new();
    let (first, second) = (folder.cache(Bytes::mib(1)), folder.cache(Bytes::mib(1)));
    assert!(first.find("a").is_none());
    first.keep("a", &artifact(b"code"));
    let found = second.find("a").expect("it is there");
    assert_eq!((found.code(), found.took), (&b"code"[..], Duration::from_millis(1234)));
    assert!(second.find("b").is_none());
    for path in [folder.path(&first, "a"), folder.0.join("key")] {
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(fs::metadata(&folder.0).expect("a folder").permissions().mode() & 0o777, 0o700);
    assert_eq!(folder.names().len(), 2, "{:?}", folder.names());
}

#[test]
fn what_is_not_as_it_was_kept_is_reported_once_and_replaced() {
    type Spoil = fn(&Path, &Path);
    let spoils: [(&str, Spoil); 9] = [
        ("its MAC", |path, _| {
            let mut bytes = fs::read(path).expect("read");
            *bytes.last_mut().expect("a byte") ^= 1;
            fs::write(path, bytes).expect("written");
        }),
        ("its MAC", |path, _| {
            let bytes = fs::read(path).expect("read");
            fs::write(path, &bytes[..bytes.len() - 1]).expect("written");
        }),
        ("its MAC", |path, _| {
            let bytes = fs::read(path).expect("read");
            fs::write(path, [&bytes[..], b"x"].concat()).expect("written");
        }),
        ("cut off", |path, _| fs::write(path, b"").expect("written")),
        ("another name", |path, other| {
            fs::copy(other, path).expect("copied");
        }),
        ("others have rights", |path, _| {
            fs::set_permissions(path, Permissions::from_mode(0o620)).expect("set");
        }),
        ("symbolic link", |path, other| {
            fs::remove_file(path).expect("removed");
            symlink(other, path).expect("linked");
        }),
        ("no file", |path, _| {
            fs::remove_file(path).expect("removed");
            let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo");
            assert!(made.success());
        }),
        ("key", |path, _| {
            let key = path.parent().expect("a folder").join("key");
            fs::set_permissions(key, Permissions::from_mode(0o640)).expect("set");
        }),
    ];
    for (why, spoil) in spoils {
        let folder = Folder::new();
        let cache = folder.cache(Bytes::mib(1));
        cache.keep("a", &artifact(b"code"));
        cache.keep("other", &artifact(b"something else"));
        spoil(&folder.path(&cache, "a"), &folder.path(&cache, "other"));
        let lines = logged(|| {
            assert!(cache.find("a").is_none(), "{why}");
            assert!(cache.find("a").is_none(), "{why}");
        });
        // With another key, what was kept under the first isn't proved either.
        let expected = if why == "key" { 2 } else { 1 };
        assert_eq!(lines.len(), expected, "{why}: {lines:?}");
        assert!(lines[0].contains(why) && lines[0].contains("WARN"), "{lines:?}");
        let lines = logged(|| {
            cache.keep("a", &artifact(b"code"));
            assert_eq!(cache.find("a").expect("replaced").code(), b"code");
        });
        assert!(lines.is_empty(), "{lines:?}");
    }
}

#[test]
fn an_artifact_of_another_key_or_owner_is_not_loaded() {
    let (folder, foreign) = (Folder::new(), Folder::new());
    let (ours, theirs) = (folder.cache(Bytes::mib(1)), foreign.cache(Bytes::mib(1)));
    ours.keep("b", &artifact(b"ours"));
    theirs.keep("a", &artifact(b"evil"));
    fs::copy(foreign.path(&theirs, "a"), folder.path(&ours, "a")).expect("copied");
    assert!(ours.find("a").is_none());
    assert!(ours.find("b").is_some());
    // To give a file away takes the rights of root.
    if rustix::process::geteuid().is_root() {
        let path = folder.path(&ours, "b");
        std::os::unix::fs::chown(&path, Some(12_345), None).expect("given away");
        let lines = logged(|| assert!(ours.find("b").is_none()));
        assert!(lines[0].contains("belongs to somebody else"), "{lines:?}");
    }
}

#[test]
fn another_engine_has_other_files() {
    let folder = Folder::new();
    let cache = folder.cache(Bytes::mib(1));
    cache.keep("a", &artifact(b"code"));
    let mut config = engine::config_without_pool(&Settings::default());
    config.epoch_interruption(false);
    let other = Cache::new(&folder.0, Bytes::mib(1), &Engine::new(&config).expect("an engine"));
    assert!(other.find("a").is_none());
    fs::rename(folder.path(&cache, "a"), folder.path(&other, "a")).expect("renamed");
    let lines = logged(|| assert!(other.find("a").is_none()));
    assert!(lines.len() == 1 && lines[0].contains("another name"), "{lines:?}");
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let folder = Folder::new();
    let code = [7; 1000];
    let cache = folder.cache(Bytes::kib(4));
    for (digest, seconds) in [("old", 300), ("used", 400), ("new", 100)] {
        cache.keep(digest, &artifact(&code));
        age(&folder.path(&cache, digest), seconds);
    }
    assert!(cache.find("used").is_some());
    cache.keep("newest", &artifact(&code));
    assert!(cache.find("old").is_none(), "{:?}", folder.names());
    for digest in ["used", "new", "newest"] {
        assert!(cache.find(digest).is_some(), "{digest}: {:?}", folder.names());
    }
    cache.keep("huge", &artifact(&[0; 5000]));
    assert!(cache.find("huge").is_none() && cache.find("newest").is_some());
}

#[test]
fn what_a_dead_host_left_unfinished_is_removed_in_time() {
    let folder = Folder::new();
    let cache = folder.cache(Bytes::mib(1));
    cache.keep("a", &artifact(b"code"));
    let (left, fresh) = (folder.0.join(".unfinished-1"), folder.0.join(".unfinished-2"));
    for path in [&left, &fresh] {
        fs::write(path, b"half").expect("written");
    }
    age(&left, 3700);
    age(&fresh, 3000);
    cache.keep("b", &artifact(b"code"));
    assert!(!left.exists() && fresh.exists(), "{:?}", folder.names());
}

#[test]
fn hosts_that_start_at_once_agree_on_a_key() {
    for _ in 0..20 {
        let folder = Folder::new();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let cache = folder.cache(Bytes::mib(1));
                scope.spawn(move || cache.keep(&format!("a{n}"), &artifact(b"code")));
            }
        });
        let cache = folder.cache(Bytes::mib(1));
        for n in 0..4 {
            assert!(cache.find(&format!("a{n}")).is_some(), "{n}: {:?}", folder.names());
        }
        assert_eq!(folder.names().len(), 5, "{:?}", folder.names());
    }
}

#[test]
fn a_folder_that_fails_is_said_once() {
    let folder = Folder::new();
    fs::write(&folder.0, b"no folder").expect("written");
    let cache = folder.cache(Bytes::mib(1));
    let lines = logged(|| {
        for _ in 0..3 {
            cache.keep("a", &artifact(b"code"));
            assert!(cache.find("a").is_none());
        }
    });
    assert!(lines.len() == 1 && lines[0].contains("compiled anew"), "{lines:?}");
    fs::remove_file(&folder.0).expect("removed");
    cache.keep("a", &artifact(b"code"));
    assert!(cache.find("a").is_some(), "it is of use again");
}
