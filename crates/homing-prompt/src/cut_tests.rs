//! Which tokens cut, by their flags and neighbours; and that parts give the whole's ids for
//! tokenizers that make it hard.

use std::str::FromStr as _;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::real_model;

/// The built-in tokenizer with other added tokens and other members.
fn tokenizer(added: &[(&str, &[&str])], members: &[(&str, Value)]) -> Tokenizer {
    let file = include_str!("../../../assets/tokenizer/tokenizer.json");
    let mut file: Value = serde_json::from_str(file).unwrap();
    let tokens = added.iter().enumerate().map(|(i, (content, flags))| {
        let mut token = json!({ "id": 2256 + i, "content": content });
        for flag in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
            token[flag] = flags.contains(&flag).into();
        }
        token
    });
    file["added_tokens"] = tokens.collect();
    for (name, value) in members {
        file[name] = value.clone();
    }
    Tokenizer::from_str(&file.to_string()).unwrap()
}

fn cuts(added: &[(&str, &[&str])], members: &[(&str, Value)]) -> Vec<String> {
    Cuts::of(&tokenizer(added, members)).tokens
}

fn prepend() -> Value {
    json!({ "type": "Prepend", "prepend": "_" })
}

#[test]
fn special_tokens_of_the_built_in_and_of_real_models_cut() {
    let builtin = &crate::ModelPrompt::builtin().cuts;
    assert_eq!(builtin.tokens, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]);
    assert_eq!(builtin.anchor(), Some("<|im_end|>"));
    for (name, tokens) in [
        ("qwen3", &["<|im_end|>", "<|im_start|>", "<think>", "</tool_call>"][..]),
        ("deepseek_v3", &["<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]),
        ("tinyllama", &["<s>", "</s>"]),
    ] {
        let Some(model) = real_model(name) else { continue };
        for token in tokens {
            // <think> is not an added token in every edition of the model.
            let added = model.tokenizer.get_added_vocabulary().get_vocab().contains_key(*token);
            assert!(!added || model.cuts.tokens.iter().any(|t| t == token), "{name}: {token}");
        }
        assert!(model.cuts.tokens.iter().any(|t| t == tokens[0]), "{name}");
    }
}

#[test]
fn a_token_that_its_surroundings_change_does_not_cut() {
    assert_eq!(cuts(&[("<a>", &[]), ("<b>", &["lstrip"])], &[]), ["<a>", "<b>"]);
    assert_eq!(cuts(&[("<a>", &[]), ("<b>", &["rstrip"])], &[]), ["<a>"]);
    assert_eq!(cuts(&[("<a>", &[]), (" <b>", &[]), ("<c>\n", &[]), ("\n\n", &[])], &[]), ["<a>"]);
    assert!(cuts(&[("<a>", &[]), ("<b>", &["single_word"])], &[]).is_empty());
    let (longest, longer) = ("-".repeat(TOKEN_BYTES_MAX), "-".repeat(TOKEN_BYTES_MAX + 1));
    assert_eq!(cuts(&[("<a>", &[]), (&longest, &[])], &[]), ["<a>"]);
    assert!(cuts(&[("<a>", &[]), (&longer, &[])], &[]).is_empty());
    assert!(cuts(&[], &[]).is_empty());
}

#[test]
fn tokens_that_meet_do_not_cut() {
    // Held by another, at each end and inside.
    assert_eq!(cuts(&[("<a>", &[]), ("<a>b", &[])], &[]), Vec::<String>::new());
    assert_eq!(cuts(&[("<a>", &[]), ("<<a>|>", &[]), ("<c>", &[])], &[]), ["<c>"]);
    // One runs into the other.
    assert_eq!(cuts(&[("<a|", &[]), ("|b>", &[]), ("<c>", &[])], &[]), ["<c>"]);
    // One runs into itself.
    assert_eq!(cuts(&[("<a<", &[]), ("[c]", &[])], &[]), ["[c]"]);
}

#[test]
fn normalized_tokens_cut_only_where_nothing_is_normalized() {
    let added: [(&str, &[&str]); 2] = [("<a>", &[]), ("<b>", &["normalized"])];
    assert_eq!(cuts(&added, &[]), ["<a>", "<b>"]);
    assert_eq!(cuts(&added, &[("normalizer", prepend())]), ["<a>"]);
    let empty = json!({ "type": "Sequence", "normalizers": [] });
    assert_eq!(cuts(&added, &[("normalizer", empty)]), ["<a>", "<b>"]);
}

#[test]
fn at_most_three_first_bytes_are_looked_for_and_special_tokens_go_first() {
    let added: [(&str, &[&str]); 5] = [
        ("!a!b", &[]),
        ("$a", &[]),
        ("%a", &["special"]),
        ("&a", &["special"]),
        ("*a", &["special"]),
    ];
    assert_eq!(cuts(&added, &[]), ["%a", "&a", "*a"]);
}

#[test]
fn affixes_are_what_the_tokenizer_adds() {
    let bos = json!({ "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<a>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<a>": { "id": "<a>", "ids": [2256], "tokens": ["<a>"] } } });
    let with = Cuts::of(&tokenizer(&[("<a>", &[])], &[("post_processor", bos)]));
    assert_eq!(with.affixes, Some((vec![2256], vec![])));
    assert_eq!(Cuts::of(&tokenizer(&[], &[])).affixes, Some((vec![], vec![])));
}

#[test]
fn parts_join_to_the_text_and_end_with_tokens() {
    let cuts = &crate::ModelPrompt::builtin().cuts;
    let text = "<|im_start|>user\n<|im_ 中文 <<<|im_end|>".repeat(100) + "and the rest";
    let parts: Vec<&str> = cuts.parts(&text).collect();
    assert_eq!(parts.concat(), text);
    assert!(parts.len() > 10);
    let (last, others) = parts.split_last().unwrap();
    assert!(last.ends_with("the rest"));
    for part in others {
        assert!(part.len() >= PART_MIN && cuts.tokens.iter().any(|t| part.ends_with(t)), "{part}");
    }
    assert_eq!(cuts.parts("").count(), 0);
}

/// Tokenizers whose added tokens or normalizer or pre-tokenizer see what is around them.
fn hard() -> Vec<Tokenizer> {
    let pre = |scheme: &str| json!({ "type": "Metaspace", "replacement": "Ġ", "prepend_scheme": scheme, "split": true });
    let strange: [(&str, &[&str]); 7] = [
        ("<a>", &[]),
        ("<b>", &["lstrip"]),
        ("<c>", &["rstrip"]),
        ("<a>x<a>", &[]),
        ("<d>", &["normalized"]),
        ("<e>", &["lstrip", "rstrip", "normalized"]),
        ("  ", &[]),
    ];
    let meeting: [(&str, &[&str]); 4] =
        [("<a>", &[]), ("<b>", &[]), ("d><", &["normalized"]), ("x<", &[])];
    let plain: [(&str, &[&str]); 3] =
        [("<a>", &[]), ("<b>", &["lstrip"]), ("<d>", &["normalized"])];
    let words: [(&str, &[&str]); 3] =
        [("<a>", &[]), ("<b>", &["lstrip"]), ("xd", &["single_word"])];
    let bytes = |prefix| json!({ "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true });
    let members: Vec<Vec<(&str, Value)>> = vec![
        vec![],
        vec![("pre_tokenizer", pre("first"))],
        vec![("pre_tokenizer", pre("always")), ("normalizer", prepend())],
        vec![("pre_tokenizer", bytes(true)), ("normalizer", json!({ "type": "NFC" }))],
        vec![("normalizer", json!({ "type": "Strip", "strip_left": true, "strip_right": true }))],
        vec![(
            "normalizer",
            json!({ "type": "Replace", "pattern": { "String": "x" }, "content": "<d>" }),
        )],
    ];
    let mut all = Vec::new();
    for members in members {
        for added in [&strange[..], &plain, &words, &meeting] {
            all.push(tokenizer(added, &members));
        }
    }
    all
}

#[test]
fn the_hard_tokenizers_are_cut_at_all() {
    let counts: Vec<usize> = hard().iter().map(|t| Cuts::of(t).tokens.len()).collect();
    for four in counts.chunks(4) {
        let [strange, plain, words, meeting] = four else { panic!("{counts:?}") };
        assert!(*strange > 0 && *plain > 1 && *words == 0 && *meeting == 0, "{counts:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn parts_give_the_ids_of_the_whole(
        text in "(<a>|<b>|<c>|<d>|<e>|<a|a>|<|>|x|d| |  |\n|e|\u{301}|é|Ġ|_|7|中){0,24}",
    ) {
        thread_local! {
            static HARD: Vec<(Cuts, Tokenizer)> = hard()
                .into_iter()
                .map(|t| (Cuts { part_min: 1, ..Cuts::of(&t) }, t))
                .collect();
        }
        HARD.with(|hard| {
            for (at, (cuts, tokenizer)) in hard.iter().enumerate() {
            let encode = |text: &str| tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
            let mut joined = Vec::new();
            for (i, part) in cuts.parts(&text).enumerate() {
                let anchor = cuts.anchor().filter(|_| i > 0);
                let ids = encode(&format!("{}{part}", anchor.unwrap_or_default()));
                joined.extend_from_slice(&ids[usize::from(anchor.is_some())..]);
            }
            prop_assert_eq!(joined, encode(&text), "tokenizer {}: {:?}", at, cuts.tokens);
            }
            Ok(())
        })?;
    }
}
