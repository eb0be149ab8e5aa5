//! An API server of a test: EndpointSlices, pods and InferencePools in memory, with pages, watches, bookmarks, tokens,
//! and whatever may go wrong with them. Plain HTTP/1.1, a connection a call.

use homing_runtime::settings::{DiscoveryKubernetes, KubernetesFind, KubernetesPort};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) const TOKEN: &str = "right";

/// What it has, and how it behaves.
#[derive(Default)]
pub(crate) struct World {
    /// By path.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// What has changed: version, kind, path, object.
    log: Vec<(u64, &'static str, String, Value)>,
    /// Versions up to this are forgotten.
    pub(crate) forgotten: u64,
    /// Objects of a page, at most.
    pub(crate) page: usize,
    /// Every call is answered so.
    pub(crate) answer: Option<(u16, &'static str)>,
    /// Calls whose path has this are 403.
    pub(crate) forbidden: Option<&'static str>,
    /// Watches end at once.
    pub(crate) no_patience: bool,
    /// What was asked for, with the query.
    pub(crate) calls: Vec<String>,
}

/// See the module.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    pub(crate) dir: PathBuf,
    world: Arc<Mutex<World>>,
    /// Rises with every change; watches look then.
    news: Arc<watch::Sender<u64>>,
    /// Rises when every watch is to break.
    cuts: Arc<watch::Sender<u64>>,
    serving: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Api {
    pub(crate) async fn start() -> Arc<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("homing-kube-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("token"), TOKEN).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = World { page: usize::MAX, version: 100, ..World::default() };
        let api = Arc::new(Self {
            address,
            dir,
            world: Arc::new(Mutex::new(world)),
            news: Arc::new(watch::Sender::new(0)),
            cuts: Arc::new(watch::Sender::new(0)),
            serving: Mutex::default(),
        });
        api.serve(listener);
        api
    }

    fn serve(&self, listener: TcpListener) {
        let (world, news, cuts) = (self.world.clone(), self.news.clone(), self.cuts.clone());
        let task = tokio::spawn(async move {
            let mut calls = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let call =
                    Call { world: world.clone(), news: news.subscribe(), cuts: cuts.subscribe() };
                calls.spawn(call.answer(stream));
            }
        });
        *self.serving.lock().unwrap() = Some(task);
    }

    /// Nobody listens any more, and every connection breaks.
    pub(crate) async fn stop(&self) {
        let task = self.serving.lock().unwrap().take().unwrap();
        task.abort();
        let _ = task.await;
    }

    pub(crate) async fn go_on(&self) {
        self.serve(TcpListener::bind(self.address).await.unwrap());
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Breaks every watch in the middle of a line.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|n| *n += 1);
    }

    pub(crate) fn put(&self, path: &str, mut object: Value) {
        let mut world = self.world();
        world.version += 1;
        let version = world.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let before = world.objects.insert(path.to_owned(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        world.log.push((version, kind, path.to_owned(), object));
        drop(world);
        self.news.send_modify(|n| *n += 1);
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut world = self.world();
        let mut object = world.objects.remove(path).unwrap();
        world.version += 1;
        let version = world.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        world.log.push((version, "DELETED", path.to_owned(), object));
        drop(world);
        self.news.send_modify(|n| *n += 1);
    }

    /// A change that watches don't see: one that was lost.
    pub(crate) fn put_unseen(&self, path: &str, object: Value) {
        let mut world = self.world();
        world.version += 1;
        world.objects.insert(path.to_owned(), object);
    }

    /// The version moves on without any change: bookmarks say so.
    pub(crate) fn bookmark(&self) {
        let mut world = self.world();
        world.version += 1000;
        let version = world.version;
        let object = json!({"kind": "Any", "metadata": {"resourceVersion": version.to_string()}});
        world.log.push((version, "BOOKMARK", String::new(), object));
        drop(world);
        self.news.send_modify(|n| *n += 1);
    }

    /// Calls whose path and query have this.
    pub(crate) fn calls(&self, part: &str) -> usize {
        self.world().calls.iter().filter(|call| call.contains(part)).count()
    }

    pub(crate) fn discovery(&self, find: KubernetesFind) -> DiscoveryKubernetes {
        DiscoveryKubernetes {
            urls: vec![format!("http://{}", self.address).parse().unwrap()],
            ca_file: None,
            cert_file: None,
            key_file: None,
            token_file: Some(self.dir.join("token")),
            namespace: Some("llm".to_owned()),
            find,
            port: KubernetesPort::Number(8000),
        }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Call {
    world: Arc<Mutex<World>>,
    news: watch::Receiver<u64>,
    cuts: watch::Receiver<u64>,
}

impl Call {
    async fn answer(self, mut stream: TcpStream) {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = String::from_utf8(read).unwrap();
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query: BTreeMap<_, _> =
            query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let is_known = head
            .lines()
            .any(|line| line.to_ascii_lowercase() == format!("authorization: bearer {TOKEN}"));
        let (status, body) = {
            let mut world = self.world.lock().unwrap();
            world.calls.push(target.clone());
            let forbidden = world.forbidden.is_some_and(|part| path.contains(part));
            match world.answer {
                Some((code, words)) => {
                    (code, json!({"kind": "Status", "code": code, "message": words}))
                }
                None if !is_known => {
                    (401, json!({"kind": "Status", "code": 401, "message": "Unauthorized"}))
                }
                None if forbidden => {
                    (403, json!({"kind": "Status", "code": 403, "message": "not for you"}))
                }
                None if query.contains_key("watch") => (200, Value::Null),
                None => world.read(path, &query),
            }
        };
        if body.is_null() {
            let version = query["resourceVersion"].parse().unwrap();
            let _ = self.watch(stream, path.to_owned(), version).await;
            return;
        }
        let body = body.to_string();
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    async fn watch(
        mut self,
        mut stream: TcpStream,
        path: String,
        mut at: u64,
    ) -> std::io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        loop {
            let (lines, over) = {
                let world = self.world.lock().unwrap();
                let mut lines = String::new();
                if at < world.forgotten {
                    let status = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
                    lines = json!({"type": "ERROR", "object": status}).to_string() + "\n";
                } else {
                    let since = at;
                    for (version, kind, of, object) in world.log.iter().filter(|(v, ..)| *v > since)
                    {
                        if of.is_empty() || of.starts_with(&format!("{path}/")) {
                            lines += &(json!({"type": kind, "object": object}).to_string() + "\n");
                        }
                        at = *version;
                    }
                }
                (lines, at < world.forgotten || world.no_patience)
            };
            // In small parts: lines are put together from many.
            for part in lines.as_bytes().chunks(50) {
                stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
                stream.write_all(part).await?;
                stream.write_all(b"\r\n").await?;
            }
            if over {
                return stream.write_all(b"0\r\n\r\n").await;
            }
            tokio::select! {
                // What comes with the cut is not seen any more.
                biased;
                _ = self.cuts.changed() => {
                    return stream.write_all(b"10\r\n{\"type\": \"ADD").await;
                }
                _ = self.news.changed() => {}
            }
        }
    }
}

impl World {
    fn read(&self, path: &str, query: &BTreeMap<&str, &str>) -> (u16, Value) {
        if let Some(object) = self.objects.get(path) {
            return (200, object.clone());
        }
        if !path.ends_with("pods") && !path.ends_with("endpointslices") {
            return (404, json!({"kind": "Status", "code": 404, "message": "not found"}));
        }
        let under = format!("{path}/");
        let items: Vec<_> = self
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&under))
            .map(|(_, o)| o)
            .collect();
        let from: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
        let asked: usize = query["limit"].parse().unwrap();
        let to = (from + self.page.min(asked)).min(items.len());
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if to < items.len() {
            metadata["continue"] = json!(to.to_string());
        }
        let items = if items.is_empty() { Value::Null } else { json!(items[from..to]) };
        (200, json!({"kind": "List", "metadata": metadata, "items": items}))
    }
}

pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices";
pub(crate) const PODS: &str = "/api/v1/namespaces/llm/pods";

/// A pod that is ready.
pub(crate) fn pod(name: &str, uid: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": uid, "labels": {"app": "vllm", "pod": name}},
        "status": {
            "phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// A slice of pods that are ready.
pub(crate) fn slice(name: &str, pods: &[(&str, &str, &str)]) -> Value {
    let endpoints: Vec<_> = pods
        .iter()
        .map(|(pod, uid, address)| {
            json!({
                "addresses": [address],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": pod, "uid": uid},
            })
        })
        .collect();
    json!({
        "metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8000}],
    })
}

/// Nothing takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
