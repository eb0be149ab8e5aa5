//! Our tokens of a few texts and conversations against an engine's, as its `/tokenize` gives them (vLLM's).

use super::facts::{Model, Tokenizer, Tokens};
use bytes::Bytes;
use homing_prompt::{ChatBody, ModelPrompt, Specials};
use homing_runtime::ask::Ask;
use homing_runtime::clock::Clock;
use homing_runtime::settings;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What an answer may be.
const MAX_ANSWER: usize = 1 << 20;
/// A text with what tokenizers treat differently.
const TEXT: &str = "Grüße, 世界!  Two spaces, a\n\nparagraph, 12345 and 🙂.";

/// The configuration's models with their tokenizers.
#[derive(Debug, Default)]
pub(super) struct Tokenizers {
    models: Option<Vec<Model>>,
    loaded: BTreeMap<String, (ModelPrompt, Map<String, Value>)>,
}

impl Tokenizers {
    /// Loads those of a configuration; one that can't be loaded is a fact, and no error.
    pub(super) fn load(models: &[settings::Model]) -> Self {
        let mut loaded = BTreeMap::new();
        let facts = models.iter().enumerate().map(|(at, model)| {
            let tokenizer = match &model.tokenizer {
                None => Tokenizer::Missing,
                Some(settings::Tokenizer::Engine) => Tokenizer::Engine,
                Some(settings::Tokenizer::Folder(folder)) => match ModelPrompt::load(folder) {
                    Ok(prompt) => {
                        let kwargs = model.chat_template_kwargs.clone();
                        loaded.insert(model.name.clone(), (prompt, kwargs));
                        Tokenizer::Loaded
                    }
                    Err(error) => Tokenizer::Broken(error.to_string()),
                },
            };
            Model { name: model.name.clone(), at, tokenizer }
        });
        let facts = facts.collect();
        Self { models: Some(facts), loaded }
    }

    /// What there is to be said of them; `None`: no configuration was given.
    pub(super) fn models(&self) -> Option<Vec<Model>> {
        self.models.clone()
    }

    /// How an engine's tokens for one of its models compare with ours; `None`: we have none. And whether it gives
    /// any of plain text.
    pub(super) async fn compare(&self, ask: &Ask, model: &str) -> (Option<Tokens>, bool) {
        let theirs = engines(ask, json!({"model": model, "prompt": TEXT})).await;
        let answers = theirs.is_ok();
        let is_theirs = |m: &Model| m.name == model && m.tokenizer == Tokenizer::Engine;
        if self.models.iter().flatten().any(is_theirs) {
            let chat = json!({"model": model, "messages": [{"role": "user", "content": TEXT}]});
            // Both of its forms are asked by the router.
            let both = match theirs {
                Ok(_) => engines(ask, chat).await,
                error => error,
            };
            return (Some(both.map_or_else(Tokens::NotTheirs, |_| Tokens::Theirs)), answers);
        }
        (self.compared(ask, model, theirs).await, answers)
    }

    async fn compared(
        &self,
        ask: &Ask,
        model: &str,
        theirs: Result<Vec<u32>, String>,
    ) -> Option<Tokens> {
        let (prompt, kwargs) = self.loaded.get(model)?;
        let ours = prompt.encode_text(TEXT, Specials::Add);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) if ours != theirs => return Some(Tokens::TextDiffers),
            (Err(error), _) => return Some(Tokens::Unknown(error.to_string())),
            (_, Err(why)) => return Some(Tokens::Unknown(why)),
            _ => {}
        }
        for messages in conversations() {
            let mut body = json!({"messages": messages, "add_generation_prompt": true});
            let asked =
                json!({"model": model, "messages": messages, "add_generation_prompt": true});
            if !kwargs.is_empty() {
                body["chat_template_kwargs"] = Value::Object(kwargs.clone());
            }
            let ours = ChatBody::from_value(body)
                .and_then(|chat| prompt.encode_chat(&chat.input(Some(Clock::start().now()))?));
            // A template may refuse a conversation (system messages, say); then so does the engine's.
            let (Ok(ours), Ok(theirs)) = (ours, engines(ask, asked).await) else { continue };
            if ours != theirs {
                return Some(differ(&ours, &theirs));
            }
        }
        Some(Tokens::Same)
    }
}

fn differ(ours: &[u32], theirs: &[u32]) -> Tokens {
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    Tokens::ChatDiffers { at, ours: ours.len(), theirs: theirs.len() }
}

/// From plain to all that a template can be strict about.
fn conversations() -> [Value; 3] {
    let user = json!({"role": "user", "content": TEXT});
    let assistant = json!({"role": "assistant", "content": "I see."});
    let system = json!({"role": "system", "content": "You are a helpful assistant."});
    [json!([user]), json!([user, assistant, user]), json!([system, user, assistant, user])]
}

/// What the engine makes of it.
async fn engines(ask: &Ask, body: Value) -> Result<Vec<u32>, String> {
    #[derive(Deserialize)]
    struct Answer {
        tokens: Vec<u32>,
    }
    match ask.post("/tokenize", Bytes::from(body.to_string()), MAX_ANSWER).await {
        Ok((200, answer)) => serde_json::from_slice::<Answer>(&answer)
            .map(|answer| answer.tokens)
            .map_err(|error| format!("/tokenize answers something else: {error}")),
        Ok((status, _)) => Err(format!("/tokenize answers {status}")),
        Err(failure) => Err(format!("/tokenize: {failure:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_that_differs_is_named() {
        let at = |ours: &[u32], theirs: &[u32]| match differ(ours, theirs) {
            Tokens::ChatDiffers { at, .. } => at,
            other => panic!("{other:?}"),
        };
        assert_eq!(at(&[1, 2, 3], &[1, 2, 4]), 2);
        assert_eq!(at(&[1, 2], &[1, 2, 4]), 2);
        assert_eq!(at(&[], &[1]), 0);
    }

    #[test]
    fn a_tokenizer_that_is_not_there_is_a_fact() {
        let model = |name: &str, folder: Option<&str>| settings::Model {
            name: name.into(),
            aliases: Vec::new(),
            tokenizer: folder.map(settings::Tokenizer::of),
            chat_template_kwargs: Map::new(),
        };
        let builtin = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tokenizer");
        let models = [
            model("a", None),
            model("b", Some("/no/such/folder")),
            model("c", Some(builtin)),
            model("d", Some("engine")),
        ];
        let tokenizers = Tokenizers::load(&models);
        let seen = tokenizers.models().unwrap();
        assert_eq!(seen[0].tokenizer, Tokenizer::Missing);
        assert!(matches!(&seen[1].tokenizer, Tokenizer::Broken(why) if !why.is_empty()));
        assert_eq!((&seen[2].tokenizer, seen[2].at), (&Tokenizer::Loaded, 2));
        assert_eq!(seen[3].tokenizer, Tokenizer::Engine);
        assert!(Tokenizers::default().models().is_none());
    }
}
