//! The ledger: one booking per request, from its selection to the end of its stream.
//!
//! Load is counted when a request is placed, not when its worker answers (F12), and freed by the
//! booking's own end and nothing else (F11, F14, F41). `sum(bookings) == gauges` is an invariant.
//! On the way it notes how long things took, and beside how much else: what [`super::pace`] learns from. It is told
//! only what a stream took that has shown to be one: it went on for some tokens, or ended well. Who breaks off at once,
//! or answers with rubbish, would look fast (F61).

use super::pace::{Decoded, Prefilled};
use super::paths::Paths;
use super::{Load, block_of};
use crate::hash::ChainHash;
use crate::ids::{DpRank, WorkerId};
use crate::time::Time;
use foldhash::fast::FixedState;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// What a request will cost its target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claimed {
    /// Prompt tokens.
    pub(crate) tokens: u32,
    /// Those of them that must be computed.
    pub(crate) uncached: u32,
    /// Tokens of a block; 0: the usual.
    pub(crate) unit: u32,
    /// The prompt's full blocks or chunks of text, if they are known,
    pub(crate) chain: Arc<[ChainHash]>,
    /// and how many tokens each of them stands for.
    pub(crate) chain_unit: u32,
}

/// A request's place in the ledger. Consumed by [`Ledger::free`].
#[must_use = "a booking that is dropped is never freed"]
#[derive(Debug)]
pub(crate) struct Booking(usize);

/// Prompt tokens to compute, and the pairs of one of them with a token before it: attention's part grows with those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prefill {
    tokens: u64,
    pairs: u64,
}

impl Prefill {
    /// The last `new` of `all` tokens. Bounded, so that sums of very many can't overflow.
    fn of(new: u32, all: u32) -> Self {
        let (tokens, all) = (u64::from(new.min(all)), u64::from(all));
        let pairs = tokens.saturating_mul(all - tokens) + tokens * tokens.saturating_sub(1) / 2;
        Self { tokens, pairs: pairs.min(1 << 44) }
    }
}

#[derive(Debug)]
struct Row {
    at: (WorkerId, DpRank),
    /// What must be computed still; nothing once the first token has come.
    prefill: Prefill,
    /// Whether it has.
    decoding: bool,
    /// Prompt and output tokens, whence the blocks,
    tokens: u64,
    /// of so many each,
    unit: u64,
    /// of which the chain's are counted apart: each of these is so many blocks.
    chain: Arc<[ChainHash]>,
    chain_blocks: u64,
    /// When it was booked, or what then stood before it began, and what its target had done by then.
    booked: Done,
    /// The same of its first token,
    first: Option<Done>,
    /// and of the last that was told, with how many there were between the two.
    last: Option<Done>,
    output: u64,
    /// What its first token took, once that is known and while nobody vouches for it.
    took: Option<Prefilled>,
    vouched: bool,
}

impl Row {
    /// Blocks that it alone occupies: those that its chain doesn't name.
    fn tail(&self) -> u64 {
        self.tokens.div_ceil(self.unit).saturating_sub(self.chain.len() as u64 * self.chain_blocks)
    }
}

/// What a target has done by some time.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    at: Time,
    /// Of its prompts.
    prefill: Prefill,
    /// Milliseconds, times those that were decoding in each,
    sequence_ms: f64,
    /// and times the tokens that they had.
    context_ms: f64,
}

/// A target's part.
#[derive(Debug, Default)]
struct Gauge {
    load: Load,
    paths: Paths,
    /// Who waits for the first token, by when they were booked.
    waiting: BTreeMap<u64, Prefill>,
    done: Done,
    /// First tokens that came a moment ago: what comes with the next one was computed in the same step, and took
    /// as long for them as for that.
    lately: SmallVec<[Late; 4]>,
    lately_at: Time,
}

/// One of them.
#[derive(Debug)]
struct Late {
    took: Prefilled,
    /// Whose it is,
    of: usize,
    serial: u64,
    /// and whether it has shown to be a stream.
    vouched: bool,
}

/// What the end of a booking tells.
#[derive(Debug)]
pub(crate) struct Freed {
    /// Whom it was on.
    pub(crate) worker: WorkerId,
    /// How long its tokens took, if they say something.
    pub(crate) decoded: Option<Decoded>,
    /// What first tokens took of which that is known by now.
    pub(crate) settled: Lately,
}

/// First tokens, and what they took.
pub(crate) type Lately = SmallVec<[Prefilled; 4]>;
/// Of first tokens that come so close together one step is the reason; or within this part of what they took.
const SAME_STEP: Duration = Duration::from_millis(2);
const SAME_PART: f64 = 0.02;
/// Those of one step that are remembered; more would be a fleet's whole burst.
const SAME_MOST: usize = 64;

impl Gauge {
    /// Takes note of the time.
    fn pass(&mut self, now: Time) -> Done {
        let done = &mut self.done;
        let ms = now.since(done.at).as_secs_f64() * 1e3;
        done.sequence_ms += ms * f64::from(self.load.decoding);
        done.context_ms += ms * self.load.context as f64;
        done.at = done.at.max(now);
        *done
    }

    /// Who computes its prompt first, since `since` at the earliest.
    fn set_first(&mut self, since: Time) {
        let first = self.waiting.values().next().copied().unwrap_or_default();
        (self.load.first_prefill, self.load.first_pairs) = (first.tokens, first.pairs);
        self.load.since = if first.tokens > 0 { since } else { Time::ZERO };
    }
}

/// The ledger of one partition. Gauges exist as long as something is booked on them, whether or not
/// the worker is still registered.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    bookings: Slab<(u64, Row)>,
    serial: u64,
    gauges: HashMap<(WorkerId, DpRank), Gauge, FixedState>,
}

/// Answers shorter than this say nothing about the time per token; longer ones have shown to be streams.
const TELLING: u64 = 8;

impl Ledger {
    /// Books a request on a target.
    pub(crate) fn book(
        &mut self,
        now: Time,
        worker: WorkerId,
        rank: DpRank,
        it: Claimed,
    ) -> Booking {
        let unit = u64::from(block_of(it.unit));
        let at = (worker, rank);
        let prefill = Prefill::of(it.uncached, it.tokens);
        let gauge = self.gauges.entry(at).or_default();
        let mut booked = gauge.pass(now);
        if !gauge.waiting.is_empty() {
            // What stands before it is computed from then on, and that is told beside it.
            booked.at = gauge.load.since;
        }
        let row = Row {
            at,
            prefill,
            decoding: false,
            tokens: u64::from(it.tokens),
            unit,
            chain: it.chain,
            chain_blocks: u64::from(it.chain_unit) / unit,
            booked,
            first: None,
            last: None,
            output: 0,
            took: None,
            vouched: false,
        };
        let slot = self.bookings.vacant_entry();
        self.serial += 1;
        gauge.load.active_requests += 1;
        gauge.load.prefill_tokens += prefill.tokens;
        gauge.load.prefill_pairs += prefill.pairs;
        let own = gauge.paths.add(&row.chain, slot.key()) as u64;
        gauge.load.blocks += row.tail() + own * row.chain_blocks;
        gauge.waiting.insert(self.serial, prefill);
        if gauge.waiting.len() == 1 {
            gauge.set_first(now);
        }
        let key = slot.key();
        slot.insert((self.serial, row));
        Booking(key)
    }

    /// The first token has come: the prompt is computed. Gives what others took, once it is known what was computed
    /// together with them. `timed`: it has come just now; else it came some time before.
    pub(crate) fn first_token(
        &mut self,
        now: Time,
        booking: &Booking,
        timed: bool,
    ) -> (WorkerId, Lately) {
        let (serial, row) = &mut self.bookings[booking.0];
        let worker = row.at.0;
        let known = self.gauges.get_mut(&row.at).filter(|_| !row.decoding);
        let Some(gauge) = known else { return (worker, Lately::new()) };
        row.decoding = true;
        gauge.pass(now);
        let prefill = std::mem::take(&mut row.prefill);
        gauge.done.prefill.tokens += prefill.tokens;
        // A target that never rests: of what is said here only differences count.
        gauge.done.prefill.pairs = gauge.done.prefill.pairs.wrapping_add(prefill.pairs);
        gauge.load.prefill_tokens -= prefill.tokens;
        gauge.load.prefill_pairs -= prefill.pairs;
        gauge.load.decoding += 1;
        gauge.load.context += row.tokens;
        gauge.waiting.remove(serial);
        gauge.set_first(now);
        let done = gauge.done;
        let took = Prefilled {
            ms: now.since(row.booked.at).as_secs_f64() * 1e3,
            tokens: (done.prefill.tokens - row.booked.prefill.tokens) as f64,
            pairs: done.prefill.pairs.wrapping_sub(row.booked.prefill.pairs) as f64,
        };
        if !timed {
            return (worker, Lately::new());
        }
        (row.first, row.last) = (Some(done), Some(done));
        let passed = now.since(gauge.lately_at);
        let together = gauge.lately.len() < SAME_MOST
            && (passed <= SAME_STEP || passed.as_secs_f64() * 1e3 <= SAME_PART * took.ms);
        let settled = if together { SmallVec::new() } else { std::mem::take(&mut gauge.lately) };
        for before in &mut gauge.lately {
            before.took.tokens += prefill.tokens as f64;
            before.took.pairs += prefill.pairs as f64;
        }
        gauge.lately.push(Late { took, of: booking.0, serial: *serial, vouched: false });
        gauge.lately_at = now;
        (worker, self.settle(settled))
    }

    /// It is known what these took: that of those who are vouched for is told, the others keep it.
    fn settle(&mut self, those: SmallVec<[Late; 4]>) -> Lately {
        let mut told = Lately::new();
        for it in those {
            if it.vouched {
                told.push(it.took);
            } else if let Some((serial, row)) = self.bookings.get_mut(it.of)
                && *serial == it.serial
            {
                row.took = Some(it.took);
            }
        }
        told
    }

    /// `n` more tokens of output. Gives what its first token took, where this shows that it is a stream.
    pub(crate) fn output(&mut self, now: Time, booking: &Booking, n: u32) -> Option<Prefilled> {
        let (serial, row) = &mut self.bookings[booking.0];
        let before = row.tail();
        row.tokens = row.tokens.saturating_add(u64::from(n));
        row.output = row.output.saturating_add(u64::from(n));
        let gauge = self.gauges.get_mut(&row.at)?;
        let done = gauge.pass(now);
        gauge.load.blocks = gauge.load.blocks - before + row.tail();
        if row.decoding {
            gauge.load.context += u64::from(n);
        }
        if row.first.is_some() {
            row.last = Some(done);
        }
        if row.output < TELLING || row.first.is_none() {
            return None;
        }
        vouch(row, gauge, *serial)
    }

    /// The request has ended. `well`: as it should, as far as anybody knows; then what it took is told.
    pub(crate) fn free(&mut self, now: Time, booking: Booking, well: bool) -> Freed {
        let (serial, mut row) = self.bookings.remove(booking.0);
        let mut settled = Lately::new();
        if let Some(gauge) = self.gauges.get_mut(&row.at) {
            gauge.pass(now);
            let load = &mut gauge.load;
            load.active_requests -= 1;
            load.prefill_tokens -= row.prefill.tokens;
            load.prefill_pairs -= row.prefill.pairs;
            if row.decoding {
                load.decoding -= 1;
                load.context -= row.tokens;
            } else {
                // The next in line may begin, unless it stood before this one.
                let first = gauge.waiting.keys().next() == Some(&serial);
                gauge.waiting.remove(&serial);
                if first {
                    gauge.set_first(now);
                }
            }
            let own = gauge.paths.remove(&row.chain, booking.0) as u64;
            gauge.load.blocks -= row.tail() + own * row.chain_blocks;
            if well && row.first.is_some() {
                settled.extend(vouch(&mut row, gauge, serial));
            }
            if gauge.load.active_requests == 0 {
                // Nothing is left that could have been computed with the last ones.
                let last = self.gauges.remove(&row.at).map(|gauge| gauge.lately);
                settled.extend(self.settle(last.unwrap_or_default()));
            }
        }
        Freed { worker: row.at.0, decoded: decoded(&row).filter(|_| well), settled }
    }

    /// What a target has to do.
    #[must_use]
    pub(crate) fn of(&self, worker: WorkerId, rank: DpRank) -> Load {
        self.gauges.get(&(worker, rank)).map(|gauge| gauge.load).unwrap_or_default()
    }

    /// Requests booked in all.
    #[must_use]
    pub(crate) fn bookings(&self) -> usize {
        self.bookings.len()
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self) {
        let mut sums: BTreeMap<_, Load> = BTreeMap::new();
        let mut blocks: BTreeMap<_, u64> = BTreeMap::new();
        for (_, (_, row)) in &self.bookings {
            let sum = sums.entry(row.at).or_default();
            sum.active_requests += 1;
            sum.decoding += u32::from(row.decoding);
            sum.prefill_tokens += row.prefill.tokens;
            sum.prefill_pairs += row.prefill.pairs;
            sum.context += if row.decoding { row.tokens } else { 0 };
            sum.blocks += row.tail();
            blocks.extend(row.chain.iter().map(|hash| ((row.at, *hash), row.chain_blocks)));
        }
        for ((at, _), n) in blocks {
            if let Some(sum) = sums.get_mut(&at) {
                sum.blocks += n;
            }
        }
        assert_eq!(sums.len(), self.gauges.len(), "a gauge of nobody");
        for (at, gauge) in &self.gauges {
            let first = gauge.waiting.values().next().copied().unwrap_or_default();
            let counted = Load {
                first_prefill: first.tokens,
                first_pairs: first.pairs,
                since: gauge.load.since,
                ..sums.get(at).copied().unwrap_or_default()
            };
            assert_eq!(counted, gauge.load, "the sum of the bookings is not what the gauges say");
            let (all, decoding) = (gauge.load.active_requests, gauge.load.decoding);
            assert_eq!(gauge.waiting.len(), (all - decoding) as usize, "who waits for a token");
        }
    }
}

/// A request has shown to be a stream: what its first token took, if that is known and was not told.
fn vouch(row: &mut Row, gauge: &mut Gauge, serial: u64) -> Option<Prefilled> {
    if !std::mem::replace(&mut row.vouched, true)
        && let Some(late) = gauge.lately.iter_mut().find(|late| late.serial == serial)
    {
        late.vouched = true;
    }
    row.took.take()
}

/// How long its tokens took, beside how much else.
fn decoded(row: &Row) -> Option<Decoded> {
    let (first, last) = (row.first?, row.last?);
    let ms = last.at.since(first.at).as_secs_f64() * 1e3;
    if row.output < TELLING || ms <= 0.0 {
        return None;
    }
    let tokens = row.output as f64;
    Some(Decoded {
        tokens,
        ms: ms / tokens,
        sequences: (last.sequence_ms - first.sequence_ms) / ms,
        context: (last.context_ms - first.context_ms) / ms,
        prefilled: (last.prefill.tokens - first.prefill.tokens) as f64 / tokens,
    })
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
