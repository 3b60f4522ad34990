use std::{collections::BTreeSet, fs, path::PathBuf};

use super::*;

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A file with this text, deleted with the value.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        let name = format!("outrigger-config-{}.toml", uuid::Uuid::new_v4());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).expect("a temporary file");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let file = File::new(text);
    Config::load(Some(&file.0), &environment(variables)).map_err(|error| error.to_string())
}

#[test]
fn with_nothing_said_the_defaults_hold() {
    let config = load("", &[]).expect("no settings");
    assert_eq!(config, Config::default());
    assert_eq!(config.database.url.expose(), "sqlite:outrigger.db");
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.sandbox(), sandbox::Settings::default());
    let store = store::Options::default();
    assert_eq!(config.store().prefix, store.prefix);
    assert_eq!(
        (config.store().lanes, config.store().connections, config.store().patience),
        (store.lanes, store.connections, store.patience)
    );
    let router = config.router();
    assert_eq!((router.batch, router.concurrency), (500, 64));
    assert_eq!((router.poll.as_millis(), router.lease.as_secs()), (1000, 60));
    assert_eq!(router.retention.as_secs(), 604_800);
    let (ours, theirs) = (config.api(), api::Settings::default());
    assert_eq!((ours.stall_after, ours.grace.as_secs()), (theirs.stall_after, 20));
    assert_eq!(
        (ours.body_max, ours.component_max, ours.payload_max),
        (theirs.body_max, theirs.component_max, theirs.payload_max)
    );
}

#[test]
fn the_file_is_read_and_variables_have_the_last_word() {
    let file = r#"
        [database]
        url = "postgres://app:hush@db/shop"
        wake = "poll"
        [router]
        batch_size = 100
        lease = "30s"
        projects = ["shop"]
    "#;
    let variables = [
        ("OUTRIGGER_BATCH_SIZE", "200"),
        ("OUTRIGGER_PROJECTS", "shop, crm"),
        ("OUTRIGGER_ADMIN_KEY", "123456789012"),
        ("OUTRIGGER_LEASE", ""),
        ("OUTRIGGER_COMPONENT_MAX", "64MiB"),
        ("OUTRIGGER_ARCHIVE", "/var/lib/outrigger/archive"),
    ];
    let config = load(file, &variables).expect("valid");
    assert_eq!(config.router.batch_size, 200);
    assert_eq!(config.router.lease, Span::from_secs(30), "an empty variable isn't set");
    assert_eq!(config.router.projects, Some(vec!["shop".into(), "crm".into()]));
    assert_eq!(config.sandbox.component_max, Bytes::mib(64));
    assert_eq!(config.router().archive, Some(PathBuf::from("/var/lib/outrigger/archive")));
    assert!(!config.store().notify);
    let shown = format!("{config:?}");
    assert!(!shown.contains("hush") && !shown.contains("123456789012"), "{shown}");
}

#[test]
fn what_is_wrong_in_the_file_is_named() {
    for (key, text) in [
        ("databse", "[databse]\nurl = 'x'"),
        ("router: unknown field `batchsize`", "[router]\nbatchsize = 1"),
        ("router.batch_size", "[router]\nbatch_size = -5"),
        ("router.batch_size", "[router]\nbatch_size = '5'"),
        ("router.batch_size", "[router]\nbatch_size = 0"),
        ("router.lease: `-1s` is no duration", "[router]\nlease = '-1s'"),
        ("router.lease", "[router]\nlease = 60"),
        ("router.lease", "[router]\nlease = '999ms'"),
        ("router.poll_interval", "[router]\npoll_interval = '60s'"),
        ("router.poll_interval", "[router]\npoll_interval = '0ms'"),
        ("router.concurrency", "[router]\nconcurrency = 300"),
        ("router.projects", "[router]\nprojects = []"),
        ("router.projects", "[router]\nprojects = ['a/b']"),
        ("router", "router = 1"),
        ("database.table_prefix: `a;drop", "[database]\ntable_prefix = 'a;drop'"),
        ("database.lanes", "[database]\nlanes = 0"),
        ("database.lanes", "[database]\nlanes = 70000"),
        ("database.url", "[database]\nurl = 'mysql://x'"),
        ("database.wake", "[database]\nwake = 'always'"),
        ("server.listen", "[server]\nlisten = 'localhost'"),
        ("server.admin_key", "[server]\nadmin_key = 'short'"),
        ("server.admin_key", "[server]\nadmin_key = 'with a space within'"),
        ("server.body_max", "[server]\nbody_max = '512KiB'"),
        ("events.payload_max", "[events]\npayload_max = '65MiB'\n[server]\nbody_max = '65MiB'"),
        ("events.archive", "[events]\narchive = ''"),
        ("sandbox.memory_max", "[sandbox]\nmemory_max = '1KiB'"),
        ("secrets.key: is no key", "[secrets]\nkey = 'hush-hush'"),
        ("secrets.previous_keys: is no key", "[secrets]\nprevious_keys = ['hush-hush']"),
        ("sandbox.cpu_max", "[sandbox]\ncpu_max = '0ms'"),
        ("sandbox.stack_max", "[sandbox]\nstack_max = '2MiB'"),
        ("http.allow: `10.1` is no range", "[http]\nallow = ['10.1']"),
        ("http.connections", "[http]\nconnections = 0"),
        ("sandbox.requests", "[sandbox]\nrequests = 0"),
        ("line 2: ", "[router]\nlease = = 5"),
    ] {
        let error = load(text, &[]).expect_err(text);
        assert!(error.contains(key) && !error.contains("hush"), "{text:?}: {error}");
    }
}

#[test]
fn what_is_wrong_in_a_variable_is_named_by_the_variable() {
    for (name, value) in [
        ("OUTRIGGER_BATCH_SIZE", "-5"),
        ("OUTRIGGER_BATCH_SIZE", "many"),
        ("OUTRIGGER_BATCH_SIZE", "0"),
        ("OUTRIGGER_LEASE", "5"),
        ("OUTRIGGER_LEASE", "1ms"),
        ("OUTRIGGER_LANES", "99999999999999999999"),
        ("OUTRIGGER_TABLE_PREFIX", "x\"; --"),
        ("OUTRIGGER_LISTEN", ":8080"),
        ("OUTRIGGER_WAKE", "sometimes"),
        ("OUTRIGGER_DATABASE_URL", "outrigger.db"),
        ("OUTRIGGER_PROJECTS", "a,,b"),
        ("OUTRIGGER_ADMIN_KEY", "short"),
        ("OUTRIGGER_HTTP_ALLOW", "10.1.0.0/16, nowhere"),
        ("OUTRIGGER_HTTP_READ_TIMEOUT", "0ms"),
        ("OUTRIGGER_SECRETS_KEY", "abcd"),
        ("OUTRIGGER_SECRETS_PREVIOUS_KEYS", "abcd,"),
        ("OUTRIGGER_LEASSE", "60s"),
        ("OUTRIGGER_PORT", "8080"),
    ] {
        let error = load("", &[(name, value)]).expect_err(name);
        assert!(error.starts_with(&format!("{name}: ")), "{error}");
        assert!(!error.contains('\n'), "{error:?}");
    }
}

#[test]
fn variables_that_others_set_are_left_alone() {
    let variables = [
        ("OUTRIGGER_URL", "http://localhost:9"),
        ("OUTRIGGER_SERVICE_HOST", "10.0.0.1"),
        ("OUTRIGGER_SERVICE_PORT", "8080"),
        ("OUTRIGGER_SERVICE_PORT_HTTP", "8080"),
        ("OUTRIGGER_PORT", "tcp://10.0.0.1:8080"),
        ("OUTRIGGER_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("OUTRIGGER_TEST_POSTGRES", "postgres://localhost"),
    ];
    load("", &variables).expect("none is a setting");
}

#[test]
fn a_secret_on_a_broken_line_is_not_repeated() {
    let error = load("[server]\nadmin_key = \"hush-hush-hush\n", &[]).expect_err("no end");
    assert!(error.contains("line 2") && !error.contains("hush"), "{error}");
}

#[test]
fn keys_of_secrets_are_read_and_hidden() {
    let key = "0123456789abcdef".repeat(4);
    let variables = [("OUTRIGGER_SECRETS_PREVIOUS_KEYS", &*format!("{key}, {key}"))];
    let config = load(&format!("[secrets]\nkey = '{key}'"), &variables).expect("valid");
    assert_eq!(config.secrets.previous_keys.len(), 2);
    assert!(config.keyring().expect("keys").can_seal());
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
    assert!(!Config::default().keyring().expect("none").can_seal());
}

#[test]
fn a_file_that_is_asked_for_must_be_there() {
    let missing = environment(&[("OUTRIGGER_CONFIG", "/nowhere/outrigger.toml")]);
    let error = Config::load(None, &missing).expect_err("missing").to_string();
    assert!(error.contains("/nowhere/outrigger.toml"), "{error}");
}

/// A section lists its keys when it is given a wrong one.
#[test]
fn every_key_is_a_variable_too() {
    let keys_of = |section: &str| {
        let text = format!("[{section}]\nno_such_key = 1");
        let error = load(&text, &[]).expect_err(section);
        let (_, keys) =
            error.split_once("expected one of ").or(error.split_once("expected ")).expect("keys");
        let keys = keys.replace(" or ", ", ");
        keys.split(", ")
            .map(|key| format!("{section}.{}", key.trim_matches('`')))
            .collect::<Vec<_>>()
    };
    let sections = ["database", "server", "events", "router", "sandbox", "http", "secrets", "log"];
    let keys: BTreeSet<_> = sections.iter().copied().flat_map(keys_of).collect();
    let listing = environment::listing();
    let variables: BTreeSet<_> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(str::to_owned)
        .collect();
    assert_eq!(keys, variables);
}
