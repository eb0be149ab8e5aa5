//! Connections of one thread that wait for their next request, by what they reach.
//!
//! HTTP/1.1 ones are taken out by a request and come back with the end of its answer (`answer`); the one that came back
//! last goes out first, so that those that are not needed grow old and are closed. One over HTTP/2 serves all requests at
//! a time, and stays.

use super::body::Outgoing;
use super::link::{Now, Wire};
use hyper::client::conn::{http1, http2};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Connections that one pool keeps to one worker while nobody uses them.
const IDLE_PER_WORKER: usize = 1024;
/// Old ones are looked for so often, while there are any.
const SWEEP: Duration = Duration::from_secs(1);

/// Clones share the connections.
#[derive(Clone, Default)]
pub(super) struct Pools(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    /// By the number of what they reach.
    pools: BTreeMap<u64, Pool>,
    /// Somebody looks for old ones.
    swept: bool,
}

/// Connections that are alike, and the wire that they are of, which knows whether they are still wanted.
struct Pool {
    of: Weak<Wire>,
    idle: Vec<Idle>,
    shared: Option<Shared>,
}

struct Idle {
    connection: http1::SendRequest<Outgoing>,
    since: Instant,
}

struct Shared {
    connection: http2::SendRequest<Outgoing>,
    used: Instant,
}

/// A connection that has served before.
pub(super) enum Taken {
    Own(http1::SendRequest<Outgoing>),
    Shared(http2::SendRequest<Outgoing>),
}

impl Pools {
    /// A connection that is ready for a request, as far as is known here.
    pub(super) fn take(&self, now: &Now) -> Option<Taken> {
        let mut all = self.0.lock();
        let pool = all.pools.get_mut(&now.reach)?;
        if let Some(shared) = &mut pool.shared {
            if !shared.connection.is_closed() {
                shared.used = Instant::now();
                return Some(Taken::Shared(shared.connection.clone()));
            }
            pool.shared = None;
        }
        // Those whose last answer hyper has not quite done with, which it soon will.
        let mut soon = Vec::new();
        let found = loop {
            let Some(Idle { connection, since }) = pool.idle.pop() else { break None };
            if connection.is_closed() || since.elapsed() >= now.wire.made.pool_idle {
                continue;
            }
            if connection.is_ready() {
                break Some(connection);
            }
            soon.push(Idle { connection, since });
        };
        pool.idle.append(&mut soon);
        found.map(Taken::Own)
    }

    /// A connection has served a request to its end.
    pub(super) fn give_back(&self, now: &Now, connection: http1::SendRequest<Outgoing>) {
        if connection.is_closed() || now.wire.made.pool_idle.is_zero() {
            return;
        }
        let mut all = self.0.lock();
        let pool = all.pool(now);
        if pool.idle.len() < IDLE_PER_WORKER {
            pool.idle.push(Idle { connection, since: Instant::now() });
        }
        self.sweep_later(&mut all);
    }

    /// A connection that serves several requests at a time is there.
    pub(super) fn share(&self, now: &Now, connection: http2::SendRequest<Outgoing>) {
        if now.wire.made.pool_idle.is_zero() {
            return;
        }
        let mut all = self.0.lock();
        all.pool(now).shared = Some(Shared { connection, used: Instant::now() });
        self.sweep_later(&mut all);
    }

    /// Has old ones closed as long as there are any.
    fn sweep_later(&self, all: &mut All) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if std::mem::replace(&mut all.swept, true) {
            return;
        }
        let pools = Arc::downgrade(&self.0);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(pools) = pools.upgrade() else { return };
                let mut all = pools.lock();
                let old = all.sweep();
                all.swept = !all.pools.is_empty();
                let over = !all.swept;
                // Closing them may take a moment, and nobody waits for it.
                drop(all);
                drop(old);
                if over {
                    return;
                }
            }
        });
    }
}

impl All {
    fn pool(&mut self, now: &Now) -> &mut Pool {
        let new = || Pool { of: Arc::downgrade(&now.wire), idle: Vec::new(), shared: None };
        self.pools.entry(now.reach).or_insert_with(new)
    }

    /// Takes out what is old, closed, or of nobody any more; pools that are empty are none.
    fn sweep(&mut self) -> (Vec<Idle>, Vec<Shared>) {
        let (mut idle, mut shared) = (Vec::new(), Vec::new());
        self.pools.retain(|_, pool| {
            let life = pool.of.upgrade().map_or(Duration::ZERO, |wire| wire.made.pool_idle);
            idle.extend(
                pool.idle.extract_if(.., |i| i.connection.is_closed() || i.since.elapsed() >= life),
            );
            shared.extend(
                pool.shared.take_if(|s| s.connection.is_closed() || s.used.elapsed() >= life),
            );
            !pool.idle.is_empty() || pool.shared.is_some()
        });
        (idle, shared)
    }
}
