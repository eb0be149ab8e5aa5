//! `homing check`: validates a configuration, loads the tokenizers that it names, and prints it with its
//! defaults filled in.

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
    let settings = args.flags.settings()?;
    homing_hosts::load_prompts(&settings).map_err(|e| Failure::Usage(e.to_string()))?;
    print!("{}", settings.effective_toml());
    Ok(())
}
