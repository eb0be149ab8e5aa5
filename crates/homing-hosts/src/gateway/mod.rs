//! The HTTP gateway: a plain hyper proxy in front of the core. The request body is forwarded as it came,
//! the answer is relayed as it comes; only copies are parsed.
//!
//! * `listen`: threads, sockets, connections, and how they end;
//! * `service`: which path is what;
//! * `proxy`: the way of a request: session, prompt, admit, dispatch, commit, relay;
//! * `session`, `prompt`: what the decision needs of a request;
//! * `forward`: headers, both ways;
//! * `relay`: the answer on its way back, and what ends with it;
//! * `pace`: how fast a client takes its answer;
//! * `reply`: our own answers; the one place where a refusal becomes a status;
//! * `record`: one line and one count a request.

mod forward;
mod listen;
mod pace;
mod prompt;
mod proxy;
mod record;
mod relay;
mod reply;
mod service;
mod session;

pub use listen::Listening;

use homing_prompt::ModelPrompt;
use homing_runtime::compute::ComputePool;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::settings::{Model, Settings};
use homing_runtime::shell::Shell;
use homing_wire::request::BodyPaths;
use http::{HeaderName, HeaderValue};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all connections share.
#[derive(Debug)]
pub struct Gateway {
    shell: Arc<Shell>,
    settings: Arc<Settings>,
    life: Lifecycle,
    /// By served name; shared with the compute pool's jobs.
    prompts: BTreeMap<String, (Arc<ModelPrompt>, Arc<Model>)>,
    pool: ComputePool,
    session_headers: Vec<HeaderName>,
    body_paths: BodyPaths,
    /// `x-homing-instance`: random, for telling replicas apart.
    instance: HeaderValue,
    next_request: AtomicU64,
}

impl Gateway {
    /// From validated settings.
    #[must_use]
    pub fn new(
        shell: Arc<Shell>,
        settings: Arc<Settings>,
        prompts: BTreeMap<String, Arc<ModelPrompt>>,
        pool: ComputePool,
        life: Lifecycle,
        entropy: &[u8; 32],
    ) -> Self {
        // Names the process; derived, so that it gives nothing of the secret away.
        let secret = shell.secret();
        let instance = secret.digest(secret.session("", "instance", entropy)).to_string();
        let prompts = prompts.into_iter().filter_map(|(name, prompt)| {
            let model = settings.models.iter().find(|m| m.name == name)?.clone();
            Some((name, (prompt, Arc::new(model))))
        });
        let affinity = &settings.affinity;
        Self {
            prompts: prompts.collect(),
            session_headers: affinity
                .headers
                .iter()
                .filter_map(|h| HeaderName::from_bytes(h.as_bytes()).ok())
                .collect(),
            // The settings have checked them.
            body_paths: BodyPaths::parse(&affinity.body_fields).unwrap_or_default(),
            instance: HeaderValue::from_str(&instance)
                .unwrap_or_else(|_| HeaderValue::from_static("homing")),
            next_request: AtomicU64::new(0),
            shell,
            settings,
            pool,
            life,
        }
    }

    /// A request id of our own: unique in this process, and unlike any other process's.
    fn request_id(&self) -> String {
        let n = self.next_request.fetch_add(1, Ordering::Relaxed);
        format!("{}-{n:x}", self.instance.to_str().unwrap_or_default())
    }

    /// Whether the stop signal has come.
    fn draining(&self) -> bool {
        self.life.draining().is_cancelled()
    }
}
