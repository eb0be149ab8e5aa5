//! KV events over ZMQ: a PUB socket on a thread of its own.
//!
//! Frames and payload are vLLM's (`wire-formats.md` 1 to 3). The sequence number is given *before* the
//! queue to the socket's thread: should that queue ever overflow, subscribers see a gap and not a lie.
//!
//! A rank has a feed of its own, some ports above the first one's.
//!
//! As in vLLM the same thread answers the replay socket, between batches, from the last ones that it keeps.

use super::groups::{Groups, Hybrid};
use homing_core::index::event::KvEvent;
use homing_core::time::Time;
use homing_wire::frames::{Reply, build_early_reply, build_frames, build_reply, parse_request};
use homing_wire::kv_events::{Batch, Encoding};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Batches that may wait for the socket; vLLM's `max_queue_size`.
pub(super) const QUEUE: usize = 100_000;

/// Batches that the socket keeps per slow subscriber before it drops some; vLLM's `hwm`.
pub(super) const HIGH_WATER: i32 = 100_000;

/// How long a request for a replay may wait where nothing is published; vLLM's is 100 ms.
const LOOK: Duration = Duration::from_millis(20);

/// What is published, and what of it is kept.
#[derive(Clone, Debug)]
pub(super) struct FeedConfig {
    /// The data-parallel rank that it is about.
    pub(super) rank: u16,
    /// Where the first rank publishes.
    pub(super) endpoint: String,
    /// That is where somebody else listens.
    pub(super) connects: bool,
    pub(super) topic: String,
    /// Where the first rank answers requests for a replay, if anywhere.
    pub(super) replay: Option<String>,
    /// Batches that are kept for it.
    pub(super) buffer: usize,
    /// Of so many batches one is kept and not published; 0: all are.
    pub(super) drop_every: u64,
    pub(super) encoding: Encoding,
    pub(super) groups: Groups,
}

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
    /// There is no such endpoint for a further rank.
    #[error(
        "rank {rank} can't publish at {endpoint}, which has no port for it; choose a tcp endpoint"
    )]
    Rank {
        /// As configured.
        endpoint: String,
        /// Whose turn it was.
        rank: u16,
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
    replay: Option<String>,
    config: FeedConfig,
    hybrid: Option<Hybrid>,
    seq: u64,
    dropped: u64,
}

impl Feed {
    /// Binds the sockets; that of the events connects where it is to.
    pub(super) fn bind(config: FeedConfig) -> Result<Self, FeedError> {
        let context = zmq::Context::new();
        let at = at_rank(&config.endpoint, config.rank)?;
        let side = if config.connects { Side::Connects } else { Side::Binds };
        let (events, endpoint) = opened(&context, zmq::PUB, &at, HIGH_WATER, side)?;
        // Room for two replays of all that there is, as vLLM 0.33.
        let room = config.buffer.saturating_add(1).saturating_mul(2);
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        let replay = match &config.replay {
            Some(replay) => {
                let at = at_rank(replay, config.rank)?;
                Some(opened(&context, zmq::ROUTER, &at, room, Side::Binds)?)
            }
            None => None,
        };
        let (router, replay) = replay.unzip();
        let sockets = Sockets {
            events,
            replay: router,
            kept: VecDeque::new(),
            buffer: config.buffer,
            drop_every: config.drop_every,
            topic_in_replies: config.encoding.layout().replay_topic,
        };
        let (queue, batches) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("kv-feed".into())
            .spawn(move || sockets.run(&batches))?;
        let (queue, thread) = (Some(queue), Some(thread));
        let hybrid = (config.groups == Groups::Hybrid).then(Hybrid::default);
        Ok(Self { queue, thread, endpoint, replay, config, hybrid, seq: 0, dropped: 0 })
    }

    /// Where it answers requests for a replay.
    pub(super) fn replay(&self) -> Option<&str> {
        self.replay.as_deref()
    }

    pub(super) const fn config(&self) -> &FeedConfig {
        &self.config
    }

    /// Where it really is: with the port that was free.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Publishes one step's events.
    pub(super) fn publish(&mut self, now: Time, events: Vec<KvEvent>) {
        let events = match &mut self.hybrid {
            Some(groups) => groups.split(events),
            None => events,
        };
        let dp_rank = Some(self.config.rank.into());
        let batch = Batch { ts: now.as_micros() as f64 / 1e6, dp_rank, events, skipped: 0 };
        let payload = self.config.encoding.encode(&batch);
        let frames = build_frames(&self.config.topic, self.seq, payload);
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

/// Where a further rank is: that many ports above the first, as in vLLM; where the system chooses the port, it
/// chooses again.
fn at_rank(endpoint: &str, rank: u16) -> Result<String, FeedError> {
    let above = || {
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        let port = match port.parse().ok()? {
            0 => 0,
            port => u16::checked_add(port, rank)?,
        };
        Some(format!("tcp://{host}:{port}"))
    };
    match above() {
        _ if rank == 0 => Ok(endpoint.to_owned()),
        Some(endpoint) => Ok(endpoint),
        None => Err(FeedError::Rank { endpoint: endpoint.to_owned(), rank }),
    }
}

/// Which half of a connection a socket does.
#[derive(Clone, Copy, Debug)]
enum Side {
    Binds,
    Connects,
}

/// A socket that does its half, and where.
fn opened(
    context: &zmq::Context,
    kind: zmq::SocketType,
    endpoint: &str,
    mark: i32,
    side: Side,
) -> Result<(zmq::Socket, String), FeedError> {
    let fail = |why| FeedError::Bind { endpoint: endpoint.to_owned(), why };
    // A NUL would end the name early in C.
    if endpoint.contains('\0') {
        return Err(fail(zmq::Error::EINVAL));
    }
    let socket = context.socket(kind).map_err(fail)?;
    socket.set_sndhwm(mark).map_err(fail)?;
    socket.set_linger(0).map_err(fail)?;
    match side {
        Side::Binds => socket.bind(endpoint),
        // Whoever listens there may come later.
        Side::Connects => socket.connect(endpoint),
    }
    .map_err(fail)?;
    let bound = socket.get_last_endpoint().map_err(fail)?;
    Ok((socket, bound.unwrap_or_else(|_| endpoint.to_owned())))
}

/// What the thread has.
struct Sockets {
    events: zmq::Socket,
    replay: Option<zmq::Socket>,
    /// The last batches and their numbers.
    kept: VecDeque<[Vec<u8>; 3]>,
    buffer: usize,
    drop_every: u64,
    topic_in_replies: bool,
}

impl Sockets {
    fn run(mut self, batches: &Receiver<[Vec<u8>; 3]>) {
        let mut count = 0;
        loop {
            match batches.recv_timeout(LOOK) {
                Ok(frames) => {
                    count += 1;
                    self.publish(frames, self.drop_every > 0 && count % self.drop_every == 0);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.answer();
        }
    }

    fn publish(&mut self, frames: [Vec<u8>; 3], lost: bool) {
        if self.replay.is_some() && self.buffer > 0 {
            if self.kept.len() == self.buffer {
                self.kept.pop_front();
            }
            self.kept.push_back(frames.clone());
        }
        if lost {
            return;
        }
        // A PUB socket never blocks: it drops what a slow subscriber doesn't take.
        if let Err(error) = self.events.send_multipart(frames, 0) {
            tracing::warn!(%error, "a batch of KV events was not sent");
        }
    }

    /// Answers one request; what is none is never answered, as by vLLM.
    fn answer(&self) {
        let Some(socket) = &self.replay else { return };
        let Ok(request) = socket.recv_multipart(zmq::DONTWAIT) else { return };
        let Some((who, request)) = request.split_first() else { return };
        let Ok(from) = parse_request(request) else { return };
        let send = |topic: &str, reply: Reply<'_>| {
            let mut frames = vec![who.clone()];
            match self.topic_in_replies {
                true => frames.extend(build_reply(topic, reply)),
                false => frames.extend(build_early_reply(reply)),
            }
            // A ROUTER drops what a peer doesn't take, or that has gone.
            let _ = socket.send_multipart(frames, zmq::DONTWAIT);
        };
        for [topic, seq, payload] in &self.kept {
            let seq = seq.iter().fold(0u64, |seq, byte| seq << 8 | u64::from(*byte));
            if seq >= from {
                send(&String::from_utf8_lossy(topic), Reply::Message { seq, payload });
            }
        }
        send("", Reply::End);
    }
}

#[cfg(test)]
mod tests {
    use super::at_rank;

    #[test]
    fn further_ranks_are_that_many_ports_above() {
        let at = |endpoint, rank| at_rank(endpoint, rank).ok();
        assert_eq!(at("tcp://127.0.0.1:5557", 3).as_deref(), Some("tcp://127.0.0.1:5560"));
        assert_eq!(at("tcp://*:5557", 1).as_deref(), Some("tcp://*:5558"));
        assert_eq!(at("tcp://[::1]:5557", 1).as_deref(), Some("tcp://[::1]:5558"));
        assert_eq!(at("tcp://127.0.0.1:0", 3).as_deref(), Some("tcp://127.0.0.1:0"));
        assert_eq!(at("ipc:///tmp/kv", 0).as_deref(), Some("ipc:///tmp/kv"));
        assert_eq!((at("ipc:///tmp/kv", 1), at("tcp://127.0.0.1:65535", 1)), (None, None));
    }
}
