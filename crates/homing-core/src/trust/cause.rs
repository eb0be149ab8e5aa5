//! Why predictions fail, guessed from what was seen: a word that tells an operator where to look.

/// How many signs are remembered.
pub(super) const SIGNS: usize = 8;
/// So many of them must be off before there is something to explain.
const ENOUGH: usize = 3;

/// What one request points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Nothing was said.
    Silent,
    /// As predicted, within a block.
    Agrees,
    /// The engine's prompt has another length than ours.
    Template,
    /// What the engine reused is no multiple of our block size.
    BlockSize,
    /// Off, while the rank's index was being learned anew after a hole.
    Gap,
    /// The front of the prediction was right, its end was gone.
    Eviction,
    /// Off in no way that would point anywhere.
    Unknown,
}

/// Why predictions fail, likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LikelyCause {
    /// Router and engine make different tokens of the same request: template, tokenizer or special tokens.
    Template,
    /// They cut them into blocks of different sizes.
    BlockSize,
    /// Events were lost.
    Gap,
    /// The engine drops blocks sooner than the router hears of it.
    Eviction,
    /// None of these.
    Unknown,
}

impl LikelyCause {
    const ALL: [(Self, Sign); 5] = [
        (Self::Template, Sign::Template),
        (Self::BlockSize, Sign::BlockSize),
        (Self::Gap, Sign::Gap),
        (Self::Eviction, Sign::Eviction),
        (Self::Unknown, Sign::Unknown),
    ];

    /// As the admin API and the log say it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::BlockSize => "block_size",
            Self::Gap => "gap",
            Self::Eviction => "eviction",
            Self::Unknown => "unknown",
        }
    }
}

/// What most of the latest signs point at; of equally many, what explains the others too. `None` while fewer
/// than three are off.
#[must_use]
pub fn likely_cause(signs: &[Sign]) -> Option<LikelyCause> {
    let count = |sign| signs.iter().filter(|s| **s == sign).count();
    let off = signs.len() - count(Sign::Silent) - count(Sign::Agrees);
    if off < ENOUGH {
        return None;
    }
    // The first of equals: `max_by_key` would take the last.
    let found = LikelyCause::ALL.into_iter().rev().max_by_key(|(_, sign)| count(*sign));
    found.map(|(cause, _)| cause)
}
