//! How soon a router that is new has what another one has: over the bus in memory, or real servers.

use super::Servers;
use super::router::{BUS, Counts, Router, bus, runtime, settings};
use crate::bench::meter::resident;
use crate::replicate::replicate;
use bytes::Bytes;
use homing_backends::nats;
use homing_runtime::replication::Ports;
use homing_runtime::replication::port::{BindingStore, Call, Following, Set, Stay};
use homing_runtime::settings::Settings;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// So long it may take at most.
const PATIENCE: Duration = Duration::from_secs(900);
/// Turns that wait for the store while it is filled.
const AHEAD: u64 = 16_384;
const LOOK: Duration = Duration::from_millis(5);

/// Over what.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// A bus in this process.
    Memory,
    /// A NATS server; bindings by messages.
    Nats(String),
    /// The same, bindings in a bucket of JetStream.
    Bucket(String),
    /// An etcd.
    Etcd(String),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Nats(_) => "NATS",
            Self::Bucket(_) => "JetStream",
            Self::Etcd(_) => "etcd",
        })
    }
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) bindings: usize,
    /// Until the first router had them, and the store too.
    pub(super) filled: Duration,
    /// From when the second one began until it had all.
    pub(super) took: Duration,
    /// What the process has grown by meanwhile.
    pub(super) bytes_per_binding: f64,
}

impl Over {
    /// All that can be measured.
    pub(super) fn all(servers: &Servers) -> Vec<Self> {
        let nats = servers
            .nats
            .iter()
            .flat_map(|url| [Self::Nats(url.clone()), Self::Bucket(url.clone())]);
        let etcd = servers.etcd.iter().map(|url| Self::Etcd(url.clone()));
        std::iter::once(Self::Memory).chain(nats).chain(etcd).collect()
    }

    /// A group of our own, so that nothing that is there is touched.
    fn settings(&self) -> Result<Settings, String> {
        let group = format!("bench-{}", std::process::id());
        settings(&match self {
            Self::Memory => BUS.to_owned(),
            Self::Nats(url) | Self::Bucket(url) => {
                format!("backend = \"nats\"\nurls = [\"{url}\"]\ngroup = \"{group}\"\n")
            }
            Self::Etcd(url) => {
                format!(
                    "backend = \"etcd\"\nmode = \"advisory\"\nurls = [\"{url}\"]\ngroup = \"{group}\"\n"
                )
            }
        })
    }

    async fn ports(&self, settings: &Settings, number: u32) -> Result<Ports, String> {
        let why = |error: homing_runtime::replication::port::PortError| error.to_string();
        if let (Self::Bucket(_), Some(replication)) = (self, &settings.replication) {
            let (reach, group) = (replication.reach.clone(), &replication.group);
            let idle = settings.affinity.ttl.unwrap_or(PATIENCE);
            let store: Arc<dyn BindingStore> =
                Arc::new(nats::open(reach, group, idle).await.map_err(why)?);
            return Ok(Ports { bus: None, store: Some(store) });
        }
        let connect = replicate(settings).ok_or("nothing is shared")?;
        connect(number).await.map_err(why)
    }
}

/// Measures.
pub(super) fn measure(over: &Over, bindings: usize) -> Result<Joined, String> {
    let settings = over.settings()?;
    let (old, mut new) = (Router::new(&settings, 1)?, Router::new(&settings, 2)?);
    let [mine, theirs] =
        bus([old.number(), new.number()], &[Arc::new(Counts::default()), Arc::default()]);
    let in_memory = matches!(over, Over::Memory);
    let (filled, wait) = oneshot::channel();
    let (over_now, over_wait) = oneshot::channel::<()>();
    let (of_old, old_settings) = (over.clone(), settings.clone());
    let old = std::thread::spawn(move || -> Result<(), String> {
        runtime()?.block_on(async move {
            let ports = match in_memory {
                true => mine,
                false => of_old.ports(&old_settings, old.number()).await?,
            };
            let old = fill(old, ports, bindings).await?;
            // Whoever waits for either may be gone.
            let _ = filled.send(());
            let _ = over_wait.await;
            old.end().await;
            Ok(())
        })
    });
    let joined = runtime()?.block_on(async {
        let began = Instant::now();
        if wait.await.is_err() {
            return Err("the first router has ended".to_owned());
        }
        let filled = began.elapsed();
        let before = resident();
        let began = Instant::now();
        let ports = match in_memory {
            true => theirs,
            false => over.ports(&settings, new.number()).await?,
        };
        new.share(ports);
        while new.bindings() < bindings {
            if began.elapsed() > PATIENCE {
                return Err(format!("it knows {} bindings after {PATIENCE:?}", new.bindings()));
            }
            tokio::time::sleep(LOOK).await;
        }
        let took = began.elapsed();
        let grown = resident().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        new.end().await;
        Ok(Joined { bindings, filled, took, bytes_per_binding: grown as f64 / bindings as f64 })
    });
    drop(over_now);
    let old = old.join().map_err(|_| "the first router's thread has ended badly")?;
    // What went wrong there is why nothing came here.
    old.and(joined)
}

/// One turn of each session at a router, as fast as the store takes it.
async fn fill(mut router: Router, ports: Ports, bindings: usize) -> Result<Router, String> {
    let written = Arc::new(AtomicU64::new(0));
    let store = ports.store.map(|store| -> Arc<dyn BindingStore> {
        Arc::new(Counting { store, written: written.clone() })
    });
    let (is_stored, bus) = (store.is_some(), ports.bus);
    if is_stored {
        router.share(Ports { bus: None, store });
        router.shell.until_ready().await;
    }
    for n in 0..bindings {
        router.finish(router.begin(router.place(n)?));
        while is_stored && n as u64 >= written.load(Ordering::Relaxed) + AHEAD {
            tokio::time::sleep(LOOK).await;
        }
    }
    while is_stored && written.load(Ordering::Relaxed) < bindings as u64 {
        tokio::time::sleep(LOOK).await;
    }
    if let Some(bus) = bus {
        router.share(Ports { bus: Some(bus), store: None });
        router.shell.until_ready().await;
        // What it would have told while it was filled goes out first.
        let each = Duration::from_micros(2);
        tokio::time::sleep(Duration::from_millis(200) + each * bindings as u32).await;
    }
    Ok(router)
}

/// A store that counts what has been written.
#[derive(Debug)]
struct Counting {
    store: Arc<dyn BindingStore>,
    written: Arc<AtomicU64>,
}

impl BindingStore for Counting {
    fn compare_and_set<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: Option<u64>,
        stay: Stay,
    ) -> Call<'a, Set> {
        Box::pin(async move {
            let set = self.store.compare_and_set(key, value, expected, stay).await?;
            if expected.is_none() && matches!(set, Set::Done(_)) {
                self.written.fetch_add(1, Ordering::Relaxed);
            }
            Ok(set)
        })
    }

    fn compare_and_remove<'a>(&'a self, key: &'a str, expected: u64) -> Call<'a, bool> {
        self.store.compare_and_remove(key, expected)
    }

    fn follow(&self) -> Following {
        self.store.follow()
    }

    fn leases(&self) -> bool {
        self.store.leases()
    }
}
