//! What the sans-I/O code must not touch: clocks, sockets, files, the environment, threads, tasks, globals,
//! and maps whose order or hash differs from run to run.
//!
//! A reader of text, not a compiler: it expands `use` trees and looks for whole paths elsewhere, with
//! comments and literals blanked out. That catches what people write; it need not catch an adversary.
//! Tests are free: they read vectors from files.

use super::{Complaint, before_tests, is_test_file};

/// Paths that the code must not name. A path also bars everything below it, and naming a module above
/// it as a whole (`use std::time;`) is barred too, as what follows from it can't be seen.
const BARRED: [(&str, &str); 12] = [
    ("std::time::Instant", CLOCK),
    ("std::time::SystemTime", CLOCK),
    ("std::time::UNIX_EPOCH", CLOCK),
    ("std::net", IO),
    ("std::fs", IO),
    ("std::env", IO),
    ("std::io", IO),
    ("std::process", IO),
    ("std::thread", "whoever calls the core owns the threads"),
    ("tokio", IO),
    ("std::hash::RandomState", ORDER),
    ("std::collections::hash_map::RandomState", ORDER),
];

/// Words that bring a random hash seed, or a global, under whatever path.
const BARRED_WORDS: [(&str, &str); 7] = [
    ("RandomState", ORDER),
    ("HashMap::new(", ORDER),
    ("HashSet::new(", ORDER),
    ("foldhash::HashMap", ORDER),
    ("thread_local!", GLOBAL),
    ("static mut ", GLOBAL),
    ("LazyLock", GLOBAL),
];

/// What makes a `static` a global that changes. As a field of something each is as good as any other.
const CHANGES: [&str; 5] = ["Once", "Cell", "Mutex", "RwLock", "Atomic"];

const CLOCK: &str = "time is an argument, homing_core::time::Time";
const IO: &str = "the core does no I/O";
const GLOBAL: &str = "what a core must remember is a field of it: two in a process share nothing";
const ORDER: &str = "use a BTreeMap, or a hash map with foldhash's FixedState";

/// True for the files that must be free of I/O: the core's, and the simulator's engine model.
pub(super) fn applies(name: &str) -> bool {
    let model = name
        .strip_prefix("crates/homing-sim/src/")
        .is_some_and(|rest| rest == "engine.rs" || rest.starts_with("engine/"));
    name.ends_with(".rs")
        && (name.starts_with("crates/homing-core/src/") || model)
        && !is_test_file(name)
}

/// Complaints about one file.
pub(super) fn check(name: &str, text: &str) -> Vec<Complaint> {
    let kept: String =
        text.lines().take(before_tests(text)).flat_map(|line| [line, "\n"]).collect();
    let code = blank(&kept);
    let mut complaints = Vec::new();
    let mut complain = |at: usize, what: &str, why: &str| {
        let line = code[..at].matches('\n').count() + 1;
        complaints.push(format!("{name}:{line}: `{what}`: {why}"));
    };
    for (at, path) in paths(&code) {
        if let Some((_, why)) = BARRED.iter().find(|(barred, _)| bars(barred, &path)) {
            complain(at, &path, why);
        }
    }
    for (word, why) in BARRED_WORDS {
        for (at, _) in code.match_indices(word) {
            complain(at, word.trim_end(), why);
        }
    }
    for (at, what) in statics(&code) {
        if CHANGES.iter().any(|word| what.contains(word)) {
            complain(at, what, GLOBAL);
        }
    }
    for map in ["HashMap", "HashSet"] {
        let std_map = format!("std::collections::{map}");
        if !code.contains("FixedState")
            && let Some((at, path)) = paths(&code).into_iter().find(|(_, path)| *path == std_map)
        {
            complain(at, &path, ORDER);
        }
    }
    complaints.sort();
    complaints.dedup();
    complaints
}

/// Every `static NAME: TYPE` with the place where it begins.
fn statics(code: &str) -> impl Iterator<Item = (usize, &str)> {
    const STATIC: &str = "static ";
    code.match_indices(STATIC).filter_map(|(at, _)| {
        // A lifetime of that name stands behind its tick.
        let starts = code[..at].chars().next_back().is_none_or(|c| !is_word(c) && c != '\'');
        let rest = &code[at..];
        let item = rest.split(['=', ';']).next().unwrap_or(rest).trim_end();
        (starts && item.contains(':')).then_some((at, item))
    })
}

/// True if `path` is the barred one, lies below it, or takes in a whole module above it.
fn bars(barred: &str, path: &str) -> bool {
    let path = path.strip_suffix("::self").unwrap_or(path);
    if let Some(above) = path.strip_suffix("::*") {
        return barred.starts_with(&format!("{above}::")) || below(path, barred);
    }
    below(path, barred) || (path.contains("::") && barred.starts_with(&format!("{path}::")))
}

fn below(path: &str, barred: &str) -> bool {
    path.strip_prefix(barred).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every path in the code with the place where it begins: `use` trees expanded, others as written.
/// Only those from `std` and `tokio` matter, so only those are collected.
fn paths(code: &str) -> Vec<(usize, String)> {
    const ROOTS: [&str; 2] = ["std", "tokio"];
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(offset) = code[from..].find(|c: char| c.is_alphabetic() || c == '_') {
        let start = from + offset;
        let word: String = code[start..].chars().take_while(|c| is_word(*c)).collect();
        from = start + word.len();
        if word == "use" {
            let end = code[from..].find(';').map_or(code.len(), |at| from + at);
            expand("", &code[from..end], &mut |path| {
                let path = path.trim_start_matches("::").to_owned();
                if ROOTS.iter().any(|root| below(&path, root)) {
                    found.push((start, path));
                }
            });
            from = end;
        } else if ROOTS.contains(&word.as_str()) && code[from..].starts_with("::") {
            let path: String =
                code[start..].chars().take_while(|c| is_word(*c) || *c == ':').collect();
            from = start + path.len();
            let path = path.trim_end_matches(':').to_owned();
            found.push((start, path));
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Calls `with` for each path of a `use` tree; `a::{b, c::*}` gives `a::b` and `a::c::*`. The depth of
/// the tree bounds the recursion.
fn expand(prefix: &str, tree: &str, with: &mut impl FnMut(String)) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        let path: String = path.chars().filter(|c| !c.is_whitespace()).collect();
        return with(format!("{prefix}{path}"));
    };
    let head: String = tree[..open].chars().filter(|c| !c.is_whitespace()).collect();
    let prefix = format!("{prefix}{head}");
    let close = tree.rfind('}').unwrap_or(tree.len());
    let (mut depth, mut start) = (0_usize, open + 1);
    for (at, c) in tree.char_indices().filter(|(at, _)| (open + 1..=close).contains(at)) {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                if !tree[start..at].trim().is_empty() {
                    expand(&prefix, &tree[start..at], with);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The code with comments and string literals blanked, each byte by a space, so that places stay.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                until(bytes, at, |rest| rest[0] == b'\n', 0)
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                until(bytes, at + 2, |rest| rest.starts_with(b"*/"), 2)
            }
            b'\'' if bytes[at..].starts_with(b"'\"'") => at + 3,
            b'\'' if bytes[at..].starts_with(b"'\\\"'") => at + 4,
            b'r' if bytes[at..].starts_with(b"r#\"") => {
                until(bytes, at + 3, |rest| rest.starts_with(b"\"#"), 2)
            }
            b'"' => string_end(bytes, at + 1),
            _ => at,
        };
        if end == at {
            out.push(if bytes[at].is_ascii() { bytes[at] } else { b' ' });
            at += 1;
        }
        while at < end {
            out.push(if bytes[at] == b'\n' { b'\n' } else { b' ' });
            at += 1;
        }
    }
    // only ASCII was pushed
    String::from_utf8(out).unwrap_or_default()
}

/// The first place from `at` where `stop` holds, plus `past`; the end if there is none.
fn until(bytes: &[u8], at: usize, stop: impl Fn(&[u8]) -> bool, past: usize) -> usize {
    (at..bytes.len()).find(|&i| stop(&bytes[i..])).map_or(bytes.len(), |i| i + past)
}

/// Just past the quote that closes a string whose inside begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

#[cfg(test)]
#[path = "sans_io_tests.rs"]
mod tests;
