//! Cancellation at every await of the shell, exhaustively: two requests and a changing fleet, in every
//! order of their steps, each request dropped at each point or never. The future is polled by hand and
//! only when it was woken, so a wake-up that gets lost shows as somebody who sleeps for ever.

use super::*;
use crate::journeys::{Journey, NARROW, Scene, scenes, turn};
use crate::testing::{ask, assert_quiet, register, settings, stats};
use homing_core::ask::{Explicit, Failure};
use homing_core::dice::{Dice, SplitMix};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Walks through all paths of choices, depth first.
#[derive(Default)]
struct Paths {
    path: Vec<(usize, usize)>,
    at: usize,
}

impl Paths {
    fn choose(&mut self, of: usize) -> usize {
        if self.at == self.path.len() {
            self.path.push((0, of));
        }
        let (chosen, known) = self.path[self.at];
        assert_eq!(known, of, "a run is the same up to its first other choice");
        self.at += 1;
        chosen
    }

    /// Goes on to the next path; false after the last.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, of)) = self.path.pop() {
            if chosen + 1 < of {
                self.path.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
    begun: bool,
}

#[derive(Clone, Copy)]
enum Step {
    Poll(usize),
    Drop(usize),
    Event,
}

/// Plays a scene in the order that is chosen.
fn play(scene: &Scene, settings: &Settings, mut choose: impl FnMut(usize) -> usize) {
    let shell = Shell::new(settings, &[7; 32]);
    for worker in scene.workers {
        register(&shell, worker);
    }
    let mut requests = scene.journeys.len() as u64;
    if scene.bound {
        let mut first = ask(&shell, "s");
        first.explicit = Some(Explicit { worker: scene.workers[0].into(), rank: None });
        let Admission::Granted(grant) = shell.core().admit(shell.now(), first) else { panic!() };
        let check = Granted::new(shell.clone(), grant).check();
        // Nothing is shared: it waits for nobody.
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(checked) = std::pin::pin!(check).poll(&mut cx) else { panic!("it waits") };
        drop(checked.unwrap().begin());
        requests += 1;
    }
    let mut tasks: Vec<Option<Task>> =
        scene.journeys.iter().map(|j| Some(task(*j, &shell))).collect();
    let mut events = scene.events.iter();
    loop {
        let mut steps = Vec::new();
        for (i, task) in tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            let woken = task.woken.0.load(Ordering::SeqCst);
            steps.extend(woken.then_some(Step::Poll(i)));
            // One that has not begun holds nothing.
            steps.extend(task.begun.then_some(Step::Drop(i)));
        }
        let asleep = steps.iter().all(|s| matches!(s, Step::Drop(_)));
        if !events.as_slice().is_empty() {
            steps.push(Step::Event);
        } else if scene.lively && asleep && !steps.is_empty() {
            panic!("nothing runs, nobody was woken, and somebody waits: {:?}", stats(&shell));
        }
        if steps.is_empty() {
            break;
        }
        match steps[choose(steps.len())] {
            Step::Event => events.next().unwrap().happen(&shell),
            Step::Drop(i) => tasks[i] = None,
            Step::Poll(i) => {
                let task = tasks[i].as_mut().unwrap();
                task.begun = true;
                task.woken.0.store(false, Ordering::SeqCst);
                let waker = Waker::from(task.woken.clone());
                if let Poll::Ready(()) = task.future.as_mut().poll(&mut Context::from_waker(&waker))
                {
                    tasks[i] = None;
                }
            }
        }
    }
    assert_quiet(&shell, requests);
    assert!(shell.sleepers.lock().is_empty(), "{:?}", shell.sleepers.lock());
}

fn task(journey: Journey, shell: &Arc<Shell>) -> Task {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    Task { future: Box::pin(journey.go(shell.clone())), woken, begun: false }
}

#[test]
fn r12_r13_whatever_is_dropped_wherever_releases_exactly_once() {
    for (name, scene) in scenes() {
        let (settings, mut paths, mut runs) = (settings(&scene.settings), Paths::default(), 0u32);
        loop {
            play(&scene, &settings, |of| paths.choose(of));
            runs += 1;
            if !paths.advance() {
                break;
            }
        }
        println!("{name}: {runs} runs");
        assert!(runs > 100, "{name}: {runs} runs are too few to have dropped anything everywhere");
    }
}

#[test]
fn r08_more_that_wait_than_can_be_enumerated_are_dropped_at_random() {
    let mut dice = SplitMix::new(41);
    let named = |session| Journey { worker: Some("a"), ..turn(session) };
    for (_, mut scene) in scenes() {
        scene.journeys.extend([turn("s"), named("u"), turn("")]);
        if !scene.settings.contains("queue.") {
            scene.settings.push_str(NARROW);
            // With a queue, who meets only overloaded workers waits for the clock.
            let full = |j: &Journey| j.fails.iter().any(|f| matches!(f, Failure::Overloaded(_)));
            scene.lively &= !scene.journeys.iter().any(full);
        }
        let settings = settings(&scene.settings);
        for _ in 0..400 {
            play(&scene, &settings, |of| dice.below(of));
        }
    }
}
