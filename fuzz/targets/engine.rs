//! What engines say of themselves: models, event sources, metrics.
#![no_main]

use homing_wire::engine::metrics::Exposition;
use homing_wire::engine::{
    MAX_MODEL_NAME, MAX_MODELS, MAX_RANKS, listed_ranks, parse_kv_sources, parse_models,
    parse_tokens,
};
use homing_wire::errors::ApiShape;
use homing_wire::usage::parse_usage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(models) = parse_models(data) {
        assert!(models.len() <= MAX_MODELS);
        assert!(models.iter().all(|model| (1..=MAX_MODEL_NAME).contains(&model.id.len())));
    }
    if let Ok(sources) = parse_kv_sources(data, "10.0.0.7") {
        assert!(sources.len() <= MAX_RANKS);
        assert!(sources.iter().all(|source| !source.endpoint.is_empty()));
    }
    assert!(listed_ranks(data).is_none_or(|ranks| (1..=MAX_RANKS as u32).contains(&ranks)));
    assert!(parse_tokens(data).is_none_or(|tokens| tokens.len() <= data.len()));
    for shape in [ApiShape::OpenAi, ApiShape::Responses, ApiShape::Anthropic] {
        let _ = parse_usage(shape, data);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let page = Exposition::parse(text);
    let _ = (page.process_start_time(), page.cache_config());
    for name in ["vllm:time_to_first_token_seconds", "a"] {
        let _ = page.sum(name);
        if let Some(histogram) = page.histogram(name) {
            for q in [0.0, 0.5, 0.99, 1.0] {
                let _ = histogram.quantile(q);
            }
            let _ = (histogram.mean(), histogram.since(&histogram).count());
        }
    }
});
