//! Logs go to standard error, in the form that the settings name; `RUST_LOG` filters them.
//!
//! They are written by a thread of their own from a bounded buffer: a reader that stalls, or has gone, must
//! not stall the streams of a gateway thread. What finds no room is dropped, and counted.

use homing_runtime::settings::LogFormat;
use std::io::{IsTerminal, stderr};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that may wait for the writer; some 3 MB.
const BUFFERED_LINES: usize = 8_192;

/// The running log: dropped, it writes what is still buffered.
pub(crate) struct Logging {
    dropped: ErrorCounter,
    _writer: WorkerGuard,
}

impl Logging {
    /// Counts the lines that found no room.
    pub(crate) fn dropped(&self) -> ErrorCounter {
        self.dropped.clone()
    }
}

/// Starts logging. `default` is the filter where `RUST_LOG` says nothing.
pub(crate) fn start(format: LogFormat, default: &str) -> Logging {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(BUFFERED_LINES)
        .thread_name("log")
        .finish(stderr());
    let dropped = writer.error_counter();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        // Its own errors would go to the same place, and panic where that is closed.
        .log_internal_errors(false);
    // A second start keeps the first.
    let _ = match format {
        LogFormat::Text => log.with_ansi(stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Logging { dropped, _writer: guard }
}
