//! Who sends spans: a task that gathers them for a moment, and posts them.

use super::TraceSettings;
use super::span::{Fact, Span, attribute};
use crate::settings::{UrlError, WorkerUrl};
use crate::upstream::{Link, Outgoing, Upstream};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Spans are gathered for so long,
const GATHER: Duration = Duration::from_secs(1);
/// or until there are so many requests of them.
const BATCH: usize = 512;
/// For an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of which no more is read.
const ANSWER_MAX: usize = 64 << 10;
/// Complaints are as far apart.
const QUIET: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Exporter {
    settings: TraceSettings,
    spans: mpsc::Receiver<Vec<Span>>,
}

impl Exporter {
    pub(super) fn new(settings: TraceSettings, spans: mpsc::Receiver<Vec<Span>>) -> Self {
        Self { settings, spans }
    }

    /// Sends what comes, until it is over; then the rest, once.
    ///
    /// # Errors
    /// Where the endpoint is nothing that can be connected to.
    pub async fn run(mut self, over: CancellationToken) -> Result<(), UrlError> {
        let url: WorkerUrl = self.settings.endpoint.to_string().parse()?;
        let (link, upstream) = (Link::plain(url), Upstream::new());
        let mut complained: Option<Instant> = None;
        let mut batch = Vec::new();
        loop {
            let open = self.gather(&mut batch, &over).await;
            let requests = batch.len();
            if requests > 0 {
                let body = body(&self.settings.service, batch.drain(..).flatten());
                if let Err(why) = self.post(&upstream, &link, body).await
                    && complained.is_none_or(|at| at.elapsed() >= QUIET)
                {
                    complained = Some(Instant::now());
                    let endpoint = self.settings.endpoint.to_string();
                    tracing::warn!(
                        endpoint,
                        requests,
                        why,
                        "spans could not be sent, and are lost"
                    );
                }
            }
            if !open {
                return Ok(());
            }
        }
    }

    /// Waits for spans, and a moment longer for more. False: these are the last.
    async fn gather(&mut self, batch: &mut Vec<Vec<Span>>, over: &CancellationToken) -> bool {
        let mut until: Option<Instant> = None;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            let late = async {
                match until {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                n = self.spans.recv_many(batch, room) => {
                    if n == 0 {
                        return false;
                    }
                    until.get_or_insert_with(|| Instant::now() + GATHER);
                }
                () = late => return true,
                () = over.cancelled() => return false,
            }
        }
        true
    }

    async fn post(&self, upstream: &Upstream, link: &Arc<Link>, body: Bytes) -> Result<(), String> {
        let mut request = http::Request::new(Outgoing::from(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = link.uri("").map_err(|_| "its URL is none".to_owned())?;
        let headers = request.headers_mut();
        let json = http::HeaderValue::from_static("application/json");
        headers.insert(http::header::CONTENT_TYPE, json);
        for (name, value) in &self.settings.headers {
            headers.append(name, value.clone());
        }
        let answer = async {
            let response = upstream.send(link, request).await.map_err(|(_, why)| why)?;
            let status = response.status();
            let _ = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            if status.is_success() {
                Ok(())
            } else {
                Err(format!("the collector answers {status}"))
            }
        };
        let late = |_| Err("the collector doesn't answer in time".to_owned());
        tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(late)
    }
}

fn body(service: &str, spans: impl Iterator<Item = Span>) -> Bytes {
    let spans: Vec<_> = spans.map(|span| span.to_json()).collect();
    let version = env!("CARGO_PKG_VERSION");
    let resource =
        [("service.name", Fact::from(service)), ("service.version", Fact::from(version))];
    let resource: Vec<_> = resource.iter().map(|(key, fact)| attribute(key, fact)).collect();
    let all = json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "homing", "version": version}, "spans": spans}],
    }]});
    all.to_string().into()
}
