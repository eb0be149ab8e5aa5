//! What the replays came to, as a table for people and as an object for scripts.

use super::keys::Settled;
use super::simulated;
use homing_sim::replay::{Outcome, Quantiles};
use homing_sim::trace::Trace;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// One policy's run.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) policy: String,
    pub(super) outcome: Outcome,
    /// How long the run took here.
    pub(super) wall: Duration,
}

/// All of them.
pub(super) struct Report<'a> {
    /// The trace's file name.
    pub(super) name: String,
    pub(super) trace: &'a Trace,
    pub(super) settled: &'a Settled,
    pub(super) best: f64,
    pub(super) pooled: f64,
    pub(super) rows: Vec<Row>,
}

/// A quantile of microseconds, or of nanoseconds, in milliseconds.
pub(super) fn ms(values: &Quantiles, q: f64, per_ms: f64) -> f64 {
    values.at(q) as f64 / per_ms
}

/// Microseconds in a millisecond.
pub(super) const US: f64 = 1e3;
/// Nanoseconds in a millisecond.
pub(super) const NS: f64 = 1e6;

fn rounded(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

impl Row {
    fn json(&self) -> Value {
        let o = &self.outcome;
        let ttft = |q| rounded(ms(&o.ttft_us, q, US), 2);
        json!({
            "hit_rate": rounded(o.hit_rate(), 4),
            "ttft_ms": {
                "mean": rounded(o.ttft_us.mean() / US, 2),
                "p50": ttft(0.5), "p95": ttft(0.95), "p99": ttft(0.99),
            },
            "tpot_ms": {
                "mean": rounded(o.tpot_ns.mean() / NS, 3),
                "p99": rounded(ms(&o.tpot_ns, 0.99, NS), 3),
            },
            "imbalance": rounded(o.imbalance(), 4),
            "wall_s": rounded(self.wall.as_secs_f64(), 3),
            "utilization": rounded(o.utilization(), 4),
            "answered": o.answered,
            "refused": o.refused,
            "broken": o.broken,
            "preemptions": o.preemptions,
            "virtual_s": rounded(o.lasted.as_secs_f64(), 3),
        })
    }
}

impl Report<'_> {
    /// The object of `--json`.
    pub(super) fn json(&self) -> Value {
        let policies: Map<String, Value> =
            self.rows.iter().map(|row| (row.policy.clone(), row.json())).collect();
        let config = &self.settled.config;
        json!({
            "trace": self.name,
            "format": self.trace.format.word(),
            "requests": self.trace.requests.len(),
            "sessions": self.trace.sessions,
            "prompt_blocks": self.trace.prompt_blocks,
            "workers": config.workers,
            "blocks": config.engine.cache.blocks,
            "block_size": self.trace.block_size(),
            "seed": config.seed,
            "simulated": simulated::json(self.settled),
            "best_hit_rate": rounded(self.best, 4),
            "pooled_hit_rate": rounded(self.pooled, 4),
            "policies": policies,
        })
    }

    /// What was replayed, in a line.
    pub(super) fn title(&self) -> String {
        let (trace, config) = (self.trace, &self.settled.config);
        let sessions = match trace.sessions {
            0 => String::new(),
            n => format!(" of {n} sessions"),
        };
        format!(
            "{} ({}): {} requests{sessions}, {} prompt blocks of {}; {} workers x {} blocks, {}",
            self.name,
            trace.format.word(),
            trace.requests.len(),
            trace.prompt_blocks,
            trace.block_size(),
            config.workers,
            config.engine.cache.blocks,
            simulated::text(self.settled),
        )
    }

    /// The table that people read.
    pub(super) fn table(&self) -> String {
        let mut out = format!("\n{}\n\n", self.title());
        // Writing into a string can't fail.
        let _ = writeln!(
            out,
            "{:<16}{:>9}  {:>10}{:>9}{:>9}{:>9}  {:>10}{:>9}  {:>9}{:>6}{:>9}",
            "",
            "hit rate",
            "TTFT mean",
            "p50",
            "p95",
            "p99",
            "TPOT mean",
            "p99",
            "imbalance",
            "busy",
            "took"
        );
        for row in &self.rows {
            let o = &row.outcome;
            let ttft = |q| ms(&o.ttft_us, q, US);
            let _ = writeln!(
                out,
                "{:<16}{:>7.1} %  {:>10.0}{:>9.0}{:>9.0}{:>9.0}  {:>10.2}{:>9.2}  {:>9.2}{:>4.0} %{:>7.1} s",
                row.policy,
                o.hit_rate() * 100.0,
                o.ttft_us.mean() / US,
                ttft(0.5),
                ttft(0.95),
                ttft(0.99),
                o.tpot_ns.mean() / NS,
                ms(&o.tpot_ns, 0.99, NS),
                o.imbalance(),
                o.utilization() * 100.0,
                row.wall.as_secs_f64(),
            );
        }
        let _ = writeln!(out, "{:<16}{:>7.1} %", "one pooled LRU", self.pooled * 100.0);
        let _ = writeln!(out, "{:<16}{:>7.1} %", "best possible", self.best * 100.0);
        let _ = writeln!(out, "\nTimes in ms, in the engines' own time.");
        for row in &self.rows {
            let o = &row.outcome;
            let notes =
                [(o.refused, "refused"), (o.broken, "broken off"), (o.preemptions, "preempted")];
            let notes: Vec<_> =
                notes.iter().filter(|n| n.0 > 0).map(|(n, what)| format!("{n} {what}")).collect();
            if !notes.is_empty() {
                let _ = writeln!(out, "{}: {}", row.policy, notes.join(", "));
            }
        }
        out
    }
}
