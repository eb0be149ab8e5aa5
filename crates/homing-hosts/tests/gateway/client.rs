//! A client that sees what came on the wire, and whether an answer ended as its framing says.

use super::worker::{find, more, parse_head};
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// An answer, or as much of it as has come.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
    /// It ended as its framing says that it ends.
    pub(super) clean: bool,
}

impl Answer {
    /// All values of a header, as text.
    pub(super) fn header(&self, name: &str) -> Vec<&str> {
        let of = self.headers.iter().filter(|h| h.0 == name);
        of.map(|h| std::str::from_utf8(&h.1).unwrap()).collect()
    }

    pub(super) fn affinity(&self) -> &str {
        self.header("x-homing-affinity")[0]
    }

    pub(super) fn worker(&self) -> &str {
        self.header("x-homing-worker")[0]
    }

    /// Asserts that it is a refusal of the router's own, with this status, code and outcome.
    pub(super) fn assert_refused(&self, status: u16, code: &str, affinity: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        assert_eq!(self.affinity(), affinity, "R26: refusals too: {}", self.text());
        assert_eq!(self.header("x-homing-instance").len(), 1);
        assert_eq!(self.header("x-request-id").len(), 1);
        // Either it may come again, or it need not.
        let again = self.header("retry-after").len();
        assert_eq!(again + self.header("x-should-retry").len(), 1, "{:?}", self.headers);
        assert_eq!(again, self.header("retry-after-ms").len());
        if again == 1 {
            let seconds: u64 = self.header("retry-after")[0].parse().unwrap();
            assert!((1..=60).contains(&seconds));
        }
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// `error.code`, in OpenAI's shape.
    pub(super) fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        let error = body["error"].as_object().unwrap();
        let names: Vec<_> = error.keys().map(String::as_str).collect();
        assert_eq!(names, ["message", "type", "code", "param"]);
        error["code"].as_str().unwrap().to_owned()
    }
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClosed,
}

pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Writes these bytes; the router may have hung up.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Asks, and reads the whole answer.
    pub(super) async fn ask(&mut self, request: &[u8]) -> Answer {
        self.send(request).await;
        self.answer().await
    }

    /// Reads a head.
    pub(super) async fn head(&mut self) -> Answer {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at;
            }
            let came = more(&mut self.stream, &mut self.buffer).await;
            assert!(came.is_some(), "closed before the head: {:?}", self.buffer);
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let (line, headers) = parse_head(&head);
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, headers, body: Vec::new(), clean: false }
    }

    /// Reads an answer to its end.
    pub(super) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if answer.status == 100 {
            answer = self.head().await;
        }
        self.rest(&mut answer).await;
        answer
    }

    /// Reads the rest of an answer whose head was read.
    pub(super) async fn rest(&mut self, answer: &mut Answer) {
        while self.piece(answer).await {}
    }

    /// Reads until the body has these bytes in it.
    pub(super) async fn until(&mut self, answer: &mut Answer, what: &[u8]) {
        while find(&answer.body, what).is_none() {
            assert!(self.piece(answer).await, "ended before {what:?}: {answer:?}");
        }
    }

    /// Reads a piece of the body; false at its end.
    async fn piece(&mut self, answer: &mut Answer) -> bool {
        let framing = match (answer.header("transfer-encoding"), answer.header("content-length")) {
            (t, _) if !t.is_empty() => Framing::Chunked,
            (_, l) if !l.is_empty() => Framing::Length(l[0].parse().unwrap()),
            _ if answer.status == 204 => Framing::Length(0),
            _ => Framing::UntilClosed,
        };
        match framing {
            Framing::Length(all) => {
                if answer.body.len() == all {
                    answer.clean = true;
                    return false;
                }
                if self.buffer.is_empty() && !self.more().await {
                    return false;
                }
                let n = self.buffer.len().min(all - answer.body.len());
                answer.body.extend(self.buffer.drain(..n));
                true
            }
            Framing::Chunked => self.chunk(answer).await,
            Framing::UntilClosed => {
                let came = !self.buffer.is_empty() || self.more().await;
                answer.body.append(&mut self.buffer);
                answer.clean |= !came;
                came
            }
        }
    }

    async fn chunk(&mut self, answer: &mut Answer) -> bool {
        let line = loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                break at;
            }
            if !self.more().await {
                return false;
            }
        };
        let size = std::str::from_utf8(&self.buffer[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        while self.buffer.len() < line + 2 + size + 2 {
            if !self.more().await {
                // What came of the chunk was for the client all the same.
                let part = self.buffer.drain(line + 2..).take(size);
                answer.body.extend(part);
                return false;
            }
        }
        answer.body.extend_from_slice(&self.buffer[line + 2..line + 2 + size]);
        self.buffer.drain(..line + 2 + size + 2);
        answer.clean = size == 0;
        size != 0
    }

    async fn more(&mut self) -> bool {
        more(&mut self.stream, &mut self.buffer).await.is_some()
    }

    /// Whether the router has closed the connection, and nothing came before that.
    pub(super) async fn closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.more().await
    }

    /// Goes away, impolitely.
    pub(super) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}

/// A POST with a length.
pub(super) fn post(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: router\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    [request.as_bytes(), body].concat()
}

/// A chat.
pub(super) fn chat(headers: &[(&str, &str)]) -> Vec<u8> {
    post("/v1/chat/completions", headers, br#"{"model":"m","messages":[]}"#)
}

/// A chat of a session.
pub(super) fn turn(id: &str) -> Vec<u8> {
    chat(&[("x-homing-session-id", id)])
}

/// A chat of a session, with one more header.
pub(super) fn turn_with(id: &str, name: &str, value: &str) -> Vec<u8> {
    chat(&[("x-homing-session-id", id), (name, value)])
}

/// A chat that wants a stream.
pub(super) fn streamed(headers: &[(&str, &str)]) -> Vec<u8> {
    post("/v1/chat/completions", headers, br#"{"model":"m","stream":true,"messages":[]}"#)
}

pub(super) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}
