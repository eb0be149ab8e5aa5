//! One router: a core, and under which numbers it knows the workers.

use super::{Baseline, Config, ReplayError};
use homing_core::SelectionCore;
use homing_core::ask::{Ask, Session};
use homing_core::fleet::{Cache, CacheSource, FleetChange, Probe, Route, ServedName, WorkerSpec};
use homing_core::hash::{HashSpace, Prompt, TEXT_BLOCK};
use homing_core::ids::{DpRank, SessionKey, WorkerId};
use homing_core::index::event::KvEvent;
use homing_core::settings::{CoreSettings, VitalSettings};
use homing_core::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The model that all serve.
const MODEL: &str = "replay";

pub(super) struct Router {
    pub(super) core: SelectionCore,
    route: Route,
    ids: Vec<WorkerId>,
    places: BTreeMap<WorkerId, usize>,
    cache: Cache,
    /// When its timer is set.
    pub(super) timer: Option<Time>,
}

impl Router {
    /// One that knows the workers, and that they are up.
    pub(super) fn new(config: &Config, seed: u64, now: Time) -> Result<Self, ReplayError> {
        // Nobody asks for records of decisions here, and they take time.
        // And of engines in closed form tokens are told of in strides: a silence there is no stall.
        let vitals = VitalSettings { stalls: false, ..config.core.vitals };
        let mut settings = CoreSettings { records: false, vitals, ..config.core.clone() };
        settings.affinity.shared = config.sharing.bindings && config.replicas > 1;
        let core = match config.baseline {
            None => SelectionCore::new(settings, seed),
            Some(it) => SelectionCore::with_policy(settings, seed, move || it.policy()),
        };
        let engine = config.engine.cache;
        let cache = Cache {
            source: match config.baseline {
                Some(Baseline::TextTree) => CacheSource::Routed,
                _ if config.index => CacheSource::Events,
                _ => CacheSource::Nothing,
            },
            capacity: Some(match config.baseline {
                // Such trees know no bound of the engines' but their own, which is far above it.
                Some(Baseline::TextTree) => u64::from(engine.blocks) * u64::from(TEXT_BLOCK) * 4,
                _ => u64::from(engine.blocks) * u64::from(engine.block_size),
            }),
        };
        let mut ids = Vec::with_capacity(config.workers);
        for worker in 0..config.workers {
            let name = name(worker);
            let spec = WorkerSpec::new(&name, &format!("http://{name}"));
            core.handle_fleet(now, FleetChange::Register(spec))?;
            let id = core.worker_named(&name).ok_or(ReplayError::Nobody)?;
            let served = vec![ServedName { name: MODEL.to_owned(), adapter: false }];
            core.handle_fleet(now, FleetChange::Serves(id, served))?;
            core.handle_fleet(now, FleetChange::Started(id, 0))?;
            core.handle_fleet(now, FleetChange::Cache(id, cache))?;
            core.handle_fleet(now, FleetChange::Probed(id, Probe::Good))?;
            ids.push(id);
        }
        let route = core.route(MODEL).map_err(|_| ReplayError::Nobody)?;
        let places = ids.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        Ok(Self { core, route, ids, places, cache, timer: None })
    }

    /// The place of the worker that it knows by this number.
    pub(super) fn place(&self, worker: WorkerId) -> Option<usize> {
        self.places.get(&worker).copied()
    }

    /// A request as the gateway would put it.
    pub(super) fn ask(&self, config: &Config, prompt: Prompt, session: Option<u32>) -> Ask {
        let mut ask = Ask::new(self.route.partition, self.route.name, prompt);
        if self.cache.source == CacheSource::Routed {
            // Blocks stand for chunks of text.
            let chunks = u64::from(ask.prompt.tokens) * u64::from(TEXT_BLOCK);
            let tokens = chunks / u64::from(ask.prompt.block_size.max(1));
            ask.text = Prompt {
                exact: false,
                block_size: TEXT_BLOCK,
                tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
                ..ask.prompt.clone()
            };
            ask.prompt = Prompt { exact: false, chain: Arc::default(), ..ask.prompt };
        }
        let session = config.affinity.zip(session);
        ask.session = session.map(|(mode, number)| Session::new(key(number), mode));
        self.core.look_up(&mut ask);
        ask
    }

    /// What an engine published has arrived.
    pub(super) fn hear(&self, now: Time, worker: usize, events: &[KvEvent]) {
        if let Some(id) = self.ids.get(worker) {
            self.core.handle_kv(now, *id, DpRank(0), events, |_, _| {});
        }
    }

    /// A probe was refused.
    pub(super) fn away(&self, now: Time, worker: usize) -> Result<(), ReplayError> {
        if let Some(id) = self.ids.get(worker) {
            self.core.handle_fleet(now, FleetChange::Probed(*id, Probe::Refused))?;
        }
        Ok(())
    }

    /// Another process answers in a worker's place, begun at this time.
    pub(super) fn back(&mut self, now: Time, worker: usize) -> Result<(), ReplayError> {
        let Some(id) = self.ids.get_mut(worker) else { return Ok(()) };
        let started = now.as_micros() / 1000;
        self.core.handle_fleet(now, FleetChange::Started(*id, started))?;
        let born = self.core.worker_named(&name(worker)).ok_or(ReplayError::Nobody)?;
        self.core.handle_fleet(now, FleetChange::Cache(born, self.cache))?;
        self.core.handle_fleet(now, FleetChange::Probed(born, Probe::Good))?;
        *id = born;
        self.places.insert(born, worker);
        Ok(())
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("ids", &self.ids).finish_non_exhaustive()
    }
}

/// What a worker is called.
fn name(worker: usize) -> String {
    format!("w{worker}")
}

/// A session's key. Its number is all that a trace has of it.
fn key(session: u32) -> SessionKey {
    let spread =
        u128::from(session).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    SessionKey(spread)
}

/// A prompt of known blocks.
pub(super) fn prompt(
    blocks: &crate::trace::blocks::Blocks,
    runs: &[std::ops::Range<u32>],
    tokens: u32,
) -> Prompt {
    let chain = runs.iter().flat_map(|run| run.clone().filter_map(|b| blocks.chain(b)));
    let chain: Vec<_> = chain.collect();
    Prompt {
        tokens,
        exact: true,
        block_size: blocks.size(),
        chain: Arc::from(chain),
        space: HashSpace::default(),
    }
}
