//! The way of one who is new to what the others know.

use super::super::{ALONE_PATIENCE, JOIN_PATIENCE};
use super::Talk;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// For so long who is new waits for others to say that they are there.
const GATHER: Duration = Duration::from_millis(300);
/// On the way to know what others know.
pub(super) struct Joining {
    pub(super) began: Instant,
    /// Who is there has been asked; since when.
    pub(super) called: Option<Instant>,
    /// Somebody has been asked for all.
    pub(super) asked: bool,
    pub(super) done: Option<oneshot::Sender<()>>,
}

impl Talk {
    /// Looks how far the way to what others know has gone.
    pub(super) fn join(&mut self) {
        let Some(joining) = &mut self.joining else { return };
        if self.shell.core().knows_nothing() {
            // What others know would lead nowhere yet, and this router can't be ready before it has a worker.
            joining.began = Instant::now();
            return;
        }
        let passed = joining.began.elapsed();
        let over = match joining.called {
            None => passed >= ALONE_PATIENCE,
            Some(called) if !joining.asked => {
                if called.elapsed() >= GATHER {
                    joining.asked = true;
                    // Who is alone has all there is.
                    !self.peers.ask_for_all()
                } else {
                    false
                }
            }
            Some(_) => self.peers.has_all() || passed >= JOIN_PATIENCE,
        };
        if over {
            self.joined();
        }
    }

    pub(super) fn joined(&mut self) {
        let Some(mut joining) = self.joining.take() else { return };
        self.shell.core().restored();
        let (routers, whole) =
            (self.peers.present(), joining.called.is_some() && self.peers.has_all());
        let sessions: usize = self.shell.core().partitions().iter().map(|p| p.stats.bindings).sum();
        if whole {
            tracing::info!(routers, sessions, "this router knows what the others know");
        } else {
            tracing::warn!(
                routers,
                "this router begins without what others know: it learns as it hears of it"
            );
        }
        if let Some(done) = joining.done.take() {
            // Whoever waited may be gone.
            let _ = done.send(());
        }
    }
}
