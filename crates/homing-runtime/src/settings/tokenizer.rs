//! Where the tokens of a model's prompts come from: one value of the file, which is a folder or a word.

use std::path::PathBuf;

/// Where the tokens of a model's prompts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// The folder with its tokenizer and chat template; a relative one starts at the working folder.
    Folder(PathBuf),
    /// Its engines' own `/tokenize`.
    Engine,
}

impl Tokenizer {
    /// The word of the file for the engines' own.
    pub const ENGINE: &'static str = "engine";

    /// From the file's text, which is either that word or a folder.
    #[must_use]
    pub fn of(text: &str) -> Self {
        if text == Self::ENGINE { Self::Engine } else { Self::Folder(text.into()) }
    }

    /// The folder, where it is one.
    #[must_use]
    pub const fn folder(&self) -> Option<&PathBuf> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Engine => None,
        }
    }
}
