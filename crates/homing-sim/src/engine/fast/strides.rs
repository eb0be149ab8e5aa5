//! How long a stride takes: decode steps in a row in which nothing changes but that each sequence has one
//! more token. Each step is longer than the last by the same part of a microsecond, and is rounded up by
//! itself; the sum of that has a closed form.

use crate::engine::cost::{CostModel, Work};

/// Decode steps of the same sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// A step's length is the whole part of `(first + i * each) / SCALE` microseconds.
    first: u128,
    each: u128,
}

/// Microseconds in the units of [`CostModel::kv_token_ps`].
const SCALE: u128 = 1_000_000;

impl Stride {
    /// The steps that follow on `first`, which has no prefill, each with a token more of context for every
    /// sequence. `None` where steps take no time.
    #[must_use]
    pub fn after(cost: &CostModel, first: &Work) -> Option<Self> {
        let sequences = u128::from(first.decode_sequences);
        let fixed = u128::from(cost.base_ns) + sequences * u128::from(cost.decode_sequence_ns);
        let pico = u128::from(cost.kv_token_ps);
        // Rounding up to the microsecond is adding 999 ns and cutting off; one cut does for both.
        let first = 1000 * (fixed + 999) + u128::from(first.kv_tokens) * pico;
        (first >= SCALE).then_some(Self { first, each: sequences * pico })
    }

    /// Microseconds that the first `steps` of them take together.
    #[must_use]
    pub fn micros(&self, steps: u64) -> u64 {
        let sum = floor_sum(u128::from(steps), SCALE, self.each, self.first);
        u64::try_from(sum).unwrap_or(u64::MAX)
    }

    /// The fewest steps, of `most`, that take at least so long; at least one.
    #[must_use]
    pub fn steps_until(&self, micros: u64, most: u64) -> u64 {
        let (mut low, mut high) = (1, most.max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.micros(middle) >= micros {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

/// The sum of `(a * i + b) / m`, cut off each, for `i` in `0..n`: by Euclid's algorithm.
fn floor_sum(mut n: u128, mut m: u128, mut a: u128, mut b: u128) -> u128 {
    let mut sum = 0;
    while n > 0 {
        sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
        (a, b) = (a % m, b % m);
        let top = a * n + b;
        if top < m {
            break;
        }
        // What is left are the lattice points below a line: counted along the other axis.
        (n, b) = (top / m, top % m);
        (m, a) = (a, m);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stride_is_as_long_as_its_steps(
            base_ns in 0u64..20_000_000,
            decode_sequence_ns in 0u64..100_000,
            kv_token_ps in 0u64..200_000,
            contexts in prop::collection::vec(1u64..200_000, 1..20),
            steps in 1u64..200,
        ) {
            let cost = CostModel { base_ns, decode_sequence_ns, kv_token_ps, ..CostModel::default() };
            let step = |i: u64| {
                let mut work = Work::default();
                contexts.iter().for_each(|c| work.decode(c + i));
                work
            };
            let Some(stride) = Stride::after(&cost, &step(0)) else { return Ok(()) };
            let length = |i| cost.step(&step(i)).as_micros() as u64;
            let sum: u64 = (0..steps).map(length).sum();
            prop_assert_eq!(stride.micros(steps), sum);
            let till = |n| (0..n).map(length).sum::<u64>();
            let n = stride.steps_until(sum / 2, steps);
            prop_assert!(till(n) >= sum / 2 && (n == 1 || till(n - 1) < sum / 2));
        }
    }
}
