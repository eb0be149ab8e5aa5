//! What people and files do with sessions: one is removed; all are kept, part by part, while requests go
//! on (R25); and what was kept comes back in another process.

use super::{POOLS, SESSIONS, Storm};
use homing_core::SelectionCore;
use homing_core::affinity::saved::Kept;
use homing_core::ask::{Abandon, Admission, Ask, Cause, Session};
use homing_core::core::Cursor;
use homing_core::dice::Dice;
use homing_core::fleet::{FleetChange, Probe, ServedName};
use homing_core::hash::Prompt;
use homing_core::ids::{PartitionId, Role, SessionKey, Target, WorkerId};
use homing_core::settings::Mode;
use std::collections::BTreeMap;

/// A snapshot that is being made.
#[derive(Default)]
pub(super) struct Walk {
    cursor: Cursor,
    /// The bindings that stood when it began.
    began_with: BTreeMap<(usize, SessionKey), u64>,
    kept: Vec<(usize, Kept)>,
}

impl Storm {
    pub(super) fn unbind(&mut self) {
        let pool = self.dice.below(2);
        let key = SessionKey(self.dice.roll() as u128 % SESSIONS);
        let Some(p) = self.partitions[pool] else { return };
        let bound = self.shadows[pool].get(self.now, key).is_some();
        assert_eq!(self.core.unbind(self.now, p, key), bound);
        self.shadows[pool].bound.remove(&key);
        self.log(format_args!("unbound {key:?}"));
    }

    fn pool_of(&self, p: PartitionId) -> usize {
        self.partitions.iter().position(|known| *known == Some(p)).unwrap()
    }

    /// One more part of a snapshot.
    pub(super) fn snapshot(&mut self) {
        let now = self.now;
        let mut walk = self.walk.take().unwrap_or_else(|| {
            let all = self.shadows.iter().enumerate().flat_map(|(pool, shadow)| {
                let keys = shadow.bound.keys().filter(move |k| shadow.get(now, **k).is_some());
                keys.map(move |key| ((pool, *key), shadow.bound[key].number))
            });
            Walk { began_with: all.collect(), ..Walk::default() }
        });
        if let Some(part) = self.core.snapshot(now, &mut walk.cursor) {
            for (p, kept) in part {
                let pool = self.pool_of(p);
                let b = self.shadows[pool].get(now, kept.key).expect("what isn't bound isn't kept");
                let since = if b.idle() { b.since } else { now };
                assert_eq!((kept.target, kept.version, kept.last), (b.target, b.version, b.last));
                assert_eq!(kept.idle_since, since);
                walk.kept.push((pool, kept));
            }
            self.walk = Some(walk);
            return;
        }
        for ((pool, key), number) in &walk.began_with {
            if self.shadows[*pool].get(now, *key).is_some_and(|b| b.number == *number) {
                let met = walk.kept.iter().filter(|(p, k)| (p, &k.key) == (pool, key)).count();
                assert_eq!(met, 1, "R25: bound throughout, and kept {met} times");
                *self.seen.entry("kept".into()).or_default() += 1;
            }
        }
        self.log(format_args!("kept {}", walk.kept.len()));
    }

    /// The router ends here and begins anew with what is kept; this storm goes on without a word of it.
    pub(super) fn restart(&mut self) {
        let now = self.now;
        let mut all = Vec::new();
        let mut cursor = Cursor::default();
        while let Some(part) = self.core.snapshot(now, &mut cursor) {
            all.extend(part);
        }
        let next = SelectionCore::new(self.settings.clone(), self.seed);
        let lives = self.core.lives();
        let promised: BTreeMap<WorkerId, WorkerId> =
            lives.iter().map(|l| (l.id, next.promise_worker(&l.name, l.started))).collect();
        // What lived at a worker that has departed since is nobody's, and isn't brought back.
        let views = self.core.partitions();
        let mut came: Vec<(usize, PartitionId, Kept)> = Vec::new();
        for (p, kept) in &all {
            let Some(worker) = promised.get(&kept.target.worker).copied() else { continue };
            let home = next.promise_partition(&views[p.0 as usize].pool, Role::Aggregated).unwrap();
            let kept = Kept { target: Target { worker, ..kept.target }, ..*kept };
            let back = next.restore(now, home, &[kept]);
            assert_eq!(back, usize::from(!kept.last), "R25: what had not ended is back");
            if back > 0 {
                came.push((self.pool_of(*p), home, kept));
            }
        }
        next.restored();
        next.check();
        for (_, p, kept) in &came {
            let view = next.session(now, *p, kept.key).unwrap();
            assert_eq!((view.target, view.version), (kept.target, kept.version));
            assert_eq!((view.leases, view.idle), (0, now.since(kept.idle_since)));
        }
        let shown: usize = next.partitions().iter().map(|v| v.stats.bindings).sum();
        assert_eq!(shown, came.len());
        self.come_back(&next, &promised);
        came.iter().for_each(|(pool, p, kept)| self.next_turn(&next, *pool, *p, kept));
        // What is left of their idle time passes.
        let mut now = now;
        while let Some(due) = next.poll_timeout() {
            now = now.max(due);
            next.handle_timeout(now);
            next.check();
        }
        assert!(next.partitions().iter().all(|v| v.stats.bindings + v.stats.leases == 0));
        self.log(format_args!("a restart brings {} back", came.len()));
        *self.seen.entry("back after a restart".into()).or_default() += came.len() as u64;
    }

    /// The workers register with the new process: each is who the kept bindings mean.
    fn come_back(&self, next: &SelectionCore, promised: &BTreeMap<WorkerId, WorkerId>) {
        for e in &self.engines {
            let Some(id) = e.id else { continue };
            let is = promised[&id];
            next.handle_fleet(self.now, FleetChange::Register(e.spec())).unwrap();
            assert_eq!(next.worker_named(&e.name), Some(is), "R25: who it was");
            next.handle_fleet(self.now, FleetChange::Ranks(is, e.ranks)).unwrap();
            next.check();
        }
    }

    /// A kept session's next turn: refused until its worker is known again, and then at home.
    fn next_turn(&self, next: &SelectionCore, pool: usize, p: PartitionId, kept: &Kept) {
        let now = self.now;
        let hard = |name| {
            let route = next.route(name).unwrap();
            assert_eq!(route.partition, p, "R25: where it was");
            let mut ask = Ask::new(p, route.name, Prompt::default());
            ask.session = Some(Session::new(kept.key, Mode::Hard));
            next.admit(now, ask)
        };
        let known = next.workers().into_iter().find(|v| v.info.id == kept.target.worker).unwrap();
        // Its rank may have fallen out of range since it was bound.
        let e = self.engines.iter().find(|e| *e.name == *known.info.spec.name).unwrap();
        let there = kept.target.rank.is_none_or(|rank| e.ranks.has(rank));
        if known.models.is_empty() {
            // Where nobody serves the model yet it is not even known whose request it is.
            // And a rank that it hasn't any more is no home.
            if next.route(POOLS[pool]).is_ok() && there {
                let Admission::Refused(refusal) = hard(POOLS[pool]) else {
                    panic!("not known yet")
                };
                assert_eq!((refusal.cause, refusal.bound), (Cause::TargetUnavailable, true));
            }
            assert!(next.session(now, p, kept.key).is_some(), "not a departure");
            let name = ServedName { name: POOLS[pool].into(), adapter: false };
            let id = kept.target.worker;
            next.handle_fleet(now, FleetChange::Serves(id, vec![name])).unwrap();
            next.handle_fleet(now, FleetChange::Probed(id, Probe::Good)).unwrap();
        }
        if next.route(POOLS[pool]).is_err() {
            // Its worker serves another pool by now, and nobody else serves this one yet.
            return;
        }
        let Admission::Granted(grant) = hard(POOLS[pool]) else { panic!("its home is back") };
        assert!(!there || kept.target.admits(grant.target()), "R25: at home");
        next.abandon(now, grant, Abandon::NotDispatched);
    }
}
