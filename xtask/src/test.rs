//! `cargo xtask test`: the steps that everything must pass, cheap to dear.
//!
//! Beside `steps`, which knows how to run a list, this is the list. Every build uses the profile `ci`
//! and the whole workspace, so that features and artefacts are the same from step to step.

use crate::cargo::{Profile, binary, build, cargo, must_run, program, succeeds, target_dir};
use crate::steps::{Outcome, Steps};
use crate::{accept, check_tokenizer, codegen, dist, tidy, tools};
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// The steps, in the order of their run.
const NAMES: [&str; 16] = [
    "setup",
    "fmt",
    "tidy",
    "tokenizer",
    "codegen",
    "clippy",
    "deny",
    "build",
    "sim",
    "tests",
    "doctests",
    "docs",
    "python",
    "node",
    "dist",
    "accept",
];

/// The steps that `--fast` runs.
const FAST: [&str; 5] = ["fmt", "tidy", "tokenizer", "clippy", "tests"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only what a change breaks most often: fmt, tidy, tokenizer, clippy, tests. Installs nothing.
    #[arg(long)]
    fast: bool,
    /// Go on after a failed step.
    #[arg(long)]
    keep_going: bool,
    /// Run only these steps (comma-separated); black-box steps need a binary that `build` has built.
    #[arg(long, value_delimiter = ',', conflicts_with = "fast", value_name = "STEP",
          value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    only: Vec<String>,
}

/// Runs the steps, prints the summary; true if all is well.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    let only = if args.fast { FAST.map(str::to_owned).to_vec() } else { args.only.clone() };
    let mut steps = Steps::new(args.keep_going, only);
    let binary = binary(root, Profile::Ci);
    let passed = |()| Outcome::Passed;

    steps.step("setup", || {
        tools::system(root)?;
        tools::venv(root)?;
        tools::node_modules(root)?;
        tools::cargo_deny(root).map(|_| Outcome::Passed)
    });
    steps.step("fmt", || must_run(ci(root).args(["fmt", "--all", "--check"])).map(passed));
    steps.step("tidy", || tidy::run(root).map(passed));
    steps.step("tokenizer", || check_tokenizer(root).map(passed));
    steps.step("codegen", || codegen::run(root, true).map(passed));
    steps.step("clippy", || {
        must_run(
            profiled(root, "clippy")
                .args(["--workspace", "--all-targets"])
                .args(["--", "-D", "warnings"]),
        )
        .map(passed)
    });
    steps.step("deny", || deny(root).map(passed));
    steps.step("build", || build(root, Profile::Ci).map(passed));
    // the model without its server must not need what only the server may use
    steps.step("sim", || must_run(profiled(root, "check").args(["-p", "homing-sim"])).map(passed));
    steps.step("tests", || tests(root, &binary).map(passed));
    steps.step("doctests", || {
        must_run(profiled(root, "test").args(["--workspace", "--doc"])).map(passed)
    });
    steps.step("docs", || {
        must_run(
            profiled(root, "doc")
                .args(["--workspace", "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
        .map(passed)
    });
    steps.step("python", || python(root, &binary).map(passed));
    steps.step("node", || node(root, &binary));
    steps.step("dist", || packages(root, &binary));
    steps.step("accept", || accept::run(root, &binary, &[]));

    println!("{}", steps.summary());
    Ok(steps.all_well())
}

/// Cargo as every step calls it.
fn ci(root: &Path) -> Command {
    cargo(root, Profile::Ci)
}

/// A cargo command with the profile `ci`.
fn profiled(root: &Path, subcommand: &str) -> Command {
    let mut command = ci(root);
    command.args([subcommand, "--profile", Profile::Ci.name()]);
    command
}

/// Licences, duplicate and banned crates, sources. Not the advisories: their database is a git
/// repository on a host that the machines which run this do not reach.
fn deny(root: &Path) -> Result<()> {
    println!("advisories are not checked: their database cannot be fetched from here");
    let deny = tools::cargo_deny(root)?;
    must_run(program(root, deny).args(["check", "bans", "licenses", "sources"]))
}

/// Unit and integration tests, by nextest where it is installed.
fn tests(root: &Path, binary: &Path) -> Result<()> {
    let mut command = if succeeds(ci(root).args(["nextest", "--version"])) {
        let mut nextest = ci(root);
        nextest.args(["nextest", "run", "--workspace", "--cargo-profile", Profile::Ci.name()]);
        nextest
    } else {
        println!("cargo-nextest is not installed: cargo test runs the same tests");
        let mut test = profiled(root, "test");
        test.args(["--workspace", "--lib", "--bins", "--tests"]);
        test
    };
    must_run(command.env("HOMING_BIN", binary))
}

/// The black-box tests on the binary, with real clients.
fn python(root: &Path, binary: &Path) -> Result<()> {
    anyhow::ensure!(binary.exists(), "{} is not built", binary.display());
    let python = tools::venv(root).context("the black-box tests need their venv")?;
    // They wait for each other's time-outs more than they compute.
    let run = ["-B", "e2e/python/run.py", "--jobs", "2"];
    must_run(program(root, python).args(run).env("HOMING_BIN", binary))
}

/// The same with Node's SDKs.
fn node(root: &Path, binary: &Path) -> Result<Outcome> {
    anyhow::ensure!(binary.exists(), "{} is not built", binary.display());
    let Some(packages) = tools::node_modules(root)? else {
        return Ok(Outcome::Skipped("Node.js is too old for the SDKs".to_owned()));
    };
    must_run(
        program(root, "node")
            .args(["--test", "--test-reporter=spec", "e2e/node/"])
            .env("HOMING_BIN", binary)
            .env("HOMING_NODE", packages),
    )?;
    Ok(Outcome::Passed)
}

/// The packages, made of the binary of the tests, and looked at.
fn packages(root: &Path, binary: &Path) -> Result<Outcome> {
    if !dist::possible(root) {
        return Ok(Outcome::Skipped("dpkg-deb is not on this machine".to_owned()));
    }
    let out = target_dir(root, Profile::Ci).join("dist");
    dist::make(root, binary, &out)?;
    let python = tools::venv(root)?;
    must_run(program(root, python).args(["-B", "e2e/python/check_packages.py"]).arg(out))?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_names_real_steps_in_their_order() {
        let places: Vec<_> =
            FAST.iter().map(|name| NAMES.iter().position(|known| known == name)).collect();
        assert!(places.iter().all(Option::is_some), "{places:?}");
        assert!(places.is_sorted(), "{places:?}");
    }
}
