//! `cargo xtask soak`: hours of what `e2e/python/test_chaos.py` does for a minute.
//!
//! Apart from the tests because it is never done: a leak of a byte a request shows after a night. It builds the
//! binary of the tests, unless another is named.

use crate::cargo::{Profile, binary, build, must_run, program};
use crate::tools;
use anyhow::Result;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, value_name = "N", default_value_t = 60.0)]
    minutes: f64,
    /// Draws what an earlier run drew; it is in the first line of its output.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Another binary than the one of the tests, such as a release build.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs it; what it finds wrong is an error.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let binary = match &args.binary {
        Some(given) => given.canonicalize()?,
        None => {
            build(root, Profile::Ci)?;
            binary(root, Profile::Ci)
        }
    };
    let mut command = program(root, tools::venv(root)?);
    command.args(["-B", "e2e/python/chaos.py", "--minutes", &args.minutes.to_string()]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    must_run(command.env("HOMING_BIN", binary))
}
