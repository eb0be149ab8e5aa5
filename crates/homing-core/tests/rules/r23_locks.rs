//! R23: what is to be told to other routers is polled by a thread of its own, while the fleet changes and
//! requests run on others. No call waits for one lock with another one in its hand, unless all take them
//! in the same order.

use super::world::*;
use homing_core::ask::{Admission, Dispatch};
use homing_core::fleet::{FleetChange, Probe, ServedName, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Partitions that are made while another thread polls.
const ROUNDS: usize = 256;
/// A minute is an age for what takes a fraction of a second: they wait for each other.
const AGE: Duration = Duration::from_secs(60);

#[test]
fn r23_polling_beside_a_growing_fleet_comes_to_an_end() {
    let mut s = settings();
    s.affinity.shared = true;
    let w = World::with(s, 1);
    let (now, ask) = (w.now, w.hard("s"));
    let (core, grown) = (Arc::new(w.core), Arc::new(AtomicBool::new(false)));
    let (done, ends) = mpsc::channel();
    // Not joined: threads that wait for each other would keep the test from saying so.
    let grows = {
        let (core, grown, done) = (core.clone(), grown.clone(), done.clone());
        move || {
            for i in 0..ROUNDS {
                let name = format!("grown{i}");
                let spec = WorkerSpec::new(&name, "http://grown");
                core.handle_fleet(now, FleetChange::Register(spec)).unwrap();
                let id = core.worker_named(&name).unwrap();
                let served = vec![ServedName { name, adapter: false }];
                core.handle_fleet(now, FleetChange::Serves(id, served)).unwrap();
                core.handle_fleet(now, FleetChange::Probed(id, Probe::Good)).unwrap();
            }
            grown.store(true, Ordering::Release);
            done.send(0).unwrap();
        }
    };
    let polls = {
        let core = core.clone();
        move || {
            let mut told = 0;
            loop {
                let last = grown.load(Ordering::Acquire);
                for _ in 0..8 {
                    let mut ask = ask.clone();
                    ask.prompt = Prompt::of_length(10);
                    let Admission::Granted(grant) = core.admit(now, ask) else { panic!("busy") };
                    let Dispatch::Go(checked) = core.check_dispatch(now, grant) else {
                        panic!("it has not moved")
                    };
                    let (live, _) = core.commit(now, checked);
                    core.finish(now, live);
                }
                told += core.publications(Time::FAR, usize::MAX).len();
                if last {
                    break;
                }
            }
            done.send(told).unwrap();
        }
    };
    std::thread::spawn(polls);
    std::thread::spawn(grows);
    let end = || ends.recv_timeout(AGE).expect("they wait for each other, or one has failed");
    let told: usize = end() + end();
    assert!(told >= 16, "{told}");
    assert_eq!(core.partitions().len(), ROUNDS + 1);
    assert!(core.publications(Time::FAR, 1).is_empty());
    core.check();
}
