//! KV events over ZMQ: a PUB socket on a thread of its own.
//!
//! Frames and payload are vLLM's (`wire-formats.md` 1 and 3). The sequence number is given *before* the
//! queue to the socket's thread: should that queue ever overflow, subscribers see a gap and not a lie.

use homing_core::index::event::KvEvent;
use homing_core::time::Time;
use homing_wire::frames::build_frames;
use homing_wire::kv_events::{Batch, encode_batch};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Batches that may wait for the socket; vLLM's `max_queue_size`.
pub(super) const QUEUE: usize = 100_000;

/// Batches that the socket keeps per slow subscriber before it drops some; vLLM's `hwm`.
pub(super) const HIGH_WATER: i32 = 100_000;

/// Why there is no feed.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The endpoint can't be bound.
    #[error("cannot publish KV events at {endpoint}: {why}; choose another kv endpoint")]
    Bind {
        /// As configured.
        endpoint: String,
        /// ZMQ's reason.
        why: zmq::Error,
    },
    /// The system gives no thread.
    #[error("cannot start the thread that publishes KV events: {0}")]
    Thread(#[from] std::io::Error),
}

/// The sending side of a feed.
#[derive(Debug)]
pub(super) struct Feed {
    queue: Option<SyncSender<[Vec<u8>; 3]>>,
    thread: Option<JoinHandle<()>>,
    endpoint: String,
    topic: String,
    seq: u64,
    dropped: u64,
}

impl Feed {
    /// Binds the socket.
    pub(super) fn bind(endpoint: &str, topic: &str) -> Result<Self, FeedError> {
        let fail = |why| FeedError::Bind { endpoint: endpoint.to_owned(), why };
        // A NUL would end the name early in C.
        if endpoint.contains('\0') {
            return Err(fail(zmq::Error::EINVAL));
        }
        let socket = zmq::Context::new().socket(zmq::PUB).map_err(fail)?;
        socket.set_sndhwm(HIGH_WATER).map_err(fail)?;
        socket.set_linger(0).map_err(fail)?;
        socket.bind(endpoint).map_err(fail)?;
        let bound = socket.get_last_endpoint().map_err(fail)?;
        let bound = bound.unwrap_or_else(|_| endpoint.to_owned());
        let (queue, batches) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("kv-feed".into())
            .spawn(move || publish(&socket, &batches))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            endpoint: bound,
            topic: topic.to_owned(),
            seq: 0,
            dropped: 0,
        })
    }

    /// Where it really is: with the port that was free.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    /// Publishes one step's events.
    pub(super) fn publish(&mut self, now: Time, events: Vec<KvEvent>) {
        let batch =
            Batch { ts: now.as_micros() as f64 / 1e6, dp_rank: Some(0), events, skipped: 0 };
        let frames = build_frames(&self.topic, self.seq, encode_batch(&batch));
        self.seq += 1;
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(frames).is_err()) {
            self.dropped += 1;
            if self.dropped == 1 {
                tracing::warn!(seq = self.seq - 1, "the KV event queue is full; batches are lost");
            }
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // It ends when the queue is empty; a panic of it has been printed already.
            let _ = thread.join();
        }
    }
}

fn publish(socket: &zmq::Socket, batches: &Receiver<[Vec<u8>; 3]>) {
    for frames in batches {
        // A PUB socket never blocks: it drops what a slow subscriber doesn't take.
        if let Err(error) = socket.send_multipart(frames, 0) {
            tracing::warn!(%error, "a batch of KV events was not sent");
        }
    }
}
