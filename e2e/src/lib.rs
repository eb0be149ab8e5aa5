//! What black-box tests of the binary share: finding it, running it, talking to it.
//!
//! The tests that need real clients are in `python/`; those here need the engine model beside the binary,
//! to compare what the router believes with what is true.

use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// The binary: `HOMING_BIN`, or the one beside this test's own folder. `None`, said aloud, where there is
/// none: `cargo xtask test` builds it first, and names it.
///
/// # Panics
/// When `HOMING_BIN` names no file: then somebody meant these tests to run.
#[must_use]
pub fn binary() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("HOMING_BIN").map(PathBuf::from) {
        assert!(named.is_file(), "HOMING_BIN names no file: {}", named.display());
        return Some(named);
    }
    let beside = std::env::current_exe().ok()?.parent()?.parent()?.join("homing");
    if !beside.is_file() {
        eprintln!("SKIPPED: no homing binary; build it, or name it in HOMING_BIN");
        return None;
    }
    Some(beside)
}

/// A running `homing serve`; dropping it ends it.
#[derive(Debug)]
pub struct Serve {
    child: Child,
    /// `host:port` of the gateway.
    pub gateway: String,
    /// `host:port` of the admin server.
    pub admin: String,
}

impl Serve {
    /// Starts the router on free ports and waits until it says where it listens.
    ///
    /// # Errors
    /// When it can't be started, or ends before it listens.
    pub fn start(binary: &PathBuf, args: &[&str]) -> io::Result<Self> {
        Self::start_with(binary, args, "warn", Stdio::inherit())
    }

    /// [`Self::start`] with a filter of its log, and somewhere else for it to go.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        binary: &PathBuf,
        args: &[&str],
        log: &str,
        stderr: Stdio,
    ) -> io::Result<Self> {
        let mut child = Command::new(binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(args)
            .env("RUST_LOG", log)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let out = child.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?;
        let mut lines = BufReader::new(out).lines();
        let mut address = |what: &str| -> io::Result<String> {
            let line = lines.next().ok_or_else(|| io::Error::other("it ended"))??;
            let address = line.strip_prefix(what).map(str::to_owned);
            address.ok_or_else(|| io::Error::other(format!("it printed {line:?}")))
        };
        let gateway = address("gateway on http://")?;
        let admin = address("admin on http://")?;
        Ok(Self { child, gateway, admin })
    }
}

impl Serve {
    /// The reading end of its log, if that was piped and not taken yet.
    pub fn take_log(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own; the status and the body, which must be JSON.
///
/// # Errors
/// What the connection says, or that the answer is no JSON.
pub fn call(
    address: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    call_with(address, method, path, &[], body)
}

/// [`call`] with more headers.
///
/// # Errors
/// As [`call`].
pub fn call_with(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.push_str(&body);
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let broken = || io::Error::other(format!("not an answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(broken)?;
    Ok((status, serde_json::from_str(body).map_err(|_| broken())?))
}

/// Looks until `check` holds.
///
/// # Panics
/// When it doesn't within 30 seconds.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !check() {
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}
