//! Randomness as a value: whoever owns the core hands it a [`Dice`].
//!
//! The core draws from its own SplitMix64 and not from a library, so that an upgrade of one can't
//! change what a seed means: same seed, same run.

/// A source of random bits.
pub trait Dice {
    /// The next 64 random bits.
    fn roll(&mut self) -> u64;

    /// A number below `n`, close to uniform (multiply-shift; the bias is under `n / 2^64`). 0 for `n = 0`.
    fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.roll()) * n as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number in `[0, 1)` with 53 random bits.
    fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A generator whose whole future follows from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Dice for SplitMix {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_gives_the_published_sequence_for_seed_zero() {
        let mut dice = SplitMix::new(0);
        assert_eq!(dice.roll(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(dice.roll(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn below_stays_below_and_reaches_every_face() {
        let mut dice = SplitMix::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..6000 {
            seen[dice.below(6)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!(dice.below(0), 0);
    }
}
