//! Against an engine on a socket that answers what it is told to.

use super::*;
use crate::testing::{Lines, ask, register, settings};
use crate::upstream::{Link, Upstream};
use homing_core::ask::{Step, Usage};
use homing_core::hash::{HashSpace, Prompt};
use homing_core::trust::{LikelyCause, SUSPECT, TrustView};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Answers each path with a status and a body; whatever has none is 404. `asked`: the bodies of its questions.
#[derive(Debug, Default)]
struct Engine {
    says: Vec<(&'static str, u16, String)>,
    asked: Vec<String>,
}

type Shared = Arc<Mutex<Engine>>;

async fn engine() -> (Shared, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shared = Shared::default();
    let theirs = shared.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let engine = theirs.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                let (path, body) = loop {
                    if let Some(found) = whole(&request) {
                        break found;
                    }
                    if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
                        return;
                    }
                };
                let (status, answer) = {
                    let mut engine = engine.lock();
                    if path == "/tokenize" {
                        engine.asked.push(body);
                    }
                    let said = engine.says.iter().find(|(p, _, _)| *p == path);
                    said.map_or((404, String::new()), |(_, status, body)| (*status, body.clone()))
                };
                let head =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
                let _ = stream.write_all((head + &answer).as_bytes()).await;
            });
        }
    });
    (shared, url)
}

/// A request's path and body, once all of it is there.
fn whole(request: &[u8]) -> Option<(String, String)> {
    let text = String::from_utf8_lossy(request);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |n| n.parse().unwrap_or(0));
    let path = head.split(' ').nth(1)?;
    (body.len() >= length).then(|| (path.to_owned(), body.to_owned()))
}

struct World {
    shell: Arc<Shell>,
    verify: Verify,
    id: WorkerId,
    engine: Shared,
}

/// A router that follows one engine, and asks it one question a shape.
async fn world(extra: &str) -> World {
    let (engine, url) = engine().await;
    let settings = Arc::new(settings(&format!("health.timeout = '20s'\n{extra}")));
    let shell = Shell::new(&settings, &[7; 32]);
    register(&shell, "w");
    let id = shell.core().worker_named("w").unwrap();
    let question = |shape| Question {
        shape,
        body: format!(r#"{{"shape":"{shape:?}"}}"#).into(),
        tokens: vec![1, 2, 3],
    };
    let questions = Questions::new(move |model, _| match model {
        "m" => [Shape::Chat, Shape::Completions].map(question).into(),
        _ => Vec::new(),
    });
    let upstream = Upstream::fresh();
    let worker = Worker {
        id: "w".into(),
        url: url.parse().unwrap(),
        dp_size: Some(1),
        kv_events: None,
        kv_replay: None,
        labels: Default::default(),
        upstream: settings.upstream.clone().into(),
        generation: 0,
    };
    let (link, timeout) = (Link::of(&worker).unwrap(), settings.health.timeout);
    let verify = Verify::new(&shell, &Ask { upstream, link, timeout }, questions, &worker);
    World { shell, verify, id, engine }
}

impl World {
    fn says(&self, path: &'static str, status: u16, body: &str) {
        self.engine.lock().says = vec![(path, status, body.to_owned())];
    }

    /// As after each probe.
    fn count(&self) {
        let engine = self.engine.lock();
        let page = engine.says.iter().find(|(path, ..)| *path == "/metrics");
        let page = page.map_or("", |(.., text)| text);
        self.verify.count(self.id, &Exposition::parse(page));
    }

    async fn compare(&mut self) {
        self.verify.compare(self.id, &["other".to_owned(), "m".to_owned()]).await;
    }

    fn trust(&self) -> Vec<TrustView> {
        self.shell.core().workers()[0].trust.clone()
    }

    fn asked(&self) -> usize {
        self.engine.lock().asked.len()
    }
}

#[tokio::test]
async fn f28_an_engine_that_makes_the_same_tokens_is_trusted_and_asked_once() {
    let (lines, _guard) = Lines::listen();
    let mut world = world("").await;
    world.says("/tokenize", 200, r#"{"count":3,"max_model_len":9,"tokens":[1,2,3]}"#);
    world.compare().await;
    world.compare().await;
    assert_eq!(world.engine.lock().asked, [r#"{"shape":"Chat"}"#, r#"{"shape":"Completions"}"#]);
    let seen: Vec<_> = world.trust().iter().map(|t| (t.trust.factor(), t.likely_cause)).collect();
    assert_eq!((seen, lines.count(OTHER_TOKENS)), (vec![(1.0, None); 4], 0));
}

#[tokio::test]
async fn f28_one_that_makes_others_is_told_of_once_and_begins_with_little_trust() {
    let (lines, _guard) = Lines::listen();
    let mut world = world("").await;
    world.says("/tokenize", 200, r#"{"tokens":[1,2,4,3]}"#);
    world.compare().await;
    world.compare().await;
    assert_eq!(lines.count(OTHER_TOKENS), 2, "once a shape");
    for t in world.trust() {
        assert_eq!((t.trust.factor(), t.likely_cause), (SUSPECT, Some(LikelyCause::Template)));
    }
}

#[tokio::test]
async fn f28_one_that_has_no_such_path_or_says_something_else_is_unknown() {
    for (status, body) in [(404, ""), (400, "{}"), (200, "<html>"), (200, r#"{"tokens":["a"]}"#)] {
        let mut world = world("").await;
        world.says("/tokenize", status, body);
        world.compare().await;
        assert_eq!((world.trust(), world.asked()), (vec![], 2), "{status} {body}");
        world.compare().await;
        assert_eq!(world.asked(), 2, "and is not asked again");
    }
}

#[tokio::test]
async fn f28_one_that_can_t_answer_now_or_at_any_length_is_asked_again() {
    let mut world = world("").await;
    world.says("/tokenize", 503, "");
    world.compare().await;
    let endless = format!(r#"{{"tokens":[{}1]}}"#, "1,".repeat(MAX_TOKENS));
    world.says("/tokenize", 200, &endless);
    world.compare().await;
    assert_eq!((world.trust(), world.asked()), (vec![], 2));
    world.says("/tokenize", 200, r#"{"tokens":[1,2,3]}"#);
    world.compare().await;
    assert_eq!((world.trust().len(), world.asked()), (4, 4));
}

#[tokio::test]
async fn nothing_is_asked_where_verify_is_off() {
    let mut world = world("index.verify = 'off'\n").await;
    world.compare().await;
    world.count();
    assert_eq!((world.trust(), world.asked()), (vec![], 0));
}

/// What matters here is that the counters are asked for, and reach the core; what it makes of them is tested
/// there.
#[tokio::test]
async fn f28_counters_are_read_where_answers_say_nothing() {
    let world = world("").await;
    let page = |hits, queries| {
        format!(
            "vllm:prefix_cache_hits_total{{engine=\"0\"}} {hits}.0\n\
             vllm:prefix_cache_queries_total{{engine=\"0\"}} {queries}.0\n"
        )
    };
    let turn = async || {
        let mut request = ask(&world.shell, "");
        let tokens: Vec<u32> = (0..1000).collect();
        request.prompt = Prompt::from_tokens(&tokens, 16, HashSpace::default());
        let granted = world.shell.admit(request).await.unwrap();
        let Ok(checked) = granted.check().await else { panic!("it moved") };
        let (live, _) = checked.begin();
        live.progress(Step::Usage(Usage { prompt_tokens: 1000, cached_tokens: None }));
    };
    turn().await;
    assert!(world.shell.core().wants_counters(world.id));
    // A page without them, and none at all: it stays wanted.
    world.says("/metrics", 200, "vllm:prefix_cache_hits_total 1\n");
    world.count();
    world.says("/metrics", 500, "");
    world.count();
    assert!(world.shell.core().wants_counters(world.id));
    world.says("/metrics", 200, &page(0, 1000));
    world.count();
    assert!(!world.shell.core().wants_counters(world.id));
}

#[test]
fn the_first_difference_is_where_they_part() {
    assert_eq!(compared(&[1, 2, 3], &[1, 2, 3]), Compared::Same);
    assert_eq!(compared(&[], &[]), Compared::Same);
    let differs = |at, ours, theirs| Compared::Differs { at, ours, theirs };
    assert_eq!(compared(&[1, 2, 3], &[0, 1, 2, 3]), differs(0, 3, 4));
    assert_eq!(compared(&[1, 2, 3], &[1, 2]), differs(2, 3, 2));
    assert_eq!(compared(&[1, 2], &[1, 2, 9]), differs(2, 2, 3));
}
