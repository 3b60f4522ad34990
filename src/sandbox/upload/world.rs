//! Whether a component fits into the world that this host offers.

use wasmtime::component::types::Component;

use super::UploadError;
use crate::sandbox::v1;

/// The WASI interfaces that are linked, by package. They are there because
/// toolchains import them: files, sockets and the environment are empty.
const WASI: [(&str, &[&str]); 7] = [
    (
        "wasi:cli",
        &[
            "environment",
            "exit",
            "stderr",
            "stdin",
            "stdout",
            "terminal-input",
            "terminal-output",
            "terminal-stderr",
            "terminal-stdin",
            "terminal-stdout",
        ],
    ),
    ("wasi:clocks", &["monotonic-clock", "wall-clock"]),
    ("wasi:filesystem", &["preopens", "types"]),
    ("wasi:http", &["outgoing-handler", "types"]),
    ("wasi:io", &["error", "poll", "streams"]),
    ("wasi:random", &["insecure", "insecure-seed", "random"]),
    (
        "wasi:sockets",
        &[
            "instance-network",
            "ip-name-lookup",
            "network",
            "tcp",
            "tcp-create-socket",
            "udp",
            "udp-create-socket",
        ],
    ),
];

/// Versions of WASI that are linked; their patch versions are compatible.
const WASI_TRACK: &str = "0.2.";

/// Longest list of names in a message.
const LISTED: usize = 20;

/// What a component imports and exports, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
}

impl World {
    /// Reads a component's type.
    pub(super) fn of(component: &Component, engine: &wasmtime::Engine) -> Self {
        Self {
            imports: component.imports(engine).map(|(name, _)| name.to_owned()).collect(),
            exports: component.exports(engine).map(|(name, _)| name.to_owned()).collect(),
        }
    }

    /// Checks the names. Whether the types behind them fit is for the linker
    /// to say.
    pub(super) fn check(&self) -> Result<(), UploadError> {
        self.check_handler()?;
        self.imports.iter().try_for_each(|import| check_import(import))
    }

    fn check_handler(&self) -> Result<(), UploadError> {
        let ours = |name: &&String| {
            let (interface, _) = split(name);
            interface.strip_prefix(v1::PACKAGE) == Some("/handler")
        };
        match self.exports.iter().find(ours) {
            Some(found) if split(found).1.is_some_and(is_first_major) => Ok(()),
            Some(found) => {
                Err(UploadError::HandlerVersion { handler: v1::HANDLER, found: found.clone() })
            }
            None => Err(UploadError::NoHandler {
                handler: v1::HANDLER,
                exports: list(&self.exports),
                advice: self.advice(),
            }),
        }
    }

    /// The usual cause of a missing handler.
    fn advice(&self) -> &'static str {
        let exports = |part: &str| self.exports.iter().any(|name| name.contains(part));
        if exports("wasi:cli/run") {
            "It is a program. Build a library instead: in Rust, `crate-type = [\"cdylib\"]` and \
             no `main`."
        } else if exports("wasi:http/") {
            "It is an HTTP server. Build it against the world `trigger` of Outrigger's \
             `trigger.wit`."
        } else if self.exports.iter().any(|name| name == "handle") {
            "Export the interface `handler` with that function in it, not the function alone."
        } else {
            "Build it against the world `trigger` of Outrigger's `trigger.wit`, and export its \
             `handler` (in Rust, `export!(…)`)."
        }
    }
}

fn check_import(import: &str) -> Result<(), UploadError> {
    let refuse = |advice: String| Err(UploadError::UnknownImport { import: import.into(), advice });
    let (interface, version) = split(import);
    let Some((package, name)) = interface.split_once('/') else {
        return refuse(format!("A plugin can import interfaces alone. {}", offer()));
    };
    if package == v1::PACKAGE {
        return match version {
            Some(version) if is_first_major(version) && v1::OFFERED.contains(&name) => Ok(()),
            Some(version) if is_first_major(version) => refuse(offer()),
            _ => refuse(format!("That is another version. {}", offer())),
        };
    }
    let Some((_, names)) = WASI.iter().find(|(offered, _)| *offered == package) else {
        return refuse(format!("This host doesn't offer it. {}", offer()));
    };
    match version {
        Some(version) if !version.starts_with(WASI_TRACK) || version.contains('-') => {
            refuse(format!("This host offers WASI {WASI_TRACK}x; build for `wasm32-wasip2`."))
        }
        Some(_) if names.contains(&name) => Ok(()),
        _ => refuse(format!("This host offers of `{package}`: {}.", names.join(", "))),
    }
}

/// What a plugin can import.
fn offer() -> String {
    let packages: Vec<_> = WASI.iter().map(|(package, _)| *package).collect();
    format!(
        "This host offers `{}@{}` ({}) and, of WASI {WASI_TRACK}x, {}.",
        v1::PACKAGE,
        v1::VERSION,
        v1::OFFERED.join(", "),
        packages.join(", "),
    )
}

/// Interface and version of `package/interface@version`.
fn split(name: &str) -> (&str, Option<&str>) {
    name.split_once('@').map_or((name, None), |(interface, version)| (interface, Some(version)))
}

/// Whether a version is 1.x: those are compatible with each other.
fn is_first_major(version: &str) -> bool {
    version.starts_with("1.") && !version.contains('-')
}

/// Names for a message.
fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".into();
    }
    let shown: Vec<_> = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = names.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(imports: &[&str], exports: &[&str]) -> World {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        World { imports: owned(imports), exports: owned(exports) }
    }

    #[test]
    fn what_toolchains_import_is_there() {
        let imports = [
            "outrigger:trigger/types@1.0.0",
            "outrigger:trigger/emit@1.0.0",
            "outrigger:trigger/secrets@1.3.0",
            "wasi:io/streams@0.2.0",
            "wasi:cli/environment@0.2.99",
            "wasi:http/outgoing-handler@0.2.3",
            "wasi:http/types@0.2.10",
            "wasi:sockets/tcp@0.2.9",
            "wasi:random/insecure-seed@0.2.12",
        ];
        for handler in ["outrigger:trigger/handler@1.0.0", "outrigger:trigger/handler@1.9.1"] {
            assert_eq!(world(&imports, &["x", handler]).check(), Ok(()));
        }
    }

    #[test]
    fn a_missing_handler_is_explained() {
        for (exports, reason, said) in [
            (&[][..], "noHandler", "It exports nothing."),
            (&["wasi:cli/run@0.2.3"], "noHandler", "It is a program"),
            (&["wasi:http/incoming-handler@0.2.3"], "noHandler", "It is an HTTP server"),
            (&["handle"], "noHandler", "not the function alone"),
            (&["acme:a/b", "c"], "noHandler", "exports `acme:a/b`, `c`. Build it against"),
            (&["outrigger:trigger/handler@2.0.0"], "handlerVersion", "handler@2.0.0`; this host"),
            (&["outrigger:trigger/handler@1.0.0-rc.1"], "handlerVersion", "@1.0.0-rc.1`"),
            (&["outrigger:trigger/handler"], "handlerVersion", "runs `outrigger:trigger/handler@1"),
        ] {
            let error = world(&[], exports).check().expect_err("refused");
            assert_eq!(error.reason(), reason);
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn an_unknown_import_is_named_with_what_there_is() {
        for (import, said) in [
            ("wasi:http/incoming-handler@0.2.3", "of `wasi:http`: outgoing-handler, types"),
            ("wasi:http/types@0.3.0", "offers WASI 0.2.x"),
            ("wasi:cli/stdout@0.3.0", "offers WASI 0.2.x"),
            ("wasi:cli/stdout@0.2.0-rc-2023-11-10", "offers WASI 0.2.x"),
            ("wasi:cli/command@0.2.0", "of `wasi:cli`: environment, exit"),
            ("wasi:keyvalue/store@0.2.0-draft", "wasi:sockets"),
            ("acme:missing/api@1.0.0", "`outrigger:trigger@1.0.0` (config, emit"),
            ("outrigger:trigger/statements@1.1.0", "(config, emit"),
            ("outrigger:trigger/emit@2.0.0", "another version"),
            ("log", "interfaces alone"),
        ] {
            let error = world(&[import], &[v1::HANDLER]).check().expect_err(import).to_string();
            assert!(error.contains(&format!("imports `{import}`")), "{error}");
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<_> = (0..25).map(|n| n.to_string()).collect();
        assert!(list(&names).ends_with("`19` and 5 more"));
    }
}
