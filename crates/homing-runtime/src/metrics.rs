//! Every metric, in one place. What the core counts is read from it at each scrape; so nothing is
//! counted twice, and a removed worker leaves no series behind (F56).
//!
//! Names are those of `docs/metrics.md`; counters get their `_total` from the library.

mod asked;
mod verified;

pub use asked::Asked;

use crate::ingest::{FeedBook, FeedStats};
use crate::recorder::Recorder;
use crate::replication::Counts;
use crate::shell::Shell;
use homing_core::affinity::MoveReason;
use homing_core::affinity::Outcome;
use homing_core::ask::Failure;
use homing_core::core::WorkerView;
use homing_core::fleet::State;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, Weak};
use verified::Verified;

/// A request's labels. Bounded: models are names that the fleet serves (or `other`), endpoints are ours,
/// codes are ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The served name, or `other`.
    pub model: Arc<str>,
    /// Our name of the path.
    pub endpoint: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Our error code; empty where a worker answered.
    pub code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Seconds from a millisecond to half an hour: prefill of a short prompt to an agent's longest answer.
fn slow() -> Histogram {
    Histogram::new([
        0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
        1800.0,
    ])
}

/// Seconds from a microsecond to a second: what the router itself takes.
fn quick() -> Histogram {
    Histogram::new([
        1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1.0,
    ])
}

/// What is known of a worker's cache besides its blocks in device memory.
const TIERS: [(&str, &str); 3] = [
    ("index_host_blocks", "Blocks of a worker's host memory in the index"),
    ("index_disk_blocks", "Blocks of a worker's disk, or of a store it shares, in the index"),
    ("index_text_chunks", "Chunks of text that a worker was sent and is thought to have cached"),
];

const WRITTEN: &str = "written";
const FAILED: &str = "failed";

/// A failure as a label.
fn word(failure: Failure) -> &'static str {
    match failure {
        Failure::Refused => "refused",
        Failure::Unreachable => "unreachable",
        Failure::Broken => "broken",
        Failure::Overloaded(_) => "overloaded",
    }
}

/// The process's metrics.
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<ModelLabel, Histogram>,
    first_tokens: Family<ModelLabel, Histogram>,
    between_tokens: Family<ModelLabel, Histogram>,
    retries: Family<ReasonLabel, Counter>,
    /// `homing_selection_duration_seconds`: resolve, select and book, without waiting.
    pub selection: Histogram,
    /// `homing_index_lookup_seconds`.
    pub index_lookup: Histogram,
    /// `homing_queue_wait_seconds`.
    pub queue_wait: Histogram,
    /// `homing_predicted_cached_tokens_total`.
    pub predicted_cached_tokens: Counter,
    /// `homing_prompts_untokenized_total`: prompts routed without exact tokens, the pool being behind
    /// or the prompt beyond what can be rendered here.
    pub untokenized: Counter,
    /// `homing_affinity_ignored_keys_total`: session ids of other tools that were too long (R01, F06).
    pub ignored_keys: Counter,
    /// Requests with a session that a host refused before the core heard of them; part of
    /// `homing_affinity_resolutions_total{outcome="rejected"}`.
    pub rejected: Counter,
    snapshots: Family<OutcomeLabel, Counter>,
    asked: Family<OutcomeLabel, Counter>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics(..)")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    #[must_use]
    pub fn new() -> Self {
        let m = Self {
            registry: Mutex::new(Registry::with_prefix("homing")),
            requests: Family::default(),
            durations: Family::new_with_constructor(slow),
            first_tokens: Family::new_with_constructor(slow),
            between_tokens: Family::new_with_constructor(slow),
            retries: Family::default(),
            selection: quick(),
            index_lookup: quick(),
            queue_wait: slow(),
            predicted_cached_tokens: Counter::default(),
            untokenized: Counter::default(),
            ignored_keys: Counter::default(),
            rejected: Counter::default(),
            snapshots: Family::default(),
            asked: Family::default(),
        };
        // Seen before the first one, so that a rate has a start.
        let broken = [Failure::Refused, Failure::Unreachable, Failure::Broken];
        for reason in broken.into_iter().chain([Failure::Overloaded(None)]) {
            let _ = m.retries.get_or_create(&ReasonLabel { reason: word(reason) });
        }
        for outcome in [WRITTEN, FAILED] {
            let _ = m.snapshots.get_or_create(&OutcomeLabel { outcome });
        }
        for outcome in Asked::ALL.map(Asked::word) {
            let _ = m.asked.get_or_create(&OutcomeLabel { outcome });
        }
        {
            let mut r = m.registry.lock();
            r.register("requests", "Requests answered, by status", m.requests.clone());
            let help = "From a request's head to the end of its answer";
            r.register("request_duration_seconds", help, m.durations.clone());
            let help = "From a request's head to the first bytes of its answer";
            r.register("time_to_first_token_seconds", help, m.first_tokens.clone());
            let help = "Mean gap between the events of a stream, once a stream";
            r.register("inter_token_latency_seconds", help, m.between_tokens.clone());
            r.register("retries", "Requests moved to another worker", m.retries.clone());
            let help = "Resolve, select and book, without waiting in the queue";
            r.register("selection_duration_seconds", help, m.selection.clone());
            r.register("index_lookup_seconds", "Prefix lookup", m.index_lookup.clone());
            r.register("queue_wait_seconds", "Time in the admission queue", m.queue_wait.clone());
            let help = "Prompt tokens predicted to be reused";
            r.register("predicted_cached_tokens", help, m.predicted_cached_tokens.clone());
            let help = "Prompts routed without exact tokens though a tokenizer is configured";
            r.register("prompts_untokenized", help, m.untokenized.clone());
            let help = "Prompts whose tokens engines were asked for, by how that went";
            r.register("tokenize_questions", help, m.asked.clone());
            let help = "Session ids of other tools that were too long and count as absent";
            r.register("affinity_ignored_keys", help, m.ignored_keys.clone());
            let help = "Attempts to write the sessions to affinity.snapshot";
            r.register("affinity_snapshots", help, m.snapshots.clone());
            let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
            r.register("build", "The running binary", build);
        }
        m
    }

    /// Adds what the core and the feeds count.
    pub fn watch(shell: &Arc<Shell>, feeds: Arc<FeedBook>) {
        let watcher = Watcher { shell: Arc::downgrade(shell), feeds };
        let mut registry = shell.metrics().registry.lock();
        registry.register_collector(Box::new(watcher));
        registry.register_collector(Box::new(Verified(Arc::downgrade(shell))));
    }

    /// Adds the number of log lines that were lost, `homing_log_lines_dropped_total`: `dropped` asks
    /// whoever writes the log. Once a shell.
    pub fn watch_log_drops(shell: &Arc<Shell>, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
        let help = "Log lines lost because whoever reads the log was too slow";
        Self::count(shell, "log_lines_dropped", help, MetricType::Counter, dropped);
    }

    /// Adds the number of registrations that discoveries have refused, `homing_registrations_refused_total`, and how
    /// many discoveries can't be followed now, `homing_discovery_frozen`. Once a shell.
    pub fn watch_discovery(
        shell: &Arc<Shell>,
        refused: impl Fn() -> u64 + Send + Sync + 'static,
        frozen: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let help = "Registrations of workers that were refused";
        Self::count(shell, "registrations_refused", help, MetricType::Counter, refused);
        let help = "Discoveries that can't be followed: the workers that they have named stay";
        Self::count(shell, "discovery_frozen", help, MetricType::Gauge, frozen);
    }

    fn count(
        shell: &Arc<Shell>,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let count = Count { name, help, kind, read: Box::new(read) };
        shell.metrics().registry.lock().register_collector(Box::new(count));
    }

    /// Adds what became of the lines of `gateway.record`, `homing_trace_lines_total{outcome}`. Once a shell.
    pub fn watch_record(shell: &Arc<Shell>, recorder: Arc<Recorder>) {
        shell.metrics().registry.lock().register_collector(Box::new(TraceLines(recorder)));
    }

    /// Adds what is counted of what routers share. Once a shell.
    pub fn watch_replication(&self, counts: &Counts) {
        counts.register(&mut self.registry.lock());
    }

    /// A request has been answered; `seconds` from its head to its end.
    pub fn request(&self, labels: RequestLabels, seconds: f64) {
        let model = labels.model.clone();
        self.durations.get_or_create(&ModelLabel { model }).observe(seconds);
        self.requests.get_or_create(&labels).inc();
    }

    /// Its first bytes have come.
    pub fn first_token(&self, model: &Arc<str>, seconds: f64) {
        self.first_tokens.get_or_create(&ModelLabel { model: model.clone() }).observe(seconds);
    }

    /// The mean gap between the events of one stream, in seconds: observed once, at its end, so that a
    /// chunk costs nothing.
    pub fn token_gaps(&self, model: &Arc<str>, mean: f64) {
        self.between_tokens.get_or_create(&ModelLabel { model: model.clone() }).observe(mean);
    }

    /// A request was moved.
    pub fn retries(&self, failure: Failure) {
        self.retries.get_or_create(&ReasonLabel { reason: word(failure) }).inc();
    }

    /// The sessions were written to their file, or could not be.
    pub fn snapshot_written(&self, well: bool) {
        let outcome = if well { WRITTEN } else { FAILED };
        self.snapshots.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// An engine was to say a prompt's tokens.
    pub fn asked(&self, how: Asked) {
        self.asked.get_or_create(&OutcomeLabel { outcome: how.word() }).inc();
    }

    /// Prometheus' text form.
    ///
    /// # Errors
    /// Never in practice: writing into a string.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }
}

/// Reads another's number at each scrape.
struct Count {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Count").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Collector for Count {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let read: Series<'_> = (&[], (self.read)());
        family(&mut e, self.name, self.help, self.kind, [read])
    }
}

#[derive(Debug)]
struct TraceLines(Arc<Recorder>);

impl Collector for TraceLines {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests whose line in gateway.record was written, or lost";
        let (written, lost) = self.0.counts();
        let [written, lost]: [Series<'_>; 2] =
            [(&[("outcome", WRITTEN)], written), (&[("outcome", "lost")], lost)];
        family(&mut e, "trace_lines", help, MetricType::Counter, [written, lost])
    }
}

/// Reads the core and the feeds at each scrape.
#[derive(Debug)]
struct Watcher {
    shell: Weak<Shell>,
    feeds: Arc<FeedBook>,
}

type Series<'a> = (&'a [(&'a str, &'a str)], u64);

/// Writes one family of counters or gauges.
fn family<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    series: impl IntoIterator<Item = Series<'a>>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in series {
        // The library writes no empty label set as a family.
        if labels.is_empty() {
            match kind {
                MetricType::Counter => {
                    metric.encode_counter::<NoLabelSet, u64, u64>(&value, None)?
                }
                _ => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
            }
            continue;
        }
        let mut one = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => one.encode_counter::<NoLabelSet, u64, u64>(&value, None)?,
            _ => one.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
        }
    }
    Ok(())
}

impl Collector for Watcher {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(shell) = self.shell.upgrade() else { return Ok(()) };
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        let parts = shell.core().partitions();
        let sum = |f: &dyn Fn(&homing_core::partition::Stats) -> u64| {
            parts.iter().map(|p| f(&p.stats)).sum::<u64>()
        };
        let one = |value| [(&[] as &[(&str, &str)], value)];

        let outcomes: Vec<_> = Outcome::ALL
            .map(|o| {
                let here = if o == Outcome::Rejected { shell.metrics().rejected.get() } else { 0 };
                ([("outcome", o.word())], here + sum(&|s| s.outcomes[o as usize]))
            })
            .into();
        let help = "Requests by what happened to their session";
        let series = outcomes.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "affinity_resolutions", help, counter, series)?;
        let bindings = sum(&|s| s.bindings as u64);
        family(&mut e, "affinity_bindings", "Sessions bound", gauge, one(bindings))?;
        let leases = sum(&|s| s.leases as u64);
        family(&mut e, "affinity_leases", "Leases and bound holds", gauge, one(leases))?;
        let full = sum(&|s| s.table.full);
        let help = "Sessions routed unbound, the table being full";
        family(&mut e, "affinity_full_table_fallbacks", help, counter, one(full))?;
        let expired = sum(&|s| s.table.expired);
        let help = "Sessions that idled out";
        family(&mut e, "affinity_expired", help, counter, one(expired))?;
        let evicted = sum(&|s| s.table.evicted);
        let help = "Sessions that made room for others in a full table";
        family(&mut e, "affinity_evicted", help, counter, one(evicted))?;
        let help = "Requests that wait for another's selection: always 0, since selection never waits \
                    here; the series is kept for dashboards that know it";
        family(&mut e, "affinity_waiters", help, gauge, one(0))?;
        let moves: Vec<_> = MoveReason::ALL
            .map(|r| ([("reason", r.word())], sum(&|s| s.table.moves[r as usize])))
            .into();
        let series = moves.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "affinity_moves", "Sessions bound elsewhere than before", counter, series)?;
        let waiting = sum(&|s| s.waiting as u64);
        family(&mut e, "queue_depth", "Requests in the admission queue", gauge, one(waiting))?;

        let workers = shell.core().workers();
        let labels: Vec<_> = workers.iter().map(|w| [("worker", &*w.info.spec.name)]).collect();
        let each = |f: &dyn Fn(&WorkerView) -> u64| -> Vec<Series<'_>> {
            labels.iter().zip(&workers).map(|(l, w)| (&l[..], f(w))).collect()
        };
        let well = |w: &WorkerView| w.state == State::Ready && w.part.ailment.is_none();
        let help = "1 where a worker is ready, and neither stalled nor failing";
        family(&mut e, "worker_up", help, gauge, each(&|w| u64::from(well(w))))?;
        let active = each(&|w| u64::from(w.part.load.active_requests));
        let help = "Requests placed on a worker and not ended";
        family(&mut e, "worker_active_requests", help, gauge, active)?;
        let peers = each(&|w| u64::from(w.part.peers.active_requests));
        let help = "Requests that other routers have placed on a worker and that have not ended";
        family(&mut e, "worker_peer_requests", help, gauge, peers)?;
        let over = each(&|w| u64::from(w.part.shed));
        let help = "1 where a worker counts as overloaded: it has said so, or by [overload]";
        family(&mut e, "worker_overloaded", help, gauge, over)?;
        let foreign = each(&|w| w.part.reported.map_or(0, |said| u64::from(said.foreign)));
        let help = "Requests that a worker's engine reports beyond those placed here";
        family(&mut e, "worker_foreign_requests", help, gauge, foreign)?;
        let blocks = each(&|w| w.cached_blocks as u64);
        family(&mut e, "index_blocks", "Blocks of a worker's cache in the index", gauge, blocks)?;
        let tiers: [fn(&WorkerView) -> usize; 3] =
            [|w| w.host_blocks, |w| w.disk_blocks, |w| w.cached_chunks];
        for ((name, help), of) in TIERS.into_iter().zip(tiers) {
            family(&mut e, name, help, gauge, each(&|w| of(w) as u64))?;
        }
        let index = shell.core().index_use();
        let help = "Bytes that the index of all models takes";
        family(&mut e, "index_bytes", help, gauge, one(index.bytes as u64))?;
        let help = "Blocks dropped from the index to stay within index.memory";
        family(&mut e, "index_dropped_blocks", help, counter, one(index.dropped))?;

        let book = self.feeds.stats();
        let kinds: Vec<_> = book
            .iter()
            .flat_map(|(name, s)| {
                s.kinds().map(|(kind, n)| ([("worker", name.as_str()), ("kind", kind)], n))
            })
            .collect();
        let series = kinds.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "kv_events", "KV events, by what became of them", counter, series)?;
        let gaps: Vec<_> =
            book.iter().map(|(name, s)| ([("worker", name.as_str())], s.gaps)).collect();
        let series = gaps.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "kv_event_gaps", "Holes in a worker's event stream", counter, series)?;
        let replays: Vec<_> = book
            .iter()
            .flat_map(|(name, s)| {
                s.replays().map(|(how, n)| ([("worker", name.as_str()), ("outcome", how)], n))
            })
            .collect();
        let help = "Questions to a worker's replay socket, by what came of them";
        let series = replays.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "kv_event_replays", help, counter, series)?;
        let of_feeds = |f: &dyn Fn(&FeedStats) -> u64| -> Vec<_> {
            book.iter().map(|(name, s)| ([("worker", name.as_str())], f(s))).collect()
        };
        let lost = of_feeds(&|s| s.lost);
        let help = "Holes that no replay filled: what was known of the cache was forgotten";
        let series = lost.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "kv_event_gaps_lost", help, counter, series)?;
        let uncertain = of_feeds(&|s| s.uncertain);
        let help = "Ranks of a worker whose cache is being learned anew after a hole";
        let series = uncertain.iter().map(|(l, v)| (&l[..], *v));
        family(&mut e, "index_uncertain_ranks", help, gauge, series)
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
