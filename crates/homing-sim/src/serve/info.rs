//! The paths that tell about the engine: `/v1/models`, `/kv_event_sources`, `/tokenize`, and Anthropic's count of tokens.

use super::ask::{check_model, parse};
use super::driver::Driver;
use super::feed::{HIGH_WATER, QUEUE};
use super::model::Model;
use super::refusal::Refusal;
use super::shape::seconds;
use serde_json::{Map, Value, json};

/// The list of served models.
pub(super) fn models(served: &str, driver: &Driver) -> Value {
    let created = seconds(driver.began_at());
    json!({
        "object": "list",
        "data": [{
            "id": served, "object": "model", "created": created, "owned_by": "homing-mock",
            "root": served, "parent": null, "max_model_len": driver.max_model_len(),
        }],
    })
}

/// Where KV events are published, by data-parallel rank; `None` where they are not.
pub(super) fn kv_event_sources(driver: &Driver) -> Option<Value> {
    let sources: Map<_, _> = driver
        .feeds(|feed| {
            let source = json!({
                "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": feed.endpoint(),
                "replay_endpoint": feed.replay(), "buffer_steps": feed.config().buffer,
                "hwm": HIGH_WATER, "max_queue_size": QUEUE, "topic": feed.config().topic,
            });
            (feed.config().rank.to_string(), source)
        })
        .into_iter()
        .collect();
    if sources.is_empty() { None } else { Some(Value::Object(sources)) }
}

/// The tokens of a `prompt` or of `messages`.
pub(super) fn tokenize(
    body: &[u8],
    served: &str,
    model: &Model,
    driver: &Driver,
) -> Result<Value, Refusal> {
    let body = parse(body)?;
    check_model(&body, served)?;
    let tokens = match body.get("prompt") {
        Some(Value::String(prompt)) => {
            let specials = body.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(true);
            model.text(prompt, specials)?
        }
        Some(_) => return Err(Refusal::bad("prompt", "prompt is no string")),
        None => model.chat(&body)?,
    };
    Ok(json!({
        "count": tokens.len(), "max_model_len": driver.max_model_len(), "tokens": tokens,
        "token_strs": null,
    }))
}

/// How many tokens a request of Anthropic's has.
pub(super) fn count_tokens(body: &[u8], served: &str, model: &Model) -> Result<Value, Refusal> {
    let body = parse(body)?;
    check_model(&body, served)?;
    let count = model.messages(&body)?.len();
    Ok(json!({"input_tokens": count, "context_management": {"original_input_tokens": count}}))
}
