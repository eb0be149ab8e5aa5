//! The demo's engines and router, on free loopback ports.

use super::Args;
use super::play::Played;
use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use homing_hosts::Server;
use homing_prompt::BUILTIN_FILES;
use homing_runtime::settings::{Override, Settings, Sources};
use homing_runtime::upstream::{Link, Outgoing, Upstream};
use homing_sim::engine::{CacheConfig, EngineConfig};
use homing_sim::plan::Plan;
use homing_sim::serve::{Mock, MockConfig, MockHandle};
use http_body_util::BodyExt;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Engines of the demo.
pub(super) const ENGINES: usize = 4;
/// Each cache holds a worker's fair share of all blocks, and this much of it: sessions are never spread
/// perfectly, and a cache for everything would forgive every mistake.
const SHARE: f64 = 1.2;
/// The model's name on stage.
pub(super) const MODEL: &str = "homing-demo";
/// A prompt of several blocks, so that something of it can be cached.
const HELLO: &str = "Please tell me, in a few words, how a router that knows what every engine has cached \
                     can save the time that others spend on computing the same prompt again and again.";
/// How long the router may take to know its engines.
const READY: Duration = Duration::from_secs(20);

/// Engines and router, up.
pub(super) struct Stage {
    engine: EngineConfig,
    mocks: Vec<MockHandle>,
    server: Server,
    client: Upstream,
    /// Where the tokenizer's files are, for the router's settings. Removed in the end.
    folder: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Stage {
    /// Starts everything and waits until the router follows each engine's cache.
    pub(super) async fn set(plan: &Plan, args: &Args) -> anyhow::Result<Self> {
        let defaults = EngineConfig::default();
        let blocks = plan.distinct_blocks(defaults.cache.block_size);
        let longest = plan.turns().map(|t| t.prompt.len() + t.output.len()).max().unwrap_or(0);
        let fair = (blocks as f64 / ENGINES as f64 * SHARE) as usize;
        // A cache that can't hold the longest conversation could not serve it at all.
        let least = longest.div_ceil(defaults.cache.block_size as usize) + 1;
        let blocks = u32::try_from(fair.max(least)).context("the sessions are too many")?;
        let cache = CacheConfig { blocks, ..defaults.cache };
        let engine = EngineConfig { cache, ..defaults };
        let mut mocks = Vec::new();
        for seed in 0..ENGINES as u64 {
            let engine = EngineConfig { cache: CacheConfig { seed, ..cache }, ..engine };
            let config = MockConfig {
                model: MODEL.into(),
                engine,
                speedup: args.speedup,
                ..MockConfig::default()
            };
            mocks.push(Mock::start(config).context("starting an engine")?);
        }
        let folder = tokenizer_folder()?;
        let server = Server::start(settings(&mocks, &folder.0)?).await.context("the router")?;
        let client = Upstream::new();
        let stage = Self { engine, mocks, server, client, folder };
        stage.wait_until_followed().await?;
        Ok(stage)
    }

    /// One engine's configuration (they differ by their seeds only).
    pub(super) fn engine(&self) -> EngineConfig {
        self.engine
    }

    /// The gateway's URL.
    pub(super) fn gateway(&self) -> String {
        self.server.gateway_url()
    }

    fn admin(&self) -> String {
        format!("http://{}", self.server.admin_address())
    }

    async fn wait_until_followed(&self) -> anyhow::Result<()> {
        let url = format!("{}/admin/workers", self.admin());
        let waited = tokio::time::timeout(READY, async {
            loop {
                let workers: Value = serde_json::from_slice(&self.get(&url).await?)?;
                let all = workers.as_array().map(Vec::as_slice).unwrap_or_default();
                let followed = |w: &&Value| w["state"] == "ready" && w["index"] == "events";
                if all.iter().filter(followed).count() == self.mocks.len() {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        match waited.await {
            Ok(done) => done,
            Err(_) => bail!("the router did not follow its engines within {READY:?}"),
        }
    }

    async fn get(&self, url: &str) -> anyhow::Result<Bytes> {
        let uri: http::Uri = url.parse()?;
        let origin = format!("http://{}", uri.authority().context("a URL has a host")?);
        let link = Link::plain(origin.parse()?);
        let path = uri.path_and_query().context("a URL has a path")?;
        let request = http::Request::get(link.uri_of(path)?).body(Outgoing::default())?;
        let response =
            self.client.send(&link, request).await.map_err(|(_, why)| anyhow!("{url}: {why}"))?;
        Ok(response.into_body().collect().await.with_context(|| url.to_owned())?.to_bytes())
    }

    /// Each engine's `/metrics`.
    pub(super) async fn scrape(&self) -> anyhow::Result<Vec<String>> {
        let mut pages = Vec::new();
        for mock in &self.mocks {
            let page = self.get(&format!("{}/metrics", mock.url())).await?;
            pages.push(String::from_utf8_lossy(&page).into_owned());
        }
        Ok(pages)
    }

    /// Turns that each engine served, in the engines' order.
    pub(super) fn per_worker(&self, played: &Played) -> Vec<u64> {
        let id = |m: &MockHandle| m.url().trim_start_matches("http://").to_owned();
        self.mocks.iter().map(|m| played.per_worker.get(&id(m)).copied().unwrap_or(0)).collect()
    }

    /// What one can try now.
    pub(super) fn print_urls(&self) {
        println!("\nStill up, until ctrl-c:");
        println!("  gateway  {}", self.gateway());
        println!("  admin    {}", self.admin());
        for mock in &self.mocks {
            println!("  engine   {}", mock.url());
        }
        println!("\nTry, twice: the second time it is a hit, and most of the prompt is cached:");
        println!(
            "  curl -si {}/v1/chat/completions -H 'content-type: application/json' \\\n    -H \
             'x-homing-session-id: me' -d '{{\"model\":\"{MODEL}\",\"max_tokens\":16,\"messages\":\
             [{{\"role\":\"user\",\"content\":\"{HELLO}\"}}]}}'",
            self.gateway()
        );
        println!("  curl -s {}/admin/workers", self.admin());
        println!("  curl -s '{}/admin/sessions?limit=5'", self.admin());
        println!("  curl -s {}/metrics", self.admin());
    }

    /// Stops everything.
    pub(super) async fn strike(self) {
        self.server.shut_down().await;
        for mock in self.mocks {
            mock.shutdown();
        }
        drop(self.folder);
    }
}

/// The built-in tokenizer as a folder, as a user's `models.tokenizer` is one.
fn tokenizer_folder() -> anyhow::Result<Folder> {
    let path = std::env::temp_dir().join(format!("homing-demo-{}", std::process::id()));
    fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    let folder = Folder(path);
    for (name, bytes) in BUILTIN_FILES {
        fs::write(folder.0.join(name), bytes).with_context(|| name.to_owned())?;
    }
    Ok(folder)
}

/// The router's settings: as a user would write them, and no others.
fn settings(mocks: &[MockHandle], tokenizer: &Path) -> anyhow::Result<Settings> {
    let tokenizer = Value::String(tokenizer.display().to_string());
    let text = format!("[[models]]\nname = \"{MODEL}\"\ntokenizer = {tokenizer}\n");
    let set = |key: &str, value: &str| Override {
        key: key.to_owned(),
        value: value.to_owned(),
        flag: "the demo".to_owned(),
    };
    let mut overrides = vec![
        set("gateway.listen", "127.0.0.1:0"),
        set("gateway.shutdown_delay", "0s"),
        set("gateway.shutdown_grace", "5s"),
        set("admin.listen", "127.0.0.1:0"),
        set("log.access", "false"),
        // What it prints is called so; the default may be another.
        set("routing.policy", "kv"),
    ];
    overrides.extend(mocks.iter().map(|m| set("workers", m.url())));
    let file = Some((PathBuf::from("demo.toml"), text));
    // The environment is left out: a demo is the same everywhere.
    Settings::load(Sources { file, env: Vec::new(), overrides })
        .map_err(|errors| anyhow!("the demo's settings: {errors}"))
}
