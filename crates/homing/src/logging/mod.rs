//! Logs go to standard error, in the form that the settings name; `RUST_LOG` filters them.
//!
//! A line is put into a bounded buffer, and a thread of its own writes what has gathered: a request pays
//! for a copy, not for a system call, and a reader that stalls, or has gone, stalls no stream. What finds
//! no room is dropped, and counted.

mod access;

use access::AccessLines;
use homing_runtime::settings::LogFormat;
use std::io::{self, IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, JsonFields};

/// What may wait for the writer, in bytes: some ten thousand lines.
const BUFFER: usize = 4 << 20;
/// How long lines may gather, so that a busy router writes many at once.
const GATHER: Duration = Duration::from_millis(10);
/// How long the end of the process waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    ended: bool,
    written: bool,
}

#[derive(Default)]
struct Shared {
    gathered: Mutex<Gathered>,
    news: Condvar,
    dropped: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        // Nothing panics while holding it.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in one line.
    fn line(&self, line: &[u8]) {
        let mut gathered = self.lock();
        if gathered.bytes.len() + line.len() > BUFFER {
            drop(gathered);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let first = gathered.bytes.is_empty();
        gathered.bytes.extend_from_slice(line);
        drop(gathered);
        if first {
            self.news.notify_all();
        }
    }

    /// The writer's life: waits for a line, lets more gather, writes them all.
    fn write(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        loop {
            {
                let waiting = |g: &mut Gathered| g.bytes.is_empty() && !g.ended;
                let gathered = self.news.wait_while(self.lock(), waiting);
                let mut gathered = gathered.unwrap_or_else(PoisonError::into_inner);
                if gathered.bytes.is_empty() {
                    gathered.written = true;
                    drop(gathered);
                    self.news.notify_all();
                    return;
                }
                if !gathered.ended {
                    let more = self.news.wait_timeout_while(gathered, GATHER, |g| !g.ended);
                    gathered = more.unwrap_or_else(PoisonError::into_inner).0;
                }
                std::mem::swap(&mut batch, &mut gathered.bytes);
            }
            // A log that can't be written is no reason to stop anything.
            let _ = out.write_all(&batch);
            batch.clear();
        }
    }
}

/// One event's way into the buffer: the subscriber writes each as a whole.
struct Line(Arc<Shared>);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The running log: dropped, it writes what has gathered.
pub(crate) struct Logging {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl Logging {
    fn new(out: impl Write + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let writer = std::thread::Builder::new().name("log".into());
        // Without a thread there is no log, and still a router.
        let writer = writer.spawn(move || theirs.write(out)).ok();
        Self { shared, writer }
    }

    /// Counts the lines that found no room.
    pub(crate) fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || shared.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.news.notify_all();
        if self.writer.is_some() {
            // A reader that stalls must not hold the process either.
            let unwritten = |g: &mut Gathered| !g.written;
            let _ = self.shared.news.wait_timeout_while(self.shared.lock(), LAST_LINES, unwritten);
        }
    }
}

/// Starts logging. `default` is the filter where `RUST_LOG` says nothing.
pub(crate) fn start(format: LogFormat, default: &str) -> Logging {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logging = Logging::new(stderr());
    let shared = logging.shared.clone();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Line(shared.clone()))
        // Its own errors would go to the same place, and panic where that is closed.
        .log_internal_errors(false);
    // A second start keeps the first.
    let _ = match format {
        LogFormat::Text => {
            let lines = AccessLines::beside(Format::default(), false);
            log.with_ansi(stderr().is_terminal()).event_format(lines).try_init()
        }
        LogFormat::Json => {
            let lines = AccessLines::beside(Format::default().json(), true);
            log.with_ansi(false).fmt_fields(JsonFields::new()).event_format(lines).try_init()
        }
    };
    logging
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A reader that takes one batch for each word.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order_and_the_last_ones_too() {
        let (go, gate) = channel();
        let (out, written) = channel();
        let logging = Logging::new(Slow(gate, out));
        for n in 0..100 {
            logging.shared.line(format!("{n}\n").as_bytes());
        }
        for _ in 0..200 {
            go.send(()).unwrap();
        }
        drop(logging);
        let text: Vec<u8> = written.iter().flatten().collect();
        let expected: String = (0..100).map(|n| format!("{n}\n")).collect();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_and_nothing_else() {
        let (go, gate) = channel();
        let (out, _written) = channel();
        let logging = Logging::new(Slow(gate, out));
        let dropped = logging.dropped();
        let line = [b'x'; 1024];
        for _ in 0..3 * BUFFER / line.len() {
            logging.shared.line(&line);
        }
        // One batch is with the reader, one in the buffer.
        assert!(dropped() >= (BUFFER / line.len()) as u64 - 1, "{}", dropped());
        assert!(logging.shared.lock().bytes.len() <= BUFFER);
        drop(go);
    }
}
