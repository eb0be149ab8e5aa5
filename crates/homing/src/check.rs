//! `homing check`: validates a configuration, looks at the files that it names (tokenizers, the session key,
//! the snapshot's place), and prints it with its defaults filled in.

use crate::Failure;
use crate::sources::Flags;
use homing_backends::etcd;
use homing_runtime::keep::look_at_files;
use homing_runtime::upstream;

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
    upstream::look_at_files(&settings).map_err(|e| Failure::Usage(e.to_string()))?;
    let tls = settings.gateway.tls.as_ref().map(homing_hosts::ServerTls::load);
    tls.transpose().map_err(|e| Failure::Usage(e.to_string()))?;
    look_at_files(&settings.affinity).map_err(Failure::Usage)?;
    let etcd = settings.etcd.as_ref().map(|at| etcd::look_at(&at.reach));
    etcd.transpose().map_err(|e| Failure::Usage(format!("[discovery]: {e}")))?;
    crate::replicate::look_at(&settings)
        .map_err(|e| Failure::Usage(format!("[replication]: {e}")))?;
    print!("{}", settings.effective_toml());
    Ok(())
}
