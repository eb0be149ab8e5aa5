//! Workers tended against a tiny engine: how they come up, go down, come back as somebody else, and
//! change what they serve.

use super::Fleet;
use super::discovery::{Change, static_list};
use super::verify::Questions;
use crate::ingest::Ingest;
use crate::lifecycle::Lifecycle;
use crate::settings::{Settings, Worker};
use crate::shell::Shell;
use crate::testing::{Lines, eventually, settings, state};
use homing_core::fleet::{RouteError, State};
use homing_core::ids::WorkerId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

/// What an engine says about itself.
#[derive(Clone, Debug)]
pub(super) struct Says {
    health: u16,
    models: String,
    /// `/kv_event_sources`; empty: it has none.
    pub(super) sources: String,
    /// What it answers when it is asked for events, once each; it can't be where there is nothing.
    pub(super) polled: Option<VecDeque<String>>,
    /// Its other pages: path, status, body.
    pub(super) pages: Vec<(&'static str, u16, String)>,
    started_at: f64,
    /// It takes connections and says nothing.
    hung: bool,
    /// How often it was asked for its models,
    pub(super) asked: u32,
    /// and for its metrics.
    pub(super) asked_metrics: u32,
}

pub(super) struct Engine {
    pub(super) address: SocketAddr,
    pub(super) says: Arc<Mutex<Says>>,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
    /// Bound and not listening: the port is ours, and refuses.
    held: Option<TcpSocket>,
}

impl Engine {
    /// A port without anybody behind it.
    fn dead() -> Self {
        let held = socket();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let says = Says {
            health: 200,
            models: r#"{"data":[{"id":"m"}]}"#.into(),
            sources: String::new(),
            polled: None,
            pages: Vec::new(),
            started_at: 1.0,
            hung: false,
            asked: 0,
            asked_metrics: 0,
        };
        Self {
            address: held.local_addr().unwrap(),
            says: Arc::new(Mutex::new(says)),
            stop: CancellationToken::new(),
            task: None,
            held: Some(held),
        }
    }

    pub(super) fn up() -> Self {
        let mut engine = Self::dead();
        engine.start();
        engine
    }

    fn start(&mut self) {
        let listener = self.held.take().unwrap().listen(64).unwrap();
        let (says, stop) = (self.says.clone(), CancellationToken::new());
        self.stop = stop.clone();
        self.task = Some(tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                let (says, stop) = (says.clone(), stop.clone());
                tokio::spawn(async move { stop.run_until_cancelled(answer(stream, says)).await });
            }
        }));
    }

    /// Dies; its port refuses from now on.
    async fn die(&mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
        let held = socket();
        held.bind(self.address).unwrap();
        self.held = Some(held);
    }

    pub(super) fn say(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock());
    }

    pub(super) fn worker(&self, id: &str) -> Worker {
        let url = format!("http://{}", self.address).parse().unwrap();
        let (kv_events, kv_replay) = (None, None);
        Worker {
            id: id.into(),
            url,
            dp_size: Some(1),
            kv_events,
            kv_replay,
            labels: Default::default(),
            upstream: Settings::load(crate::settings::Sources::default()).unwrap().upstream.into(),
            generation: 0,
        }
    }
}

fn socket() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket
}

async fn answer(mut stream: TcpStream, says: Arc<Mutex<Says>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_buf(&mut request).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let request = String::from_utf8(request).unwrap();
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let (status, body) = {
        let mut says = says.lock();
        says.asked += u32::from(path == "/v1/models");
        match path.as_str() {
            _ if says.hung => (0, String::new()),
            "/health" => (says.health, String::new()),
            "/v1/models" => (200, says.models.clone()),
            "/kv_event_sources" if !says.sources.is_empty() => (200, says.sources.clone()),
            "/kv_cache_events" if says.polled.is_some() => match method.as_str() {
                "POST" => (200, says.polled.as_mut().unwrap().pop_front().unwrap_or("[]".into())),
                _ => (405, String::new()),
            },
            "/metrics" => {
                says.asked_metrics += 1;
                let page = says.pages.iter().find(|(path, ..)| *path == "/metrics");
                let (status, more) = page.map_or((200, ""), |(_, status, body)| (*status, body));
                (status, format!("process_start_time_seconds {}\n{more}", says.started_at))
            }
            other => {
                let page = says.pages.iter().find(|(path, ..)| *path == other);
                page.map_or((404, String::new()), |(_, status, body)| (*status, body.clone()))
            }
        }
    };
    if status == 0 {
        return std::future::pending().await;
    }
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
    let _ = stream.write_all(answer.as_bytes()).await;
}

pub(super) struct World {
    pub(super) shell: Arc<Shell>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) life: Lifecycle,
}

impl World {
    /// A router that follows these workers.
    fn new(extra: &str, workers: Vec<Worker>) -> Self {
        let world = Self::empty(extra, |_| None);
        world.life.spawn(world.fleet.clone().follow(static_list(workers)));
        world
    }

    pub(super) fn empty(extra: &str, ingest: impl FnOnce(&Arc<Shell>) -> Option<Ingest>) -> Self {
        // A slow machine's probes don't fail, unless a test wants them to.
        let patience = if extra.contains("timeout") { "" } else { "health.timeout = '20s'\n" };
        let text = format!("health.interval = '50ms'\n{patience}{extra}");
        let settings: Arc<Settings> = Arc::new(settings(&text));
        let shell = Shell::new(&settings, &[7; 32]);
        let life = Lifecycle::default();
        let fleet =
            Fleet::new(shell.clone(), settings, ingest(&shell), Questions::none(), life.clone());
        Self { shell, fleet, life }
    }

    pub(super) async fn is(&self, worker: &str, wanted: State) {
        eventually(&format!("{worker} is {wanted}"), || state(&self.shell, worker) == Some(wanted))
            .await;
    }

    fn id(&self, worker: &str) -> WorkerId {
        self.shell.core().worker_named(worker).unwrap()
    }

    /// Every task ends with the router.
    pub(super) async fn end(self) {
        self.life.shut_down(Duration::ZERO).await;
        assert!(self.life.finish(Duration::from_secs(30)).await, "a task goes on (F44)");
    }
}

#[tokio::test]
async fn f39_f32_a_worker_that_is_not_there_is_probed_until_it_is() {
    let mut engine = Engine::dead();
    let world = World::new("", vec![engine.worker("w")]);
    world.is("w", State::Down).await;
    assert_eq!(world.shell.core().route("m").unwrap_err(), RouteError::NotYet);
    let id = world.id("w");
    engine.start();
    world.is("w", State::Ready).await;
    assert_eq!(world.id("w"), id, "what was never up has had no life that ended");
    assert!(world.shell.core().route("m").is_ok());
    world.end().await;
}

#[tokio::test]
async fn f21_a_worker_that_refused_and_is_back_lives_another_life() {
    let mut engine = Engine::up();
    let world = World::new("", vec![engine.worker("w")]);
    world.is("w", State::Ready).await;
    let first = world.id("w");
    engine.die().await;
    world.is("w", State::Down).await;
    assert_eq!(world.id("w"), first, "down is not gone");
    let asked = engine.says.lock().asked;
    engine.start();
    world.is("w", State::Ready).await;
    assert_ne!(world.id("w"), first);
    eventually("it is asked anew what it serves", || engine.says.lock().asked > asked).await;
    world.end().await;
}

#[tokio::test]
async fn f65_a_worker_that_answers_badly_is_down_after_some_failures_and_keeps_its_life() {
    let engine = Engine::up();
    let world = World::new("health.failures = 2\n", vec![engine.worker("w")]);
    world.is("w", State::Ready).await;
    let first = world.id("w");
    engine.say(|s| s.health = 500);
    world.is("w", State::Down).await;
    engine.say(|s| s.health = 204);
    world.is("w", State::Ready).await;
    assert_eq!(world.id("w"), first, "R07: 5xx is the same incarnation");
    world.end().await;
}

#[tokio::test]
async fn f21_another_start_time_is_another_life() {
    let engine = Engine::up();
    let world = World::new("", vec![engine.worker("w")]);
    world.is("w", State::Ready).await;
    let first = world.id("w");
    let pages = || engine.says.lock().asked_metrics;
    let before = pages();
    engine.say(|s| s.started_at = 2.0);
    eventually("another life is seen", || world.id("w") != first).await;
    assert!(pages() <= before + 3, "at the next probe, not when it is asked anew what it serves");
    let second = world.id("w");
    world.is("w", State::Ready).await;
    // Asked twice more, it says the same, and stays who it is.
    let asked = engine.says.lock().asked;
    eventually("it is asked again", || engine.says.lock().asked >= asked + 2).await;
    assert_eq!(world.id("w"), second);
    world.end().await;
}

#[tokio::test]
async fn f69_models_are_asked_for_again_and_adapters_come_and_go() {
    let engine = Engine::up();
    let world = World::new("", vec![engine.worker("w")]);
    world.is("w", State::Ready).await;
    let served = || {
        let served = world.shell.core().served_models();
        served.iter().map(|(n, a)| (n.to_string(), *a)).collect::<Vec<_>>()
    };
    assert_eq!(served(), [("m".to_owned(), false)]);
    let with_lora = r#"{"data":[{"id":"m"},{"id":"lora","parent":"m"}]}"#;
    engine.say(|s| s.models = with_lora.into());
    eventually("the adapter is known", || served().len() == 2).await;
    assert_eq!(served()[1], ("lora".to_owned(), true));
    assert_eq!(&*world.shell.core().route("lora").unwrap().adapter, "lora");
    // Nonsense changes nothing; what it served before stands.
    engine.say(|s| s.models = "<html>".into());
    let asked = engine.says.lock().asked;
    eventually("it is asked again", || engine.says.lock().asked >= asked + 2).await;
    assert_eq!((served().len(), state(&world.shell, "w")), (2, Some(State::Ready)));
    engine.say(|s| s.models = r#"{"data":[{"id":"m"}]}"#.into());
    eventually("the adapter is gone", || served().len() == 1).await;
    assert!(world.shell.core().route("lora").is_ok(), "a name is never forgotten: 503, not 404");
    world.end().await;
}

#[tokio::test]
async fn f39_a_worker_that_does_not_say_what_it_serves_is_not_ready_until_it_does() {
    let engine = Engine::up();
    for nothing in ["", "{}", "[1", r#"{"data":[]}"#, r#"{"data":[{"id":"x","parent":"m"}]}"#] {
        engine.say(|s| s.models = nothing.into());
        let world = World::new("", vec![engine.worker("w")]);
        let asked = engine.says.lock().asked;
        eventually("it is asked again", || engine.says.lock().asked >= asked + 2).await;
        assert_eq!(state(&world.shell, "w"), Some(State::Starting), "{nothing:?}");
        engine.say(|s| s.models = r#"{"data":[{"id":"m"}]}"#.into());
        world.is("w", State::Ready).await;
        world.end().await;
    }
}

#[tokio::test]
async fn f34_a_hung_worker_stalls_nobody_else() {
    let (hung, good) = (Engine::up(), Engine::up());
    hung.say(|s| s.hung = true);
    let world = World::new("", vec![hung.worker("hung"), good.worker("good")]);
    world.is("good", State::Ready).await;
    assert_eq!(state(&world.shell, "hung"), Some(State::Starting));
    world.end().await;
    // And its own probes end.
    let world = World::new("health.timeout = '50ms'\n", vec![hung.worker("hung")]);
    world.is("hung", State::Down).await;
    hung.say(|s| s.hung = false);
    world.is("hung", State::Ready).await;
    world.end().await;
}

#[tokio::test]
async fn a_discovery_may_reset_add_replace_and_remove() {
    let (a, b, c) = (Engine::up(), Engine::up(), Engine::up());
    let world = World::empty("", |_| None);
    let (changes, stream) = tokio::sync::mpsc::channel(1);
    world.life.spawn(world.fleet.clone().follow(stream));
    changes.send(Change::Reset(vec![a.worker("a"), b.worker("b")])).await.unwrap();
    world.is("a", State::Ready).await;
    world.is("b", State::Ready).await;
    changes.send(Change::Upsert(c.worker("c"))).await.unwrap();
    world.is("c", State::Ready).await;
    // Registered anew, at another place: another life.
    let first = world.id("a");
    changes.send(Change::Upsert(c.worker("a"))).await.unwrap();
    eventually("it is another", || world.id("a") != first).await;
    world.is("a", State::Ready).await;
    let url = world
        .shell
        .core()
        .workers()
        .iter()
        .find(|w| &*w.info.spec.name == "a")
        .unwrap()
        .info
        .spec
        .url
        .clone();
    assert_eq!(*url, *format!("http://{}", c.address));
    changes.send(Change::Remove("b".into())).await.unwrap();
    eventually("it is gone", || state(&world.shell, "b").is_none()).await;
    changes.send(Change::Remove("nobody".into())).await.unwrap();
    changes.send(Change::Reset(vec![c.worker("c")])).await.unwrap();
    eventually("only the named one is left", || {
        state(&world.shell, "a").is_none() && world.shell.core().workers().len() == 1
    })
    .await;
    world.is("c", State::Ready).await;
    assert!(world.fleet.remove("c") && !world.fleet.remove("c"));
    assert!(world.shell.core().workers().is_empty());
    world.end().await;
}

#[tokio::test]
async fn f43_workers_that_come_and_go_quickly_leave_no_task_behind() {
    let engine = Engine::up();
    let world = World::empty("", |_| None);
    let (changes, stream) = tokio::sync::mpsc::channel(1);
    world.life.spawn(world.fleet.clone().follow(stream));
    for n in 0..50 {
        changes.send(Change::Upsert(engine.worker("w"))).await.unwrap();
        if n % 3 == 0 {
            changes.send(Change::Remove("w".into())).await.unwrap();
        }
    }
    changes.send(Change::Upsert(engine.worker("w"))).await.unwrap();
    drop(changes);
    world.is("w", State::Ready).await;
    assert_eq!(world.shell.core().workers().len(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_worker_without_events_is_known_as_such_and_a_configured_feed_is_followed() {
    let engine = Engine::up();
    let world = World::empty("", |shell| Some(Ingest::start(shell.clone()).unwrap()));
    assert_eq!(world.fleet.index_state("quiet"), "none", "nobody goes by that name");
    let mut told = engine.worker("told");
    told.kv_events = Some("tcp://127.0.0.1:1".into());
    let workers = vec![engine.worker("quiet"), told];
    world.life.spawn(world.fleet.clone().follow(static_list(workers)));
    world.is("quiet", State::Ready).await;
    world.is("told", State::Ready).await;
    eventually("its feed is being connected", || world.fleet.index_state("told") == "connecting")
        .await;
    assert_eq!(world.fleet.index_state("quiet"), "approximate");
    assert!(world.fleet.remove("told"));
    assert_eq!(world.fleet.index_state("told"), "none", "F56");
    world.end().await;
}

/// A socket that tells of subscribers, as an engine's would; at a port, or any with `*`.
pub(super) fn publisher(port: &str) -> Option<(zmq::Socket, u16)> {
    let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind(&format!("tcp://127.0.0.1:{port}")).ok()?;
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    let port = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
    Some((socket, port))
}

/// Two of them, at ports that follow each other.
pub(super) fn neighbours() -> [(zmq::Socket, u16); 2] {
    let mut tried = Vec::new();
    loop {
        let first = publisher("*").unwrap();
        if let Some(second) = first.1.checked_add(1).and_then(|port| publisher(&port.to_string())) {
            return [first, second];
        }
        // Kept, so that the system gives another one.
        tried.push(first);
        assert!(tried.len() < 1000, "no two free ports beside each other");
    }
}

#[tokio::test]
async fn f68_the_ranks_of_a_configured_feed_are_at_the_ports_above_it() {
    let (engine, ports) = (Engine::up(), neighbours());
    let world = World::empty("", |shell| Some(Ingest::start(shell.clone()).unwrap()));
    let mut worker = engine.worker("w");
    worker.dp_size = Some(2);
    worker.kv_events = Some(format!("tcp://127.0.0.1:{}", ports[0].1));
    world.life.spawn(world.fleet.clone().follow(static_list(vec![worker])));
    eventually("both are connected", || world.fleet.index_state("w") == "events").await;
    for (socket, port) in &ports {
        eventually(&format!("{port} has its subscriber"), || {
            socket.recv_bytes(zmq::DONTWAIT).is_ok_and(|told| told == [1])
        })
        .await;
    }
    assert!(world.fleet.remove("w"));
    assert_eq!(world.fleet.index_state("w"), "none", "F56");
    for (socket, port) in &ports {
        eventually(&format!("{port} has none any more"), || {
            socket.recv_bytes(zmq::DONTWAIT).is_ok_and(|told| told == [0])
        })
        .await;
    }
    world.end().await;
}

#[tokio::test]
async fn the_ranks_that_an_engine_names_are_followed_and_the_others_go_without() {
    const SAID: &str = "of some of the worker's ranks no events can be followed";
    let (lines, _guard) = Lines::listen();
    let (engine, zero, two) = (Engine::up(), publisher("*").unwrap(), publisher("*").unwrap());
    let source = |rank: u32, endpoint: &str| format!(r#""{rank}": {{"endpoint": "{endpoint}"}}"#);
    let all = [
        source(0, &format!("tcp://*:{}", zero.1)),
        source(1, "ipc:///tmp/feed"),
        source(2, &format!("tcp://*:{}", two.1)),
        // Beyond what it has.
        source(4, "tcp://127.0.0.1:1"),
        source(70_000, "tcp://127.0.0.1:1"),
    ];
    engine.say(|s| s.sources = format!("{{{}}}", all.join(",")));
    let world = World::empty("", |shell| Some(Ingest::start(shell.clone()).unwrap()));
    let mut worker = engine.worker("w");
    worker.dp_size = Some(4);
    world.life.spawn(world.fleet.clone().follow(static_list(vec![worker])));
    eventually("those that it names are connected", || world.fleet.index_state("w") == "events")
        .await;
    for (socket, port) in [&zero, &two] {
        eventually(&format!("{port} has its subscriber"), || {
            socket.recv_bytes(zmq::DONTWAIT).is_ok_and(|told| told == [1])
        })
        .await;
    }
    let asked = engine.says.lock().asked;
    eventually("it is asked again", || engine.says.lock().asked >= asked + 2).await;
    assert_eq!(lines.count(SAID), 1);
    assert_eq!(world.fleet.index_state("w"), "events");
    world.end().await;
}

#[tokio::test]
async fn ranks_without_a_port_are_said_once_and_hold_back_nobody() {
    const SAID: &str = "of some of the worker's ranks no events can be followed";
    let (lines, _guard) = Lines::listen();
    let engine = Engine::up();
    let world = World::empty("", |shell| Some(Ingest::start(shell.clone()).unwrap()));
    let mut worker = engine.worker("w");
    worker.dp_size = Some(4);
    worker.kv_events = Some("tcp://127.0.0.1:65534".into());
    world.life.spawn(world.fleet.clone().follow(static_list(vec![worker])));
    world.is("w", State::Ready).await;
    let asked = engine.says.lock().asked;
    eventually("it is asked again", || engine.says.lock().asked >= asked + 2).await;
    assert_eq!(lines.count(SAID), 1);
    assert_eq!(world.fleet.index_state("w"), "connecting");
    world.end().await;
}

#[tokio::test]
async fn the_replay_socket_is_the_one_that_the_engine_names_or_the_file() {
    let listen = || {
        let socket = zmq::Context::new().socket(zmq::ROUTER).unwrap();
        socket.set_linger(0).unwrap();
        socket.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        (socket, endpoint)
    };
    let engine = Engine::up();
    let (events, named, configured) = (publisher("*").unwrap(), listen(), listen());
    let port = named.1.rsplit_once(':').unwrap().1;
    engine.say(|s| {
        s.sources = format!(
            r#"{{"0": {{"endpoint": "tcp://*:{}", "replay_endpoint": "tcp://*:{port}"}}}}"#,
            events.1
        );
    });
    for (kv_replay, expected) in [(None, &named), (Some(configured.1.clone()), &configured)] {
        let world = World::empty("", |shell| Some(Ingest::start(shell.clone()).unwrap()));
        let worker = Worker { kv_replay, ..engine.worker("w") };
        world.life.spawn(world.fleet.clone().follow(static_list(vec![worker])));
        eventually("it is asked for all that there is", || {
            // Its identity, nothing, and the number.
            expected.0.recv_multipart(zmq::DONTWAIT).is_ok_and(|asked| asked[2] == [0; 8])
        })
        .await;
        assert!(world.fleet.remove("w"));
        world.end().await;
    }
    let asked = named.0.recv_multipart(zmq::DONTWAIT);
    assert!(asked.is_err(), "what the file says overrides it: {asked:?}");
}

#[test]
fn a_rank_publishes_so_many_ports_above_the_first() {
    use homing_wire::engine::endpoint_of;
    for (first, rank, expected) in [
        ("tcp://h:5557", 0, Some("tcp://h:5557")),
        ("tcp://h:5557", 3, Some("tcp://h:5560")),
        ("tcp://[fd00::1]:5557", 1, Some("tcp://[fd00::1]:5558")),
        ("tcp://h:65534", 1, Some("tcp://h:65535")),
        ("tcp://h:65534", 2, None),
        ("tcp://h:1", u16::MAX, None),
        ("tcp://h", 1, None),
        ("tcp://h:", 1, None),
        ("tcp://h:x", 1, None),
        ("ipc:///tmp/feed:1", 1, None),
    ] {
        assert_eq!(endpoint_of(first, rank).as_deref(), expected, "{first} {rank}");
    }
}

#[tokio::test]
async fn probes_and_discovery_go_on_until_the_last_request_has_ended() {
    let (mut engine, other) = (Engine::up(), Engine::up());
    let world = World::empty("", |_| None);
    let (changes, stream) = tokio::sync::mpsc::channel(1);
    world.life.spawn(world.fleet.clone().follow(stream));
    changes.send(Change::Upsert(engine.worker("w"))).await.unwrap();
    world.is("w", State::Ready).await;
    world.life.shut_down(Duration::ZERO).await;
    assert!(world.life.stopping().is_cancelled());
    // Streams still drain: what they may be moved to must be known.
    engine.die().await;
    world.is("w", State::Down).await;
    engine.start();
    world.is("w", State::Ready).await;
    changes.send(Change::Upsert(other.worker("other"))).await.unwrap();
    world.is("other", State::Ready).await;
    world.end().await;
}

#[tokio::test]
async fn what_stays_wrong_for_many_probes_is_said_once() {
    const UNKNOWN: &str = "what the worker serves is unknown";
    const UNUSABLE: &str = "the worker can't be used";
    let (lines, _guard) = Lines::listen();
    let engine = Engine::up();
    engine.say(|s| s.models = "<html>".into());
    let world = World::new("", vec![engine.worker("w")]);
    let asked_thrice = async || {
        let asked = engine.says.lock().asked;
        eventually("it is asked again", || engine.says.lock().asked >= asked + 4).await;
    };
    asked_thrice().await;
    assert_eq!((lines.count(UNKNOWN), lines.count(UNUSABLE)), (1, 0));
    engine.say(|s| s.models = r#"{"data":[]}"#.into());
    asked_thrice().await;
    assert_eq!((lines.count(UNKNOWN), lines.count(UNUSABLE)), (1, 1));
    engine.say(|s| s.models = r#"{"data":[{"id":"m"}]}"#.into());
    world.is("w", State::Ready).await;
    // It was well in between, so this is news.
    engine.say(|s| s.models = "<html>".into());
    asked_thrice().await;
    assert_eq!((lines.count(UNKNOWN), lines.count(UNUSABLE)), (2, 1));
    world.end().await;
}

#[tokio::test]
async fn a_name_that_belongs_to_another_pool_is_said_once() {
    const TAKEN: &str =
        "this model name belongs to another pool; the worker won't get its requests";
    let (lines, _guard) = Lines::listen();
    let (a, b) = (Engine::up(), Engine::up());
    a.say(|s| s.models = r#"{"data":[{"id":"m"},{"id":"lora","parent":"m"}]}"#.into());
    b.say(|s| s.models = r#"{"data":[{"id":"n"},{"id":"lora","parent":"n"}]}"#.into());
    let world = World::empty("", |_| None);
    let (changes, stream) = tokio::sync::mpsc::channel(1);
    world.life.spawn(world.fleet.clone().follow(stream));
    changes.send(Change::Upsert(a.worker("a"))).await.unwrap();
    world.is("a", State::Ready).await;
    changes.send(Change::Upsert(b.worker("b"))).await.unwrap();
    eventually("it is asked again", || b.says.lock().asked >= 4).await;
    assert_eq!(lines.count(TAKEN), 1);
    world.end().await;
}
