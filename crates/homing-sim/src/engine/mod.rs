//! One simulated engine, sans-I/O: tokens and the time go in, token times and KV events come out.
//!
//! What of vLLM is modelled, and what it drives:
//!
//! * [`cache`]: a paged KV cache with prefix reuse and LRU eviction; its events are what routers index.
//! * [`sequence`]: a request's tokens and the engine's own opaque names of its blocks.
//! * [`batch`]: continuous batching under a token budget; it decides queueing, and so the tail of TTFT.
//! * [`cost`]: how long a step takes; the only place where modelled time comes from.
//! * [`model`]: [`Engine`] itself: the parts above on one time line, quinn-style (`submit`, `abort`,
//!   `handle_timeout`, `poll_timeout`, `poll_output`).
//! * [`fast`]: the same engine on whole blocks, for replays.
//! * [`metrics`], [`histogram`]: what it measured, written as Prometheus text under vLLM's names; what
//!   reads such text, and asks for quantiles, is `homing_wire::engine`.
//!
//! Not modelled: speculative decoding, KV offload tiers, LoRA slots, sliding-window groups, swap.

pub mod batch;
pub mod cache;
pub mod cost;
pub mod fast;
pub mod histogram;
pub mod metrics;
pub mod model;
pub mod sequence;

mod free_list;

pub use cache::CacheConfig;
pub use cost::CostModel;
pub use model::{
    Engine, EngineConfig, EngineOutput, EngineRequest, FinishReason, RequestId, SubmitError,
};
