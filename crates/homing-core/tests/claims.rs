//! R24 between whole cores: three routers in front of the same workers, and one store in which a session's first turn is
//! made known before its dispatch.
//!
//! Everything follows from a seed: who asks when, which answers of the store are late, which turns fail, which workers
//! go, when a router hears what was written. The law: of a session that nobody has bound, no two turns are on their way
//! to different workers, unless one of these has departed or has failed a turn. `HOMING_SIM_SEED=n` replays one seed.

#![expect(clippy::unwrap_used, reason = "a test from end to end")]

#[path = "sharing/router.rs"]
#[expect(dead_code, reason = "the other simulation needs more of it")]
mod router;

use homing_core::affinity::Outcome;
use homing_core::affinity::version::Version;
use homing_core::ask::{
    Abandon, Admission, Ask, Cause, Checked, Claimed, Claiming, Dispatch, Live, Session,
};
use homing_core::core::Publication;
use homing_core::dice::{Dice, SplitMix};
use homing_core::hash::Prompt;
use homing_core::settings::{CoreSettings, Mode};
use homing_core::time::Time;
use router::{MODEL, Router, key, settings};
use std::collections::{BTreeMap, BTreeSet};

const ROUTERS: usize = 3;
const WORKERS: usize = 4;
const SESSIONS: u32 = 4;
const STEPS: usize = 500;

/// A session's register in the store.
#[derive(Clone)]
struct Register {
    revision: u64,
    bound: bool,
    says: Publication,
}

/// A turn that has been dispatched and not answered.
struct Sent {
    router: usize,
    session: u32,
    checked: Checked,
}

struct Play {
    dice: SplitMix,
    routers: Vec<Router>,
    store: BTreeMap<u32, Register>,
    /// The store's clock.
    revision: u64,
    /// Questions on their way there, and their answers on the way back.
    asking: Vec<(usize, u32, Claiming)>,
    answered: Vec<(usize, u32, Claiming, Claimed)>,
    sent: Vec<Sent>,
    live: Vec<(usize, Live)>,
    /// What routers have written, on its way into the store; and out of it.
    writing: Vec<Publication>,
    heard: Vec<(usize, Publication)>,
    /// Workers that have failed a session's turn, or have departed, since it was bound last.
    excused: BTreeSet<(u32, String)>,
    up: [bool; WORKERS],
    seen: BTreeMap<&'static str, u64>,
}

fn authoritative() -> CoreSettings {
    let mut settings = settings();
    settings.affinity.claimed = true;
    settings.retry_attempts = 3;
    settings
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut routers: Vec<Router> =
            (0..ROUTERS as u64).map(|r| Router::new(authoritative(), seed * 8 + r + 1)).collect();
        routers.iter_mut().for_each(|r| (0..WORKERS).for_each(|w| r.up(w)));
        Self {
            dice: SplitMix::new(seed),
            routers,
            store: BTreeMap::new(),
            revision: 0,
            asking: Vec::new(),
            answered: Vec::new(),
            sent: Vec::new(),
            live: Vec::new(),
            writing: Vec::new(),
            heard: Vec::new(),
            excused: BTreeSet::new(),
            up: [true; WORKERS],
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn take<T>(dice: &mut SplitMix, from: &mut Vec<T>) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(dice.below(from.len())))
    }

    fn step(&mut self) {
        match self.dice.below(100) {
            0..30 => self.begin(),
            30..45 => self.ask_store(),
            45..60 => self.answer(),
            60..72 => self.end_dispatch(),
            72..80 => self.finish(),
            80..88 => self.write(),
            88..96 => self.hear(),
            96..97 => self.worker(),
            97..98 => self.gone(),
            _ => self.pass(),
        }
        self.collect();
        self.routers.iter().for_each(|r| r.core.check());
        self.law();
    }

    fn begin(&mut self) {
        let (r, k) = (self.dice.below(ROUTERS), self.dice.below(SESSIONS as usize) as u32);
        let route = self.routers[r].core.route(MODEL).unwrap();
        let mut ask = Ask::new(route.partition, route.name, Prompt::default());
        ask.session = Some(Session::new(key(k), Mode::Hard));
        self.admit(r, k, ask);
    }

    fn admit(&mut self, r: usize, k: u32, ask: Ask) {
        let router = &self.routers[r];
        match router.core.admit(router.now, ask) {
            Admission::Granted(grant) => {
                let dispatch = router.core.check_dispatch(router.now, grant);
                self.go(r, k, dispatch);
            }
            Admission::Refused(_) => self.saw("refused"),
            Admission::Waiting(_) => panic!("nothing waits here"),
        }
    }

    fn go(&mut self, r: usize, k: u32, dispatch: Dispatch) {
        match dispatch {
            Dispatch::Go(checked) => {
                self.saw("sent");
                self.sent.push(Sent { router: r, session: k, checked });
            }
            Dispatch::Again(ask) => {
                self.saw("again");
                self.admit(r, k, *ask);
            }
            Dispatch::Claim(claiming) => {
                self.saw("claims");
                self.asking.push((r, k, claiming));
            }
            Dispatch::Refused(refusal) => assert_eq!(refusal.cause, Cause::StoreUnreachable),
        }
    }

    /// A question arrives at the store.
    fn ask_store(&mut self) {
        let Some((r, k, claiming)) = Self::take(&mut self.dice, &mut self.asking) else { return };
        let there = self.store.get(&k);
        let answer = if there.map(|t| t.revision) == claiming.expected() {
            self.revision += 1;
            let says = claiming.publication().unwrap().clone();
            self.store.insert(k, Register { revision: self.revision, bound: false, says });
            self.saw("ours");
            Claimed::Ours(self.revision)
        } else {
            let (revision, bound) = (there.map(|t| t.revision), there.is_some_and(|t| t.bound));
            let says = there.map(|t| t.says.clone()).filter(|says| says.home.is_some());
            self.saw("theirs");
            Claimed::Theirs { revision, says, bound }
        };
        self.answered.push((r, k, claiming, answer));
    }

    fn answer(&mut self) {
        let Some((r, k, claiming, answer)) = Self::take(&mut self.dice, &mut self.answered) else {
            return;
        };
        let router = &self.routers[r];
        let dispatch = router.core.claimed(router.now, claiming, answer);
        self.go(r, k, dispatch);
    }

    /// A worker answers, or fails.
    fn end_dispatch(&mut self) {
        let Some(Sent { router: r, session: k, checked }) =
            Self::take(&mut self.dice, &mut self.sent)
        else {
            return;
        };
        let router = &self.routers[r];
        if self.dice.below(6) == 0 {
            self.excused.insert((k, checked.grant().worker().spec.name.to_string()));
            let _ = router.core.abandon(router.now, checked, Abandon::Failed);
            return self.saw("failed");
        }
        let (live, outcome) = router.core.commit(router.now, checked);
        self.saw(match outcome {
            Outcome::New => "new",
            Outcome::Joined => "joined",
            Outcome::Hit => "hit",
            Outcome::Rebound => "rebound",
            Outcome::Conflict => "conflict",
            _ => "else",
        });
        self.live.push((r, live));
    }

    fn finish(&mut self) {
        let Some((r, live)) = Self::take(&mut self.dice, &mut self.live) else { return };
        let router = &self.routers[r];
        router.core.finish(router.now, live);
    }

    /// What routers want written, and taken back.
    fn collect(&mut self) {
        for r in 0..ROUTERS {
            self.writing.extend(self.routers[r].core.publications(Time::FAR, usize::MAX));
            for (.., session) in self.routers[r].core.withdrawals() {
                let k = session.0 as u32;
                let ours = |t: &Register| {
                    !t.bound && t.says.version.writer == self.routers[r].core.writer()
                };
                if self.store.get(&k).is_some_and(ours) {
                    let was = self.store.remove(&k).and_then(|t| t.says.home);
                    // Those of other routers that have joined it go on without it.
                    self.excused.extend(was.map(|home| (k, home.worker.to_string())));
                    self.saw("withdrawn");
                }
            }
        }
    }

    /// A register is written, unless a later one is there; and everybody will hear of it.
    fn write(&mut self) {
        let Some(p) = Self::take(&mut self.dice, &mut self.writing) else { return };
        let k = p.key.0 as u32;
        let later = |t: &Register| t.says.version > p.version;
        if self.store.get(&k).is_some_and(later) {
            return;
        }
        self.revision += 1;
        let bound = p.home.is_some();
        self.store.insert(k, Register { revision: self.revision, bound, says: p.clone() });
        self.heard.extend((0..ROUTERS).map(|r| (r, p.clone())));
    }

    fn hear(&mut self) {
        let Some((r, p)) = Self::take(&mut self.dice, &mut self.heard) else { return };
        let _ = self.routers[r].hear(p);
    }

    /// A worker goes everywhere, or comes.
    fn worker(&mut self) {
        let w = self.dice.below(WORKERS);
        if self.up[w] && self.up.iter().filter(|up| **up).count() < 2 {
            return;
        }
        for router in &mut self.routers {
            if self.up[w] {
                router.down(w);
            } else {
                router.up(w);
            }
        }
        self.up[w] = !self.up[w];
        self.excused.extend((0..SESSIONS).map(|k| (k, format!("w{w}"))));
        self.saw("departures");
    }

    /// A client goes away while the store is asked: what it had claimed is taken back.
    fn gone(&mut self) {
        let taken = Self::take(&mut self.dice, &mut self.answered);
        let Some((r, k, claiming, answer)) = taken else { return };
        let router = &self.routers[r];
        let to = claiming.publication().unwrap().home.as_ref().unwrap().worker.to_string();
        let _ = router.core.abandon(router.now, claiming, Abandon::NotDispatched);
        if let Claimed::Ours(revision) = answer {
            // Whoever has joined it goes on alone.
            self.excused.insert((k, to));
            self.store.retain(|_, register| register.revision != revision);
        }
        self.saw("gone");
    }

    fn pass(&mut self) {
        for router in &mut self.routers {
            router.now = router.now + router::SECOND;
            router.core.handle_timeout(router.now);
        }
    }

    /// See the head of the file.
    fn law(&mut self) {
        for k in 0..SESSIONS {
            let bound = self.store.get(&k).is_some_and(|t| t.bound)
                || self.writing.iter().any(|p| p.key == key(k))
                || self.routers.iter().any(|r| r.view(k).is_some());
            if bound {
                continue;
            }
            let excused = |name: &String| self.excused.contains(&(k, name.clone()));
            let to: BTreeSet<String> = self
                .sent
                .iter()
                .filter(|sent| sent.session == k)
                .map(|sent| sent.checked.grant().worker().spec.name.to_string())
                .filter(|name| !excused(name))
                .collect();
            assert!(
                to.len() <= 1,
                "first turns of {k} are on their way to {to:?}; the store says {:?}",
                self.store.get(&k).map(|t| (&t.says.home, t.says.version))
            );
        }
        // Where nothing is on its way, nothing is excused.
        if self.sent.is_empty() && self.asking.is_empty() && self.answered.is_empty() {
            self.excused.clear();
        }
    }

    /// All that is under way comes to its end; then everybody agrees.
    fn calm(mut self) -> BTreeMap<&'static str, u64> {
        for _ in 0..10_000 {
            self.ask_store();
            self.answer();
            self.end_dispatch();
            self.finish();
            self.collect();
            self.write();
            self.hear();
            let under_way =
                [self.asking.len(), self.answered.len(), self.sent.len(), self.live.len()];
            if under_way == [0; 4] && self.writing.is_empty() && self.heard.is_empty() {
                break;
            }
        }
        for k in 0..SESSIONS {
            // Of a binding to a life that has ended nobody speaks again: it goes when its session comes.
            let ended = |r: &&Router| r.view(k).is_some() && r.home(k).is_none();
            let those = self.routers.iter().filter(|r| !ended(r));
            let says: Vec<Option<(String, Version)>> =
                those.map(|r| r.home(k).zip(r.version(k))).collect();
            assert!(says.windows(2).all(|two| two[0] == two[1]), "{k}: {says:?}");
        }
        for r in &self.routers {
            r.core.check();
            let stats = r.stats();
            assert_eq!((stats.leases, stats.bookings), (0, 0));
        }
        // What nobody has confirmed is nobody's any more; but a turn that was answered by a worker that had departed
        // tells nobody, and whoever claims the session next takes its place.
        let left = self.store.values().filter(|t| !t.bound && t.says.home.is_some()).count();
        assert!(left == 0 || self.seen.contains_key("departures"), "a claim was left");
        self.seen
    }
}

fn play(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut play = Play::new(seed);
    (0..STEPS).for_each(|_| play.step());
    play.calm()
}

#[test]
fn r24_of_many_routers_one_creates_a_session_and_the_others_use_it() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    if let Some(seed) = number("HOMING_SIM_SEED") {
        println!("{:?}", play(seed));
        return;
    }
    let seeds = number("HOMING_SIM_SEEDS").unwrap_or(256);
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..seeds {
        play(seed).into_iter().for_each(|(what, n)| *seen.entry(what).or_default() += n);
    }
    println!("{seeds} seeds, {STEPS} steps each: {seen:?}");
    let all = [
        "ours",
        "theirs",
        "again",
        "joined",
        "new",
        "hit",
        "failed",
        "withdrawn",
        "gone",
        "departures",
    ];
    assert!(
        seeds < 64 || all.iter().all(|what| seen.get(what).copied().unwrap_or(0) > seeds / 8),
        "{seen:?}"
    );
}
