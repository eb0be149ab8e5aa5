//! Replays of a small generated trace: the same twice, right beside what is known, and whole under failures.

use super::*;
use crate::trace::{self, Trace};
use crate::workload::{Params, Workload};
use homing_core::settings::{OnOverload, PolicyKind};
use std::fmt::Write as _;

/// Agent sessions as lines of `homing.trace.v1`: growing prompts, some with a common opener.
fn generated() -> Trace {
    let params = Params { sessions: 24, gap: Duration::from_secs(1), ..Params::default() };
    let words = crate::text::Words::measured(|text| text.len().div_ceil(4));
    let workload = Workload::generate(&params, 7, &words);
    let mut text = String::from("{\"schema\":\"homing.trace.v1\",\"block_size\":16}\n");
    for (number, session) in workload.sessions.iter().enumerate() {
        let mut tokens = workload.openers[session.opener].len() / 4;
        let (shared, mut at) = (tokens / 16, session.start.as_millis());
        for turn in &session.turns {
            at += turn.think.as_millis();
            tokens += turn.user_text.len() / 4 + 4;
            let hash = |block: usize| match block < shared {
                true => session.opener * 1_000_000 + block,
                false => (number + 1) * 1_000_000_000 + block,
            };
            let blocks = (0..tokens / 16).map(hash).fold(String::new(), |mut all, hash| {
                write!(all, "{hash:016x}").expect("into memory");
                all
            });
            writeln!(
                text,
                "{{\"t_ms\":{at},\"session\":\"{number}\",\"prompt_tokens\":{tokens},\
                 \"output_tokens\":{},\"blocks\":\"{blocks}\"}}",
                turn.output_tokens
            )
            .expect("into memory");
            tokens += turn.output_tokens as usize;
        }
    }
    trace::read(text.as_bytes(), &trace::Options::default()).expect("a right trace")
}

fn config(policy: PolicyKind, blocks: u32) -> Config {
    let mut engine = EngineConfig { max_model_len: usize::MAX, ..EngineConfig::default() };
    engine.cache.blocks = blocks;
    Config {
        baseline: None,
        workers: 4,
        engine,
        replicas: 1,
        sharing: Sharing::default(),
        core: CoreSettings { policy, ..CoreSettings::default() },
        affinity: Some(Mode::Hard),
        rate_scale: 1.0,
        index: true,
        event_delay: Duration::ZERO,
        outages: Vec::new(),
        seed: 3,
    }
}

fn play(trace: &Trace, config: &Config) -> Outcome {
    let mut last = 0;
    let outcome = run(trace, config, &mut |done| {
        assert!(done >= last);
        last = done;
    });
    let it = outcome.expect("a right configuration");
    assert_eq!(last, trace.requests.len() as u64, "all have ended");
    assert_eq!(it.answered + it.refused + it.broken, last);
    it
}

#[test]
fn what_others_do_can_be_replayed_too() {
    let trace = generated();
    let own = play(&trace, &Config { affinity: None, ..config(PolicyKind::RoundRobin, 20_000) });
    for (name, baseline) in Baseline::ALL {
        let config =
            Config { affinity: None, baseline: Some(baseline), ..config(PolicyKind::Kv, 20_000) };
        let it = play(&trace, &config);
        assert_eq!(it.answered, trace.requests.len() as u64, "{name}");
        // A tree of what was sent and the formula both find what was there before.
        assert!(it.cached_tokens > own.cached_tokens, "{name}");
        assert_eq!(Baseline::from_word(name), Some(baseline));
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let trace = generated();
    let outages =
        vec![Outage { worker: 1, from: Duration::from_secs(40), until: Duration::from_secs(70) }];
    for policy in [PolicyKind::Kv, PolicyKind::Random] {
        let config = Config {
            replicas: 2,
            event_delay: Duration::from_millis(50),
            outages: outages.clone(),
            affinity: None,
            ..config(policy, 1500)
        };
        let first = play(&trace, &config);
        assert_eq!(first, play(&trace, &config));
        let other = play(&trace, &Config { seed: 4, ..config });
        assert!(policy != PolicyKind::Random || first != other, "a seed matters");
    }
}

#[test]
fn sessions_find_their_cache_and_no_policy_beats_the_bounds() {
    let trace = generated();
    let best = bounds::best_hit_rate(&trace);
    let home = play(&trace, &config(PolicyKind::Kv, 20_000));
    let lost = play(&trace, &Config { affinity: None, ..config(PolicyKind::RoundRobin, 20_000) });
    assert!(home.hit_rate() > 0.9 * best, "{} of {best}", home.hit_rate());
    assert!(lost.hit_rate() < home.hit_rate() - 0.1, "{}", lost.hit_rate());
    assert!(lost.ttft_us.mean() > home.ttft_us.mean());
    let pooled = bounds::pooled_hit_rate(&trace, 4 * 400);
    let tight = play(&trace, &config(PolicyKind::Kv, 800));
    assert!(pooled < best && tight.hit_rate() < home.hit_rate());
    for it in [&home, &lost, &tight] {
        assert!(it.hit_rate() <= best + 1e-9);
        assert_eq!(it.placed.iter().sum::<u64>(), it.answered);
        assert_eq!(it.prompt_tokens, trace.prompt_tokens());
        let sampled: u64 = it.samples.iter().flat_map(|s| &s.prompt_tokens).sum();
        assert_eq!(sampled, it.prompt_tokens);
    }
}

#[test]
fn what_a_router_knows_is_what_helps() {
    let trace = generated();
    let knows = Config { affinity: None, ..config(PolicyKind::Kv, 20_000) };
    let told = play(&trace, &knows);
    let blind = play(&trace, &Config { index: false, ..knows.clone() });
    let late = play(&trace, &Config { event_delay: Duration::from_secs(600), ..knows });
    assert!(told.hit_rate() > blind.hit_rate() + 0.1, "{} {}", told.hit_rate(), blind.hit_rate());
    assert!(told.hit_rate() > late.hit_rate(), "{} {}", told.hit_rate(), late.hit_rate());
}

#[test]
fn a_failing_worker_breaks_what_ran_and_the_rest_goes_on() {
    let trace = generated();
    // One after the other: a request is retried once, and the first has been noticed by then.
    let (from, until) = (Duration::from_secs(30), Duration::from_secs(60));
    let first = Outage { worker: 0, from: Duration::from_secs(20), until };
    let outages = vec![first, Outage { worker: 1, from, until }];
    let calm = play(&trace, &config(PolicyKind::LeastLoaded, 20_000));
    let config = Config { outages, ..config(PolicyKind::LeastLoaded, 20_000) };
    let it = play(&trace, &config);
    assert_eq!(it.refused, 0, "two workers are left, and each request is retried");
    assert!(it.cached_tokens < calm.cached_tokens, "caches are lost");
    let away = |s: &Sample| s.busy[0].is_zero() && s.busy[1].is_zero();
    let within = |i: usize| {
        let at = it.width * i as u32;
        at >= from && at + it.width <= until
    };
    let during: Vec<_> = it.samples.iter().enumerate().filter(|(i, _)| within(*i)).collect();
    assert!(during.len() > 2 && during.iter().all(|(_, s)| away(s)), "{during:?}");
    assert!(it.samples.iter().any(|s| s.prompt_tokens[0] > 0 && !away(s)));
}

#[test]
fn all_workers_away_refuse_what_comes_meanwhile() {
    let trace = generated();
    let (from, until) = (Duration::from_secs(30), Duration::from_secs(50));
    let outages = (0..4).map(|worker| Outage { worker, from, until }).collect();
    let it = play(&trace, &Config { outages, ..config(PolicyKind::Kv, 20_000) });
    assert!(it.refused > 0 && it.answered > it.refused);
}

#[test]
fn routers_that_share_send_sessions_home_whichever_router_a_turn_comes_to() {
    let trace = generated();
    // Blind to caches: what takes a turn home is its binding alone.
    let one = Config { index: false, ..config(PolicyKind::RoundRobin, 20_000) };
    let with = |word, delay| {
        let sharing = Sharing::from_word(word, delay).expect("a word");
        assert_eq!(sharing.word(), word);
        play(&trace, &Config { replicas: 4, sharing, ..one.clone() })
    };
    let soon = Duration::from_millis(1);
    let (alone, none, shared) = (play(&trace, &one), with("none", soon), with("bindings", soon));
    assert!(none.hit_rate() < alone.hit_rate() - 0.02, "{} {}", none.hit_rate(), alone.hit_rate());
    assert!(shared.hit_rate() > alone.hit_rate() - 0.002, "{}", shared.hit_rate());
    assert_eq!(shared, with("bindings", soon), "the same seed, the same outcome");
    let late = with("bindings", Duration::from_secs(3600));
    assert!(late.hit_rate() < shared.hit_rate() - 0.02, "what comes too late helps nobody");
}

#[test]
fn routers_that_share_their_load_keep_the_fleet_level() {
    let trace = generated();
    let one = Config {
        affinity: None,
        rate_scale: 30.0,
        index: false,
        ..config(PolicyKind::LeastLoaded, 20_000)
    };
    let with = |word| {
        let sharing = Sharing::from_word(word, Duration::ZERO).expect("a word");
        play(&trace, &Config { replicas: 8, sharing, ..one.clone() })
    };
    let (alone, none, load) = (play(&trace, &one), with("none"), with("load"));
    let ttft = |it: &Outcome| it.ttft_us.mean();
    assert!(ttft(&alone) < ttft(&none), "{} {}", ttft(&alone), ttft(&none));
    let regained = (ttft(&none) - ttft(&load)) / (ttft(&none) - ttft(&alone));
    assert!(regained > 0.5, "{} {} {}", ttft(&alone), ttft(&load), ttft(&none));
    assert_eq!(load, with("load"));
}

#[test]
fn requests_wait_at_a_busy_router_and_none_is_lost() {
    let trace = generated();
    let mut config = Config { rate_scale: 20.0, ..config(PolicyKind::LeastLoaded, 20_000) };
    config.core.queue.busy_active_requests = 2;
    config.core.queue.max_requests = 1000;
    config.core.queue.max_wait = Duration::from_secs(3600);
    let it = play(&trace, &config);
    assert_eq!((it.refused, it.broken), (0, 0));
    // What an engine refuses beyond its own bound is overload, and the contract says what becomes of that.
    let mut config = Config { rate_scale: 50.0, ..config };
    config.core.queue = Default::default();
    config.core.affinity.on_overload = OnOverload::Reject;
    config.engine.batch.max_queued = 1;
    assert!(play(&trace, &config).refused > 0);
}

#[test]
fn a_prompt_that_fits_nowhere_is_refused() {
    let trace = generated();
    let longest = trace.requests.iter().map(|r| r.prompt_tokens).max().expect("some");
    let it = play(&trace, &config(PolicyKind::Kv, longest / 16 - 1));
    assert!(it.refused > 0 && it.answered > 0);
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let trace = generated();
    let good = config(PolicyKind::Kv, 100);
    let no_time = Duration::ZERO;
    let away = Outage { worker: 4, from: no_time, until: Duration::from_secs(1) };
    let backwards = Outage { worker: 0, from: no_time, until: no_time };
    for bad in [
        Config { workers: 0, ..good.clone() },
        Config { replicas: 0, ..good.clone() },
        Config { rate_scale: 0.0, ..good.clone() },
        Config { outages: vec![away], ..good.clone() },
        Config { outages: vec![backwards], ..good.clone() },
    ] {
        assert!(run(&trace, &bad, &mut |_| {}).is_err(), "{bad:?}");
    }
}

/// Beside what the reference simulator of the field gives for this trace (`data/baselines`): its engines differ from
/// ours, so the order and the proportions are held, and not the numbers.
#[test]
fn a_real_trace_has_the_reference_shapes() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/data/traces/mooncake/conversation_trace.000-035min.jsonl.gz"
    );
    let Ok(file) = std::fs::File::open(path) else {
        eprintln!("skipped: ../shared/data is not beside the checkout");
        return;
    };
    let limit = trace::Options { limit: 2000, ..trace::Options::default() };
    let trace = trace::read(file, &limit).expect("a right trace");
    // Our engines are slower than the reference's: half the load is about as much for them.
    let at = |policy, index| {
        let it = Config { workers: 8, rate_scale: 0.5, index, ..config(policy, 8192) };
        play(&trace, &it).hit_rate()
    };
    let (best, pooled) = (bounds::best_hit_rate(&trace), bounds::pooled_hit_rate(&trace, 8 * 8192));
    let (robin, kv) = (at(PolicyKind::RoundRobin, false), at(PolicyKind::Kv, true));
    assert!(robin < kv && kv < pooled && pooled < best, "{robin} {kv} {pooled} {best}");
    assert!(
        (1.3..3.0).contains(&(kv / robin)),
        "{kv} over {robin}; the reference's are 0.134 and 0.063"
    );
}
