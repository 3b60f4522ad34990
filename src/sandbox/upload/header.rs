//! What can be said of an upload from its first bytes.

use super::UploadError;
use crate::model::units::Bytes;

const MAGIC: &[u8] = b"\0asm";
const MODULE: [u8; 4] = [1, 0, 0, 0];
const COMPONENT: [u8; 4] = [0x0d, 0, 1, 0];

/// Accepts what is a component at its first glance.
pub(super) fn check(bytes: &[u8], max: Bytes) -> Result<(), UploadError> {
    if bytes.is_empty() {
        return Err(UploadError::Empty);
    }
    if bytes.len() > max.as_usize() {
        return Err(UploadError::TooLarge { size: bytes.len(), max: max.to_string() });
    }
    // Compiled artifacts are object files.
    if bytes.starts_with(b"\x7fELF") {
        return Err(UploadError::Precompiled);
    }
    let Some(version) = bytes.strip_prefix(MAGIC) else {
        return Err(UploadError::NotWebAssembly { looks: looks_like(bytes) });
    };
    match version.first_chunk() {
        Some(&MODULE) => Err(UploadError::CoreModule),
        Some(&COMPONENT) => Ok(()),
        Some(other) => Err(UploadError::NotWebAssembly {
            looks: format!(
                "begins like it, but is of an unknown version ({other:02x?}); build it with \
                 current tools"
            ),
        }),
        None => Err(UploadError::Invalid {
            message: format!("it ends after {} bytes", bytes.len()),
            advice: CUT_OFF,
        }),
    }
}

/// What to do about a file whose end is missing.
pub(super) const CUT_OFF: &str = "The upload seems to be cut off: send the whole file.";

fn looks_like(bytes: &[u8]) -> String {
    let sample = &bytes[..bytes.len().min(4096)];
    let text = match std::str::from_utf8(sample) {
        Ok(text) => text,
        // The sample may end within a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&sample[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => "",
    };
    let code = text
        .lines()
        .map(str::trim_start)
        .find(|line| !line.is_empty() && !line.starts_with(";;"))
        .unwrap_or_default();
    if code.starts_with("(component") {
        "is WebAssembly text (WAT); encode it with `wasm-tools parse` first".into()
    } else if code.starts_with("(module") || code.starts_with("(;") {
        "is WebAssembly text (WAT) of a module; encode it with `wasm-tools parse`, then make a \
         component of it with `wasm-tools component new`"
            .into()
    } else if code.starts_with("package ") && text.contains("world ") {
        "is a WIT document; send the component that was built against it".into()
    } else if sample.starts_with(b"PK\x03\x04") || sample.starts_with(b"\x1f\x8b") {
        "is a compressed archive; send the `.wasm` file itself".into()
    } else if !text.is_empty() && !text.contains('\0') {
        let begin: String = code.chars().filter(|c| !c.is_control()).take(40).collect();
        format!("is a text that begins with `{begin}`; send the component that is built from it")
    } else {
        format!(
            "begins with the bytes {:02x?}; send a component (`.wasm`)",
            &bytes[..bytes.len().min(4)]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> (&'static str, String) {
        let error = check(bytes, Bytes::mib(1)).expect_err("refused");
        (error.reason(), error.to_string())
    }

    #[test]
    fn what_it_is_instead_is_said() {
        for (bytes, reason, said) in [
            (&b""[..], "empty", "is empty"),
            (b"\x7fELF\x02\x01", "precompiled", "precompiled artifact"),
            (b"\0asm\x01\0\0\0", "coreModule", "wasm32-wasip2"),
            (b"\0asm\x0c\0\x01\0", "notWebAssembly", "unknown version"),
            (b"\0asm\x0d", "invalid", "ends after 5 bytes"),
            (b"\0as", "notWebAssembly", "begins with the bytes [00, 61, 73]"),
            (b" ;; hello\n\n(component)", "notWebAssembly", "wasm-tools parse"),
            (b"(module)", "notWebAssembly", "component new"),
            (b"package a:b;\nworld w {}", "notWebAssembly", "WIT document"),
            (b"PK\x03\x04\x14\0", "notWebAssembly", "archive"),
            (b"\x1f\x8b\x08", "notWebAssembly", "archive"),
            ("export function ä() {}".as_bytes(), "notWebAssembly", "`export function ä() {}`"),
            (&[0; 100], "notWebAssembly", "[00, 00, 00, 00]"),
            (&vec![0; (1 << 20) + 1], "tooLarge", "1048577 bytes; this host accepts 1MiB"),
        ] {
            let (found, text) = refused(bytes);
            assert_eq!(found, reason, "{text}");
            assert!(text.contains(said), "{said}: {text}");
        }
        assert_eq!(check(b"\0asm\x0d\0\x01\0", Bytes::mib(1)), Ok(()));
    }

    #[test]
    fn a_sample_may_end_within_a_character() {
        let text = format!("{}ä{}", "x".repeat(4095), "y".repeat(10));
        assert!(refused(text.as_bytes()).1.contains("is a text"));
    }
}
