//! What the demo came to: as the engines counted it, beside random routing of the same turns.

use super::stage::ENGINES;
use anyhow::Context;
use homing_core::dice::SplitMix;
use homing_sim::engine::EngineConfig;
use homing_sim::fleet::{self, FleetConfig, RandomRouter};
use homing_sim::plan::Plan;
use homing_wire::engine::Histogram;
use homing_wire::engine::metrics::Exposition;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One way of routing.
#[derive(Debug)]
pub(super) struct Figures {
    hit_rate: f64,
    ttft: Histogram,
    turns_per_worker: Vec<u64>,
}

impl Figures {
    /// As the engines measured it: their own counters, and TTFT in their own modelled time.
    pub(super) fn from_engines(
        pages: &[String],
        turns_per_worker: Vec<u64>,
    ) -> anyhow::Result<Self> {
        let (mut hits, mut queries) = (0.0, 0.0);
        let mut ttft = Histogram::default();
        for page in pages {
            let page = Exposition::parse(page);
            let sum = |name: &str| page.sum(name).with_context(|| format!("no {name}"));
            hits += sum("vllm:prefix_cache_hits_total")?;
            queries += sum("vllm:prefix_cache_queries_total")?;
            let name = "vllm:time_to_first_token_seconds";
            ttft.merge(&page.histogram(name).with_context(|| format!("no {name}"))?);
        }
        let hit_rate = if queries > 0.0 { hits / queries } else { 0.0 };
        Ok(Self { hit_rate, ttft, turns_per_worker })
    }

    /// The same turns over the same engines, sent anywhere, in virtual time.
    pub(super) fn random(plan: &Plan, engine: EngineConfig, seed: u64) -> anyhow::Result<Self> {
        let config = FleetConfig { engines: ENGINES, engine };
        let mut router = RandomRouter::new(ENGINES, SplitMix::new(seed));
        let report = fleet::run(&config, plan, &mut router).context("random routing")?;
        let fleet::Report { hit_rate, ttft, turns_per_worker, .. } = report;
        Ok(Self { hit_rate, ttft, turns_per_worker })
    }

    /// A quantile in milliseconds; `None` if no turn came to its first token.
    fn ttft_ms(&self, q: f64) -> Option<f64> {
        self.ttft.quantile(q).map(|seconds| seconds * 1e3)
    }

    fn json(&self) -> Value {
        let ttft_ms = |q| self.ttft_ms(q).map(|ms| rounded(ms, 1));
        json!({
            "hit_rate": rounded(self.hit_rate, 4),
            "ttft_ms": {"p50": ttft_ms(0.5), "p95": ttft_ms(0.95)},
            "turns_per_worker": self.turns_per_worker,
        })
    }
}

fn rounded(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

/// All of it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) turns: usize,
    pub(super) sessions: usize,
    pub(super) best_hit_rate: f64,
    pub(super) kv: Figures,
    pub(super) random: Figures,
}

impl Report {
    /// The object of `--json`.
    pub(super) fn json(&self) -> Value {
        json!({
            "turns": self.turns,
            "sessions": self.sessions,
            "best_hit_rate": rounded(self.best_hit_rate, 4),
            "policies": {"kv": self.kv.json(), "random": self.random.json()},
        })
    }

    /// The table that people read.
    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "\n{} turns of {} sessions, in the engines' own time\n\n{:<22}{:>15}{:>12}{:>12}   {}\n",
            self.turns,
            self.sessions,
            "",
            "cache hit rate",
            "TTFT p50",
            "TTFT p95",
            "turns per worker"
        );
        for (name, f) in [("homing (kv, sessions)", &self.kv), ("random, same turns", &self.random)]
        {
            let turns: Vec<_> = f.turns_per_worker.iter().map(u64::to_string).collect();
            let ttft = |q| f.ttft_ms(q).map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
            // Writing into a string can't fail.
            let _ = writeln!(
                out,
                "{name:<22}{:>13.1} %{:>9} ms{:>9} ms   {}",
                f.hit_rate * 100.0,
                ttft(0.5),
                ttft(0.95),
                turns.join(" ")
            );
        }
        let best = self.best_hit_rate * 100.0;
        let _ = writeln!(out, "{:<22}{best:>13.1} %", "best possible");
        out
    }
}
