//! What the router believes of its engines' caches is what is in them: engines with small caches, many
//! prompts, evictions, over real sockets.

#![expect(clippy::unwrap_used, reason = "a test says so by panicking")]

use homing_e2e::{Serve, binary, call, call_with, eventually};
use homing_sim::engine::{CacheConfig, EngineConfig};
use homing_sim::serve::{Mock, MockConfig, MockHandle};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn engine(seed: u64) -> MockHandle {
    lossy(seed, 0)
}

/// Of whose event messages every so manyth is lost; 0: none.
fn lossy(seed: u64, kv_drop_every: u64) -> MockHandle {
    let cache = CacheConfig { blocks: 96, seed, ..CacheConfig::default() };
    let engine = EngineConfig { cache, ..EngineConfig::default() };
    let config = MockConfig { engine, speedup: 200.0, kv_drop_every, ..MockConfig::default() };
    Mock::start(config).unwrap()
}

fn workers(router: &Serve) -> Vec<Value> {
    let (_, workers) = call(&router.admin, "GET", "/admin/workers", None).unwrap();
    workers.as_array().unwrap().clone()
}

fn chat(router: &Serve, session: &str, messages: &[Value]) -> (String, u64) {
    let body = json!({"model": "homing-mock", "messages": messages, "max_tokens": 20});
    let headers = [("x-homing-session-id", session)];
    let (status, answer) =
        call_with(&router.gateway, "POST", "/v1/chat/completions", &headers, Some(&body)).unwrap();
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
}

/// Removed with what is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Left behind in a temporary place at worst.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A router in front of them that follows their events.
fn router(binary: &PathBuf, engines: &[MockHandle], name: &str) -> (Serve, Folder) {
    let folder = format!("homing-e2e-index-{name}-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(folder));
    std::fs::create_dir_all(&folder.0).unwrap();
    let config = folder.0.join("homing.toml");
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tokenizer");
    let model = format!("[[models]]\nname = \"homing-mock\"\ntokenizer = \"{tokenizer}\"\n");
    std::fs::write(&config, model).unwrap();
    let mut args = vec!["--config", config.to_str().unwrap()];
    for e in engines {
        args.extend(["--worker", e.url()]);
    }
    let router = Serve::start(binary, &args).unwrap();
    eventually("the feeds are followed", || {
        let followed = |w: &Value| w["state"] == "ready" && w["index"] == "events";
        workers(&router).iter().filter(|w| followed(w)).count() == engines.len()
    });
    (router, folder)
}

#[test]
fn the_index_equals_the_engines_caches_under_evictions() {
    let Some(binary) = binary() else { return };
    let engines = [engine(1), engine(2)];
    let (router, _folder) = router(&binary, &engines, "clean");
    let mut reused = 0;
    for s in 0..12 {
        let mut messages = vec![
            json!({"role": "system", "content": "You are a careful helper. ".repeat(s % 3 + 1)}),
        ];
        for turn in 0..4 {
            let text = format!("Session {s}, turn {turn}: {}", "tell me more about it. ".repeat(8));
            messages.push(json!({"role": "user", "content": text}));
            let (answer, cached) = chat(&router, &format!("s{s}"), &messages);
            messages.push(json!({"role": "assistant", "content": answer}));
            reused += cached;
        }
    }
    assert!(reused > 0, "nothing was ever reused");

    for e in &engines {
        let id = e.url().strip_prefix("http://").unwrap();
        eventually("the index has caught up", || {
            let truth: BTreeSet<_> = e.cached_blocks().into_iter().collect();
            let believed =
                workers(&router).iter().find(|w| w["id"] == id).unwrap()["cached_blocks"].clone();
            assert!(truth.len() > 60, "the caches are full: {}", truth.len());
            believed == truth.len()
        });
    }
    let (_, models) = call(&router.gateway, "GET", "/v1/models", None).unwrap();
    assert_eq!(models["data"][0]["id"], "homing-mock");
}

#[test]
fn f24_of_an_engine_whose_events_get_lost_all_is_known_that_it_has() {
    let Some(binary) = binary() else { return };
    let engines = [lossy(3, 3)];
    let engine = &engines[0];
    // Before the router comes: only a replay tells of it.
    let body = json!({"model": "homing-mock", "max_tokens": 40, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Who was here first? ".repeat(20)}]});
    let address = engine.url().strip_prefix("http://").unwrap();
    assert_eq!(call(address, "POST", "/v1/chat/completions", Some(&body)).unwrap().0, 200);
    let (router, _folder) = router(&binary, &engines, "lossy");
    let known = || workers(&router)[0]["cached_blocks"].clone();
    let there = || engine.cached_blocks().into_iter().collect::<BTreeSet<_>>().len();
    eventually("what was there before is known", || known() == there());
    for n in 0..12 {
        let text = format!("Question {n}: {}", "tell me more about it. ".repeat(12));
        chat(&router, &format!("s{n}"), &[json!({"role": "user", "content": text})]);
    }
    // The last message may be one of the lost, which shows with the next.
    let mut n = 0;
    eventually("the index has caught up", || {
        n += 1;
        let text = format!("And {n}?");
        chat(&router, "last", &[json!({"role": "user", "content": text})]);
        (0..50).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            known() == there()
        })
    });
    assert!(there() > 60, "the cache is full: {}", there());
    assert_eq!(workers(&router)[0]["index"], "events", "nothing was given up for long");
}
