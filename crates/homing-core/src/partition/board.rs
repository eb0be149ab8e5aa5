//! Every target of the partition as policies see it, kept from one decision to the next: what a request doesn't
//! change is written when it changes, and a decision only adds what is its own.
//!
//! A candidate is more than two cache lines, and of a large fleet none of them is in the nearest cache: so filters
//! look at what speaks against each in a list of its own, and hand on numbers instead of candidates. Nothing is
//! allocated for a decision but where not every worker serves the name.
//!
//! It holds nothing that isn't somebody else's (load the ledger's and the reports', homes the table's, pace what was
//! learned): [`super::Partition::check`] makes it anew and compares.

use crate::dice::Dice;
use crate::explain::WHOLE;
use crate::explain::ring::Ring;
use crate::explain::stands::{Seen, Stamps};
use crate::ids::{DpRank, NameId, Target, WorkerId};
use crate::index::Overlap;
use crate::load::{Load, Pace};
use crate::select::policy::Policy;
use crate::select::{Among, Candidate, Costs, Demand, Fit};
use crate::trust::Trust;
use smallvec::SmallVec;
use std::ops::Range;

/// Targets in the order of ids, and those of them that a decision has left.
#[derive(Clone, Debug, Default)]
pub(super) struct Field {
    all: Vec<Candidate>,
    ids: Vec<(WorkerId, DpRank)>,
    /// What speaks against each: the same as in `all`.
    fits: Vec<Fit>,
    /// Those that are left, by number, in order.
    pub(super) kept: Vec<u32>,
    /// What they cost, if the policy that picked among them has said it.
    pub(super) costs: Costs,
    /// The session's home was weighed against others, as a home.
    pub(super) weighed: bool,
}

impl Field {
    /// All of them.
    pub(super) fn all(&self) -> &[Candidate] {
        &self.all
    }

    /// What speaks against each.
    pub(super) fn fits(&self) -> &[Fit] {
        &self.fits
    }

    fn push(&mut self, c: Candidate) {
        self.ids.push((c.worker, c.rank));
        self.fits.push(c.fit);
        self.all.push(c);
    }

    fn clear(&mut self) {
        self.all.clear();
        self.ids.clear();
        self.fits.clear();
    }

    /// Something speaks against a target.
    pub(super) fn against(&mut self, i: usize, reason: Fit) {
        self.all[i].fit.add(reason, true);
        self.fits[i].add(reason, true);
    }

    /// Changes a target for a while.
    pub(super) fn set(&mut self, i: usize, c: Candidate) {
        self.fits[i] = c.fit;
        self.all[i] = c;
    }

    /// The targets that `there` means.
    pub(super) fn at(&self, there: Target) -> Range<usize> {
        let begin = (there.worker, there.rank.unwrap_or(DpRank(0)));
        let end = (there.worker, there.rank.unwrap_or(DpRank(u16::MAX)));
        let from = self.ids.partition_point(|id| *id < begin);
        let more = self.ids[from..].iter().take_while(|id| **id <= end).count();
        from..from + more
    }

    /// Leaves those of whom `usable` is true.
    pub(super) fn keep(&mut self, usable: impl Fn(Fit) -> bool) {
        let fits = self.fits.iter().zip(0u32..);
        self.kept.clear();
        self.kept.extend(fits.filter(|(fit, _)| usable(**fit)).map(|(_, i)| i));
    }

    /// The same, of those that `there` means.
    pub(super) fn keep_at(&mut self, there: Target, usable: impl Fn(Fit) -> bool) {
        let at = self.at(there);
        self.kept.clear();
        let fits = at.filter(|i| usable(self.fits[*i]));
        self.kept.extend(fits.map(|i| i as u32));
    }

    /// Of those that are left only those of whom `usable` is true.
    pub(super) fn retain(&mut self, usable: impl Fn(Fit) -> bool) {
        let fits = &self.fits;
        self.kept.retain(|i| usable(fits[*i as usize]));
    }

    /// Of those that are left only those that `there` means.
    pub(super) fn retain_at(&mut self, there: Target) {
        let at = self.at(there);
        self.kept.retain(|i| at.contains(&(*i as usize)));
    }

    /// Whether one that is left is one that `there` means.
    pub(super) fn any_at(&self, there: Target) -> bool {
        let at = self.at(there);
        self.kept.iter().any(|i| at.contains(&(*i as usize)))
    }

    /// The number of the one that the policy picks among those that are left. `whole`: the record keeps what each costs.
    pub(super) fn pick(
        &mut self,
        policy: &dyn Policy,
        demand: &Demand,
        whole: bool,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        // Of more the record keeps the best: which they are it tells by their costs.
        self.costs.clear(whole && self.all.len() <= WHOLE);
        let among = Among::some(&self.all, &self.kept);
        let place = policy.pick(demand, among, &mut self.costs, dice)?;
        self.kept.get(place).map(|i| *i as usize)
    }

    /// Whether `it` is true of one that is left.
    pub(super) fn any(&self, it: impl Fn(Fit) -> bool) -> bool {
        self.kept.iter().any(|i| it(self.fits[*i as usize]))
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    whole: Field,
    /// Those who serve the name, where not all do.
    part: Field,
    in_part: bool,
    /// Which of all those are.
    numbers: Vec<u32>,
    /// Where each of all lies in the records.
    stamps: Stamps,
    /// The names that each of them serves.
    common: SmallVec<[NameId; 4]>,
    /// Those that hold some of the last prompt.
    holders: Vec<u32>,
    /// Those of whose pace nothing is known, and what is taken for it.
    strangers: Vec<u32>,
    pool: Pace,
    /// Not all of them were trusted in full, the last time.
    doubted: bool,
}

impl Board {
    /// Made anew of these, each with whether its pace is known, in the order of ids. `common`: what all serve.
    pub(super) fn rebuild(
        &mut self,
        targets: impl Iterator<Item = (Candidate, bool)>,
        common: SmallVec<[NameId; 4]>,
        pool: Pace,
    ) {
        self.whole.clear();
        self.part.clear();
        self.holders.clear();
        self.strangers.clear();
        (self.common, self.pool, self.doubted) = (common, pool, false);
        for (c, known) in targets {
            if !known {
                self.strangers.push(self.whole.all.len() as u32);
            }
            self.whole.push(c);
        }
        self.stamps.renew(self.whole.all.len());
    }

    /// The targets of the last decision.
    pub(super) fn field(&self) -> &Field {
        if self.in_part { &self.part } else { &self.whole }
    }

    pub(super) fn field_mut(&mut self) -> &mut Field {
        if self.in_part { &mut self.part } else { &mut self.whole }
    }

    /// The targets of the last decision, and how a record keeps them.
    pub(super) fn seen(&mut self) -> (&Field, Seen<'_>, &mut Stamps) {
        let field = if self.in_part { &self.part } else { &self.whole };
        let seen = Seen {
            all: &field.all,
            fits: &field.fits,
            numbers: self.in_part.then_some(&*self.numbers),
            holders: &self.holders,
            doubted: self.doubted,
        };
        (field, seen, &mut self.stamps)
    }

    /// A target has this to do now.
    pub(super) fn set_load(&mut self, worker: WorkerId, rank: DpRank, load: Load, busy: bool) {
        let Ok(i) = self.whole.ids.binary_search(&(worker, rank)) else { return };
        let c = &mut self.whole.all[i];
        if (c.load, c.fit.any(Fit::BUSY)) == (load, busy) {
            return;
        }
        c.load = load;
        c.fit.remove(Fit::BUSY, !busy);
        c.fit.add(Fit::BUSY, busy);
        self.whole.fits[i] = c.fit;
        self.stamps.changed(i);
    }

    /// So many sessions live at a worker.
    pub(super) fn set_homes(&mut self, worker: WorkerId, homes: u32) {
        for i in self.whole.at(Target { worker, rank: None }) {
            let c = &mut self.whole.all[i];
            if c.homes != homes {
                c.homes = homes;
                self.stamps.changed(i);
            }
        }
    }

    /// The same of all.
    pub(super) fn set_all_homes(&mut self, homes: impl Fn(WorkerId) -> u32) {
        self.whole.all.iter_mut().for_each(|c| c.homes = homes(c.worker));
        self.stamps.renew(self.whole.all.len());
    }

    /// A worker's pace has changed, or is known by now.
    pub(super) fn set_pace(&mut self, worker: WorkerId, pace: Pace) {
        let at = self.whole.at(Target { worker, rank: None });
        for i in at.clone() {
            let c = &mut self.whole.all[i];
            if c.pace != pace {
                c.pace = pace;
                self.stamps.changed(i);
            }
        }
        if !self.strangers.is_empty() {
            self.strangers.retain(|i| !at.contains(&(*i as usize)));
        }
    }

    /// That of strangers.
    pub(super) fn set_pool(&mut self, pool: Pace) {
        if self.pool != pool {
            self.pool = pool;
            for i in &self.strangers {
                self.whole.all[*i as usize].pace = pool;
                self.stamps.changed(*i as usize);
            }
        }
    }

    /// The same of all.
    pub(super) fn set_paces(&mut self, of: impl Fn(WorkerId) -> Pace) {
        self.whole.all.iter_mut().for_each(|c| c.pace = of(c.worker));
        self.stamps.renew(self.whole.all.len());
    }

    /// Begins a decision: nothing of the last one is left. `serves`: whether a row's worker serves this name.
    pub(super) fn begin(&mut self, name: NameId, serves: impl Fn(usize) -> bool) {
        let whole = &mut self.whole;
        if !self.in_part {
            for i in self.holders.drain(..) {
                let c = &mut whole.all[i as usize];
                (c.overlap, c.told, c.host, c.disk) = (0, 0, 0, 0);
            }
            for (i, fit) in whole.fits.iter_mut().enumerate() {
                if fit.any(!Fit::LASTING) {
                    fit.remove(!Fit::LASTING, true);
                    whole.all[i].fit = *fit;
                }
            }
        }
        self.holders.clear();
        self.in_part = !self.common.contains(&name);
        if self.in_part {
            self.part.clear();
            self.numbers.clear();
            for (c, i) in whole.all.iter().zip(0u32..).filter(|(c, _)| serves(c.row)) {
                self.part.push(*c);
                self.numbers.push(i);
            }
        }
        let field = self.field_mut();
        field.weighed = false;
        // Where nobody is asked, what the last one was told is no part of the record.
        field.kept.clear();
        field.costs.clear(false);
    }

    /// Some of the prompt lies at these targets, which come in the order of ids.
    pub(super) fn hold(&mut self, overlaps: &[Overlap]) {
        let field = if self.in_part { &mut self.part } else { &mut self.whole };
        let mut i = 0;
        for o in overlaps {
            let id = (o.worker, o.rank);
            i += field.ids[i..].iter().take_while(|other| **other < id).count();
            if field.ids.get(i) != Some(&id) {
                continue;
            }
            let c = &mut field.all[i];
            c.overlap = o.total();
            // What is farther away follows what is near: where that is only on its way, so is the rest.
            c.told = if o.told < o.blocks { o.told } else { o.total() };
            (c.host, c.disk) = (o.host, o.disk);
            self.holders.push(i as u32);
        }
    }

    /// Those of its targets that hold some of the prompt.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Candidate> {
        let field = self.field();
        self.holders.iter().filter_map(|i| field.all.get(*i as usize))
    }

    /// How far each is trusted. `doubts`: not all of them in full.
    pub(super) fn trust(&mut self, doubts: bool, of: impl Fn(WorkerId) -> Trust) {
        // Parts are copies: of what the whole was when it was looked at last.
        if doubts || self.doubted {
            self.field_mut().all.iter_mut().for_each(|c| c.trust = of(c.worker));
        }
        self.doubted = doubts || self.doubted && self.in_part;
    }

    /// With nothing of a request on it, it is what it would be if it were made anew.
    ///
    /// # Panics
    /// When it is not.
    pub(super) fn check(&self, anew: &[(Candidate, bool)]) {
        let Field { all, ids, fits, .. } = &self.whole;
        assert_eq!(all.len(), anew.len(), "targets on the board");
        for (i, (c, known)) in anew.iter().enumerate() {
            // Who is not trusted in full is written down with each request.
            assert_eq!(Candidate { trust: Trust::FULL, ..all[i] }, *c, "a target on the board");
            assert_eq!((ids[i], fits[i]), ((c.worker, c.rank), c.fit), "lists of the board");
            assert_eq!(self.strangers.contains(&(i as u32)), !known, "strangers");
        }
    }

    /// With nothing of a request on it, what the records have of each target is how that stands.
    ///
    /// # Panics
    /// When it is not.
    pub(super) fn check_stamps(&self, ring: &Ring) {
        let Field { all, fits, .. } = &self.whole;
        let seen = Seen { all, fits, numbers: None, holders: &[], doubted: false };
        ring.check_stamps(&seen, &self.stamps);
    }
}
