//! What is learned of workers whose truth is known.

use super::*;
use crate::dice::{Dice, SplitMix};

/// 0 to 1.
fn share(dice: &mut SplitMix) -> f64 {
    dice.below(1 << 20) as f64 / f64::from(1 << 20)
}

/// A prompt that comes while others wait, and what a worker of that pace makes of it.
fn first(truth: &Pace, dice: &mut SplitMix) -> Prefilled {
    let (tokens, before) = (10.0 + 12e3 * share(dice).powi(2), 60e3 * share(dice));
    let pairs = tokens * before + tokens * tokens / 2.0;
    let ms =
        f64::from(truth.base) + tokens * f64::from(truth.token) + pairs * f64::from(truth.pair);
    Prefilled { ms, tokens, pairs }
}

fn stream(truth: &Pace, dice: &mut SplitMix) -> Decoded {
    let sequences = 1.0 + 30.0 * share(dice);
    let context = sequences * (500.0 + 8e3 * share(dice));
    let prefilled = 100.0 * share(dice).powi(3);
    let ms = f64::from(truth.step)
        + sequences * f64::from(truth.sequence)
        + context * f64::from(truth.context)
        + prefilled * f64::from(truth.stall);
    Decoded { tokens: 100.0, ms, sequences, context, prefilled }
}

fn taught(truth: &Pace, n: usize, odd: usize, seed: u64) -> Pace {
    let (mut dice, mut it) = (SplitMix::new(seed), Learned::default());
    for i in 0..n {
        let mut noise = |ms: f64| {
            let ms = ms * (0.9 + 0.2 * share(&mut dice));
            // A client that stops reading, a garbage collection: anything.
            if odd > 0 && i % odd == odd - 1 { ms * 30.0 } else { ms }
        };
        let (n1, n2) = (noise(1.0), noise(1.0));
        let (mut p, mut d) = (first(truth, &mut dice), stream(truth, &mut dice));
        (p.ms, d.ms) = (p.ms * n1, d.ms * n2);
        it.prefilled(&p);
        it.decoded(&d);
    }
    it.pace()
}

/// How far what it expects is from the truth, on average, in parts of the truth.
fn off(truth: &Pace, learned: &Pace) -> (f64, f64) {
    let mut dice = SplitMix::new(99);
    let mean = |f: &mut dyn FnMut() -> f64| (0..200).map(|_| f()).sum::<f64>() / 200.0;
    let mut a = || {
        let it = first(truth, &mut dice);
        let said = f64::from(learned.base)
            + it.tokens * f64::from(learned.token)
            + it.pairs * f64::from(learned.pair);
        (said - it.ms).abs() / it.ms
    };
    let prefill = mean(&mut a);
    let mut dice = SplitMix::new(98);
    let mut b = || {
        let it = stream(truth, &mut dice);
        let said = f64::from(learned.step)
            + it.sequences * f64::from(learned.sequence)
            + it.context * f64::from(learned.context)
            + it.prefilled * f64::from(learned.stall);
        (said - it.ms).abs() / it.ms
    };
    (prefill, mean(&mut b))
}

const SLOW: Pace = Pace {
    base: 150.0,
    token: 0.5,
    pair: 1e-5,
    step: 40.0,
    sequence: 0.5,
    context: 4e-4,
    stall: 0.5,
};
const FAST: Pace = Pace {
    base: 8.0,
    token: 0.01,
    pair: 2e-7,
    step: 5.0,
    sequence: 0.02,
    context: 1e-5,
    stall: 0.01,
};

#[test]
fn a_dozen_answers_tell_about_how_fast_it_is_and_more_tell_well() {
    for truth in [SLOW, FAST, Pace::default()] {
        for seed in 0..20 {
            let (prefill, each) = off(&truth, &taught(&truth, 12, 0, seed));
            assert!(prefill < 0.7 && each < 0.7, "after a dozen: {prefill} {each}");
            let (prefill, each) = off(&truth, &taught(&truth, 300, 0, seed));
            assert!(prefill < 0.2 && each < 0.25, "after many: {prefill} {each} {truth:?}");
        }
    }
}

#[test]
fn what_is_odd_teaches_little() {
    for truth in [SLOW, FAST] {
        for seed in 0..20 {
            let (prefill, each) = off(&truth, &taught(&truth, 300, 10, seed));
            assert!(prefill < 0.3 && each < 0.3, "{prefill} {each} {truth:?}");
        }
    }
}

#[test]
fn it_follows_a_worker_that_becomes_another() {
    let (mut dice, mut it) = (SplitMix::new(7), Learned::default());
    for truth in [FAST, SLOW] {
        for _ in 0..1500 {
            it.prefilled(&first(&truth, &mut dice));
            it.decoded(&stream(&truth, &mut dice));
        }
        let (prefill, each) = off(&truth, &it.pace());
        assert!(prefill < 0.35 && each < 0.35, "{prefill} {each}");
    }
}

#[test]
fn f57_nothing_makes_it_absurd() {
    let mut it = Learned::default();
    let odd = [0.0, -1.0, 1e300, f64::MAX, f64::INFINITY, f64::NAN, 1e-300];
    for ms in odd {
        for tokens in odd {
            for pairs in odd {
                it.prefilled(&Prefilled { ms, tokens, pairs });
                let context = pairs;
                let seen = Decoded { tokens, ms, sequences: tokens, context, prefilled: pairs };
                it.decoded(&seen);
            }
        }
    }
    let p = it.pace();
    for it in [p.base, p.token, p.pair, p.step, p.sequence, p.context, p.stall] {
        assert!(it.is_finite() && it >= 0.0, "{p:?}");
    }
}
