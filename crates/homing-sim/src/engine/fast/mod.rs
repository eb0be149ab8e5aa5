//! The same engine on whole blocks: what [`super::Engine`] does token by token, for replays of millions.
//!
//! A trace says which blocks a prompt has and not which tokens, so nothing here knows tokens; and most of
//! an engine's life is decoding in steps that all look alike, so those are taken many at once:
//!
//! * [`cache`]: blocks are small numbers that count up along a prompt, so a table takes the place of a tree;
//! * [`strides`]: how long many steps take, each a little longer than the last and rounded by itself;
//! * `batch`: who computes what in the next step, as `engine/batch` decides it;
//! * [`model`]: [`FastEngine`], on the caller's time line.
//!
//! It is held to the exact engine to the microsecond, by event and by block (`model_tests`).

pub mod cache;
pub mod model;
pub mod strides;

mod batch;

pub use cache::{BlockId, Change};
pub use model::{FastEngine, FastMetrics, FastOutput, FastRequest};
