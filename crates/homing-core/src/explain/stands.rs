//! Targets as they stood, kept small: most of what a decision looks at is what the one before looked at, too.
//!
//! What a request doesn't change of a target is written into a page of the ring once, and again when it has changed:
//! a record only says where it lies ([`Stamps`] know that of the page that is written). What the request itself adds, its
//! overlaps and what speaks against a target for it alone, is written for those who have any ([`Own`]). So a record of
//! 64 targets writes some hundred bytes where the targets themselves would be ten thousand, and all that a policy was
//! shown can be put together again ([`Rows`]): what a target would have cost is asked when somebody wants to know.

use crate::select::policy::Weight;
use crate::select::{Candidate, Fit};
use crate::time::Time;
use crate::trust::Trust;

/// What lies nowhere yet.
const NOWHERE: u16 = u16::MAX;

/// Where each target of a board lies in the page that is written, as it stands now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamps {
    page: Option<u64>,
    at: Vec<u16>,
}

impl Stamps {
    /// There are so many targets now, and what is known of others is of no use.
    pub(crate) fn renew(&mut self, targets: usize) {
        self.at.clear();
        self.at.resize(targets, NOWHERE);
    }

    /// This one has changed.
    pub(crate) fn changed(&mut self, target: usize) {
        self.at[target] = NOWHERE;
    }

    /// From now on this page is written.
    pub(super) fn turn(&mut self, page: u64) {
        if self.page != Some(page) {
            self.page = Some(page);
            self.at.fill(NOWHERE);
        }
    }

    /// Whether all that lies somewhere lies in this page.
    pub(super) fn is_of(&self, page: Option<u64>) -> bool {
        page.is_some() && self.page == page
    }

    /// Where this one lies, if it does.
    pub(super) fn get(&self, target: usize) -> Option<u16> {
        Some(self.at[target]).filter(|at| *at != NOWHERE)
    }

    /// Where this one lies, once `put` has put it where it said.
    pub(super) fn or_put(&mut self, target: usize, put: impl FnOnce() -> u16) -> u16 {
        let at = &mut self.at[target];
        if *at == NOWHERE {
            *at = put();
        }
        *at
    }
}

/// The targets of a decision, as policies saw them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// In the order of ids.
    pub(crate) all: &'a [Candidate],
    /// What speaks against each.
    pub(crate) fits: &'a [Fit],
    /// Their numbers for the stamps; `None`: their own.
    pub(crate) numbers: Option<&'a [u32]>,
    /// Those that hold some of the prompt, in order.
    pub(crate) holders: &'a [u32],
    /// Not all of them are trusted in full.
    pub(crate) doubted: bool,
}

impl Seen<'_> {
    /// One of them, as far as the request has no part in it.
    pub(super) fn lasting(&self, i: usize) -> Candidate {
        let mut c = self.all[i];
        (c.overlap, c.told, c.host, c.disk, c.trust) = (0, 0, 0, 0, Trust::FULL);
        c.fit.remove(!Fit::LASTING, true);
        c
    }

    pub(super) fn number(&self, i: usize) -> usize {
        self.numbers.map_or(i, |numbers| numbers[i] as usize)
    }

    /// Whether only those that hold some of the prompt differ from how they always stand.
    pub(super) fn only_holders(&self) -> bool {
        // All at once: none of them has any, as a rule.
        let any = self.fits.iter().fold(Fit::default(), |any, fit| any.and(*fit));
        !self.doubted && !any.any(!Fit::LASTING)
    }

    /// What the request adds to one of them, which is the `at`th of those that are kept.
    pub(super) fn own(&self, i: usize, at: u16) -> Option<Own> {
        let c = &self.all[i];
        let differs = c.overlap > 0 || c.trust != Trust::FULL || c.fit.any(!Fit::LASTING);
        differs.then_some(Own {
            at,
            fit: c.fit,
            trust: c.trust,
            overlap: c.overlap,
            told: c.told,
            host: c.host,
            disk: c.disk,
        })
    }
}

/// What a request adds to a target: see [`Candidate`]'s fields of these names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    at: u16,
    fit: Fit,
    trust: Trust,
    overlap: u32,
    told: u32,
    host: u32,
    disk: u32,
}

/// What else the policy was told, beyond what a record says itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// When it was asked.
    pub(crate) now: Time,
    /// How long answers are, by others.
    pub(crate) answer: f32,
    /// Routers that don't hear of each other should agree on this session's first place.
    pub(crate) newcomer: bool,
    /// Its home was weighed as one.
    pub(crate) weighed: bool,
}

/// A record's targets, as they lie in a page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rows<'a> {
    pub(super) stands: &'a [Candidate],
    pub(super) refs: &'a [u16],
    pub(super) owns: &'a [Own],
    pub(super) said: &'a [Weight],
    pub(super) told: Told,
}

impl Rows<'_> {
    /// What else the policy was told.
    pub(super) fn told(&self) -> Told {
        self.told
    }

    /// The targets that are kept, as policies saw them, in order.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let stands = self.refs.iter().filter_map(|at| self.stands.get(*at as usize));
        let mut all: Vec<_> = stands.copied().collect();
        for own in self.owns {
            if let Some(c) = all.get_mut(own.at as usize) {
                (c.fit, c.trust) = (own.fit, own.trust);
                (c.overlap, c.told, c.host, c.disk) = (own.overlap, own.told, own.host, own.disk);
            }
        }
        all
    }

    /// What this one costs, where the policy can't be asked again.
    pub(super) fn said(&self, i: usize) -> Option<Weight> {
        self.said.get(i).copied()
    }
}
