//! `homing check`: validates a configuration and prints it with its defaults filled in.

use crate::Failure;
use crate::sources::Flags;

/// The flags of `homing check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  homing check --config homing.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
}

/// Prints the effective configuration as TOML; each value's origin stands behind it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    print!("{}", args.flags.settings()?.effective_toml());
    Ok(())
}
