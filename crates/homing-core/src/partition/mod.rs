//! One partition: a pool's workers in one role, their load, their sessions, who waits for them.
//!
//! Everything here happens under the partition's lock, in one critical section a call: resolve, select
//! and book can't be torn apart by another request.
//!
//! * `board`: its targets as policies see them; `survey`: as they are for one request;
//! * `decide`: where a request goes, as a function that changes nothing;
//! * `weigh`: whether a Soft session stays;
//! * `place`: acting on it: resolve, book, wait or refuse;
//! * `dispatch`: the last look, the commit, and coming to nothing;
//! * `claim`: first turns of which a shared store must hear (R24);
//! * `remember`: what is kept of a decision;
//! * `running`: what becomes of a request that its worker has begun to answer;
//! * `lines`: who waits for what;
//! * `loads`: what targets have to do, by our bookings and by what engines report;
//! * `overload`: who has too much of it;
//! * `turnover`: how fast places get free;
//! * `vitals`: who is alive, by what comes back; `standing`: who counts as up;
//! * `budget`: how many requests may be sent anew;
//! * `shown`: what metrics and people see of it;
//! * `check`: what must always be true;
//! * `wake`: who is busy or overloaded, and who is woken when that changes.

mod board;
mod budget;
mod check;
mod claim;
mod decide;
mod dispatch;
mod lines;
mod loads;
mod overload;
mod place;
mod ready;
mod remember;
mod running;
mod shown;
mod standing;
mod survey;
mod turnover;
mod vitals;
mod wake;
mod weigh;

use crate::affinity::merge::{Merged, Update};
use crate::affinity::{Outcome, Rules, Table};
use crate::ask::{Admission, Ask, Cause, Output, Ticket};
use crate::blame::Reuse;
use crate::dice::SplitMix;
use crate::explain::records::Records;
use crate::fleet::{Row, State};
use crate::ids::{NameId, PartitionId, Role, SessionKey, WorkerId};
use crate::load::report::{Reports, Usual};
use crate::load::{Ledger, Paces, Peers};
use crate::queue::Line;
use crate::select::policy::Policy;
use crate::settings::CoreSettings;
use crate::time::Time;
use crate::trust::Book;
use board::Board;
use budget::Budget;
pub(crate) use claim::Answer;
use decide::No;
use lines::{Lines, Queued};
use overload::Detector;
pub use overload::{GAP, Overload};
pub use shown::{Stats, WorkerLoad};
use standing::Silence;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use turnover::Turnover;
use vitals::Vitals;
pub use vitals::{Ailment, STALL_LEAST};

/// Bindings that one tick drops at most, so that no request waits behind an expiry storm (R14): of a
/// large table each costs a few cache misses, 0.3 us.
pub const EXPIRE_AT_ONCE: usize = 256;
/// Requests whose deadline has passed that one tick wakes at most, for the same reason.
const WAKE_AT_ONCE: usize = 1024;
/// Workers that are known and serve nothing known yet.
pub(crate) type Unplaced = BTreeMap<WorkerId, Row>;

/// See the module.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    settings: CoreSettings,
    /// In the order of ids.
    rows: Vec<Row>,
    board: Board,
    unplaced: Unplaced,
    /// `None`: sessions are passive (R02).
    table: Option<Table>,
    ledger: Ledger,
    /// What engines say that they have to do,
    reports: Reports,
    /// and what other routers have booked on them.
    peers: Peers,
    /// What a request weighs that is known by a report alone.
    usual: Usual,
    lines: Lines,
    /// Workers that answered that they are overloaded, and until when that counts.
    shed: Vec<(WorkerId, Time)>,
    /// Workers that have too much to do.
    detector: Detector,
    /// Who is alive.
    vitals: Vitals,
    silence: Silence,
    budget: Budget,
    turnover: Turnover,
    /// The latest time that it was told.
    latest: Time,
    /// Something is booked, computed or over of which other routers are to hear.
    loads_changed: bool,
    policy: Box<dyn Policy>,
    dice: SplitMix,
    /// A worker was lost, and not all who wait have looked since: one of them may wait in vain (F43).
    worker_lost: bool,
    /// The same for lines of single workers, which are another kind of worker by now (other ranks, other
    /// names): for some of those who wait that is a departure.
    shaken: BTreeSet<Line>,
    outcomes: [u64; Outcome::COUNT],
    /// How far the index is believed.
    trust: Book,
    /// How fast workers are.
    paces: Paces,
    /// Prompt tokens by what became of them, and the name that they came under.
    reuse: BTreeMap<NameId, Reuse>,
    records: Records,
    /// Claims in the shared store that have come to nothing.
    withdrawn: VecDeque<SessionKey>,
    /// How often invariants could have been looked at.
    #[cfg(debug_assertions)]
    calls: u32,
}

impl Partition {
    /// An empty partition whose random choices follow from `seed`.
    #[must_use]
    pub fn new(
        id: PartitionId,
        role: Role,
        settings: CoreSettings,
        policy: Box<dyn Policy>,
        seed: u64,
        writer: u32,
    ) -> Self {
        let affinity = &settings.affinity;
        let rules = |ttl| Rules {
            ttl,
            max_sessions: affinity.max_sessions,
            on_full: affinity.on_full,
            max_parallel: affinity.max_parallel,
            shared: affinity.shared,
        };
        Self {
            id,
            rows: Vec::new(),
            board: Board::default(),
            unplaced: Unplaced::new(),
            table: affinity.ttl_of(role).map(|ttl| Table::new(rules(ttl), writer)),
            ledger: Ledger::default(),
            reports: Reports::new(settings.report_life),
            peers: Peers::default(),
            usual: Usual::default(),
            lines: Lines::new(id, settings.queue.max_requests),
            shed: Vec::new(),
            detector: Detector::new(settings.overload),
            vitals: Vitals::new(settings.vitals),
            silence: Silence::new(settings.vitals.blinks),
            budget: Budget::default(),
            turnover: Turnover::default(),
            latest: Time::ZERO,
            loads_changed: false,
            policy,
            dice: SplitMix::new(seed),
            worker_lost: false,
            shaken: BTreeSet::new(),
            outcomes: [0; Outcome::COUNT],
            trust: Book::default(),
            paces: Paces::default(),
            reuse: BTreeMap::new(),
            records: Records::new(settings.records),
            withdrawn: VecDeque::new(),
            #[cfg(debug_assertions)]
            calls: 0,
            settings,
        }
    }

    /// Other settings hold from now on, as far as they can change at run time.
    pub fn reconfigure(&mut self, settings: CoreSettings) {
        self.settings = settings;
        self.detector.set_rules(self.settings.overload);
        self.rebuild_board();
        // Whoever waits may wait for what is no reason any more.
        self.worker_lost = true;
        self.shake_homes();
        self.reassess(None);
        self.wake_all(None);
        self.debug_check();
    }

    /// A worker is known that serves nothing known yet.
    pub fn set_unplaced(&mut self, row: Row) {
        self.unplaced.insert(row.info.id, row);
    }

    /// What such a worker serves is known, and it is nothing of this partition's.
    pub fn is_placed(&mut self, worker: WorkerId) {
        self.unplaced.remove(&worker);
    }

    /// A worker is new here, or has changed. Nobody is woken for one that is as it was.
    pub fn set_row(&mut self, row: Row) {
        let id = row.info.id;
        self.unplaced.remove(&id);
        match self.rows.binary_search_by_key(&id, |r| r.info.id) {
            Ok(i) if self.rows[i] == row => return,
            Ok(i) => {
                let old = &self.rows[i];
                self.silence.note(self.latest, Some(old), Some(&row));
                let usable = |r: &Row| r.state == State::Ready && r.drain.is_none();
                let less = |a: &Row, b: &Row| {
                    usable(a) && !usable(b) || a.serves != b.serves || a.info != b.info
                };
                let lost = less(old, &row);
                self.worker_lost |= lost;
                if (&old.serves, &old.info, old.ranks) != (&row.serves, &row.info, row.ranks) {
                    let its = [Line::Named(id), Line::Home(id)];
                    self.shaken.extend(its.into_iter().filter(|l| !self.lines.is_empty(*l)));
                }
                let moves = |r: &Row| r.drain.is_some_and(|drain| drain.moves(self.latest));
                if moves(old) && !moves(&row) {
                    // What had departed is a home again, and in the way of who waits elsewhere by name.
                    let named = self.lines.tied().filter(|line| matches!(line, Line::Named(_)));
                    self.shaken.extend(named);
                }
                self.reports.keep(id, Some(row.ranks));
                self.peers.keep(id, Some(row.ranks));
                self.rows[i] = row;
                if lost {
                    self.shake_homes();
                }
            }
            Err(i) => {
                self.silence.note(self.latest, None, Some(&row));
                self.vitals.add(id);
                self.rows.insert(i, row);
            }
        }
        self.rebuild_board();
        self.reassess(Some(id));
        self.wake_all(Some(id));
    }

    /// A worker has departed. Its bookings stay until their streams end.
    pub fn remove_row(&mut self, worker: WorkerId) {
        self.remember_name(worker);
        let row = self.rows.iter().find(|r| r.info.id == worker);
        self.silence.note(self.latest, row, None);
        self.vitals.forget(worker);
        self.rows.retain(|r| r.info.id != worker);
        self.shed.retain(|(w, _)| *w != worker);
        self.detector.forget(worker);
        self.reports.keep(worker, None);
        self.peers.keep(worker, None);
        self.unplaced.remove(&worker);
        self.trust.forget(worker);
        self.paces.forget(worker);
        self.rebuild_board();
        self.worker_lost = true;
        self.shake_homes();
        self.reassess(None);
        self.wake_all(Some(worker));
    }

    /// Resolves and selects (the way of a request in the contract).
    pub fn admit(&mut self, now: Time, ask: Box<Ask>) -> Admission {
        self.note_time(now);
        self.budget.request(now);
        let admission = self.place(now, ask, None);
        self.checked(admission)
    }

    /// A woken ticket tries its luck; session and fleet are read anew.
    pub fn claim(&mut self, now: Time, ticket: Ticket) -> Admission {
        self.note_time(now);
        let (mut ask, queued, _) = self.lines.leave(ticket);
        // Its home may be overloaded by now, and for that it waits as long as its client does.
        let waits_on = matches!(queued.line, Line::Home(home) if self.waits_for(now, home))
            && ask.deadline.is_some_and(|client| now < client);
        let admission = if queued.deadline <= now && !waits_on {
            self.refuse(now, &mut ask, Some(queued), No::because(Cause::Timeout))
        } else {
            self.place(now, ask, Some(queued))
        };
        if matches!(admission, Admission::Granted(_)) {
            self.lines.served(queued);
        }
        self.left(queued.line);
        self.checked(admission)
    }

    /// A waiting request leaves.
    pub fn cancel(&mut self, now: Time, ticket: Ticket) {
        let (ask, queued, awake) = self.lines.leave(ticket);
        let outcome = if self.has_session(&ask) { Outcome::Unbound } else { Outcome::None };
        self.count(outcome);
        self.records.left(now, ask.past.record, outcome);
        if awake || queued.line != Line::Any {
            self.left(queued.line);
        }
        self.debug_check();
    }

    /// Somebody has left a line: the next may have a look.
    fn left(&mut self, line: Line) {
        if self.lines.tidy(line) {
            self.shaken.remove(&line);
        } else {
            self.wake_next(line);
        }
        if line != Line::Any {
            // What was waited for may be anybody's again.
            self.wake(Line::Any);
        }
    }

    /// Waits, if there is room.
    fn wait(&mut self, now: Time, ask: Box<Ask>, line: Line, queued: Option<Queued>) -> Admission {
        let patience = now + self.settings.queue.max_wait;
        let deadline = match (queued, line) {
            // Until its home is not overloaded it waits as long as its client does, wherever it waited
            // before (R07); for a busy one as long as for any.
            (_, Line::Home(home)) if self.waits_for(now, home) => {
                ask.deadline.unwrap_or(queued.map_or(patience, |q| q.deadline))
            }
            (Some(queued), _) => queued.deadline,
            (None, _) => ask.deadline.map_or(patience, |d| d.min(patience)),
        };
        match self.lines.wait(ask, line, queued, deadline) {
            Ok(ticket) => {
                self.wake_next(line);
                Admission::Waiting(ticket)
            }
            Err(mut ask) => self.refuse(now, &mut ask, queued, No::because(Cause::QueueFull)),
        }
    }

    /// Does what is due, up to a bound; call it when [`Self::poll_timeout`] says so. While that says a
    /// time that has passed, more is due at once.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(table) = &mut self.table {
            table.expire(now, EXPIRE_AT_ONCE);
            table.tell(now);
        }
        self.note_time(now);
        self.look_for_stalls(now);
        self.lines.wake_overdue(now, WAKE_AT_ONCE);
        self.debug_check();
    }

    /// When [`Self::handle_timeout`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let table = self.table.as_ref();
        let drains = self.lines.tied().filter_map(|line| {
            let drain = self.row(line.worker()?)?.drain?.moves_at?;
            // Once it has passed, those who wait have been woken.
            Some(drain).filter(|at| self.latest < *at)
        });
        table
            .and_then(Table::next_expiry)
            .into_iter()
            .chain(table.and_then(Table::next_tell))
            .chain(self.lines.next_deadline())
            // Though nobody may wait: people and previews are told who is overloaded.
            .chain(self.shed_until(None))
            .chain(self.reports.first_end())
            .chain(self.vitals.next_look())
            .chain(self.silence.ends(self.latest, self.rows.len()))
            .chain(drains)
            .min()
    }

    /// What to do next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.lines.outputs.pop_front()
    }

    /// How many outputs there are to poll.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lines.outputs.len()
    }

    /// The next binding that other routers shall hear of, of those that have waited for that until `by`.
    pub fn poll_update(&mut self, by: Time) -> Option<Update> {
        self.table.as_mut()?.poll_update(by)
    }

    /// When the next one is due.
    #[must_use]
    pub fn next_update(&self) -> Option<Time> {
        self.table.as_ref()?.next_update()
    }

    /// Whether other routers are to hear of something new.
    pub fn take_news(&mut self) -> bool {
        let of_sessions = self.table.as_mut().is_some_and(Table::take_news);
        std::mem::take(&mut self.loads_changed) || of_sessions
    }

    /// Another router's binding. `None`: sessions are passive here.
    pub fn merge(&mut self, now: Time, update: Update) -> Option<Merged> {
        let merged = self.table.as_mut().map(|table| table.merge(now, update));
        self.debug_check();
        merged
    }

    /// The sessions, to remove one.
    pub fn table_mut(&mut self) -> Option<&mut Table> {
        self.table.as_mut()
    }

    /// Whether the request has a session, as far as anybody is concerned (R02).
    fn has_session(&self, ask: &Ask) -> bool {
        self.table.is_some() && ask.session.is_some()
    }

    fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }
}
