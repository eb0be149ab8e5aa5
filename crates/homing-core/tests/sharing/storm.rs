//! The storm: random turns at two routers, and a wire that does what it likes.

use super::router::{Router, SECOND, TTL, settings};
use super::wire::{Came, Wire};
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Checked, Live};
use homing_core::dice::{Dice, SplitMix};
use homing_core::settings::Mode;
use std::collections::BTreeMap;
use std::fmt::Display;

const SESSIONS: u32 = 6;
const WORKERS: usize = 4;

/// How often what happened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    outcomes: BTreeMap<Outcome, u64>,
    updates: BTreeMap<Came, u64>,
    unknown_workers: u64,
    departures: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        for (outcome, n) in &other.outcomes {
            *self.outcomes.entry(*outcome).or_default() += n;
        }
        for (came, n) in &other.updates {
            *self.updates.entry(*came).or_default() += n;
        }
        self.unknown_workers += other.unknown_workers;
        self.departures += other.departures;
    }

    /// Of all that must happen, what happened least.
    pub(crate) fn least(&self) -> u64 {
        use Outcome::{Conflict, Hit, Joined, New, Rebound};
        let outcomes = [New, Joined, Hit, Rebound, Conflict].map(|o| self.outcomes.get(&o));
        let all =
            [Came::Applied, Came::Same, Came::Stale, Came::Undone, Came::Expired, Came::SetAside];
        let updates = all.map(|c| self.updates.get(&c));
        let counted = outcomes.into_iter().chain(updates).map(|n| n.copied().unwrap_or(0));
        counted.chain([self.unknown_workers, self.departures]).min().unwrap_or(0)
    }
}

pub(crate) struct Storm {
    dice: SplitMix,
    routers: [Router; 2],
    /// To each of them.
    wires: [Wire; 2],
    sent: Vec<(usize, u32, Checked)>,
    running: Vec<(usize, Live)>,
    /// Which workers each of them knows.
    known: [[bool; WORKERS]; 2],
    seen: Seen,
    lines: Vec<String>,
    aloud: bool,
}

impl Storm {
    /// `aloud`: prints what happens.
    pub(crate) fn new(seed: u64, aloud: bool) -> Self {
        let mut dice = SplitMix::new(seed);
        let mut routers = [seed * 2 + 1, seed * 2 + 2].map(|s| Router::new(settings(), s));
        // Clocks differ a little. Time passes in steps of five seconds, so that nothing is so close to its
        // end that they could differ about that.
        let ahead = dice.below(2);
        routers[ahead].now = routers[ahead].now + SECOND * dice.below(3) as u32;
        let mut known = [[true; WORKERS]; 2];
        for (router, known) in routers.iter_mut().zip(&mut known) {
            for (w, known) in known.iter_mut().enumerate() {
                *known = w == 0 || dice.below(4) > 0;
                if *known {
                    router.up(w);
                }
            }
        }
        let (wires, seen) = Default::default();
        let (sent, running, lines) = Default::default();
        Self { dice, routers, wires, sent, running, known, seen, lines, aloud }
    }

    fn say(&mut self, r: usize, what: impl Display) {
        let line = format!("{r}: {what}");
        if self.aloud {
            println!("{line}");
        }
        self.lines.push(line);
    }

    pub(crate) fn step(&mut self) {
        let r = self.dice.below(2);
        let k = self.dice.below(SESSIONS as usize) as u32;
        match self.dice.below(100) {
            0..25 => self.begin(r, k),
            25..45 => self.commit(),
            45..48 => self.fail(),
            48..65 => self.finish(),
            65..67 => self.remove(r, k),
            67..90 => self.deliver(r),
            90..96 => self.pass(),
            96..97 => self.discover(r),
            97..98 => self.lose(r),
            _ => self.look(r),
        }
        self.publish(true);
        self.routers.iter().for_each(|router| router.core.check());
    }

    fn begin(&mut self, r: usize, k: u32) {
        let mode = if self.dice.below(4) == 0 { Mode::Soft } else { Mode::Hard };
        let last = self.dice.below(12) == 0;
        let home = self.routers[r].view(k);
        if let Some(checked) = self.routers[r].send(k, mode, last) {
            let target = checked.grant().target();
            let known = home.filter(|h| {
                self.routers[r].core.workers().iter().any(|w| w.info.id == h.target.worker)
            });
            if let (Some(h), Mode::Hard) = (known, mode) {
                assert_eq!(h.target, target, "a Hard session runs at home");
            }
            self.say(r, format_args!("session {k} to {target:?}, last: {last}"));
            self.sent.push((r, k, checked));
        }
    }

    fn commit(&mut self) {
        if !self.sent.is_empty() {
            let (r, k, checked) = self.sent.swap_remove(self.dice.below(self.sent.len()));
            let now = self.routers[r].now;
            let (live, outcome) = self.routers[r].core.commit(now, checked);
            *self.seen.outcomes.entry(outcome).or_default() += 1;
            if matches!(outcome, Outcome::New | Outcome::Rebound) {
                // Told or not: what is bound to a life that is over is not.
                self.wires[r].bound(k);
            }
            self.say(r, format_args!("session {k} {outcome}"));
            self.running.push((r, live));
        }
    }

    fn fail(&mut self) {
        if !self.sent.is_empty() {
            let (r, _, checked) = self.sent.swap_remove(self.dice.below(self.sent.len()));
            let now = self.routers[r].now;
            _ = self.routers[r].core.abandon(now, checked, Abandon::Failed);
            self.say(r, "failed");
        }
    }

    fn finish(&mut self) {
        if !self.running.is_empty() {
            let (r, live) = self.running.swap_remove(self.dice.below(self.running.len()));
            let now = self.routers[r].now;
            self.routers[r].core.finish(now, live);
            self.say(r, "finished");
        }
    }

    fn remove(&mut self, r: usize, k: u32) {
        let router = &self.routers[r];
        let was = router.core.unbind(router.now, router.partition(), super::router::key(k));
        self.say(r, format_args!("removed session {k}: {was}"));
    }

    fn publish(&mut self, loses: bool) {
        for r in 0..2 {
            for p in self.routers[r].told() {
                self.say(
                    r,
                    format_args!("tells session {} {} {:?} {}", p.key.0, p.version, p.home, p.used),
                );
                self.wires[r].note(self.routers[r].now, &p);
                self.wires[1 - r].send(p, &mut self.dice, loses);
            }
        }
    }

    fn deliver(&mut self, r: usize) {
        if let Some(came) = self.wires[r].deliver(&mut self.routers[r], &mut self.dice) {
            *self.seen.updates.entry(came).or_default() += 1;
            self.say(r, format_args!("hears {came:?}"));
        }
    }

    fn pass(&mut self) {
        let fives = if self.dice.below(12) == 0 { 4 * self.dice.below(6) } else { 1 };
        for router in &mut self.routers {
            router.now = router.now + SECOND * 5 * fives as u32;
            router.core.handle_timeout(router.now);
        }
        self.say(0, format_args!("{fives} times five seconds pass"));
    }

    /// One learns of a worker that the other may know for long.
    fn discover(&mut self, r: usize) {
        if let Some(w) = self.known[r].iter().position(|known| !known) {
            self.seen.unknown_workers += u64::from(self.known[1 - r][w]);
            self.known[r][w] = true;
            self.routers[r].up(w);
            // What was set aside for it is bound now.
            let bound = (0..SESSIONS).filter(|k| self.routers[r].view(*k).is_some());
            bound.for_each(|k| self.wires[r].bound(k));
            self.say(r, format_args!("w{w} is up"));
        }
    }

    fn lose(&mut self, r: usize) {
        let w = 1 + self.dice.below(WORKERS - 1);
        if self.known[r][w] {
            self.seen.departures += 1;
            self.known[r][w] = false;
            self.routers[r].down(w);
            self.say(r, format_args!("w{w} is gone"));
        }
    }

    /// What is in use can't have gone, unless it was removed or its worker has departed.
    fn look(&mut self, r: usize) {
        let stats = self.routers[r].stats();
        let running = self.running.iter().filter(|(at, _)| *at == r).count();
        let sent = self.sent.iter().filter(|(at, ..)| *at == r).count();
        assert_eq!(stats.bookings, running + sent);
        assert!(stats.leases <= running + sent);
        assert!(stats.bindings <= SESSIONS as usize);
    }

    /// All that flies arrives, and what that leads to.
    fn flow(&mut self) {
        self.publish(false);
        let mut rounds = 0;
        while self.wires.iter().any(|w| !w.is_empty()) {
            (0..2).for_each(|r| self.deliver(r));
            self.publish(false);
            rounds += 1;
            assert!(rounds < 100_000, "they never stop talking");
        }
    }

    /// The storm is over: requests end, workers are known to both, updates flow.
    pub(crate) fn calm(mut self) -> (Seen, Vec<String>) {
        while !self.sent.is_empty() {
            if self.dice.below(3) == 0 {
                self.fail()
            } else {
                self.commit()
            }
            self.publish(true);
        }
        while !self.running.is_empty() {
            self.finish();
            self.publish(true);
        }
        for r in 0..2 {
            while self.known[r].contains(&false) {
                self.discover(r);
            }
        }
        self.flow();
        // Each session has one more turn, at one of them.
        for k in 0..SESSIONS {
            let r = self.dice.below(2);
            let outcome = self.routers[r].turn(k);
            self.say(r, format_args!("session {k} once more: {outcome}"));
            self.flow();
            // What was bound last may have been at a life that only one of them knows to be over: it
            // can't name it to the other, and its own next turn tells where the session is instead.
            if self.routers[1 - r].view(k).is_some() && self.routers[1 - r].home(k).is_none() {
                assert_eq!(self.routers[1 - r].turn(k), Outcome::Rebound);
                self.flow();
            }
            if !self.agree(k) {
                // Its removal came later than what bound it here, and was heard of only now.
                assert_eq!(self.routers[r].turn(k), Outcome::New);
                self.flow();
                assert!(self.agree(k));
            }
        }
        self.routers.iter().for_each(Router::check_idle);
        for router in &mut self.routers {
            router.now = router.now + TTL;
            while router.core.poll_timeout().is_some_and(|next| next <= router.now) {
                router.core.handle_timeout(router.now);
            }
            assert_eq!(router.stats().bindings, 0);
            router.check_idle();
        }
        (self.seen, self.lines)
    }

    /// Both know the same of a session; whether that is a home.
    fn agree(&self, k: u32) -> bool {
        let known = |r: &Router| r.view(k).map(|v| (r.home(k), v.version));
        let [a, b] = [known(&self.routers[0]), known(&self.routers[1])];
        assert_eq!(a, b, "session {k}");
        assert!(a.as_ref().is_none_or(|(home, _)| home.is_some()), "session {k} is nowhere");
        a.is_some()
    }
}
