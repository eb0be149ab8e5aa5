//! A nats-server of a test: on a free port, with storage of its own, ended by its pid; and a wire that can be cut.

use homing_runtime::replication::port::Reach;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::sync::watch;

/// See the module.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) dir: PathBuf,
    args: Vec<String>,
    child: Option<Child>,
}

pub(crate) const JETSTREAM: &[&str] = &["-js"];

/// A port on which nobody listens now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Server {
    /// One that isn't started yet.
    pub(crate) fn at_rest(args: &[&str]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("homing-nats-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self { port: free_port(), dir, args, child: None }
    }

    pub(crate) fn start(args: &[&str]) -> Self {
        let mut server = Self::at_rest(args);
        server.run();
        server
    }

    /// Starts it, again perhaps, and waits until it listens.
    pub(crate) fn run(&mut self) {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string()]).args(&self.args);
        command.arg("-sd").arg(self.dir.join("js")).arg("-l").arg(self.dir.join("log"));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("nats-server: apt-get install nats-server"));
        for _ in 0..500 {
            if TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        panic!("nats-server doesn't listen: {log}");
    }

    /// How it is started from now on.
    pub(crate) fn set_args(&mut self, args: &[&str]) {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Its storage is lost.
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.dir.join("js")).unwrap();
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach { urls: vec![format!("nats://127.0.0.1:{}", self.port)], ..Reach::default() }
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

/// A wire to a server, through which nothing may come for a while.
pub(crate) struct Proxy {
    port: u16,
    stopped: Arc<watch::Sender<bool>>,
}

impl Proxy {
    pub(crate) async fn before(server: &Server) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stopped = Arc::new(watch::Sender::new(false));
        let (to, is_stopped) = (server.port, stopped.clone());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut stopped = is_stopped.subscribe();
                tokio::spawn(async move {
                    if *stopped.borrow_and_update() {
                        // Accepted, and never answered; kept until things go on.
                        let _ = stopped.changed().await;
                        return;
                    }
                    let server = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await;
                    let Ok(mut server) = server else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = stopped.changed() => {}
                    }
                    let _ = stopped.changed().await;
                });
            }
        });
        Self { port, stopped }
    }

    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// For new connections: those that were stopped are closed.
    pub(crate) fn go_on(&self) {
        self.stopped.send_replace(false);
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach { urls: vec![format!("nats://127.0.0.1:{}", self.port)], ..Reach::default() }
    }
}
