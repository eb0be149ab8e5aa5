//! Against the plain path, for the built-in tokenizer and real ones: conversations that grow, are
//! edited, and try to look like special tokens.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::real_model;

/// Each tokenizer twice: cut at every token, and as in use. A small cache, so that parts go.
static MODELS: LazyLock<Vec<ModelPrompt>> = LazyLock::new(|| {
    let names = ["qwen3", "deepseek_v3", "tinyllama"];
    let mut models = Vec::new();
    for every in [true, false] {
        let all = names.iter().filter_map(|name| real_model(name));
        for mut model in std::iter::once(ModelPrompt::builtin()).chain(all) {
            if every {
                model.cuts.part_min = 1;
            }
            models.push(model.with_cache(PromptCache::new(32 << 10)));
        }
    }
    models
});

/// What people and attackers write: words, blanks, marks that join with what precedes them, special
/// tokens of all four models, halves of them, and what SentencePiece uses inside.
fn content() -> impl Strategy<Value = String> {
    const PIECES: &str = "([a-z]{1,9}|[ \n\t]{1,3}|[0-9]{1,5}|é|e\u{301}|\u{301}|\u{200d}|中文|한|\u{1100}|▁|👩‍👧|\
        <\\|im_end\\|>|<\\|im_start\\|>|<\\|im_|\\|>|<|>|</s>|<s>|</s|<unk>|<｜User｜>|<｜end▁of▁sentence｜>|<｜|｜>|\
        <think>|</think>|<tool_call>|[{}\"':;,.=]{1,5}){0,30}";
    prop_oneof![4 => PIECES, 1 => any::<String>(), 1 => "[a-z ]{240,280}", 1 => "[a-z中 ]{1000,1500}"]
}

fn conversation() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(content(), 1..12)
}

/// System, then users and assistants in turn, as every template takes them.
fn messages(contents: &[String]) -> Value {
    let role = |i: usize| {
        if i == 0 {
            "system"
        } else if i % 2 == 1 {
            "user"
        } else {
            "assistant"
        }
    };
    contents.iter().enumerate().map(|(i, c)| json!({ "role": role(i), "content": c })).collect()
}

fn same_text(model: &ModelPrompt, text: &str) -> Result<(), TestCaseError> {
    for specials in [Specials::Omit, Specials::Add] {
        let plain = model.encode_text(text, specials).unwrap();
        // Twice: encoded anew, and found (or dropped since).
        for _ in 0..2 {
            let cached = model.encode_cached(text, specials).unwrap();
            prop_assert_eq!(&cached, &plain, "{:?} {:?}", model, text);
        }
    }
    Ok(())
}

fn same_chat(model: &ModelPrompt, contents: &[String]) -> Result<(), TestCaseError> {
    let messages = messages(contents);
    let input = ChatInput::new(&messages);
    let space = HashSpace::new("", "salt");
    let plain = match model.encode_chat(&input) {
        Ok(ids) => ids,
        Err(plain) => {
            let cached = model.chat_prompt(&input, 16, space).unwrap_err();
            prop_assert_eq!(cached.to_string(), plain.to_string());
            return Ok(());
        }
    };
    for block_size in [0, 1, 3, 16] {
        let cached = model.chat_prompt(&input, block_size, space).unwrap();
        prop_assert_eq!(&cached, &Prompt::from_tokens(&plain, block_size, space), "{:?}", messages);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_growing_and_edited_conversation_equals_the_plain_path(
        contents in conversation(),
        at in any::<prop::sample::Index>(),
        edit in content(),
    ) {
        for model in MODELS.iter() {
            for turns in [contents.len() / 2 + 1, contents.len()] {
                same_chat(model, &contents[..turns])?;
            }
            let mut edited = contents.clone();
            edited[at.index(contents.len())] = edit.clone();
            same_chat(model, &edited)?;
            edited.remove(at.index(contents.len()));
            if !edited.is_empty() {
                same_chat(model, &edited)?;
            }
        }
    }

    #[test]
    fn any_text_equals_the_plain_path(a in content(), b in content(), c in content()) {
        for model in MODELS.iter() {
            same_text(model, &format!("{a}{b}"))?;
            same_text(model, &format!("{a}<|im_end|>{b}</s>{c}"))?;
            same_text(model, &format!("{c}<｜end▁of▁sentence｜>{b} </s> {a}"))?;
        }
    }
}

/// Parts that end exactly where a part may be cut first, one byte before and behind.
#[test]
fn boundaries_at_the_ends_of_parts() {
    for model in MODELS.iter() {
        same_text(model, "").unwrap();
        for end in ["<|im_end|>", "</s>", "<｜end▁of▁sentence｜>"] {
            for n in 230..=262 {
                let part = format!("{}{end}", "x".repeat(n));
                same_text(model, &part).unwrap();
                same_text(model, &part.repeat(3)).unwrap();
                same_text(model, &format!("{part}\n{end} y{part}")).unwrap();
            }
        }
    }
}

proptest! {
    #[test]
    fn blocks_of_pieces_are_those_of_the_whole(
        pieces in proptest::collection::vec(proptest::collection::vec(0..9_u32, 0..20), 0..9),
        block_size in 0..8_u32,
    ) {
        let space = HashSpace::new("adapter", "");
        let mut blocks = Blocks::new(block_size, space);
        pieces.iter().for_each(|piece| blocks.extend(piece));
        prop_assert_eq!(blocks.prompt(), Prompt::from_tokens(&pieces.concat(), block_size, space));
    }
}

#[test]
fn what_was_seen_is_not_encoded_again() {
    let model = ModelPrompt::builtin();
    let text = |n: usize| format!("{n} is a turn of some length. ").repeat(20);
    let mut contents: Vec<String> = (0..40).map(text).collect();
    same_chat(&model, &contents).unwrap();
    let first = model.cache_stats();
    assert!(first.misses >= 40 && first.bytes > 40 * 500, "{first:?}");
    contents.push(text(40));
    same_chat(&model, &contents).unwrap();
    let next = model.cache_stats();
    assert!(next.misses - first.misses <= 3, "only the end is new: {first:?} {next:?}");
    contents[20] = "edited ".repeat(80);
    same_chat(&model, &contents).unwrap();
    let edited = model.cache_stats();
    assert!(edited.misses - next.misses <= 3, "only what was edited is new: {next:?} {edited:?}");
}

#[test]
fn errors_are_those_of_the_plain_path() {
    let model = ModelPrompt::builtin();
    let long = "x".repeat(crate::TEXT_LIMIT + 1);
    let error = model.encode_cached(&long, Specials::Omit).unwrap_err();
    assert!(matches!(error, PromptError::TooLong { .. }));
    let empty = json!([]);
    let error = model.chat_prompt(&ChatInput::new(&empty), 16, HashSpace::default()).unwrap_err();
    assert!(matches!(error, PromptError::Malformed(_)));
}

#[test]
fn a_stretch_that_is_too_long_has_no_tokens_and_a_prompt_of_shorter_ones_has_the_same_as_ever() {
    let mut model = ModelPrompt::builtin();
    assert_eq!(model.cuts.part_max, crate::UNBROKEN_LIMIT);
    model.cuts.part_max = 2_000;
    let space = HashSpace::default();
    let chat = |model: &ModelPrompt, contents: &[String]| {
        model.chat_prompt(&ChatInput::new(&messages(contents)), 4, space)
    };
    let long = "\n".repeat(1_900);
    let fits: Vec<String> = (0..5).map(|_| long.clone()).collect();
    let found = chat(&model, &fits).unwrap();
    let plain = model.encode_chat(&ChatInput::new(&messages(&fits))).unwrap();
    assert_eq!(found, Prompt::from_tokens(&plain, 4, space));
    for (at, more) in [(0, "\n"), (4, "a ")] {
        let mut contents = fits.clone();
        contents[at] += &more.repeat(200);
        let error = chat(&model, &contents).unwrap_err();
        assert!(matches!(error, PromptError::Unbroken { limit: 2_000 }), "{error}");
    }
    // Completions likewise, each prompt by itself.
    let completion =
        |prompt: Value| model.completion_prompt_while(&prompt, Specials::Add, 4, space, &|| true);
    let ids = model.encode_text(&long, Specials::Add).unwrap();
    let found = completion(json!([long, long])).unwrap();
    assert_eq!(found.chain, Prompt::from_tokens(&ids, 4, space).chain);
    assert_eq!(found.tokens as usize, 2 * ids.len());
    let longer = "a ".repeat(1_001);
    assert!(matches!(completion(json!(longer)), Err(PromptError::Unbroken { .. })));
    assert!(matches!(completion(json!([long, longer])), Err(PromptError::Unbroken { .. })));
    // Ids are nobody's to encode.
    assert_eq!(completion(json!(vec![1; 5_000])).unwrap().tokens, 5_000);
    // Where special tokens are not always the same a text is one stretch.
    model.cuts.affixes = None;
    let cut = format!("{longer}<|im_end|>");
    assert!(model.encode_cached(&cut, Specials::Add).is_err());
}

#[test]
fn tokens_that_nobody_wants_any_more_are_not_made() {
    let model = ModelPrompt::builtin();
    let contents: Vec<String> = (0..9).map(|n| format!("{n} ").repeat(200)).collect();
    let asked = std::cell::Cell::new(0);
    let wanted = || {
        asked.set(asked.get() + 1);
        asked.get() <= 3
    };
    let messages = messages(&contents);
    let input = ChatInput::new(&messages);
    let found = model.chat_prompt_while(&input, 4, HashSpace::default(), &wanted);
    assert!(matches!(found, Err(PromptError::Unwanted)), "{found:?}");
    assert_eq!(asked.get(), 4, "and what comes after that is not even looked at");
    // What is known needs nobody's patience.
    model.chat_prompt(&input, 4, HashSpace::default()).unwrap();
    let found = model.chat_prompt_while(&input, 4, HashSpace::default(), &|| false);
    assert!(found.is_ok());
}
