//! The whole core under a storm: workers come, die, flap, restart and change what they serve; requests
//! of every kind come and end at every point; caches fill and are flushed; time creeps and jumps.
//!
//! Everything follows from a seed. After every step the core checks itself, and a shadow that is kept
//! beside it (`simulation/shadow.rs`) must agree with what it shows. `HOMING_SIM_SEED=n` replays one
//! seed and prints what happened; `HOMING_SIM_SEEDS=n` plays so many (256 if unset).

#![expect(clippy::unwrap_used, reason = "a test from end to end")]

mod simulation {
    mod engine;
    mod shadow;
    pub(super) mod storm;
}

use simulation::storm::{Storm, Trace};

const STEPS: usize = 4000;

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
    let mut seen = [0; 9];
    for seed in 0..seeds {
        let trace = play(seed);
        seen.iter_mut().zip(trace.outcomes).for_each(|(all, n)| *all += n);
    }
    println!("{seeds} seeds, {STEPS} steps each; outcomes {seen:?}");
    // A storm in which something never happens proves nothing about it.
    assert!(seeds < 64 || seen.iter().all(|n| *n > seeds), "too quiet: {seen:?}");
}

#[test]
fn the_same_seed_is_the_same_storm() {
    for seed in 1000..1016 {
        let (a, b) = (play(seed), play(seed));
        assert!(a.lines == b.lines, "seed {seed}");
        assert_ne!(a.hash(), play(seed + 100).hash());
    }
}
