//! Tasks and how they end: nothing is spawned that nobody waits for.
//!
//! The way out has three stages, since requests that run still need what the tasks do (deadlines in the
//! queue, probes): draining, stopping, finished.

use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How far the process is on its way out.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    draining: CancellationToken,
    stopping: CancellationToken,
    finished: CancellationToken,
    tasks: TaskTracker,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            finished: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }
}

impl Lifecycle {
    /// Spawns a task on the current runtime; it must end soon after [`Self::finished`].
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Spawns a task that has no end of its own: it is let go of once the last request is over.
    pub fn spawn_until_finished(&self, task: impl Future<Output = ()> + Send + 'static) {
        let finished = self.finished.clone();
        self.spawn(async move {
            finished.run_until_cancelled(task).await;
        });
    }

    /// Cancelled from the stop signal on: unready, still serving.
    #[must_use]
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled when nothing new is taken any more; what runs and what waits goes on.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Cancelled when no request is left: time, probes and discovery end.
    #[must_use]
    pub fn finished(&self) -> &CancellationToken {
        &self.finished
    }

    /// The stop signal: unready for `delay`, then stopping.
    pub async fn shut_down(&self, delay: Duration) {
        self.draining.cancel();
        tokio::time::sleep(delay).await;
        self.stopping.cancel();
    }

    /// The last request is over: waits until every task has ended, `grace` at most; false if some had
    /// not.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.finished.cancel();
        self.tasks.close();
        tokio::time::timeout(grace, self.tasks.wait()).await.is_ok()
    }
}
