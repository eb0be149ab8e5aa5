//! Logs go to standard error, in the form that the settings name; `RUST_LOG` filters them.

use homing_runtime::settings::LogFormat;
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Starts logging. `default` is the filter where `RUST_LOG` says nothing.
pub(crate) fn start(format: LogFormat, default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    // A second start (the demo within a test) keeps the first.
    let _ = match format {
        LogFormat::Text => log.with_ansi(stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
