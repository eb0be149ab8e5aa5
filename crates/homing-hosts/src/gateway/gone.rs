//! What becomes of an answer whose worker's port refuses connections (F64). Its process is going, or has gone; what
//! it has begun it may still finish, and while bytes come it does. Where none come there is nothing to wait for: an
//! answer that has not begun is asked of another worker, and one that has ends with an error, now and not when its
//! patience is over.

use homing_core::ids::WorkerId;
use homing_runtime::shell::Shell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A stream that is silent for so long then is over.
const MUTE: Duration = Duration::from_secs(2);
/// And an answer that comes whole, of which nothing could have come.
const MUTE_WHOLE: Duration = Duration::from_secs(30);

/// Why something was not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// Its time is over.
    Slow,
    /// Its worker has gone.
    Gone,
    /// The router stops, now.
    Cut,
}

/// Watches one worker's life for one answer.
#[derive(Debug)]
pub(super) struct Gone {
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    cutting: CancellationToken,
    is_over: bool,
    patience: Duration,
}

impl Gone {
    /// Of one life of a worker.
    pub(super) fn of(shell: &Shell, worker: WorkerId, streams: bool) -> Self {
        let (life, cutting) = (shell.life_of(worker), shell.cutting().clone());
        let patience = if streams { MUTE } else { MUTE_WHOLE };
        Self { over: Box::pin(life.cancelled_owned()), cutting, is_over: false, patience }
    }

    /// How long silence may last, once the worker has gone. Wakes the task when it goes.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Duration> {
        if !self.is_over {
            self.is_over = self.over.as_mut().poll(cx) == Poll::Ready(());
        }
        let left = if self.is_cut() { Duration::ZERO } else { self.patience };
        self.is_over.then_some(left)
    }

    /// Whether it is the router that stops.
    pub(super) fn is_cut(&self) -> bool {
        self.cutting.is_cancelled()
    }

    /// Waits for `future` until then, or until its worker has gone and some time has passed.
    pub(super) async fn or_late<T>(
        &mut self,
        until: Instant,
        future: impl Future<Output = T>,
    ) -> Result<T, Late> {
        let patience = self.patience;
        let over = async {
            if !self.is_over {
                self.over.as_mut().await;
                self.is_over = true;
            }
            match self.cutting.run_until_cancelled(tokio::time::sleep(patience)).await {
                Some(()) => Late::Gone,
                None => Late::Cut,
            }
        };
        tokio::select! {
            biased;
            done = future => Ok(done),
            () = sleep_until(until) => Err(Late::Slow),
            late = over => Err(late),
        }
    }
}
