//! Start, run, stop.

use super::config::MockConfig;
use super::driver::Driver;
use super::faults::Failing;
use super::feed::{Feed, FeedConfig, FeedError};
use super::groups::{Groups, WINDOW_BLOCKS};
use super::http::{App, serve};
use super::model::{Model, PromptCodec};
use homing_core::hash::EngineHash;
use homing_prompt::{LoadError, PromptError};
use homing_wire::kv_events::{Encoding, EncodingError};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// How long requests in flight may go on after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// Why a mock did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {listen}: {why}; choose another address")]
    Listen {
        /// As configured.
        listen: SocketAddr,
        /// The system's reason.
        why: std::io::Error,
    },
    /// The tokenizer's folder is not usable.
    #[error("the tokenizer does not load: {0}")]
    Tokenizer(#[from] LoadError),
    /// The tokenizer can't encode plain words.
    #[error("the tokenizer does not encode plain English words: {0}")]
    Words(#[from] PromptError),
    /// No KV events.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The version doesn't write block hashes so.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// The version knows no groups.
    #[error("the events of {0} tell no groups; choose vllm-0.20 or a later one for a hybrid model")]
    Groups(&'static str),
    /// The speedup makes no sense.
    #[error("speedup is {0}; give a number above 0")]
    Speedup(f64),
    /// The system gives no thread or runtime.
    #[error("cannot start the mock's thread: {0}")]
    Thread(std::io::Error),
}

/// A mock that is bound to its ports, and not yet served.
pub struct Mock {
    app: Arc<App>,
    listener: std::net::TcpListener,
    address: SocketAddr,
    max_connections: usize,
}

impl Mock {
    /// Binds the ports and loads the tokenizer.
    ///
    /// # Errors
    /// [`StartError`]: nothing is left bound then.
    pub fn bind(config: MockConfig) -> Result<Self, StartError> {
        if !(config.speedup.is_finite() && config.speedup > 0.0) {
            return Err(StartError::Speedup(config.speedup));
        }
        let fail = |why| StartError::Listen { listen: config.listen, why };
        let listener = std::net::TcpListener::bind(config.listen).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let codec = match &config.tokenizer {
            Some(folder) => PromptCodec::load(folder)?,
            None => PromptCodec::builtin(),
        };
        let feeds = feeds(&config)?;
        let places = config.engine.batch.max_queued.min(Semaphore::MAX_PERMITS);
        let app = App {
            served: config.model,
            model: Model::new(codec)?,
            driver: Arc::new(Driver::new(config.engine, config.speedup, feeds)),
            max_body: config.max_body,
            details: !config.stock,
            places: Arc::new(Semaphore::new(places)),
            answers: AtomicU64::new(0),
            faults: config.faults,
            failing: Failing::default(),
            api_key: config.api_key,
            stopping: CancellationToken::new(),
        };
        let max_connections = config.max_connections;
        Ok(Self { app: Arc::new(app), listener, address, max_connections })
    }

    /// Binds, and serves on a thread of its own until the handle is dropped.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn start(config: MockConfig) -> Result<MockHandle, StartError> {
        let mock = Self::bind(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        let stop = CancellationToken::new();
        let (url, kv_endpoint, kv_replay) = (mock.url(), mock.kv_endpoint(), mock.kv_replay());
        let (driver, stopped) = (mock.app.driver.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("mock".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(mock.run(stopped.cancelled())) {
                    tracing::error!(%error, "a mock engine stopped");
                }
            })
            .map_err(StartError::Thread)?;
        Ok(MockHandle { url, kv_endpoint, kv_replay, driver, stop, thread: Some(thread) })
    }

    /// Serves until `shutdown` is ready, and then up to 5 s more for requests in flight. Best on a
    /// current-thread runtime.
    ///
    /// # Errors
    /// Where the runtime doesn't take the socket.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> std::io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        let (stop, halt) = (self.app.stopping.clone(), CancellationToken::new());
        let driver = self.app.driver.clone();
        let mute = self.app.faults.mute_on_term;
        let engine = async {
            let turns = driver.run(halt.clone());
            tokio::pin!(turns);
            if mute {
                // From then on nobody turns it: what is open stays open, and nothing comes.
                let ended = tokio::select! {
                    () = turns.as_mut() => true,
                    () = stop.cancelled() => false,
                };
                halt.cancelled().await;
                if ended {
                    return;
                }
            }
            turns.await;
        };
        let front = serve(self.app, listener, self.max_connections, stop.clone(), GRACE);
        let watch = async {
            shutdown.await;
            stop.cancel();
        };
        // The engine must turn until the last request has ended, and no longer.
        let front = async {
            front.await;
            halt.cancel();
        };
        tokio::join!(engine, front, watch);
        Ok(())
    }

    /// Where it serves: `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where its first rank answers requests for a replay of them, if anywhere.
    #[must_use]
    pub fn kv_replay(&self) -> Option<String> {
        self.app.driver.feeds(|feed| feed.replay().map(str::to_owned)).into_iter().next().flatten()
    }

    /// Where its first rank publishes KV events; `None` for a stock engine.
    #[must_use]
    pub fn kv_endpoint(&self) -> Option<String> {
        self.app.driver.feeds(|feed| feed.endpoint().to_owned()).into_iter().next()
    }
}

/// The feeds of all ranks; of a stock engine none.
fn feeds(config: &MockConfig) -> Result<Vec<Option<Feed>>, StartError> {
    let ranks = 0..config.dp_size.max(1);
    if config.stock {
        return Ok(ranks.map(|_| None).collect());
    }
    let hybrid = config.kv_groups == Groups::Hybrid;
    if hybrid && !config.kv_layout.has_groups() {
        return Err(StartError::Groups(config.kv_layout.name));
    }
    let blocks = u32::try_from(WINDOW_BLOCKS).unwrap_or(u32::MAX);
    let window = config.engine.cache.block_size.saturating_mul(blocks);
    let encoding = Encoding::new(config.kv_layout, config.kv_hashes, window)?;
    let feed = |rank| {
        let feed = Feed::bind(FeedConfig {
            rank,
            endpoint: config.kv_endpoint.clone(),
            connects: config.kv_connects,
            topic: config.kv_topic.clone(),
            replay: config.kv_replay.clone(),
            buffer: config.kv_buffer,
            drop_every: config.kv_drop_every,
            encoding,
            groups: config.kv_groups,
        })?;
        Ok(Some(feed))
    };
    ranks.map(feed).collect()
}

/// A mock that runs on its own thread. Dropping it stops it, and waits for that.
pub struct MockHandle {
    url: String,
    kv_endpoint: Option<String>,
    kv_replay: Option<String>,
    driver: Arc<Driver>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl MockHandle {
    /// Where it serves: `http://host:port`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where its first rank publishes KV events; `None` for a stock engine.
    #[must_use]
    pub fn kv_endpoint(&self) -> Option<&str> {
        self.kv_endpoint.as_deref()
    }

    /// Where its first rank answers requests for a replay of them, if anywhere.
    #[must_use]
    pub fn kv_replay(&self) -> Option<&str> {
        self.kv_replay.as_deref()
    }

    /// The reusable blocks of all ranks, one entry per copy, in the order of ranks and names: the truth that
    /// an index built from the events is compared with.
    #[must_use]
    pub fn cached_blocks(&self) -> Vec<EngineHash> {
        self.driver.cached_blocks()
    }

    /// Asks it to stop, without waiting: requests in flight have 5 s.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops it and waits until it has.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for MockHandle {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed; there is nothing to add while dropping.
            let _ = thread.join();
        }
    }
}
