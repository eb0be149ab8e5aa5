//! A window into the true caches, for tests: what an index that was built from the events is compared with.
//!
//! `GET /mock/cache` names the blocks; `POST` says how much of a prompt each rank would reuse now, which needs
//! no names. No engine has these paths.

use super::ask::{Api, check_model, namespace, parse, prompt};
use super::driver::Driver;
use super::model::Model;
use super::refusal::Refusal;
use serde_json::{Map, Value, json};

/// By rank: the blocks that can be reused, one entry a copy.
pub(super) fn blocks(driver: &Driver) -> Value {
    by_rank(driver.each_rank(|engine| {
        let blocks: Vec<u64> = engine.cached_blocks().map(|hash| hash.0).collect();
        let config = engine.config().cache;
        json!({"block_size": config.block_size, "capacity": config.blocks, "blocks": blocks})
    }))
}

/// By rank: how many tokens of a completion's or chat's prompt would be reused now.
pub(super) fn reusable(
    body: &[u8],
    served: &str,
    model: &Model,
    driver: &Driver,
) -> Result<Value, Refusal> {
    let body = parse(body)?;
    check_model(&body, served)?;
    let api = if body.get("messages").is_some() { Api::Chat } else { Api::Completion };
    let tokens = prompt(api, &body, model)?;
    let namespace = namespace(&body)?;
    let ranks = driver.each_rank(
        |engine| json!({"cached_tokens": engine.cached_tokens(tokens.clone(), namespace.clone())}),
    );
    Ok(by_rank(ranks))
}

fn by_rank(ranks: Vec<Value>) -> Value {
    let named = ranks.into_iter().enumerate().map(|(rank, value)| (rank.to_string(), value));
    Value::Object(named.collect::<Map<_, _>>())
}
