//! Sockets of both sides, with a ROUTER beside the publisher: what real engines answered and what others
//! might.

use super::tests::{PATIENCE_MS, Publisher, W, feeds, stored};
use super::*;
use crate::ingest::book::FeedStats;
use crate::testing::shell;
use homing_core::index::event::KvEvent;
use homing_wire::frames::{Reply, build_frames, build_reply, parse_frames, parse_request};
use homing_wire::kv_events::{Batch, encode_batch};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a question is answered with.
type Answers = Box<dyn Fn(&Engine) -> Vec<Vec<Vec<u8>>>>;

/// One rank of an engine: its two sockets.
struct Engine {
    publisher: Publisher,
    router: zmq::Socket,
    replay: String,
    /// Payloads, by number.
    past: Vec<Vec<u8>>,
    asked: Vec<u64>,
}

impl Engine {
    fn new() -> Self {
        let router = zmq::Context::new().socket(zmq::ROUTER).unwrap();
        router.set_linger(0).unwrap();
        router.set_sndhwm(0).unwrap();
        router.bind("tcp://127.0.0.1:*").unwrap();
        let replay = router.get_last_endpoint().unwrap().unwrap();
        Self { publisher: Publisher::new(0), router, replay, past: vec![], asked: vec![] }
    }

    fn want(&self, rank: u16, ranks: u16) -> (Key, Want) {
        let feed =
            Feed { replay: Some(self.replay.clone()), ..self.publisher.feed_of(rank, ranks) };
        ((W.to_owned(), rank), Want { feed, serial: 1 })
    }

    /// The next message, which may not arrive.
    fn publish(&mut self, arrives: bool, events: Vec<KvEvent>) {
        let batch = Batch { ts: self.past.len() as f64, events, ..Batch::default() };
        let payload = encode_batch(&batch);
        self.past.push(payload.clone());
        if arrives {
            let frames = build_frames("kv-events", self.past.len() as u64 - 1, payload);
            self.publisher.socket.send_multipart(frames, 0).unwrap();
        }
    }

    /// All that it published, in the later layout, as replies to a question.
    fn all(&self, from: u64) -> Vec<Vec<Vec<u8>>> {
        let past = (0u64..).zip(&self.past).filter(|(seq, _)| *seq >= from);
        let messages = past.map(|(seq, payload)| Reply::Message { seq, payload });
        let replies = messages.chain([Reply::End]);
        replies.map(|reply| build_reply("kv-events", reply).into()).collect()
    }

    /// Answers what was asked.
    fn serve(&mut self, answers: impl Fn(&Self, u64) -> Vec<Vec<Vec<u8>>>) {
        while let Ok(request) = self.router.recv_multipart(zmq::DONTWAIT) {
            let from = parse_request(&request[1..]).unwrap();
            self.asked.push(from);
            for reply in answers(self, from) {
                let frames = std::iter::once(request[0].clone()).chain(reply);
                self.router.send_multipart(frames, 0).unwrap();
            }
        }
    }
}

/// The router's side.
struct Side {
    shell: Arc<Shell>,
    book: FeedBook,
    feeds: Feeds,
}

impl Side {
    fn new() -> Self {
        Self { shell: shell("", &[W]), book: FeedBook::default(), feeds: feeds(PATIENCE) }
    }

    fn follow(&mut self, engines: &[Engine]) {
        let ranks = u16::try_from(engines.len()).unwrap();
        let wants = engines.iter().enumerate().map(|(rank, engine)| {
            let rank = u16::try_from(rank).unwrap();
            self.book.open(W, rank, ranks);
            engine.want(rank, ranks)
        });
        self.feeds.become_as(&self.shell, &self.book, &wants.collect());
    }

    fn stats(&self) -> FeedStats {
        self.book.stats()[W]
    }

    fn blocks(&self) -> usize {
        self.shell.core().check();
        self.shell.core().workers()[0].cached_blocks
    }

    /// Looks and lets the engines answer until it holds.
    fn until(
        &mut self,
        what: &str,
        engines: &mut [Engine],
        answers: impl Fn(&Engine, u64) -> Vec<Vec<Vec<u8>>>,
        holds: impl Fn(&Self) -> bool,
    ) {
        let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
        while !holds(self) {
            assert!(Instant::now() < until, "{what}: {:?}", self.stats());
            engines.iter_mut().for_each(|engine| engine.serve(&answers));
            self.feeds.look(&self.shell, &self.book);
        }
    }

    /// An engine that is followed from its beginning on.
    fn following(engines: usize) -> (Self, Vec<Engine>) {
        let mut side = Self::new();
        let mut engines: Vec<_> = (0..engines).map(|_| Engine::new()).collect();
        side.follow(&engines);
        let all = engines.len() as u64;
        side.until("they are asked once", &mut engines, Engine::all, |s| s.stats().filled == all);
        engines.iter().for_each(|engine| engine.publisher.awaits());
        (side, engines)
    }
}

#[test]
fn a_hole_is_filled_while_live_messages_wait() {
    let (mut side, mut engines) = Side::following(1);
    let engine = &mut engines[0];
    assert_eq!(engine.asked, [0], "an engine that is new to us is asked for all it has");
    for n in 0..202 {
        // Every seventh is lost, alone and in pairs.
        engine.publish(n % 7 != 3 && n % 14 != 4, vec![stored(n)]);
    }
    side.until("all are known", &mut engines, Engine::all, |s| s.blocks() == 202);
    let stats = side.stats();
    assert!(stats.gaps > 20 && stats.filled > 1, "{stats:?}");
    assert_eq!((stats.lost, stats.stored, stats.malformed), (0, 202, 0), "each once");
    assert_eq!(side.book.state(W), "events");
}

#[test]
fn whoever_comes_late_learns_what_an_idle_engine_has() {
    let mut engines = [Engine::new()];
    for n in 0..3_000 {
        engines[0].publish(false, vec![stored(n)]);
    }
    let mut side = Side::new();
    side.follow(&engines);
    side.until("it is known", &mut engines, Engine::all, |s| s.blocks() == 3_000);
    side.until("the end comes", &mut engines, Engine::all, |s| s.stats().filled == 1);
    assert_eq!((side.stats().gaps, side.stats().lost), (0, 0));
}

#[test]
fn each_rank_is_asked_at_its_own_socket() {
    let (mut side, mut engines) = Side::following(2);
    for (rank, engine) in (0u32..).zip(&mut engines) {
        for n in 0..10 {
            engine.publish(n != 5 + rank, vec![stored(100 * rank + n)]);
        }
    }
    side.until("both are known", &mut engines, Engine::all, |s| s.blocks() == 20);
    assert_eq!((side.stats().gaps, side.stats().lost, side.stats().filled), (2, 0, 4));
    assert_eq!((&engines[0].asked[..], &engines[1].asked[..]), (&[0, 4][..], &[0, 5][..]));
}

#[test]
fn answers_that_are_none_end_in_forgetting() {
    let never: Answers = Box::new(|_| vec![]);
    let layout: Answers = Box::new(|_| vec![vec![b"no".to_vec(), b"reply".to_vec()]]);
    let too_late: Answers = Box::new(|_| {
        let payload = encode_batch(&Batch::default());
        [7, 8, 9]
            .map(|seq| build_reply("", Reply::Message { seq, payload: &payload }).into())
            .into()
    });
    let flood: Answers = Box::new(|engine| {
        let reply = build_reply("", Reply::Message { seq: 0, payload: &engine.past[0] });
        vec![reply.into(); 100_001]
    });
    // The connection of such a one is ended; then nothing comes any more.
    let too_long: Answers = Box::new(|_| vec![vec![vec![], vec![0; 8], vec![0; (16 << 20) + 1]]]);
    for (name, answers) in [
        ("never", never),
        ("layout", layout),
        ("too late", too_late),
        ("flood", flood),
        ("too long", too_long),
    ] {
        let (mut side, mut engines) = Side::following(1);
        engines[0].publish(true, vec![stored(0), stored(1), stored(2)]);
        side.until("the first", &mut engines, Engine::all, |s| s.blocks() == 3);
        engines[0].publish(false, vec![]);
        engines[0].publish(true, vec![stored(3)]);
        engines[0].publish(true, vec![stored(4)]);
        side.until(name, &mut engines, |engine, _| answers(engine), |s| s.stats().lost == 1);
        side.until(name, &mut engines, Engine::all, |s| s.blocks() == 2);
        assert_eq!((side.stats().gaps, side.stats().uncertain), (1, 1), "{name}");
        assert_eq!(side.book.state(W), "uncertain", "{name}");
        engines[0].publish(true, vec![KvEvent::Cleared]);
        side.until(name, &mut engines, Engine::all, |s| s.book.state(W) == "events");
        assert!(side.feeds.open.values().all(|open| open.replies.is_none()), "{name}");
    }
}

#[test]
fn f21_an_engine_that_restarts_instead_of_answering() {
    let (mut side, mut engines) = Side::following(1);
    engines[0].publish(true, vec![stored(0)]);
    engines[0].publish(false, vec![]);
    engines[0].publish(true, vec![stored(1)]);
    side.until(
        "it is asked",
        &mut engines,
        |_, _| vec![],
        |s| s.stats().gaps == 1 && s.feeds.open.values().any(|open| open.replies.is_some()),
    );
    let id = side.shell.core().worker_named(W);
    engines[0].past.clear();
    engines[0].publish(true, vec![stored(2)]);
    engines[0].publish(true, vec![stored(3)]);
    // Two blocks alone say nothing: the old life may have one, and hear of another from the new one's past.
    side.until("only the new life's", &mut engines, Engine::all, |s| {
        s.blocks() == 2 && s.shell.core().worker_named(W) != id
    });
    assert_eq!((side.stats().lost, side.stats().uncertain), (0, 0));
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Each list of DEALER-side frames that a real publisher answered from its first message on, by file.
fn captures() -> BTreeMap<String, Vec<Vec<Vec<u8>>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/kv-events");
    let mut all = BTreeMap::new();
    for folder in ["publisher-golden", "engine-vllm-0.32.0"] {
        let Ok(files) = std::fs::read_dir(root.join(folder)) else { continue };
        for path in files.map(|file| file.unwrap().path()) {
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let golden: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let replay = &golden["replay"];
            let from_0 = ["from_0", "dealer_from_first"].iter().find_map(|k| replay[k].as_array());
            let Some(replies) = from_0 else { continue };
            let frames = |reply: &serde_json::Value| -> Vec<Vec<u8>> {
                reply.as_array().unwrap().iter().map(|f| unhex(f.as_str().unwrap())).collect()
            };
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            all.insert(name, replies.iter().map(frames).collect());
        }
    }
    all
}

#[test]
fn what_real_engines_answered_fills_holes_in_both_layouts() {
    let captures = captures();
    if captures.is_empty() {
        eprintln!("SKIPPED: no captures of replays in ../shared/data/kv-events");
        return;
    }
    let mut layouts = BTreeMap::new();
    for (name, replies) in &captures {
        let number = |reply: &[Vec<u8>]| {
            u64::from_be_bytes(reply[reply.len() - 2].as_slice().try_into().unwrap())
        };
        let messages: Vec<_> = replies.iter().filter(|r| !r.last().unwrap().is_empty()).collect();
        *layouts.entry(messages[0].len()).or_insert(0) += 1;
        let answer = |_: &Engine, from: u64| -> Vec<Vec<Vec<u8>>> {
            replies.iter().filter(|r| number(r) >= from).cloned().collect()
        };
        let publish = |engine: &Engine, reply: &[Vec<u8>]| {
            let frames = build_frames("t", number(reply), reply.last().unwrap().clone());
            assert!(parse_frames(&frames).is_ok());
            engine.publisher.socket.send_multipart(frames, 0).unwrap();
        };
        // Without a loss, and with all but a few lost.
        let mut seen = vec![];
        for arrives in [1, 4] {
            let mut side = Side::new();
            let mut engines = [Engine::new()];
            side.follow(&engines);
            let none = |_: &Engine, _: u64| vec![build_reply("", Reply::End).into()];
            side.until("asked", &mut engines, none, |s| s.stats().filled == 1);
            engines[0].publisher.awaits();
            let last = messages.len() - 1;
            for (i, message) in messages.iter().enumerate() {
                if i % arrives == 0 || i == last {
                    publish(&engines[0], message);
                }
            }
            let at = Some(number(messages[last]));
            side.until(name, &mut engines, answer, |s| {
                s.feeds.open.values().all(|open| open.stream.at() == at)
            });
            let s = side.stats();
            assert_eq!((s.lost, s.malformed), (0, 0), "{name}: {s:?}");
            seen.push((side.blocks(), s.stored, s.removed, s.cleared, s.ignored, s.refused));
            assert!(s.gaps == 0 || arrives > 1, "{name}: {s:?}");
        }
        assert_eq!(seen[0], seen[1], "{name}");
        assert!(seen[0].1 > 0, "{name}: {seen:?}");
    }
    assert!(layouts[&3] > 4 && layouts[&4] > 4, "{layouts:?}");
}
