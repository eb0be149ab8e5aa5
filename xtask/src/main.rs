//! Every routine of the project, behind `cargo xtask`.
//!
//! One entry for people and CI alike: what CI runs is what a person runs. A routine lives in a module
//! of its own (`test` composes the others); this file is only the command line.

mod accept;
mod cargo;
mod codegen;
mod dist;
mod fuzz;
mod soak;
mod steps;
mod test;
mod tidy;
mod tokenizer;
mod tools;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The routines of the Homing project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  cargo xtask test                 what CI runs; installs what it needs
  cargo xtask test --fast          while working: format, tidy, clippy, tests
  cargo xtask test --only tidy,clippy
  cargo xtask dist                 packages of a release build, into target/dist
  cargo xtask fuzz --secs 300 kv_events
  cargo xtask soak --minutes 480   chaos for a night
  cargo xtask tokenizer            after a change of the tokenizer's maker
  cargo xtask codegen              after a change of a .proto file
  HOMING_BIN=... python3 e2e/python/run.py 'test_recordings*'   some black-box tests alone";

#[derive(Subcommand)]
enum Command {
    /// Install what is missing, then check and test everything.
    ///
    /// Steps, cheap to dear: setup (apt, pip into ~/.cache/homing-venv, npm into ~/.cache/homing-node,
    /// cargo-deny into ~/.cache/homing-tools), fmt, tidy, tokenizer, codegen, clippy, deny, build, sim (homing-sim
    /// without its server), tests, doctests, docs, python and node (the black-box tests of e2e), dist (the
    /// packages), accept. Everything is built with the profile `ci`, in $CARGO_TARGET_DIR or ~/.cache/homing-target. The first
    /// failure stops; the last line is `N passed, N failed, N skipped`, counting steps.
    Test(test::Args),
    /// Check the crate graph and the sources against the rules of ARCHITECTURE.md.
    ///
    /// Fails on an edge between two crates that the architecture does not draw, a file without its
    /// `//!` opening, a file over 500 lines before its tests, left-over work markers, and on clocks,
    /// sockets, files, threads and unordered maps in homing-core.
    Tidy,
    /// Run the fuzzers of `fuzz/` on whatever peers send; libFuzzer, on the stable compiler.
    ///
    /// The inputs begin with testdata; what is worth keeping stays in ~/.cache/homing-fuzz. The first build takes
    /// minutes.
    Fuzz(fuzz::Args),
    /// Make the packages: a .deb, a .tar.gz, and their checksums, of the release binary and the files in dist/.
    Dist(dist::Args),
    /// Run the router among engines that die, stop and flap and clients that vanish, for as long as is wanted.
    ///
    /// The tests do it for a minute. A line a minute says how it goes; it ends with the first thing that is
    /// wrong, or with whether memory, descriptors and gauges are where they were.
    Soak(soak::Args),
    /// Write the project's own tokenizer.json and chat template, which mock and router share.
    Tokenizer {
        /// Write nothing; fail if the files in the tree are not what the maker makes.
        #[arg(long)]
        check: bool,
    },
    /// Write the Rust of our .proto files, which is committed: no build needs a compiler of protocol buffers.
    Codegen {
        /// Write nothing; fail if the files in the tree are not what is made of the .proto files.
        #[arg(long)]
        check: bool,
    },
    /// Run the acceptance tests of ../shared/accept that this step of the project must pass.
    ///
    /// Skips, and says so, where ../shared is not present.
    Accept {
        /// Test the release build instead of the one with the profile `ci`.
        #[arg(long)]
        release: bool,
        /// Test names or patterns to run instead of the list in xtask/src/accept.rs.
        patterns: Vec<String>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one routine; `false` means that it ran and found something wrong, and has said what.
fn run(command: Command) -> Result<bool> {
    let root = root()?;
    match command {
        Command::Test(args) => test::run(&root, &args),
        Command::Fuzz(args) => fuzz::run(&root, &args),
        Command::Soak(args) => soak::run(&root, &args).map(|()| true),
        Command::Dist(args) => dist::run(&root, &args).map(|()| true),
        Command::Tidy => tidy::run(&root).map(|()| true),
        Command::Tokenizer { check: true } => check_tokenizer(&root).map(|()| true),
        Command::Tokenizer { check: false } => {
            tokenizer::write(&root).context("writing the tokenizer's files")?;
            println!("wrote the tokenizer and the chat template");
            Ok(true)
        }
        Command::Codegen { check } => codegen::run(&root, check).map(|()| true),
        Command::Accept { release, patterns } => {
            let profile = if release { cargo::Profile::Release } else { cargo::Profile::Ci };
            cargo::build(&root, profile)?;
            accept::run(&root, &cargo::binary(&root, profile), &patterns).map(|outcome| {
                if let steps::Outcome::Skipped(why) = outcome {
                    println!("skipped: {why}");
                }
                true
            })
        }
    }
}

/// The root of the workspace: the parent of this crate's folder.
fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.parent().context("xtask has no parent folder")?;
    root.canonicalize().with_context(|| format!("the checkout {} is gone", root.display()))
}

/// Fails if a file that `tokenizer` makes differs from the one in the tree.
fn check_tokenizer(root: &Path) -> Result<()> {
    let folder = root.join(tokenizer::FOLDER);
    let stale: Vec<_> = tokenizer::files()
        .into_iter()
        .filter(|(name, made)| {
            std::fs::read_to_string(folder.join(name)).ok().as_ref() != Some(made)
        })
        .map(|(name, _)| name)
        .collect();
    anyhow::ensure!(
        stale.is_empty(),
        "{} in {} not as their maker makes them; run `cargo xtask tokenizer` and commit the result",
        stale.join(", "),
        tokenizer::FOLDER
    );
    Ok(())
}
