//! A bounded pool of threads for work that would stall streams: tokenizing 64 KB takes as long as
//! relaying hundreds of chunks. When the pool is behind, the caller does without (and counts it).

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that may wait for each thread. At some 30 ms for a large prompt this is half a second of work,
/// and beyond that routing without exact tokens is the better answer.
const BACKLOG: usize = 16;

/// The pool. Its threads end when it is dropped.
#[derive(Clone, Debug)]
pub struct ComputePool {
    jobs: SyncSender<Job>,
}

/// The pool is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the compute pool is behind")]
pub struct Behind;

impl ComputePool {
    /// A pool of `threads` threads.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let (jobs, queue) = sync_channel::<Job>(threads * BACKLOG);
        let queue = Arc::new(Mutex::new(queue));
        for i in 0..threads {
            let queue = queue.clone();
            thread::Builder::new().name(format!("compute-{i}")).spawn(move || work(&queue))?;
        }
        Ok(Self { jobs })
    }

    /// Runs `job` on the pool, and waits for it for `patience` at most: a job that never ends must not
    /// take its request along. It runs on, and the pool has a thread less.
    ///
    /// # Errors
    /// [`Behind`] when too much waits already, the job takes too long, or it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Behind> {
        self.run_while(patience, |_| job()).await
    }

    /// Likewise, of a job that asks now and then whether it is wanted still: where it isn't, nobody waits for what it
    /// gives.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_while<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, Behind> {
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move || {
            // Whoever asked may have gone: before it began, or by its end.
            if !done.is_closed() {
                let made = job(&|| !done.is_closed());
                let _ = done.send(made);
            }
        });
        match self.jobs.try_send(job) {
            Ok(()) => match timeout(patience, result).await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(_)) | Err(_) => Err(Behind),
            },
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Behind),
        }
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        // One idle thread waits inside the lock, the others for the lock: the same queue either way.
        let job = queue.lock().recv();
        match job {
            // A panicking job must not take the thread with it; its caller sees `Behind`.
            Ok(job) => {
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a job of the compute pool panicked");
                }
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn results_come_back_and_a_panic_costs_no_thread() {
        let pool = ComputePool::start(1).unwrap();
        assert_eq!(pool.run(LONG, || 6 * 7).await, Ok(42));
        assert_eq!(pool.run(LONG, || -> u32 { panic!("on purpose") }).await, Err(Behind));
        assert_eq!(pool.run(LONG, || 1).await, Ok(1));
    }

    #[tokio::test]
    async fn a_full_backlog_refuses_at_once() {
        let pool = ComputePool::start(1).unwrap();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let blocked = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run(LONG, move || gate.recv().is_ok()).await }
        });
        tokio::task::yield_now().await;
        let mut waiting = Vec::new();
        loop {
            let pool = pool.clone();
            let mut job = Box::pin(async move { pool.run(LONG, || true).await });
            match futures_poll(&mut job).await {
                Some(result) => {
                    assert_eq!(result, Err(Behind));
                    break;
                }
                None => waiting.push(job),
            }
            assert!(waiting.len() <= BACKLOG + 1, "the backlog has a bound");
        }
        open.send(()).unwrap();
        assert_eq!(blocked.await.unwrap(), Ok(true));
        for job in waiting {
            assert_eq!(job.await, Ok(true));
        }
    }

    #[tokio::test]
    async fn a_job_without_end_costs_its_caller_no_more_than_its_patience() {
        let pool = ComputePool::start(1).unwrap();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let stuck = pool.run(SHORT, move || gate.recv().is_ok());
        assert_eq!(stuck.await, Err(Behind));
        let behind_it = pool.run(SHORT, || true);
        assert_eq!(behind_it.await, Err(Behind), "nor whoever waits behind it");
        drop(open);
    }

    #[tokio::test]
    async fn a_job_hears_that_nobody_waits_for_it_any_more() {
        let pool = ComputePool::start(1).unwrap();
        let wanted_at_first = pool.run_while(LONG, |wanted| wanted()).await;
        assert_eq!(wanted_at_first, Ok(true));
        let job = |wanted: &dyn Fn() -> bool| {
            while wanted() {
                thread::yield_now();
            }
        };
        assert_eq!(pool.run_while(SHORT, job).await, Err(Behind));
        assert_eq!(pool.run(LONG, || 1).await, Ok(1), "and its thread is free again");
    }

    /// One poll: the result, if it is there at once.
    async fn futures_poll<F: Future + Unpin>(f: &mut F) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *f).poll(cx) {
                std::task::Poll::Ready(x) => Some(x),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
