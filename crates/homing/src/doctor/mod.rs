//! `homing doctor`: looks at a router and its engines, and says what is wrong or could be better, why that
//! matters, and the exact flag or setting that mends it.
//!
//! In three steps that know nothing of each other: `gather` asks, and fills `facts`; `judge` makes findings of
//! facts; what is here prints them.

mod facts;
mod finding;
mod gather;
mod judge;
mod tokens;

use crate::sources::load;
use crate::{Failure, running};
use facts::{Facts, TurnedOff, Written};
use finding::{Finding, Severity, is_wrong};
use gather::{Named, Wanted};
use homing_runtime::settings::{IndexSource, Settings, Verify, WorkerUrl};
use homing_runtime::upstream::Link;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tokens::Tokenizers;

/// The flags of `homing doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It only reads; nothing is sent that costs an engine work, but with --probe.\n\nExamples:\n  \
                  homing doctor\n  homing doctor --config homing.toml --probe\n  homing doctor --worker \
                  http://10.0.0.1:8000      # before there is a router\n  homing doctor --admin \
                  http://127.0.0.1:9464 --json\n\nExit codes: 0 nothing is wrong (notes are no fault), 1 \
                  something is broken or missing, 2 bad usage or configuration."
)]
pub(crate) struct Args {
    /// The router's admin API [default: admin.listen of --config, else http://127.0.0.1:9464; with --worker
    /// alone no router is asked]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// An engine's base URL; repeat it for each engine that the router doesn't know
    #[arg(long = "worker", value_name = "URL")]
    workers: Vec<String>,
    /// The router's configuration file: its tokenizers and templates are compared with the engines'
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask each engine for one or two completions of one token, to see whether it says what was cached
    #[arg(long)]
    probe: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks, judges, prints.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = match &args.config {
        Some(path) => Some(load(Some(path), Vec::new())?),
        None => None,
    };
    let wanted = wanted(args, settings.as_ref())?;
    let models = settings.as_ref().map(|settings| settings.models.as_slice());
    let tokenizers = Arc::new(models.map_or_else(Tokenizers::default, Tokenizers::load));
    let facts = running::block_on(async { Ok(gather::gather(wanted, tokenizers).await) })?;
    let findings = judge::judge(&facts);
    let unseen = unseen(args);
    if args.json {
        println!("{}", json_of(&facts, &findings, &unseen));
    } else {
        print!("{}", text_of(&facts, &findings, &unseen));
    }
    if is_wrong(&findings) { Err(Failure::Said) } else { Ok(()) }
}

/// Whom to ask.
fn wanted(args: &Args, settings: Option<&Settings>) -> Result<Wanted, Failure> {
    let url = |text: &str, flag: &str| -> Result<WorkerUrl, Failure> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let wrong =
            |error| Failure::Usage(format!("{flag} {text:?} {error}; write e.g. http://host:9464"));
        full.parse().map_err(wrong)
    };
    let admin = match (&args.admin, settings) {
        (Some(text), _) => Some(url(text, "--admin")?),
        (None, Some(settings)) => Some(url(&settings.admin.listen.to_string(), "admin.listen")?),
        (None, None) if args.workers.is_empty() => Some(url("127.0.0.1:9464", "--admin")?),
        (None, None) => None,
    };
    let mut engines = Vec::new();
    for text in &args.workers {
        engines.push(Named { link: Link::plain(url(text, "--worker")?), written: None });
    }
    let configured = settings.map_or(&[][..], |settings| &settings.workers);
    for w in configured {
        let written = Written {
            kv_events: w.kv_events.clone(),
            kv_replay: w.kv_replay.clone(),
            dp_size: w.dp_size.map(u32::from),
        };
        let link = Link::of(w).map_err(|error| Failure::Usage(error.to_string()))?;
        engines.push(Named { link, written: Some((w.id.clone(), written)) });
    }
    let turned_off = settings.map_or_else(TurnedOff::default, |settings| TurnedOff {
        source: settings.index.source == IndexSource::Off,
        verify: settings.index.verify == Verify::Off,
    });
    let replication = settings.and_then(|settings| settings.replication.as_ref());
    let shared_over = replication.map(gather::configured);
    Ok(Wanted { admin, engines, turned_off, shared_over, probe: args.probe })
}

/// What was not looked at, and how it could be.
fn unseen(args: &Args) -> Vec<&'static str> {
    let mut unseen = Vec::new();
    if args.config.is_none() {
        unseen.push("tokenizers and chat templates: give --config FILE");
    }
    if !args.probe {
        unseen.push("whether engines say what was cached: give --probe");
    }
    unseen
}

fn json_of(facts: &Facts, findings: &[Finding], unseen: &[&str]) -> Value {
    let router = facts.router.as_ref();
    json!({
        "router": router.map(|router| &router.url),
        "engines": facts.engines.iter().map(|engine| &engine.name).collect::<Vec<_>>(),
        "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        "not_looked_at": unseen,
    })
}

fn text_of(facts: &Facts, findings: &[Finding], unseen: &[&str]) -> String {
    let mut text = String::new();
    for finding in findings {
        text += &format!("{finding}\n\n");
    }
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let (broken, missing) = (count(Severity::Broken), count(Severity::Missing));
    // Who doesn't answer was not looked at.
    let heard = facts.router.as_ref().is_some_and(|router| router.unreachable.is_none());
    let router = if heard { "the router" } else { "no router" };
    let engines = facts.engines.iter().filter(|engine| engine.unreachable.is_none()).count();
    let looked = format!("looked at {router} and {engines} engine(s)");
    text += &match broken + missing {
        0 => format!("nothing is wrong; {looked}\n"),
        _ => format!("{broken} broken, {missing} missing; {looked}\n"),
    };
    for what in unseen {
        text += &format!("not looked at: {what}\n");
    }
    text
}
