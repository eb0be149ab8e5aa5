//! Which KV-cache groups of a rank are of full attention, as far as its events have told.
//!
//! vLLM 0.20 and 0.21 name an event's group and not its kind. A sliding window is known there by naming fewer
//! blocks than its tokens fill; but a short prompt fits the window, and tells nothing. So a group can turn out
//! to be another than it was taken for, after its blocks were counted.

use super::naive::MAX_GROUPS;
use smallvec::SmallVec;

/// The groups of one rank, and whether each is taken for one of full attention.
#[derive(Debug, Default)]
pub(super) struct Groups(SmallVec<[(u32, bool); 4]>);

/// What an event makes of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Of full attention, for all that is known.
    Full,
    /// Something else.
    Other,
    /// Something else, and was taken for full attention until now: what it stored was counted.
    Turned,
    /// One more than an engine has.
    TooMany,
}

impl Groups {
    /// Takes in what an event says. Once another, a group stays so.
    pub(super) fn hear(&mut self, group: u32, full: bool) -> Group {
        let Some(at) = self.0.iter().position(|(known, _)| *known == group) else {
            if self.0.len() >= MAX_GROUPS {
                return Group::TooMany;
            }
            self.0.push((group, full));
            return if full { Group::Full } else { Group::Other };
        };
        let taken = &mut self.0[at].1;
        match (*taken, full) {
            (true, true) => Group::Full,
            (true, false) => {
                *taken = false;
                Group::Turned
            }
            (false, _) => Group::Other,
        }
    }

    /// Whether it is known to be something else than full attention.
    pub(super) fn is_other(&self, group: Option<u32>) -> bool {
        group.is_some_and(|group| self.0.contains(&(group, false)))
    }
}
