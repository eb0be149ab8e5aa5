//! Settings that can change while requests run. What they have bound, booked and queued stays; what is decided from
//! now on is decided by the new ones.

use super::SelectionCore;
use crate::settings::{AffinitySettings, CoreSettings, QueueSettings};

impl CoreSettings {
    /// These, with what can change at run time taken from `other`.
    #[must_use]
    pub(crate) fn with_live_parts_of(&self, other: &Self) -> Self {
        let (a, q) = (&other.affinity, &other.queue);
        Self {
            affinity: AffinitySettings {
                soft: a.soft,
                on_down: a.on_down,
                on_overload: a.on_overload,
                on_failure: a.on_failure,
                ..self.affinity.clone()
            },
            queue: QueueSettings {
                max_wait: q.max_wait,
                busy_active_requests: q.busy_active_requests,
                busy_prefill_tokens: q.busy_prefill_tokens,
                ..self.queue.clone()
            },
            overload: other.overload,
            retry_attempts: other.retry_attempts,
            retry_budget: other.retry_budget,
            health_failures: other.health_failures,
            health_successes: other.health_successes,
            ..self.clone()
        }
    }
}

impl SelectionCore {
    /// Takes over what can change at run time: what a Hard or Soft session does where its home can't be used, when
    /// a worker is busy, overloaded or Down, how long requests wait, and retries. The rest of `settings` has no effect.
    pub fn reconfigure(&self, settings: &CoreSettings) {
        let mut registry = self.registry.write();
        registry.set_patience(settings.health_failures, settings.health_successes);
        let changed = {
            let mut known = self.settings.write();
            *known = known.with_live_parts_of(settings);
            known.clone()
        };
        for cell in self.cells.read().iter() {
            self.with(cell, |state| state.reconfigure(changed.clone()));
        }
    }
}
