//! One request's record: filled as it goes, and emitted once, when it ends, as the access log's line
//! and the metrics' counts. It ends with whatever owns it: the handler, or the relayed body.

use super::Gateway;
use super::gone::Gone;
use super::onward::Onward;
use super::spans::Spans;
use homing_core::affinity::Outcome;
use homing_core::ask::{self, Failure};
use homing_core::explain::record::{Note, Report, Stage};
use homing_core::hash::Prompt;
use homing_core::ids::{DpRank, SessionDigest, WorkerId};
use homing_core::time::Time;
use homing_runtime::metrics::{Metrics, RequestLabels};
use homing_runtime::recorder::{Recorded, Recorder};
use homing_runtime::shell::Shell;
use homing_runtime::tenants::Entered;
use homing_runtime::traces::Fact;
use homing_wire::errors::ApiShape;
use homing_wire::usage::Usage;
use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its client went away first: what is true until something else is known.
    ClientGone,
    /// Answered to its end.
    Complete,
    /// Refused here.
    Refused,
    /// The worker broke off in the middle of the answer.
    WorkerBroke,
    /// Too slow.
    TimedOut,
    /// The router has stopped in the middle of it.
    ShutDown,
}

impl Ended {
    fn stage(self) -> Stage {
        match self {
            Self::ClientGone => Stage::ClientGone,
            Self::Complete => Stage::Complete,
            Self::Refused => Stage::Refused,
            Self::WorkerBroke => Stage::WorkerBroke,
            Self::TimedOut | Self::ShutDown => Stage::TimedOut,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::Complete => "complete",
            Self::Refused => "refused",
            Self::WorkerBroke => "worker_broke",
            Self::TimedOut => "timed_out",
            Self::ShutDown => "shut_down",
        }
    }
}

/// The version of the access line's fields; it rises when one changes its name or its meaning.
const SCHEMA: u32 = 1;
/// nginx's number for a client that closed the connection; no answer was sent.
const CLIENT_GONE: u16 = 499;
/// A request id that is no text.
const UNREADABLE: &str = "?";
/// A client's own request id is taken up to this length.
const ID_MAX: usize = 128;

/// See the module.
#[derive(Debug)]
pub(super) struct Record {
    shell: Arc<Shell>,
    access: bool,
    /// Whether it is to be emitted.
    counts: bool,
    began: Instant,
    endpoint: &'static str,
    /// Whose shape its errors have.
    pub(super) api: ApiShape,
    pub(super) request_id: HeaderValue,
    pub(super) instance: HeaderValue,
    pub(super) model: Option<Arc<str>>,
    pub(super) worker: Option<Arc<str>>,
    /// The life of it.
    pub(super) worker_id: Option<WorkerId>,
    /// Of a worker with several.
    pub(super) rank: Option<DpRank>,
    pub(super) session: Option<SessionDigest>,
    pub(super) outcome: Outcome,
    pub(super) status: u16,
    pub(super) code: &'static str,
    /// Counted, not guessed.
    pub(super) prompt_tokens: Option<u32>,
    pub(super) cached_tokens: Option<u32>,
    /// A measure of its length, where nobody has counted.
    pub(super) prompt_guess: u32,
    pub(super) attempts: u32,
    pub(super) events: u64,
    pub(super) usage: Option<Usage>,
    pub(super) ended: Ended,
    first: Option<Duration>,
    last: Option<Duration>,
    /// When it came, by the core's clock.
    came: Time,
    /// Its part in a trace.
    pub(super) spans: Option<Spans>,
    /// Its tenant, and what that may still take. Left with the record.
    pub(super) entered: Option<Entered>,
    pub(super) tenant: Option<Arc<str>>,
    /// What it takes to go on at another worker, until its answer takes it.
    pub(super) onward: Option<Box<Onward>>,
    /// Tells when the life of its worker is over.
    pub(super) gone: Option<Gone>,
    /// Where its client sits.
    pub(super) client: Option<IpAddr>,
    /// Whether answers tell the worker and what it had cached.
    pub(super) tells_workers: bool,
    /// What is written of it into `gateway.record`, if it is answered.
    pub(super) trace: Option<Box<Trace>>,
}

/// A request's part in a trace.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) recorder: Arc<Recorder>,
    /// By tokens, or else by text.
    pub(super) prompt: Prompt,
}

/// A request's own id, where it is one that we take.
pub(super) fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get("x-request-id").filter(|v| !v.is_empty() && v.len() <= ID_MAX).cloned()
}

impl Record {
    /// A request has come.
    pub(super) fn start(
        gateway: &Gateway,
        headers: &HeaderMap,
        endpoint: &'static str,
        api: ApiShape,
    ) -> Self {
        let request_id = request_id(headers).unwrap_or_else(|| {
            HeaderValue::from_str(&gateway.request_id())
                .unwrap_or_else(|_| HeaderValue::from_static("homing"))
        });
        let access = gateway.access.load();
        Self {
            shell: gateway.shell.clone(),
            access: access.settings.log.access,
            counts: true,
            began: Instant::now(),
            endpoint,
            api,
            request_id,
            instance: gateway.instance.clone(),
            model: None,
            worker: None,
            worker_id: None,
            rank: None,
            session: None,
            outcome: Outcome::None,
            status: CLIENT_GONE,
            code: "",
            prompt_tokens: None,
            cached_tokens: None,
            prompt_guess: 0,
            attempts: 0,
            events: 0,
            usage: None,
            ended: Ended::ClientGone,
            first: None,
            last: None,
            came: gateway.shell.now(),
            spans: Spans::begin(gateway.traces.as_ref(), headers),
            entered: None,
            tenant: None,
            client: None,
            onward: None,
            gone: None,
            tells_workers: access.tells_workers(),
            trace: None,
        }
    }

    /// What the record of its decision says besides the decision.
    pub(super) fn note(&self, prompt: Duration) -> Note {
        let id = self.request_id.to_str().unwrap_or(UNREADABLE);
        Note { id: Some(id.into()), came: Some(self.came), prompt, ..Note::default() }
    }

    /// What became of it.
    pub(super) fn report(&self, usage: Option<ask::Usage>) -> Report {
        let output_tokens = self.usage.map(|u| u.completion_tokens);
        Report { stage: Some(self.ended.stage()), usage, output_tokens }
    }

    /// Its line in the trace, where one is written and a worker has answered it.
    fn record(&mut self) {
        let Some(trace) = self.trace.take() else { return };
        if self.attempts == 0 || !(200..300).contains(&self.status) {
            return;
        }
        let Trace { recorder, prompt } = *trace;
        let output_tokens = self.usage.map_or(self.events, |u| u.completion_tokens);
        let (came, session) = (self.came, self.session);
        recorder.record(Recorded { came, session, prompt, output_tokens });
    }

    /// It goes on at another worker.
    pub(super) fn moved(
        &mut self,
        worker: Option<Arc<str>>,
        rank: Option<DpRank>,
        outcome: Outcome,
        attempts: u32,
    ) {
        (self.worker, self.rank, self.outcome) = (worker, rank, outcome);
        self.attempts += attempts;
        if self.counts {
            self.shell.metrics().retries(Failure::Broken);
        }
    }

    /// It has got a place, and is about to be sent there.
    pub(super) fn placed(&mut self) {
        let after = self.began.elapsed();
        if let Some(spans) = &mut self.spans {
            spans.placed(after);
        }
    }

    /// What its span says: the access log's fields, under OpenTelemetry's names where it has some.
    fn facts(&self) -> Vec<(&'static str, Fact)> {
        let text = |text: &str| Fact::Text(text.to_owned());
        let mut facts = vec![
            ("homing.request_id", text(self.request_id.to_str().unwrap_or(UNREADABLE))),
            ("homing.endpoint", text(self.endpoint)),
            ("http.response.status_code", Fact::Number(self.status.into())),
            ("homing.affinity", text(self.outcome.word())),
            ("homing.attempts", Fact::Number(self.attempts.into())),
            ("homing.ended", text(self.ended.word())),
        ];
        let texts = [
            ("gen_ai.request.model", self.model.as_deref().map(str::to_owned)),
            ("homing.worker", self.worker.as_deref().map(str::to_owned)),
            ("homing.session", self.session.map(|s| s.to_string())),
            ("homing.tenant", self.tenant.as_deref().map(str::to_owned)),
            ("homing.code", Some(self.code.to_owned()).filter(|code| !code.is_empty())),
        ];
        facts.extend(texts.into_iter().filter_map(|(key, fact)| Some((key, Fact::Text(fact?)))));
        let numbers = [
            ("homing.dp_rank", self.rank.map(|r| r.0.into())),
            ("gen_ai.usage.input_tokens", self.usage.map(|u| u.prompt_tokens)),
            ("gen_ai.usage.output_tokens", self.usage.map(|u| u.completion_tokens)),
            ("homing.cached_tokens", self.usage.and_then(|u| u.cached_tokens)),
            ("homing.predicted_cached_tokens", self.cached_tokens.map(u64::from)),
            ("homing.ttft_us", self.first.map(|d| d.as_micros() as u64)),
        ];
        facts
            .extend(numbers.into_iter().filter_map(|(key, fact)| Some((key, Fact::Number(fact?)))));
        facts
    }

    /// Settles what its tenant has taken: what the engine counted, or as good as that is known here.
    fn pay(&mut self) {
        let Some(mut entered) = self.entered.take() else { return };
        let served = self.attempts > 0 && (200..300).contains(&self.status);
        let known = u64::from(self.prompt_tokens.unwrap_or(self.prompt_guess));
        let guess = if served { known + self.events } else { 0 };
        let tokens = self.usage.map_or(guess, |u| u.prompt_tokens + u.completion_tokens);
        entered.spent(tokens, self.shell.now());
    }

    /// Of a request that is only looked at: neither logged nor counted.
    pub(super) fn unrecorded(
        gateway: &Gateway,
        headers: &HeaderMap,
        endpoint: &'static str,
        api: ApiShape,
    ) -> Self {
        let mut record = Self::start(gateway, headers, endpoint, api);
        record.counts = false;
        record.spans = None;
        record
    }

    /// The metrics that this request counts in; `None` where it is only looked at (R16).
    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.counts.then(|| self.shell.metrics())
    }

    /// It was refused before the core heard of it.
    pub(super) fn rejected_here(&self) {
        if self.counts {
            self.shell.metrics().rejected.inc();
        }
    }

    /// Bytes of the answer have come from the worker.
    pub(super) fn bytes(&mut self, now: Instant) {
        let after = now.saturating_duration_since(self.began);
        self.first.get_or_insert(after);
        self.last = Some(after);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.counts {
            return;
        }
        let took = self.began.elapsed();
        self.record();
        self.pay();
        if let Some(spans) = self.spans.take() {
            let broke = matches!(self.ended, Ended::WorkerBroke | Ended::TimedOut);
            let error = (broke || self.status >= 500).then(|| match self.code {
                "" => self.ended.word().to_owned(),
                code => code.to_owned(),
            });
            spans.finish(self.came, took, self.facts(), error);
        }
        let metrics = self.shell.metrics();
        let model = self.model.take().unwrap_or_else(|| Arc::from("other"));
        if let Some(first) = self.first {
            metrics.first_token(&model, first.as_secs_f64());
            if let (Some(last), 2..) = (self.last, self.events) {
                let mean = (last - first).as_secs_f64() / (self.events - 1) as f64;
                metrics.token_gaps(&model, mean);
            }
        }
        if self.access {
            let session = self.session.map(|s| s.to_string());
            let ms = |d: Duration| d.as_micros() as f64 / 1e3;
            tracing::info!(
                target: "homing::access",
                schema = SCHEMA,
                request_id = self.request_id.to_str().unwrap_or(UNREADABLE),
                endpoint = self.endpoint,
                client = self.client.map(tracing::field::display),
                tenant = self.tenant.as_deref(),
                model = &*model,
                status = self.status,
                code = self.code,
                worker = self.worker.as_deref().unwrap_or("-"),
                dp_rank = self.rank.map(|r| r.0),
                session = session.as_deref().unwrap_or("-"),
                affinity = self.outcome.word(),
                prompt_tokens = self.usage.map(|u| u.prompt_tokens).or(self.prompt_tokens.map(u64::from)),
                predicted_cached_tokens = self.cached_tokens,
                cached_tokens = self.usage.and_then(|u| u.cached_tokens),
                completion_tokens = self.usage.map(|u| u.completion_tokens),
                attempts = self.attempts,
                ttft_ms = self.first.map(ms),
                ms = ms(took),
                ended = self.ended.word(),
                "request"
            );
        }
        let (endpoint, status, code) = (self.endpoint, self.status, self.code);
        metrics.request(RequestLabels { model, endpoint, status, code }, took.as_secs_f64());
    }
}
