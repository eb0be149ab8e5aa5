//! `homing serve`: the router, until a signal stops it.

use crate::replicate::replicate;
use crate::running::{self, Signals};
use crate::sources::Flags;
use crate::{Failure, descriptors, logging};
use anyhow::{Context, anyhow};
use homing_backends::{etcd, kubernetes};
use homing_hosts::{Extras, Server, StartError};
use homing_runtime::fleet::discovery::Driven;
use homing_runtime::metrics::Metrics;
use homing_runtime::settings::Settings;
use homing_runtime::traces::TraceSettings;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// The flags of `homing serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  homing serve --worker http://127.0.0.1:8000\n  homing serve \
                        --config homing.toml --policy least_loaded\n\nEvery key of the file can \
                        also come from the environment: HOMING_AFFINITY__TTL=10m. SIGTERM: unready \
                        for gateway.shutdown_delay, then no new connections, then running streams \
                        finish within gateway.shutdown_grace; a second signal ends it at once.")]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
    /// Start beside a router of the same user that serves at gateway.listen, and serve there, too, once a worker is ready:
    /// then stop the other one. Give it an --admin of its own
    #[arg(long)]
    take_over: bool,
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = args.flags.settings()?;
    let others =
        [settings.workers_file.is_some(), settings.etcd.is_some(), settings.kubernetes.is_some()];
    if settings.workers.is_empty() && !others.contains(&true) {
        let text = "there are no workers: give --worker URL, or [[workers]] in the file of --config, or \
             discovery.backend = \"file\", \"etcd\" or \"kubernetes\"";
        return Err(Failure::Usage(text.to_owned()));
    }
    // async-nats speaks at each try of an outage; what counts of it is said by whoever uses it.
    let logging = logging::start(settings.log.format, "info,async_nats=off");
    descriptors::raise();
    let queue = &settings.queue;
    if queue.max_requests > 0
        && queue.busy_active_requests.is_none()
        && queue.busy_prefill_tokens.is_none()
    {
        tracing::warn!(
            "queue.max_requests alone queues nothing but explicit targets: set queue.busy_active_requests or \
             queue.busy_prefill_tokens too"
        );
    }
    let traces = TraceSettings::of(|name| std::env::var(name).ok())
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let listener = handed_over()?;
    running::block_on(async {
        let mut signals = Signals::new()?;
        let (delay, grace) = (settings.gateway.shutdown_delay, settings.gateway.shutdown_grace);
        let (reread, take_over) = (Some(args.flags.again()), args.take_over);
        let discoveries = discoveries(&settings).await?;
        let replicate = replicate(&settings);
        let extras = Extras { reread, traces, listener, replicate, discoveries, take_over };
        let started = tokio::select! {
            started = Server::start_with(settings, extras) => started,
            () = signals.next() => return Ok(()),
        };
        let server = started.map_err(|error| match error {
            StartError::Tls(_)
            | StartError::Upstream(_)
            | StartError::Tokenizer { .. }
            | StartError::Template { .. }
            | StartError::Key(_)
            | StartError::Taken(_)
            | StartError::Snapshot(_)
            | StartError::ApiKeys(_)
            | StartError::Tokens(_)
            | StartError::Record(_) => Failure::Usage(error.to_string()),
            StartError::Listen { .. } | StartError::Replication(_) | StartError::System { .. } => {
                Failure::Failed(anyhow!(error))
            }
        })?;
        Metrics::watch_log_drops(server.shell(), logging.dropped());
        running::say(format_args!("gateway on {}", server.gateway_url()));
        running::say(format_args!("admin on http://{}", server.admin_address()));
        let mut hangup = signal(SignalKind::hangup()).context("SIGHUP can't be handled")?;
        loop {
            tokio::select! {
                () = signals.next() => break,
                _ = hangup.recv() => {
                    if let Err(error) = server.reloader().reload() {
                        tracing::error!(%error, "SIGHUP: the configuration was not read anew; going on as before");
                    }
                }
            }
        }
        tracing::info!(
            delay = ?delay,
            grace = ?grace,
            "stopping: unready now, no new connections after the delay, running streams may finish \
             within the grace period; a second signal ends everything at once"
        );
        let keeper = server.keeper();
        let cut_off = tokio::select! {
            whole = server.shut_down() => (!whole).then_some("the grace period is over"),
            () = signals.next() => Some("a second signal"),
        };
        if let Some(why) = cut_off {
            tracing::warn!(why, "what was still open is cut off");
            if let Some(Err(error)) = keeper.map(|keeper| keeper.write()) {
                tracing::error!(%error, "sessions could not be kept");
            }
        }
        Ok(())
    })
}

/// Those that ask somebody.
async fn discoveries(settings: &Settings) -> Result<Vec<Driven>, Failure> {
    let common = Arc::new(settings.upstream.clone());
    let mut all = Vec::new();
    if let Some(at) = &settings.etcd {
        let followed = etcd::discovery::follow(at.reach.clone(), &at.group, common.clone()).await;
        all.push(followed.context("[discovery] can't be used")?);
    }
    if let Some(wanted) = &settings.kubernetes {
        let followed = kubernetes::discovery(wanted.clone(), common);
        all.push(followed.map_err(|error| Failure::Usage(format!("[discovery]: {error}")))?);
    }
    Ok(all)
}

/// The socket that systemd listens on for us (`homing.socket`), if it does.
fn handed_over() -> Result<Option<std::net::TcpListener>, Failure> {
    let mut sockets = listenfd::ListenFd::from_env();
    let wrong = |error| {
        Failure::Usage(format!(
            "LISTEN_FDS: the socket that was handed over is none of TCP: {error}"
        ))
    };
    match sockets.len() {
        0 => Ok(None),
        1 => sockets.take_tcp_listener(0).map_err(wrong),
        n => Err(Failure::Usage(format!(
            "LISTEN_FDS: {n} sockets were handed over, and one is wanted"
        ))),
    }
}
