//! `cargo bench -p homing-prompt`: what the next turn of a long conversation costs against the whole.
//!
//! A conversation of about 100 000 tokens, then another user's message of 500: rendered, encoded and
//! hashed the plain way, and by `chat_prompt` when it has seen all but that message. The text is the
//! project's own documents and sources, each next turn another piece of them. Rounds alternate.
//! Folders of models come as arguments or in `HOMING_BENCH_MODELS` (separated by colons); without any
//! it is the built-in one alone.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use homing_core::hash::{HashSpace, Prompt};
use homing_prompt::{ChatInput, ModelPrompt, PromptError, Specials};
use serde_json::{Value, json};

const BLOCK: u32 = 16;

/// Next turns for each plain rendering: they are quick.
const TURNS: usize = 8;

/// All documents and sources of the project, over and over.
struct Corpus {
    text: String,
    at: usize,
}

impl Corpus {
    fn read() -> std::io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut text = String::new();
        for folder in
            ["docs", "crates/homing-core/src", "crates/homing-wire/src", "crates/homing-hosts/src"]
        {
            let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(folder))?
                .map(|e| e.map(|e| e.path()))
                .collect::<Result<_, _>>()?;
            files.sort();
            for file in
                files.iter().filter(|f| f.extension().is_some_and(|e| e == "md" || e == "rs"))
            {
                text.push_str(&std::fs::read_to_string(file)?);
            }
        }
        Ok(Self { text, at: 0 })
    }

    /// The next piece of about so many bytes.
    fn piece(&mut self, bytes: usize) -> &str {
        let from = if self.at + bytes < self.text.len() { self.at } else { 0 };
        let from = self.text.floor_char_boundary(from);
        self.at = self.text.floor_char_boundary(from + bytes);
        &self.text[from..self.at]
    }
}

/// Turns of about 500 tokens each, until there are `tokens` of them.
fn conversation(
    model: &ModelPrompt,
    corpus: &mut Corpus,
    tokens: usize,
) -> Result<Vec<Value>, PromptError> {
    let mut messages = vec![json!({ "role": "system", "content": corpus.piece(4000) })];
    let mut sum = 0;
    while sum < tokens {
        for (role, bytes) in [("user", 400), ("assistant", 1500)] {
            let text = corpus.piece(bytes);
            sum += model.encode_text(text, Specials::Omit)?.len();
            messages.push(json!({ "role": role, "content": text }));
        }
    }
    Ok(messages)
}

/// The median and the least.
fn summed_up(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn timed<T>(work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_secs_f64() * 1e6
}

fn measure(
    name: &str,
    model: &ModelPrompt,
    tokens: usize,
    rounds: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut corpus = Corpus::read()?;
    let known = conversation(model, &mut corpus, tokens)?;
    let mut next = || {
        let mut messages = known.clone();
        // Some 500 tokens: what a byte is worth differs by tokenizer.
        let (mut text, mut sum) = (String::new(), 0);
        while sum < 490 {
            let piece = corpus.piece(40);
            sum += model.encode_text(piece, Specials::Omit)?.len();
            text.push_str(piece);
        }
        messages.push(json!({ "role": "user", "content": text }));
        Ok::<_, PromptError>(Value::Array(messages))
    };
    let space = HashSpace::default();
    let (mut full, mut turn) = (Vec::new(), Vec::new());
    let (mut render, mut encode, mut hash) = (Vec::new(), Vec::new(), Vec::new());
    let mut count = 0;
    model.chat_prompt(&ChatInput::new(&next()?), BLOCK, space)?;
    for _ in 0..rounds {
        for _ in 0..TURNS {
            let messages = next()?;
            let input = ChatInput::new(&messages);
            turn.push(timed(|| model.chat_prompt(&input, BLOCK, space)));
            let text = model.render_chat(&input)?;
            render.push(timed(|| model.render_chat(&input)));
            encode.push(timed(|| model.encode_cached(&text, Specials::Omit)));
            let ids = model.encode_cached(&text, Specials::Omit)?;
            hash.push(timed(|| Prompt::from_tokens(&ids, BLOCK, space)));
            count = ids.len();
        }
        let messages = next()?;
        let input = ChatInput::new(&messages);
        full.push(timed(|| {
            model.encode_chat(&input).map(|ids| Prompt::from_tokens(&ids, BLOCK, space))
        }));
    }
    let ((full, full_least), (turn, turn_least)) = (summed_up(full), summed_up(turn));
    println!(
        "{name}: tokens={count} full_us={full:.0} next_turn_us={turn:.0} ratio=1/{:.0} \
         (least: {full_least:.0} {turn_least:.0} 1/{:.0})",
        full / turn,
        full_least / turn_least,
    );
    let [render, encode, hash] = [render, encode, hash].map(summed_up);
    println!(
        "  of it, median (least): render_us={:.0} ({:.0}) encode_known_us={:.0} ({:.0}) hash_us={:.0} ({:.0})",
        render.0, render.1, encode.0, encode.1, hash.0, hash.1,
    );
    println!("  {:?}", model.cache_stats());
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo bench` says so; `cargo test` wants to know only whether it works.
    let full = std::env::args().any(|a| a == "--bench");
    let (tokens, rounds) = if full { (100_000, 9) } else { (2_000, 1) };
    measure("built-in", &ModelPrompt::builtin(), tokens, rounds)?;
    let named = std::env::var("HOMING_BENCH_MODELS").unwrap_or_default();
    let folders = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    for folder in folders.chain(named.split(':').filter(|f| !f.is_empty()).map(str::to_owned)) {
        measure(&folder, &ModelPrompt::load(Path::new(&folder))?, tokens, rounds)?;
    }
    Ok(())
}
