//! Replays of the shared traces, held to what they came to before (`testdata/replays.json`). A change that moves a figure
//! is seen here first; one that is meant is written down by `HOMING_BLESS=1 cargo test -p homing-sim snapshots`.

use super::*;
use crate::engine::CacheConfig;
use crate::trace::{self, Trace};
use homing_core::settings::{PolicyKind, Soft};
use serde_json::{Map, Value, json};

const STORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/replays.json");
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/traces/");
/// Name, file, requests, blocks per worker, rate, affinity (Soft ones weigh).
type Run = (&'static str, &'static str, usize, u32, f64, Option<Mode>);
const RUNS: [Run; 3] = [
    ("mooncake", "mooncake/arxiv_mooncake_trace.first1000.jsonl.gz", 600, 8192, 0.5, None),
    ("fleet", "claude-code/derived_fleet_60min.jsonl.zst", 500, 8192, 1.0, Some(Mode::Soft)),
    ("azure", "azure/AzureLLMInferenceTrace_conv.csv.gz", 1000, 8192, 2.0, None),
];
const POLICIES: [(&str, PolicyKind); 4] = [
    ("latency", PolicyKind::Latency),
    ("kv", PolicyKind::Kv),
    ("least_loaded", PolicyKind::LeastLoaded),
    ("round_robin", PolicyKind::RoundRobin),
];

fn open(file: &str, limit: usize) -> Option<Trace> {
    let Ok(file) = std::fs::File::open(format!("{TRACES}{file}")) else {
        eprintln!("skipped: there is no {TRACES}{file}");
        return None;
    };
    Some(trace::read(file, &trace::Options { limit, ..Default::default() }).unwrap())
}

fn figures(trace: &Trace, policy: PolicyKind, blocks: u32, rate: f64, mode: Option<Mode>) -> Value {
    let cache = CacheConfig { blocks, ..CacheConfig::default() };
    let engine = EngineConfig { cache, max_model_len: usize::MAX, ..EngineConfig::default() };
    let mut core = CoreSettings { policy, ..CoreSettings::default() };
    core.affinity.soft = Soft::Weigh;
    let config = Config {
        workers: 8,
        engine,
        replicas: 1,
        sharing: Sharing::default(),
        core,
        baseline: None,
        affinity: mode,
        rate_scale: rate,
        index: matches!(policy, PolicyKind::Kv | PolicyKind::Latency),
        event_delay: Duration::ZERO,
        outages: Vec::new(),
        seed: 1,
    };
    let it = run(trace, &config, &mut |_| {}).unwrap();
    assert_eq!(it.answered, trace.requests.len() as u64);
    let round = |value: f64, to: f64| (value / to).round() * to;
    json!({
        "hit_rate": round(it.hit_rate(), 1e-4),
        "ttft_ms": round(it.ttft_us.mean() / 1e3, 1.0),
        "tpot_ms": round(it.tpot_ns.mean() / 1e6, 1e-3),
    })
}

#[test]
fn snapshots_of_the_shared_traces() {
    let mut found = Map::new();
    for (name, file, limit, blocks, rate, mode) in RUNS {
        let Some(trace) = open(file, limit) else { return };
        let rows = POLICIES
            .map(|(word, policy)| (word.to_owned(), figures(&trace, policy, blocks, rate, mode)));
        found.insert(name.to_owned(), Value::Object(rows.into_iter().collect()));
    }
    let found = Value::Object(found);
    if std::env::var_os("HOMING_BLESS").is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap();
        std::fs::write(STORED, text + "\n").unwrap();
        return;
    }
    let stored: Value = serde_json::from_str(&std::fs::read_to_string(STORED).unwrap()).unwrap();
    for (name, ..) in RUNS {
        for (policy, _) in POLICIES {
            for (figure, slack) in [("hit_rate", 0.003), ("ttft_ms", 0.02), ("tpot_ms", 0.02)] {
                let of = |all: &Value| all[name][policy][figure].as_f64().unwrap();
                // Speeds are learned by logarithms, whose last digits are the platform's.
                let (now, before) = (of(&found), of(&stored));
                let apart = (now - before).abs() / before.max(0.1);
                assert!(apart <= slack, "{name}, {policy}: {figure} is {now}, was {before}");
            }
        }
    }
    // And what the whole is for.
    let ttft = |name: &str, policy: &str| found[name][policy]["ttft_ms"].as_f64().unwrap();
    for (name, ..) in RUNS {
        let others = POLICIES.iter().skip(1).map(|(other, _)| ttft(name, other));
        let best = others.fold(f64::INFINITY, f64::min);
        assert!(ttft(name, "latency") <= 1.05 * best, "{name}: the default policy loses");
    }
}
