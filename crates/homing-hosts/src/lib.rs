//! Hosts: what faces clients and operators. Thin: they turn HTTP into the core's calls and back.
//!
//! ```text
//! server     the process's parts, started and stopped in order
//! gateway    the OpenAI-compatible proxy
//! admin      metrics, health, workers, sessions
//! extras     what a router may have besides its settings
//! reload     settings that change while the router runs
//! questions  what tells whether an engine tokenizes as the router does
//! ```

pub mod admin;
mod extras;
pub mod gateway;
mod questions;
pub mod reload;
pub mod server;

pub use extras::{Extras, Replicate};
pub use gateway::ServerTls;
pub use reload::{ReloadError, Reloader, Reread};
pub use server::{Server, StartError, load_prompts};
