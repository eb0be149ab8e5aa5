//! What hosts ask, and what they get: the vocabulary of the core's calls.
//!
//! Whatever is held is a token, consumed by the call that ends it:
//!
//! ```text
//! Ask -> Grant -> Checked -> Live -> (finished)
//!     \-> Ticket -> (claim)
//! ```

mod claim;

pub(crate) use claim::Stored;
pub use claim::{Claimed, Claiming};

use crate::affinity::quota::Quota;
use crate::affinity::{Hold, Lease, Outcome};
use crate::explain::Placement;
use crate::explain::record::{Note, Report};
use crate::explain::ring::Slot;
use crate::fleet::WorkerInfo;
use crate::hash::Prompt;
use crate::ids::{DpRank, NameId, PartitionId, SessionKey, Target, WorkerId};
use crate::index::Overlaps;
use crate::load::Booking;
use crate::queue::{Line, Place, WaitId};
use crate::settings::Mode;
use crate::time::Time;
use crate::trust::{Forecast, Shape};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use thiserror::Error;

/// A request, as far as the decision is concerned. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Whose request: from [`crate::SelectionCore::route`].
    pub partition: PartitionId,
    /// The served name that it uses.
    pub name: NameId,
    /// Its session; `None` where there is none, or it is off (R20).
    pub session: Option<Session>,
    /// Where it must run (R09).
    pub explicit: Option<Explicit>,
    /// Where it may run; `None`: anywhere.
    pub constraints: Option<Arc<Constraints>>,
    /// In which form it came.
    pub shape: Shape,
    /// Its prompt in tokens; without a chain where these are not known.
    pub prompt: Prompt,
    /// Its prompt as text ([`Prompt::from_text`]), where [`crate::SelectionCore::wants_text`] or its tokens are
    /// not known; without a chain otherwise.
    pub text: Prompt,
    /// Who holds how much of the prompt: from [`crate::SelectionCore::look_up`]. Another order than its own
    /// costs time, nothing else.
    pub overlaps: Overlaps,
    /// When its client gives up.
    pub deadline: Option<Time>,
    /// For its record.
    pub note: Note,
    /// Of those who wait the higher goes first.
    pub priority: i32,
    /// Whose it is: of those who wait with one priority tenants take turns. All alike where there are none.
    pub tenant: u64,
    /// Sessions of that tenant's that may be bound in the partition; `None`: as many as it likes, and nobody counts.
    pub max_sessions: Option<u32>,
    /// Its answer comes whole, when all of it is computed: until then there is nothing to hear.
    pub whole: bool,
    pub(crate) past: Past,
}

impl Ask {
    /// What its tenant may have, where that is bounded.
    pub(crate) fn quota(&self) -> Option<Quota> {
        self.max_sessions.map(|most| Quota { tenant: self.tenant, most })
    }

    /// It must not go to this worker: what it had begun there broke off, and is asked for anew.
    pub fn avoid(&mut self, worker: WorkerId) {
        if !self.past.failed.contains(&worker) {
            self.past.failed.push(worker);
        }
    }
}

/// A request's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Which one.
    pub key: SessionKey,
    /// How binding its binding is.
    pub mode: Mode,
    /// It ends with this request (R19).
    pub last: bool,
    /// The group of subagents that ends with it then.
    pub ends_group: Option<SessionKey>,
}

impl Session {
    /// One that goes on.
    #[must_use]
    pub fn new(key: SessionKey, mode: Mode) -> Self {
        Self { key, mode, last: false, ends_group: None }
    }
}

/// A target that the request names (R09).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explicit {
    /// The worker, as people call it.
    pub worker: Arc<str>,
    /// One of its ranks.
    pub rank: Option<DpRank>,
}

/// Which workers the request allows. Never widened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// Sorted: a list may be long, and each worker is looked up in it under the partition's lock.
    workers: Option<Vec<String>>,
    labels: Vec<(String, String)>,
}

impl Constraints {
    /// Only these workers, by name (`None`: any), and only those with all of these labels.
    #[must_use]
    pub fn new(workers: Option<Vec<String>>, labels: Vec<(String, String)>) -> Self {
        let workers = workers.map(|mut names| {
            names.sort_unstable();
            names
        });
        Self { workers, labels }
    }

    /// Whether they allow the worker.
    #[must_use]
    pub fn allow(&self, worker: &WorkerInfo) -> bool {
        let spec = &worker.spec;
        let named =
            |names: &Vec<String>| names.binary_search_by(|n| n.as_str().cmp(&spec.name)).is_ok();
        self.workers.as_ref().is_none_or(named)
            && self.labels.iter().all(|(k, v)| spec.labels.get(k) == Some(v))
    }
}

/// What a request has been through already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// Workers that failed it.
    pub(crate) failed: SmallVec<[WorkerId; 2]>,
    /// How often it was tried in vain.
    pub(crate) attempts: u32,
    /// The last failure.
    pub(crate) failure: Option<Failure>,
    /// A worker broke off that may have begun with it.
    pub(crate) may_have_run: bool,
    /// A worker that was overloaded has sent it elsewhere; a second one has the last word.
    pub(crate) sent_on: bool,
    /// It lost its binding to a departure.
    pub(crate) had_binding: bool,
    /// It has selected a second time after R10's look; a second change goes on.
    pub(crate) rechecked: bool,
    /// The life that its explicit target's name meant when it came.
    pub(crate) explicit: Option<WorkerId>,
    /// Leading blocks of its prompt that had been here before it came, or that somebody held.
    pub(crate) seen: u32,
    /// Where its record lies.
    pub(crate) record: Option<Slot>,
    /// What the shared store says of its session (R24).
    pub(crate) stored: Stored,
}

impl Ask {
    /// A request without a session, free to run anywhere, with a prompt of unknown content.
    #[must_use]
    pub fn new(partition: PartitionId, name: NameId, prompt: Prompt) -> Self {
        Self {
            partition,
            name,
            session: None,
            explicit: None,
            constraints: None,
            shape: Shape::default(),
            prompt,
            text: Prompt::default(),
            overlaps: Overlaps::new(),
            deadline: None,
            note: Note::default(),
            priority: 0,
            tenant: 0,
            max_sessions: None,
            whole: false,
            past: Past::default(),
        }
    }
}

/// How a dispatch failed before its worker had begun to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The port refused: the worker is Down from now on.
    Refused,
    /// No connection within the time, or another trouble on the way there.
    Unreachable,
    /// The connection broke, or the answer could not be read, before it began.
    Broken,
    /// It answered 429 or 503: it is overloaded for so long, if it says so.
    Overloaded(Option<Duration>),
}

/// What a request gets.
#[must_use]
#[derive(Debug)]
pub enum Admission {
    /// Booked, holding, explained. Look once more with `check_dispatch`, then dispatch.
    Granted(Grant),
    /// Wait until `poll_output` wakes the ticket, then claim.
    Waiting(Ticket),
    /// Hold and booking are released already.
    Refused(Refusal),
}

/// A place on a target.
#[must_use = "dropping a grant leaks its booking and its hold: check and commit it, or abandon it"]
#[derive(Debug)]
pub struct Grant {
    pub(crate) ask: Box<Ask>,
    pub(crate) worker: Arc<WorkerInfo>,
    pub(crate) rank: DpRank,
    pub(crate) booking: Booking,
    pub(crate) claim: Claim,
    pub(crate) placement: Placement,
    pub(crate) forecast: Forecast,
    /// It tries a worker that is unwell.
    pub(crate) tries: bool,
}

/// What a granted request has of its session.
#[derive(Debug)]
pub(crate) enum Claim {
    /// There is none, or sessions are off.
    None,
    /// The table is full (R15).
    Full,
    /// Others have too many claims on it already (R27).
    Surplus,
    /// A hold.
    Held(Hold),
}

impl Grant {
    /// The worker that was picked.
    #[must_use]
    pub fn worker(&self) -> &Arc<WorkerInfo> {
        &self.worker
    }

    /// The target that was picked.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { worker: self.worker.id, rank: Some(self.rank) }
    }

    /// Why: for the log.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

/// A grant that has passed the last look (R10); nothing else can be committed.
#[must_use = "dropping it leaks its booking and its hold: commit it, or abandon it"]
#[derive(Debug)]
pub struct Checked(pub(crate) Grant);

impl Checked {
    /// The grant.
    pub fn grant(&self) -> &Grant {
        &self.0
    }
}

/// What ends without having begun.
#[must_use]
#[derive(Debug)]
pub enum Held {
    /// Before the last look.
    Grant(Grant),
    /// After it.
    Checked(Checked),
}

impl From<Grant> for Held {
    fn from(g: Grant) -> Self {
        Self::Grant(g)
    }
}

impl From<Checked> for Held {
    fn from(c: Checked) -> Self {
        Self::Checked(c)
    }
}

/// The answer of `check_dispatch`.
#[must_use]
#[derive(Debug)]
pub enum Dispatch {
    /// Send it.
    Go(Checked),
    /// The session has moved: hold and booking are released, ask again.
    Again(Box<Ask>),
    /// It is a first turn, of which the shared store must hear before (R24): ask it, then call
    /// [`crate::SelectionCore::claimed`].
    Claim(Claiming),
    /// Nothing is held any more.
    Refused(Refusal),
}

/// A running request: its booking, and its lease if it has a session.
#[must_use = "dropping it leaks its booking and its lease: finish it"]
#[derive(Debug)]
pub struct Live {
    pub(crate) partition: PartitionId,
    pub(crate) booking: Booking,
    pub(crate) lease: Option<Lease>,
    /// What was predicted when it was placed.
    pub(crate) forecast: Forecast,
    /// Its usage has been told: what follows is a repetition. Changed under the partition's lock.
    pub(crate) told: AtomicBool,
    /// Where its record lies.
    pub(crate) record: Option<Slot>,
    pub(crate) report: Report,
}

impl Live {
    /// How it ends, for its record: before it is finished.
    pub fn report(&mut self, report: Report) {
        self.report = report;
    }
}

/// A place in the queue.
#[must_use = "a ticket that is dropped keeps its place: claim it, or cancel it"]
#[derive(Debug)]
pub struct Ticket {
    pub(crate) partition: PartitionId,
    pub(crate) line: Line,
    pub(crate) place: Place,
}

impl Ticket {
    /// The name under which [`Output::Wake`] calls it.
    #[must_use]
    pub fn id(&self) -> TicketId {
        TicketId { partition: self.partition, line: self.line, wait: self.place.id() }
    }
}

/// Names a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId {
    partition: PartitionId,
    line: Line,
    wait: WaitId,
}

impl TicketId {
    pub(crate) fn new(partition: PartitionId, line: Line, wait: WaitId) -> Self {
        Self { partition, line, wait }
    }
}

/// What the core wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// This ticket should be claimed now.
    Wake(TicketId),
}

/// Why a request is refused. Hosts turn it into a status in one place.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Cause {
    /// Its explicit target is nobody that serves the model.
    #[error("the named worker is not known for this model; GET /admin/workers lists who is")]
    UnknownWorker,
    /// Its explicit target's rank is out of range.
    #[error("the named worker has no such rank")]
    BadRank,
    /// Its explicit target is not among the workers that it allows.
    #[error("the named worker is not among those that the request allows")]
    NotAllowed,
    /// Its explicit target has several ranks, and without a session one must be named.
    #[error("the named worker has several ranks, and a request without a session must name one")]
    RankRequired,
    /// Its session lives where the request must not run.
    #[error(
        "the session lives at another worker than those that the request names or allows: drop that, or \
         send x-homing-affinity: soft to move the session"
    )]
    Conflict,
    /// Nobody can serve it.
    #[error("no worker can serve the request")]
    NoWorker,
    /// Its one target is known and can't be used now.
    #[error("the worker that the request is tied to can't be used now")]
    TargetUnavailable,
    /// Its home is overloaded.
    #[error("the session's worker is overloaded")]
    TargetOverloaded,
    /// Everyone who could serve it is overloaded.
    #[error("every worker that could serve the request is overloaded")]
    Overloaded,
    /// Everyone is busy, and the queue is full.
    #[error("every worker is busy and the queue is full")]
    QueueFull,
    /// It waited for too long.
    #[error("no worker became free in time")]
    Timeout,
    /// Its worker broke off before it began to answer, and it could not be moved.
    #[error("the worker broke off before it began to answer")]
    WorkerFailed,
    /// The shared store of sessions can't be asked, and `replication.on_store_failure` is `fail`.
    #[error("the shared store of sessions can't be reached")]
    StoreUnreachable,
    /// Its worker answered that it is overloaded, and that answer stands.
    #[error("the worker is overloaded, and nobody else may serve the request")]
    Answered,
}

/// A refusal; nothing is held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// What happened to the session.
    pub outcome: Outcome,
    /// A Hard session's live home is the reason: `affinity.reject_as` says how that is told.
    pub bound: bool,
    /// When to come again: where it is overload, when the first of them is likely to have recovered; where the
    /// queue is full, when those who wait are likely to be served, once that has been measured.
    pub retry_after: Option<Duration>,
}

/// Why a grant is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandon {
    /// No byte was sent: nothing has happened, an idle session stays as idle as it was.
    NotDispatched,
    /// The worker failed, or answered with an error that is its own fault (R12).
    Failed,
    /// It answered with an error that is the request's fault: it is well.
    Answered,
    /// The client went away before the worker had begun to answer.
    ClientGone,
}

/// How far a running request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first token: its prompt is computed.
    FirstToken,
    /// The answer comes whole: its prompt was computed some time ago.
    Answered,
    /// So many more tokens of output.
    Output(u32),
    /// What the engine says that it cost. Once: what is said again says nothing.
    Usage(Usage),
}

/// An engine's own count of a request's prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its length in tokens.
    pub prompt_tokens: u64,
    /// How many of them were in the engine's cache; `None`: it didn't say, which is not 0.
    pub cached_tokens: Option<u64>,
}
