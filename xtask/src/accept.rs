//! Runs the acceptance tests that lie beside the checkout, in `../shared/accept`.
//!
//! They are not ours and test the contract from outside, with their own stub workers. The list below
//! is what the project promises by now; a later step of the project adds to it and takes nothing off.

use crate::cargo::{must_run, program};
use crate::steps::Outcome;
use anyhow::{Result, ensure};
use std::path::Path;

/// The tests that must pass by now, as patterns of their names.
const PROMISED: [&str; 12] = [
    "test_r01_*",
    "test_r02_*",
    "test_r04_*",
    "test_r05_*",
    "test_r07_a_departed*",
    "test_r07_a_dead*",
    "test_r12_*",
    "test_r13_*",
    "test_r15_a_full_table*",
    "test_r20_*",
    "test_r26_*",
    "test_quiescence*",
];

/// Runs the promised tests, or those that `patterns` name, on a binary.
pub(crate) fn run(root: &Path, binary: &Path, patterns: &[String]) -> Result<Outcome> {
    let script = root.join("../shared/accept/test_affinity.py");
    if !script.exists() {
        return Ok(Outcome::Skipped("../shared/accept is not beside this checkout".to_owned()));
    }
    ensure!(binary.exists(), "{} is not built", binary.display());
    let mut command = program(root, "python3");
    // -B: the folder is not ours, so no bytecode files in it
    command.arg("-B").arg(&script).env("HOMING_BIN", binary);
    if patterns.is_empty() {
        command.args(PROMISED);
    } else {
        command.args(patterns);
    }
    must_run(&mut command)?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_shared_folder_it_skips_and_says_why() {
        let nowhere = std::env::temp_dir().join("homing-xtask-nowhere/main");
        match run(&nowhere, Path::new("homing"), &[]).unwrap() {
            Outcome::Skipped(why) => assert!(why.contains("shared"), "{why}"),
            Outcome::Passed => panic!("it cannot have passed"),
        }
    }
}
