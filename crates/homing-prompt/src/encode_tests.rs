//! Encoding: round trips, boundaries that never move, a completion's four forms, and real
//! tokenizers.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::{real_model, shared};

fn omit(model: &ModelPrompt, text: &str) -> Vec<u32> {
    model.encode_text(text, Specials::Omit).unwrap()
}

/// Arbitrary text, and text as prompts have it: words, code, blanks, special tokens.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "\\PC{0,200}",
        "([a-z]{1,12}|[ \n\t]{1,20}|[0-9]{1,9}|<\\|im_end\\|>|[{}\"':;,.=]{1,20}|é|中文|👩‍👩‍👧){0,60}",
    ]
}

proptest! {
    #[test]
    fn decoding_gives_the_text_back(text in text()) {
        let model = ModelPrompt::builtin();
        prop_assert_eq!(model.decode(&omit(&model, &text)).unwrap(), text);
    }

    /// Tokens never span a line feed or a special token: what the demo's hit rate and the mock rely
    /// on.
    #[test]
    fn text_after_a_line_feed_or_a_special_token_encodes_on_its_own(a in text(), b in text(), c in text()) {
        let model = ModelPrompt::builtin();
        let whole = omit(&model, &format!("{a}<|im_start|>assistant\n{b}<|im_end|>{c}"));
        let parts = [a, "<|im_start|>assistant\n".into(), b, "<|im_end|>".into(), c];
        let joined: Vec<u32> = parts.iter().flat_map(|part| omit(&model, part)).collect();
        prop_assert_eq!(whole, joined);
    }
}

#[test]
fn english_and_code_take_several_bytes_per_token() {
    let model = ModelPrompt::builtin();
    let prose = "The server keeps a session on the worker that already holds its cache, because reading \
        the whole prompt again would cost time and memory that other users need.";
    let code = "fn main() {\n    let value = read_config(path)?;\n    if value.is_empty() {\n        return Err(error);\n    }\n}\n";
    for (text, least) in [(prose, 4.0), (code, 2.0)] {
        let ratio = text.len() as f64 / omit(&model, text).len() as f64;
        assert!(ratio > least, "{ratio:.2} bytes per token: {text}");
    }
}

#[test]
fn special_tokens_in_text_are_special_as_in_vllm() {
    let model = ModelPrompt::builtin();
    let end = model.token_id("<|im_end|>").unwrap();
    assert_eq!(model.eos_id(), Some(end));
    assert_eq!(omit(&model, "<|im_end|>"), [end]);
    assert!(omit(&model, "a<|im_end|>b").contains(&end));
    assert!(!omit(&model, "a<|im_end |>b").contains(&end));
    assert_eq!(model.vocab_size(), end as usize + 1);
}

#[test]
fn a_completion_has_four_forms() {
    let model = ModelPrompt::builtin();
    let encode = |prompt: Value| model.encode_completion(&prompt, Specials::Add);
    let (a, b) = (omit(&model, "one"), omit(&model, "two words"));
    assert_eq!(encode(json!("one")).unwrap(), vec![a.clone()]);
    assert_eq!(encode(json!(["one", "two words"])).unwrap(), [a, b]);
    assert_eq!(encode(json!([7, 8, 4_294_967_295_u32])).unwrap(), [vec![7, 8, u32::MAX]]);
    assert_eq!(encode(json!([[7], [8, 9], []])).unwrap(), [vec![7], vec![8, 9], vec![]]);
}

#[test]
fn malformed_completions_are_errors() {
    let model = ModelPrompt::builtin();
    for prompt in [
        json!(null),
        json!(3),
        json!({}),
        json!([]),
        json!([null]),
        json!([1, "a"]),
        json!([[1], ["a"]]),
        json!([-1]),
        json!([1.5]),
        json!([4_294_967_296_u64]),
        json!([[1], {}]),
        json!(vec!["a"; PROMPTS + 1]),
    ] {
        let error = model.encode_completion(&prompt, Specials::Add).unwrap_err();
        assert!(matches!(error, PromptError::Malformed(_)), "{error}");
    }
    let long = "x".repeat(TEXT_LIMIT / 2 + 1);
    for prompt in [json!([long, long]), json!(long.repeat(2))] {
        let error = model.encode_completion(&prompt, Specials::Add).unwrap_err();
        assert!(matches!(error, PromptError::TooLong { .. }), "{error}");
    }
}

/// Pieces longer than the pre-tokenizer's bounds would make encoding slow; so no token run may be
/// one piece.
#[test]
fn long_words_are_cut() {
    let model = ModelPrompt::builtin();
    for (unit, piece) in [("a", 24), ("-", 12), (" ", 16), ("7", 3), ("é", 24)] {
        let ids = omit(&model, &unit.repeat(3_000));
        assert!(ids.len() >= 3_000 / (piece + 1), "{unit:?}: {}", ids.len());
        assert_eq!(model.decode(&ids).unwrap(), unit.repeat(3_000));
    }
}

// === real tokenizers ===

/// Vectors made by Hugging Face's Python package for real models' tokenizers.
#[test]
fn encodes_as_hugging_face_does() {
    for name in ["qwen3", "deepseek_v3", "tinyllama"] {
        let Some(model) = real_model(name) else { return };
        let file =
            std::fs::read(shared(&format!("tokenizers/{name}/encode_vectors.json"))).unwrap();
        let file: Value = serde_json::from_slice(&file).unwrap();
        let vectors = file["vectors"].as_array().unwrap();
        assert!(vectors.len() >= 20, "{name} has only {} vectors", vectors.len());
        for vector in vectors {
            let text = vector["text"].as_str().unwrap();
            for (specials, member) in [(Specials::Add, "ids"), (Specials::Omit, "ids_no_special")] {
                let ours = model.encode_text(text, specials).unwrap();
                assert_eq!(json!(ours), vector[member], "{name} {member} of {text:?}");
            }
        }
    }
}
