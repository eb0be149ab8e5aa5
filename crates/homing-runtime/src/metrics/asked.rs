//! How questions to engines about the tokens of a prompt went (`[[models]] tokenizer = "engine"`).

/// The outcome of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The engine gave its tokens.
    Answered,
    /// It was asked the same before.
    Remembered,
    /// It didn't answer in time.
    Slow,
    /// It couldn't be reached, broke off, answered too much, or with an error of its own.
    Failed,
    /// It answered with what can't be the tokens of the prompt.
    Nonsense,
    /// It takes no such question.
    Refused,
    /// Too many questions were on their way.
    Busy,
    /// Nobody is ready, or each of those is left alone for a while.
    Paused,
}

impl Asked {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Answered,
        Self::Remembered,
        Self::Slow,
        Self::Failed,
        Self::Nonsense,
        Self::Refused,
        Self::Busy,
        Self::Paused,
    ];

    /// As a label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Remembered => "remembered",
            Self::Slow => "slow",
            Self::Failed => "failed",
            Self::Nonsense => "nonsense",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Paused => "paused",
        }
    }

    /// Why there are no tokens, for the log.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Answered | Self::Remembered => "there are tokens",
            Self::Slow => "the engine's /tokenize is slow",
            Self::Failed => "the engine's /tokenize fails",
            Self::Nonsense => "the engine's /tokenize answers something else",
            Self::Refused => "the engine's /tokenize refuses the prompt",
            Self::Busy => "too many prompts are being asked about",
            Self::Paused => "no engine's /tokenize can be asked now",
        }
    }
}
