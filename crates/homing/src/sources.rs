//! Where settings come from on a command line: `--config`, the environment, and the flags.

use crate::Failure;
use anyhow::Context;
use homing_runtime::settings::{Override, Policies, Settings, Sources};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The flags that `serve` and `check` share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Flags {
    /// The configuration file (TOML); docs/configuration.md lists every key
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A worker's base URL; repeat it for each worker
    #[arg(long = "worker", value_name = "URL")]
    workers: Vec<String>,
    /// Where clients connect [gateway.listen, default 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where metrics and the admin API are served [admin.listen, default 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Idle time after which a session is forgotten, or `off` [affinity.ttl, default 30m]
    #[arg(long, value_name = "DURATION")]
    session_ttl: Option<String>,
    /// kv, latency, least_loaded, power_of_two, round_robin or random [routing.policy, default latency]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

impl Flags {
    /// The same again, whenever it is called.
    pub(crate) fn again(&self) -> Box<dyn Fn() -> Result<Settings, String> + Send + Sync> {
        let flags = self.clone();
        Box::new(move || {
            flags.settings().map_err(|failure| match failure {
                Failure::Usage(text) => text,
                Failure::Failed(error) => format!("{error:#}"),
                Failure::Said => "the settings can't be read".to_owned(),
            })
        })
    }

    /// The validated settings; flag over environment over file over default.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let mut overrides: Vec<Override> =
            self.workers.iter().map(|url| set("workers", url, "--worker")).collect();
        let one = [
            ("gateway.listen", &self.listen, "--listen"),
            ("admin.listen", &self.admin, "--admin"),
            ("affinity.ttl", &self.session_ttl, "--session-ttl"),
            ("routing.policy", &self.policy, "--policy"),
        ];
        overrides
            .extend(one.into_iter().filter_map(|(key, v, flag)| Some(set(key, v.as_ref()?, flag))));
        load(self.config.as_deref(), overrides)
    }
}

/// The validated settings of a file, where there is one, of the environment, and of flags.
pub(crate) fn load(config: Option<&Path>, overrides: Vec<Override>) -> Result<Settings, Failure> {
    let file = match config {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("can't read --config {}", path.display()))
                .map_err(|e| Failure::Usage(format!("{e:#}")))?;
            Some((path.to_owned(), text))
        }
    };
    // What is not UTF-8 and not ours is nobody's business here; of ours it is a value that no key takes.
    let env = std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    let policies = POLICIES.get().cloned().unwrap_or_default();
    Settings::load_with(Sources { file, env, overrides }, &policies)
        .map_err(|errors| Failure::Usage(errors.to_string()))
}

/// Policies that the program brings along.
static POLICIES: OnceLock<Policies> = OnceLock::new();

/// Makes them known, once.
pub(crate) fn bring(policies: Policies) {
    // A second call would be a second `main`.
    let _ = POLICIES.set(policies);
}

fn set(key: &str, value: &str, flag: &str) -> Override {
    Override { key: key.to_owned(), value: value.to_owned(), flag: flag.to_owned() }
}
