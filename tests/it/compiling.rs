//! What a stranger's component costs the host that compiles it.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use outrigger::{
    model::units::{Bytes, Span},
    sandbox::{Compiler, Sandbox, Settings, UploadError},
};
use reqwest::Method;
use serde_json::json;

use crate::{
    bombs,
    database::Database,
    guests,
    hosts::{Host, KEY, client, eventually},
    neighbours,
    scenarios::alone,
};

const LONG: Duration = Duration::from_mins(2);

/// A sandbox that compiles as `outrigger serve` does.
fn sandbox(settings: Settings) -> Arc<Sandbox> {
    let compiler = Compiler::Program(env!("CARGO_BIN_EXE_outrigger").into());
    Sandbox::new(Settings { slots: 8, compiler, ..settings }).unwrap()
}

async fn refused(sandbox: &Arc<Sandbox>, bytes: Vec<u8>) -> UploadError {
    match sandbox.load(bytes).await {
        Ok(plugin) => panic!("accepted: {plugin:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_component_is_compiled_elsewhere_and_runs_here() {
    // What calls get on this host is nothing to the compiler.
    let settings = Settings { stack_max: Bytes::kib(256), ..Settings::default() };
    let plugin = sandbox(settings).load(guests::probe()).await.unwrap();
    let report = plugin.call(crate::sandbox::call(&json!([]))).await;
    assert!(report.result.is_ok(), "{report:?}");
    assert!(plugin.info.compile_ms > 0);
}

#[tokio::test]
async fn what_would_cost_a_compiler_too_much_is_refused_with_its_limit() {
    let sandbox = sandbox(Settings { component_max: Bytes::mib(64), ..Settings::default() });
    for (bytes, limit, said) in [
        (
            bombs::locals(),
            "locals",
            "5000 local variables in one function; this host compiles 2000",
        ),
        (bombs::functions(1_000_000), "functions", "1000000 functions; this host compiles 60000"),
        (bombs::tables(), "targets", "60000 branch-table targets in one function"),
        (bombs::crossings(100_000), "crossings", "100000 functions between components and modules"),
        (bombs::data(50 << 20, true), "data", "52428800 bytes of memory that data is put into"),
        (bombs::data(60 << 20, false), "data", "62914560 bytes of memory that data is put into"),
        (bombs::nested_types(100_000), "typeNesting", "33 types in one another"),
        (bombs::nested_components(1_000), "nesting", "17 components in one another"),
    ] {
        let error = refused(&sandbox, bytes).await;
        assert_eq!(error.reason(), "tooComplex", "{error}");
        let text = error.to_string();
        assert!(text.contains(said) && text.contains(&format!("(limit `{limit}`)")), "{text}");
    }
    sandbox.load(guests::probe()).await.expect("the host is unharmed");
}

#[tokio::test]
async fn memory_and_time_of_a_compiler_have_an_end() {
    let time = Span::from_secs(1);
    let short = sandbox(Settings { compile_time: time, ..Settings::default() });
    let error = refused(&short, bombs::heavy(4)).await;
    assert_eq!(error, UploadError::CompilerTime { max: time }, "{error}");
    assert!(error.to_string().contains("`compile_time` is 1s"), "{error}");
    let memory = Bytes::mib(512);
    let small = sandbox(Settings { compile_memory: memory, ..Settings::default() });
    let error = refused(&small, bombs::multiplied(10, 4)).await;
    assert_eq!(error, UploadError::CompilerMemory { max: memory }, "{error}");
    assert!(error.to_string().contains("`compile_memory` is 512MiB"), "{error}");
    small.load(guests::probe()).await.expect("the host is unharmed");
    // A second may be too short for more than this, which is found to be no
    // plugin once it is compiled.
    assert_eq!(refused(&short, bombs::functions(1)).await.reason(), "noHandler");
}

#[tokio::test]
async fn a_program_that_is_not_outrigger_is_the_hosts_fault() {
    let compiler = Compiler::Program("/nowhere/outrigger".into());
    let sandbox = Sandbox::new(Settings { slots: 8, compiler, ..Settings::default() }).unwrap();
    assert_eq!(refused(&sandbox, guests::probe()).await.reason(), "compilerAway");
}

/// The compilers that a process has started.
fn compilers(parent: u32) -> Vec<u32> {
    let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let is_one = |pid: &u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("compile-component")
            && status(*pid).lines().any(|line| line == format!("PPid:\t{parent}"))
    };
    let processes = fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(is_one)
        .collect()
}

/// The compiler of a host, once it has all that it is given and is at work.
async fn compiler_of(host: &Host) -> u32 {
    let mut found = 0;
    eventually("a compiler works", LONG, async || match compilers(host.pid())[..] {
        [pid] if processor_ticks(pid) >= 50 => {
            found = pid;
            Ok(())
        }
        ref other => Err(other.to_vec()),
    })
    .await;
    found
}

/// What a process has used of a processor, in hundredths of a second.
fn processor_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may have blanks; the user's time is the 12th behind it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(11).map_or(0, |ticks| ticks.parse().unwrap())
}

async fn gone(pid: u32) {
    eventually("the compiler is gone", LONG, async || {
        // One that has ended, and that nobody has waited for, has no command.
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.is_empty() { Ok(()) } else { Err(command) }
    })
    .await;
}

/// An upload that takes until it is given up, or a minute of processor time.
async fn endless(host: &Host, project: &str) {
    let (status, answer) = host.upload(project, "bomb", bombs::heavy(60)).await;
    panic!("{status} {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compiler_ends_with_the_request_and_with_the_host() {
    let database = Database::sqlite();
    // It would not end by itself for as long as this looks.
    let mut host = Host::with(&database.url, &[("OUTRIGGER_COMPILE_TIME", "1h")]).await;
    host.ok(Method::PUT, "/v1/projects/shop", Some(json!({}))).await;
    let pid = tokio::select! {
        () = endless(&host, "shop") => unreachable!(),
        pid = compiler_of(&host) => pid,
    };
    gone(pid).await;
    let url = format!("{}/v1/projects/shop/plugins/bomb", host.url());
    let upload = client().put(url).bearer_auth(KEY).body(bombs::heavy(60));
    let upload = tokio::spawn(upload.send());
    let pid = compiler_of(&host).await;
    host.kill();
    gone(pid).await;
    upload.await.unwrap().expect_err("nobody answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_that_compiles_for_long_keeps_no_other_waiting() {
    let database = Database::sqlite();
    let host = Host::with(&database.url, &[("OUTRIGGER_CACHE", "off")]).await;
    for project in ["busy", "quiet"] {
        host.ok(Method::PUT, &format!("/v1/projects/{project}"), Some(json!({}))).await;
    }
    let busy = async {
        tokio::join!(endless(&host, "busy"), endless(&host, "busy"), endless(&host, "busy"))
    };
    let quiet = async {
        compiler_of(&host).await;
        host.push("quiet", "probe", guests::probe()).await;
        assert_eq!(compilers(host.pid()).len(), 1, "one at a time for each project");
    };
    tokio::select! {
        _ = busy => unreachable!(),
        () = quiet => {}
    }
}

/// What a process has in memory, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// One at a time: it fills the machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_compilation_costs_a_neighbour_less_than_half_its_rate() {
    let _alone = alone().await;
    let database = Database::sqlite();
    let host = Host::start(&database.url).await;
    neighbours::put(&host, "fresh", "t").await;
    for project in ["bomber", "other"] {
        host.ok(Method::PUT, &format!("/v1/projects/{project}"), Some(json!({}))).await;
    }
    for _ in 0..2 {
        neighbours::drain(&database).await;
    }
    let best = |times: &[Duration]| times.iter().min().unwrap().as_secs_f64();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let (mut ratio, mut grown) = (0.0, 0);
    for _ in 0..4 {
        without.push(neighbours::drain(&database).await);
        let before = resident(host.pid());
        let beside = async {
            eventually("both compile", LONG, async || match compilers(host.pid()).len() {
                2 => Ok(()),
                other => Err(other),
            })
            .await;
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(4) {
                with.push(neighbours::drain(&database).await);
                grown = grown.max(resident(host.pid()).saturating_sub(before));
            }
            assert_eq!(compilers(host.pid()).len(), 2, "they still compile");
        };
        tokio::select! {
            () = endless(&host, "bomber") => unreachable!(),
            () = endless(&host, "other") => unreachable!(),
            () = beside => {}
        }
        ratio = best(&without) / best(&with);
        if ratio >= 0.8 {
            break;
        }
    }
    println!("rate beside two compilations: {ratio:.2}; the host grew by {} KiB", grown >> 10);
    assert!(ratio >= 0.5, "{ratio:.2}: {without:?} {with:?}");
    // Each of the components has 17 MiB, and each compiler hundreds.
    assert!(grown < 96 << 20, "the host grew by {} MiB", grown >> 20);
}
