//! The prefix index, measured in this process: looking a prompt up, taking in what engines say, and bytes a
//! block.
//!
//! The workload is that of the field's comparison: prefixes of 64 to 512 blocks, the first 16 of each one
//! of 50 shared heads, each held by two of the workers; what is looked up is a known prefix with four new
//! blocks behind it. Engines' names follow from content, as with engines that share a seed. Tokens are
//! hashed here as they are in service.

use super::meter::{Bars, Meter, median};
use homing_core::dice::{Dice, SplitMix};
use homing_core::hash::{EngineHash, HashSpace, Prompt};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::ChainIndex;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent};
use homing_core::time::Time;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

/// Tokens per block.
const BLOCK: u32 = 16;
/// Shared beginnings, and blocks of each.
const HEADS: usize = 50;
const HEAD: usize = 16;
/// New blocks behind a known prefix.
const NEW: usize = 4;
/// Workers that hold a prefix.
const COPIES: usize = 2;
const ROUNDS: usize = 3;
/// Prompts that are predicted at a time: five seconds of a thousand a second.
const PREDICTED: usize = 5_000;

/// How much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    prefixes: usize,
    lookups: usize,
    /// Blocks that all of 64 workers hold, and blocks that each of them holds alone.
    shared: usize,
    distinct: usize,
}

impl Sizes {
    /// The sizes that the bars are meant for; 2 GiB of memory.
    pub(crate) const FULL: Self =
        Self { prefixes: 10_000, lookups: 20_000, shared: 500_000, distinct: 50_000 };
    /// To see that it works; its figures say nothing.
    pub(crate) const QUICK: Self =
        Self { prefixes: 200, lookups: 400, shared: 2_000, distinct: 500 };
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Median and 99th percentile of a look-up among 64 workers, and among 1,024, in us.
    lookup: (f64, f64),
    lookup_1024: (f64, f64),
    /// Among 64 workers while thousands of prompts are on their way.
    lookup_predicted: (f64, f64),
    apply: f64,
    apply_single: f64,
    /// What is left of the peak after all is removed.
    left: f64,
    shared: f64,
    distinct: f64,
}

/// Prefixes of one fleet, as tokens.
struct Fleet {
    workers: usize,
    prefixes: Vec<Vec<u32>>,
}

impl Fleet {
    fn new(workers: usize, prefixes: usize) -> Self {
        let mut dice = SplitMix::new(7);
        let mut tokens = |blocks: usize| -> Vec<u32> {
            (0..blocks * BLOCK as usize).map(|_| dice.roll() as u32).collect()
        };
        let heads: Vec<_> = (0..HEADS).map(|_| tokens(HEAD)).collect();
        let mut lengths = SplitMix::new(8);
        let prefixes = (0..prefixes).map(|i| {
            let length = 64 + lengths.below(449);
            [&heads[i % HEADS][..], &tokens(length - HEAD)].concat()
        });
        Self { workers, prefixes: prefixes.collect() }
    }

    /// What the workers say when they store all of it, `step` blocks an event.
    fn stored(&self, step: usize) -> Vec<(WorkerId, KvEvent)> {
        let mut said = Vec::new();
        for (i, tokens) in self.prefixes.iter().enumerate() {
            for copy in 0..COPIES {
                let worker = WorkerId(((i * 7 + copy * 31) % self.workers) as u32);
                said.extend(events(tokens, step).into_iter().map(|e| (worker, e)));
            }
        }
        said
    }

    /// Known prefixes with something new behind them.
    fn prompts(&self, n: usize) -> Vec<Prompt> {
        let mut dice = SplitMix::new(9);
        (0..n)
            .map(|_| {
                let known = &self.prefixes[dice.below(self.prefixes.len())];
                let new = (0..NEW * BLOCK as usize + 1).map(|_| dice.roll() as u32);
                let tokens: Vec<u32> = known.iter().copied().chain(new).collect();
                Prompt::from_tokens(&tokens, BLOCK, HashSpace::default())
            })
            .collect()
    }
}

/// What an engine says of a sequence that it stores. Names follow from content, as an engine's do.
fn events(tokens: &[u32], step: usize) -> Vec<KvEvent> {
    let chain = Prompt::from_tokens(tokens, BLOCK, HashSpace::default()).chain;
    let names: Vec<EngineHash> = chain.iter().map(|c| EngineHash(!c.0)).collect();
    let said = names.chunks(step).zip(tokens.chunks(step * BLOCK as usize)).enumerate();
    let event = |(i, (names_of, tokens)): (usize, (&[EngineHash], &[u32]))| {
        KvEvent::Stored(BlockStored {
            block_hashes: names_of.to_vec(),
            parent: (i * step).checked_sub(1).map(|before| names[before]),
            token_ids: tokens.to_vec(),
            block_size: BLOCK,
            full_attention: true,
            ..BlockStored::default()
        })
    };
    said.map(event).collect()
}

fn blocks(said: &[(WorkerId, KvEvent)]) -> usize {
    said.iter().map(|(_, e)| e.blocks()).sum()
}

fn apply(index: &mut ChainIndex, said: &[(WorkerId, KvEvent)]) {
    for (worker, event) in said {
        index.apply(*worker, DpRank(0), event);
    }
}

/// Each prompt's time, in us: the median and the 99th percentile.
fn lookups(index: &ChainIndex, prompts: &[Prompt]) -> (f64, f64) {
    let time = |prompt: &Prompt| {
        let began = Instant::now();
        black_box(index.overlaps(black_box(prompt)));
        began.elapsed().as_nanos() as f64 / 1e3
    };
    let mut times: Vec<f64> = prompts.iter().map(time).collect();
    times.sort_by(f64::total_cmp);
    let at = |q: f64| times[((times.len() as f64 * q) as usize).min(times.len() - 1)];
    (at(0.5), at(0.99))
}

/// Measures; `say` is told what is going on.
pub(crate) fn measure(sizes: Sizes, say: &mut dyn FnMut(&str)) -> Figures {
    let meter = Meter::new();
    let mut figures = Figures::default();
    let fleet = Fleet::new(64, sizes.prefixes);
    for (step, figure) in [(64, &mut figures.apply), (1, &mut figures.apply_single)] {
        say(&format!("index: storing in events of {step}"));
        let said = fleet.stored(step);
        let speeds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let mut index = ChainIndex::default();
                let took = meter.time(|| apply(&mut index, &said));
                blocks(&said) as f64 / took.as_secs_f64()
            })
            .collect();
        *figure = median(&speeds).unwrap_or(0.0);
    }
    say("index: looking up among 64 workers");
    let mut index = ChainIndex::default();
    apply(&mut index, &fleet.stored(64));
    let prompts = fleet.prompts(sizes.lookups);
    lookups(&index, &prompts);
    figures.lookup = lookups(&index, &prompts);
    // As in service: each of them has just been sent somewhere.
    for (i, prompt) in prompts.iter().enumerate().take(PREDICTED) {
        let worker = WorkerId((i % fleet.workers) as u32);
        index.predict(worker, DpRank(0), prompt, 0, Time::from_micros(1));
    }
    figures.lookup_predicted = lookups(&index, &prompts);
    while index.expire(Time::from_micros(1)) {}
    say("index: removing everything");
    let peak = index.bytes();
    for (i, tokens) in fleet.prefixes.iter().enumerate() {
        for copy in 0..COPIES {
            let worker = WorkerId(((i * 7 + copy * 31) % fleet.workers) as u32);
            for event in events(tokens, 32).into_iter().rev() {
                let KvEvent::Stored(stored) = event else { continue };
                let block_hashes = stored.block_hashes.into_iter().rev().collect();
                let gone = BlockRemoved { block_hashes, ..BlockRemoved::default() };
                index.apply(worker, DpRank(0), &KvEvent::Removed(gone));
            }
        }
    }
    figures.left = index.bytes() as f64 / peak as f64;
    drop((index, fleet));
    say("index: looking up among 1,024 workers");
    let fleet = Fleet::new(1024, sizes.prefixes);
    let mut index = ChainIndex::default();
    apply(&mut index, &fleet.stored(64));
    let prompts = fleet.prompts(sizes.lookups);
    lookups(&index, &prompts);
    figures.lookup_1024 = lookups(&index, &prompts);
    drop((index, fleet, prompts));
    say("index: memory");
    let mut index = ChainIndex::default();
    let long: Vec<u32> = (0..(sizes.shared as u32) * BLOCK).collect();
    for worker in 0..64 {
        events(&long, 64).iter().for_each(|e| _ = index.apply(WorkerId(worker), DpRank(0), e));
    }
    figures.shared = index.bytes() as f64 / (sizes.shared * 64) as f64;
    index = ChainIndex::default();
    let mut dice = SplitMix::new(10);
    for worker in 0..64 {
        for _ in 0..sizes.distinct / 250 {
            let own: Vec<u32> = (0..250 * BLOCK).map(|_| dice.roll() as u32).collect();
            events(&own, 64).iter().for_each(|e| _ = index.apply(WorkerId(worker), DpRank(0), e));
        }
    }
    figures.distinct = index.bytes() as f64 / (sizes.distinct / 250 * 250 * 64) as f64;
    figures
}

impl Figures {
    pub(crate) fn json(&self) -> Value {
        let two = |x: f64| (x * 100.0).round() / 100.0;
        let us = |(p50, p99): (f64, f64)| json!({"p50": two(p50), "p99": two(p99)});
        json!({
            "lookup_us": us(self.lookup),
            "lookup_1024_us": us(self.lookup_1024),
            "lookup_predicted_us": us(self.lookup_predicted),
            "apply_blocks_per_s": self.apply.round(),
            "apply_single_blocks_per_s": self.apply_single.round(),
            "left_after_removal": (self.left * 1e4).round() / 1e4,
            "bytes_per_block": {"shared": two(self.shared), "distinct": two(self.distinct)},
        })
    }

    pub(crate) fn table(&self, bars: Bars) -> String {
        let mut t = String::from("\nprefix index, one thread\n");
        let mut row = |what: &str, value: String, bar: &str| {
            let bar = format!("bar {bar}");
            let line = format!("  {what:<44} {value:>20}   {}", bars.of(&bar));
            _ = writeln!(t, "{}", line.trim_end());
        };
        let us = |(p50, p99): (f64, f64)| format!("{p50:.2} / {p99:.2} us");
        row("look-up, 64 workers, p50 / p99", us(self.lookup), "3 / 7 us");
        row("look-up, 1,024 workers, p50 / p99", us(self.lookup_1024), "- / 30 us");
        row("the same, 64, with prompts on their way", us(self.lookup_predicted), "-");
        let millions = |x: f64| format!("{:.2} M blocks/s", x / 1e6);
        row("stored in events of 64", millions(self.apply), "7 M");
        row("stored in events of 1", millions(self.apply_single), "2.5 M");
        row("left after everything is removed", format!("{:.2} %", self.left * 1e2), "5 %");
        row("memory of a block that all hold", format!("{:.2} B", self.shared), "16 B");
        row("memory of a block that one holds", format!("{:.1} B", self.distinct), "50 B");
        t
    }
}
