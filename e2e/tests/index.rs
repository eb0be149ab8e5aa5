//! What the router believes of its engines' caches is what is in them: engines with small caches, many
//! prompts, evictions, over real sockets.

#![expect(clippy::unwrap_used, reason = "a test says so by panicking")]

use homing_e2e::{Serve, binary, call, call_with, eventually};
use homing_sim::engine::{CacheConfig, EngineConfig};
use homing_sim::serve::{Mock, MockConfig, MockHandle};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn engine(seed: u64) -> MockHandle {
    let cache = CacheConfig { blocks: 96, seed, ..CacheConfig::default() };
    let engine = EngineConfig { cache, ..EngineConfig::default() };
    Mock::start(MockConfig { engine, speedup: 200.0, ..MockConfig::default() }).unwrap()
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

#[test]
fn the_index_equals_the_engines_caches_under_evictions() {
    let Some(binary) = binary() else { return };
    let engines = [engine(1), engine(2)];
    let folder = std::env::temp_dir().join(format!("homing-e2e-index-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = folder.join("homing.toml");
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tokenizer");
    let model = format!("[[models]]\nname = \"homing-mock\"\ntokenizer = \"{tokenizer}\"\n");
    std::fs::write(&config, model).unwrap();
    let mut args = vec!["--config", config.to_str().unwrap()];
    for e in &engines {
        args.extend(["--worker", e.url()]);
    }
    let router = Serve::start(&binary, &args).unwrap();
    eventually("both feeds are followed", || {
        let followed = |w: &Value| w["state"] == "ready" && w["index"] == "events";
        workers(&router).iter().filter(|w| followed(w)).count() == 2
    });

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
    drop(router);
    std::fs::remove_dir_all(&folder).unwrap();
}
