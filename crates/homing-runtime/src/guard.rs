//! The core's tokens in async hands: dropped anywhere (a client that goes away, a time-out, a panic),
//! each releases what it holds, exactly once. No host calls the core to end something.

use crate::shell::{Settled, Shell};
use homing_core::affinity::Outcome;
use homing_core::ask::{
    self, Abandon, Ask, Claimed, Claiming, Dispatch, Failure, Refusal, Step, Ticket, TicketId,
};
use homing_core::explain::Placement;
use homing_core::explain::record::{Report, Stage};
use homing_core::fleet::WorkerInfo;
use homing_core::ids::DpRank;
use std::sync::Arc;

/// A place in the queue; dropped, it is left.
#[derive(Debug)]
pub(crate) struct Waiting {
    shell: Arc<Shell>,
    ticket: Option<Ticket>,
    id: TicketId,
}

impl Waiting {
    pub(crate) fn new(shell: Arc<Shell>, ticket: Ticket) -> Self {
        let id = ticket.id();
        Self { shell, ticket: Some(ticket), id }
    }

    pub(crate) fn id(&self) -> TicketId {
        self.id
    }

    pub(crate) fn into_ticket(mut self) -> Ticket {
        self.ticket.take().expect("only this and drop take it, and both end the guard")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.shell.core().cancel(self.shell.now(), ticket);
            self.shell.pump();
        }
        // Last: a wake-up that was on its way has come by now, whoever pumped it, and must not stay.
        self.shell.forget_sleeper(self.id);
    }
}

/// A place on a target; dropped, it is given up as never dispatched.
#[derive(Debug)]
pub struct Granted {
    shell: Arc<Shell>,
    grant: Option<ask::Grant>,
}

impl Granted {
    pub(crate) fn new(shell: Arc<Shell>, grant: ask::Grant) -> Self {
        Self { shell, grant: Some(grant) }
    }

    /// The last look before dispatch (R10). Right before the first byte goes out. It waits for nothing but a shared
    /// store, and for that with a session's first turn only (R24).
    ///
    /// # Errors
    /// [`Unsent`]; nothing is held then.
    ///
    /// # Panics
    /// Never: the grant is taken here and on drop only.
    pub async fn check(mut self) -> Result<Checked, Unsent> {
        let grant = self.grant.take().expect("taken here and on drop only");
        let shell = &self.shell;
        match checked(shell, shell.core().check_dispatch(shell.now(), grant)) {
            Ok(looked_at) => looked_at,
            // Out of line: its state is large, and most requests wait for nobody.
            Err(claims) => Box::pin(claims.settled()).await,
        }
    }
}

/// What a last look has come to; or the claim that a shared store has to be asked for.
fn checked(shell: &Arc<Shell>, dispatch: Dispatch) -> Result<Result<Checked, Unsent>, Box<Claims>> {
    let shell = shell.clone();
    Ok(match dispatch {
        Dispatch::Go(checked) => Ok(Checked { shell, checked: Some(checked), sent: false }),
        Dispatch::Again(ask) => {
            shell.pump();
            Err(Unsent::Again(ask))
        }
        Dispatch::Refused(refusal) => {
            shell.pump();
            Err(Unsent::Refused(refusal))
        }
        Dispatch::Claim(claiming) => {
            return Err(Box::new(Claims { shell, claiming: Some(claiming) }));
        }
    })
}

/// Why nothing was sent.
#[derive(Debug)]
pub enum Unsent {
    /// The session has moved: admit the ask again.
    Again(Box<Ask>),
    /// It is refused.
    Refused(Refusal),
}

/// A first turn that waits for the shared store; dropped, it is given up.
struct Claims {
    shell: Arc<Shell>,
    claiming: Option<Claiming>,
}

impl Claims {
    /// Asks the store, as often as the core wants it.
    async fn settled(self: Box<Self>) -> Result<Checked, Unsent> {
        let mut claims = self;
        loop {
            let answer = claims.answer().await;
            let shell = claims.shell.clone();
            let dispatch = shell.core().claimed(shell.now(), claims.into_claiming(), answer);
            match checked(&shell, dispatch) {
                Ok(looked_at) => return looked_at,
                Err(more) => claims = more,
            }
        }
    }

    async fn answer(&self) -> Claimed {
        match &self.claiming {
            Some(claiming) => self.shell.claim(claiming).await,
            None => Claimed::Without,
        }
    }

    fn into_claiming(mut self) -> Claiming {
        self.claiming.take().expect("only this and drop take it, and both end the guard")
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        if let Some(claiming) = self.claiming.take() {
            self.shell.core().abandon(self.shell.now(), claiming, Abandon::NotDispatched);
            self.shell.pump();
        }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shell.core().abandon(self.shell.now(), grant, Abandon::NotDispatched);
            self.shell.pump();
        }
    }
}

/// A dispatch under way; dropped, its client has gone.
#[derive(Debug)]
pub struct Checked {
    shell: Arc<Shell>,
    checked: Option<ask::Checked>,
    sent: bool,
}

impl Checked {
    /// The worker.
    #[must_use]
    pub fn worker(&self) -> Arc<WorkerInfo> {
        self.inner().grant().worker().clone()
    }

    /// Its rank, where it has several.
    #[must_use]
    pub fn rank(&self) -> Option<DpRank> {
        let grant = self.inner().grant();
        grant.target().rank.filter(|_| grant.worker().spec.ranks.count() > 1)
    }

    /// Why it.
    #[must_use]
    pub fn placement(&self) -> Placement {
        *self.inner().grant().placement()
    }

    /// From here on bytes may reach the worker.
    pub fn dispatching(&mut self) {
        self.sent = true;
    }

    /// The worker has begun to answer (R11): the hold becomes a lease.
    #[must_use]
    pub fn begin(mut self) -> (Live, Outcome) {
        let checked = self.take();
        let (mut live, outcome) = self.shell.core().commit(self.shell.now(), checked);
        live.report(Report { stage: Some(Stage::ClientGone), ..Report::default() });
        (Live { shell: self.shell.clone(), live: Some(live) }, outcome)
    }

    /// The worker has answered with an error of its own, which passes through (R12), or not at all.
    #[must_use]
    pub fn answered_badly(mut self) -> Outcome {
        let checked = self.take();
        let outcome = self.shell.core().abandon(self.shell.now(), checked, Abandon::Failed);
        self.shell.pump();
        outcome
    }

    /// The worker has answered with an error that is the request's fault, which passes through (R12).
    #[must_use]
    pub fn answered(mut self) -> Outcome {
        let checked = self.take();
        let outcome = self.shell.core().abandon(self.shell.now(), checked, Abandon::Answered);
        self.shell.pump();
        outcome
    }

    /// The dispatch failed before the worker had begun to answer: another place, if there is one.
    ///
    /// # Errors
    /// The core's refusal; nothing is held then.
    pub async fn failed(mut self, failure: Failure) -> Result<Granted, Refusal> {
        let checked = self.take();
        let name = checked.grant().worker().spec.name.clone();
        let shell = self.shell.clone();
        if failure == Failure::Refused {
            shell.life_is_over(checked.grant().worker().id);
        }
        let (admission, events) = shell.core().retry(shell.now(), checked, failure);
        shell.note_fleet(&name, &events);
        let granted = match shell.settle(admission) {
            Settled::Now(settled) => settled,
            Settled::Later(waits) => waits.await,
        }?;
        shell.metrics().retries(failure);
        Ok(granted)
    }

    fn inner(&self) -> &ask::Checked {
        self.checked.as_ref().expect("taken only by what consumes the guard")
    }

    fn take(&mut self) -> ask::Checked {
        self.checked.take().expect("taken only by what consumes the guard")
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if let Some(checked) = self.checked.take() {
            let why = if self.sent { Abandon::ClientGone } else { Abandon::NotDispatched };
            self.shell.core().abandon(self.shell.now(), checked, why);
            self.shell.pump();
        }
    }
}

/// A running request: it lives in the response body, and ends with it. Until something else is said, its client
/// has gone.
#[derive(Debug)]
pub struct Live {
    shell: Arc<Shell>,
    live: Option<ask::Live>,
}

impl Live {
    /// It has come further.
    pub fn progress(&self, step: Step) {
        let Some(live) = &self.live else { return };
        if matches!(step, Step::Usage(_)) && !self.shell.verifies() {
            return;
        }
        if let Some(turn) = self.shell.core().progress(self.shell.now(), live, step) {
            self.shell.note_trust(turn);
        }
    }
}

impl Live {
    /// How it ends, for the record of its decision.
    pub fn report(&mut self, report: Report) {
        if let Some(live) = &mut self.live {
            live.report(report);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.shell.core().finish(self.shell.now(), live);
            self.shell.pump();
        }
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
