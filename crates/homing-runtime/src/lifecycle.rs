//! Tasks and how they end: nothing is spawned that nobody waits for.

use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How far the process is on its way out.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    draining: CancellationToken,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }
}

impl Lifecycle {
    /// Spawns a task on the current runtime; it must end soon after [`Self::stopping`].
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Cancelled from the stop signal on: unready, still serving.
    #[must_use]
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled when nothing new is taken any more.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// The stop signal: unready for `delay`, then stopping.
    pub async fn shut_down(&self, delay: Duration) {
        self.draining.cancel();
        tokio::time::sleep(delay).await;
        self.stopping.cancel();
    }

    /// Waits until every task has ended, `grace` at most; false if some had not.
    pub async fn ended(&self, grace: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(grace, self.tasks.wait()).await.is_ok()
    }
}
