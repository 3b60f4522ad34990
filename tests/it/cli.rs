//! The commands, as people type them.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    database::Database,
    guests,
    hosts::{Host, KEY},
};

/// A folder of a test's own, deleted with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("outrigger-cli-{}", Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a command did.
#[derive(Debug)]
struct Done {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Done {
    fn of(output: Output) -> Self {
        Self {
            status: output.status,
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its output, given that it went well.
    #[track_caller]
    fn ok(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.out
    }

    /// The same as JSON.
    #[track_caller]
    fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// What it complained of, given that it failed as it should.
    #[track_caller]
    fn failed(self) -> String {
        assert_eq!(self.status.code(), Some(1), "{self:?}");
        self.err
    }
}

/// The program in a folder, with none of this process's settings.
fn outrigger(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    let own = std::env::vars_os().map(|(name, _)| name);
    for name in own.filter(|name| name.to_string_lossy().starts_with("OUTRIGGER_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).stdin(Stdio::null());
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn done(command: &mut Command) -> Done {
    Done::of(command.output().unwrap())
}

/// A person in a folder who talks to a host.
struct Person<'a> {
    folder: &'a Folder,
    url: String,
    key: String,
}

impl Person<'_> {
    fn command(&self, line: &str) -> Command {
        let mut command = outrigger(&self.folder.0);
        command.args(line.split_whitespace());
        command.env("OUTRIGGER_URL", &self.url).env("OUTRIGGER_KEY", &self.key);
        command.env("OUTRIGGER_PROJECT", "shop");
        command
    }

    /// Types a line, of words without blanks.
    fn types(&self, line: &str) -> Done {
        done(&mut self.command(line))
    }

    /// Types a line and sends a text to its standard input.
    fn sends(&self, line: &str, text: &str) -> Done {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Done::of(child.wait_with_output().unwrap())
    }
}

/// A host that a person started with no configuration at all but the port.
struct Started {
    child: Child,
    url: String,
    said: Vec<String>,
    log: Box<dyn Iterator<Item = String>>,
}

impl Started {
    fn new(folder: &Folder) -> Self {
        let mut command = outrigger(&folder.0);
        command.arg("serve").env("OUTRIGGER_LISTEN", "127.0.0.1:0").stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut said = vec![lines.next().expect("the host says where it listens")];
        let (_, rest) = said[0].split_once("listens on ").unwrap();
        let url = rest.split(',').next().unwrap().to_owned();
        said.extend(
            lines.by_ref().take_while(|line| {
                !line.contains("OUTRIGGER_KEY") && !line.contains("keys create")
            }),
        );
        Self { child, url, said, log: Box::new(log) }
    }

    /// The key that it printed.
    fn key(&self) -> Option<String> {
        self.said
            .iter()
            .map(|line| line.trim())
            .find(|line| line.starts_with("or_"))
            .map(str::to_owned)
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// How the process ended.
    fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Whoever was signalled has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_start_makes_a_key_and_later_ones_do_not() {
    let folder = Folder::new();
    let mut first = Started::new(&folder);
    let key = first.key().expect("a key is printed");
    let person = Person { folder: &folder, url: first.url.clone(), key: key.clone() };
    let listed = person.types("keys list --json").json();
    assert_eq!(listed["items"][0]["name"], "admin (generated)");
    assert!(!listed.to_string().contains(&key));
    assert!(folder.0.join("outrigger.db").exists());

    // One that was lost is replaced while the host runs.
    let made = done(outrigger(&folder.0).args(["keys", "create", "--local", "--json"])).json();
    let other = Person { key: made["key"].as_str().unwrap().to_owned(), ..person };
    assert_eq!(other.types("keys list --json").json()["items"].as_array().unwrap().len(), 2);
    first.signal("-TERM");
    assert_eq!(first.end(), Some(0));

    let mut second = Started::new(&folder);
    assert_eq!(second.key(), None, "{:?}", second.said);
    let person = Person { folder: &folder, url: second.url.clone(), key };
    person.types("keys list").ok();
    person.types(&format!("keys delete {}", made["id"].as_str().unwrap())).ok();
    let gone = Person { key: other.key, ..person };
    assert!(gone.types("keys list").failed().starts_with("error: The API key is not valid: "));
    second.signal("-INT");
    assert_eq!(second.end(), Some(0));
}

#[test]
fn a_second_signal_ends_a_host_that_waits_for_its_calls() {
    let folder = Folder::new();
    let mut host = Started::new(&folder);
    let person = Person { folder: &folder, url: host.url.clone(), key: host.key().unwrap() };
    let probe = folder.write("probe.wasm", guests::probe());
    person.types("projects create shop").ok();
    person.types(&format!("plugins push probe {}", probe.display())).ok();
    let trigger = "match = {}\ntarget = { plugin = 'probe' }\nlimits = { deadline = '1m' }";
    person.sends("triggers put slow", trigger).ok();
    let event = r#"{"resource":"r","aggregateId":"a","eventName":"n",
        "payload":{"do":[{"op":"sleep","ms":50000}]}}"#;
    let id = person.sends("events publish", event).ok();
    let claimed = || person.types(&format!("events show {id}")).ok().contains("claimed");
    while !claimed() {}
    host.signal("-TERM");
    let stopping = host.log.find(|line| line.contains("stopping"));
    assert!(stopping.is_some(), "the host says that it stops");
    host.signal("-TERM");
    assert_eq!(host.end(), Some(130));
}

#[test]
fn a_plugin_from_nothing_to_a_delivered_event() {
    let folder = Folder::new();
    let host = Started::new(&folder);
    let key = host.key().unwrap();
    let person = Person { folder: &folder, url: host.url.clone(), key };

    person.types("plugins new --lang rust greet-customer").ok();
    let project = folder.0.join("greet-customer");
    assert!(person.types("plugins new greet-customer").failed().contains("is there already"));
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", "wasm32-wasip2"])
        .current_dir(&project)
        // Kept between runs: what it depends on is built once.
        .env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/new-plugin"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let artifact = "wasm32-wasip2/release/greet_customer.wasm";
    let target = project.join("target").join(artifact);
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-plugin").join(artifact);
    std::fs::copy(built, &target).unwrap();

    let file = format!("greet-customer/target/{artifact}");
    let checked = person.types(&format!("plugins check {file}")).ok();
    assert!(checked.contains("outrigger:trigger/handler@1.0.0"), "{checked}");
    let broken = folder.write("broken.wasm", "no component");
    assert!(!person.types(&format!("plugins check {}", broken.display())).failed().is_empty());

    let changes = |done: Done| {
        let changes = done.json()["changes"].clone();
        let changes = changes.as_array().unwrap().iter().map(|change| change["done"].clone());
        changes.collect::<Vec<_>>()
    };
    let half = folder.write("half.toml", "project = 'half'\nplugins = { a = 'nowhere.wasm' }");
    assert!(person.types(&format!("apply {}", half.display())).failed().contains("nowhere.wasm"));
    assert!(
        !person.types("projects list").ok().contains("half"),
        "it began before it had read all"
    );
    let apply = "apply --json greet-customer/apply.toml";
    assert_eq!(changes(person.types(&format!("{apply} --dry-run"))), ["created"; 3]);
    assert_eq!(changes(person.types(apply)), ["created"; 3]);
    assert_eq!(changes(person.types(apply)), ["unchanged"; 3]);
    person
        .sends(
            "triggers put --project demo greet-customer",
            r#"{
        "match": {"resource": "order"}, "target": {"plugin": "greet-customer"}}"#,
        )
        .ok();
    assert_eq!(changes(person.types(apply)), ["unchanged", "unchanged", "changed"]);

    let publish =
        "events publish --project demo --file greet-customer/event.json --wait 30s --json";
    let published = person.types(publish).json();
    assert_eq!(published["triggers"], json!({"greet-customer": "done"}), "{published}");
    let id = published["messageId"].as_str().unwrap();
    let shown = person.types(&format!("events show --project demo {id}")).ok();
    for part in ["dispatched", r#"{ "total": 1200 }"#, "order.placed of o-1"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[tokio::test]
async fn what_commands_print() {
    let database = Database::sqlite();
    let host = Host::start(&database.url).await;
    let folder = Folder::new();
    let probe = folder.write("probe.wasm", guests::probe());
    let person = Person { folder: &folder, url: host.url().to_owned(), key: KEY.to_owned() };

    assert_eq!(person.types("projects create shop").ok(), "project shop is created\n");
    assert_eq!(person.types("projects create shop").ok(), "project shop was there\n");
    let pushed = person.types(&format!("plugins push probe {}", probe.display())).ok();
    assert!(pushed.contains("active      true"), "{pushed}");
    let digest = person.types("plugins show probe --json").json()["active"].clone();
    let short = &digest.as_str().unwrap()[..8];
    let activated = person.types(&format!("plugins activate probe {short}")).ok();
    assert!(activated.contains(digest.as_str().unwrap()));

    let document = "match = { eventName = 'order.*' }\ntarget = { plugin = 'probe' }\ngrants = { state = true }";
    assert_eq!(person.sends("triggers put audit", document).ok(), "trigger audit is created\n");
    let listed = person.types("triggers list").ok();
    assert!(listed.starts_with("NAME") && listed.contains("order.*"), "{listed}");
    let paused = person.types("triggers pause audit --reason lunch").ok();
    assert_eq!(paused, "trigger audit is paused; its deliveries wait\n");
    let shown = person.types("triggers show audit").ok();
    for part in ["lunch", "state     yes\n", "emit      nothing\n", "add `emit` to the grants"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    person.types("triggers resume audit").ok();

    let flags =
        "events publish --resource order --aggregate-id o-1 --event-name order.placed --wait 30s";
    let set = r#"{"do":[{"op":"set","key":"a","value":"b"},{"op":"log","text":"seen"}]}"#;
    let published = person.types(&format!("{flags} --payload {set} --dedup-key once")).ok();
    assert!(published.ends_with("audit  done\n"), "{published}");
    let again = person.types(&format!("{flags} --payload {set} --dedup-key once")).failed();
    assert!(again.starts_with("error: The dedup key was used before: "), "{again}");
    assert_eq!(
        person.types("triggers state audit").ok().lines().nth(1),
        Some("a    b      -         1")
    );

    let reject = r#"{"do":[{"op":"reject","message":"never"}]}"#;
    let dead = person.types(&format!("{flags} --payload {reject}")).ok();
    assert!(dead.ends_with("audit  dead\n"), "{dead}");
    let letters = person.types("dead-letters list").ok();
    assert!(letters.contains("never") && letters.contains("reject"), "{letters}");
    let which = person.types("dead-letters purge").failed();
    assert!(which.contains("--all"), "{which}");
    assert_eq!(person.types("dead-letters requeue --all --dry-run").ok(), "1 dead letters match\n");
    assert_eq!(
        person.types("dead-letters requeue --kind reject").ok(),
        "1 dead letters are requeued\n"
    );

    let id = published.lines().next().unwrap();
    assert_eq!(person.types(&format!("events replay {id}")).ok(), "audit  replay 1\n");
    let which = person.types("events replay --trigger audit").failed();
    assert!(which.contains("--all"), "{which}");
    let dry = person.types("events replay --resource order --dry-run").ok();
    assert_eq!(dry, "2 events match\n");
    let bulk =
        person.types("events replay --resource order --since 2020-01-01T00:00:00Z --limit 1");
    let bulk = bulk.ok();
    assert!(bulk.starts_with("1 events make "), "{bulk}");
    let json = person.types("events replay --all --no-wait --json").json();
    assert_eq!((&json["kind"], &json["total"]), (&json!("replayEvents"), &json!(2)));
    let none = person.types(&format!("events replay {id} --trigger nope")).failed();
    assert!(none.contains("`nope`"), "{none}");

    let status = person.types("status").ok();
    assert!(status.contains("shop") && status.contains("audit"), "{status}");
    assert!(person.types("status --project shop --json").json()["triggers"]["audit"].is_object());
    let array =
        r#"[{"resource":"r","aggregateId":"a","eventName":"n","payload":1},{"resource":""}]"#;
    let mixed = person.sends("events publish", array);
    assert_eq!(mixed.status.code(), Some(1));
    assert_eq!(mixed.out.lines().count(), 2, "{mixed:?}");

    let kept = person.types("triggers delete audit").failed();
    assert!(kept.contains("deliveries"), "{kept}");
    person.types("triggers delete audit --deliveries drop").ok();
    person.types("plugins delete probe").ok();
    assert!(person.types("projects delete shop").failed().contains("--yes"));
    person.types("projects delete shop --yes").ok();
    assert!(person.types("events list").failed().starts_with("error: There is no such project: "));
}

#[test]
fn what_goes_wrong_is_said_to_whoever_typed() {
    let folder = Folder::new();
    // A port that was free a moment ago: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let person = Person { folder: &folder, url: url.clone(), key: KEY.to_owned() };
    let said = person.types("status").failed();
    assert!(said.contains(&url) && said.contains("outrigger serve"), "{said}");
    let said = done(outrigger(&folder.0).args(["events", "list"])).failed();
    assert!(said.contains("OUTRIGGER_PROJECT"), "{said}");
    let said = person.types("triggers put t nowhere.toml").failed();
    assert!(said.contains("nowhere.toml"), "{said}");

    for (name, value) in [
        ("OUTRIGGER_LEASE", "5"),
        ("OUTRIGGER_LEASSE", "60s"),
        ("OUTRIGGER_BATCH_SIZE", "-1"),
        ("OUTRIGGER_TABLE_PREFIX", "a;b"),
        ("OUTRIGGER_LOG", "loud=very"),
    ] {
        let said = done(outrigger(&folder.0).arg("serve").env(name, value)).failed();
        assert!(said.contains(name), "{said}");
    }
    folder.write("outrigger.toml", "[router]\nbatch = 5\n");
    let said = done(outrigger(&folder.0).arg("serve")).failed();
    assert!(said.contains("router") && said.contains("`batch`"), "{said}");
    assert!(!folder.0.join("outrigger.db").exists(), "nothing was begun");
}

#[test]
fn migrate_makes_all_tables_or_the_inbox_alone() {
    let folder = Folder::new();
    let migrate = |arguments: &[&str]| {
        let mut command = outrigger(&folder.0);
        command.arg("migrate").args(arguments).env("OUTRIGGER_DATABASE_URL", "sqlite:own.db");
        done(&mut command).ok()
    };
    let tables = || {
        let bytes = std::fs::read(folder.0.join("own.db")).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (text.contains("outrigger_inbox"), text.contains("outrigger_outbox"))
    };
    for _ in 0..2 {
        assert_eq!(migrate(&["--only", "inbox"]), "sqlite:own.db is up to date\n");
    }
    assert_eq!(tables(), (true, false));
    migrate(&[]);
    migrate(&[]);
}

const OLD_KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const NEW_KEY: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

#[tokio::test]
async fn secrets_are_set_granted_and_sealed_anew() {
    let database = Database::sqlite();
    let host = Host::with(&database.url, &[("OUTRIGGER_SECRETS_KEY", OLD_KEY)]).await;
    let folder = Folder::new();
    let probe = folder.write("probe.wasm", guests::probe());
    let person = Person { folder: &folder, url: host.url().to_owned(), key: KEY.to_owned() };
    person.types("projects create shop").ok();
    person.types(&format!("plugins push probe {}", probe.display())).ok();

    assert_eq!(
        person.sends("secrets set SMTP_KEY", "open-sesame\n").ok(),
        "secret SMTP_KEY is set\n"
    );
    folder.write("other", "first line\nsecond line\r\n");
    person.types("secrets set OTHER --file other").ok();
    let again = person.sends("secrets set SMTP_KEY", "open-barley\n").ok();
    assert_eq!(again, "secret SMTP_KEY has another value\n");
    assert!(person.sends("secrets set SHORT", "hush\n").failed().contains("needs 8"));
    let document =
        "match = {}\ntarget = { plugin = 'probe' }\nrecord = 'all'\n[grants]\nsecrets = [";
    let missing = person.sends("triggers put ship", &format!("{document}'NONE']")).failed();
    assert!(missing.contains("`NONE`"), "{missing}");
    let granted = format!("{document}'SMTP_KEY', 'OTHER']\nstate = true");
    person.sends("triggers put ship", &granted).ok();
    let listed = person.types("secrets list").ok();
    assert!(listed.contains("SMTP_KEY") && listed.contains("ship"), "{listed}");
    assert!(!listed.contains("open-barley"), "{listed}");
    assert!(person.types("secrets delete OTHER").failed().contains("ship"));

    // With the old key beside the new one, all are sealed with the new one.
    let rotate = |key: &str, previous: &str| {
        let mut command = outrigger(&folder.0);
        command.args(["secrets", "rotate", "--json"]).env("OUTRIGGER_DATABASE_URL", &database.url);
        done(
            command
                .env("OUTRIGGER_SECRETS_KEY", key)
                .env("OUTRIGGER_SECRETS_PREVIOUS_KEYS", previous),
        )
    };
    assert!(rotate("", OLD_KEY).failed().contains("OUTRIGGER_SECRETS_KEY"));
    let failed = rotate(NEW_KEY, "");
    assert_eq!((failed.status.code(), failed.out.contains(r#""failed":2"#)), (Some(1), true));
    let counts =
        |sealed: u32, current: u32| json!({"sealed": sealed, "current": current, "failed": 0});
    assert_eq!(rotate(NEW_KEY, OLD_KEY).json(), counts(2, 0));
    assert_eq!(rotate(NEW_KEY, OLD_KEY).json(), counts(0, 2));
    drop(host);
    let host = Host::with(&database.url, &[("OUTRIGGER_SECRETS_KEY", NEW_KEY)]).await;
    let person = Person { url: host.url().to_owned(), ..person };
    for (name, value) in [("SMTP_KEY", "open-barley"), ("OTHER", "first line\nsecond line")] {
        let show = json!({"do": [{"op": "secret", "name": name, "show": "state"}]}).to_string();
        let event = json!({"resource": "r", "aggregateId": "a", "eventName": "n",
            "payload": serde_json::from_str::<Value>(&show).unwrap()});
        person.sends("events publish --wait 20s", &event.to_string()).ok();
        let state = person.types("triggers state ship --json").json();
        assert_eq!(state["items"][0]["value"], format!("{name}={value}"));
    }
    person.types("triggers delete ship").ok();
    person.types("secrets delete OTHER").ok();
    assert!(person.types("secrets delete OTHER").failed().contains("no secret `OTHER`"));
}

#[tokio::test]
async fn the_log_of_a_trigger_is_shown_and_followed() {
    let database = Database::sqlite();
    let host = Host::start(&database.url).await;
    let folder = Folder::new();
    let probe = folder.write("probe.wasm", guests::probe());
    let person = Person { folder: &folder, url: host.url().to_owned(), key: KEY.to_owned() };
    person.types("projects create shop").ok();
    person.types(&format!("plugins push probe {}", probe.display())).ok();
    let document = "match = {}\ntarget = { plugin = 'probe' }\nrecord = 'all'";
    person.sends("triggers put audit", document).ok();
    let publish = |text: &str| {
        let event = json!({"resource": "r", "aggregateId": "a-1", "eventName": "n.done",
            "payload": {"do": [{"op": "stderr", "text": text}]}});
        person.sends("events publish --wait 20s", &event.to_string()).ok()
    };
    let id = publish("first");
    publish("second");
    let shown = person.types("triggers logs audit").ok();
    let (first, second) = (shown.find("first").unwrap(), shown.find("second").unwrap());
    assert!(first < second, "the newest last: {shown}");
    for part in ["warn  stderr first", "n.done of r a-1", id.lines().next().unwrap()] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(person.types("triggers logs audit --failed").ok(), "");
    let json = person.types("triggers logs audit --limit 1 --json").json();
    assert_eq!(json["items"][0]["logs"][0]["text"], "second");

    let mut command = person.command("triggers logs audit -f --limit 1 --json");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap()).unwrap() };
    assert_eq!(next()["logs"][0]["text"], "second");
    publish("third");
    assert_eq!(next()["logs"][0]["text"], "third");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(person.types("triggers logs audit -f --project nope").failed().contains("nope"));
}
