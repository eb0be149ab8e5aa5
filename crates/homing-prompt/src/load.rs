//! A model's prompt maker, read from a folder as Hugging Face lays it out, or the project's own
//! built in.
//!
//! `tokenizer.json` is needed, `tokenizer_config.json` is optional, and a template in
//! `chat_template.jinja` wins over the configuration's. Without a template completions still have
//! tokens, chats don't.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use crate::anthropic::Habits;
use crate::cache::PromptCache;
use crate::chat::ChatInput;
use crate::cut::Cuts;
use crate::error::{LoadError, PromptError};
use crate::template::Templates;

/// The largest `tokenizer.json`; the largest of today's models have 35 MB.
const TOKENIZER_LIMIT: u64 = 256 << 20;

/// The largest configuration and template; today's are below 300 KB.
const CONFIG_LIMIT: u64 = 4 << 20;

/// The configuration's members that templates know as variables of the same name.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The files of the project's own tokenizer, by name: for writing a folder that others can load.
pub const BUILTIN_FILES: [(&str, &[u8]); 3] = [
    ("tokenizer.json", include_bytes!("../../../assets/tokenizer/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../assets/tokenizer/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../../assets/tokenizer/chat_template.jinja")),
];

/// Renders a model's chats and encodes its prompts. Shareable between threads; nothing of it changes
/// but what its cache holds, and that shows in nothing but time.
pub struct ModelPrompt {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) cuts: Cuts,
    pub(crate) cache: PromptCache,
    templates: Option<Templates>,
    habits: OnceLock<Habits>,
    eos: Option<String>,
}

impl std::fmt::Debug for ModelPrompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelPrompt")
            .field("vocabulary", &self.tokenizer.get_vocab_size(true))
            .field("has_template", &self.templates.is_some())
            .finish_non_exhaustive()
    }
}

impl ModelPrompt {
    /// Reads a model's folder.
    ///
    /// # Errors
    /// [`LoadError`], naming the file: missing (only `tokenizer.json` must exist), too large, not
    /// parseable.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        let tokenizer = folder.join("tokenizer.json");
        let config = folder.join("tokenizer_config.json");
        let template = folder.join("chat_template.jinja");
        let tokenizer_json = read(&tokenizer, TOKENIZER_LIMIT)?;
        let config_json = optional(read(&config, CONFIG_LIMIT))?;
        let jinja = optional(read(&template, CONFIG_LIMIT))?;
        Self::assemble(
            (&tokenizer, &tokenizer_json),
            (&config, config_json.as_deref()),
            (&template, jinja.as_deref()),
        )
    }

    /// The project's own tokenizer and template (`assets/tokenizer`), which the mock engine has
    /// too.
    #[must_use]
    pub fn builtin() -> Self {
        // It can't fail: the files are part of this crate's build, and its tests load them.
        let [tokenizer, config, template] = BUILTIN_FILES;
        Self::assemble(
            (Path::new(tokenizer.0), tokenizer.1),
            (Path::new(config.0), Some(config.1)),
            (Path::new(template.0), Some(template.1)),
        )
        .expect("the built-in tokenizer loads")
    }

    /// Renders a chat to the text that the engine would tokenize.
    ///
    /// # Errors
    /// [`PromptError`]: the request is malformed or not of text alone, the model has no template,
    /// or the template refuses, fails or doesn't end.
    pub fn render_chat(&self, input: &ChatInput<'_>) -> Result<String, PromptError> {
        self.templates.as_ref().ok_or(PromptError::NoTemplate)?.render(input)
    }

    /// What of Anthropic's API the template can't take as it is; found out when it is first asked.
    pub fn habits(&self) -> Habits {
        *self.habits.get_or_init(|| Habits::of(self))
    }

    /// Renders a chat with each template that the model names; `false` where any refuses it.
    pub(crate) fn all_render(&self, input: &ChatInput<'_>) -> bool {
        self.templates.as_ref().is_some_and(|t| t.all_render(input))
    }

    /// Whether chats can be rendered.
    #[must_use]
    pub const fn has_template(&self) -> bool {
        self.templates.is_some()
    }

    /// The token that ends the model's turn, from the configuration.
    #[must_use]
    pub fn eos_id(&self) -> Option<u32> {
        self.token_id(self.eos.as_deref()?)
    }

    /// Each of the three files with its path, for errors.
    fn assemble(
        tokenizer: (&Path, &[u8]),
        config: (&Path, Option<&[u8]>),
        template: (&Path, Option<&[u8]>),
    ) -> Result<Self, LoadError> {
        let mut parsed = Tokenizer::from_bytes(tokenizer.1).map_err(|e| LoadError::Tokenizer {
            path: tokenizer.0.into(),
            reason: e.to_string(),
        })?;
        // Engines encode prompts whole, whatever the file's own settings for training are.
        parsed.with_padding(None);
        // Removing the truncation cannot fail; only setting one can.
        let _ = parsed.with_truncation(None);
        let config_error = |reason: String| LoadError::Config { path: config.0.into(), reason };
        let config_map: Map<String, Value> = match config.1 {
            Some(bytes) => {
                serde_json::from_slice(bytes).map_err(|e| config_error(e.to_string()))?
            }
            None => Map::new(),
        };
        let specials = special_tokens(&config_map).map_err(config_error)?;
        let eos = specials.get("eos_token").and_then(Value::as_str).map(str::to_owned);
        let (source, named) = match template.1 {
            Some(bytes) => {
                let text = std::str::from_utf8(bytes).map_err(|e| LoadError::Template {
                    path: template.0.into(),
                    name: "default".into(),
                    reason: e.to_string(),
                })?;
                (template.0, vec![("default".to_owned(), text.to_owned())])
            }
            None => (config.0, config_templates(&config_map).map_err(config_error)?),
        };
        let mut templates = Templates::new(specials);
        let any = !named.is_empty();
        for (name, text) in named {
            templates.add(&name, text).map_err(|e| LoadError::Template {
                path: source.into(),
                name,
                reason: e.to_string(),
            })?;
        }
        Ok(Self {
            cuts: Cuts::of(&parsed),
            cache: PromptCache::default(),
            tokenizer: parsed,
            templates: any.then_some(templates),
            habits: OnceLock::new(),
            eos,
        })
    }
}

/// The special tokens as strings; each is a string or an object with `content`, or null.
fn special_tokens(config: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut out = Map::new();
    for name in SPECIAL_TOKENS {
        let content = match config.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(token)) => token.get("content"),
            other => other,
        };
        match content {
            Some(text @ Value::String(_)) => out.insert(name.into(), text.clone()),
            _ => return Err(format!("{name} is neither a string nor an object with content")),
        };
    }
    Ok(out)
}

/// The configuration's templates: one string, or a list of `{name, template}`.
fn config_templates(config: &Map<String, Value>) -> Result<Vec<(String, String)>, String> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![("default".into(), text.clone())]),
        Some(Value::Array(list)) => list
            .iter()
            .enumerate()
            .map(|(i, item)| {
                let member = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
                member("name").zip(member("template")).ok_or_else(|| {
                    format!(
                        "chat_template[{i}] is not an object with the strings name and template"
                    )
                })
            })
            .collect(),
        Some(_) => Err("chat_template is neither a string nor a list".into()),
    }
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let error = |source| LoadError::Read { path: path.into(), source };
    let file = File::open(path).map_err(error)?;
    let mut bytes = Vec::new();
    // One byte over the limit shows that there is more, even of a pipe or a file that grows.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(error)?;
    if bytes.len() as u64 > limit {
        return Err(LoadError::TooLarge { path: path.into(), limit });
    }
    Ok(bytes)
}

fn optional(read: Result<Vec<u8>, LoadError>) -> Result<Option<Vec<u8>>, LoadError> {
    match read {
        Err(LoadError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
