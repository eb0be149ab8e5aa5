//! What of a store event can be taken, for both indexes: the rest of what they do with it is their own.

use super::event::{BlockStored, Tier};
use super::naive::{Applied, MAX_BLOCK_SIZE};

/// An event that makes sense, and the tier that it is of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    /// It only names blocks of a lower tier, which others have described.
    Named(Tier),
    /// It describes its blocks.
    Described(Tier),
}

/// Looks at an event of a group with full attention. `known`: the index's block size.
pub(super) fn said(stored: &BlockStored, known: Option<u32>) -> Result<Said, Applied> {
    let Some(tier) = stored.medium.tier() else { return Err(Applied::Ignored) };
    if stored.opaque || stored.block_hashes.is_empty() {
        return Err(Applied::Ignored);
    }
    let lower = tier != Tier::Device;
    if lower && stored.names_only() {
        return Ok(Said::Named(tier));
    }
    let got = stored.block_size;
    if !(1..=MAX_BLOCK_SIZE).contains(&got)
        || stored.token_ids.len() != got as usize * stored.block_hashes.len()
    {
        return Err(Applied::CountMismatch);
    }
    match known {
        // Lower tiers may have blocks of their own size, and teach nothing.
        known if lower && known != Some(got) => Err(Applied::Ignored),
        Some(known) if known != got => Err(Applied::BlockSizeMismatch { known, got }),
        _ => Ok(Said::Described(tier)),
    }
}
