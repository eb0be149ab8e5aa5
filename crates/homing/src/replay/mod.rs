//! `homing replay`: a request trace through chosen policies, in virtual time.
//!
//! * [`keys`]: the flags, which are the keys of a plan too, and what they come to;
//! * [`report`]: the table and the JSON object; [`html`]: the page, with its [`chart`]s;
//! * [`simulated`]: what was played, which stands in all of them.

mod chart;
mod html;
mod keys;
mod report;
mod simulated;

use crate::Failure;
use crate::progress::Progress;
use anyhow::Context;
use homing_sim::replay::{self, bounds};
use homing_sim::trace::{self, Trace};
use keys::Keys;
use report::{Report, Row};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The flags of `homing replay`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Play a request trace through chosen policies in virtual time: the same core that serves, in front of \
             simulated engines. Prints hit rate, TTFT, time per token and balance of each policy, beside what no \
             router could exceed",
    after_help = "Examples:\n  homing replay --trace conversation_trace.jsonl.gz --policy kv --policy \
                  least_loaded\n  homing replay --trace sessions.jsonl.zst --workers 8 --blocks 8192 --html \
                  report.html\n  homing replay --trace t.jsonl --fail w3@60s..90s --replicas 4 --event-delay \
                  50ms\n  homing replay --plan plan.toml --json\n\nTraces may be Mooncake's JSON lines, recorded \
                  agent sessions, Azure's CSV or homing.trace.v1, also as .gz or .zst; docs/replay.md says what \
                  the columns mean."
)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: Keys,
    /// A TOML file with these flags as keys (`workers = 8`, `policy = ["kv", "random"]`); flags come first
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads the trace, plays it once a policy, and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settled = args.keys.settle(args.plan.as_deref())?;
    let trace = open(&settled.trace, &settled.reading)?;
    let config = &settled.config;
    let mut rows = Vec::with_capacity(settled.policies.len());
    for chosen in &settled.policies {
        let name = &chosen.name;
        let index = settled.events.heard_by(chosen);
        let (core, baseline) = (chosen.core.clone(), chosen.baseline);
        let alone = baseline.is_some() && !settled.affinity_said;
        let affinity = config.affinity.filter(|_| !alone);
        let config = replay::Config { core, baseline, index, affinity, ..config.clone() };
        if !args.json {
            eprintln!("{name}: {} requests", trace.requests.len());
        }
        let mut progress = Progress::new(trace.requests.len() as u64, "requests", !args.json);
        let began = Instant::now();
        let outcome = replay::run(&trace, &config, &mut |done| progress.reach(done))
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let wall = began.elapsed();
        progress.finish();
        rows.push(Row { policy: name.clone(), outcome, wall });
    }
    let pooled = config.workers.saturating_mul(config.engine.cache.blocks as usize);
    let report = Report {
        name: settled.trace.file_name().map_or_else(String::new, |n| n.to_string_lossy().into()),
        best: bounds::best_hit_rate(&trace),
        pooled: bounds::pooled_hit_rate(&trace, pooled),
        trace: &trace,
        settled: &settled,
        rows,
    };
    if let Some(path) = &settled.html {
        std::fs::write(path, html::page(&report))
            .with_context(|| format!("can't write --html {}", path.display()))?;
    }
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

fn open(path: &Path, reading: &trace::Options) -> Result<Trace, Failure> {
    let file = File::open(path).map_err(|error| {
        Failure::Usage(format!("can't read --trace {}: {error}", path.display()))
    })?;
    trace::read(file, reading)
        .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()).into())
}
