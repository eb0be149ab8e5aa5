//! Hosts: what faces clients and operators. Thin: they turn HTTP into the core's calls and back.
//!
//! ```text
//! server     the process's parts, started and stopped in order
//! gateway    the OpenAI-compatible proxy
//! admin      metrics, health, workers, sessions
//! reload     settings that change while the router runs
//! questions  what tells whether an engine tokenizes as the router does
//! ```

pub mod admin;
pub mod gateway;
mod questions;
pub mod reload;
pub mod server;

pub use gateway::ServerTls;
pub use reload::{ReloadError, Reloader, Reread};
pub use server::{Extras, Replicate, Server, StartError, load_prompts};
