//! How workers stand, for requests: what probes say of them, and what comes back from them.
//!
//! Two things outweigh a verdict. Whoever is unwell is tried all the same where everybody is: the last workers are
//! never shut out. And where more than half of a pool stops answering probes at once, the network between is as
//! likely to be the reason (F66): they count as up for [`BLINK`], and for as long as nobody else is, so that
//! bindings are kept. One whose port refuses is not among them: that is an answer.

use super::Unplaced;
use super::vitals::Vitals;
use crate::affinity::Standing;
use crate::fleet::{Row, State};
use crate::ids::{NameId, Target, WorkerId};
use crate::settings::OnDown;
use crate::time::Time;
use std::time::Duration;

/// Until so long after the last of them fell silent, many that did count as up.
const BLINK: Duration = Duration::from_secs(60);

/// How many of a partition's workers are Down by silence, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Whether it counts.
    on: bool,
    count: usize,
    last: Time,
}

impl Silence {
    pub(super) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// A row has changed, or come, or gone.
    pub(super) fn note(&mut self, now: Time, before: Option<&Row>, after: Option<&Row>) {
        let silent = |row: Option<&Row>| row.is_some_and(|r| r.silent);
        match (silent(before), silent(after)) {
            (false, true) => (self.count, self.last) = (self.count + 1, now),
            (true, false) => self.count -= 1,
            _ => {}
        }
    }

    pub(super) fn is_blink(self, now: Time, rows: usize) -> bool {
        self.on && self.count * 2 > rows && (self.count == rows || now < self.last + BLINK)
    }

    /// When that ends by itself.
    pub(super) fn ends(self, now: Time, rows: usize) -> Option<Time> {
        (self.is_blink(now, rows) && self.count < rows).then_some(self.last + BLINK)
    }
}

/// The workers of a partition as they count now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lens<'a> {
    rows: &'a [Row],
    unplaced: &'a Unplaced,
    /// `None`: nobody is unwell, or all are.
    vitals: Option<&'a Vitals>,
    blink: bool,
    on_down: OnDown,
    now: Time,
}

impl<'a> Lens<'a> {
    pub(super) fn new(
        now: Time,
        rows: &'a [Row],
        unplaced: &'a Unplaced,
        vitals: &'a Vitals,
        silence: Silence,
        on_down: OnDown,
    ) -> Self {
        let up = |row: &&Row| row.state == State::Ready;
        let counts =
            vitals.any() && rows.iter().filter(up).any(|row| !vitals.keeps_away(now, row.info.id));
        let blink = silence.is_blink(now, rows.len());
        Self { rows, unplaced, vitals: counts.then_some(vitals), blink, on_down, now }
    }

    /// A worker's state, as far as requests are concerned.
    pub(super) fn state(&self, row: &Row) -> State {
        match row.state {
            State::Down if row.silent && self.blink => State::Ready,
            State::Ready if self.is_kept_away(row.info.id) => State::Down,
            state => state,
        }
    }

    /// Whether a worker is there, by probes alone: as far as they can be believed.
    pub(super) fn is_there(&self, row: &Row) -> bool {
        row.state == State::Ready || row.state == State::Down && row.silent && self.blink
    }

    /// Whether it is unwell, and not this request's to try.
    pub(super) fn is_kept_away(&self, worker: WorkerId) -> bool {
        self.vitals.is_some_and(|vitals| vitals.keeps_away(self.now, worker))
    }

    /// Whether requests may go there.
    pub(super) fn is_up(&self, row: &Row) -> bool {
        self.state(row) == State::Ready
    }

    /// How a bound target stands, for a request under `name`.
    pub(super) fn standing(&self, name: NameId, target: Target) -> Standing {
        let rows = self.rows;
        let placed =
            rows.binary_search_by_key(&target.worker, |r| r.info.id).ok().map(|i| &rows[i]);
        let Some(row) = placed.or_else(|| self.unplaced.get(&target.worker)) else {
            return Standing::Departed;
        };
        // What serves nothing known yet may be back with what it served before, and with the ranks that it had: how
        // many there are it may have to tell, too (R25).
        let lacks = |rank| !row.ranks.has(rank);
        let gone = placed
            .is_some_and(|row| !row.serves.contains(&name) || target.rank.is_some_and(lacks))
            || row.drain.is_some_and(|drain| drain.moves(self.now));
        if gone {
            return Standing::Departed;
        }
        match (self.state(row), self.on_down) {
            (State::Ready, _) => Standing::Live,
            (State::Down | State::Unauthorized, OnDown::Rebind) => Standing::Departed,
            (State::Down | State::Unauthorized, OnDown::Reject) | (State::Starting, _) => {
                Standing::Unavailable
            }
        }
    }
}
