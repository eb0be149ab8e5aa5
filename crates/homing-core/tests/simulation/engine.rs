//! A tiny engine: which blocks it holds, and what it says when they change.

use homing_core::fleet::{Drain, Ranks, ServedName, WorkerSpec};
use homing_core::hash::{EngineHash, HashSpace, Prompt, TEXT_CHUNK};
use homing_core::ids::WorkerId;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent};

pub(super) const BLOCK: u32 = 4;
/// Prompts of a family share their beginning: one is a prefix of the next longer one.
pub(super) const FAMILIES: u32 = 4;
pub(super) const LONGEST: u32 = 6;

/// One worker as the world knows it.
pub(super) struct Engine {
    pub(super) name: String,
    /// The life that the core knows; `None`: not registered.
    pub(super) id: Option<WorkerId>,
    pub(super) serves: Vec<ServedName>,
    /// Its partition in the core, by what it serves.
    pub(super) placed: Option<usize>,
    /// How it is registered; a higher generation is another registration.
    pub(super) generation: u64,
    pub(super) zone: &'static str,
    /// The ranks of its registration, and those that it has.
    pub(super) listed: Ranks,
    pub(super) ranks: Ranks,
    pub(super) drain: Option<Drain>,
    /// Leading blocks of each family that it holds.
    pub(super) held: [u32; FAMILIES as usize],
}

pub(super) fn prompt(family: u32, blocks: u32) -> Prompt {
    // One token more than the blocks: the last token is always computed anew.
    Prompt::from_tokens(&tokens(family, blocks * BLOCK + 1), BLOCK, HashSpace::default())
}

/// The same as text, a chunk for each block.
pub(super) fn text(family: u32, blocks: u32) -> Prompt {
    let chunk = |b: u32| [family as u8, b as u8].repeat(TEXT_CHUNK / 2);
    let bytes: Vec<u8> = (0..blocks).flat_map(chunk).chain([0]).collect();
    Prompt::from_text(&[&bytes], HashSpace::default())
}

fn tokens(family: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| family * 1000 + i).collect()
}

impl Engine {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            id: None,
            serves: Vec::new(),
            placed: None,
            generation: 0,
            zone: "a",
            listed: Ranks::default(),
            ranks: Ranks::default(),
            drain: None,
            held: Default::default(),
        }
    }

    /// As discovery sees it.
    pub(super) fn spec(&self) -> WorkerSpec {
        WorkerSpec {
            labels: [("zone".into(), self.zone.into())].into(),
            ranks: self.listed,
            generation: self.generation,
            ..WorkerSpec::new(&self.name, &self.name)
        }
    }

    fn hash(family: u32, block: u32) -> EngineHash {
        EngineHash(u64::from(family) << 32 | u64::from(block))
    }

    /// Holds `blocks` of the family from now on; what it says about that.
    pub(super) fn fill(&mut self, family: u32, blocks: u32) -> Option<KvEvent> {
        let had = std::mem::replace(&mut self.held[family as usize], blocks);
        let names = |range: std::ops::Range<u32>| range.map(|b| Self::hash(family, b)).collect();
        if blocks < had {
            let block_hashes = names(blocks..had);
            return Some(KvEvent::Removed(BlockRemoved {
                block_hashes,
                ..BlockRemoved::default()
            }));
        }
        (blocks > had).then(|| {
            KvEvent::Stored(BlockStored {
                block_hashes: names(had..blocks),
                parent: had.checked_sub(1).map(|b| Self::hash(family, b)),
                token_ids: tokens(family, blocks * BLOCK).split_off((had * BLOCK) as usize),
                block_size: BLOCK,
                full_attention: true,
                ..BlockStored::default()
            })
        })
    }

    pub(super) fn flush(&mut self) -> KvEvent {
        self.held = Default::default();
        KvEvent::Cleared
    }

    /// How many leading blocks of such a prompt it holds.
    pub(super) fn overlap(&self, family: u32, blocks: u32) -> u32 {
        self.held[family as usize].min(blocks)
    }
}
