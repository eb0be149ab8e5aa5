//! What shares, on a thread that does nothing else: the CPU time of that thread is what it costs.

use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::replication::{Ports, Replication, Rules};
use homing_runtime::shell::Shell;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const GONE: &str = "what shares has ended";

/// See the module.
pub(super) struct Layer {
    asks: UnboundedSender<mpsc::Sender<Duration>>,
    thread: JoinHandle<Result<(), String>>,
    ready: mpsc::Receiver<()>,
}

impl Layer {
    pub(super) fn start(shell: &Arc<Shell>, ports: Ports) -> Self {
        let (asks, mut asked) = unbounded_channel::<mpsc::Sender<Duration>>();
        let (is_ready, ready) = mpsc::channel();
        let shell = shell.clone();
        let thread = std::thread::spawn(move || {
            super::router::runtime()?.block_on(async move {
                let life = Lifecycle::default();
                let rules = Rules { ttl: Duration::from_secs(16), ..Rules::default() };
                let shared = Replication::start(&shell, ports, rules, &life);
                shell.until_ready().await;
                // Whoever waits for either may be gone.
                let _ = is_ready.send(());
                while let Some(answer) = asked.recv().await {
                    let _ = answer.send(spent());
                }
                life.finish(Duration::from_secs(10)).await;
                drop(shared);
                Ok(())
            })
        });
        Self { asks, thread, ready }
    }

    /// Waits until it is in step.
    pub(super) fn ready(&self) -> Result<(), String> {
        self.ready.recv().map_err(|_| GONE.to_owned())
    }

    /// CPU time so far; zero where the kernel doesn't tell.
    pub(super) fn spent(&self) -> Duration {
        let (answer, answered) = mpsc::channel();
        let _ = self.asks.send(answer);
        answered.recv().unwrap_or_default()
    }

    pub(super) fn end(self) -> Result<(), String> {
        drop(self.asks);
        self.thread.join().map_err(|_| GONE.to_owned())?
    }
}

/// Of this thread.
fn spent() -> Duration {
    // The kernel counts it up when the thread stops.
    std::thread::sleep(Duration::from_micros(50));
    let read = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
    };
    read().unwrap_or_default()
}
