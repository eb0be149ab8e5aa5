//! Runs the acceptance tests that lie beside the checkout, in `../shared/accept`.
//!
//! They are not ours and test the contract from outside, with their own stub workers. All of them must
//! pass.

use crate::cargo::{must_run, program};
use crate::steps::Outcome;
use anyhow::{Result, ensure};
use std::path::Path;

/// Runs all tests, or those that `patterns` name, on a binary.
pub(crate) fn run(root: &Path, binary: &Path, patterns: &[String]) -> Result<Outcome> {
    let script = root.join("../shared/accept/test_affinity.py");
    if !script.exists() {
        return Ok(Outcome::Skipped("../shared/accept is not beside this checkout".to_owned()));
    }
    ensure!(binary.exists(), "{} is not built", binary.display());
    let mut command = program(root, "python3");
    // -B: the folder is not ours, so no bytecode files in it
    command.arg("-B").arg(&script).args(patterns).env("HOMING_BIN", binary);
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
