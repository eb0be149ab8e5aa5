//! What engines' pages of metrics come to, probe by probe.

use super::discovery::static_list;
use super::tests::{Engine, World};
use crate::testing::eventually;
use homing_core::load::report::Reported;

/// A router that follows one worker of so many ranks.
fn follow(engine: &Engine, ranks: u16, extra: &str) -> World {
    let world = World::empty(extra, |_| None);
    let mut worker = engine.worker("w");
    worker.dp_size = Some(ranks);
    world.life.spawn(world.fleet.clone().follow(static_list(vec![worker])));
    world
}

fn says(engine: &Engine, status: u16, body: &str) {
    engine.say(|s| s.pages = vec![("/metrics", status, body.to_owned())]);
}

fn reported(world: &World) -> Option<Reported> {
    world.shell.core().workers().first()?.part.reported
}

async fn is_reported(world: &World, running: u32, waiting: u32) -> Reported {
    let is = |r: Reported| (r.report.running, r.report.waiting) == (running, waiting);
    eventually(&format!("{running} run and {waiting} wait"), || reported(world).is_some_and(is))
        .await;
    reported(world).unwrap()
}

#[tokio::test]
async fn every_probe_brings_a_report_and_the_next_one_replaces_it() {
    let engine = Engine::up();
    says(&engine, 200, "vllm:num_requests_running{engine=\"0\"} 3\nvllm:kv_cache_usage_perc 0.5\n");
    let world = follow(&engine, 1, "");
    let said = is_reported(&world, 3, 0).await;
    assert_eq!((said.report.kv_usage, said.foreign), (None, 3), "usage of no rank that runs any");
    says(
        &engine,
        200,
        "sglang:num_running_reqs 1\nsglang:num_queue_reqs 4\nsglang:token_usage 0.25\n",
    );
    let said = is_reported(&world, 1, 4).await;
    assert_eq!((said.report.kv_usage, said.foreign), (Some(0.25), 5));
    world.end().await;
}

#[tokio::test]
async fn each_rank_is_told_apart_where_it_is_known() {
    let engine = Engine::up();
    let page: String =
        (0..4).map(|r| format!("vllm:num_requests_running{{engine=\"{r}\"}} {r}\n")).collect();
    says(&engine, 200, &page);
    for (ranks, running) in [(1, 6), (2, 1), (4, 6)] {
        let world = follow(&engine, ranks, "");
        is_reported(&world, running, 0).await;
        world.end().await;
    }
}

#[tokio::test]
async fn f35_an_engine_that_falls_silent_is_forgotten_and_one_without_metrics_seldom_asked() {
    let engine = Engine::up();
    says(&engine, 200, "vllm:num_requests_running 3\n");
    let world = follow(&engine, 1, "");
    is_reported(&world, 3, 0).await;
    says(&engine, 404, "");
    let asked = engine.says.lock().asked;
    // Every twelfth probe it is asked what it serves, and with that for metrics, too.
    eventually("many probes later", || engine.says.lock().asked >= asked + 2).await;
    let before = engine.says.lock().asked_metrics;
    eventually("many more", || engine.says.lock().asked >= asked + 5).await;
    let more = engine.says.lock().asked_metrics - before;
    assert!((1..=12).contains(&more), "asked {more} times in some 36 probes");
    world.shell.core().handle_timeout(world.shell.now());
    assert_eq!(reported(&world), None);
    world.end().await;
}
