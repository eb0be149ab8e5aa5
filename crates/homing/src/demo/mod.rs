//! `homing demo`: simulated engines, the gateway, and agent sessions played through it.
//!
//! * [`stage`]: the engines and the router, on free ports;
//! * [`play`]: the sessions, over HTTP, as clients would;
//! * [`report`]: what happened, and what random routing of the same turns would have got.

mod play;
mod report;
mod stage;

use crate::running::{self, Signals};
use crate::{Failure, logging};
use anyhow::{Context, anyhow};
use homing_runtime::settings::LogFormat;
use homing_sim::plan::Plan;
use homing_sim::serve::PromptCodec;
use homing_sim::text::Words;
use homing_sim::workload::{Params, Workload};
use report::{Figures, Report};
use stage::Stage;

/// The flags of `homing demo`.
#[derive(Debug, clap::Args)]
#[command(
    about = "See it work: starts four simulated engines and the gateway on free ports, plays agent \
             sessions through it, and prints cache hit rate, TTFT and turns per worker beside what \
             random routing of the same turns would have got",
    after_help = "Examples:\n  homing demo\n  homing demo --keep      # leaves it up; prints the URLs \
                  to try\n  homing demo --json"
)]
pub(crate) struct Args {
    /// Leave everything running, and print the URLs
    #[arg(long)]
    keep: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Seeds the sessions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Agent sessions
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// How much faster than real time the engines are, and the people between turns
    #[arg(long, value_name = "F", default_value_t = 30.0)]
    speedup: f64,
}

/// Plays, reports, and stops; or stays up with `--keep`.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if !(1e-3..=1e6).contains(&args.speedup) {
        return Err(Failure::Usage("--speedup must be 0.001 to 1000000".to_owned()));
    }
    let _logging = logging::start(LogFormat::Text, "error");
    running::block_on(async {
        let mut signals = Signals::new()?;
        let (stage, failed) = tokio::select! {
            done = demo(args) => done?,
            // What is on stage is struck by being dropped.
            () = signals.next() => return Err(anyhow!("stopped by a signal").into()),
        };
        if args.keep {
            stage.print_urls();
            signals.next().await;
        }
        stage.strike().await;
        match failed.first() {
            None => Ok(()),
            Some(first) => {
                Err(anyhow!("{} sessions broke off; the first: {first}", failed.len()).into())
            }
        }
    })
}

/// Plays and reports; gives what is still up, and what went wrong.
async fn demo(args: &Args) -> anyhow::Result<(Stage, Vec<String>)> {
    let codec = PromptCodec::builtin();
    let words = Words::of(&codec).context("measuring the words")?;
    let params = Params { sessions: args.sessions as usize, ..Params::default() };
    let workload = Workload::generate(&params, args.seed, &words);
    let plan = Plan::new(&workload, &words, &codec).context("planning the sessions")?;

    let stage = Stage::set(&plan, args).await?;
    if !args.json {
        eprintln!(
            "{} agent sessions, {} turns; {} engines with {} blocks each; {}x real time",
            workload.sessions.len(),
            workload.turns(),
            stage::ENGINES,
            stage.engine().cache.blocks,
            args.speedup,
        );
    }
    let played = play::all(&workload, stage.gateway(), args.speedup, !args.json).await?;
    let pages = stage.scrape().await?;
    let kv = Figures::from_engines(&pages, stage.per_worker(&played))?;
    let random = Figures::random(&plan, stage.engine(), args.seed)?;
    let report = Report {
        turns: workload.turns(),
        sessions: workload.sessions.len(),
        best_hit_rate: plan.best_hit_rate(stage.engine().cache.block_size),
        kv,
        random,
    };
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok((stage, played.failed))
}
