//! A chat as a question to vLLM's `/tokenize`, for models whose tokenizer only their engines have.
//!
//! What decides a prompt must all be in it: the question is also the name under which its answer is
//! remembered, and a name that lacks an option gives wrong tokens (F30). What the engine's path can't be
//! told of a request, or wouldn't answer with text's tokens alone, is refused here as it is by the template.

use serde_json::{Map, Value};

use crate::chat::{self, ChatBody};
use crate::error::PromptError;

impl ChatBody {
    /// The body of `POST /tokenize` that asks `model`'s engine for this chat's tokens. `defaults` are the
    /// model's `chat_template_kwargs`; the request's own win over them.
    ///
    /// # Errors
    /// [`PromptError::Malformed`] and [`PromptError::Unsupported`] as [`Self::input`] and a template would give:
    /// where a message has more than text, the request brings its own template, and so on.
    pub fn question(
        &self,
        model: &str,
        defaults: &Map<String, Value>,
    ) -> Result<Vec<u8>, PromptError> {
        let input = self.input(None)?;
        // Only whether they can be had: the engine makes them of what the client sent, as it will again.
        chat::messages(&input)?;
        let has_tools = chat::tools(&input)?.is_some();
        let mut kwargs = defaults.clone();
        match input.chat_template_kwargs {
            None | Some(Value::Null) => {}
            Some(Value::Object(own)) => kwargs.extend(own.clone()),
            Some(_) => return Err(chat::malformed("chat_template_kwargs is not an object")),
        }
        // The path has no field of that name; to templates it is a variable like these.
        if let Some(effort) = input.reasoning_effort {
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        }
        let mut body = Map::new();
        body.insert("model".to_owned(), model.into());
        body.insert("messages".to_owned(), self.messages.clone());
        if let Some(tools) = self.tools.as_ref().filter(|_| has_tools) {
            body.insert("tools".to_owned(), tools.clone());
        }
        body.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        body.insert("continue_final_message".to_owned(), input.continue_final_message.into());
        body.insert(
            "add_special_tokens".to_owned(),
            (input.specials == crate::Specials::Add).into(),
        );
        if !kwargs.is_empty() {
            body.insert("chat_template_kwargs".to_owned(), kwargs.into());
        }
        serde_json::to_vec(&Value::Object(body)).map_err(|e| PromptError::Malformed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(body: Value, defaults: Value) -> Result<Value, PromptError> {
        let defaults = defaults.as_object().cloned().unwrap();
        let question = ChatBody::from_value(body)?.question("m", &defaults)?;
        Ok(serde_json::from_slice(&question).unwrap())
    }

    #[test]
    fn everything_that_decides_a_prompt_is_in_its_question() {
        let plain = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let all = asked(plain.clone(), json!({})).unwrap();
        let expected = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}],
            "add_generation_prompt": true, "continue_final_message": false, "add_special_tokens": false});
        assert_eq!(all, expected);
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        let others = [
            ("tools", tool),
            ("add_generation_prompt", json!(false)),
            ("continue_final_message", json!(true)),
            ("add_special_tokens", json!(true)),
            ("reasoning_effort", json!("low")),
            ("chat_template_kwargs", json!({"thinking": true})),
        ];
        let mut seen = vec![all];
        for (name, value) in others {
            let mut body = plain.clone();
            body[name] = value;
            let question = asked(body, json!({})).unwrap();
            assert!(!seen.contains(&question), "{name}: {question}");
            seen.push(question);
        }
    }

    #[test]
    fn a_requests_own_variables_win_over_the_models() {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body["chat_template_kwargs"] = json!({"a": 2, "reasoning_effort": "high"});
        body["reasoning_effort"] = json!("low");
        let question = asked(body, json!({"a": 1, "b": 1})).unwrap();
        let kwargs = json!({"a": 2, "b": 1, "reasoning_effort": "low"});
        assert_eq!(question["chat_template_kwargs"], kwargs);
    }

    #[test]
    fn what_its_answer_would_not_cover_is_no_question() {
        let text = json!([{"role": "user", "content": "Hi"}]);
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        for (body, malformed) in [
            (json!({"messages": image}), false),
            (json!({"messages": text, "chat_template": "x"}), false),
            (json!({"messages": text, "documents": []}), false),
            (json!({"messages": []}), true),
            (json!({"messages": text, "tools": 1}), true),
            (json!({"messages": text, "chat_template_kwargs": 1}), true),
        ] {
            let error = asked(body.clone(), json!({})).unwrap_err();
            assert_eq!(matches!(error, PromptError::Malformed(_)), malformed, "{body}: {error}");
        }
    }
}
