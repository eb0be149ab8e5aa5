//! Makes `assets/tokenizer`: the project's own tokenizer and chat template, which the demo, the
//! mock engine and the tests share. They imitate the *form* of real ones (HF `tokenizers`
//! byte-level BPE, a ChatML-like template) and owe no content to any: words, merges and markup are
//! ours.
//!
//! The trick is in the splitting rule ([`SPLIT`]): a line feed always stands alone and no piece is
//! longer than a few dozen bytes. So text that follows a line feed or a special token never changes
//! the tokens before it (a conversation's next turn extends its token prefix exactly), and encoding
//! stays linear however long a "word" a client sends.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

/// Where the files live, from the repository's root.
pub(crate) const FOLDER: &str = "assets/tokenizer";

/// The chat template (Jinja). Its source is kept as a file beside this one to be readable.
const TEMPLATE: &str = include_str!("tokenizer_template.jinja");

/// The words that the merges are learned from, most frequent first.
const WORDS: &str = include_str!("tokenizer_words.txt");

/// How many merges are learned. With these the words above are mostly one token each, and the file
/// stays under 100 KB.
const MERGES: usize = 2_000;

/// The special tokens, in the order of their ids, which follow the merges'.
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Pieces that are merged within: a word, up to three digits, a run of signs (each with at most one
/// space before it), a line feed alone, other white space but for the last of a run before text.
const SPLIT: &str = concat!(
    r" ?\p{L}{1,24}| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]{1,12}",
    r"|\n|[^\S\n]{1,16}(?=[^\S\n])|[^\S\n]"
);

/// The generated files: name within [`FOLDER`] and content. The same bytes on every machine.
pub(crate) fn files() -> Vec<(&'static str, String)> {
    vec![
        ("tokenizer.json", pretty(&tokenizer())),
        ("tokenizer_config.json", pretty(&config())),
        ("chat_template.jinja", TEMPLATE.to_owned()),
    ]
}

/// Writes [`files`] under `root`, the repository's root.
///
/// # Errors
/// Where a file cannot be written; the message names it.
pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, content) in files() {
        let path = folder.join(name);
        std::fs::write(&path, content)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn tokenizer() -> Value {
    let merges = learn(&corpus(), MERGES);
    // A byte's id is its value; a merge's id is 256 plus its rank.
    let mut vocab = Map::new();
    for byte in 0..=u8::MAX {
        vocab.insert(byte_char(byte).to_string(), json!(byte));
    }
    for (left, right) in &merges {
        let id = vocab.len();
        vocab.insert(format!("{left}{right}"), json!(id));
    }
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(i, content)| {
            json!({
                "id": vocab.len() + i, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .collect();
    let byte_level = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": use_regex,
        })
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split", "pattern": { "Regex": SPLIT }, "behavior": "Isolated",
                    "invert": false,
                },
                byte_level(false),
            ],
        },
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges.iter().map(|(l, r)| format!("{l} {r}")).collect::<Vec<_>>(),
        },
    })
}

fn config() -> Value {
    json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "bos_token": null,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "model_max_length": 131_072,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": null,
    })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// The visible character that stands for a byte in a byte-level vocabulary: itself where Latin-1
/// prints it, else the next free code point from U+0100 (the convention of GPT-2's encoder, which
/// `tokenizers` calls `ByteLevel`).
fn byte_char(byte: u8) -> char {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    if prints(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !prints(*b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Pieces of text with their weights. Each word comes as in running text (after a space), at a
/// line's beginning and with a capital; then what code and JSON are full of.
fn corpus() -> Vec<(String, u64)> {
    let mut pieces = Vec::new();
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    for (rank, word) in words.iter().enumerate() {
        // Frequencies of words fall about as 1 / rank (Zipf); the floor keeps rare ones learnable.
        let weight = 40 + 20_000 / (rank as u64 + 10);
        pieces.push((format!(" {word}"), weight * 4));
        pieces.push(((*word).to_owned(), weight));
        let mut chars = word.chars();
        let capital: String =
            chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect();
        pieces.push((capital, weight / 4));
    }
    let signs = [
        "  ",
        "    ",
        "        ",
        "            ",
        ", ",
        " =",
        " ==",
        " !=",
        " ->",
        " =>",
        "::",
        "();",
        "()",
        "()?",
        ");",
        "\":",
        " \"",
        "\",",
        " {",
        " }",
        "{\"",
        "\"}",
        "},",
        " [",
        "],",
        "//",
        " //",
        "///",
        " ///",
        "/*",
        "*/",
        "--",
        "---",
        " --",
        "...",
        " &",
        " &&",
        " ||",
        "\"\"",
        "''",
        "```",
        "</",
        "/>",
        " <",
        "://",
        "**",
        " **",
        " #",
        "##",
        " (",
        ").",
        "),",
        " +",
        " -",
        " *",
        " /",
        " |",
        " :",
        " `",
        "`.",
        "`,",
        "__",
    ];
    pieces.extend(signs.iter().map(|sign| ((*sign).to_owned(), 300)));
    // All the two-digit numbers, alone and after a space: half the tokens for identifiers and
    // dates.
    for n in 0..100 {
        pieces.push((format!("{n:02}"), 60));
        pieces.push((format!(" {n}"), 60));
    }
    pieces
}

/// Byte-pair encoding's learning (Sennrich et al. 2016): again and again joins the heaviest pair of
/// neighbours; among equals the first in alphabetical order, so that the outcome is one.
fn learn(pieces: &[(String, u64)], count: usize) -> Vec<(String, String)> {
    let mut words: Vec<(Vec<String>, u64)> = pieces
        .iter()
        .map(|(text, weight)| (text.bytes().map(|b| byte_char(b).to_string()).collect(), *weight))
        .collect();
    let mut merges = Vec::with_capacity(count);
    while merges.len() < count {
        let mut pairs: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (symbols, weight) in &words {
            for (left, right) in symbols.iter().zip(symbols.iter().skip(1)) {
                *pairs.entry((left, right)).or_default() += weight;
            }
        }
        let best = pairs.iter().max_by(|a, b| a.1.cmp(b.1).then_with(|| b.0.cmp(a.0)));
        let Some(((left, right), _)) = best else { break };
        let (left, right) = ((*left).to_owned(), (*right).to_owned());
        for (symbols, _) in &mut words {
            join(symbols, &left, &right);
        }
        merges.push((left, right));
    }
    merges
}

fn join(symbols: &mut Vec<String>, left: &str, right: &str) {
    let mut at = 0;
    while at + 1 < symbols.len() {
        if symbols[at] == left && symbols[at + 1] == right {
            let tail = symbols.remove(at + 1);
            symbols[at].push_str(&tail);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The repository's root; this crate lies one folder below it.
    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent folder")
    }

    #[test]
    fn the_committed_files_are_what_the_generator_gives() {
        for (name, content) in files() {
            let path = root().join(FOLDER).join(name);
            let committed = std::fs::read_to_string(&path)
                .unwrap_or_else(|e| panic!("{}: {e}; run `cargo xtask tokenizer`", path.display()));
            assert!(
                committed == content,
                "{} is stale; run `cargo xtask tokenizer`",
                path.display()
            );
        }
    }

    #[test]
    fn bytes_have_distinct_visible_characters() {
        let chars: std::collections::BTreeSet<char> = (0..=u8::MAX).map(byte_char).collect();
        assert_eq!(chars.len(), 256);
        assert!(chars.iter().all(|c| !c.is_whitespace() && !c.is_control()));
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(b'a')), ('Ġ', 'Ċ', 'a'));
    }

    #[test]
    fn learning_joins_the_heaviest_pair_first_and_ties_alphabetically() {
        let pieces = [("abab".to_owned(), 2), ("cd".to_owned(), 4), ("xy".to_owned(), 1)];
        let merges = learn(&pieces, 10);
        let as_text: Vec<String> = merges.iter().map(|(l, r)| format!("{l}+{r}")).collect();
        // "ab" weighs 2 * 2 and "cd" 4: equal, so "ab" is first. Then nothing is left but "abab"
        // and "xy".
        assert_eq!(as_text, ["a+b", "c+d", "ab+ab", "x+y"]);
    }
}
