//! What is said of components that can't run.

use std::{fs, sync::Arc};

use outrigger::sandbox::{Sandbox, Settings, UploadError};
use serde_json::json;

use super::call;
use crate::guests;

/// The WAT component that imports one interface, with some of its text replaced.
fn component(replacements: &[(&str, &str)]) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/wat/unknown-import.wat");
    let mut text = fs::read_to_string(path).expect("the fixture");
    for (from, to) in replacements {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    wat::parse_str(text).expect("WAT")
}

/// Turns the fixture's import into one of WASI.
const RANDOM: [(&str, &str); 3] = [
    ("acme:missing/api@1.0.0", "wasi:random/random@0.2.99"),
    ("\"ping\"", "\"get-random-u64\""),
    ("(func (result u32))", "(func (result u64))"),
];

/// And its core module along with it.
const CORE: (&str, &str) = ("i32)))\n    (memory", "i64)))\n    (memory");

async fn refused(sandbox: &Arc<Sandbox>, bytes: Vec<u8>) -> UploadError {
    match sandbox.load(bytes).await {
        Ok(plugin) => panic!("accepted: {plugin:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn uploads_that_cannot_run_are_refused_with_a_reason() {
    let sandbox = Sandbox::new(Settings { slots: 8, ..Settings::default() }).expect("a sandbox");
    let probe = guests::probe();
    let with = |from: &str, to: &str| component(&[(from, to)]);
    for (bytes, reason, said) in [
        (vec![], "empty", "is empty"),
        (vec![0; (32 << 20) + 1], "tooLarge", "33554433 bytes; this host accepts 32MiB"),
        (vec![0; 32 << 20], "notWebAssembly", "[00, 00, 00, 00]"),
        (b"export const x = 1".to_vec(), "notWebAssembly", "`export const x = 1`"),
        (b"(component)".to_vec(), "notWebAssembly", "WebAssembly text"),
        (b"\x7fELF\x02\x01\x01".to_vec(), "precompiled", "native code"),
        (guests::wat("core.wat"), "coreModule", "wasm32-wasip2"),
        (probe[..probe.len() / 2].to_vec(), "invalid", "cut off"),
        (probe[..7].to_vec(), "invalid", "ends after 7 bytes"),
        (guests::wat("empty-component.wat"), "noHandler", "It exports nothing"),
        (guests::wat("other-world.wat"), "noHandler", "exports `acme:thing/run@0.1.0`"),
        (guests::wat("unknown-import.wat"), "unknownImport", "imports `acme:missing/api@1.0.0`"),
        (
            with("acme:missing/api@1.0.0", "wasi:http/incoming-handler@0.2.3"),
            "unknownImport",
            "offers of `wasi:http`",
        ),
        (with("handler@1.0.0", "handler@2.0.0"), "handlerVersion", "`trigger.wit` of that version"),
        (
            component(&[
                RANDOM[0],
                RANDOM[1],
                RANDOM[2],
                CORE,
                ("\"after-ms\" (option u32)", "\"after-ms\" (option u64)"),
            ]),
            "handlerType",
            "from the host's own `trigger.wit`",
        ),
        (component(&[RANDOM[0]]), "importType", "`wasi:random/random@0.2.99` doesn't fit"),
        (
            component(&[
                RANDOM[0],
                RANDOM[1],
                RANDOM[2],
                CORE,
                ("(memory (export \"memory\") 16)", "(memory (export \"memory\") 8192)"),
            ]),
            "tooDemanding",
            "536870912",
        ),
        (
            with("(memory (export \"memory\") 16)", "(memory (export \"memory\") 1 1 shared)"),
            "invalid",
            "at offset 0x",
        ),
        (component(&[RANDOM[0], RANDOM[1], RANDOM[2]]), "invalid", "type mismatch"),
    ] {
        let error = refused(&sandbox, bytes).await;
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(said), "{said}: {error}");
    }
    let mut broken = probe.clone();
    let middle = broken.len() / 2;
    broken[middle..middle + 64].fill(0xff);
    let error = refused(&sandbox, broken).await;
    assert_eq!(error.reason(), "invalid", "{error}");

    let plugin = sandbox.load(probe).await.expect("the host is unharmed");
    assert!(plugin.call(call(&json!([]))).await.result.is_ok());
}

#[tokio::test]
async fn a_newer_patch_version_of_wasi_links_if_what_it_uses_is_there() {
    let sandbox = Sandbox::new(Settings { slots: 8, ..Settings::default() }).expect("a sandbox");
    let [name, function, result] = RANDOM;
    let bytes = component(&[name, function, result, CORE]);
    let plugin = sandbox.load(bytes.clone()).await.expect("it links");
    assert_eq!(plugin.info.imports, ["wasi:random/random@0.2.99", "outrigger:trigger/types@1.0.0"]);
    assert_eq!(plugin.info.exports, ["outrigger:trigger/handler@1.0.0"]);
    assert_eq!(plugin.info.size, bytes.len() as u64);
    assert_eq!(plugin.info.digest.len(), 64);
    let report = plugin.call(call(&json!([]))).await;
    assert!(report.result.is_ok(), "{report:?}");
}
