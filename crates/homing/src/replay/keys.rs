//! The flags of `homing replay`, which are the keys of a plan too; and what both come to.

use crate::Failure;
use homing_core::settings::{CoreSettings, Mode, PolicyKind};
use homing_runtime::settings::{Override, Policy, Settings, Sources};
use homing_runtime::shell::core_settings;
use homing_sim::engine::{CacheConfig, EngineConfig};
use homing_sim::replay::{Baseline, Config, Outage, Sharing};
use homing_sim::trace;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a replay may be told. Everything is optional here: flags come before a plan, and a plan before the
/// defaults.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// The trace; what it is, is told by its content
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// kv, latency, least_loaded, power_of_two, round_robin or random; and what others do, to compare with:
    /// usual_formula, text_tree. Repeat it for each [default: kv, latency, least_loaded, round_robin]
    #[arg(long, value_name = "NAME")]
    policy: Vec<String>,
    /// Engines [default: 8]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// KV cache blocks of each engine [default: 16384]
    #[arg(long, value_name = "N")]
    blocks: Option<u32>,
    /// Tokens per block; a divisor or a multiple of the trace's [default: 64; homing traces: their own]
    #[arg(long, value_name = "N")]
    block_size: Option<u32>,
    /// How many times as often requests come (of closed loops: sessions) [default: 1]
    #[arg(long, value_name = "F")]
    rate_scale: Option<f64>,
    /// How requests regard their sessions: off, hard or soft [default: hard]
    #[arg(long, value_name = "MODE")]
    affinity: Option<String>,
    /// Idle time after which a session is forgotten, or `off` [default: 30m]
    #[arg(long, value_name = "DURATION")]
    session_ttl: Option<String>,
    /// What Soft sessions do while they could stay: keep, or weigh the price of moving [default: keep]
    #[arg(long, value_name = "WHAT")]
    soft: Option<String>,
    /// What a session does whose worker is overloaded: spill, reject, wait or dispatch [default: spill]
    #[arg(long, value_name = "WHAT")]
    on_overload: Option<String>,
    /// Requests that an engine takes at most, running and waiting; it answers 503 beyond [default: 4096]
    #[arg(long, value_name = "N")]
    max_queued: Option<usize>,
    /// Active requests from which on a worker is busy, and requests wait at the router; 0: never [default: 0]
    #[arg(long, value_name = "N")]
    busy_active_requests: Option<u32>,
    /// Requests that may wait at the router; 0: none [default: 0]
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Active requests from which on a worker is overloaded; 0: never [default: 0]
    #[arg(long, value_name = "N")]
    overload_active_requests: Option<u32>,
    /// Times the fleet's mean of active requests above which one is, if well beyond it; 0: never [default: 0]
    #[arg(long, value_name = "F")]
    overload_factor: Option<f64>,
    /// Routers; requests go to them in turn [default: 1]
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// What routers tell each other, as they do over NATS: none, load, bindings or all [default: none]
    #[arg(long, value_name = "WHAT")]
    sharing: Option<String>,
    /// How long it takes to the others, beside the 10 ms in which it gathers [default: 1ms]
    #[arg(long, value_name = "DURATION")]
    sharing_delay: Option<String>,
    /// Which policies hear the engines' KV events: all, or none; auto: those that weigh caches [default: auto]
    #[arg(long, value_name = "WHO")]
    events: Option<String>,
    /// How long KV events take to the routers [default: 0s]
    #[arg(long, value_name = "DURATION")]
    event_delay: Option<String>,
    /// A worker that is away for a while, such as `w3@60s..90s`; repeatable
    #[arg(long, value_name = "FAILURE")]
    fail: Vec<String>,
    /// Every random choice follows from it [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Mean time between the beginnings of sessions, where the trace doesn't say [default: 25s]
    #[arg(long, value_name = "DURATION")]
    session_gap: Option<String>,
    /// So many requests at most, from the beginning
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Also write one self-contained HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What flags and plan come to.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) trace: PathBuf,
    pub(super) reading: trace::Options,
    /// Without the core's part, which each policy has its own of.
    pub(super) config: Config,
    pub(super) policies: Vec<Chosen>,
    pub(super) events: Events,
    pub(super) html: Option<PathBuf>,
    pub(super) affinity: &'static str,
    /// It was asked for.
    pub(super) affinity_said: bool,
    /// Settings of the routers that are not the defaults, by their names in a router's file.
    pub(super) routers: Vec<(&'static str, String)>,
}

/// A policy to replay.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) name: String,
    /// A router that is configured so.
    pub(super) core: CoreSettings,
    /// What takes its policy's place.
    pub(super) baseline: Option<Baseline>,
}

/// Who hears KV events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Events {
    Auto,
    All,
    None,
}

impl Events {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::All => "all",
            Self::None => "none",
        }
    }

    /// Whether a router of this policy does.
    pub(super) fn heard_by(self, chosen: &Chosen) -> bool {
        match self {
            _ if chosen.baseline == Some(Baseline::TextTree) => false,
            Self::All => true,
            Self::None => false,
            // By name, so that a policy that is not known here hears them.
            Self::Auto => !matches!(
                chosen.core.policy,
                PolicyKind::LeastLoaded
                    | PolicyKind::PowerOfTwo
                    | PolicyKind::RoundRobin
                    | PolicyKind::Random
            ),
        }
    }
}

/// Blocks of all caches together, at most: their bookkeeping takes 16 bytes each.
const MAX_BLOCKS: usize = 1 << 27;
const MAX_WORKERS: usize = 4096;
const MAX_REPLICAS: usize = 64;
/// What tells two blocks apart needs two tokens.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 2..=trace::read::MAX_BLOCK_SIZE;

impl Keys {
    /// Flags over plan over defaults, checked.
    pub(super) fn settle(&self, plan: Option<&Path>) -> Result<Settled, Failure> {
        let it = match plan {
            None => self.clone(),
            Some(path) => self.clone().over(Self::load(path)?),
        };
        let trace = it.trace.clone().ok_or_else(|| {
            usage("--trace FILE is needed; docs/replay.md says which formats are read")
        })?;
        let seed = it.seed.unwrap_or(1);
        let reading = trace::Options {
            block_size: it.block_size,
            limit: it.limit.unwrap_or(usize::MAX),
            session_gap: duration("--session-gap", it.session_gap.as_deref(), "25s")?,
            seed,
        };
        if it.block_size.is_some_and(|size| !BLOCK_SIZES.contains(&size)) {
            return Err(usage("--block-size must be 2 to 16384"));
        }
        let (workers, blocks) = (it.workers.unwrap_or(8), it.blocks.unwrap_or(16_384));
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(usage("--workers must be 1 to 4096"));
        }
        if blocks == 0 || workers.saturating_mul(blocks as usize) > MAX_BLOCKS {
            return Err(usage(
                "--blocks must be at least 1, and 134217728 over all workers at most",
            ));
        }
        let replicas = it.replicas.unwrap_or(1);
        if !(1..=MAX_REPLICAS).contains(&replicas) {
            return Err(usage("--replicas must be 1 to 64"));
        }
        let delay = duration("--sharing-delay", it.sharing_delay.as_deref(), "1ms")?;
        let word = it.sharing.as_deref().unwrap_or("none");
        let sharing = Sharing::from_word(word, delay).ok_or_else(|| {
            usage(&format!("--sharing {word:?} is not one of {}", Sharing::WORDS.join(", ")))
        })?;
        if sharing.word() != "none" && replicas < 2 {
            return Err(usage("--sharing is about several routers: give --replicas with it"));
        }
        let rate_scale = it.rate_scale.unwrap_or(1.0);
        if !(1e-3..=1e6).contains(&rate_scale) {
            return Err(usage("--rate-scale must be 0.001 to 1000000"));
        }
        let (word, affinity) = match it.affinity.as_deref() {
            None | Some("hard") => ("hard", Some(Mode::Hard)),
            Some("soft") => ("soft", Some(Mode::Soft)),
            Some("off") => ("off", None),
            Some(other) => {
                return Err(usage(&format!("--affinity {other:?} is not off, hard or soft")));
            }
        };
        if it.soft.is_some() && affinity != Some(Mode::Soft) {
            return Err(usage("--soft is about Soft sessions: give --affinity soft with it"));
        }
        let events = match it.events.as_deref() {
            None | Some("auto") => Events::Auto,
            Some("all") => Events::All,
            Some("none") => Events::None,
            Some(other) => {
                return Err(usage(&format!("--events {other:?} is not auto, all or none")));
            }
        };
        let mut engine = EngineConfig {
            cache: CacheConfig { blocks, ..CacheConfig::default() },
            // The cache bounds it: traces have prompts of all lengths.
            max_model_len: usize::MAX,
            ..EngineConfig::default()
        };
        engine.batch.max_queued = it.max_queued.unwrap_or(engine.batch.max_queued).max(1);
        let outages = it.fail.iter().map(|text| outage(text, workers)).collect::<Result<_, _>>()?;
        let routers = it.routers();
        let policies = it.policies(&routers)?;
        let core = policies.first().map(|it| it.core.clone()).unwrap_or_default();
        // Routers of others know nothing of our sessions, unless somebody wants to see that.
        let said = it.affinity.is_some();
        Ok(Settled {
            affinity_said: said,
            trace,
            reading,
            config: Config {
                workers,
                engine,
                replicas,
                sharing,
                core,
                baseline: None,
                affinity,
                rate_scale,
                index: true,
                event_delay: duration("--event-delay", it.event_delay.as_deref(), "0s")?,
                outages,
                seed,
            },
            policies,
            events,
            html: it.html,
            affinity: word,
            routers: routers.into_iter().map(|(key, value, _)| (key, value)).collect(),
        })
    }

    /// What is said of the routers' settings: key, value, and the flag that says it.
    fn routers(&self) -> Vec<(&'static str, String, &'static str)> {
        let number = |n: Option<u32>| n.map(|n| n.to_string());
        let all = [
            ("affinity.ttl", self.session_ttl.clone(), "--session-ttl"),
            ("affinity.soft", self.soft.clone(), "--soft"),
            ("affinity.on_overload", self.on_overload.clone(), "--on-overload"),
            (
                "queue.busy_active_requests",
                number(self.busy_active_requests.filter(|n| *n > 0)),
                "--busy-active-requests",
            ),
            ("queue.max_requests", number(self.queue), "--queue"),
            (
                "overload.active_requests",
                number(self.overload_active_requests),
                "--overload-active-requests",
            ),
            ("overload.factor", self.overload_factor.map(|f| f.to_string()), "--overload-factor"),
        ];
        all.into_iter().filter_map(|(key, value, flag)| Some((key, value?, flag))).collect()
    }

    /// Each policy with the settings of a router that is configured so, and otherwise by default.
    fn policies(&self, given: &[(&str, String, &str)]) -> Result<Vec<Chosen>, Failure> {
        let mut names = self.policy.clone();
        if names.is_empty() {
            names = ["kv", "latency", "least_loaded", "round_robin"].map(str::to_owned).into();
        }
        let is_known = |name: &&String| {
            Policy::from_word(name).is_some() || Baseline::from_word(name).is_some()
        };
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            let known: Vec<_> =
                Policy::WORDS.iter().chain(&Baseline::ALL.map(|(n, _)| n)).copied().collect();
            let known = known.join(", ");
            return Err(usage(&format!("--policy {unknown:?} is not one of {known}")));
        }
        let mut policies: Vec<Chosen> = Vec::with_capacity(names.len());
        for name in names {
            if policies.iter().any(|known| known.name == name) {
                continue;
            }
            let baseline = Baseline::from_word(&name);
            let built_in = if baseline.is_none() { name.clone() } else { "kv".to_owned() };
            let policy = ("routing.policy", built_in, "--policy");
            let set = |(key, value, flag): (&str, String, &str)| Override {
                key: key.to_owned(),
                value,
                flag: flag.to_owned(),
            };
            let overrides = given.iter().cloned().chain([policy]).map(set).collect();
            let settings = Settings::load(Sources { overrides, ..Sources::default() })
                .map_err(|errors| usage(&errors.to_string()))?;
            policies.push(Chosen { name, core: core_settings(&settings), baseline });
        }
        Ok(policies)
    }

    fn load(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(&format!("can't read --plan {}: {error}", path.display())))?;
        toml::from_str(&text.replace("\r\n", "\n"))
            .map_err(|error| usage(&format!("{}: {error}", path.display())))
    }

    /// What is given here, and else there.
    fn over(self, plan: Self) -> Self {
        let list = |flags: Vec<String>, plan| if flags.is_empty() { plan } else { flags };
        Self {
            trace: self.trace.or(plan.trace),
            policy: list(self.policy, plan.policy),
            workers: self.workers.or(plan.workers),
            blocks: self.blocks.or(plan.blocks),
            block_size: self.block_size.or(plan.block_size),
            rate_scale: self.rate_scale.or(plan.rate_scale),
            affinity: self.affinity.or(plan.affinity),
            session_ttl: self.session_ttl.or(plan.session_ttl),
            soft: self.soft.or(plan.soft),
            on_overload: self.on_overload.or(plan.on_overload),
            max_queued: self.max_queued.or(plan.max_queued),
            busy_active_requests: self.busy_active_requests.or(plan.busy_active_requests),
            queue: self.queue.or(plan.queue),
            overload_active_requests: self
                .overload_active_requests
                .or(plan.overload_active_requests),
            overload_factor: self.overload_factor.or(plan.overload_factor),
            replicas: self.replicas.or(plan.replicas),
            sharing: self.sharing.or(plan.sharing),
            sharing_delay: self.sharing_delay.or(plan.sharing_delay),
            events: self.events.or(plan.events),
            event_delay: self.event_delay.or(plan.event_delay),
            fail: list(self.fail, plan.fail),
            seed: self.seed.or(plan.seed),
            session_gap: self.session_gap.or(plan.session_gap),
            limit: self.limit.or(plan.limit),
            html: self.html.or(plan.html),
        }
    }
}

fn usage(text: &str) -> Failure {
    Failure::Usage(text.to_owned())
}

fn duration(flag: &str, given: Option<&str>, default: &str) -> Result<Duration, Failure> {
    /// A year: what is added up stays far below what overflows.
    const LONGEST: Duration = Duration::from_secs(365 * 86_400);
    let text = given.unwrap_or(default);
    humantime::parse_duration(text)
        .ok()
        .filter(|d| *d <= LONGEST)
        .ok_or_else(|| usage(&format!("{flag} {text:?} is not a duration such as 50ms or 30m")))
}

/// `w3@60s..90s`.
fn outage(text: &str, workers: usize) -> Result<Outage, Failure> {
    let parts = || {
        let (worker, span) = text.strip_prefix('w')?.split_once('@')?;
        let (from, until) = span.split_once("..")?;
        Some((worker.parse::<usize>().ok()?, from, until))
    };
    let (worker, from, until) = parts().ok_or_else(|| {
        usage(&format!("--fail {text:?} is not like w3@60s..90s: who, from when, until when"))
    })?;
    let (from, until) = (duration("--fail", Some(from), "")?, duration("--fail", Some(until), "")?);
    if worker >= workers {
        return Err(usage(&format!("--fail {text:?}: there are {workers} workers, from w0 on")));
    }
    if until <= from {
        return Err(usage(&format!("--fail {text:?} ends before it begins")));
    }
    Ok(Outage { worker, from, until })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_are_who_from_when_until_when() {
        let it = outage("w3@60s..1m 30s", 4).ok();
        let seconds = Duration::from_secs;
        assert_eq!(it, Some(Outage { worker: 3, from: seconds(60), until: seconds(90) }));
        for bad in ["", "3@60s..90s", "w3", "w3@60s", "w4@60s..90s", "w3@90s..60s", "w3@a..b"] {
            assert!(outage(bad, 4).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_come_before_a_plan_and_a_plan_before_defaults() {
        let plan = "trace = \"t\"\nreplicas = 2\nsharing = \"all\"\nworkers = 3\nrate_scale = 2\npolicy = [\"random\"]\nfail = [\"w2@1s..2s\"]";
        let plan: Keys = toml::from_str(plan).expect("right");
        let flags = Keys { workers: Some(5), ..Keys::default() };
        let it = flags.over(plan).settle(None).expect("right");
        let config = &it.config;
        assert_eq!((config.workers, config.rate_scale, config.replicas), (5, 2.0, 2));
        assert_eq!((config.sharing.word(), config.sharing.delay.as_millis()), ("all", 1));
        assert_eq!(it.policies.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["random"]);
        assert_eq!(config.outages.len(), 1);
        assert!(toml::from_str::<Keys>("wokers = 3").is_err(), "unknown keys are errors");
    }

    #[test]
    fn settings_of_the_core_are_a_routers() {
        let keys = Keys {
            trace: Some("t".into()),
            session_ttl: Some("off".into()),
            on_overload: Some("wait".into()),
            ..Keys::default()
        };
        let it = keys.settle(None).expect("right");
        assert!(it.policies.iter().all(|it| it.core.affinity.ttl.is_none()));
        assert_eq!(it.policies.len(), 4);
        let bad = Keys { on_overload: Some("hope".into()), ..keys.clone() };
        let Err(Failure::Usage(text)) = bad.settle(None) else { panic!("taken") };
        assert!(text.contains("--on-overload") && text.contains("spill"), "{text}");
        for bad in [
            Keys { trace: None, ..keys.clone() },
            Keys { policy: vec!["best".into()], ..keys.clone() },
            Keys { workers: Some(0), ..keys.clone() },
            Keys { rate_scale: Some(f64::NAN), ..keys.clone() },
            Keys { block_size: Some(1), ..keys.clone() },
            Keys { blocks: Some(u32::MAX), ..keys.clone() },
            Keys { events: Some("some".into()), ..keys.clone() },
            Keys { sharing: Some("much".into()), replicas: Some(2), ..keys.clone() },
            Keys { sharing: Some("all".into()), ..keys.clone() },
            Keys { affinity: Some("firm".into()), ..keys },
        ] {
            assert!(matches!(bad.settle(None), Err(Failure::Usage(_))), "{bad:?}");
        }
    }
}
