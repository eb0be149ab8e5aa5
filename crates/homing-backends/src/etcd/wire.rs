//! One connection to etcd, made when it is needed, and what its failures mean.
//!
//! HTTP/2 by hyper, TLS by rustls: all calls of a [`Wire`] share one connection. Where it breaks, or etcd says there that
//! it can't serve, the next call makes one to the next place. Who can't be reached is not asked again for a moment, so
//! that calls during an outage fail at once and not each after a time-out of its own. It lives on the runtime that it was
//! made on, whichever thread calls.

use super::generated::AuthenticateRequest;
use super::generated::auth_client::AuthClient;
use super::place::Place;
use homing_runtime::replication::port::{PortError, Reach, STORE_PATIENCE};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

/// For a connection to one place, log-in included: half of a call's, so that another one can be tried in it.
const CONNECT: Duration = Duration::from_secs(1);
/// Who could not be reached is left alone for as long.
const PAUSE: Duration = Duration::from_millis(100);
/// A silent connection is asked whether it is there. etcd hangs up on who asks more often than every 5 s.
const PING: Duration = Duration::from_secs(10);
/// For the answer to that.
const PING_PATIENCE: Duration = Duration::from_secs(5);
/// What is etcd called.
const BACKEND: &str = "etcd";

/// Why a call came to nothing.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// What etcd calls it; `Unavailable` where it said nothing.
    pub(super) code: Code,
    /// The same for the ports.
    pub(super) error: PortError,
}

impl From<PortError> for Fault {
    fn from(error: PortError) -> Self {
        Self { code: Code::Unavailable, error }
    }
}

/// See the module.
pub(super) struct Wire {
    reach: Arc<Reach>,
    places: Vec<Arc<Place>>,
    home: Handle,
    state: Mutex<State>,
    /// Held while a connection is made: the others wait for that one, each as long as its own patience lasts.
    making: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("urls", &self.reach.urls).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    current: Option<Channel>,
    /// The place to try next, and how many connections there have been.
    next: usize,
    made: u64,
    failed: Option<(Instant, PortError)>,
}

impl Wire {
    /// Nothing is connected yet; that happens on the current runtime. The files of TLS and the password are looked at
    /// here, and read anew for each connection.
    pub(super) fn new(reach: Reach) -> Result<Self, PortError> {
        let places = places(&reach)?.into_iter().map(Arc::new).collect();
        let (state, making) = Default::default();
        Ok(Self { reach: Arc::new(reach), places, home: Handle::current(), state, making })
    }

    /// Makes a connection if there is none.
    pub(super) async fn connect(&self) -> Result<(), PortError> {
        let late = |_| unreachable(&self.all(), "it didn't answer in time");
        tokio::time::timeout(STORE_PATIENCE, self.channel()).await.map_err(late)?.map(|_| ())
    }

    fn current(&self) -> Option<Result<Channel, PortError>> {
        let state = self.state.lock();
        if let Some(channel) = &state.current
            && !channel.send.is_closed()
        {
            return Some(Ok(channel.clone()));
        }
        let (at, error) = state.failed.as_ref()?;
        (at.elapsed() < PAUSE).then(|| Err(error.clone()))
    }

    /// The connection, for calls that last: they must say when it has broken ([`Wire::lost`]).
    pub(super) async fn channel(&self) -> Result<Channel, PortError> {
        if let Some(current) = self.current() {
            return current;
        }
        let _making = self.making.lock().await;
        if let Some(current) = self.current() {
            return current;
        }
        let mut worst = None;
        for _ in &self.places {
            let (place, number) = {
                let mut state = self.state.lock();
                state.current = None;
                state.made += 1;
                (self.places[state.next % self.places.len()].clone(), state.made)
            };
            let url = place.url.clone();
            let join = tokio::time::timeout(CONNECT, join(self.reach.clone(), place, number));
            let made = match self.home.spawn(join).await {
                Ok(Ok(made)) => made,
                Ok(Err(_)) => Err(unreachable(&url, "no answer in time")),
                Err(_) => Err(unreachable(&url, "the router is shutting down")),
            };
            let mut state = self.state.lock();
            match made {
                Ok(channel) => {
                    state.failed = None;
                    state.current = Some(channel.clone());
                    return Ok(channel);
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to etcd");
                    state.next += 1;
                    if !matches!(worst, Some(PortError::Refused { .. } | PortError::Setting(_))) {
                        worst = Some(error);
                    }
                }
            }
        }
        let error = worst.unwrap_or_else(|| unreachable(&self.all(), "there is no place to try"));
        self.state.lock().failed = Some((Instant::now(), error.clone()));
        Err(error)
    }

    /// That connection is of no use any more.
    pub(super) fn lost(&self, number: u64) {
        let mut state = self.state.lock();
        if state.current.as_ref().is_some_and(|channel| channel.number == number) {
            state.current = None;
            state.next += 1;
        }
    }

    /// One call, within the store's patience. It is made again where it surely has not been heard, or where only the
    /// token was too old.
    pub(super) async fn ask<T, F, A>(&self, call: F) -> Result<T, Fault>
    where
        F: Fn(Channel) -> A,
        A: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut at = None;
        let asked = tokio::time::timeout(STORE_PATIENCE, async {
            let mut again = true;
            loop {
                let channel = self.channel().await?;
                let number = channel.number;
                let url = at.insert((channel.at.clone(), number)).0.clone();
                let status = match call(channel).await {
                    Ok(answer) => return Ok(answer.into_inner()),
                    Err(status) => status,
                };
                let old_token = is_of_token(&status) && self.reach.user.is_some();
                if old_token || is_of_connection(status.code()) {
                    self.lost(number);
                }
                if again && (old_token || was_not_heard(&status)) {
                    again = false;
                    continue;
                }
                return Err(judge(&url, &status));
            }
        })
        .await;
        match (asked, at) {
            (Ok(done), _) => done,
            (Err(_), Some((url, number))) => {
                self.lost(number);
                Err(unreachable(&url, "it didn't answer in time").into())
            }
            (Err(_), None) => Err(unreachable(&self.all(), "no connection in time").into()),
        }
    }

    pub(super) fn all(&self) -> String {
        let urls: Vec<&str> = self.places.iter().map(|place| &*place.url).collect();
        urls.join(", ")
    }
}

/// The places of the settings, with the files that they need looked at.
pub(super) fn places(reach: &Reach) -> Result<Vec<Place>, PortError> {
    let places: Result<Vec<Place>, PortError> =
        reach.urls.iter().map(|url| Place::of(url)).collect();
    let places = places?;
    if places.is_empty() {
        return Err(PortError::Setting("no URL of etcd is given".to_owned()));
    }
    if places.iter().any(Place::is_tls) {
        super::place::tls(reach)?;
    }
    super::place::password(reach)?;
    Ok(places)
}

/// A connection on which we are known.
async fn join(reach: Arc<Reach>, place: Arc<Place>, number: u64) -> Result<Channel, PortError> {
    let io = place.connect(&reach).await?;
    let failed = |e: hyper::Error| unreachable(&place.url, &words(&e));
    let (send, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING_PATIENCE)
        .handshake(io)
        .await
        .map_err(failed)?;
    let url = place.url.clone();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(url = &*url, %error, "a connection to etcd has ended");
        }
    });
    let (origin, at) = (place.origin.clone(), place.url.clone());
    let mut channel = Channel { send, origin, at, number, token: None };
    channel.token = log_in(&reach, &channel).await?;
    Ok(channel)
}

async fn log_in(reach: &Reach, channel: &Channel) -> Result<Option<HeaderValue>, PortError> {
    let Some((name, password)) = super::place::password(reach)? else { return Ok(None) };
    let mut auth = AuthClient::with_origin(channel.clone(), channel.origin.clone());
    match auth.authenticate(AuthenticateRequest { name, password }).await {
        Ok(answer) => {
            let mut token = HeaderValue::try_from(answer.into_inner().token)
                .map_err(|_| unreachable(&channel.at, "its token can't be used"))?;
            token.set_sensitive(true);
            Ok(Some(token))
        }
        // It asks nobody who he is.
        Err(status) if status.message().contains("authentication is not enabled") => Ok(None),
        Err(status) => Err(judge(&channel.at, &status).error),
    }
}

/// It said nothing.
pub(super) fn unreachable(at: &str, why: &str) -> PortError {
    PortError::Unreachable { backend: BACKEND, at: at.to_owned(), why: why.to_owned() }
}

/// What an error of etcd's means for us.
pub(super) fn judge(at: &str, status: &Status) -> Fault {
    let (code, mut why) = (status.code(), status.message().to_owned());
    if let Some(cause) = std::error::Error::source(status) {
        // The connection's own words, where there are some.
        why = words(cause);
    }
    let error = match code {
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Unimplemented => PortError::Refused { backend: BACKEND, at: at.to_owned(), why },
        _ => unreachable(at, &why),
    };
    Fault { code, error }
}

/// An error with its causes.
pub(super) fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// A token has a time, and ends when etcd starts anew or its users change.
fn is_of_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("invalid auth token")
        || status.message().contains("revision of auth store is old")
        || status.message().contains("user name is empty")
}

/// Another connection may do better.
fn is_of_connection(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
    )
}

/// Whether the request has not left.
fn was_not_heard(status: &Status) -> bool {
    let source = std::error::Error::source(status);
    source
        .and_then(|e| e.downcast_ref::<hyper::Error>())
        .is_some_and(|e| e.is_canceled() || e.is_closed())
        || status.message().contains("Service was not ready")
}

/// The connection as clients take it. Clones share it.
#[derive(Clone)]
pub(super) struct Channel {
    send: SendRequest<Body>,
    token: Option<HeaderValue>,
    pub(super) number: u64,
    pub(super) origin: Uri,
    pub(super) at: Arc<str>,
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.send.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let headers = request.headers_mut();
        if let Some(token) = &self.token {
            headers.insert("token", token.clone());
        }
        // A member that has lost the others says so, and doesn't keep us waiting.
        headers.insert("hasleader", HeaderValue::from_static("true"));
        Box::pin(self.send.send_request(request))
    }
}
