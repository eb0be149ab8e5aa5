//! The whole core under a storm: workers come, die, flap, restart, drain and change what they are;
//! requests of every kind come and end at every point; caches fill and are flushed; sessions are removed
//! and kept; time creeps and jumps.
//!
//! Everything follows from a seed. Before each call the storm says what the contract makes of it
//! (`simulation/storm/laws.rs`); after every step the core checks itself, and must show each session as
//! the shadow has it that is kept beside it (`simulation/shadow.rs`). `HOMING_SIM_SEED=n` replays one
//! seed and prints what happened; `HOMING_SIM_SEEDS=n` plays so many (256 if unset).

#![expect(clippy::unwrap_used, reason = "a test from end to end")]

mod simulation {
    mod engine;
    mod shadow;
    pub(super) mod storm;
}

use simulation::storm::{Storm, Trace};
use std::collections::BTreeMap;

const STEPS: usize = 3000;

/// What must be seen, and not once only: R26's words, every cause of a refusal, every wait, every move.
const HAPPENS: [&str; 45] = [
    "hit",
    "new",
    "joined",
    "rebound",
    "spilled",
    "conflict",
    "surplus",
    "unbound",
    "unbound_full",
    "rejected",
    "none",
    "Answered",
    "BadRank",
    "Conflict",
    "NoWorker",
    "NotAllowed",
    "Overloaded",
    "QueueFull",
    "RankRequired",
    "TargetOverloaded",
    "TargetUnavailable",
    "Timeout",
    "UnknownWorker",
    "WorkerFailed",
    "again",
    "evicted",
    "given up",
    "kept",
    "back after a restart",
    "a group ends",
    "moved: departed",
    "moved: failed",
    "moved: overloaded",
    "moved: soft",
    "waits for anybody",
    "waits for home",
    "waits for the named one",
    "overloaded: active_requests",
    "overloaded: kv_usage",
    "overloaded: factor",
    "reported: others' requests",
    "foreseen: hit",
    "foreseen: new",
    "foreseen: rebound",
    "foreseen: surplus",
];

fn play(seed: u64) -> Trace {
    let mut storm = Storm::new(seed);
    for _ in 0..STEPS {
        storm.step();
    }
    storm.calm()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap())
}

#[test]
fn storms_leave_nothing_behind_and_break_no_rule() {
    if let Some(seed) = number("HOMING_SIM_SEED") {
        for line in &play(seed).lines {
            println!("{line}");
        }
        return;
    }
    let seeds = number("HOMING_SIM_SEEDS").unwrap_or(256);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..seeds {
        for (what, n) in play(seed).seen {
            *seen.entry(what).or_default() += n;
        }
    }
    println!("{seeds} seeds, {STEPS} steps each: {seen:#?}");
    // A storm in which something never happens proves nothing about it.
    let quiet: Vec<_> =
        HAPPENS.iter().filter(|what| seen.get(**what).copied().unwrap_or(0) < seeds / 64).collect();
    assert!(seeds < 64 || quiet.is_empty(), "too quiet: {quiet:?}");
}

#[test]
fn the_same_seed_is_the_same_storm() {
    for seed in 1000..1016 {
        let (a, b) = (play(seed), play(seed));
        assert!(a.lines == b.lines, "seed {seed}");
        assert_ne!(a.hash(), play(seed + 100).hash());
    }
}
