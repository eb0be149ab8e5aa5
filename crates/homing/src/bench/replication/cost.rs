//! What sharing takes of a turn: two routers under load, and what each spends on telling of its own turns, and on hearing
//! of as many of another's. All of that runs on a thread of its own here, whose CPU time the kernel counts; what is left
//! on a request's way, some nanoseconds, is the difference of two plain loops.

use super::Sizes;
use super::layer::Layer;
use super::router::{BUS, Counts, Router, bus, settings, settings_of};
use super::shelf::Shelf;
use crate::bench::meter::{Meter, median};
use homing_core::core::Cursor;
use homing_core::time::Time;
use homing_runtime::replication::Ports;
use homing_wire::replica::{Body, Head, Message, READS, Record, RecordKind, encode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns a second of each router.
pub(super) const RATES: [u32; 3] = [20, 200, 1000];
/// Sessions of plain turns, and where all turns are first ones.
const SESSIONS: usize = 100_000;
/// How long a session may idle: a use is told of after a sixteenth of it, a second instead of the usual fifteen.
const TTL: &str = "16s";
/// A session of which not all turns are first ones has one so often at each router.
const EVERY_S: u32 = 2;
/// Turns between two looks of who tells of them.
const BATCH: usize = 64;
/// Between looks at what is due.
const STEP: Duration = Duration::from_millis(1);
/// Steps from placing to the first token, and to the end.
const FIRST: u64 = 30;
const LAST: u64 = 300;
/// Steps between two tokens.
const TOKEN: u64 = 20;

/// Which turns, shared over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Each is its session's first at its router; over a bus.
    First,
    /// Few are.
    Later,
    /// As that, bindings in a store, of which each write counts as a message.
    Store,
}

impl How {
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Later, Self::Store];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Later => "later",
            Self::Store => "store",
        }
    }

    fn sessions(self, rate: u32) -> usize {
        match self {
            Self::First => SESSIONS,
            Self::Later | Self::Store => (rate * EVERY_S) as usize,
        }
    }
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) how: How,
    pub(super) rate: u32,
    /// CPU of one router's layer, in us a turn.
    pub(super) cpu_us: f64,
    /// Messages that it sends a turn,
    pub(super) messages: f64,
    /// and their bytes.
    pub(super) bytes: f64,
}

impl Cost {
    pub(super) fn name(&self) -> String {
        format!("{}_{}", self.how.word(), self.rate)
    }
}

/// A turn through the core alone, and what sharing adds to it there, in us: medians of many short rounds by turns.
pub(super) fn plain(turns: usize, rounds: usize) -> Result<(f64, f64), String> {
    let routers = [Router::new(&settings("")?, 1)?, Router::new(&settings(BUS)?, 1)?];
    let (meter, each) = (Meter::new(), (turns / rounds).max(BATCH));
    let (mut alone, mut more) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut us = [0.0; 2];
        for (router, us) in routers.iter().zip(&mut us) {
            let core = router.shell.core();
            let mut took = Duration::ZERO;
            for first in (0..each).step_by(BATCH) {
                let mut failed = None;
                took += meter.time(|| {
                    for n in first..first + BATCH {
                        match router.place(n % SESSIONS) {
                            Ok(checked) => router.finish(router.begin(checked)),
                            Err(why) => failed = Some(why),
                        }
                    }
                });
                failed.map_or(Ok(()), Err)?;
                core.hears_news();
                let _ = core.publications(router.shell.now(), usize::MAX);
            }
            *us = took.as_secs_f64() * 1e6 / each.next_multiple_of(BATCH) as f64;
        }
        alone.push(us[0]);
        more.push(us[1] - us[0]);
    }
    let of = |all: &[f64]| median(all).unwrap_or_default();
    Ok((of(&alone), of(&more)))
}

/// A register alone in its message and among 64, and a record, in bytes.
pub(super) fn bytes() -> Result<((usize, f64), usize), String> {
    let router = Router::new(&settings(BUS)?, 1)?;
    for n in 0..64 {
        router.finish(router.begin(router.place(n)?));
    }
    let mut all = Vec::new();
    let (now, mut cursor) = (router.shell.now(), Cursor::default());
    while let Some(more) = router.shell.core().registers(now, &mut cursor, Time::ZERO) {
        all.extend(more);
    }
    let one = all.first().cloned().ok_or("nothing was bound")?;
    let head = Head {
        writer: u32::MAX,
        boot: now.as_micros(),
        sequence: 1 << 20,
        now,
        group: u64::MAX,
        reads: READS,
    };
    let size = |updates| {
        let body = Some(Body::Updates { updates, loads: None });
        encode(&Message { head, body }).len()
    };
    let record = Record {
        kind: RecordKind::Bound,
        publication: one.clone(),
        until: None,
        group: Some(u64::MAX),
    };
    let count = all.len() as f64;
    Ok(((size(vec![one]), size(all) as f64 / count), record.encode().len()))
}

/// Medians of some rounds.
pub(super) fn measure(how: How, rate: u32, sizes: &Sizes) -> Result<Cost, String> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..sizes.rounds {
        let one = both(how, rate, sizes)?;
        for (all, one) in all.iter_mut().zip([one.cpu_us, one.messages, one.bytes]) {
            all.push(one);
        }
    }
    let [cpu_us, messages, bytes] = all.map(|all| median(&all).unwrap_or_default());
    Ok(Cost { how, rate, cpu_us, messages, bytes })
}

/// Two routers, each with a thread that has turns and one that shares.
fn both(how: How, rate: u32, sizes: &Sizes) -> Result<Cost, String> {
    let settings = settings_of(TTL, BUS)?;
    let routers = [Router::new(&settings, 1)?, Router::new(&settings, 2)?];
    let numbers = [routers[0].number(), routers[1].number()];
    let counts = [Arc::new(Counts::default()), Arc::new(Counts::default())];
    let mut ports = bus(numbers, &counts);
    if how == How::Store {
        let shelf = Arc::new(Shelf::default());
        for (ports, counts) in ports.iter_mut().zip(&counts) {
            ports.store = Some(Arc::new(shelf.end(counts)));
        }
    }
    let times = (sizes.warm, sizes.warm + sizes.round);
    let all = routers.into_iter().zip(ports).zip(counts).enumerate();
    let threads: Vec<_> = all
        .map(|(number, ((router, ports), counts))| {
            std::thread::spawn(move || one(how, number, &router, ports, &counts, rate, times))
        })
        .collect();
    let (mut sum, mut turns) = ([0.0; 3], 0.0);
    for thread in threads {
        let (one, of) = thread.join().map_err(|_| "a router's thread has ended badly")??;
        sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
        turns += of;
    }
    let [cpu_us, messages, bytes] = sum.map(|sum| sum / turns);
    Ok(Cost { how, rate, cpu_us, messages, bytes })
}

/// What one router came to in the measured time: CPU in us, messages, bytes; and its turns.
fn one(
    how: How,
    number: usize,
    router: &Router,
    ports: Ports,
    counts: &Counts,
    rate: u32,
    (warm, end): (Duration, Duration),
) -> Result<([f64; 3], f64), String> {
    let layer = Layer::start(&router.shell, ports);
    layer.ready()?;
    let mut before = ([0.0; 3], 0);
    let mut is_warm = false;
    let all = drive(how, number, router, rate, end, |passed, turns| {
        if passed >= warm && !std::mem::replace(&mut is_warm, true) {
            before = (counts.so_far(layer.spent()), turns);
        }
    })?;
    let after = counts.so_far(layer.spent());
    layer.end()?;
    let mut difference = after;
    difference.iter_mut().zip(before.0).for_each(|(after, before)| *after -= before);
    Ok((difference, f64::from(all.saturating_sub(before.1).max(1))))
}

/// Drives one router for a time; `look` is told how much of it has passed, and how many turns have begun.
fn drive(
    how: How,
    number: usize,
    router: &Router,
    rate: u32,
    time: Duration,
    mut look: impl FnMut(Duration, u32),
) -> Result<u32, String> {
    let (began, mut all) = (Instant::now(), 0u32);
    let (mut placed, mut running) = (VecDeque::new(), VecDeque::new());
    let sessions = how.sessions(rate);
    loop {
        std::thread::sleep(STEP);
        let passed = began.elapsed();
        look(passed, all);
        if passed >= time {
            break;
        }
        // By the clock, so that a machine that is late makes up for it.
        let step = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let due = (passed.as_secs_f64() * f64::from(rate)) as u32;
        while all < due {
            // Each session's turns come to both routers.
            let session = (all as usize + number * sessions / 2) % sessions;
            placed.push_back((step, router.place(session)?));
            all += 1;
        }
        while placed.front().is_some_and(|(at, _)| at + FIRST <= step) {
            let Some((at, checked)) = placed.pop_front() else { break };
            running.push_back((at, step, router.begin(checked)));
        }
        while running.front().is_some_and(|(at, ..)| at + LAST <= step) {
            let Some((.., live)) = running.pop_front() else { break };
            router.finish(live);
        }
        for (_, grown, live) in &mut running {
            if *grown + TOKEN <= step {
                *grown = step;
                router.grow(live);
            }
        }
    }
    running.into_iter().for_each(|(.., live)| router.finish(live));
    for (_, checked) in placed {
        router.finish(router.begin(checked));
    }
    Ok(all)
}
