//! What every command that runs for a while needs: a runtime on this thread, and the signals that end it.

use crate::Failure;
use anyhow::Context;
use std::future::Future;
use std::io::Write;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Runs a command to its end.
pub(crate) fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the system gives no runtime")?;
    runtime.block_on(command)
}

/// Prints a line for whoever started the command. Where nobody reads it, it is not missed.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// From now on they end nothing by themselves.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate()).context("SIGTERM can't be handled")?,
            int: signal(SignalKind::interrupt()).context("SIGINT can't be handled")?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
