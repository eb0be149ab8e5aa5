//! The shell's guards on several threads, under shuttle: it runs them one at a time and chooses at each
//! point who goes on, at random or by priorities that change a few times (PCT, which finds every bug that
//! needs few switches with a known chance). Locks of the core are held without a point in between, so
//! here a thread is switched where it could see another's doings: before each call of the core, each
//! pump, each look at the sleepers. Who is never woken is a deadlock, which shuttle reports.

use super::*;
use crate::interleave;
use crate::journeys::{Scene, scenes, turn};
use crate::testing::{ask, assert_quiet, register, settings};
use homing_core::ask::Explicit;
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::pin::{Pin, pin};
use std::task::Poll;

const RUNS: usize = 150;

/// Polls so many times, and then drops it wherever it is; `usize::MAX`: polls when it is woken, to its end.
async fn dropped_after(future: impl Future<Output = ()>, mut polls: usize) {
    let mut future = Some(Box::pin(future));
    std::future::poll_fn(move |cx| {
        let Some(going) = future.as_mut().filter(|_| polls > 0) else {
            future = None;
            return Poll::Ready(());
        };
        let polled = Pin::new(going).poll(cx);
        if polls < usize::MAX {
            polls -= 1;
            // It may be asleep, and is to be dropped all the same.
            cx.waker().wake_by_ref();
        }
        polled
    })
    .await;
}

fn play(scene: &Scene, settings: &Settings) {
    let shell = Shell::new(settings, &[7; 32]);
    for worker in scene.workers {
        register(&shell, worker);
    }
    let mut requests = scene.journeys.len() as u64;
    if scene.bound {
        let mut first = ask(&shell, "s");
        first.explicit = Some(Explicit { worker: scene.workers[0].into(), rank: None });
        let granted = shuttle::future::block_on(pin!(shell.admit(first))).unwrap();
        let checked = shuttle::future::block_on(pin!(granted.check())).unwrap();
        drop(checked.begin());
        requests += 1;
    }
    let mut threads = Vec::new();
    for journey in scene.journeys.clone() {
        let shell = shell.clone();
        // Half of them go their whole way, where it has an end.
        let patient = scene.lively && shuttle::rand::thread_rng().gen_bool(0.5);
        let polls = if patient { usize::MAX } else { shuttle::rand::thread_rng().gen_range(1..9) };
        threads.push(shuttle::thread::spawn(move || {
            shuttle::future::block_on(dropped_after(journey.go(shell), polls));
        }));
    }
    let (theirs, events) = (shell.clone(), scene.events.clone());
    threads.push(shuttle::thread::spawn(move || {
        for event in events {
            event.happen(&theirs);
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    assert_quiet(&shell, requests);
    assert!(shell.sleepers.lock().is_empty(), "{:?}", shell.sleepers.lock());
}

fn explore<S: Scheduler + 'static>(scheduler: impl Fn() -> S) {
    for (name, mut scene) in scenes() {
        scene.journeys.push(turn("s"));
        let settings = settings(&scene.settings);
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 20;
        let runner = shuttle::Runner::new(scheduler(), config);
        interleave::modelled(|| {
            let runs = runner.run(move || play(&scene, &settings));
            assert_eq!(runs, RUNS, "{name}");
        });
    }
}

#[test]
fn r13_guards_on_threads_release_once_in_any_order() {
    explore(|| RandomScheduler::new_from_seed(41, RUNS));
}

#[test]
fn r13_guards_on_threads_release_once_by_priorities() {
    explore(|| PctScheduler::new_from_seed(41, 3, RUNS));
}
