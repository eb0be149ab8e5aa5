//! `gateway.record`: a trace of the traffic for `homing replay`, of hashes, lengths and times, never text.
//!
//! Requests hand what is to be written to a thread of its own, through a channel with a bound. A slow or full disk
//! costs lines, which are counted and warned of once, and never a request.
//!
//! * `file`: the file, appended to and never written over;
//! * [`lines`]: requests as lines, each no longer than what is new.

pub mod file;
pub mod lines;

use file::{RecordError, TraceFile};
use homing_core::hash::{Prompt, TEXT_BLOCK};
use homing_core::ids::SessionDigest;
use homing_core::time::Time;
use lines::Compressor;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests that may wait to be written,
const WAITING: usize = 4096;
/// and hashes of theirs.
const WAITING_HASHES: usize = 2 << 20;
/// What has gathered is written so often, or when it has so many bytes.
const EACH: Duration = Duration::from_secs(1);
const GATHERED: usize = 64 << 10;
/// At the end so long is waited for the disk.
const PATIENCE: Duration = Duration::from_secs(5);
/// Blocks of vLLM, where tokens will be known and no block has been seen yet.
const USUAL_BLOCK: u32 = 16;

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// When it came.
    pub came: Time,
    /// Its session.
    pub session: Option<SessionDigest>,
    /// Its prompt: by its tokens, or else by its text.
    pub prompt: Prompt,
    /// Tokens of its answer.
    pub output_tokens: u64,
}

#[derive(Debug)]
enum Message {
    Request(Recorded),
    Stop,
}

/// What became of requests.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
    waiting_hashes: AtomicUsize,
}

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    sender: SyncSender<Message>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Opens the file and starts the thread. `exact`: prompts will be known by their tokens. `now`: when a new trace begins.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn start(path: &Path, exact: bool, now: Time) -> Result<Arc<Self>, RecordError> {
        let file = TraceFile::open(path, now.as_micros() / 1000)?;
        let (sender, receiver) = sync_channel(WAITING);
        let counts = Arc::new(Counts::default());
        let usual = if exact { USUAL_BLOCK } else { TEXT_BLOCK };
        let writer = Writer { file, compressor: Compressor::new(usual), counts: counts.clone() };
        let thread = std::thread::Builder::new().name("record".to_owned());
        let thread = thread.spawn(move || writer.run(&receiver)).map_err(RecordError::Thread)?;
        Ok(Arc::new(Self { sender, counts, thread: Mutex::new(Some(thread)) }))
    }

    /// Keeps a request. It never waits: where too many do already, its line is lost.
    pub fn record(&self, request: Recorded) {
        let hashes = request.prompt.chain.len();
        let waiting = &self.counts.waiting_hashes;
        let before = waiting.fetch_add(hashes, Ordering::Relaxed);
        let sent = before + hashes <= WAITING_HASHES
            && match self.sender.try_send(Message::Request(request)) {
                Ok(()) => true,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
            };
        if !sent {
            waiting.fetch_sub(hashes, Ordering::Relaxed);
            if self.counts.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    "the record of requests is behind: its disk is too slow, and lines are lost"
                );
            }
        }
    }

    /// Requests whose lines were written, and those whose lines were lost.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (read(&self.counts.written), read(&self.counts.lost))
    }

    /// Writes what is still waiting, as far as the disk takes it in time. What is recorded from now on is lost.
    pub fn close(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        let end = Instant::now() + PATIENCE;
        let mut stop = Message::Stop;
        while let Err(TrySendError::Full(again)) = self.sender.try_send(stop) {
            if Instant::now() > end {
                return;
            }
            stop = again;
            std::thread::sleep(Duration::from_millis(10));
        }
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() {
            // It has said what there was to say.
            let _ = thread.join();
        }
    }
}

struct Writer {
    file: TraceFile,
    compressor: Compressor,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(mut self, receiver: &Receiver<Message>) {
        let mut due = Instant::now() + EACH;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            let message = receiver.recv_timeout(left);
            let over = matches!(message, Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected));
            if let Ok(Message::Request(request)) = message {
                let hashes = request.prompt.chain.len();
                self.counts.waiting_hashes.fetch_sub(hashes, Ordering::Relaxed);
                self.compressor.add(&request, &mut self.file);
            }
            if over || Instant::now() >= due || self.file.gathered() > GATHERED {
                self.flush();
                due = Instant::now() + EACH;
            }
            if over {
                return self.file.sync();
            }
        }
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.counts.written.fetch_add(flushed.written, Ordering::Relaxed);
        if flushed.lost > 0 {
            self.counts.lost.fetch_add(flushed.lost, Ordering::Relaxed);
            // No later line may begin with what is not there.
            self.compressor.forget();
        }
    }
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
