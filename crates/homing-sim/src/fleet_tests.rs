//! Whole runs: what routing is worth in them, that they repeat, and what stops one.

use super::*;
use crate::engine::CacheConfig;
use crate::plan::{PlannedSession, PlannedTurn};
use crate::text::{Bytes, Words};
use crate::workload::{Params, Workload};
use homing_core::dice::SplitMix;

/// Keeps each session where it began, and spreads sessions evenly: about the best that can be done.
#[derive(Default)]
struct Sticky {
    engines: usize,
    first_tokens: u64,
    done: u64,
    kv_batches: u64,
    last: Time,
}

impl Sticky {
    fn saw(&mut self, now: Time) {
        assert!(now >= self.last, "time went back");
        self.last = now;
    }
}

impl Router for Sticky {
    fn route(&mut self, now: Time, ask: &Ask<'_>) -> usize {
        self.saw(now);
        assert_eq!(ask.prompt.tokens as usize, ask.tokens.len());
        ask.session % self.engines
    }

    fn on_kv(&mut self, now: Time, _engine: usize, events: Vec<KvEvent>) {
        self.saw(now);
        assert!(!events.is_empty());
        self.kv_batches += 1;
    }

    fn on_first_token(&mut self, now: Time, _request: RequestId, _cached: usize) {
        self.saw(now);
        self.first_tokens += 1;
    }

    fn on_done(&mut self, now: Time, _request: RequestId) {
        self.saw(now);
        self.done += 1;
    }
}

fn plan(sessions: usize) -> Plan {
    let params = Params { sessions, ..Params::default() };
    let words = Words::of(&Bytes).expect("cannot fail");
    Plan::new(&Workload::generate(&params, 3, &words), &words, &Bytes).expect("cannot fail")
}

/// A fleet whose caches hold a fair share of the plan and a quarter more.
fn config(plan: &Plan, engines: usize) -> FleetConfig {
    let blocks = plan.distinct_blocks(16) * 5 / 4 / engines;
    let cache = CacheConfig { block_size: 16, blocks: blocks as u32, seed: 0 };
    FleetConfig { engines, engine: EngineConfig { cache, ..EngineConfig::default() } }
}

#[test]
fn staying_at_home_comes_near_the_best_and_random_does_not() {
    let plan = plan(24);
    let config = config(&plan, 4);
    let mut sticky = Sticky { engines: 4, ..Sticky::default() };
    let home = run(&config, &plan, &mut sticky).expect("runs");
    let random = run(&config, &plan, &mut RandomRouter::new(4, SplitMix::new(1))).expect("runs");
    assert_eq!(home.turns, plan.turns().count() as u64);
    assert_eq!((sticky.first_tokens, sticky.done), (home.turns, home.turns));
    assert!(sticky.kv_batches > 0);
    assert_eq!(home.turns_per_worker.iter().sum::<u64>(), random.turns);
    assert_eq!(home.ttft.count(), home.turns as f64);
    assert!(home.best_hit_rate > 0.8, "{}", home.best_hit_rate);
    assert!(home.hit_rate <= home.best_hit_rate);
    assert!(home.hit_rate > home.best_hit_rate - 0.05, "{} {}", home.hit_rate, home.best_hit_rate);
    assert!(random.hit_rate < home.hit_rate - 0.2, "{} {}", random.hit_rate, home.hit_rate);
    let p50 = |report: &Report| report.ttft.quantile(0.5).expect("turns were served");
    assert!(p50(&home) < p50(&random), "{} {}", p50(&home), p50(&random));
}

#[test]
fn one_engine_with_room_for_everything_reaches_the_best_rate_exactly() {
    // One session after the other, so that nobody asks for a block that is still being computed.
    let mut plan = plan(6);
    for (i, session) in plan.sessions.iter_mut().enumerate() {
        session.start = Duration::from_secs(100_000 * i as u64);
    }
    let report = run(&config(&plan, 1), &plan, &mut Sticky { engines: 1, ..Sticky::default() })
        .expect("runs");
    assert!((report.hit_rate - report.best_hit_rate).abs() < 1e-12);
}

#[test]
fn equal_inputs_give_equal_runs() {
    let plan = plan(8);
    let config = config(&plan, 3);
    let once = || {
        let mut router = RandomRouter::new(3, SplitMix::new(9));
        format!("{:?}", run(&config, &plan, &mut router).expect("runs"))
    };
    assert_eq!(once(), once());
}

#[test]
fn what_cannot_be_played_is_named() {
    let turn = PlannedTurn {
        think: Duration::ZERO,
        prompt: (0..100).collect::<Vec<u32>>().into(),
        output: vec![1],
    };
    let session = PlannedSession { id: "long".into(), start: Duration::ZERO, turns: vec![turn] };
    let plan = Plan { sessions: vec![session] };
    let cache = CacheConfig { block_size: 16, blocks: 4, seed: 0 };
    let config =
        FleetConfig { engines: 1, engine: EngineConfig { cache, ..EngineConfig::default() } };
    let refused = run(&config, &plan, &mut RandomRouter::new(1, SplitMix::new(1)));
    let message = refused.expect_err("64 tokens fit").to_string();
    assert!(
        message.starts_with("engine 0 refused turn 0 of long: the prompt has 100"),
        "{message}"
    );
    let lost = run(&config, &plan, &mut Beyond);
    assert!(matches!(lost, Err(FleetError::NoSuchEngine { engine: 7, engines: 1, .. })));
    let none = FleetConfig { engines: 0, ..config };
    assert_eq!(
        run(&none, &plan, &mut RandomRouter::new(1, SplitMix::new(1))).err(),
        Some(FleetError::NoEngines)
    );
}

/// A router that is wrong.
struct Beyond;

impl Router for Beyond {
    fn route(&mut self, _now: Time, _ask: &Ask<'_>) -> usize {
        7
    }
}
