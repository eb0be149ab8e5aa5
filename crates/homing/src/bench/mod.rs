//! `homing bench`: in-process speeds on this machine.
//!
//! * [`affinity`]: the table of sessions;
//! * [`index`]: what each worker has cached;
//! * [`select`]: decisions, and what their records take;
//! * [`replication`]: what sharing costs, and how soon a router that is new knows all;
//! * [`meter`]: time without waiting for a core, and memory.
//!
//! Speed is reported and never judged here: the exit code says only whether it could be measured.

mod affinity;
mod index;
mod meter;
mod replication;
mod select;

use crate::Failure;
use affinity::{Figures, Sizes};
use anyhow::anyhow;
use clap::ValueEnum;
use indicatif::ProgressBar;
use meter::Bars;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, stderr};

/// The flags of `homing bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The full sizes take about 3 GiB of memory and a minute; time that the thread waits for a core \
                  is not counted.\n\nExamples:\n  homing bench\n  homing bench --only affinity --json\n  \
                  homing bench --quick   # small sizes: to see that it runs\n  homing bench --only replication --nats nats://127.0.0.1:4222"
)]
pub(crate) struct Args {
    /// Only this part (repeatable); all without it
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Small sizes, to see that it runs: the figures say nothing, and no bars stand beside them
    #[arg(long)]
    quick: bool,
    /// `replication`: over this NATS server too, such as nats://127.0.0.1:4222; with JetStream
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// `replication`: over this etcd too, such as http://127.0.0.1:2379
    #[arg(long, value_name = "URL")]
    etcd: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Sessions: turns a second, longest call, memory
    Affinity,
    /// The prefix index: look-ups, events a second, memory
    Index,
    /// Decisions among 8, 64 and 1,024 targets, and what the record of one takes
    Select,
    /// Sharing between routers: CPU, messages, bytes, and how soon one that is new knows all
    Replication,
}

/// Measures, and prints a table or JSON.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if cfg!(debug_assertions) {
        eprintln!(
            "homing: this is a debug build; build with --release for figures that mean something"
        );
    }
    let (mut object, mut tables) = (Map::new(), String::new());
    // Those are the full sizes'.
    let bars = Bars(!args.quick);
    let wanted = |part: &Part| args.only.is_empty() || args.only.contains(part);
    let servers = replication::Servers { nats: args.nats.clone(), etcd: args.etcd.clone() };
    if wanted(&Part::Replication) {
        // It comes last, after minutes.
        servers.look_at().map_err(|why| anyhow!("replication can't be measured over {why}"))?;
    }
    for part in Part::value_variants().iter().filter(|part| wanted(part)) {
        match part {
            Part::Affinity => {
                let sizes = if args.quick { Sizes::QUICK } else { Sizes::FULL };
                let progress = Progress::new(!args.json);
                let figures = affinity::measure(sizes, &mut |what| progress.say(what));
                drop(progress);
                let figures =
                    figures.map_err(|why| anyhow!("measuring the affinity table: {why}"))?;
                object.insert("affinity".to_owned(), json_of(&figures));
                tables += &figures.table(bars);
            }
            Part::Index => {
                let sizes = if args.quick { index::Sizes::QUICK } else { index::Sizes::FULL };
                let progress = Progress::new(!args.json);
                let figures = index::measure(sizes, &mut |what| progress.say(what));
                drop(progress);
                object.insert("index".to_owned(), figures.json());
                tables += &figures.table(bars);
            }
            Part::Select => {
                let sizes = if args.quick { select::Sizes::QUICK } else { select::Sizes::FULL };
                let progress = Progress::new(!args.json);
                let figures = select::measure(sizes, &mut |what| progress.say(what));
                drop(progress);
                let figures = figures.map_err(|why| anyhow!("measuring decisions: {why}"))?;
                figures.put(&mut object);
                tables += &figures.table();
            }
            Part::Replication => {
                use replication::{Sizes, measure};
                let sizes = if args.quick { Sizes::QUICK } else { Sizes::FULL };
                let progress = Progress::new(!args.json);
                let figures = measure(sizes, &servers, &mut |what| progress.say(what));
                drop(progress);
                let figures = figures.map_err(|why| anyhow!("measuring replication: {why}"))?;
                object.insert("replication".to_owned(), figures.json());
                tables += &figures.table(bars);
            }
        }
    }
    if args.json {
        println!("{}", Value::Object(object));
    } else {
        print!("{tables}");
    }
    Ok(())
}

fn json_of(figures: &Figures) -> Value {
    let rounded = |x: f64, scale: f64| (x * scale).round() / scale;
    json!({
        "cycles_per_s": rounded(figures.cycles_per_s, 1.0),
        "hot_cycles_per_s": rounded(figures.hot_cycles_per_s, 1.0),
        "longest_call_us": rounded(figures.longest_call_us(), 10.0),
        "bytes_per_binding": rounded(figures.bytes_per_binding, 10.0),
    })
}

/// What is being measured: a spinner on a terminal, lines elsewhere.
struct Progress {
    spinner: Option<ProgressBar>,
    lines: bool,
}

impl Progress {
    fn new(shown: bool) -> Self {
        let terminal = stderr().is_terminal();
        let spinner = (shown && terminal).then(ProgressBar::new_spinner);
        Self { spinner, lines: shown && !terminal }
    }

    fn say(&self, what: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(what.to_owned());
            // No steady tick: its thread would run beside what is measured.
            spinner.tick();
        }
        if self.lines {
            eprintln!("{what}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
