//! The two closed error types: loading a folder (an operator reads these once) and making a prompt
//! (a host decides by these whether the request is wrong, or only its tokens unknown).

use std::path::PathBuf;

/// Why a folder gave no [`crate::ModelPrompt`]. Each names its file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is missing or unreadable.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is larger than any known of its kind, and so likely something else.
    #[error("{} is larger than the limit of {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// `tokenizer.json` is not one that the `tokenizers` library understands.
    #[error("{} is not a usable tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The library's words.
        reason: String,
    },
    /// `tokenizer_config.json` is not what Hugging Face writes.
    #[error("{} is not a usable tokenizer configuration: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its place.
        reason: String,
    },
    /// A chat template does not parse.
    #[error("the chat template {name:?} of {} does not parse: {reason}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// The template's name, "default" unless the file names several.
        name: String,
        /// The parser's words, with the line.
        reason: String,
    },
}

/// Why a prompt has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The request is not of the API's shape; an engine would refuse it too.
    #[error("malformed request: {0}")]
    Malformed(String),
    /// The request is fine but asks for what only the engine can do (images, its own template,
    /// ...). Route it without exact tokens.
    #[error("no exact tokens for this request: {0}")]
    Unsupported(&'static str),
    /// The model has no chat template.
    #[error("the model has no chat template; add chat_template.jinja to its tokenizer folder")]
    NoTemplate,
    /// The template refused the conversation by `raise_exception`, in its words. An engine answers
    /// 400.
    #[error("the chat template refuses the conversation: {0}")]
    Refused(String),
    /// The template failed on this conversation.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The template computes without end.
    #[error("the chat template takes more than {fuel} steps; it loops or is hostile")]
    OutOfFuel {
        /// Steps that a rendering may take.
        fuel: u64,
    },
    /// The text is longer than [`crate::TEXT_LIMIT`].
    #[error("the prompt's text is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The text has a stretch longer than [`crate::UNBROKEN_LIMIT`] without a special token.
    #[error("the prompt's text has more than {limit} bytes between two special tokens")]
    Unbroken {
        /// The limit in bytes.
        limit: usize,
    },
    /// Whoever wanted the tokens has gone.
    #[error("nobody waits for the prompt's tokens any more")]
    Unwanted,
    /// The tokenizer failed on this text.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}
