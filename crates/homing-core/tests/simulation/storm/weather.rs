//! What befalls the fleet: workers come and go, live and die, fill and flush their caches; time passes.

use super::super::engine::{FAMILIES, LONGEST};
use super::{NAMES, POOLS, Storm, WORKERS, any};
use homing_core::dice::Dice;
use homing_core::fleet::{FleetChange, FleetEvent, Probe, ServedName, WorkerSpec};
use homing_core::ids::DpRank;
use homing_core::index::naive::Applied;
use std::collections::BTreeMap;
use std::time::Duration;

impl Storm {
    pub(super) fn register(&mut self, i: usize) {
        let name = self.engines[i].name.as_str();
        let spec = WorkerSpec { name: name.into(), url: name.into(), labels: BTreeMap::new() };
        self.change(FleetChange::Register(spec));
        let id = self.core.worker_named(&self.engines[i].name);
        let e = &mut self.engines[i];
        (e.id, e.placed, e.held) = (id, None, Default::default());
    }

    /// It tells what it serves: nearly always its pool's names, with or without the adapter.
    pub(super) fn serve(&mut self, i: usize) {
        let Some(id) = self.engines[i].id else { return };
        let stays = self.engines[i].placed.filter(|_| self.dice.below(4) > 0);
        let pool = stays.unwrap_or_else(|| usize::from(self.dice.below(4) == 0));
        let mut names = vec![NAMES[3 * pool]];
        names.extend((1..3).filter(|_| self.dice.below(4) > 0).map(|k| NAMES[3 * pool + k]));
        let served = |n: &&str| ServedName { name: (*n).into(), adapter: n.ends_with("-lora") };
        let serves: Vec<_> = names.iter().map(served).collect();
        self.change(FleetChange::Serves(id, serves.clone()));
        self.partitions[pool] = self.core.route(POOLS[pool]).ok().map(|r| r.partition);
        let e = &mut self.engines[i];
        if e.placed != Some(pool) {
            e.held = Default::default();
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
    }

    /// New lives have new ids and empty caches.
    pub(super) fn note(&mut self, events: &[FleetEvent]) {
        for event in events {
            if let FleetEvent::Removed(old) | FleetEvent::Reborn { old, .. } = event {
                self.ghosts.push(*old);
            }
            if let FleetEvent::Reborn { old, new } = event {
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
        match (self.engines[i].id, self.dice.below(20)) {
            (None, _) => {
                self.register(i);
                self.serve(i);
                probe(self, Probe::Good);
            }
            (Some(_), 0) => self.register(i),
            (Some(id), 1) => {
                self.change(FleetChange::Remove(id));
                self.engines[i].id = None;
            }
            (Some(id), 2) => self.change(FleetChange::Restarted(id)),
            (Some(_), 3) => self.probe(i, Probe::Refused),
            (Some(_), 4..=6) => probe(self, Probe::Bad),
            (Some(_), 7..=8) => self.serve(i),
            (Some(_), _) => (0..WORKERS).for_each(|i| self.probe(i, Probe::Good)),
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
        let us = match self.dice.below(20) {
            0 => 60_000,
            1..=3 => match self.core.poll_timeout() {
                Some(due) => due.since(self.now).as_micros() as u64,
                None => 1,
            },
            4..=10 => self.dice.below(10_000) as u64,
            _ => self.dice.below(100) as u64,
        };
        self.now = self.now + Duration::from_micros(us);
        if self.dice.below(2) > 0 {
            self.tick();
        }
    }

    pub(super) fn tick(&mut self) {
        self.core.handle_timeout(self.now);
        self.log("tick");
    }
}
