//! What must always be true of a partition, looked at after every call in debug builds.

use super::Partition;
use crate::ask::{Admission, Ask};
use crate::hash::Prompt;
use crate::ids::NameId;
use crate::queue::Line;
use crate::select::Fit;

/// A debug build looks at the invariants after each of so many calls, and later after one in
/// [`CHECK_ONE_IN`]: checks walk whole tables, and a debug build under load must not get slower with
/// every session. Tests that want each step checked call [`Partition::check`] themselves.
#[cfg(debug_assertions)]
const CHECK_ALL_OF: u32 = 4096;
/// See [`CHECK_ALL_OF`].
#[cfg(debug_assertions)]
const CHECK_ONE_IN: u32 = 64;

impl Partition {
    pub(super) fn checked(&mut self, admission: Admission) -> Admission {
        self.debug_check();
        admission
    }

    /// After every public mutator, in debug builds.
    pub(super) fn debug_check(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.calls = self.calls.wrapping_add(1);
            if self.calls <= CHECK_ALL_OF || self.calls.is_multiple_of(CHECK_ONE_IN) {
                self.check();
            }
        }
    }

    /// The board, with nothing of a request on it, is what it would be if it were made anew.
    fn check_board(&self) {
        let mut board = self.board.clone();
        let nobody = Ask::new(self.id, NameId(u32::MAX), Prompt::of_length(1));
        self.survey(&mut board, &self.demand(self.latest, &nobody, None), &nobody);
        let anew: Vec<_> = self.lasting().collect();
        board.check(&anew);
        board.check_stamps(self.records.ring());
    }

    /// Invariants, after every public call.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        if let Some(table) = &self.table {
            table.check();
        }
        self.ledger.check();
        self.lines.check();
        self.records.ring().check();
        let has = |worker, rank| self.row(worker).is_some_and(|row| row.ranks.has(rank));
        self.reports.check(has);
        self.peers.check(has);
        self.check_overload();
        self.vitals.check(|worker| self.row(worker).is_some());
        self.check_board();
        self.trust.check(|worker| self.row(worker).is_some());
        assert!(self.rows.is_sorted_by_key(|r| r.info.id), "rows out of order");
        assert!(
            !self.someone_free()
                || self.lines.someone_awake(Line::Any)
                || self.lines.all_tried(Line::Any),
            "somebody waits, somebody is free, and nobody was woken"
        );
        let mut board = self.board.clone();
        let mut usable = |ask: &Ask| {
            self.survey(&mut board, &self.demand(self.latest, ask, None), ask);
            board.field().fits().iter().any(|fit| !fit.any(Fit::UNUSABLE))
        };
        let hopeless = self.lines.asks(Line::Any).any(|ask| !usable(ask));
        assert!(
            !hopeless || self.lines.someone_awake(Line::Any),
            "somebody waits for workers that are gone, and nobody was woken"
        );
        for line in self.lines.tied() {
            let seen = self.lines.someone_awake(line) || self.lines.all_tried(line);
            let due = self.is_open(line) || self.shaken.contains(&line);
            assert!(!due || seen, "nobody was woken for {line:?}");
        }
        let waited = |line: &Line| !self.lines.is_empty(*line);
        assert!(self.shaken.iter().all(waited), "a line that nobody waits in");
    }
}
