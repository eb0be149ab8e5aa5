//! A worker that does what its script says. What the router asks for its own sake (`/health`,
//! `/v1/models`, ..) is answered here; each generating request is handed to the script, which gives the
//! bytes, pieces, waits and ends of the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// One step of an answer.
#[derive(Clone)]
pub(super) enum Act {
    /// Writes these bytes at once.
    Send(Vec<u8>),
    /// Waits until the gate is opened, or the router closes the connection, which ends the script.
    Hold(Gate),
    /// Writes a piece so many times.
    Flood(Vec<u8>, usize),
    /// Closes the connection.
    Close,
    /// Resets it.
    Reset,
}

/// Opened once for each `Hold` that shall pass.
pub(super) type Gate = Arc<Semaphore>;

pub(super) fn gate() -> Gate {
    Arc::new(Semaphore::new(0))
}

/// Waits until the router closes the connection.
pub(super) fn stall() -> Act {
    Act::Hold(gate())
}

/// A generating request as it came.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) line: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
    /// How many generating requests came before it on its connection.
    pub(super) earlier: usize,
}

impl Asked {
    /// All values of a header.
    pub(super) fn header(&self, name: &str) -> Vec<&[u8]> {
        self.headers.iter().filter(|h| h.0 == name).map(|h| h.1.as_slice()).collect()
    }
}

/// In the place of models: it tells nobody.
const LOCKED: &str = "locked";

type Script = Box<dyn Fn(&Asked) -> Vec<Act> + Send + Sync>;

struct Shared {
    base: &'static str,
    models: Mutex<String>,
    script: Script,
    asked: Mutex<Vec<Asked>>,
    /// What the router has asked for its own sake.
    looks: Mutex<Vec<Asked>>,
    /// Scripts that have begun.
    begun: AtomicUsize,
    /// Scripts at work.
    busy: AtomicUsize,
    /// Scripts that the router left.
    left: AtomicUsize,
    /// Bytes that floods have written.
    flooded: AtomicUsize,
    /// Connections that carried a generating request, and are closed.
    closed: AtomicUsize,
}

pub(super) struct Worker {
    pub(super) name: &'static str,
    pub(super) url: String,
    shared: Arc<Shared>,
    stop: CancellationToken,
    /// Ends its port alone.
    refuse: CancellationToken,
    tasks: TaskTracker,
}

impl Worker {
    /// A worker that serves `m`.
    pub(super) async fn start(
        name: &'static str,
        script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        Self::at(name, "", r#"{"data":[{"id":"m"}]}"#, script).await
    }

    /// A worker under a base path that serves these models.
    pub(super) async fn at(
        name: &'static str,
        base: &'static str,
        models: &str,
        script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{base}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            base,
            models: Mutex::new(models.to_owned()),
            script: Box::new(script),
            asked: Mutex::default(),
            looks: Mutex::default(),
            begun: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            flooded: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let refuse = stop.child_token();
        let (theirs, stopped, connections) = (shared.clone(), stop.clone(), tasks.clone());
        let refused = refuse.clone();
        tasks.spawn(async move {
            while let Some(accepted) = refused.run_until_cancelled(listener.accept()).await {
                let (stream, _) = accepted.unwrap();
                stream.set_nodelay(true).unwrap();
                let (shared, stopped) = (theirs.clone(), stopped.clone());
                connections.spawn(async move {
                    stopped.run_until_cancelled(serve(&shared, stream)).await;
                });
            }
        });
        Self { name, url, shared, stop, refuse, tasks }
    }

    /// One that wants a key which nobody has.
    pub(super) async fn locked(
        name: &'static str,
        script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        Self::at(name, "", LOCKED, script).await
    }

    /// It serves these from now on.
    pub(super) async fn serves(&self, models: &str) {
        models.clone_into(&mut *self.shared.models.lock().await);
    }

    /// Takes no more connections; those that there are go on.
    pub(super) async fn refuse(&self) {
        self.refuse.cancel();
        // Its listener is dropped by its task.
        while TcpStream::connect(self.url.trim_start_matches("http://")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends at once: its port refuses from now on.
    pub(super) async fn die(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The generating requests so far.
    pub(super) async fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().await.clone()
    }

    /// What the router has asked for its own sake so far.
    pub(super) async fn looks(&self) -> Vec<Asked> {
        self.shared.looks.lock().await.clone()
    }

    /// The only one so far.
    pub(super) async fn only(&self) -> Asked {
        let asked = self.asked().await;
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked[0].clone()
    }

    /// How many scripts have begun.
    pub(super) fn asked_now(&self) -> usize {
        self.shared.begun.load(Ordering::SeqCst)
    }

    pub(super) fn busy(&self) -> usize {
        self.shared.busy.load(Ordering::SeqCst)
    }

    pub(super) fn left(&self) -> usize {
        self.shared.left.load(Ordering::SeqCst)
    }

    pub(super) fn flooded(&self) -> usize {
        self.shared.flooded.load(Ordering::SeqCst)
    }

    pub(super) fn closed(&self) -> usize {
        self.shared.closed.load(Ordering::SeqCst)
    }
}

/// One connection's life.
async fn serve(shared: &Shared, mut stream: TcpStream) {
    let mut buffer = Vec::new();
    let mut earlier = 0;
    while let Some(mut asked) = read(&mut stream, &mut buffer).await {
        if asked.line.starts_with("GET ") {
            shared.looks.lock().await.push(asked.clone());
            let answer = about(shared, &asked.line).await;
            if stream.write_all(&answer).await.is_err() {
                return;
            }
            continue;
        }
        asked.earlier = earlier;
        earlier += 1;
        let acts = (shared.script)(&asked);
        shared.asked.lock().await.push(asked);
        shared.begun.fetch_add(1, Ordering::SeqCst);
        shared.busy.fetch_add(1, Ordering::SeqCst);
        let went_on = play(shared, &mut stream, acts).await;
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        if !went_on {
            break;
        }
    }
    drop(stream);
    if earlier > 0 {
        shared.closed.fetch_add(1, Ordering::SeqCst);
    }
}

/// True if the connection may be used again.
async fn play(shared: &Shared, stream: &mut TcpStream, acts: Vec<Act>) -> bool {
    for act in acts {
        match act {
            Act::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    shared.left.fetch_add(1, Ordering::SeqCst);
                    return false;
                }
            }
            Act::Hold(gate) => {
                let mut byte = [0];
                tokio::select! {
                    permit = gate.acquire() => permit.unwrap().forget(),
                    read = stream.read(&mut byte) => {
                        assert!(matches!(read, Ok(0) | Err(_)), "a request within a request");
                        shared.left.fetch_add(1, Ordering::SeqCst);
                        return false;
                    }
                }
            }
            Act::Flood(piece, times) => {
                for _ in 0..times {
                    if stream.write_all(&piece).await.is_err() {
                        shared.left.fetch_add(1, Ordering::SeqCst);
                        return false;
                    }
                    shared.flooded.fetch_add(piece.len(), Ordering::SeqCst);
                }
            }
            Act::Close => return false,
            Act::Reset => {
                socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
                return false;
            }
        }
    }
    true
}

/// What a worker says about itself.
async fn about(shared: &Shared, line: &str) -> Vec<u8> {
    let path = line.split(' ').nth(1).unwrap();
    match path.strip_prefix(shared.base) {
        Some("/health") => plain(200, "ok"),
        Some("/v1/models") => match shared.models.lock().await.as_str() {
            LOCKED => plain(401, "a key, please"),
            models => plain(200, models),
        },
        _ => plain(404, "no such thing"),
    }
}

/// Reads a request; `None` at the connection's end.
async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Asked> {
    let end = loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            break at;
        }
        more(stream, buffer).await?;
    };
    let head: Vec<u8> = buffer.drain(..end + 4).collect();
    let (line, headers) = parse_head(&head);
    let told = headers.iter().find(|h| h.0 == "content-length");
    let length = told.map_or(0, |h| std::str::from_utf8(&h.1).unwrap().parse().unwrap());
    let chunked = headers.iter().any(|h| h.0 == "transfer-encoding");
    while buffer.len() < length {
        more(stream, buffer).await?;
    }
    // A body in chunks is kept as it came, with what is behind it.
    while chunked && !(find(buffer, b"\r\n0\r\n").is_some() && buffer.ends_with(b"\r\n\r\n")) {
        more(stream, buffer).await?;
    }
    let length = if chunked { buffer.len() } else { length };
    let body = buffer.drain(..length).collect();
    Some(Asked { line, headers, body, earlier: 0 })
}

/// Reads what there is; `None` at the end.
pub(super) async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}

pub(super) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// The first line, and the headers with names in lower case.
pub(super) fn parse_head(head: &[u8]) -> (String, Vec<(String, Vec<u8>)>) {
    let mut lines = head.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    let first = String::from_utf8(lines.next().unwrap().to_vec()).unwrap();
    let headers = lines.filter(|l| !l.is_empty()).map(|l| {
        let colon = find(l, b":").unwrap();
        let name = String::from_utf8(l[..colon].to_ascii_lowercase()).unwrap();
        (name, l[colon + 1..].trim_ascii().to_vec())
    });
    (first, headers.collect())
}

/// A whole answer with a length.
pub(super) fn plain(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Something\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The usual answer.
pub(super) fn ok() -> Vec<Act> {
    vec![Act::Send(plain(200, r#"{"id":"x","choices":[]}"#))]
}

/// What a worker does with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Fine,
    /// It answers with this status, and when to come again in seconds.
    Full(u16, u32),
    Resets,
}

/// A worker's mood, for as long as it lasts.
pub(super) type Moods = Arc<std::sync::Mutex<Mood>>;

/// A worker in a good mood. What it says in a bad one has its name in it.
pub(super) async fn moody(name: &'static str) -> (Worker, Moods) {
    let moods = Moods::new(std::sync::Mutex::new(Mood::Fine));
    let theirs = moods.clone();
    let worker = Worker::start(name, move |_| match *theirs.lock().unwrap() {
        Mood::Fine => ok(),
        Mood::Resets => vec![Act::Reset],
        Mood::Full(status, seconds) => {
            let body = format!("{{\"detail\": \"{name} is full\" }}\n");
            let head = format!(
                "HTTP/1.1 {status} Full\r\ncontent-type: application/problem+json\r\n\
                 retry-after: {seconds}\r\nx-own: {name}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            vec![Act::Send([head, body].concat().into_bytes())]
        }
    })
    .await;
    (worker, moods)
}

pub(super) fn feels(moods: &Moods, mood: Mood) {
    *moods.lock().unwrap() = mood;
}

/// The head of a stream of events.
pub(super) const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                                 transfer-encoding: chunked\r\n\r\n";
/// The clean end of a chunked body.
pub(super) const LAST: &str = "0\r\n\r\n";

pub(super) fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A head, and pieces of a chunked body without its end.
pub(super) fn begun(pieces: &[&[u8]]) -> Vec<Act> {
    let head = Act::Send(STREAM.into());
    std::iter::once(head).chain(pieces.iter().map(|p| Act::Send(chunk(p)))).collect()
}

/// A whole stream.
pub(super) fn stream(pieces: &[&[u8]]) -> Vec<Act> {
    let mut acts = begun(pieces);
    acts.push(Act::Send(LAST.into()));
    acts
}
