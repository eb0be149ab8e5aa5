//! Settings: every source of configuration, checked and merged into one typed [`Settings`].
//!
//! A flag beats the environment, the environment beats the file, the file beats the default. The
//! process environment, the clock and the disk are never read here: the caller hands over the text
//! of the file, the variables and the flags ([`Sources`]), so every test is a plain function call.
//!
//! The one trick: [`table::KEYS`] is a table of every key that the documentation knows, with its
//! kind, bounds, default, status and meaning. One generic reader turns TOML values and strings
//! into values by kind (`value`), one walk collects them with their origins (`raw`, `file`), and
//! one conversion gives the typed result (`convert`, `worker`). Unknown keys, the reference page
//! ([`reference_markdown`]) and the printout of `homing check` come from the same table.
//!
//! # What is accepted before it is built
//!
//! One principle: **a value is accepted exactly when this build does what that value says.** Mostly
//! that is the documented default, because most defaults say "off". Where the default itself
//! describes something that the program does not do yet, it is refused like any other value, and
//! leaving the key out is the honest way to write it.
//!
//! | key | accepted | why |
//! |---|---|---|
//! | `index.source` | `auto`, `events`, `off` | `auto` already prefers events; a worker without events has no index (approximate comes with step 3) |
//! | `index.memory` | nothing | the index is bounded by the engines' caches alone |
//! | `workers.weight` | the default | it says "none" |

mod convert;
mod discovery;
mod file;
mod keys;
mod kubernetes;
mod live;
mod policies;
mod problem;
mod raw;
mod reference;
mod replication;
mod table;
mod tenant;
mod tokenizer;
mod transport;
mod types;
mod url;
mod value;
mod worker;

pub use replication::{OnStoreFailure, Replication, ReplicationBackend, ReplicationMode};

pub use discovery::{DiscoveryEtcd, is_group};
pub use keys::{Key, Kind, Section, Shape, Status, Step};
pub use kubernetes::{DiscoveryKubernetes, KubernetesFind, KubernetesPort};
pub use live::NotLive;
pub use policies::{CustomPolicy, Policies};
pub use problem::{Fault, Origin, Problem, SettingsErrors};
pub use reference::reference_markdown;
pub use table::{KEYS, SECTIONS};
pub use tenant::{Limits, Tenant, is_name as is_tenant_name};
pub use tokenizer::Tokenizer;
pub use transport::{GatewayTls, Listen, Upstream};
pub use types::{
    Admin, Affinity, AffinityMode, Discovery, Gateway, Health, Index, IndexSource, Log, LogFormat,
    Model, OnDown, OnFailure, OnFull, OnOverload, Overload, Policy, Queue, RejectAs,
    ResponseHeaders, Retry, Routing, Settings, Soft, Steering, Subagents, Verify, Worker,
};
pub use url::{Scheme, UrlError, WorkerUrl};

use problem::Problems;
use std::path::PathBuf;

/// Where settings come from. Nothing else is consulted.
#[derive(Clone, Debug)]
pub struct Sources<E = Vec<(String, String)>> {
    /// The path (for messages) and the text of the TOML file.
    pub file: Option<(PathBuf, String)>,
    /// Environment variables as (name, value). Only names of the form `HOMING_<SECTION>__<KEY>`,
    /// and `HOMING_WORKERS`, are looked at; others may be present.
    pub env: E,
    /// Values from the command line, in their order there.
    pub overrides: Vec<Override>,
}

impl Default for Sources {
    /// No source: all defaults.
    fn default() -> Self {
        Self { file: None, env: Vec::new(), overrides: Vec::new() }
    }
}

/// A value from the command line.
///
/// A repeated flag of a list key, or of `workers`, appends; of any other key the last one wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The dotted key (`affinity.ttl`), or `workers`, whose value is one worker's URL.
    pub key: String,
    /// The value, written as in the environment: bare text, lists comma separated.
    pub value: String,
    /// The flag's name, for messages: `--session-ttl`.
    pub flag: String,
}

/// One line of the effective configuration: see [`Settings::effective`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The dotted key; an entry of a list of tables has its place: `workers[0].url`.
    pub key: String,
    /// The value as TOML.
    pub value: String,
    /// Where the value came from.
    pub origin: Origin,
}

impl Settings {
    /// Reads, merges and checks all sources.
    ///
    /// # Errors
    ///
    /// Every problem of every source at once. Each names its key, its source and what to do.
    pub fn load<E>(sources: Sources<E>) -> Result<Self, SettingsErrors>
    where
        E: IntoIterator<Item = (String, String)>,
    {
        Self::load_with(sources, &Policies::default())
    }

    /// The same for a program that brings policies along.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn load_with<E>(sources: Sources<E>, policies: &Policies) -> Result<Self, SettingsErrors>
    where
        E: IntoIterator<Item = (String, String)>,
    {
        let mut problems = Problems::default();
        let raw = raw::Raw::collect(sources, policies.names(), &mut problems);
        let settings = convert::convert(&raw, policies, &mut problems);
        match problems.into_errors() {
            Some(errors) => Err(errors),
            None => settings.map_err(SettingsErrors::from),
        }
    }

    /// Every key of this build with its value and where it came from, in the order of the
    /// reference page. Keys that are not built appear only where they were given (with the one
    /// value that is accepted).
    #[must_use]
    pub fn effective(&self) -> &[Effective] {
        &self.effective
    }

    /// [`Settings::effective`] as a TOML file with the origin of each value in a comment. Loading
    /// it again gives the same settings.
    #[must_use]
    pub fn effective_toml(&self) -> String {
        let mut out = String::new();
        let mut heading = String::new();
        for line in &self.effective {
            let (section, key) = line.key.rsplit_once('.').unwrap_or(("", &line.key));
            if section != heading {
                if !out.is_empty() {
                    out.push('\n');
                }
                let header = match section.split_once('[') {
                    Some((many, _)) => format!("[[{many}]]\n"),
                    None => format!("[{section}]\n"),
                };
                out.push_str(&header);
                section.clone_into(&mut heading);
            }
            let origin = line.origin.to_string().replace(char::is_control, "?");
            out.push_str(&format!("{key} = {}  # {origin}\n", line.value));
        }
        out
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "affinity_tests.rs"]
mod affinity_tests;

#[cfg(test)]
#[path = "round_trip_tests.rs"]
mod round_trip_tests;

#[cfg(test)]
#[path = "worker_tests.rs"]
mod worker_tests;

#[cfg(test)]
#[path = "transport_tests.rs"]
mod transport_tests;
