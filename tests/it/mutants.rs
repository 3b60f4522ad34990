//! The list of mutants fits the sources; `scripts/mutants` tries them.

use std::process::Command;

use crate::guests::root;

#[test]
fn every_mutant_can_be_made_and_names_tests_that_exist() {
    let output = Command::new(root().join("scripts/mutants"))
        .arg("--check")
        .arg("--binary")
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}
