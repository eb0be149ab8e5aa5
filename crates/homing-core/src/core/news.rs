//! Who is called when there is something to tell other routers (R23): whoever tells them sleeps until then.
//!
//! A call rings once, until whoever it has called begins to look: a thousand turns a second cost a load of an atomic each.

use super::SelectionCore;
use crate::time::Time;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Default)]
pub(super) struct News {
    /// It has rung, and nobody has begun to look since.
    rung: AtomicBool,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("News").field("rung", &self.rung).finish_non_exhaustive()
    }
}

impl News {
    /// There is something to tell. Not under a partition's lock: the bell may do what it likes.
    pub(super) fn ring(&self) {
        if !self.rung.load(Ordering::SeqCst)
            && !self.rung.swap(true, Ordering::SeqCst)
            && let Some(bell) = self.bell.get()
        {
            bell();
        }
    }
}

impl SelectionCore {
    /// Calls `bell` once a binding or what is booked has changed, or the next of [`Self::next_publication`] is there where
    /// none was. Growing answers ring nothing. Once; a second bell is not taken.
    pub fn on_news(&self, bell: impl Fn() + Send + Sync + 'static) {
        // It may have rung before somebody listened.
        let _ = self.news.bell.set(Box::new(bell));
    }

    /// Whoever was called begins to look: what changes from now on rings again.
    pub fn hears_news(&self) {
        self.news.rung.store(false, Ordering::SeqCst);
    }

    /// When [`Self::publications`] has something more, though nothing happens until then.
    #[must_use]
    pub fn next_publication(&self) -> Option<Time> {
        let cells = self.cells.read();
        cells.iter().filter_map(|cell| cell.state.lock().next_update()).min()
    }
}
