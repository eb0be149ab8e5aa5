//! The few calls to the API server, over the client that workers are spoken to with.
//!
//! Token and certificates are read anew for each: a pod's token is replaced every hour. Answers have bounds.

use super::discovery::Plan;
use super::objects::{List, Status};
use bytes::{Bytes, BytesMut};
use homing_runtime::settings::{Upstream as Reach, Worker};
use homing_runtime::upstream::{AnswerBody, Link, Outgoing, Upstream};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};

/// Objects of a page.
const PAGE: usize = 250;
/// Most pages of a list.
const PAGES_MAX: usize = 400;
/// Largest answer, and largest line of a watch.
const ANSWER_MAX: usize = 32 << 20;
const LINE_MAX: usize = 4 << 20;
/// For an answer to be whole.
const PATIENCE: Duration = Duration::from_secs(20);
/// For a connection to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long one may be unused.
const KEPT: Duration = Duration::from_secs(5);
/// How long what was sent may stay unacknowledged; a silent watch is asked as often.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
/// How much of the server's words is repeated.
const WORDS_MAX: usize = 300;

/// Why a call failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum ApiError {
    /// A file can't be used.
    #[error("{0}")]
    File(String),
    /// It doesn't answer, or breaks off.
    #[error("the API server at {at} can't be reached: {why}")]
    Unreachable { at: String, why: String },
    /// It answers something else.
    #[error("{what}: {code} of the API server: {words}{}", hint(*code))]
    Refused { what: String, code: u16, words: String },
    /// What it answers is none of what was asked for.
    #[error("{what}: {why}")]
    Nonsense { what: String, why: String },
}

impl ApiError {
    /// Where we were in the list is forgotten there: it is begun anew.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. })
    }
}

/// What to do about it.
fn hint(code: u16) -> &'static str {
    match code {
        401 => "; see the token (discovery.token_file, or the pod's service account)",
        403 => "; give the service account a Role for it: docs/deploy/kubernetes.md has one",
        _ => "",
    }
}

/// See the module.
pub(super) struct Api {
    plan: Arc<Plan>,
    upstream: Upstream,
    /// Which of the servers is asked.
    server: usize,
}

impl Api {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        Self { plan, upstream: Upstream::new(), server: 0 }
    }

    /// Another server, where there are several.
    pub(super) fn turn(&mut self) {
        self.server = (self.server + 1) % self.plan.servers.len();
    }

    fn at(&self) -> String {
        self.plan.servers[self.server].to_string()
    }

    fn link(&self) -> Result<Arc<Link>, ApiError> {
        let access = &self.plan.wanted;
        let reach = Reach {
            api_key_file: access.token_file.clone(),
            ca_file: access.ca_file.clone(),
            cert_file: access.cert_file.clone(),
            key_file: access.key_file.clone(),
            connect_timeout: CONNECT,
            first_token_timeout: PATIENCE,
            idle_timeout: PATIENCE,
            pool_idle: KEPT,
            tcp_user_timeout: UNACKNOWLEDGED,
        };
        let server = Worker {
            id: "kubernetes".to_owned(),
            url: self.plan.servers[self.server].clone(),
            dp_size: None,
            kv_events: None,
            kv_replay: None,
            labels: Default::default(),
            upstream: Arc::new(reach),
            generation: 0,
        };
        Link::of(&server).map_err(|error| {
            let key = if error.key == "api_key_file" { "token_file" } else { error.key };
            ApiError::File(format!("discovery.{key}: {}", error.cause))
        })
    }

    fn unreachable(&self, why: impl ToString) -> ApiError {
        ApiError::Unreachable { at: self.at(), why: why.to_string() }
    }

    async fn send(&self, link: &Link, path: &str) -> Result<Response<AnswerBody>, ApiError> {
        let uri = link.uri(path).map_err(|error| ApiError::File(error.to_string()))?;
        let request = Request::get(uri)
            .header(http::header::ACCEPT, "application/json")
            .header(http::header::USER_AGENT, concat!("homing/", env!("CARGO_PKG_VERSION")))
            .body(Outgoing::default())
            .map_err(|error| ApiError::File(error.to_string()))?;
        let answer = timeout(PATIENCE, self.upstream.send(link, request)).await;
        let answer = answer.map_err(|_| self.unreachable("no answer in time"))?;
        let answer = answer.map_err(|(_, why)| self.unreachable(why))?;
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let body = self.body(answer).await.unwrap_or_default();
        let status: Status = serde_json::from_slice(&body).unwrap_or_default();
        let words = status.message.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect();
        Err(ApiError::Refused { what: what(path), code, words })
    }

    async fn body(&self, answer: Response<AnswerBody>) -> Result<Bytes, ApiError> {
        let read = http_body_util::Limited::new(answer.into_body(), ANSWER_MAX).collect();
        match timeout(PATIENCE, read).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.unreachable(error)),
            Err(_) => Err(self.unreachable("its answer doesn't end")),
        }
    }

    /// One object.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let link = self.link()?;
        self.get_by(&link, path).await
    }

    async fn get_by<T: DeserializeOwned>(&self, link: &Link, path: &str) -> Result<T, ApiError> {
        let body = self.body(self.send(link, path).await?).await?;
        let nonsense =
            |e: serde_json::Error| ApiError::Nonsense { what: what(path), why: e.to_string() };
        serde_json::from_slice(&body).map_err(nonsense)
    }

    /// All pages of a list, each object as soon as it is read; gives the version of the whole.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        selector: Option<&str>,
        mut each: impl FnMut(T),
    ) -> Result<String, ApiError> {
        let link = self.link()?;
        let mut next: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut query = Query::new(path).and("limit", &PAGE.to_string());
            if let Some(selector) = selector {
                query = query.and("labelSelector", selector);
            }
            if let Some(next) = &next {
                query = query.and("continue", next);
            }
            let page: List<T> = self.get_by(&link, &query.0).await?;
            page.items.into_iter().flatten().for_each(&mut each);
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(page.metadata.resource_version);
            }
        }
        let why = format!("more than {PAGES_MAX} pages");
        Err(ApiError::Nonsense { what: what(path), why })
    }

    /// What changes since a version, for so long.
    pub(super) async fn watch(
        &self,
        path: &str,
        selector: Option<&str>,
        version: &str,
        length: Duration,
    ) -> Result<Watch, ApiError> {
        let mut query = Query::new(path)
            .and("watch", "1")
            .and("allowWatchBookmarks", "true")
            .and("resourceVersion", version)
            .and("timeoutSeconds", &length.as_secs().max(1).to_string());
        if let Some(selector) = selector {
            query = query.and("labelSelector", selector);
        }
        let link = self.link()?;
        let answer = self.send(&link, &query.0).await?;
        let until = Instant::now() + length + PATIENCE;
        Ok(Watch { body: answer.into_body(), read: BytesMut::new(), looked: 0, until, _link: link })
    }
}

/// The lines of a watch.
pub(super) struct Watch {
    body: AnswerBody,
    read: BytesMut,
    /// So much of what was read has no end of a line.
    looked: usize,
    /// The server ends it before.
    until: Instant,
    /// Its connection is kept by it.
    _link: Arc<Link>,
}

impl Watch {
    /// The next line; `None`: the server has ended it. May be cancelled.
    pub(super) async fn line(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            if let Some(at) = self.read[self.looked..].iter().position(|b| *b == b'\n') {
                let line = self.read.split_to(self.looked + at + 1).freeze();
                self.looked = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.looked = self.read.len();
            if self.looked > LINE_MAX {
                return Err(format!("a line of more than {LINE_MAX} bytes"));
            }
            match timeout_at(self.until, self.body.frame()).await {
                Err(_) => return Err("it doesn't end as it should".to_owned()),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(error.to_string()),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// A path with its query.
struct Query(String);

impl Query {
    fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    fn and(mut self, name: &str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    self.0.push(byte.into());
                }
                _ => self.0.push_str(&format!("%{byte:02X}")),
            }
        }
        self
    }
}

/// What was asked for, for people.
fn what(path: &str) -> String {
    path.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped() {
        let query = Query::new("/p").and("a", "b=c,d in (e)").and("f", "1");
        assert_eq!(query.0, "/p?a=b%3Dc%2Cd%20in%20%28e%29&f=1");
        assert_eq!(what(&query.0), "/p");
    }
}
