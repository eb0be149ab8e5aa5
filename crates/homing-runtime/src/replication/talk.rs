//! What routers say to each other over a bus (R23): bindings and load, in few messages, and what somebody has missed.
//!
//! One task, which sleeps until the core has something to tell, or something is due. What has happened in 10 ms goes out
//! together, bindings and load in one message; when load goes by itself is the [`Teller`]'s to know. A peer of an earlier
//! release reads just the bindings of such a message: while one is there, both go apart.

mod join;
mod tell;

use super::counts::{Counts, Over};
use super::peers::{Heard, Peers, Question};
use super::port::{Bus, Deliveries, Delivery, To};
use super::take_over;
use crate::shell::Shell;
use bytes::Bytes;
use homing_core::affinity::version::AHEAD;
use homing_core::core::Publication;
use homing_core::ids::DpRank;
use homing_core::load::PeerLoad;
use homing_core::load::teller::Teller;
use homing_core::time::Time;
use homing_wire::replica::{self, Body, Head, Loads};
use join::Joining;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How often what has happened goes out at most,
const TICK: Duration = Duration::from_millis(10);
/// and how long after it happened at least: much comes together, a binding and a first token.
const GATHER: Duration = Duration::from_millis(3);
/// Questions of others that wait for their answer, at most.
const QUESTIONS: usize = 64;

/// The task's state.
pub(super) struct Talk {
    shell: Arc<Shell>,
    bus: Arc<dyn Bus>,
    counts: Arc<Counts>,
    peers: Peers,
    head: Head,
    /// Whether bindings are told here; else load alone.
    bindings: bool,
    up: bool,
    teller: Teller,
    /// Rung by the core.
    bell: Arc<Notify>,
    /// When it was looked what there is to do last, and when it is again.
    looked: Instant,
    next: Instant,
    /// On which of our targets each peer has booked something.
    booked: BTreeMap<u32, BTreeSet<(Arc<str>, DpRank)>>,
    questions: VecDeque<Question>,
    joining: Option<Joining>,
}

impl Talk {
    pub(super) fn new(
        shell: Arc<Shell>,
        bus: Arc<dyn Bus>,
        counts: Arc<Counts>,
        bindings: bool,
        head: Head,
        joined: oneshot::Sender<()>,
        bell: Arc<Notify>,
    ) -> Self {
        let now = Instant::now();
        let teller = Teller::new(shell.now(), tell::PER_TURN[usize::from(bindings)]);
        let joining = Joining { began: now, called: None, asked: false, done: Some(joined) };
        Self {
            shell,
            bus,
            counts,
            peers: Peers::new(head.writer),
            head,
            bindings,
            up: false,
            teller,
            bell,
            looked: now,
            next: now,
            booked: BTreeMap::new(),
            questions: VecDeque::new(),
            joining: Some(joining),
        }
    }

    /// Targets that are kept of peers' words.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.booked.values().map(BTreeSet::len).sum()
    }

    /// Runs until `over`, then says goodbye.
    pub(super) async fn run(mut self, mut deliveries: Deliveries, over: CancellationToken) {
        let bell = self.bell.clone();
        loop {
            // Not biased: a flood of messages must not keep us from saying that we are there.
            tokio::select! {
                () = over.cancelled() => break,
                delivery = deliveries.recv() => match delivery {
                    Some(delivery) => {
                        self.take(delivery).await;
                        if self.has_to_do() {
                            self.look_soon();
                        }
                    }
                    None => {
                        tracing::error!("the bus of the routers has ended: nothing is shared any more");
                        self.joined();
                        break;
                    }
                },
                () = bell.notified() => self.look_soon(),
                () = sleep_until(self.next) => self.look().await,
            }
        }
        self.tell(Time::FAR).await;
        self.mention(To::All, Body::Bye).await;
    }

    fn look_soon(&mut self) {
        self.next = self.next.min((self.looked + TICK).max(Instant::now() + GATHER));
    }

    /// Whether a message has left something to do.
    fn has_to_do(&self) -> bool {
        !self.questions.is_empty()
            || self.joining.is_some()
            || self.up && self.peers.wants_to_ask()
            || self.teller.next_look() <= self.shell.now()
    }

    async fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Message(bytes) => self.message(&bytes).await,
            Delivery::Lost => {
                self.up = false;
                self.look_soon();
                self.peers.lost();
                if let Some(joining) = &mut self.joining {
                    (joining.called, joining.asked) = (None, false);
                }
            }
            Delivery::Back => {
                self.up = true;
                self.teller.call();
                self.look_soon();
                if let Some(joining) = &mut self.joining {
                    joining.called = Some(Instant::now());
                }
                // The others ask for what we said meanwhile, as soon as they hear how far we have counted.
                self.mention(To::All, Body::Hello).await;
            }
        }
    }

    async fn message(&mut self, bytes: &Bytes) {
        let message = match replica::decode(bytes) {
            Ok(message) => message,
            Err(error) => return self.counts.refused("unreadable", &error.to_string()),
        };
        let head = message.head;
        if head.group != self.head.group {
            return self.counts.other_secret();
        }
        let now = self.shell.now();
        if head.now.max(Time::from_micros(head.boot)) > now + AHEAD {
            return self.counts.untrue();
        }
        let was_silent = self.peers.is_silent(head.writer);
        let heard = self.peers.hear(now, &head);
        if was_silent && !self.peers.is_silent(head.writer) {
            tracing::info!(router = head.writer, "another router is heard again");
        }
        match heard {
            Heard::Ours => return,
            Heard::TooMany => {
                let why = "more routers than are listened to: is each of them one of this group?";
                return self.counts.refused("too_many", why);
            }
            Heard::Anew => self.forget(head.writer),
            Heard::AfterGap => self.counts.gap(),
            Heard::InOrder | Heard::Old => {}
        }
        let Some(body) = message.body else {
            return self.counts.refused("newer", "a message of a later release was passed over");
        };
        match body {
            Body::Updates { updates, loads } => {
                updates.into_iter().for_each(|update| self.merge(now, update));
                if let Some(loads) = loads.filter(|_| heard != Heard::Old) {
                    self.hear_loads(head.writer, loads);
                }
            }
            Body::Loads(loads) if heard != Heard::Old => self.hear_loads(head.writer, loads),
            Body::Loads(_) => {}
            // Answered soon, and seldom: however many call, and however often.
            Body::Hello => {
                self.teller.call();
                self.next = self.next.min(self.instant(self.teller.next_look()));
            }
            Body::Fetch { since, cursor } => {
                if self.questions.len() < QUESTIONS {
                    self.questions.push_back(Question { whom: head.writer, since, cursor });
                }
            }
            Body::Chunk { next, updates } => {
                let (asked, next) = self.peers.answered(now, head.writer, next);
                if asked {
                    self.counts.fetched(updates.len());
                    updates.into_iter().for_each(|update| self.take_over(now, update));
                }
                if let Some(question) = next {
                    self.ask(question).await;
                }
            }
            Body::Bye => {
                self.peers.leaves(head.writer);
                self.forget(head.writer);
            }
        }
    }

    fn merge(&self, now: Time, update: Publication) {
        if self.bindings {
            self.counts.received(self.shell.core().handle_publication(now, update));
        }
    }

    /// Also where a store tells of bindings: it may have lost what the others know.
    fn take_over(&self, now: Time, update: Publication) {
        let joining = self.joining.is_some();
        self.counts.received(take_over(self.shell.core(), now, update, joining));
    }

    fn hear_loads(&mut self, writer: u32, Loads { whole, targets }: Loads) {
        let core = self.shell.core();
        let booked = self.booked.entry(writer).or_default();
        if whole {
            let named: BTreeSet<_> = targets.iter().map(|(w, r, _)| (w.clone(), *r)).collect();
            for (worker, rank) in booked.difference(&named) {
                core.handle_peer_load(writer, worker, *rank, PeerLoad::default());
            }
            booked.clear();
        }
        for (worker, rank, load) in targets {
            // What is not known here yet is told of again within a second; to keep it, others could name what they like.
            let known = core.handle_peer_load(writer, &worker, rank, load);
            if known && load != PeerLoad::default() {
                booked.insert((worker, rank));
            } else {
                booked.remove(&(worker, rank));
            }
        }
        self.shell.pump();
    }

    fn forget(&mut self, writer: u32) {
        self.booked.remove(&writer);
        self.shell.core().forget_peer(writer);
        self.shell.pump();
    }

    async fn look(&mut self) {
        self.looked = Instant::now();
        self.shell.core().hears_news();
        // Here, not as it changes: who was too slow for a flood is back at once.
        self.counts.up(Over::Bus, self.up);
        let now = self.shell.now();
        self.tell(now).await;
        let silent = self.peers.fell_silent(now);
        self.say_who_is_silent(&silent);
        silent.into_iter().for_each(|writer| self.forget(writer));
        if self.up {
            // What is told while no worker is known would lead nowhere; and who is new asks one for all it has, first.
            let asks = !self.shell.core().knows_nothing()
                && self.joining.as_ref().is_none_or(|joining| joining.asked);
            if let Some(question) = asks.then(|| self.peers.next_question(now)).flatten() {
                self.ask(question).await;
            }
            if let Some(question) = self.questions.pop_front() {
                self.answer(question).await;
            }
        }
        self.counts.peers(self.peers.present());
        self.counts.in_step(Over::Bus, self.peers.in_step());
        self.join();
        self.next = self.sleeps_until(now);
    }

    /// In one line, however many: a flood of forged ones must not be one of lines.
    fn say_who_is_silent(&self, silent: &[u32]) {
        let [first, others @ ..] = silent else { return };
        let (router, others) = (*first, others.len());
        if self.up {
            tracing::warn!(
                router,
                others,
                "another router has fallen silent: what it had booked counts no more"
            );
        } else {
            // That is said by whoever has the connection.
            tracing::debug!(router, others, "not heard while the backend can't be reached");
        }
    }

    /// When there is something to do though nobody calls.
    fn sleeps_until(&self, now: Time) -> Instant {
        if self.joining.is_some() || !self.questions.is_empty() {
            return self.looked + TICK;
        }
        let told = self.bindings.then(|| self.shell.core().next_publication()).flatten();
        let ask = self.peers.next_ask(now).filter(|_| self.up);
        let due = [Some(self.teller.next_look()), told, ask];
        let due = due.into_iter().flatten().min().unwrap_or(now);
        self.instant(due).max(self.looked + TICK)
    }

    fn instant(&self, time: Time) -> Instant {
        Instant::now() + time.since(self.shell.now())
    }
}

#[cfg(test)]
#[path = "talk_tests.rs"]
mod tests;
