//! Connections against a server on a socket: which are used again, and what becomes of a request whose connection has
//! gone.

use super::*;
use crate::settings::{Settings, Sources};
use bytes::Bytes;
use http_body_util::BodyExt;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a server does with each request of a connection, from the first one on.
type Script = fn(request: usize) -> &'static [Act];

/// One thing that a server does.
#[derive(Clone, Copy)]
enum Act {
    Say(&'static str),
    /// Says no more until the client has gone.
    Wait,
    Close,
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// What it has seen: the heads by connection, in the order in which those came; and how many have ended.
#[derive(Default)]
struct Seen {
    heads: Vec<Vec<String>>,
    ended: usize,
}

struct Server {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Seen>>::default());
        let shared = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let at = {
                    let mut seen = shared.lock().unwrap();
                    seen.heads.push(Vec::new());
                    seen.heads.len() - 1
                };
                let seen = shared.clone();
                tokio::spawn(async move {
                    serve(stream, at, &seen, script).await;
                    seen.lock().unwrap().ended += 1;
                });
            }
        });
        Self { address, seen }
    }

    fn link(&self, more: &str) -> Arc<Link> {
        let text = format!("[[workers]]\nid = 'w'\nurl = 'http://{}'\n{more}", self.address);
        let file = Some(("test.toml".into(), text));
        let settings = Settings::load(Sources { file, ..Sources::default() }).unwrap();
        Link::of(&settings.workers[0]).unwrap()
    }

    /// How many requests came by each connection.
    fn requests(&self) -> Vec<usize> {
        self.seen.lock().unwrap().heads.iter().map(Vec::len).collect()
    }

    async fn until_ended(&self, n: usize) {
        while self.seen.lock().unwrap().ended < n {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn serve(mut stream: TcpStream, at: usize, seen: &Mutex<Seen>, script: Script) {
    let mut read = Vec::new();
    for request in 0.. {
        let end = loop {
            if let Some(end) = read.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read_buf(&mut read).await {
                Ok(n) if n > 0 => {}
                _ => return,
            }
        };
        let head = String::from_utf8(read.drain(..end).collect()).unwrap();
        seen.lock().unwrap().heads[at].push(head);
        for act in script(request) {
            match act {
                Act::Say(text) => {
                    let _ = stream.write_all(text.as_bytes()).await;
                }
                Act::Wait => {
                    let _ = stream.read_buf(&mut read).await;
                }
                Act::Close => return,
            }
        }
    }
}

fn get(link: &Link) -> Request<Outgoing> {
    let mut request = Request::new(Outgoing::default());
    *request.uri_mut() = link.uri("/x?y=1").unwrap();
    request
}

/// A whole answer.
async fn whole(upstream: &Upstream, link: &Link) -> Result<Bytes, (Failure, String)> {
    let answer = upstream.send(link, get(link)).await?;
    Ok(answer.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_connection_serves_the_next_request_when_its_answer_has_ended_and_not_before() {
    let server = Server::start(|_| &[Act::Say(OK)]).await;
    let (upstream, link) = (Upstream::new(), server.link(""));
    for _ in 0..5 {
        assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
        // Hyper is done with the answer when it has been polled once more.
        tokio::task::yield_now().await;
    }
    assert_eq!(server.requests(), [5]);
    // One that is still being read has its connection for itself.
    let open = upstream.send(&link, get(&link)).await.unwrap();
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    assert_eq!(server.requests(), [6, 1]);
    // Who doesn't want the rest takes the connection along.
    drop(open);
    server.until_ended(1).await;
    tokio::task::yield_now().await;
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    assert_eq!(server.requests(), [6, 2]);
}

#[tokio::test]
async fn f36_a_kept_connection_that_has_gone_costs_its_request_nothing() {
    // Each connection is closed behind its second answer, without a word of that.
    let server = Server::start(|request| match request {
        0 => &[Act::Say(OK)],
        _ => &[Act::Say(OK), Act::Close],
    })
    .await;
    let (upstream, link) = (Upstream::new(), server.link(""));
    for turn in 0..40 {
        assert_eq!(whole(&upstream, &link).await.unwrap(), "ok", "{turn}");
        if turn % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // One on which a request was underway when it went is another matter: it may have run.
    let server = Server::start(|request| match request {
        0 => &[Act::Say(OK)],
        _ => &[Act::Say("HTTP/1.1 200 OK\r\ncontent-"), Act::Close],
    })
    .await;
    let link = server.link("");
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    tokio::task::yield_now().await;
    assert_eq!(whole(&upstream, &link).await.unwrap_err().0, Failure::Broken);
    assert_eq!(server.requests(), [2]);
}

#[tokio::test]
async fn a_request_on_a_new_connection_is_sent_once() {
    let server = Server::start(|_| &[Act::Close]).await;
    let (upstream, link) = (Upstream::new(), server.link(""));
    assert_eq!(whole(&upstream, &link).await.unwrap_err().0, Failure::Broken);
    assert_eq!(server.requests(), [1]);
}

#[tokio::test]
async fn what_is_old_is_closed_though_nobody_asks_for_it() {
    let server = Server::start(|_| &[Act::Say(OK)]).await;
    let (upstream, link) = (Upstream::new(), server.link("[upstream]\npool_idle = '10ms'"));
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    server.until_ended(1).await;
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    assert_eq!(server.requests(), [1, 1]);
    // And so is, however young, what leads to a worker that has left.
    let link = server.link("[upstream]\npool_idle = '1h'");
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    drop(link);
    server.until_ended(3).await;
}

#[tokio::test]
async fn nothing_is_kept_where_nothing_is_to_be() {
    let server = Server::start(|_| &[Act::Say(OK)]).await;
    let kept = server.link("[upstream]\npool_idle = '0s'");
    for (n, (upstream, link)) in
        [(Upstream::fresh(), server.link("")), (Upstream::new(), kept)].into_iter().enumerate()
    {
        for _ in 0..2 {
            assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
        }
        server.until_ended(2 * n + 2).await;
    }
    assert_eq!(server.requests(), [1, 1, 1, 1]);
}

#[tokio::test]
async fn a_worker_that_hangs_up_on_a_client_is_told_of_nothing_else() {
    let server = Server::start(|_| &[Act::Wait]).await;
    let (upstream, link) = (Upstream::new(), server.link(""));
    let mut sent = Box::pin(upstream.send(&link, get(&link)));
    while server.requests() != [1] {
        let soon = tokio::time::timeout(Duration::from_millis(1), &mut sent);
        assert!(soon.await.is_err(), "nobody answers");
    }
    // Its client has gone before there was an answer: the worker hears of it at once (F40).
    drop(sent);
    server.until_ended(1).await;
}

#[tokio::test]
async fn heads_have_a_path_and_the_host() {
    let server = Server::start(|_| &[Act::Say(OK)]).await;
    let upstream = Upstream::new();
    let link = server.link("");
    whole(&upstream, &link).await.unwrap();
    let url: crate::settings::WorkerUrl =
        format!("http://{}/base", server.address).parse().unwrap();
    whole(&upstream, &Link::plain(url)).await.unwrap();
    let heads: Vec<String> = server.seen.lock().unwrap().heads.concat();
    let host = format!("\r\nhost: {}\r\n", server.address);
    assert!(heads[0].starts_with("GET /x?y=1 HTTP/1.1\r\n") && heads[0].contains(&host));
    assert!(heads[1].starts_with("GET /base/x?y=1 HTTP/1.1\r\n") && heads[1].contains(&host));
    assert_eq!(heads.len(), 2);
}

#[tokio::test]
async fn who_is_not_there_refuses() {
    let server = Server::start(|_| &[Act::Close]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = Server { address: listener.local_addr().unwrap(), ..server };
    drop(listener);
    let link = nobody.link("");
    let (failure, why) = whole(&Upstream::new(), &link).await.unwrap_err();
    assert_eq!(failure, Failure::Refused, "{why}");
    assert!(why.contains("refused"), "the chain of causes: {why}");
    let url: crate::settings::WorkerUrl = "unix:/nowhere/at/all.sock".parse().unwrap();
    let (failure, why) = whole(&Upstream::new(), &Link::plain(url)).await.unwrap_err();
    assert_eq!(failure, Failure::Refused, "{why}");
}

/// A connection of HTTP/2 in the pool; its other end does as the script says with each stream.
async fn shared(upstream: &Upstream, link: &Link, script: &'static [Option<h2::Reason>]) {
    let (ours, theirs) = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.unwrap(), theirs.unwrap().0)
    };
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(theirs).await.unwrap();
        let mut script = script.iter();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            match script.next().copied().flatten() {
                Some(reason) => respond.send_reset(reason),
                None => {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    body.send_data(Bytes::from_static(b"shared"), true).unwrap();
                }
            }
        }
    });
    let stream = Stream::Tcp(hyper_util::rt::TokioIo::new(ours));
    let _ = upstream.begin_shared(stream, &link.now.load_full()).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_a_worker_refuses_is_sent_again_and_not_for_ever() {
    const REFUSED: Option<h2::Reason> = Some(h2::Reason::REFUSED_STREAM);
    let server = Server::start(|_| &[Act::Close]).await;
    let link = server.link("");
    let upstream = Upstream::new();
    shared(&upstream, &link, &[REFUSED, REFUSED, None]).await;
    assert_eq!(whole(&upstream, &link).await.unwrap(), "shared");
    let upstream = Upstream::new();
    shared(&upstream, &link, &[REFUSED, REFUSED, REFUSED, None, Some(h2::Reason::INTERNAL_ERROR)])
        .await;
    let (failure, why) = whole(&upstream, &link).await.unwrap_err();
    assert_eq!(failure, Failure::Unreachable, "{why}");
    assert_eq!(whole(&upstream, &link).await.unwrap(), "shared");
    // It may have done something.
    let (failure, why) = whole(&upstream, &link).await.unwrap_err();
    assert_eq!(failure, Failure::Broken, "{why}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_stream_behind_the_last_one_of_a_goaway_is_sent_over_another_connection() {
    let server = Server::start(|_| &[Act::Say(OK)]).await;
    let (upstream, link) = (Upstream::new(), server.link(""));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, theirs) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    tokio::spawn(async move {
        let mut stream = theirs.unwrap().0;
        // SETTINGS; and once something came, GOAWAY: no stream was looked at.
        stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut read = Vec::new();
        // The preface, SETTINGS and the window are 24, 9 and more; the request comes behind them.
        while read.windows(3).all(|w| w != b"\x01\x05\0" && w != b"\x01\x04\0") {
            assert!(stream.read_buf(&mut read).await.unwrap() > 0);
        }
        stream.write_all(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0").await.unwrap();
        let _ = stream.read_buf(&mut read).await;
    });
    let stream = Stream::Tcp(hyper_util::rt::TokioIo::new(ours.unwrap()));
    let _ = upstream.begin_shared(stream, &link.now.load_full()).await.unwrap();
    assert_eq!(whole(&upstream, &link).await.unwrap(), "ok");
    assert_eq!(server.requests(), [1]);
}

#[test]
fn a_request_is_written_as_its_connection_wants_it_whatever_the_last_one_wanted() {
    let url: crate::settings::WorkerUrl = "https://host:8443/base".parse().unwrap();
    let link = Link::plain(url);
    let now = link.now.load_full();
    let written = |request: &Request<Outgoing>| {
        let host = request.headers().get(HOST).map(|host| host.to_str().unwrap().to_owned());
        (request.uri().to_string(), host)
    };
    let (path, whole) = ("/base/x?y=1", "https://host:8443/base/x?y=1");
    let request = by_path(get(&link), &now);
    assert_eq!(written(&request), (path.to_owned(), Some("host:8443".to_owned())));
    let request = by_uri(request, &now);
    assert_eq!(written(&request), (whole.to_owned(), None));
    let request = by_path(request, &now);
    assert_eq!(written(&request), (path.to_owned(), Some("host:8443".to_owned())));
}
