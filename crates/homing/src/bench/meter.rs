//! What the parts of `homing bench` measure with: time that is ours, and memory; and the bars that they are held against.
//!
//! The machine is shared, so time that this thread stood waiting for a core is taken off: the kernel
//! counts it in the second field of `/proc/thread-self/schedstat`. Reading that takes as long as many of
//! the calls that are measured, so it is read around batches of them. Where there is no `/proc`, nothing
//! is taken off, and memory is not known.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Whether what is measured is held against the bars of `docs/benchmarks.md`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bars(pub(crate) bool);

impl Bars {
    /// A bar, where there are some.
    pub(crate) fn of(self, text: &str) -> &str {
        if self.0 { text } else { "" }
    }
}

/// The measure of one thread: the one that made it.
#[derive(Debug)]
pub(crate) struct Meter {
    schedstat: Option<File>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { schedstat: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// How long this thread has stood waiting for a core so far.
    fn waited(&self) -> Duration {
        let read = || {
            let mut text = [0; 96];
            let n = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
            let nanos = std::str::from_utf8(&text[..n]).ok()?.split(' ').nth(1)?.parse().ok()?;
            Some(Duration::from_nanos(nanos))
        };
        read().unwrap_or_default()
    }

    /// How long `work` takes, without the waiting.
    pub(crate) fn time(&self, work: impl FnOnce()) -> Duration {
        let waited = self.waited();
        let began = Instant::now();
        work();
        let wall = began.elapsed();
        wall.saturating_sub(self.waited() - waited)
    }

    /// Watches calls for the longest; waiting is taken off after each `batch` of them.
    pub(crate) fn watch(&self, batch: u32) -> Watch<'_> {
        let waited = self.waited();
        Watch {
            meter: self,
            batch,
            calls: 0,
            waited,
            of_batch: Duration::ZERO,
            longest: Longest::default(),
        }
    }
}

/// The longest call of many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Longest {
    /// Without the waiting of its batch.
    pub(crate) own: Duration,
    /// As a clock on the wall shows it.
    pub(crate) raw: Duration,
}

/// See [`Meter::watch`].
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    meter: &'a Meter,
    batch: u32,
    calls: u32,
    waited: Duration,
    of_batch: Duration,
    longest: Longest,
}

impl Watch<'_> {
    /// One call.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = call();
        self.of_batch = self.of_batch.max(began.elapsed());
        self.calls += 1;
        if self.calls >= self.batch {
            self.settle();
        }
        result
    }

    fn settle(&mut self) {
        let waited = self.meter.waited();
        let own = self.of_batch.saturating_sub(waited - self.waited);
        self.longest.own = self.longest.own.max(own);
        self.longest.raw = self.longest.raw.max(self.of_batch);
        (self.calls, self.waited, self.of_batch) = (0, waited, Duration::ZERO);
    }

    /// The longest so far.
    pub(crate) fn longest(mut self) -> Longest {
        self.settle();
        self.longest
    }
}

/// The median of what is there; of an even number the higher one.
pub(crate) fn median<T: Copy + PartialOrd>(of: &[T]) -> Option<T> {
    let mut sorted: Vec<T> = of.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}

/// Bytes of this process that lie in memory, as the kernel counts them.
pub(crate) fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
