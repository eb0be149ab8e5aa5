//! `homing mock`: one simulated engine behind the OpenAI API.

use crate::running::{self, Signals};
use crate::{Failure, etcd, logging};
use anyhow::Context;
use clap::builder::PossibleValuesParser;
use homing_backends::etcd::Claim;
use homing_runtime::settings::LogFormat;
use homing_sim::engine::{CacheConfig, EngineConfig};
use homing_sim::serve::{Faults, Groups, Mock, MockConfig};
use homing_wire::kv_events::{Hashes, LAYOUTS, Layout};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The flags of `homing mock`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run one simulated engine behind the OpenAI API: paged KV cache with prefix reuse, \
             continuous batching, KV events over ZMQ in vLLM's wire format, /metrics under vLLM's names",
    after_help = "Example:\n  homing mock --listen 127.0.0.1:8001 --blocks 2048 --speedup 10\n  \
                  curl -s http://127.0.0.1:8001/kv_event_sources"
)]
pub(crate) struct Args {
    /// Where it serves; port 0 takes a free one, and the first line printed says which
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// The model's name
    #[arg(long, value_name = "NAME", default_value = "homing-mock")]
    model: String,
    /// A folder with tokenizer.json and chat_template.jinja; default: Homing's own (assets/tokenizer)
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<PathBuf>,
    /// Blocks of the KV cache
    #[arg(long, value_name = "N", default_value_t = CacheConfig::default().blocks,
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    blocks: u32,
    /// Tokens per block
    #[arg(long, value_name = "N", default_value_t = CacheConfig::default().block_size,
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    block_size: u32,
    /// Data-parallel ranks, each with a cache and a feed of its own; `x-data-parallel-rank` chooses one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    dp_size: u16,
    /// How much faster than real time it is
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    speedup: f64,
    /// Like an engine started without any extra flag: no KV events, no cached tokens in `usage`; so it
    /// goes with no --kv-... flag
    #[arg(long, conflicts_with_all = ["kv_endpoint", "kv_connect", "kv_topic", "kv_replay", "kv_buffer", "kv_drop_every",
          "kv_layout", "kv_hashes", "kv_groups"])]
    stock: bool,
    /// Where it listens and publishes KV events; port 0 takes a free one. Rank N is N ports above
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:0")]
    kv_endpoint: String,
    /// Instead: which router's port it connects to with its KV events, as vLLM does where its endpoint names one
    /// address (the worker has `kv_events = "tcp://*:PORT"` there). Rank N's is N ports above
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "kv_endpoint")]
    kv_connect: Option<String>,
    /// The topic of its KV events
    #[arg(long, value_name = "TOPIC", default_value = "kv-events")]
    kv_topic: String,
    /// Where it answers requests for a replay of its KV events; port 0 takes a free one, "" is nowhere.
    /// Rank N is N ports above
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:0")]
    kv_replay: String,
    /// Batches of KV events that it keeps for replays
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    kv_buffer: u32,
    /// Loses every Nth batch of KV events on its way out, to try what that does; 0 loses none
    #[arg(long, value_name = "N", default_value_t = 0)]
    kv_drop_every: u64,
    /// The engine version whose KV events they are: the first that spells them so
    #[arg(long, value_name = "VERSION", default_value = Layout::latest().name,
          value_parser = PossibleValuesParser::new(LAYOUTS.iter().map(|layout| layout.name)))]
    kv_layout: String,
    /// How they write block hashes: as numbers, or as digests in bytes (vLLM from 0.10.2 on)
    #[arg(long, value_name = "FORM", default_value = "int", value_parser = ["int", "bytes"])]
    kv_hashes: String,
    /// Which groups they are about: one, or a hybrid model's two, of which the first is a sliding window
    /// (vLLM from 0.20 on)
    #[arg(long, value_name = "GROUPS", default_value = "single", value_parser = ["single", "hybrid"])]
    kv_groups: String,
    /// Hang as engines do: requests are taken, the heads of their streams are sent, and nothing more comes;
    /// /health is green, and /metrics says that nothing runs
    #[arg(long)]
    hang: bool,
    /// At SIGTERM, refuse connections and leave open streams without another byte, for 5 s
    #[arg(long)]
    mute_on_term: bool,
    /// At SIGTERM, stay green and answer each new request 500, for 5 s
    #[arg(long, conflicts_with = "mute_on_term")]
    green_drain: bool,
    /// Answer every Nth request 500 at once; 1 fails all, 0 none
    #[arg(long, value_name = "N", default_value_t = 0)]
    fail: u64,
    /// The key that /v1/.. asks for, as vLLM's --api-key
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Seeds the names of its blocks
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    etcd: etcd::Flags,
}

/// How often it says in etcd that it is there.
const REGISTER: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let _logging = logging::start(LogFormat::Text, "warn,homing::etcd=info");
    let defaults = MockConfig::default();
    let config = MockConfig {
        listen: args.listen,
        model: args.model.clone(),
        tokenizer: args.tokenizer.clone(),
        engine: EngineConfig {
            cache: CacheConfig {
                block_size: args.block_size,
                blocks: args.blocks,
                seed: args.seed,
            },
            ..defaults.engine
        },
        dp_size: args.dp_size,
        speedup: args.speedup,
        stock: args.stock,
        kv_endpoint: args.kv_connect.as_ref().unwrap_or(&args.kv_endpoint).clone(),
        kv_connects: args.kv_connect.is_some(),
        kv_topic: args.kv_topic.clone(),
        kv_replay: Some(args.kv_replay.clone()).filter(|endpoint| !endpoint.is_empty()),
        kv_buffer: args.kv_buffer as usize,
        kv_drop_every: args.kv_drop_every,
        kv_layout: Layout::named(&args.kv_layout).unwrap_or(defaults.kv_layout),
        kv_hashes: if args.kv_hashes == "bytes" { Hashes::Bytes } else { Hashes::Int },
        kv_groups: if args.kv_groups == "hybrid" { Groups::Hybrid } else { Groups::Single },
        faults: Faults {
            hang: args.hang,
            mute_on_term: args.mute_on_term,
            green_drain: args.green_drain,
            fail_every: args.fail,
        },
        api_key: args.api_key.clone(),
        ..defaults
    };
    if !(1e-3..=1e6).contains(&args.speedup) || args.model.is_empty() {
        let text = "--speedup must be 0.001 to 1000000, and --model must have a name";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mock = Mock::bind(config).context("the mock engine can't start")?;
    running::say(format_args!("listening on {}", mock.url()));
    running::block_on(async {
        let mut signals = Signals::new()?;
        let id = mock.url().split("://").last().unwrap_or_default().to_owned();
        let worker = json!({"id": id, "url": mock.url(), "dp_size": args.dp_size});
        // Whoever is registered at this place was here before, and is no more.
        let registration = args.etcd.registration(&worker, REGISTER, Claim::Anew).await?;
        let stop = async move {
            let Some(mut registration) = registration else { return signals.next().await };
            let keep = async {
                loop {
                    registration.keep().await;
                    tokio::time::sleep(REGISTER).await;
                }
            };
            tokio::select! {
                () = keep => {}
                () = signals.next() => {}
            }
            registration.withdraw().await;
        };
        mock.run(stop).await.context("the mock engine broke off").map_err(Failure::from)
    })
}
