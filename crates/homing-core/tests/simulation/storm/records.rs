//! What is kept of each request: one record, which says what was decided, and whose pick could be picked.

use super::{Meta, Storm};
use homing_core::affinity::Outcome;
use homing_core::ask::Grant;
use homing_core::explain::record::Stage;
use homing_core::explain::{RECORD_BYTES, Record};
use homing_core::select::Fit;
use std::collections::BTreeSet;

/// One in so many requests is looked at on its way: looking walks all the later ones.
const LOOK: u64 = 8;

impl Storm {
    /// It has just been granted a place.
    pub(super) fn recorded(&self, meta: &Meta, grant: &Grant) {
        if !meta.serial.is_multiple_of(LOOK) {
            return;
        }
        let decision = self.core.decision(&meta.serial.to_string()).unwrap();
        let record = &decision.record;
        assert_eq!(record.pick, Some(grant.target()));
        assert_eq!((record.stage, record.placement), (Stage::Placed, *grant.placement()));
        assert_eq!(record.waiting, None);
        let picked = decision.candidates.iter().find(|c| Some(c.target()) == record.pick).unwrap();
        let never = Fit::NOT_READY.and(Fit::FORBIDDEN).and(Fit::VETOED);
        assert!(!picked.fit.any(never), "{picked:?} of {meta:?}", meta = meta.serial);
        let home = record.home().is_some_and(|home| home.admits(picked.target()));
        if !home && !record.explicit {
            let elsewhere = Fit::FAILED.and(Fit::DRAINING);
            assert!(!picked.fit.any(elsewhere), "{picked:?} is no home");
        }
    }

    /// Its outcome is known.
    pub(super) fn told(&self, meta: &Meta, outcome: Outcome) {
        if !meta.serial.is_multiple_of(LOOK) {
            return;
        }
        let Record { stage, outcome: said, cause, .. } =
            self.core.decision(&meta.serial.to_string()).unwrap().record;
        assert_eq!(said, outcome);
        assert!(stage.over() || stage == Stage::Running, "{stage:?}");
        assert_eq!(cause.is_some(), stage == Stage::Refused);
    }

    /// Nothing is under way: each request has left one record, and each has ended.
    pub(super) fn all_recorded(&self) {
        let usage = self.core.record_use();
        assert_eq!(usage.kept as u64 + usage.dropped, self.requests, "one record a request");
        assert!(usage.bytes <= RECORD_BYTES);
        let all = self.core.decisions(usize::MAX);
        assert_eq!(all.len(), usage.kept);
        let ids: BTreeSet<_> = all.iter().map(|d| d.record.id.clone()).collect();
        assert_eq!(ids.len(), all.len(), "none twice");
        for decision in &all {
            let record = &decision.record;
            assert!(record.stage.over() && record.times.ended.is_some(), "{record:?}");
            assert!(record.waiting.is_none(), "{record:?}");
        }
    }
}
