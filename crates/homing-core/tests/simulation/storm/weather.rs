//! What befalls the fleet: workers come and go, live and die, drain, get other ranks, fill and flush
//! their caches; time passes.

use super::super::engine::{FAMILIES, LONGEST};
use super::{NAMES, POOLS, Storm, WORKERS, any, one};
use homing_core::dice::Dice;
use homing_core::fleet::{
    Cache, CacheSource, Drain, FleetChange, FleetEvent, Probe, Ranks, ServedName,
};
use homing_core::hash::TEXT_BLOCK;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::naive::Applied;
use std::time::Duration;

impl Storm {
    /// Another registration, with a mark of its own.
    pub(super) fn register(&mut self, i: usize) {
        let ranks = self.ranks();
        let e = &mut self.engines[i];
        e.generation += 1;
        e.zone = one(&mut self.dice, &["a", "b"]);
        (e.listed, e.ranks, e.drain) = (ranks, ranks, None);
        let spec = e.spec();
        self.change(FleetChange::Register(spec));
        let e = &mut self.engines[i];
        (e.id, e.placed, e.held) = (self.core.worker_named(&e.name), None, Default::default());
    }

    /// Discovery lists it again: the same life, perhaps with other labels, or other ranks.
    fn list_again(&mut self, i: usize) {
        let ranks = self.ranks();
        let e = &mut self.engines[i];
        if self.dice.below(4) == 0 {
            e.zone = one(&mut self.dice, &["a", "b"]);
        }
        if self.dice.below(4) == 0 && e.listed != ranks {
            (e.listed, e.ranks) = (ranks, ranks);
        }
        let (id, spec) = (e.id, e.spec());
        self.change(FleetChange::Register(spec));
        assert_eq!(self.core.worker_named(&self.engines[i].name), id, "a re-list is no departure");
    }

    fn ranks(&mut self) -> Ranks {
        Ranks::new(self.dice.below(4) as u16 / 3, 1 + self.dice.below(5) as u16 % 3)
    }

    fn drain_worker(&mut self, i: usize, id: WorkerId) {
        let until = Duration::from_micros(self.dice.below(30_000) as u64);
        let moves_at = one(&mut self.dice, &[None, Some(self.now), Some(self.now + until)]);
        let undrains = self.engines[i].drain.is_some() && self.dice.below(3) > 0;
        let drain = (!undrains).then_some(Drain { moves_at });
        self.engines[i].drain = drain;
        self.change(FleetChange::Drain(id, drain));
    }

    /// It tells what it serves: nearly always its pool's names, with or without the adapter.
    pub(super) fn serve(&mut self, i: usize) {
        let Some(id) = self.engines[i].id else { return };
        let stays = self.engines[i].placed.filter(|_| self.dice.below(8) > 0);
        let pool = stays.unwrap_or_else(|| usize::from(self.dice.below(3) == 0));
        let mut names = vec![NAMES[3 * pool]];
        names.extend((1..3).filter(|_| self.dice.below(8) > 0).map(|k| NAMES[3 * pool + k]));
        let served = |n: &&str| ServedName { name: (*n).into(), adapter: n.ends_with("-lora") };
        let serves: Vec<_> = names.iter().map(served).collect();
        self.change(FleetChange::Serves(id, serves.clone()));
        use CacheSource::{Events, Nothing, Routed};
        let source = one(&mut self.engine_dice, &[Events, Events, Routed, Nothing]);
        let capacity = one(&mut self.engine_dice, &[None, Some(8 * u64::from(TEXT_BLOCK))]);
        self.change(FleetChange::Cache(id, Cache { source, capacity }));
        self.partitions[pool] = self.core.route(POOLS[pool]).ok().map(|r| r.partition);
        let e = &mut self.engines[i];
        if e.placed != Some(pool) {
            e.held = Default::default();
            self.shed.iter_mut().for_each(|shed| _ = shed.remove(&id));
        }
        (e.serves, e.placed) = (serves, Some(pool));
    }

    pub(super) fn probe(&mut self, i: usize, probe: Probe) {
        if let Some(id) = self.engines[i].id {
            self.change(FleetChange::Probed(id, probe));
        }
    }

    pub(super) fn change(&mut self, change: FleetChange) {
        let line = format!("{change:?}");
        let events = self.core.handle_fleet(self.now, change).unwrap();
        self.log(format_args!("{line} -> {events:?}"));
        self.note(&events);
        for pool in 0..2 {
            self.weigh(pool, None);
        }
    }

    /// New lives have new ids and empty caches.
    pub(super) fn note(&mut self, events: &[FleetEvent]) {
        for event in events {
            if let FleetEvent::Removed(old) | FleetEvent::Reborn { old, .. } = event {
                self.ghosts.push(*old);
                self.shed.iter_mut().for_each(|shed| _ = shed.remove(old));
            }
            if let FleetEvent::Reborn { old, new } = event {
                // The old one goes before the new one comes.
                (0..2).for_each(|pool| self.weigh(pool, Some(*new)));
                let e = self.engines.iter_mut().find(|e| e.id == Some(*old)).unwrap();
                (e.id, e.held) = (Some(*new), Default::default());
            }
        }
    }

    pub(super) fn fleet(&mut self) {
        let i = self.dice.below(WORKERS);
        let probe = |storm: &mut Self, probe| {
            for _ in 0..=storm.dice.below(3) {
                storm.probe(i, probe);
            }
        };
        match (self.engines[i].id, self.dice.below(34)) {
            (None, n) => {
                self.register(i);
                // Now and then it stays unknown for a while what it serves.
                if n > 3 {
                    self.serve(i);
                }
                probe(self, Probe::Good);
            }
            (Some(_), 0) => self.register(i),
            (Some(id), 1) => {
                self.change(FleetChange::Remove(id));
                self.engines[i].id = None;
            }
            (Some(id), 2) => self.change(FleetChange::Restarted(id)),
            (Some(id), 3) => {
                let at = self.dice.below(2) as u64;
                self.change(FleetChange::Started(id, at));
            }
            (Some(_), 4) => self.probe(i, Probe::Refused),
            (Some(_), 5..=7) => probe(self, Probe::Bad),
            (Some(_), 8..=9) => self.serve(i),
            (Some(id), 10) => self.change(FleetChange::Unsure(id)),
            (Some(_), 11..=12) => self.list_again(i),
            (Some(id), 13..=14) => {
                let ranks = self.ranks();
                self.engines[i].ranks = ranks;
                self.change(FleetChange::Ranks(id, ranks));
            }
            (Some(id), 15..=17) => self.drain_worker(i, id),
            (Some(_), _) => self.fine(),
        }
    }

    /// The sun comes out: all are up, and most take new work.
    fn fine(&mut self) {
        for i in 0..WORKERS {
            self.probe(i, Probe::Good);
            let Some(id) = self.engines[i].id.filter(|_| self.dice.below(4) > 0) else { continue };
            if self.engines[i].drain.take().is_some() {
                self.change(FleetChange::Drain(id, None));
            }
        }
    }

    pub(super) fn cache(&mut self) {
        let i = self.dice.below(WORKERS);
        let e = &mut self.engines[i];
        let (Some(id), Some(_)) = (e.id, e.placed) else { return };
        let event = match self.dice.below(10) {
            0 => Some(e.flush()),
            _ => {
                let family = self.dice.below(FAMILIES as usize) as u32;
                e.fill(family, self.dice.below(LONGEST as usize + 1) as u32)
            }
        };
        let Some(event) = event else { return };
        // Now and then one is late: its worker's life has ended.
        if let Some(g) = any(&mut self.dice, &self.ghosts) {
            let ignored = |_: &_, applied| assert_eq!(applied, Applied::Ignored);
            let late = std::slice::from_ref(&event);
            self.core.handle_kv(self.now, self.ghosts[g], DpRank(0), late, ignored);
        }
        self.core.handle_kv(self.now, id, DpRank(0), &[event], |_, applied| {
            assert_eq!(applied, Applied::Yes);
        });
        let held = self.engines[i].held;
        self.log(format_args!("cache of {id:?}: {held:?}"));
    }

    pub(super) fn pass(&mut self) {
        let us = match self.dice.below(24) {
            0 => 60_000,
            1..=4 => match self.core.poll_timeout() {
                Some(due) => due.since(self.now).as_micros() as u64,
                None => 1,
            },
            5 => 400_000,
            // Whoever is overloaded no longer is.
            6..=8 => self
                .shed
                .iter()
                .flat_map(|s| s.values())
                .max()
                .map_or(1, |until| until.since(self.now).as_micros() as u64),
            9..=13 => self.dice.below(10_000) as u64,
            _ => self.dice.below(100) as u64,
        };
        self.now = self.now + Duration::from_micros(us);
        if self.dice.below(2) > 0 {
            self.tick();
        }
    }

    pub(super) fn tick(&mut self) {
        self.core.handle_timeout(self.now);
        self.ticked = self.now;
        (0..2).for_each(|pool| self.time_told(pool, self.now));
        self.shed.iter_mut().for_each(|shed| shed.retain(|_, until| *until > self.now));
        self.log("tick");
    }
}
