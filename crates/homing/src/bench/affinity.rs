//! The affinity table, measured in this process: turns of sessions a second, the longest single call
//! while it grows, expires and is kept, and bytes a binding.
//!
//! `cargo bench -p homing-core` runs this very file too (`crates/homing-core/benches/affinity.rs`).
//! Sessions are met in random order, as a router meets them: a table that is only ever walked in its own
//! order lies in the caches and looks twice as fast as it is.

use super::meter::{Bars, Longest, Meter, median, resident};
use homing_core::affinity::saved::Kept;
use homing_core::affinity::{Plan, Resolved, Rules, Standing, Table};
use homing_core::core::WALK_AT_ONCE;
use homing_core::dice::{Dice, SplitMix};
use homing_core::ids::{DpRank, SessionKey, Target, WorkerId};
use homing_core::partition::EXPIRE_AT_ONCE;
use homing_core::settings::{Mode, OnFull};
use homing_core::time::Time;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

/// How often each figure is taken; the median counts.
const ROUNDS: usize = 3;
/// Calls between two looks at how long the thread has waited.
const BATCH: u32 = 64;
const WORKERS: u32 = 8;
const TTL: Duration = Duration::from_secs(1800);

/// How many sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bindings that live while turns are counted.
    live: usize,
    /// Of them, those that the hot turns go to.
    hot: usize,
    /// Turns that are counted.
    turns: usize,
    /// Bindings that the table grows to.
    grown: usize,
    /// Of them, those that expire.
    expiring: usize,
}

impl Sizes {
    /// The sizes that the bars are meant for; 3 GiB of memory.
    pub(crate) const FULL: Self = Self {
        live: 1_000_000,
        hot: 50_000,
        turns: 4_000_000,
        grown: 10_000_000,
        expiring: 1_000_000,
    };
    /// To see that it works; its figures say nothing.
    pub(crate) const QUICK: Self =
        Self { live: 20_000, hot: 1_000, turns: 40_000, grown: 50_000, expiring: 5_000 };
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    sizes: Sizes,
    /// Turns a second over all live bindings.
    pub(crate) cycles_per_s: f64,
    /// Over the hot ones.
    pub(crate) hot_cycles_per_s: f64,
    growing: Longest,
    expiring: Longest,
    keeping: Longest,
    /// Growth of the process a binding, in bytes; by the table's own count where there is no `/proc`.
    pub(crate) bytes_per_binding: f64,
    /// The same as the table counts it.
    counted_per_binding: f64,
}

/// A table, the fleet that it is asked about, and a clock of its own.
struct Bed {
    table: Table,
    workers: Vec<(WorkerId, Standing)>,
    now: u64,
}

/// Keyed digests, as far as the table can tell.
fn key(i: usize) -> SessionKey {
    let mut dice = SplitMix::new(i as u64);
    SessionKey(u128::from(dice.roll()) << 64 | u128::from(dice.roll()))
}

/// As a partition looks it up.
fn standing(workers: &[(WorkerId, Standing)], target: Target) -> Standing {
    let found = workers.binary_search_by_key(&target.worker, |w| w.0);
    found.map_or(Standing::Departed, |i| workers[i].1)
}

const REFUSED: &str = "the table refused a session for which there is room";

impl Bed {
    fn new(bindings: usize) -> Self {
        let rules = Rules {
            ttl: TTL,
            max_sessions: bindings,
            on_full: OnFull::RouteUnbound,
            max_parallel: 32,
            shared: false,
        };
        let workers = (0..WORKERS).map(|w| (WorkerId(w), Standing::Live)).collect();
        Self { table: Table::new(rules, 1), workers, now: 1_000_000 }
    }

    fn time(&self) -> Time {
        Time::from_micros(self.now)
    }

    /// One turn of session `i`, from resolve to the end of its stream. It runs at home, or where the
    /// number of its session says.
    fn turn(&mut self, i: usize, run: &mut impl Runner) -> Result<(), &'static str> {
        self.now += 1;
        let (now, key) = (self.time(), key(i));
        let Self { table, workers, .. } = self;
        let standing = |target| standing(workers, target);
        let resolved = run.call(|| table.resolve(now, key, Mode::Hard, false, None, standing));
        let Resolved::Hold(mut hold) = resolved else { return Err(REFUSED) };
        let elsewhere = Target { worker: WorkerId(i as u32 % WORKERS), rank: Some(DpRank(0)) };
        let target = hold.home().unwrap_or(elsewhere);
        run.call(|| table.selected(now, &mut hold, target, Plan::Home));
        let commit = run.call(|| table.commit(now, hold, target, false, standing));
        let lease = commit.lease.ok_or(REFUSED)?;
        run.call(|| table.end(now, lease));
        Ok(())
    }

    fn grow(&mut self, to: usize, run: &mut impl Runner) -> Result<(), &'static str> {
        (0..to).try_for_each(|i| self.turn(i, run))
    }
}

/// How a call is made: watched, or not.
trait Runner {
    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T;
}

struct Unwatched;

impl Runner for Unwatched {
    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        call()
    }
}

impl Runner for super::meter::Watch<'_> {
    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        Self::call(self, call)
    }
}

/// Measures; `say` is told what comes next.
///
/// # Errors
/// When the table refuses what it has room for.
pub(crate) fn measure(sizes: Sizes, say: &mut dyn FnMut(&str)) -> Result<Figures, &'static str> {
    let meter = Meter::new();
    let (mut growing, mut expiring, mut keeping) = (Vec::new(), Vec::new(), Vec::new());
    // Each table lives until all have grown: one that grows into what another has left behind would
    // measure how the allocator gives memory back, and would need no memory of its own.
    let (mut beds, mut grown, mut counted) = (Vec::new(), Vec::new(), 0);
    for round in 1..=ROUNDS {
        let mut say_round =
            |what: &str| say(&format!("affinity, round {round} of {ROUNDS}: {what}"));
        say_round(&format!("growing to {} bindings", sizes.grown));
        let before = resident();
        let mut bed = Bed::new(sizes.grown);
        let mut watch = meter.watch(BATCH);
        bed.grow(sizes.grown, &mut watch)?;
        growing.push(watch.longest());
        counted = bed.table.bytes() as u64;
        grown.extend(resident().zip(before).map(|(now, before)| now.saturating_sub(before)));

        say_round(&format!("a snapshot, then {} expire", sizes.expiring));
        keeping.push(bed.keep(&meter));
        expiring.push(bed.expire(sizes, &meter)?);
        beds.push(bed);
    }
    drop(beds);
    let mut rates = Vec::new();
    for among in [sizes.live, sizes.hot] {
        say(&format!("affinity: turns of {among} of {} live sessions", sizes.live));
        let mut bed = Bed::new(sizes.live);
        bed.grow(sizes.live, &mut Unwatched)?;
        let rounds: Result<Vec<f64>, _> =
            (0..ROUNDS).map(|seed| bed.rate(sizes.turns, among, seed as u64, &meter)).collect();
        rates.push(median(&rounds?).unwrap_or(0.0));
    }
    let a_binding = |bytes: u64| bytes as f64 / sizes.grown as f64;
    Ok(Figures {
        sizes,
        cycles_per_s: rates[0],
        hot_cycles_per_s: rates[1],
        growing: middle(&growing),
        expiring: middle(&expiring),
        keeping: middle(&keeping),
        // Where the kernel doesn't tell, the table's own count must do.
        bytes_per_binding: a_binding(median(&grown).unwrap_or(counted)),
        counted_per_binding: a_binding(counted),
    })
}

fn middle(rounds: &[Longest]) -> Longest {
    let of = |part: fn(&Longest) -> Duration| {
        median(&rounds.iter().map(part).collect::<Vec<_>>()).unwrap_or_default()
    };
    Longest { own: of(|l| l.own), raw: of(|l| l.raw) }
}

impl Bed {
    /// Turns a second of sessions taken at random from the first `among`.
    fn rate(
        &mut self,
        turns: usize,
        among: usize,
        seed: u64,
        meter: &Meter,
    ) -> Result<f64, &'static str> {
        let mut dice = SplitMix::new(seed);
        // All are in the caches that can be.
        for _ in 0..among.min(turns) {
            self.turn(dice.below(among), &mut Unwatched)?;
        }
        let mut result = Ok(());
        let took = meter.time(|| {
            result = (0..turns).try_for_each(|_| self.turn(dice.below(among), &mut Unwatched));
        });
        result?;
        Ok(turns as f64 / took.as_secs_f64())
    }

    /// A snapshot of all, in the parts in which the core makes one.
    fn keep(&self, meter: &Meter) -> Longest {
        let mut watch = meter.watch(1);
        let (now, mut cursor) = (self.time(), 0);
        while watch.call(|| {
            let mut part: Vec<Kept> = Vec::new();
            let more = self.table.walk(now, &mut cursor, WALK_AT_ONCE, |view| {
                part.push(Kept::of(now, &view));
            });
            black_box(part);
            more
        }) {}
        watch.longest()
    }

    /// The first `expiring` idle out, in the parts in which a partition drops them.
    fn expire(&mut self, sizes: Sizes, meter: &Meter) -> Result<Longest, &'static str> {
        // Each session has one more turn, in an order that is not the one in which they came: so what
        // idles out together does not lie together. The step has no divisor in common with the number.
        let step = ((sizes.grown / 5 * 3)..).find(|s| gcd(*s, sizes.grown) == 1).unwrap_or(1);
        let (mut i, first) = (0, self.now + 1);
        for _ in 0..sizes.grown {
            self.turn(i, &mut Unwatched)?;
            i = (i + step) % sizes.grown;
        }
        let due = Time::from_micros(first + sizes.expiring as u64 - 1) + TTL;
        let mut watch = meter.watch(1);
        let mut dropped = 0;
        while self.table.next_expiry().is_some_and(|at| at <= due) {
            dropped += watch.call(|| self.table.expire(due, EXPIRE_AT_ONCE));
        }
        if dropped == sizes.expiring {
            Ok(watch.longest())
        } else {
            Err("not those expired that were due")
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Figures {
    /// The longest call of all, in microseconds.
    pub(crate) fn longest_call_us(&self) -> f64 {
        let longest = self.growing.own.max(self.expiring.own).max(self.keeping.own);
        longest.as_secs_f64() * 1e6
    }

    /// The table that people read. Bars and goals are those of the project's benchmarks
    /// (`docs/benchmarks.md`), and hold for the full sizes.
    pub(crate) fn table(&self, bars: Bars) -> String {
        let Self { sizes, growing, expiring, keeping, .. } = self;
        let mut out = String::new();
        // Writing into a string can't fail.
        let mut line = |what: String, measured: String, bar: &str, goal: &str, note: String| {
            let (bar, goal) = (bars.of(bar), bars.of(goal));
            let line = format!("{what:<46}{measured:>12}{bar:>9}{goal:>9}  {note}");
            let _ = writeln!(out, "{}", line.trim_end());
        };
        let none = String::new;
        line("affinity, one thread".to_owned(), "measured".to_owned(), "bar", "goal", none());
        let rates = [
            (sizes.live, self.cycles_per_s, "2 M", "4 M"),
            (sizes.hot, self.hot_cycles_per_s, "4 M", "8 M"),
        ];
        for (among, rate, bar, goal) in rates {
            let rate = format!("{:.2} M", rate / 1e6);
            line(format!("turns a second, over {among} live sessions"), rate, bar, goal, none());
        }
        let us = |d: Duration| d.as_secs_f64() * 1e6;
        let calls = [
            (format!("growing to {}", sizes.grown), growing),
            (format!("expiring {}", sizes.expiring), expiring),
            (format!("a snapshot of {}", sizes.grown), keeping),
        ];
        for (what, longest) in calls {
            let own = format!("{:.0} us", us(longest.own));
            let raw = format!("{:.0} us with what it waited", us(longest.raw));
            line(format!("longest call, {what}"), own, "1000", "200", raw);
        }
        let bytes = format!("{:.1} B", self.bytes_per_binding);
        let counted = format!("{:.1} B by its own count", self.counted_per_binding);
        line(format!("memory a binding, at {}", sizes.grown), bytes, "120", "80", counted);
        out
    }
}
