//! Who may use what: imports point in one direction.

use std::{fs, path::Path};

use crate::guests::root;

/// A word, and where alone it may stand below `src`.
const RULES: [(&str, &[&str]); 4] = [
    ("sqlx::", &["store/", "outbox.rs", "outbox/", "inbox.rs", "inbox/", "embed/"]),
    ("wasmtime::", &["sandbox/"]),
    ("axum::", &["api/", "dashboard/"]),
    ("reqwest::", &["cli/", "targets/"]),
];

/// What pure code has nothing to do with.
const IMPURE: [&str; 6] = ["sqlx", "wasmtime", "axum", "tokio", "reqwest", "std::fs"];

fn sources(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let name = path.strip_prefix(root().join("src")).unwrap().display().to_string();
            into.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn imports_point_in_one_direction() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    assert!(files.len() > 50);
    let mut wrong = Vec::new();
    for (name, text) in &files {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for (number, line) in code.enumerate() {
            for (word, places) in RULES {
                if line.contains(word) && !places.iter().any(|place| name.starts_with(place)) {
                    wrong.push(format!("{name}:{}: {line}", number + 1));
                }
            }
            let pure = name.starts_with("model/");
            if pure && IMPURE.iter().any(|word| line.contains(&format!("{word}::"))) {
                wrong.push(format!("{name}:{}: {line}", number + 1));
            }
            let implementation = line.contains("store::postgres") || line.contains("store::sqlite");
            let concrete = implementation || line.contains("crate::sandbox");
            if name.starts_with("router/") && concrete {
                wrong.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
