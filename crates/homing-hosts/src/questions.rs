//! The questions that tell whether an engine makes the same tokens of prompts as the router: a few short
//! conversations that real templates treat differently, and a text. Fixed, so that nothing of a user's is asked.

use homing_core::time::Time;
use homing_core::trust::Shape;
use homing_prompt::{ChatBody, ModelPrompt, Specials};
use homing_runtime::fleet::verify::{Question, Questions};
use homing_runtime::settings::{IndexSource, Model, Settings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text of words, digits, indentation and more than one script.
const TEXT: &str = "The answer is 1234567.\n\n    if x:  # caf\u{e9}\n\t\u{4f60}\u{597d}";

/// Questions for the models whose prompts are tokenized here.
pub(crate) fn of(settings: &Settings, prompts: &BTreeMap<String, Arc<ModelPrompt>>) -> Questions {
    if settings.index.source == IndexSource::Off {
        return Questions::none();
    }
    let known: BTreeMap<String, (Arc<ModelPrompt>, Model)> = settings
        .models
        .iter()
        .filter_map(|m| Some((m.name.clone(), (prompts.get(&m.name)?.clone(), m.clone()))))
        .collect();
    Questions::new(move |name, now| {
        let Some((prompt, model)) = known.get(name) else { return Vec::new() };
        let chats = conversations().into_iter().filter_map(|c| chat(prompt, model, c, now));
        chats.chain(completion(prompt, name)).collect()
    })
}

fn conversations() -> [Value; 3] {
    let said = |role, content| json!({"role": role, "content": content});
    [
        json!([said("user", "Hello")]),
        json!([said("system", "Be brief."), said("user", TEXT)]),
        // Spaces at the ends are what templates trim, or don't.
        json!([said("user", "Hi "), said("assistant", " Hello!\n"), said("user", "Go on.")]),
    ]
}

/// `None` where our own template refuses the conversation: such chats are not predicted either.
fn chat(prompt: &ModelPrompt, model: &Model, messages: Value, now: Time) -> Option<Question> {
    let mut body = Map::new();
    body.insert("model".to_owned(), model.name.clone().into());
    body.insert("messages".to_owned(), messages);
    if !model.chat_template_kwargs.is_empty() {
        // The engine's own defaults may not hold for this path: the template is asked about, not they.
        let kwargs = model.chat_template_kwargs.clone();
        body.insert("chat_template_kwargs".to_owned(), kwargs.into());
    }
    let body = Value::Object(body);
    let chat = ChatBody::from_value(body.clone()).ok()?;
    let tokens = prompt.encode_chat(&chat.input(Some(now)).ok()?).ok()?;
    Some(Question { shape: Shape::Chat, body: body.to_string().into(), tokens })
}

fn completion(prompt: &ModelPrompt, model: &str) -> Option<Question> {
    let tokens = prompt.encode_text(TEXT, Specials::Add).ok()?;
    let body = json!({"model": model, "prompt": TEXT});
    Some(Question { shape: Shape::Completions, body: body.to_string().into(), tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversation_is_a_question_for_the_built_in_template() {
        let prompt = ModelPrompt::builtin();
        let model = Model {
            name: "m".to_owned(),
            aliases: Vec::new(),
            tokenizer: None,
            chat_template_kwargs: json!({"a": 1}).as_object().cloned().unwrap_or_default(),
        };
        let now = Time::from_micros(0);
        let asked = conversations().map(|c| chat(&prompt, &model, c, now).unwrap());
        for question in asked.iter().chain(&[completion(&prompt, "m").unwrap()]) {
            let body: Value = serde_json::from_slice(&question.body).unwrap();
            assert_eq!(body["model"], "m");
            assert!(!question.tokens.is_empty() && question.body.len() < 1024, "{body}");
        }
        assert_eq!(
            serde_json::from_slice::<Value>(&asked[0].body).unwrap()["chat_template_kwargs"]["a"],
            1
        );
        assert_ne!(asked[0].tokens, asked[2].tokens);
    }
}
