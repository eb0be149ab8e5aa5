//! What routers say to each other over a bus (R23): bindings and load, in few messages, and what somebody has missed.
//!
//! One task. Whatever the core has to tell goes out together every 10 ms; what is booked on targets whenever it has
//! changed, at most every 20 ms (growing answers: every 200), and whole once a second, which is also the sign of life.

use super::counts::{Counts, Over};
use super::peers::{Heard, Peers, Question};
use super::port::{Bus, Deliveries, Delivery, MESSAGE_MAX, To};
use super::take_over;
use crate::shell::Shell;
use bytes::Bytes;
use homing_core::affinity::version::AHEAD;
use homing_core::core::{Cursor, Publication};
use homing_core::ids::DpRank;
use homing_core::load::PeerLoad;
use homing_core::time::Time;
use homing_wire::replica::{self, Body, Head, Message, updates_that_fit};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// How often what has happened goes out.
const TICK: Duration = Duration::from_millis(10);
/// How often changed load does,
const LOAD_EVERY: Duration = Duration::from_millis(20);
/// where nothing but answers has grown,
const GROWTH_EVERY: Duration = Duration::from_millis(200);
/// and all of it.
const BEAT: Duration = Duration::from_secs(1);
/// Who asks who is there is answered so soon at most.
const ANSWER_EVERY: Duration = Duration::from_millis(50);
/// A message that the backend doesn't take within this is lost.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// For so long who is new waits for others to say that they are there.
const GATHER: Duration = Duration::from_millis(300);
/// And so long it waits for all in all, before it takes requests without what others know.
const JOIN_PATIENCE: Duration = Duration::from_secs(15);
/// Where nobody can be reached.
const ALONE_PATIENCE: Duration = Duration::from_secs(5);
/// Updates that are taken from the core at once.
const TAKEN_AT_ONCE: usize = 4096;
/// Questions of others that wait for their answer, at most.
const QUESTIONS: usize = 64;
/// Parts of a table that one answer walks at most: of a table in which little is asked for, many.
const WALKED_AT_ONCE: usize = 64;

type Loads = BTreeMap<(Arc<str>, DpRank), PeerLoad>;

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
    told: Loads,
    told_at: Instant,
    grown_at: Instant,
    beat_at: Instant,
    /// Somebody asks who is there.
    called: bool,
    /// On which of our targets each peer has booked something.
    booked: BTreeMap<u32, BTreeSet<(Arc<str>, DpRank)>>,
    questions: VecDeque<Question>,
    joining: Option<Joining>,
}

/// On the way to know what others know.
struct Joining {
    began: Instant,
    /// Who is there has been asked; since when.
    called: Option<Instant>,
    /// Somebody has been asked for all.
    asked: bool,
    done: Option<oneshot::Sender<()>>,
}

impl Talk {
    pub(super) fn new(
        shell: Arc<Shell>,
        bus: Arc<dyn Bus>,
        counts: Arc<Counts>,
        bindings: bool,
        head: Head,
        joined: oneshot::Sender<()>,
    ) -> Self {
        let now = Instant::now();
        let joining = Joining { began: now, called: None, asked: false, done: Some(joined) };
        Self {
            shell,
            bus,
            counts,
            peers: Peers::new(head.writer),
            head,
            bindings,
            up: false,
            told: Loads::new(),
            told_at: now,
            grown_at: now,
            beat_at: now,
            called: false,
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
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Not biased: a flood of messages must not keep us from saying that we are there.
            tokio::select! {
                () = over.cancelled() => break,
                delivery = deliveries.recv() => match delivery {
                    Some(delivery) => self.take(delivery).await,
                    None => {
                        tracing::error!("the bus of the routers has ended: nothing is shared any more");
                        self.joined();
                        break;
                    }
                },
                _ = tick.tick() => self.tick().await,
            }
        }
        self.publish().await;
        self.mention(To::All, Body::Bye).await;
    }

    async fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Message(bytes) => self.message(&bytes).await,
            Delivery::Lost => {
                self.up = false;
                self.peers.lost();
                if let Some(joining) = &mut self.joining {
                    (joining.called, joining.asked) = (None, false);
                }
            }
            Delivery::Back => {
                self.up = true;
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
        let heard = self.peers.hear(now, &head);
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
            Body::Updates(updates) => {
                updates.into_iter().for_each(|update| self.merge(now, update))
            }
            Body::Loads { whole, targets } if heard != Heard::Old => {
                self.hear_loads(head.writer, whole, targets);
            }
            Body::Loads { .. } => {}
            // Answered with the next tick, and seldom: however many call, and however often.
            Body::Hello => self.called = true,
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

    fn hear_loads(&mut self, writer: u32, whole: bool, targets: Vec<(Arc<str>, DpRank, PeerLoad)>) {
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

    async fn tick(&mut self) {
        // Here, not as it changes: who was too slow for a flood is back at once.
        self.counts.up(Over::Bus, self.up);
        self.publish().await;
        self.tell_loads().await;
        let now = self.shell.now();
        for writer in self.peers.fell_silent(now) {
            tracing::warn!(
                router = writer,
                "another router has fallen silent: what it had booked counts no more"
            );
            self.forget(writer);
        }
        if self.up {
            // What is told while no worker is known would lead nowhere.
            let asks = !self.shell.core().knows_nothing();
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
    }

    /// Tells of what was bound, used and removed here.
    async fn publish(&mut self) {
        if !self.bindings {
            return;
        }
        loop {
            let updates = self.shell.core().publications(TAKEN_AT_ONCE);
            let mut left = &updates[..];
            while !left.is_empty() {
                let (now, later) = left.split_at(updates_that_fit(left, MESSAGE_MAX));
                match self.say(To::All, Body::Updates(now.to_vec())).await {
                    Ok(()) => self.counts.sent(now.len()),
                    Err(why) => self.counts.unsent(now.len(), &why),
                }
                left = later;
            }
            if updates.len() < TAKEN_AT_ONCE {
                break;
            }
        }
    }

    async fn tell_loads(&mut self) {
        let now = Instant::now();
        let every = if self.called { ANSWER_EVERY } else { BEAT };
        if now >= self.beat_at + every {
            return self.beat().await;
        }
        if now < self.told_at + LOAD_EVERY {
            return;
        }
        let loads = self.loads();
        let grown_only = loads.len() == self.told.len()
            && loads
                .iter()
                .zip(&self.told)
                .all(|((a, x), (b, y))| a == b && is_same_but_grown(x, y));
        if grown_only && now < self.grown_at + GROWTH_EVERY || loads == self.told {
            return;
        }
        let mut targets: Vec<_> = loads
            .iter()
            .filter(|(at, load)| self.told.get(*at) != Some(load))
            .map(|((worker, rank), load)| (worker.clone(), *rank, *load))
            .collect();
        let over = self.told.keys().filter(|at| !loads.contains_key(*at));
        targets.extend(over.map(|(worker, rank)| (worker.clone(), *rank, PeerLoad::default())));
        (self.told_at, self.grown_at) = (now, now);
        self.told = loads;
        self.say_loads(false, targets).await;
    }

    /// All of it: who has missed something knows it again.
    async fn beat(&mut self) {
        self.told = self.loads();
        self.called = false;
        let now = Instant::now();
        (self.beat_at, self.told_at, self.grown_at) = (now, now, now);
        let all = self.told.iter().map(|((worker, rank), load)| (worker.clone(), *rank, *load));
        self.say_loads(true, all.collect()).await;
    }

    async fn say_loads(&mut self, whole: bool, targets: Vec<(Arc<str>, DpRank, PeerLoad)>) {
        if targets.len() <= replica::ENTRIES_MAX / 4 {
            return self.mention(To::All, Body::Loads { whole, targets }).await;
        }
        // Too many for one message: each target's word stands by itself.
        for part in targets.chunks(replica::ENTRIES_MAX / 4) {
            self.mention(To::All, Body::Loads { whole: false, targets: part.to_vec() }).await;
        }
    }

    fn loads(&self) -> Loads {
        let mut loads = Loads::new();
        self.shell.core().own_loads(|worker, rank, load| {
            loads.insert((worker.clone(), rank), load);
        });
        loads
    }

    async fn ask(&mut self, question: Question) {
        let Question { whom, since, cursor } = question;
        self.mention(To::One(whom), Body::Fetch { since, cursor }).await;
    }

    async fn answer(&mut self, question: Question) {
        let mut updates = Vec::new();
        let mut next = Some(question.cursor);
        for _ in 0..WALKED_AT_ONCE {
            let Some(at) = next else { break };
            let mut cursor = Cursor::from_bits(at);
            let Some(more) =
                self.shell.core().registers(self.shell.now(), &mut cursor, question.since)
            else {
                next = None;
                break;
            };
            let before = updates.len();
            updates.extend(more);
            if before > 0 && updates_that_fit(&updates, MESSAGE_MAX) < updates.len() {
                updates.truncate(before);
                break;
            }
            next = Some(cursor.to_bits());
        }
        let registers = updates.len();
        match self.say(To::One(question.whom), Body::Chunk { next, updates }).await {
            Ok(()) => self.counts.told(registers),
            Err(why) => self.counts.unsent(registers, &why),
        }
    }

    /// Why it could not be said, in words; whoever was to hear it will ask.
    async fn say(&mut self, to: To, body: Body) -> Result<(), String> {
        let sequence = match to {
            // Counted also where it is lost: that others notice, and ask.
            To::All => {
                self.head.sequence += 1;
                self.head.sequence
            }
            To::One(_) => 0,
        };
        if !self.up {
            return Err("the backend can't be reached".to_owned());
        }
        let head = Head { sequence, now: self.shell.now(), ..self.head };
        let bytes = Bytes::from(replica::encode(&Message { head, body: Some(body) }));
        match timeout(SEND_PATIENCE, self.bus.send(to, bytes)).await {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err("the backend takes no messages".to_owned()),
        }
    }

    /// The same of what is said again within a second.
    async fn mention(&mut self, to: To, body: Body) {
        if let Err(why) = self.say(to, body).await
            && self.up
        {
            tracing::debug!(why, "a message to other routers was lost");
        }
    }

    /// Looks how far the way to what others know has gone.
    fn join(&mut self) {
        let Some(joining) = &mut self.joining else { return };
        if self.shell.core().knows_nothing() {
            // What others know would lead nowhere yet, and this router can't be ready before it has a worker.
            joining.began = Instant::now();
            return;
        }
        let passed = joining.began.elapsed();
        let over = match joining.called {
            None => passed >= ALONE_PATIENCE,
            Some(called) if !joining.asked => {
                if called.elapsed() >= GATHER {
                    joining.asked = true;
                    // Who is alone has all there is.
                    !self.peers.ask_for_all()
                } else {
                    false
                }
            }
            Some(_) => self.peers.has_all() || passed >= JOIN_PATIENCE,
        };
        if over {
            self.joined();
        }
    }

    fn joined(&mut self) {
        let Some(mut joining) = self.joining.take() else { return };
        self.shell.core().restored();
        let (routers, whole) =
            (self.peers.present(), joining.called.is_some() && self.peers.has_all());
        let sessions: usize = self.shell.core().partitions().iter().map(|p| p.stats.bindings).sum();
        if whole {
            tracing::info!(routers, sessions, "this router knows what the others know");
        } else {
            tracing::warn!(
                routers,
                "this router begins without what others know: it learns as it hears of it"
            );
        }
        if let Some(done) = joining.done.take() {
            // Whoever waited may be gone.
            let _ = done.send(());
        }
    }
}

/// Whether nothing has happened but that answers have grown.
fn is_same_but_grown(now: &PeerLoad, told: &PeerLoad) -> bool {
    (now.active_requests, now.decoding, now.prefill_tokens)
        == (told.active_requests, told.decoding, told.prefill_tokens)
}

#[cfg(test)]
#[path = "talk_tests.rs"]
mod tests;
