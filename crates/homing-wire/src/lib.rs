//! Bytes to types, and back where we speak ourselves: what engines publish about their KV caches, the
//! part of a client's request that routing needs, the events of a relayed stream, and what engines
//! answer about themselves.
//!
//! Everything here is a plain function or a small state machine over bytes: no sockets, no clock, no
//! tasks. Everything that a peer can make large has a bound, and nothing a peer sends can panic.
//!
//! | module | reads | writes |
//! |---|---|---|
//! | [`kv_events`] | a batch of KV events (msgpack, every released vLLM and SGLang shape) | vLLM's map form |
//! | [`frames`] | the three frames of a published message | the same |
//! | [`json`] | a JSON value, as the slices of it that are wanted | - |
//! | [`request`] | the body of a chat, completion, Responses or Messages request, without building a tree | - |
//! | [`sse`] | a relayed event stream, in chunks of any cut | - |
//! | [`usage`] | the usage of an answer or of a stream, in three spellings | - |
//! | [`errors`] | - | error bodies and error events in the API's own shape |
//! | [`engine`] | `/v1/models`, `/kv_event_sources`, Prometheus text | - |
//! | [`replica`] | what routers say to each other (msgpack), and what they keep in a shared store | the same |
//! | [`trace`] | recorded requests, `homing.trace.v1`: a line of it | the same |
//! | [`zmtp`] | a connection of ZMTP, as the SUB and DEALER sockets that hear engines | the same |

pub mod engine;
pub mod errors;
pub mod frames;
pub mod json;
pub mod kv_events;
mod msgpack;
pub mod replica;
pub mod request;
pub mod sse;
pub mod trace;
pub mod usage;
pub mod zmtp;
