//! The requests that come: of every kind that a client can make; and what a preview says of one, which
//! must be what happens next (R16).

use super::super::engine::{FAMILIES, LONGEST, prompt, text};
use super::laws::{Claim, Verdict};
use super::{Line, Meta, NAMES, POOLS, SESSIONS, Storm, WORKERS, any, one};
use homing_core::affinity::{Outcome, Plan};
use homing_core::ask::{Ask, Cause, Constraints, Explicit, Session};
use homing_core::dice::Dice;
use homing_core::explain::Preview;
use homing_core::hash::Prompt;
use homing_core::ids::{DpRank, SessionKey};
use homing_core::settings::Mode;
use std::sync::Arc;
use std::time::Duration;

impl Storm {
    fn key(&mut self) -> SessionKey {
        SessionKey(self.dice.roll() as u128 % SESSIONS)
    }

    /// What engines have told is known, whatever else is believed; and nothing else, where nothing is foreseen
    /// and no text was sent. Where there is little room, less.
    fn check_overlaps(&self, ask: &Ask, pool: usize, family: u32, blocks: u32) {
        let cramped = self.cramped();
        for e in self.engines.iter().filter(|e| e.id.is_some() && e.placed == Some(pool)) {
            let here = ask.overlaps.iter().filter(|o| Some(o.worker) == e.id);
            let got = here.map(|o| o.total()).max().unwrap_or(0);
            let told = if ask.prompt.exact { e.overlap(family, blocks) } else { 0 };
            let guessed = !self.settings.predict.is_zero() || !ask.text.chain.is_empty();
            assert!(got >= told || cramped, "{got} of {told} blocks of {:?}", e.id);
            assert!(got <= told || guessed, "{got} of {told} blocks of {:?}", e.id);
            let most = ask.prompt.reusable_blocks().max(ask.text.reusable_blocks());
            assert!(got <= most, "{got} of {most} that can be reused");
        }
    }

    /// One of any kind; `None`: its model is unknown yet.
    pub(super) fn new_ask(&mut self) -> Option<(Meta, Ask)> {
        let name = one(&mut self.dice, &NAMES);
        let route = self.core.route(name).ok()?;
        let pool = POOLS.iter().position(|p| name.starts_with(p)).unwrap();
        self.partitions[pool] = Some(route.partition);
        let family = self.dice.below(FAMILIES as usize) as u32;
        let blocks = self.dice.below(LONGEST as usize + 1) as u32;
        let mut ask = Ask::new(route.partition, route.name, prompt(family, blocks));
        if self.engine_dice.below(3) > 0 {
            ask.text = text(family, blocks);
        }
        if self.engine_dice.below(4) == 0 {
            // Nobody could tokenize it.
            let block_size = ask.text.block_size;
            ask.prompt = Prompt { block_size, ..Prompt::of_length(ask.prompt.tokens) };
        }
        self.core.look_up(&mut ask);
        self.check_overlaps(&ask, pool, family, blocks);
        if self.dice.below(8) > 0 {
            let mode = one(&mut self.dice, &[Mode::Hard, Mode::Hard, Mode::Soft]);
            let mut session = Session::new(self.key(), mode);
            session.last = self.dice.below(12) == 0;
            session.ends_group = Some(self.key()).filter(|key| *key != session.key);
            ask.session = Some(session);
        }
        if self.dice.below(6) == 0 {
            ask.explicit = Some(self.explicit(pool));
        }
        if self.dice.below(8) == 0 {
            ask.constraints = Some(Arc::new(self.constraints()));
        }
        ask.priority = one(&mut self.engine_dice, &[0, 0, 1, -1, i32::MAX]);
        ask.tenant = one(&mut self.engine_dice, &[0, 0, 0, 1, 2]);
        if self.dice.below(4) == 0 {
            ask.deadline = Some(self.now + Duration::from_micros(self.dice.below(20_000) as u64));
        }
        let meta = Meta {
            serial: self.requests + 1,
            pool,
            name,
            session: ask.session,
            explicit: ask.explicit.clone(),
            constraints: ask.constraints.clone(),
            client: ask.deadline,
            named: None,
            failed: Vec::new(),
            attempts: 0,
            may_have_run: false,
            failure: None,
            sent_on: false,
            had: false,
            rechecked: false,
            claim: Claim::None,
            plan: Plan::Home,
            line: Line::Any,
            deadline: self.now,
            seen: (std::mem::discriminant(&Claim::None), None, None),
        };
        Some((meta, ask))
    }

    /// Any worker, or nobody; any rank, or one that there isn't.
    fn explicit(&mut self, pool: usize) -> Explicit {
        let here: Vec<_> = self.engines.iter().filter(|e| e.placed == Some(pool)).collect();
        let worker = match self.dice.below(10) {
            0 => "nobody".into(),
            1 => format!("w{}", self.dice.below(WORKERS)).into(),
            _ => any(&mut self.dice, &here).map_or("w0", |i| &here[i].name).into(),
        };
        let rank = (self.dice.below(2) > 0).then(|| DpRank(self.dice.below(3) as u16));
        Explicit { worker, rank }
    }

    fn constraints(&mut self) -> Constraints {
        let (mut workers, mut labels) = (None, Vec::new());
        if self.dice.below(2) > 0 {
            let some = (0..WORKERS).rev().filter(|_| self.dice.below(2) > 0);
            workers = Some(some.map(|i| format!("w{i}")).collect());
        }
        if self.dice.below(2) > 0 {
            let (key, value) = one(&mut self.dice, &[("zone", "a"), ("zone", "b"), ("kind", "a")]);
            labels.push((key.into(), value.into()));
        }
        Constraints::new(workers, labels)
    }

    pub(super) fn admit(&mut self) {
        let Some((meta, ask)) = self.new_ask() else { return };
        self.requests += 1;
        if self.dice.below(8) == 0 {
            self.admit_as_foreseen(meta, ask);
        } else {
            self.ask(meta, ask);
        }
    }

    pub(super) fn preview(&mut self) {
        let Some((meta, ask)) = self.new_ask() else { return };
        self.foresee(&meta, &ask);
    }

    /// A preview changes nothing, and says what is due.
    fn foresee(&mut self, meta: &Meta, ask: &Ask) -> Preview {
        // What is over by now is known to be over.
        self.tick();
        self.drain();
        let before = self.core.partitions();
        let preview = self.core.preview(self.now, ask).unwrap();
        let stats = |views: Vec<homing_core::core::PartitionView>| {
            views.into_iter().map(|v| v.stats).collect::<Vec<_>>()
        };
        assert_eq!(stats(self.core.partitions()), stats(before), "R16");
        assert_eq!(self.core.poll_output(), None, "R16: nobody is woken");
        self.log(format_args!("preview: {:?} {}", preview.target, preview.outcome));
        let due = self.due(meta, None);
        match &due.verdict {
            Verdict::Go(to, _) => {
                assert!(preview.target.is_some_and(|t| to.contains(&t)), "{due:?} {preview:?}");
            }
            Verdict::Wait(_) => assert!(preview.waits && preview.target.is_none(), "{preview:?}"),
            Verdict::GiveUp => unreachable!("told as a refusal"),
            Verdict::Refuse(cause, bound) => {
                let shown = preview.refusal.map(|r| (r.cause, r.bound));
                assert_eq!(shown, Some((*cause, *bound)));
            }
        }
        assert_eq!(preview.waits, matches!(due.verdict, Verdict::Wait(_)));
        assert_eq!(preview.refusal.is_some(), matches!(due.verdict, Verdict::Refuse(..)));
        if !matches!(&due.verdict, Verdict::Refuse(cause, _) if due.home.is_none() && is_own(*cause))
        {
            assert_eq!(preview.home, due.home);
        }
        preview
    }

    /// What a preview says is what happens next.
    fn admit_as_foreseen(&mut self, meta: Meta, ask: Ask) {
        let preview = self.foresee(&meta, &ask);
        let (serial, pool) = (meta.serial, meta.pool);
        let full = self.settings.affinity.max_sessions;
        let lost = meta.session.is_some_and(|s| self.shadows[pool].lost.contains(&s.key));
        self.ask(meta, ask);
        let granted = self.grants.last().filter(|(m, _)| m.serial == serial);
        assert_eq!(granted.map(|(_, g)| g.target()), preview.target, "R16");
        if granted.is_none() || self.dice.below(2) == 0 {
            return;
        }
        let (meta, grant) = self.grants.pop().unwrap();
        self.look_at(meta, grant);
        let (meta, checked) = self.checked.pop().unwrap();
        assert_eq!(meta.serial, serial, "it can go at once");
        let outcome = self.commit(meta, checked);
        self.saw(format_args!("foreseen: {outcome}"));
        match (preview.outcome, outcome) {
            (foreseen, outcome) if foreseen == outcome => {}
            // The third in a row; what another request has lost; no room after all.
            (Outcome::Spilled, Outcome::Rebound) => {}
            (Outcome::New | Outcome::Joined, Outcome::Rebound) => assert!(lost),
            (Outcome::New | Outcome::Joined | Outcome::Rebound, Outcome::UnboundFull) => {
                // A group may have ended with it.
                assert!(self.shadows[pool].bound.len() + 1 >= full);
            }
            // The first of those who were to run at the same place.
            (Outcome::Joined, Outcome::New) => {}
            (foreseen, outcome) => panic!("{foreseen} was foreseen, {outcome} came"),
        }
    }
}

/// Whether it is the request's own fault, whatever its session says.
fn is_own(cause: Cause) -> bool {
    use Cause::{BadRank, NotAllowed, RankRequired, UnknownWorker};
    matches!(cause, UnknownWorker | BadRank | NotAllowed | RankRequired)
}
