//! Traces over OTLP/HTTP, where the environment says so in OpenTelemetry's own words:
//!
//! | variable | |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | where spans go, whole |
//! | `OTEL_EXPORTER_OTLP_ENDPOINT` | the same without `/v1/traces` |
//! | `OTEL_EXPORTER_OTLP_HEADERS`, `.._TRACES_HEADERS` | `name=value,..`, e.g. an authorization |
//! | `OTEL_SERVICE_NAME` | default `homing` |
//! | `OTEL_TRACES_SAMPLER_ARG` | the share of requests that begin a trace of their own; default 1. A client's own decision comes first |
//! | `OTEL_SDK_DISABLED=true` | none of it |
//!
//! Spans go out in batches from a task of its own, as JSON; what can't be sent is dropped and counted, and never keeps
//! a request.

mod context;
mod send;
mod span;

pub use context::{Context, TRACEPARENT, to_hex};
pub use send::Exporter;
pub use span::{Fact, Kind, Span};

use http::{HeaderName, HeaderValue, Uri};
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use tokio::sync::mpsc;

/// Spans that wait to be sent at most.
const WAITING: usize = 8192;

/// What the environment says of traces.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// Where they go.
    pub endpoint: Uri,
    /// With which headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// As whose.
    pub service: String,
    /// How many requests begin a trace of their own, of all that no client has decided about.
    pub share: f64,
}

/// What is wrong with it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{variable} {what}")]
pub struct TraceError {
    /// The environment variable.
    pub variable: &'static str,
    /// What is wrong.
    pub what: String,
}

impl TraceSettings {
    /// From environment variables; `None` where they name no endpoint.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn of(env: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TraceError> {
        const WHOLE: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const SHARE: &str = "OTEL_TRACES_SAMPLER_ARG";
        let said = |name: &str| env(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        if said("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let (variable, text) = match (said(WHOLE), said(BASE)) {
            (Some(whole), _) => (WHOLE, whole),
            (None, Some(base)) => (BASE, format!("{}/v1/traces", base.trim_end_matches('/'))),
            (None, None) => return Ok(None),
        };
        let wrong = |variable, what: &str| TraceError { variable, what: what.to_owned() };
        let endpoint: Uri = text.parse().map_err(|_| wrong(variable, "is no URL"))?;
        if !matches!(endpoint.scheme_str(), Some("http" | "https"))
            || endpoint.authority().is_none()
        {
            return Err(wrong(variable, "must begin with http:// or https://"));
        }
        let mut headers = Vec::new();
        for variable in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
            let text = said(variable).unwrap_or_default();
            for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
                let parsed = pair.split_once('=').and_then(|(name, value)| {
                    let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
                    let mut value = HeaderValue::from_str(value.trim()).ok()?;
                    value.set_sensitive(true);
                    Some((name, value))
                });
                // It may be a secret: not repeated.
                headers.push(
                    parsed.ok_or_else(|| wrong(variable, "is not like `name=value,name=value`"))?,
                );
            }
        }
        let share = match said(SHARE) {
            None => 1.0,
            Some(text) => match text.parse::<f64>() {
                Ok(share) if (0.0..=1.0).contains(&share) => share,
                _ => return Err(wrong(SHARE, "must be a number from 0 to 1")),
            },
        };
        let service = said("OTEL_SERVICE_NAME").unwrap_or_else(|| "homing".to_owned());
        Ok(Some(Self { endpoint, headers, service, share }))
    }
}

/// Where finished spans go.
#[derive(Debug)]
pub struct Traces {
    queue: mpsc::Sender<Vec<Span>>,
    share: f64,
    /// Ids are drawn by counting from a random place: unlike any other process's, and never the same twice.
    seed: [u8; 16],
    next: AtomicU64,
    dropped: AtomicU64,
}

impl Traces {
    /// And who sends them.
    #[must_use]
    pub fn new(settings: &TraceSettings, seed: [u8; 16]) -> (Self, Exporter) {
        let (queue, spans) = mpsc::channel(WAITING);
        let (next, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        (
            Self { queue, share: settings.share, seed, next, dropped },
            Exporter::new(settings.clone(), spans),
        )
    }

    /// 16 bytes that look random: the splitmix64 of a counter, keyed.
    fn draw(&self) -> [u8; 16] {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let half = |key: &[u8], n: u64| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(key);
            let mut z =
                u64::from_le_bytes(bytes).wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let (a, b) = (half(&self.seed[..8], n), half(&self.seed[8..], !n));
        let mut id = [0; 16];
        id[..8].copy_from_slice(&a.to_be_bytes());
        id[8..].copy_from_slice(&b.max(1).to_be_bytes());
        id
    }

    /// The context of a request that comes, and what it is a part of; `None` where it is not to be recorded.
    #[must_use]
    pub fn begin(&self, client: Option<Context>) -> Option<(Context, Option<[u8; 8]>)> {
        let drawn = self.draw();
        match client {
            Some(c) => c.sampled.then(|| (Context { span: self.span(), ..c }, Some(c.span))),
            None => {
                let mut first = [0; 8];
                first.copy_from_slice(&drawn[..8]);
                // The trace's own bits decide, so that all who see it decide alike.
                let share = u64::from_be_bytes(first) as f64 / u64::MAX as f64;
                let context = Context { trace: drawn, span: self.span(), sampled: true };
                (share < self.share || self.share >= 1.0).then_some((context, None))
            }
        }
    }

    /// A new span's id.
    #[must_use]
    pub fn span(&self) -> [u8; 8] {
        let drawn = self.draw();
        let mut span = [0; 8];
        span.copy_from_slice(&drawn[8..]);
        span
    }

    /// A request's spans are finished.
    pub fn finish(&self, spans: Vec<Span>) {
        if self.queue.try_send(spans).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests whose spans were dropped, nobody taking them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[path = "traces_tests.rs"]
mod tests;
