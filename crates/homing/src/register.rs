//! `homing register`: a side-car that keeps one engine registered, at routers or in etcd, for as long as it is well.

use crate::explain::admin::token;
use crate::running::{self, Signals};
use crate::{Failure, etcd, logging};
use homing_backends::etcd::Claim;
use homing_core::ask::Failure as Unanswered;
use homing_runtime::ask::Ask;
use homing_runtime::settings::{LogFormat, WorkerUrl};
use homing_runtime::upstream::{Link, Upstream};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The flags of `homing register`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  homing register --worker http://10.0.0.7:8000 --router http://10.0.0.1:9464 --router \
                        http://10.0.0.2:9464\n\nIt asks the engine's health path, and says at each router's admin API that the \
                        engine is there while that answers: for three intervals at a time, so a router that hears \
                        nothing more lets it go. At SIGTERM it takes it back at once. Where routers ask for a token \
                        (admin.token_file, role operate), HOMING_ADMIN_TOKEN is shown.\n\nWith --etcd it registers there \
                        under a lease, for routers with discovery.backend = \"etcd\":\n  homing register --worker \
                        http://10.0.0.7:8000 --etcd http://10.0.0.1:2379"
)]
pub(crate) struct Args {
    /// The engine, as routers reach it
    #[arg(long, value_name = "URL")]
    worker: String,
    /// A router's admin API; repeat it for each router [default: http://127.0.0.1:9464, where there is no --etcd]
    #[arg(long = "router", value_name = "URL")]
    routers: Vec<String>,
    #[command(flatten)]
    etcd: etcd::Flags,
    /// Its id [default: host:port of the URL]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// A label, as key=value; repeat it for each
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Data-parallel ranks behind the URL; 0: routers learn it from the engine
    #[arg(long, value_name = "N", default_value_t = 0)]
    dp_size: u16,
    /// What is asked for at the engine
    #[arg(long, value_name = "PATH", default_value = "/health")]
    health_path: String,
    /// Between two looks
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    interval: Duration,
}

/// Where it is registered if nothing is said.
const ROUTER: &str = "http://127.0.0.1:9464";
/// A router is told for so many intervals at a time.
const INTERVALS: u32 = 3;
/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 1 << 20;

/// A router, and what it said the last time.
struct Router {
    name: String,
    ask: Ask,
    said: Option<String>,
    /// It has taken the engine from us: then, and only then, it is ours to take back.
    knows: bool,
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let _logging = logging::start(LogFormat::Text, "info");
    if !(Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&args.interval) {
        return Err(Failure::Usage("--interval must be 500ms to 1h".to_owned()));
    }
    let worker = url(&args.worker, "--worker")?;
    let id = args.id.clone().unwrap_or_else(|| worker.authority().to_owned());
    let body = body(args, &id)?;
    let engine = ask(worker, None);
    let mut routers = args.routers.clone();
    if routers.is_empty() && !args.etcd.is_given() {
        routers.push(ROUTER.to_owned());
    }
    let routers: Result<Vec<Router>, Failure> = routers.iter().map(|text| router(text)).collect();
    let mut routers = routers?;
    let ttl = humantime::format_duration(args.interval.max(Duration::from_secs(1)) * INTERVALS)
        .to_string();
    let path = format!("/admin/workers?ttl={}", ttl.replace(' ', ""));
    running::block_on(async {
        let mut signals = Signals::new()?;
        let claim = Claim::Continue;
        let mut registration = args.etcd.registration(&body, args.interval, claim).await?;
        let mut was_well = None;
        loop {
            let why = match engine.get(&args.health_path).await {
                Ok((status, _)) if (200..300).contains(&status) => None,
                Ok((status, _)) => Some(format!("it answers {status}")),
                Err(failure) => Some(format!("{failure:?}")),
            };
            if was_well != Some(why.is_none()) {
                was_well = Some(why.is_none());
                match &why {
                    None => tracing::info!(worker = id, "the engine is well"),
                    Some(why) => tracing::warn!(
                        worker = id,
                        why,
                        "the engine is not well: nobody is told anything"
                    ),
                }
            }
            if why.is_none() {
                for router in &mut routers {
                    router.tell(&path, &body).await;
                }
                if let Some(registration) = &mut registration {
                    registration.keep().await;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(args.interval) => {}
                () = signals.next() => break,
            }
        }
        for router in routers.iter().filter(|router| router.knows) {
            router.withdraw(&id).await;
        }
        if let Some(registration) = registration {
            registration.withdraw().await;
        }
        Ok(())
    })
}

fn url(text: &str, flag: &str) -> Result<WorkerUrl, Failure> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    full.parse().map_err(|error| Failure::Usage(format!("{flag} {text:?} {error}")))
}

fn ask(url: WorkerUrl, token: Option<&str>) -> Ask {
    Ask { upstream: Upstream::fresh(), link: Link::plain(url).with_token(token), timeout: PATIENCE }
}

fn router(text: &str) -> Result<Router, Failure> {
    let ask = ask(url(text, "--router")?, token().as_deref());
    Ok(Router { name: text.to_owned(), ask, said: None, knows: false })
}

/// What routers are told: the keys of `[[workers]]`.
fn body(args: &Args, id: &str) -> Result<Value, Failure> {
    let mut labels = BTreeMap::new();
    for label in &args.labels {
        let pair = label.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, value) =
            pair.ok_or_else(|| Failure::Usage(format!("--label {label:?} is not like zone=a")))?;
        labels.insert(key, value);
    }
    let mut body = json!({"id": id, "url": args.worker, "labels": labels});
    if args.dp_size > 0 {
        body["dp_size"] = args.dp_size.into();
    }
    Ok(body)
}

impl Router {
    /// Says that the engine is there.
    async fn tell(&mut self, path: &str, body: &Value) {
        let answer = self.ask.post(path, body.to_string().into(), MAX_ANSWER).await;
        let said = match answer {
            Ok((200 | 201, _)) => None,
            Ok((status, answer)) => {
                let answer: Option<Value> = serde_json::from_slice(&answer).ok();
                let message = answer.as_ref().and_then(|a| a["error"]["message"].as_str());
                Some(format!("it answers {status}: {}", message.unwrap_or_default()))
            }
            Err(Unanswered::Refused) => Some("nothing listens there".to_owned()),
            Err(_) => Some("it doesn't answer".to_owned()),
        };
        // Once, not each time.
        if said != self.said || said.is_none() && self.said.is_some() {
            match &said {
                None => tracing::info!(router = self.name, "the router knows the engine again"),
                Some(why) => tracing::warn!(router = self.name, why, "the router can't be told"),
            }
        }
        self.knows |= said.is_none();
        self.said = said;
    }

    /// Takes it back.
    async fn withdraw(&self, id: &str) {
        let path = format!("/admin/workers/{}", crate::explain::admin::encoded(id));
        if self.ask.delete(&path).await.is_err() {
            tracing::debug!(router = self.name, "it could not be taken back: it will be let go");
        }
    }
}
