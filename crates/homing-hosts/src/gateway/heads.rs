//! A request's head and a worker's, read by the gateway's own code without a connection, a fleet or a worker: for the
//! fuzzer (`fuzz/targets/headers.rs`), which is what may use it besides.

use super::access::Access;
use super::forward;
use super::record;
use super::reply::Error;
use super::session::Finder;
use super::steering::Steering;
use homing_core::ids::{DpRank, KeySecret};
use homing_runtime::keys::KeysError;
use homing_runtime::settings::{Settings, WorkerUrl};
use homing_runtime::traces::Context;
use homing_runtime::upstream::Link;
use homing_wire::request::{BodyPaths, CommonView};
use http::header::HeaderMap;
use http::{HeaderValue, Method, Request, Version};
use std::net::IpAddr;
use std::sync::Arc;

/// What a router with some settings makes of heads.
#[derive(Debug)]
pub struct Heads {
    access: Arc<Access>,
    finder: Finder,
    paths: BodyPaths,
    secret: KeySecret,
    link: Arc<Link>,
}

/// What a head says, and what its worker gets of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose it is; empty where there are no tenants.
    pub tenant: String,
    /// Where its client sits.
    pub client: Option<IpAddr>,
    /// Its session's digest.
    pub session: Option<String>,
    /// Workers that it allows.
    pub allowed: usize,
    /// Labels that it asks for.
    pub labels: usize,
    /// Its priority, as it counts.
    pub priority: i32,
    /// The headers that go out.
    pub sent: HeaderMap,
    /// The trailers that go out behind its body.
    pub trailers: Option<HeaderMap>,
}

/// Why a head is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status.
    pub status: u64,
    /// What the client is told.
    pub message: String,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let said = error.described();
        let message = said["message"].as_str().unwrap_or_default().to_owned();
        Self { status: said["status"].as_u64().unwrap_or_default(), message }
    }
}

impl Heads {
    /// By these settings, towards the worker at `url`.
    ///
    /// # Errors
    /// [`KeysError`] of `gateway.api_keys_file`.
    pub fn new(settings: Settings, url: WorkerUrl) -> Result<Self, KeysError> {
        Ok(Self {
            finder: Finder::of(&settings.affinity),
            paths: BodyPaths::parse(&settings.affinity.body_fields).unwrap_or_default(),
            access: Arc::new(Access::load(Arc::new(settings))?),
            secret: KeySecret::new(&[7; 32]),
            link: Link::plain(url),
        })
    }

    /// What becomes of a head (and of trailers) that comes from `peer`, for one rank of the worker where it has several.
    ///
    /// # Errors
    /// [`Refused`], as the client is told.
    pub fn request(
        &self,
        peer: Option<IpAddr>,
        version: Version,
        headers: HeaderMap,
        trailers: HeaderMap,
        rank: Option<u16>,
    ) -> Result<Head, Refused> {
        const BODY: &[u8] = br#"{"model":"m","messages":[]}"#;
        let mut request = Request::new(());
        (*request.method_mut(), *request.version_mut()) = (Method::POST, version);
        *request.headers_mut() = headers;
        let (parts, ()) = request.into_parts();
        let caller = self.access.caller(peer, &parts.headers)?;
        let steering = Steering::parse(&parts.headers)?;
        if steering.steers() && !caller.may_steer() {
            return Err(Error::not_allowed("gateway.steering").into());
        }
        // Read by whoever records and counts.
        let _ = (self.finder.names_one(&parts.headers), super::proxy::told_length(&parts.headers));
        let _ = (steering.explicit(), steering.constraints(), caller.limits());
        let common = CommonView::parse(BODY, &self.paths).map_err(|e| Error::request(&e))?;
        let found = self.finder.find(&parts.headers, &steering, &common, || None)?;
        let session = found.named.map(|n| n.session(&self.secret, &caller.tenant, ""));
        let id = record::request_id(&parts.headers).unwrap_or(HeaderValue::from_static("ours"));
        let span = Context::of(&parts.headers).map(|context| context.header());
        let takes_keys = caller.access.takes_keys();
        let mut sent = forward::request_headers(&parts, &id, span, takes_keys);
        let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
        let body = forward::body(&parts, BODY.into(), trailers, &mut sent);
        let trailers = body.trailers().cloned();
        let rank = rank.map(DpRank);
        let sent = forward::request(&parts, &sent, &self.link, rank, body);
        Ok(Head {
            tenant: caller.tenant.to_string(),
            client: caller.client,
            session: session.map(|session| self.secret.digest(session.key).to_string()),
            allowed: steering.allowed.as_ref().map_or(0, Vec::len),
            labels: steering.labels.len(),
            priority: caller.priority(steering.priority),
            sent: sent.map(|request| request.headers().clone()).unwrap_or_default(),
            trailers,
        })
    }

    /// What a client gets of the headers of a worker's answer, without those of our own; and of its trailers.
    #[must_use]
    pub fn response(&self, mut headers: HeaderMap, trailers: HeaderMap) -> [HeaderMap; 2] {
        forward::passed_headers(&mut headers);
        [headers, forward::trailers(trailers).unwrap_or_default()]
    }
}
