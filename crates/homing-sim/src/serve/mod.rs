//! The mock: one simulated engine behind the OpenAI API, with KV events over ZMQ as vLLM publishes them.
//!
//! A request's way: `http` routes it, `ask` checks it as vLLM would, `model` makes tokens of it,
//! `driver` submits it to the engine model and hands its tokens back as they fall due, `answer` puts
//! them into JSON or a stream. What the engine says about its cache leaves through `feed`.
//!
//! | module | is |
//! |---|---|
//! | `config` | what can be set |
//! | `mock` | start, run, stop |
//! | `http` | connections, paths and the bounds of both |
//! | `ask`, `refusal` | a request's body; what is wrong with one, in vLLM's status and shape |
//! | `answer`, `shape` | an answer as one body or as a stream; the JSON of both |
//! | `responses`, `messages` | the JSON of the two younger APIs |
//! | `embeddings` | vectors that follow from what was asked |
//! | `info` | the paths that tell about the engine |
//! | `model` | tokens and replies |
//! | `driver`, `clock` | the engine model in real time, `speedup` times as fast |
//! | `feed` | KV events over ZMQ, one for each rank |
//! | `groups` | one group's events as a hybrid model's two |
//! | `window` | what is truly cached, for tests |
//!
//! Everything runs on one thread but the ZMQ socket. Tokenizing blocks that thread for milliseconds;
//! the engine's modelled time doesn't notice, because it is replayed exactly.

mod answer;
mod ask;
mod clock;
mod config;
mod driver;
mod embeddings;
mod faults;
mod feed;
mod groups;
mod http;
mod info;
mod messages;
mod mock;
mod model;
mod refusal;
mod responses;
mod shape;
mod window;

pub use config::MockConfig;
pub use faults::Faults;
pub use groups::Groups;
pub use mock::{Mock, MockHandle, StartError};
pub use model::PromptCodec;

#[cfg(test)]
#[path = "apis_tests.rs"]
mod apis_tests;
#[cfg(test)]
mod faults_tests;
#[cfg(test)]
#[path = "feeds_tests.rs"]
mod feeds_tests;
#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
