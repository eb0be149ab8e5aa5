//! What a target has to do: one booking per request, from its selection to the end of its stream.
//!
//! Load is counted when a request is placed, not when its worker answers (F12), and freed by the
//! booking's own end and nothing else (F11, F14, F41). `sum(bookings) == gauges` is an invariant.

use crate::ids::{DpRank, WorkerId};
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::HashMap;
use std::iter::Sum;

/// What one request costs its target at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    /// Prompt tokens that the target must compute before the first token; 0 once it has come.
    prefill_tokens: u64,
    /// KV blocks that the request occupies: its prompt's, and those of its output so far.
    blocks: u64,
}

/// What a target has to do, summed over its bookings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests placed and not ended.
    pub active_requests: u32,
    /// Prompt tokens that must be computed before the first token of their requests.
    pub prefill_tokens: u64,
    /// KV blocks that they occupy: of their prompts, and of their outputs so far.
    pub blocks: u64,
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |a, b| Self {
            active_requests: a.active_requests + b.active_requests,
            prefill_tokens: a.prefill_tokens + b.prefill_tokens,
            blocks: a.blocks + b.blocks,
        })
    }
}

/// A request's place in the ledger. Consumed by [`Ledger::free`].
#[must_use = "a booking that is dropped is never freed"]
#[derive(Debug)]
pub(crate) struct Booking(usize);

#[derive(Debug)]
struct Row {
    at: (WorkerId, DpRank),
    cost: Cost,
    /// Prompt and output tokens, whence the blocks.
    tokens: u64,
    block_size: u64,
}

/// The ledger of one partition. Gauges exist as long as something is booked on them, whether or not
/// the worker is still registered.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    bookings: Slab<Row>,
    gauges: HashMap<(WorkerId, DpRank), Load, FixedState>,
}

/// Blocks are a measure of load here even where the engine's block size is unknown.
const USUAL_BLOCK: u64 = 16;

impl Ledger {
    /// Books a prompt of `tokens`, of which `uncached` must be computed.
    pub(crate) fn book(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        tokens: u32,
        uncached: u32,
        block_size: u32,
    ) -> Booking {
        let block_size = if block_size == 0 { USUAL_BLOCK } else { u64::from(block_size) };
        let tokens = u64::from(tokens);
        let cost =
            Cost { prefill_tokens: u64::from(uncached), blocks: tokens.div_ceil(block_size) };
        let at = (worker, rank);
        let gauge = self.gauges.entry(at).or_default();
        gauge.active_requests += 1;
        gauge.prefill_tokens += cost.prefill_tokens;
        gauge.blocks += cost.blocks;
        Booking(self.bookings.insert(Row { at, cost, tokens, block_size }))
    }

    /// The first token has come: the prompt is computed.
    pub(crate) fn first_token(&mut self, booking: &Booking) {
        self.change(booking, |row| row.cost.prefill_tokens = 0);
    }

    /// `n` more tokens of output.
    pub(crate) fn output(&mut self, booking: &Booking, n: u32) {
        self.change(booking, |row| {
            row.tokens = row.tokens.saturating_add(u64::from(n));
            row.cost.blocks = row.tokens.div_ceil(row.block_size);
        });
    }

    /// The request has ended; whom it was booked on.
    pub(crate) fn free(&mut self, booking: Booking) -> WorkerId {
        let row = self.bookings.remove(booking.0);
        if let Some(gauge) = self.gauges.get_mut(&row.at) {
            gauge.active_requests -= 1;
            gauge.prefill_tokens -= row.cost.prefill_tokens;
            gauge.blocks -= row.cost.blocks;
            if gauge.active_requests == 0 {
                self.gauges.remove(&row.at);
            }
        }
        row.at.0
    }

    /// What a target has to do.
    #[must_use]
    pub(crate) fn of(&self, worker: WorkerId, rank: DpRank) -> Load {
        self.gauges.get(&(worker, rank)).copied().unwrap_or_default()
    }

    /// Requests booked in all.
    #[must_use]
    pub(crate) fn bookings(&self) -> usize {
        self.bookings.len()
    }

    fn change(&mut self, booking: &Booking, change: impl FnOnce(&mut Row)) {
        let row = &mut self.bookings[booking.0];
        let before = row.cost;
        change(row);
        if let Some(gauge) = self.gauges.get_mut(&row.at) {
            gauge.prefill_tokens =
                gauge.prefill_tokens - before.prefill_tokens + row.cost.prefill_tokens;
            gauge.blocks = gauge.blocks - before.blocks + row.cost.blocks;
        }
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self) {
        let mut sums: HashMap<_, Load, FixedState> = HashMap::default();
        for (_, row) in &self.bookings {
            let sum = sums.entry(row.at).or_default();
            sum.active_requests += 1;
            sum.prefill_tokens += row.cost.prefill_tokens;
            sum.blocks += row.cost.blocks;
        }
        assert_eq!(sums, self.gauges, "the sum of the bookings is not what the gauges say");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Book(u8, u32, u32, u32),
        First(usize),
        Output(usize, u32),
        Free(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..4, any::<u32>(), any::<u32>(), 0u32..300)
                .prop_map(|(w, t, u, b)| Step::Book(w, t, u, b)),
            any::<usize>().prop_map(Step::First),
            (any::<usize>(), any::<u32>()).prop_map(|(i, n)| Step::Output(i, n)),
            any::<usize>().prop_map(Step::Free),
        ]
    }

    proptest! {
        /// The model: a list of what is booked; a target's load is the sum over it.
        #[test]
        fn the_ledger_equals_a_list(steps in prop::collection::vec(step(), 0..80)) {
            let mut ledger = Ledger::default();
            let mut model: BTreeMap<usize, (u8, u64, u64, u64)> = BTreeMap::new();
            let mut held: Vec<(usize, Booking)> = Vec::new();
            for (name, s) in steps.into_iter().enumerate() {
                let at = |i: usize, n: usize| i.checked_rem(n);
                match s {
                    Step::Book(w, tokens, uncached, block) => {
                        let b = ledger.book(WorkerId(u32::from(w)), DpRank(0), tokens, uncached, block);
                        held.push((name, b));
                        let size = if block == 0 { 16 } else { u64::from(block) };
                        model.insert(name, (w, u64::from(uncached), u64::from(tokens), size));
                    }
                    Step::First(i) => if let Some(i) = at(i, held.len()) {
                        ledger.first_token(&held[i].1);
                        model.get_mut(&held[i].0).unwrap().1 = 0;
                    },
                    Step::Output(i, n) => if let Some(i) = at(i, held.len()) {
                        ledger.output(&held[i].1, n);
                        model.get_mut(&held[i].0).unwrap().2 += u64::from(n);
                    },
                    Step::Free(i) => if let Some(i) = at(i, held.len()) {
                        let (name, b) = held.swap_remove(i);
                        ledger.free(b);
                        model.remove(&name);
                    },
                }
                ledger.check();
                for w in 0..4u8 {
                    let mine: Vec<_> = model.values().filter(|m| m.0 == w).collect();
                    let want = Load {
                        active_requests: mine.len() as u32,
                        prefill_tokens: mine.iter().map(|m| m.1).sum(),
                        blocks: mine.iter().map(|m| m.2.div_ceil(m.3)).sum(),
                    };
                    prop_assert_eq!(ledger.of(WorkerId(u32::from(w)), DpRank(0)), want);
                }
            }
            for (_, b) in held {
                ledger.free(b);
            }
            prop_assert!(ledger.gauges.is_empty() && ledger.bookings() == 0);
        }
    }
}
