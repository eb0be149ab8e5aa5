//! What sharing takes of a turn: two routers, a thread each, under the same load with and without it. The difference
//! is what one router spends on telling of its own turns, and on hearing of as many of another's.

use super::router::{BUS, Counts, Router, bus, runtime, settings};
use crate::bench::meter::{Meter, median};
use homing_core::core::Cursor;
use homing_core::time::Time;
use homing_runtime::replication::Ports;
use homing_wire::replica::{Body, Head, Message, Record, RecordKind, encode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Turns a second of each router.
pub(super) const RATES: [u32; 3] = [20, 200, 1000];
/// Sessions that they come from.
const SESSIONS: usize = 10_000;
/// Between looks at what is due.
const STEP: Duration = Duration::from_millis(1);
/// Steps from placing to the first token, and to the end.
const FIRST: u64 = 30;
const LAST: u64 = 300;
/// Steps between two tokens.
const TOKEN: u64 = 20;

/// What came out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) rate: u32,
    /// CPU of one router, in us a turn.
    pub(super) cpu_us: f64,
    /// Messages that it sends a turn,
    pub(super) messages: f64,
    /// and their bytes.
    pub(super) bytes: f64,
}

/// A turn through the core alone, in us.
pub(super) fn plain(turns: usize) -> Result<f64, String> {
    let router = Router::new(&settings("")?, 1)?;
    let (meter, mut failed) = (Meter::new(), None);
    let took = meter.time(|| {
        for n in 0..turns {
            match router.place(n % SESSIONS) {
                Ok(checked) => router.finish(router.begin(checked)),
                Err(why) => failed = Some(why),
            }
        }
    });
    failed.map_or(Ok(took.as_secs_f64() * 1e6 / turns as f64), Err)
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
    let head =
        Head { writer: u32::MAX, boot: now.as_micros(), sequence: 1 << 20, now, group: u64::MAX };
    let size = |updates| encode(&Message { head, body: Some(Body::Updates(updates)) }).len();
    let record = Record {
        kind: RecordKind::Bound,
        publication: one.clone(),
        until: None,
        group: Some(u64::MAX),
    };
    let count = all.len() as f64;
    Ok(((size(vec![one]), size(all) as f64 / count), record.encode().len()))
}

/// CPU time of this thread so far; zero where the kernel doesn't tell.
fn spent() -> Duration {
    // The kernel counts it up when the thread stops.
    std::thread::sleep(Duration::from_micros(50));
    let read = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
    };
    read().unwrap_or_default()
}

/// By turns with and without sharing.
pub(super) fn measure(rate: u32, round: Duration, rounds: usize) -> Result<Cost, String> {
    let (mut extra, mut messages, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let alone = both(rate, round, None)?;
        let counts = Arc::new(Counts::default());
        let shared = both(rate, round, Some(&counts))?;
        extra.push(shared.cpu_us - alone.cpu_us);
        messages.push(counts.messages.load(Ordering::Relaxed) as f64 / shared.turns);
        bytes.push(counts.bytes.load(Ordering::Relaxed) as f64 / shared.turns);
    }
    let of = |all: &[f64]| median(all).unwrap_or_default();
    Ok(Cost { rate, cpu_us: of(&extra), messages: of(&messages), bytes: of(&bytes) })
}

/// What both routers came to.
struct Both {
    /// CPU a turn, of one router.
    cpu_us: f64,
    /// Turns of both, those before the measured time too.
    turns: f64,
}

fn both(rate: u32, round: Duration, counts: Option<&Arc<Counts>>) -> Result<Both, String> {
    let settings = settings(if counts.is_some() { BUS } else { "" })?;
    let routers = [Router::new(&settings, 1)?, Router::new(&settings, 2)?];
    let numbers = [routers[0].number(), routers[1].number()];
    let ports = match counts {
        Some(counts) => bus(numbers, counts).map(Some),
        None => [None, None],
    };
    let drive = |(number, (router, ports)): (usize, (Router, Option<Ports>))| {
        std::thread::spawn(move || drive(number, router, ports, rate, round))
    };
    let threads: Vec<_> = routers.into_iter().zip(ports).enumerate().map(drive).collect();
    let (mut cpu, mut measured, mut all) = (Duration::ZERO, 0, 0);
    for thread in threads {
        let one = thread.join().map_err(|_| "a router's thread has ended badly")??;
        cpu += one.cpu;
        measured += one.measured;
        all += one.all;
    }
    Ok(Both { cpu_us: cpu.as_secs_f64() * 1e6 / f64::from(measured.max(1)), turns: all.into() })
}

/// What one router came to.
struct One {
    cpu: Duration,
    measured: u32,
    all: u32,
}

/// Drives one router on this thread: its turns, and what it shares by.
fn drive(
    number: usize,
    mut router: Router,
    ports: Option<Ports>,
    rate: u32,
    round: Duration,
) -> Result<One, String> {
    runtime()?.block_on(async move {
        if let Some(ports) = ports {
            router.share(ports);
        }
        let warm = round / 3;
        let (began, mut all) = (Instant::now(), 0u32);
        let (mut placed, mut running) = (VecDeque::new(), VecDeque::new());
        let mut measured = None;
        let mut tick = tokio::time::interval(STEP);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let passed = began.elapsed();
            if passed >= warm && measured.is_none() {
                measured = Some((spent(), all));
            }
            if passed >= warm + round {
                break;
            }
            // By the clock, so that a machine that is late makes up for it.
            let step = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
            let due = (passed.as_secs_f64() * f64::from(rate)) as u32;
            while all < due {
                // Each session's turns come to both routers.
                let session = (all as usize * 2 + number * 7919) % SESSIONS;
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
        let (before, turns) = measured.ok_or("the time was too short")?;
        let one = One { cpu: spent().saturating_sub(before), measured: all - turns, all };
        running.into_iter().for_each(|(.., live)| router.finish(live));
        for (_, checked) in placed {
            router.finish(router.begin(checked));
        }
        router.end().await;
        Ok(one)
    })
}
