//! What hosts ask, and what they get: the vocabulary of the core's calls.
//!
//! Whatever is held is a token, consumed by the call that ends it:
//!
//! ```text
//! Ask -> Grant -> Checked -> Live -> (finished)
//!     \-> Ticket -> (claim)
//! ```

use crate::affinity::{Hold, Lease, Outcome};
use crate::explain::Placement;
use crate::fleet::WorkerInfo;
use crate::hash::Prompt;
use crate::ids::{DpRank, NameId, PartitionId, SessionKey, Target, WorkerId};
use crate::index::Overlaps;
use crate::load::Booking;
use crate::queue::Place;
use crate::settings::Mode;
use crate::time::Time;
use smallvec::SmallVec;
use std::sync::Arc;
use thiserror::Error;

/// A request, as far as the decision is concerned. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Whose request: from [`crate::SelectionCore::route`].
    pub partition: PartitionId,
    /// The served name that it uses.
    pub name: NameId,
    /// The session and how binding it is; `None` where there is none, or it is off (R20).
    pub session: Option<(SessionKey, Mode)>,
    /// Its prompt.
    pub prompt: Prompt,
    /// Who holds how much of the prompt: from [`crate::SelectionCore::overlaps`]. Another order than its
    /// own costs time, nothing else.
    pub overlaps: Overlaps,
    /// When its client gives up.
    pub deadline: Option<Time>,
    pub(crate) past: Past,
}

/// What a request has been through already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// Workers that failed it.
    pub(crate) excluded: SmallVec<[WorkerId; 2]>,
    /// The last failure.
    pub(crate) failure: Option<Failure>,
    /// It lost its binding to a departure.
    pub(crate) had_binding: bool,
    /// It has selected a second time after R10's look; a second change goes on.
    pub(crate) rechecked: bool,
}

impl Ask {
    /// A request without a session and with a prompt of unknown content.
    #[must_use]
    pub fn new(partition: PartitionId, name: NameId, prompt: Prompt) -> Self {
        Self {
            partition,
            name,
            session: None,
            prompt,
            overlaps: Overlaps::new(),
            deadline: None,
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
}

/// What a request gets.
#[must_use]
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "made once a request and moved on; a box would allocate"
)]
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
    pub(crate) ask: Ask,
    pub(crate) worker: Arc<WorkerInfo>,
    pub(crate) rank: DpRank,
    pub(crate) booking: Booking,
    pub(crate) hold: Option<Hold>,
    pub(crate) full: bool,
    pub(crate) placement: Placement,
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
    Again(Ask),
}

/// A running request: its booking, and its lease if it has a session.
#[must_use = "dropping it leaks its booking and its lease: finish it"]
#[derive(Debug)]
pub struct Live {
    pub(crate) partition: PartitionId,
    pub(crate) booking: Booking,
    pub(crate) lease: Option<Lease>,
}

/// A place in the queue.
#[must_use = "a ticket that is dropped keeps its place: claim it, or cancel it"]
#[derive(Debug)]
pub struct Ticket {
    pub(crate) partition: PartitionId,
    pub(crate) place: Place,
}

impl Ticket {
    /// The name under which [`Output::Wake`] calls it.
    #[must_use]
    pub fn id(&self) -> TicketId {
        TicketId { partition: self.partition, wait: self.place.id() }
    }
}

/// Names a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId {
    partition: PartitionId,
    wait: crate::queue::WaitId,
}

impl TicketId {
    pub(crate) fn new(partition: PartitionId, wait: crate::queue::WaitId) -> Self {
        Self { partition, wait }
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
    /// Nobody can serve it.
    #[error("no worker can serve the request")]
    NoWorker,
    /// Its home is known and can't be used now.
    #[error("the session's worker can't be used now")]
    TargetUnavailable,
    /// Everyone is busy, and the queue is full.
    #[error("every worker is busy and the queue is full")]
    QueueFull,
    /// It waited for too long.
    #[error("no worker became free in time")]
    Timeout,
    /// Its worker broke off before it began to answer, and it could not be moved.
    #[error("the worker broke off before it began to answer")]
    WorkerFailed,
}

/// A refusal; nothing is held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// What happened to the session.
    pub outcome: Outcome,
}

/// Why a grant is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandon {
    /// No byte was sent: nothing has happened, an idle session stays as idle as it was.
    NotDispatched,
    /// The worker failed, or answered with an error (R12).
    Failed,
    /// The client went away before the worker had begun to answer.
    ClientGone,
}

/// How far a running request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first token: its prompt is computed.
    FirstToken,
    /// So many more tokens of output.
    Output(u32),
}
