//! An etcd of a test: on free ports, with a folder of its own, ended by its pid.

use homing_runtime::replication::port::Reach;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// See the module.
pub(crate) struct Server {
    port: u16,
    peers: u16,
    pub(crate) dir: PathBuf,
    user: Option<&'static str>,
    child: Option<Child>,
}

/// A port on which nobody listens now.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Server {
    /// One that isn't started yet.
    pub(crate) fn at_rest() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("homing-etcd-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self { port: free_port(), peers: free_port(), dir, user: None, child: None }
    }

    pub(crate) fn start() -> Self {
        let mut server = Self::at_rest();
        server.run();
        server
    }

    /// Starts it, again perhaps, and waits until it answers.
    pub(crate) fn run(&mut self) {
        let (url, peers) = (self.url(), format!("http://127.0.0.1:{}", self.peers));
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("log"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.dir.join("data"));
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--logger", "zap"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        self.child = Some(command.spawn().expect("etcd: apt-get install etcd-server"));
        for _ in 0..200 {
            if self.try_ctl(&["get", "nothing"]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        panic!("etcd doesn't answer: {log}");
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// All that it knows is lost.
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.dir.join("data")).unwrap();
    }

    /// SIGSTOP: it is there, and says nothing.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// It goes on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]).args(args);
        if let Some(user) = self.user {
            command.args(["--user", user]);
        }
        let done = command.output().expect("etcdctl: apt-get install etcd-client");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    /// What an operator would do by hand.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// From now on everybody must say who he is; `root`'s password is `root`, `homing`'s is `right`.
    pub(crate) fn ask_for_users(&mut self) {
        self.ctl(&["user", "add", "root:root"]);
        self.ctl(&["user", "grant-role", "root", "root"]);
        self.ctl(&["role", "add", "router"]);
        self.ctl(&[
            "role",
            "grant-permission",
            "router",
            "--prefix=true",
            "readwrite",
            "/homing/g/",
        ]);
        self.ctl(&["user", "add", "homing:right"]);
        self.ctl(&["user", "grant-role", "homing", "router"]);
        self.ctl(&["auth", "enable"]);
        self.user = Some("root:root");
    }

    /// The history up to now is dropped.
    pub(crate) fn compact(&self) {
        let status = self.ctl(&["endpoint", "status", "--write-out=json"]);
        let at = status.find("\"revision\":").unwrap() + "\"revision\":".len();
        let revision: String = status[at..].chars().take_while(char::is_ascii_digit).collect();
        self.ctl(&["compact", &revision]);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach { urls: vec![self.url()], ..Reach::default() }
    }

    /// The same with a name, and a password in a file.
    pub(crate) fn reach_as(&self, user: &str, password: &str) -> Reach {
        let file = self.dir.join(format!("password-{password}"));
        std::fs::write(&file, format!("{password}\nnot this line\n")).unwrap();
        Reach { user: Some(user.to_owned()), password_file: Some(file), ..self.reach() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
