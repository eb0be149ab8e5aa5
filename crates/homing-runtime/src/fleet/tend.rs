//! One worker's task: probe it forever, learn what it serves, find its events.
//!
//! A worker that is not up is probed sooner at first and then at the usual interval, for as long as it
//! is registered (F32). Each has its own task and time-outs, so a hung one stalls nobody (F34).

use super::poll;
use super::ranks::Ranks;
use super::report;
use super::sources::{self, Found, Silent};
use super::verify::{Questions, Verify};
use crate::ask::Ask;
use crate::ingest::{Feed, Ingest};
use crate::settings::{IndexSource, Settings, Worker};
use crate::shell::Shell;
use arc_swap::ArcSwap;
use homing_core::ask::Failure;
use homing_core::fleet::{
    Cache, CacheSource, FleetChange, FleetError, FleetEvent, Probe, ServedName,
};
use homing_core::ids::WorkerId;
use homing_wire::engine::metrics::Exposition;
use homing_wire::engine::{KvSource, endpoint_of, is_wildcard, parse_models};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The first pause after a probe that didn't find the worker up; it doubles up to the interval.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// After so many good probes the worker is asked anew what it serves: adapters come and go.
const ASK_AGAIN: u32 = 12;

/// See the module.
pub(super) struct Tend {
    shell: Arc<Shell>,
    settings: Arc<ArcSwap<Settings>>,
    ingest: Option<Ingest>,
    ask: Ask,
    worker: Worker,
    /// Asks for events, where the engine wants to be asked. Ends with this.
    poller: JoinSet<()>,
    verify: Verify,
    /// It has no page of metrics: after so many probes it is asked again.
    no_metrics: u32,
    /// The life that was last asked what it serves, and how many probes ago.
    asked: Option<(WorkerId, u32)>,
    /// Models for which a missing tokenizer was reported.
    told: BTreeSet<String>,
    /// What is wrong with its health path.
    ailing: Complaint,
    /// Why it is not known what it serves.
    unknown: Complaint,
    /// Why it can't be used with what it serves.
    unusable: Complaint,
    /// Why some of its ranks go without events.
    quiet: Complaint,
    ranks: Ranks,
    /// What is wrong with what it says of them.
    strange: Complaint,
    /// Whether it wants a key, as was last said of which life.
    barred: Option<(WorkerId, bool)>,
    /// Names that it serves and that belong to another pool.
    taken: BTreeSet<Arc<str>>,
}

/// A reason to complain: what is wrong stays so for many probes, and is worth a line when it changes.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    /// How it is now, `None` where nothing is wrong. True if that is to be said.
    fn is_news(&mut self, why: Option<String>) -> bool {
        let news = why.is_some() && self.0 != why;
        self.0 = why;
        news
    }
}

impl Tend {
    pub(super) fn new(
        shell: Arc<Shell>,
        settings: Arc<ArcSwap<Settings>>,
        ingest: Option<Ingest>,
        ask: Ask,
        questions: Questions,
        worker: Worker,
    ) -> Self {
        let verify = Verify::new(&shell, &ask, questions, &worker);
        let listens = worker.kv_events.as_deref().is_some_and(is_wildcard);
        let ranks = Ranks::new(worker.dp_size, listens);
        Self {
            verify,
            shell,
            settings,
            ingest,
            ask,
            worker,
            poller: JoinSet::new(),
            no_metrics: 0,
            asked: None,
            told: BTreeSet::new(),
            ailing: Complaint::default(),
            unknown: Complaint::default(),
            unusable: Complaint::default(),
            quiet: Complaint::default(),
            ranks,
            strange: Complaint::default(),
            barred: None,
            taken: BTreeSet::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let (interval, timeout) = {
                let health = &self.settings.load().health;
                (health.interval, health.timeout)
            };
            self.ask.timeout = timeout;
            pause = pause.min(interval);
            let probe = self.probe().await;
            let up = self.note(probe) && probe == Probe::Good && self.learn().await;
            let known = match self.id().filter(|_| up) {
                Some(id) => self.read_metrics(id).await,
                None => false,
            };
            let shell = self.shell.clone();
            tokio::select! {
                () = tokio::time::sleep(if known { interval } else { pause }) => {}
                // Somebody asks for a model that nobody is known to serve.
                () = shell.models_are_wanted() => self.asked = None,
            }
            pause = if known { FIRST_PAUSE.min(interval) } else { (pause * 2).min(interval) };
        }
    }

    /// What its page of metrics says of its load, and of what it has reused. One that has no such page is asked for
    /// it seldom. False: it is another process than before, of which nothing is known yet.
    async fn read_metrics(&mut self, id: WorkerId) -> bool {
        if self.no_metrics > 0 {
            self.no_metrics -= 1;
            return true;
        }
        let core = self.shell.core();
        core.expect_report(id);
        let page = match self.ask.get("/metrics").await {
            Ok((200, page)) => page,
            Ok(_) => {
                self.no_metrics = ASK_AGAIN;
                return true;
            }
            Err(_) => return true,
        };
        let Ok(text) = std::str::from_utf8(&page) else { return true };
        let page = Exposition::parse(text);
        self.note_start(id, &page);
        if self.id() != Some(id) {
            return false;
        }
        let core = self.shell.core();
        for (rank, report) in report::of(&page, self.ranks.count()) {
            core.handle_report(self.shell.now(), id, rank, report);
        }
        self.verify.count(id, &page);
        self.shell.pump();
        true
    }

    /// When its process began: another time is another life (F21).
    fn note_start(&mut self, id: WorkerId, page: &Exposition<'_>) {
        // Not a number is no time; anything else is one, if need be the first or the last there is.
        if let Some(at) = page.process_start_time().filter(|at| at.is_finite()) {
            // An error: that life has ended meanwhile, and the next probe is of the one after it.
            let _ = self.change(FleetChange::Started(id, (at * 1e3) as u64));
        }
    }

    async fn probe(&mut self) -> Probe {
        let path = self.settings.load().health.path.clone();
        let (probe, why) = match self.ask.probe(&path).await {
            Ok(status) if (200..300).contains(&status) => (Probe::Good, None),
            // It is there, and says so: what it wants is a key, which asking for its models tells.
            Ok(401 | 403) => (Probe::Good, None),
            Ok(status) => (Probe::Bad, Some(format!("it answers with status {status}"))),
            Err((Failure::Refused, _)) => (Probe::Refused, None),
            Err((Failure::Unreachable, why)) => (Probe::Bad, Some(why)),
            Err((_, why)) => (Probe::Bad, Some(format!("it breaks off: {why}"))),
        };
        if self.ailing.is_news(why.clone()) {
            let (worker, url) = (&self.worker.id, self.worker.url.to_string());
            tracing::warn!(worker, url, path, why, "the worker's health path");
        }
        probe
    }

    /// Tells the core; false if the worker is not ours to tend any more.
    fn note(&mut self, probe: Probe) -> bool {
        let Some(id) = self.id() else { return false };
        if probe == Probe::Refused {
            self.shell.life_is_over(id);
        }
        self.change(FleetChange::Probed(id, probe)).is_ok()
    }

    /// It wants a key that we don't have; or it does not.
    fn bar(&mut self, id: WorkerId, barred: bool) {
        if self.barred != Some((id, barred)) && self.change(FleetChange::Barred(id, barred)).is_ok()
        {
            self.barred = Some((id, barred));
        }
    }

    fn id(&self) -> Option<WorkerId> {
        self.shell.core().worker_named(&self.worker.id)
    }

    fn change(&mut self, change: FleetChange) -> Result<(), FleetError> {
        let serves = matches!(change, FleetChange::Serves(..));
        let mut events = self.shell.core().handle_fleet(self.shell.now(), change)?;
        if serves {
            let name = |e: &FleetEvent| match e {
                FleetEvent::NameTaken(_, name) => Some(name.clone()),
                _ => None,
            };
            let taken = events.iter().filter_map(name).collect();
            // The core says it each time; the log, when it is new.
            events.retain(|e| name(e).is_none_or(|n| !self.taken.contains(&n)));
            self.taken = taken;
        }
        self.shell.note_fleet(&self.worker.id, &events);
        self.shell.pump();
        Ok(())
    }

    /// Asks what it serves, whenever that may have changed. True once it is known.
    async fn learn(&mut self) -> bool {
        let Some(id) = self.id() else { return false };
        match &mut self.asked {
            Some((who, ago)) if *who == id && *ago < ASK_AGAIN => {
                *ago += 1;
                return true;
            }
            _ => {}
        }
        let capacity = self.capacity(id).await;
        let Some(id) = self.id() else { return false };
        let served = match self.ask.get("/v1/models").await {
            Ok((200, body)) => parse_models(&body).map_err(|e| e.to_string()),
            Ok((status @ (401 | 403), _)) => {
                // Its health path may be open to all.
                self.bar(id, true);
                Err(format!("it answers /v1/models with status {status}"))
            }
            Ok((status, _)) => Err(format!("it answers /v1/models with status {status}")),
            Err(failure) => Err(format!("it can't be asked for its models: {failure:?}")),
        };
        let served = match served {
            Ok(served) => served,
            Err(error) => {
                if self.unknown.is_news(Some(error.clone())) {
                    let worker = &self.worker.id;
                    tracing::warn!(worker, error, "what the worker serves is unknown");
                }
                // What it served before stands.
                return self.asked.is_some_and(|(who, _)| who == id);
            }
        };
        self.unknown.is_news(None);
        self.bar(id, false);
        // Before it serves: where a session goes, and which of its homes there are, is by ranks.
        let sources = self.ask_for_sources().await;
        if let Some(found) = &sources
            && !self.learn_ranks(id, found)
        {
            return false;
        }
        self.tell_about_tokenizers(served.iter().map(|m| m.id.as_str()));
        let models: Vec<String> = served.iter().map(|m| m.id.clone()).collect();
        let names = served
            .into_iter()
            .map(|m| ServedName { name: m.id, adapter: m.parent.is_some() })
            .collect();
        match self.change(FleetChange::Serves(id, names)) {
            Ok(()) => _ = self.unusable.is_news(None),
            // That life has ended meanwhile; the next probe is of the one after it.
            Err(FleetError::UnknownWorker) => return false,
            Err(error) => {
                if self.unusable.is_news(Some(error.to_string())) {
                    tracing::warn!(worker = self.worker.id, %error, "the worker can't be used");
                }
                return false;
            }
        }
        self.asked = Some((id, 0));
        let source = match (self.follow_events(sources), self.settings.load().index.source) {
            (true, _) => CacheSource::Events,
            (false, IndexSource::Auto | IndexSource::Approximate) => CacheSource::Routed,
            (false, IndexSource::Events | IndexSource::Off) => CacheSource::Nothing,
        };
        if self.change(FleetChange::Cache(id, Cache { source, capacity })).is_err() {
            return false;
        }
        self.verify.compare(id, &models).await;
        true
    }

    /// Without a tokenizer here prompts can't become blocks: said once a worker.
    fn tell_about_tokenizers<'a>(&mut self, models: impl Iterator<Item = &'a str>) {
        let source = self.settings.load().index.source;
        let wanted = matches!(source, IndexSource::Auto | IndexSource::Events);
        if !wanted || !self.told.is_empty() {
            return;
        }
        for model in models {
            let known = self
                .settings
                .load()
                .models
                .iter()
                .any(|m| m.name == model && m.tokenizer.is_some());
            if !known {
                self.told.insert(model.to_owned());
                tracing::warn!(
                    worker = self.worker.id,
                    model,
                    "no tokenizer is configured for this model: what is cached is guessed from the \
                     text of prompts (index.source = \"auto\"); give `[[models]]` with its name and \
                     `tokenizer` (a folder, or \"engine\") to know it exactly from the engine's KV events"
                );
                return;
            }
        }
    }

    /// Tokens that one rank's cache has room for. Its start is noted, too.
    async fn capacity(&mut self, id: WorkerId) -> Option<u64> {
        let Ok((200, body)) = self.ask.get("/metrics").await else { return None };
        let page = Exposition::parse(std::str::from_utf8(&body).ok()?);
        self.note_start(id, &page);
        page.cache_tokens()
    }

    /// Asks it where its events are, and how many ranks it has, where one of these is to be known from it.
    async fn ask_for_sources(&self) -> Option<Result<Found, Silent>> {
        let events = self.ingest.is_some() && self.worker.kv_events.is_none();
        if events || self.ranks.are_asked_for() {
            Some(sources::find(&self.ask).await)
        } else {
            None
        }
    }

    /// Takes in what it says of its ranks. False: it is not that life any more.
    fn learn_ranks(&mut self, id: WorkerId, found: &Result<Found, Silent>) -> bool {
        let said = match found {
            Ok(Found::Streams { said, .. }) => *said,
            // It names them with its events only.
            Ok(Found::Polled) => return true,
            Err(silent) => silent.said,
        };
        if let Some(ranks) = self.ranks.hear(id, said) {
            tracing::info!(worker = self.worker.id, ranks, "the worker has so many ranks");
            let ranks = homing_core::fleet::Ranks::new(0, ranks);
            if self.change(FleetChange::Ranks(id, ranks)).is_err() {
                return false;
            }
        }
        let why = self.ranks.complaint(said);
        if self.strange.is_news(why.clone()) {
            let (worker, known) = (&self.worker.id, self.ranks.count());
            tracing::warn!(worker, known, why, "the worker has other ranks than are known here");
        }
        true
    }

    /// Follows the events of each of the worker's ranks, unless their feeds are followed already. False: it has
    /// none.
    fn follow_events(&mut self, found: Option<Result<Found, Silent>>) -> bool {
        let Some(ingest) = self.ingest.clone() else { return false };
        let ranks = self.ranks.count();
        let found = match (&self.worker.kv_events, found) {
            (Some(first), _) => configured(first, ranks),
            (None, None) => return false,
            (None, Some(found)) => match found {
                Ok(Found::Streams { kind, sources, .. }) => {
                    let found = by_rank(sources, ranks);
                    if found.iter().all(Option::is_none) {
                        let why =
                            "it publishes events of none of the ranks that it is known to have";
                        ingest.without_events(&self.worker.id, kind, why);
                        return false;
                    }
                    found
                }
                Ok(Found::Polled) => {
                    self.poll(&ingest, ranks);
                    return true;
                }
                Err(silent) => {
                    ingest.without_events(&self.worker.id, silent.kind, &silent.why);
                    return false;
                }
            },
        };
        // It was another engine's.
        self.poller = JoinSet::new();
        let without: Vec<_> = (0..ranks).zip(&found).filter(|(_, f)| f.is_none()).collect();
        let why = without.first().map(|(rank, _)| {
            let (many, hint) = (without.len(), self.hint());
            format!("{many} of its {ranks} ranks go without, the first is {rank}: {hint}")
        });
        if self.quiet.is_news(why.clone()) {
            let worker = &self.worker.id;
            tracing::warn!(worker, why, "of some of the worker's ranks no events can be followed");
        }
        for (rank, source) in (0..ranks).zip(found) {
            let Some(KvSource { endpoint, listens, replay_endpoint, .. }) = source else {
                continue;
            };
            let replay = match &self.worker.kv_replay {
                Some(first) => endpoint_of(first, rank),
                None => replay_endpoint,
            };
            let worker = self.worker.id.clone();
            ingest.subscribe(Feed { worker, rank, ranks, endpoint, listens, replay });
        }
        true
    }

    /// Asks for events from now on, for as long as the worker is tended.
    fn poll(&mut self, ingest: &Ingest, ranks: u16) {
        while self.poller.try_join_next().is_some() {}
        if self.poller.is_empty() {
            let polled = ingest.polled(self.shell.clone(), &self.worker.id, ranks);
            self.poller.spawn(poll::run(self.ask.clone(), ingest.clone(), polled));
        }
    }

    /// What is wrong where a rank has no endpoint.
    fn hint(&self) -> String {
        match &self.worker.kv_events {
            Some(first) => format!(
                "rank N publishes at N ports above rank 0's, and `kv_events` is {first:?}; give it a \
                 port that leaves room below 65536"
            ),
            None => "the engine names no tcp endpoint of theirs; see `dp_size` in its [[workers]]"
                .to_owned(),
        }
    }
}

/// The sources of a worker's ranks, where the file says the first one's.
fn configured(first: &str, ranks: u16) -> Vec<Option<KvSource>> {
    let source = |rank| {
        Some(KvSource {
            rank: u32::from(rank),
            endpoint: endpoint_of(first, rank)?,
            listens: true,
            replay_endpoint: None,
            topic: String::new(),
        })
    };
    (0..ranks).map(source).collect()
}

/// Those that an engine names, of the ranks that it is known to have.
fn by_rank(sources: Vec<KvSource>, ranks: u16) -> Vec<Option<KvSource>> {
    let mut found = vec![None; usize::from(ranks)];
    for source in sources {
        if let Some(place) = usize::try_from(source.rank).ok().and_then(|r| found.get_mut(r)) {
            *place = Some(source);
        }
    }
    found
}
