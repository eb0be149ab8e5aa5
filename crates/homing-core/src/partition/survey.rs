//! How targets stand for one request: the board's lasting picture, and what of it follows from the ask.

use super::Partition;
use super::board::Board;
use super::wake::Awaited;
use crate::ask::{Ask, Constraints};
use crate::fleet::Row;
use crate::ids::{DpRank, NameId, WorkerId};
use crate::index::{Overlap, Overlaps};
use crate::select::{Candidate, Demand, Fit};
use crate::trust::Trust;
use smallvec::SmallVec;
use std::borrow::Cow;

impl Partition {
    /// Every target that serves the name, in the order of ids, with what speaks against it: onto the board, which is
    /// this partition's or a copy of it.
    pub(super) fn survey(&self, board: &mut Board, demand: &Demand, ask: &Ask) {
        if let Some(table) = &self.table {
            let of = |worker| table.bindings_of(worker);
            match table.changed() {
                Some(changed) => changed.iter().for_each(|w| board.set_homes(*w, of(*w))),
                None => board.set_all_homes(of),
            }
        }
        board.set_pool(self.paces.of_pool());
        board.begin(ask.name, |row| self.rows[row].serves.contains(&ask.name));
        board.hold(&in_order(&ask.overlaps));
        board.trust(self.trust.doubts(), |worker| self.trust.of(worker, ask.shape));
        self.judge(board, demand, ask);
        let field = board.field_mut();
        let mut vetoed: SmallVec<[usize; 64]> = SmallVec::new();
        self.policy.vetoes(demand, field.all(), &mut |i| vetoed.push(i));
        vetoed.into_iter().for_each(|i| field.against(i, Fit::VETOED));
    }

    /// What speaks against targets for this request, or at this moment.
    fn judge(&self, board: &mut Board, demand: &Demand, ask: &Ask) {
        let (failed, constraints) = (&ask.past.failed, ask.constraints.as_deref());
        let some_shed = !self.shed.is_empty() || self.detector.any();
        let some_unwell = self.vitals.any();
        let none = !some_shed && !some_unwell && constraints.is_none() && failed.is_empty();
        if none && !self.lines.any_tied() {
            return;
        }
        let lens = self.lens(demand.now);
        let field = board.field_mut();
        let (mut last, mut its, mut awaited) = (None, Fit::default(), Awaited::Nothing);
        for i in 0..field.all().len() {
            let Candidate { worker, rank, row, .. } = field.all()[i];
            if last != Some(worker) {
                last = Some(worker);
                let allowed = |c: &Constraints| c.allow(&self.rows[row].info);
                its = Fit::default();
                its.add(Fit::FORBIDDEN, !constraints.is_none_or(allowed));
                its.add(Fit::FAILED, failed.contains(&worker));
                its.add(Fit::UNWELL, some_unwell && lens.is_kept_away(worker));
                its.add(Fit::SHED, some_shed && self.is_shed(demand.now, worker));
                awaited = self.awaited(worker);
            }
            let mut fit = its;
            fit.add(Fit::AWAITED, awaited.has(rank));
            if fit != Fit::default() {
                field.against(i, fit);
            }
        }
    }

    /// The fleet has changed: the board is made anew.
    pub(super) fn rebuild_board(&mut self) {
        let mut common: Option<SmallVec<[NameId; 4]>> = None;
        for row in &self.rows {
            match &mut common {
                Some(common) => common.retain(|name| row.serves.contains(name)),
                None => common = Some(row.serves.clone()),
            }
        }
        let mut board = std::mem::take(&mut self.board);
        board.rebuild(self.lasting(), common.unwrap_or_default(), self.paces.of_pool());
        self.board = board;
    }

    /// Every target as it stands before any request, and whether its pace is known.
    pub(super) fn lasting(&self) -> impl Iterator<Item = (Candidate, bool)> {
        self.rows.iter().enumerate().flat_map(move |(number, row)| {
            let known = self.paces.knows(row.info.id);
            row.ranks.iter().map(move |rank| (self.as_it_stands(number, row, rank), known))
        })
    }

    fn as_it_stands(&self, number: usize, row: &Row, rank: DpRank) -> Candidate {
        let worker = row.info.id;
        let load = self.load_of(worker, rank);
        let mut fit = Fit::default();
        fit.add(Fit::NOT_READY, !self.lens(self.latest).is_there(row));
        fit.add(Fit::DRAINING, row.drain.is_some());
        fit.add(Fit::BUSY, self.is_busy(&load));
        Candidate {
            worker,
            rank,
            row: number,
            load,
            overlap: 0,
            told: 0,
            host: 0,
            disk: 0,
            trust: Trust::FULL,
            homes: self.table.as_ref().map_or(0, |t| t.bindings_of(worker)),
            home: false,
            pace: self.paces.of(worker),
            name: row.name,
            fit,
        }
    }

    /// What a target has to do has changed.
    pub(super) fn note_load(&mut self, worker: WorkerId, rank: DpRank) {
        let load = self.load_of(worker, rank);
        let busy = self.is_busy(&load);
        self.board.set_load(worker, rank, load, busy);
    }

    /// The same of all of a worker's.
    pub(super) fn note_loads(&mut self, worker: WorkerId) {
        let ranks = self.row(worker).map(|row| row.ranks);
        ranks.into_iter().flat_map(|r| r.iter()).for_each(|rank| self.note_load(worker, rank));
    }
}

/// The overlaps in the order of ids: as they are if they come from the index, which keeps that order.
fn in_order(overlaps: &Overlaps) -> Cow<'_, [Overlap]> {
    let id = |o: &Overlap| (o.worker, o.rank);
    if overlaps.is_sorted_by_key(id) {
        return Cow::Borrowed(overlaps);
    }
    let mut sorted = overlaps.to_vec();
    sorted.sort_by_key(id);
    Cow::Owned(sorted)
}
