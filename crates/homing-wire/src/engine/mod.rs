//! What engines answer when asked about themselves: their models, their event streams, their metrics.
//!
//! Read tolerantly, since every version says a little more or less: unknown fields are passed over, and
//! an entry without the one thing that it is about is left out. How long an answer may be is for the
//! caller that reads it from a socket to bound; how many entries are taken is bounded here.

mod kind;
mod load;
pub mod metrics;
mod quantile;
mod server_info;
mod sources;

pub use kind::Kind;
pub use load::EngineLoad;
pub use quantile::Histogram;
pub use server_info::{ServerInfo, parse_server_info};
pub use sources::{
    KvSource, endpoint_of, is_wildcard, listed_ranks, parse_kv_sources, reachable_endpoint,
};

use serde::Deserialize;

/// The most models (adapters included) that one worker may serve.
pub const MAX_MODELS: usize = 4096;
/// The longest name of a model, in bytes; longer ones are left out.
pub const MAX_MODEL_NAME: usize = 256;
/// The most data-parallel ranks that one worker may have.
pub const MAX_RANKS: usize = 1024;

/// Why an engine's answer can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Not the JSON that this path answers.
    #[error("the answer of {path} is not what engines send: {detail}")]
    Malformed {
        /// What was asked.
        path: &'static str,
        /// Where and how.
        detail: String,
    },
    /// More than any engine has.
    #[error("the answer of {path} has {count} entries, at most {most} are taken")]
    TooMany {
        /// What was asked.
        path: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
}

/// A name that a worker answers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The name.
    pub id: String,
    /// Where its weights are; aliases of one model have the same.
    pub root: Option<String>,
    /// For an adapter, the model that it is an adapter of.
    pub parent: Option<String>,
    /// The longest prompt and answer together, in tokens.
    pub max_model_len: Option<u64>,
    /// Who made it, which tells engines apart ([`Kind::from_owner`]).
    pub owner: Option<String>,
}

/// Reads `/v1/models`.
///
/// # Errors
/// Where it is no list of models, or one beyond [`MAX_MODELS`].
pub fn parse_models(body: &[u8]) -> Result<Vec<ServedModel>, EngineError> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: Option<String>,
        root: Option<String>,
        parent: Option<String>,
        max_model_len: Option<u64>,
        owned_by: Option<String>,
    }
    const PATH: &str = "/v1/models";
    let models: Models = read(PATH, body)?;
    bounded(PATH, models.data.len(), MAX_MODELS)?;
    let served = models.data.into_iter().filter_map(|model| {
        let Model { id, root, parent, max_model_len, owned_by: owner } = model;
        let id = id.filter(|id| (1..=MAX_MODEL_NAME).contains(&id.len()))?;
        Some(ServedModel { id, root, parent, max_model_len, owner })
    });
    Ok(served.collect())
}

/// Reads the answer of `/tokenize`: the token ids. `None` where it is something else, or counts them otherwise.
#[must_use]
pub fn parse_tokens(body: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Answer {
        tokens: Vec<u32>,
        count: Option<usize>,
    }
    let Answer { tokens, count } = serde_json::from_slice(body).ok()?;
    count.is_none_or(|count| count == tokens.len()).then_some(tokens)
}

fn read<'a, T: Deserialize<'a>>(path: &'static str, body: &'a [u8]) -> Result<T, EngineError> {
    serde_json::from_slice(body)
        .map_err(|error| EngineError::Malformed { path, detail: error.to_string() })
}

const fn bounded(path: &'static str, count: usize, most: usize) -> Result<(), EngineError> {
    if count > most { Err(EngineError::TooMany { path, count, most }) } else { Ok(()) }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
