//! A connection that makes itself anew, and what is known of it.
//!
//! The first try is made here and waited for, so that a wrong password is an error at start; where nobody is there it
//! goes on in the background. What `async-nats` tells by events is kept as counters: an event can't be missed so.

use super::BACKEND;
use async_nats::rustls;
use async_nats::{Auth, AuthError, Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use homing_runtime::pem;
use homing_runtime::replication::port::{PortError, Reach, STORE_PATIENCE};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// For a connection to be made.
const CONNECT: Duration = Duration::from_secs(2);
/// A silent server is asked so often; after three times without an answer the connection counts as lost.
const PING: Duration = Duration::from_secs(3);
/// Between two tries, at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Between a loss and the first try, at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// What waits for the socket, in messages: as much may still go out after an outage that has just begun.
const COMMANDS: usize = 128;
/// Largest file with a password.
const PASSWORD_MAX: u64 = 4096;

/// What has become of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// It is there.
    pub(super) up: bool,
    /// How often it was lost.
    pub(super) losses: u64,
    /// How many messages were dropped, since nobody took them.
    pub(super) dropped: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) client: Client,
    /// Its servers, as they are shown.
    pub(super) at: Arc<str>,
    pub(super) state: watch::Receiver<State>,
}

impl Line {
    /// Whether something can be sent now.
    pub(super) fn check(&self) -> Result<(), PortError> {
        match self.client.connection_state() {
            async_nats::connection::State::Connected => Ok(()),
            _ => Err(self.unreachable("not connected")),
        }
    }

    pub(super) fn unreachable(&self, why: impl ToString) -> PortError {
        PortError::Unreachable { backend: BACKEND, at: self.at.to_string(), why: why.to_string() }
    }

    pub(super) fn refused(&self, why: impl ToString) -> PortError {
        PortError::Refused { backend: BACKEND, at: self.at.to_string(), why: why.to_string() }
    }
}

/// Connects, or begins to. `carries`: what goes over it, for the log, since a router may have two; `name`: what the
/// server's monitoring shows; `queue`: messages that one subscription holds.
pub(super) async fn dial(
    reach: &Reach,
    carries: &'static str,
    name: &str,
    queue: usize,
) -> Result<Line, PortError> {
    let servers = servers(&reach.urls)?;
    let at: Arc<str> = reach.urls.join(", ").into();
    check_files(reach)?;
    let (tell, state) = watch::channel(State::default());
    let heard = Heard { tell, at: at.clone(), carries, refused: AtomicBool::new(false) };
    let heard = Arc::new(heard);
    let options = || options(reach, name, queue, heard.clone());
    let error = match options().connect(&servers[..]).await {
        Ok(client) => return Ok(Line { client, at, state }),
        Err(error) => error,
    };
    let refused = || PortError::Refused {
        backend: BACKEND,
        at: at.to_string(),
        why: match error.kind() {
            ConnectErrorKind::AuthorizationViolation => {
                "user and password are not right, or there are none".to_owned()
            }
            _ => error.to_string(),
        },
    };
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Tls => return Err(refused()),
        ConnectErrorKind::Authentication | ConnectErrorKind::ServerParse => {
            return Err(PortError::Setting(format!("NATS at {at}: {error}")));
        }
        _ if is_tls(&error) => return Err(refused()),
        _ => {}
    }
    tracing::warn!(at = &*at, carries, %error, "NATS is not there yet: it is waited for");
    let client = options().retry_on_initial_connect().connect(&servers[..]).await;
    let client = client.map_err(|error| PortError::Setting(format!("NATS at {at}: {error}")))?;
    Ok(Line { client, at, state })
}

fn options(reach: &Reach, name: &str, queue: usize, heard: Arc<Heard>) -> ConnectOptions {
    let (user, file) = (reach.user.clone(), reach.password_file.clone());
    let auth = move |_| {
        let (user, file) = (user.clone(), file.clone());
        async move {
            let mut auth = Auth::new();
            auth.username = user;
            auth.password = file.as_deref().map(password).transpose().map_err(AuthError::new)?;
            Ok(auth)
        }
    };
    let mut options = ConnectOptions::with_auth_callback(auth)
        .name(name)
        .connection_timeout(CONNECT)
        .request_timeout(Some(STORE_PATIENCE))
        .ping_interval(PING)
        .max_reconnects(None)
        .reconnect_delay_callback(pause)
        .client_capacity(COMMANDS)
        .subscription_capacity(queue)
        .event_callback(move |event| {
            heard.note(&event);
            std::future::ready(())
        });
    if reach.ca_file.is_some() || reach.cert_file.is_some() {
        options = options.require_tls(true);
    }
    if let Some(ca) = &reach.ca_file {
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&reach.cert_file, &reach.key_file) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    options
}

/// Before the `attempt`th try since the connection was there last.
fn pause(attempt: usize) -> Duration {
    let doubled = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(5);
    let longest = (PAUSE_MIN * 2u32.pow(doubled)).min(PAUSE_MAX);
    // Between a half and all of it: routers that lost the same server don't come back as one.
    let chance = (RandomState::new().hash_one(attempt) >> 40) as f64 / f64::from(1 << 24);
    longest.mul_f64(0.5 + chance / 2.0)
}

/// The servers' addresses.
fn servers(urls: &[String]) -> Result<Vec<ServerAddr>, PortError> {
    let wrong = |url: &str, why: &str| {
        // What stands before an @ may be a password.
        let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
        PortError::Setting(format!("`{}`: {why}", shown.escape_debug()))
    };
    if urls.is_empty() {
        return Err(PortError::Setting(
            "no NATS server is named: write e.g. \"nats://10.0.0.1:4222\"".to_owned(),
        ));
    }
    let one = |url: &String| {
        if url.contains('@') {
            let why = "a URL of NATS names no user here: remove what is before the @, and set `user` and \
                       `password_file`";
            return Err(wrong(url, why));
        }
        if !url.starts_with("nats://") && !url.starts_with("tls://") {
            return Err(wrong(
                url,
                "this is no URL of NATS: write nats://host:port, or tls://host:port",
            ));
        }
        url.parse::<ServerAddr>().map_err(|error| wrong(url, &error.to_string()))
    };
    urls.iter().map(one).collect()
}

/// What can be said without connecting.
pub(super) fn look_at(reach: &Reach) -> Result<(), PortError> {
    servers(&reach.urls)?;
    check_files(reach)
}

/// Every file must be there and make sense now, though all are read anew for each connection.
fn check_files(reach: &Reach) -> Result<(), PortError> {
    let setting = |key: &str, error: pem::FileError| PortError::Setting(format!("{key}: {error}"));
    if let Some(file) = &reach.ca_file {
        let read = pem::read(file).and_then(|text| pem::roots(file, &text));
        read.map_err(|error| setting("ca_file", error))?;
    }
    if let Some(file) = &reach.cert_file {
        let read = pem::read(file).and_then(|text| pem::certificates(file, &text));
        read.map_err(|error| setting("cert_file", error))?;
    }
    if let Some(file) = &reach.key_file {
        let read = pem::read(file).and_then(|text| pem::key(file, &text));
        read.map_err(|error| setting("key_file", error))?;
    }
    if reach.cert_file.is_some() != reach.key_file.is_some() {
        return Err(PortError::Setting(
            "cert_file and key_file belong together: give both, or none".to_owned(),
        ));
    }
    if let Some(file) = &reach.password_file {
        password(file).map_err(|why| PortError::Setting(format!("password_file: {why}")))?;
    }
    Ok(())
}

/// The first line of a file. Its words are never repeated.
fn password(file: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{} can't be read: {error}", file.display());
    if std::fs::metadata(file).map_err(failed)?.len() > PASSWORD_MAX {
        return Err(format!("{} has more than {PASSWORD_MAX} bytes", file.display()));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("the first line of {} is empty", file.display())),
    }
}

/// Whether the other side's certificate, or ours, is what is wrong.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error hides the one that it carries from `source`.
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if error.is::<rustls::Error>() || carried.is_some_and(|e| e.is::<rustls::Error>()) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Where the events go.
struct Heard {
    tell: watch::Sender<State>,
    at: Arc<str>,
    carries: &'static str,
    /// That it refuses us has been said, and it has not been there since.
    refused: AtomicBool,
}

impl Heard {
    fn note(&self, event: &Event) {
        let (at, carries) = (&*self.at, self.carries);
        match event {
            Event::Connected => {
                tracing::info!(at, carries, "NATS is connected");
                self.refused.store(false, Ordering::Relaxed);
                self.tell.send_modify(|state| state.up = true);
            }
            Event::Disconnected => {
                tracing::warn!(
                    at,
                    carries,
                    "the connection to NATS is lost: tried again until it is there"
                );
                self.tell.send_modify(|state| {
                    state.up = false;
                    state.losses += 1;
                });
            }
            Event::SlowConsumer(_) => self.tell.send_modify(|state| state.dropped += 1),
            Event::ServerError(error) => tracing::warn!(at, carries, %error, "NATS complains"),
            Event::ClientError(error) => {
                let error = error.to_string();
                if error.contains(&ConnectErrorKind::AuthorizationViolation.to_string())
                    || error.contains(&ConnectErrorKind::Authentication.to_string())
                {
                    if !self.refused.swap(true, Ordering::Relaxed) {
                        tracing::error!(
                            at,
                            carries,
                            error,
                            "NATS refuses us by now: see user and password_file"
                        );
                    }
                } else {
                    tracing::debug!(at, carries, error, "NATS can't be reached");
                }
            }
            other => tracing::debug!(at, carries, %other, "of NATS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_never_far_apart_nor_in_a_hot_loop() {
        for attempt in 0..200 {
            let pause = pause(attempt);
            assert!(pause >= PAUSE_MIN / 2 && pause <= PAUSE_MAX, "{attempt}: {pause:?}");
        }
        assert!(pause(usize::MAX) >= PAUSE_MAX / 2, "it has backed off");
    }

    #[test]
    fn urls_are_those_of_nats_and_name_nobody() {
        let of = |url: &str| servers(&[url.to_owned()]);
        assert_eq!(of("nats://h:4222").unwrap().len(), 1);
        assert_eq!(of("tls://[::1]:4222").unwrap().len(), 1);
        for (url, says) in [
            ("http://h:1", "nats://"),
            ("h:4222", "nats://"),
            ("nats://me:secret@h:4222", "password_file"),
            ("nats://h:port", "h:port"),
        ] {
            let error = of(url).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
        assert!(servers(&[]).unwrap_err().to_string().contains("no NATS server"));
    }
}
