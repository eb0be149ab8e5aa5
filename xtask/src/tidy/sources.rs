//! What every source file must have, and must not have left behind.
//!
//! An opening says what the file is for; the bound on its length keeps it one idea; a work marker is
//! an issue that nobody would find.

use super::{Complaint, before_tests, is_test_file};

/// The most lines of a file before its tests; what is made of something else (`generated.rs`) has as many as it has.
const LINES_MAX: usize = 500;

/// Words that mark unfinished work. Spelled in halves, because this file is checked too.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// True for the names of files that are checked.
pub(super) fn is_source(name: &str) -> bool {
    [".rs", ".py", ".sh"].iter().any(|end| name.ends_with(end))
}

/// Complaints about one file.
pub(super) fn check(name: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if name.ends_with(".rs") {
        if !opens_with_docs(text) {
            complaints
                .push(format!("{name}: does not open with a `//!` paragraph that says what it is"));
        }
        let lines = before_tests(text);
        if lines > LINES_MAX && !is_test_file(name) && !name.ends_with("/generated.rs") {
            complaints.push(format!(
                "{name}: {lines} lines before its tests, {LINES_MAX} at most; it has more than one idea"
            ));
        }
    }
    for (at, line) in text.lines().enumerate() {
        if let Some(marker) = MARKERS.iter().find(|marker| has_word(line, marker)) {
            complaints.push(format!("{name}:{}: `{marker}`: finish it or file an issue", at + 1));
        }
    }
    complaints
}

/// True if the first line that is not blank is a `//!` with words in it.
fn opens_with_docs(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .and_then(|line| line.strip_prefix("//!"))
        .is_some_and(|words| !words.trim().is_empty())
}

/// True if the word stands in the line by itself, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part_of_word) && !line[at + word.len()..].starts_with(part_of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_opening_is_named() {
        assert_eq!(check("a.rs", "fn a() {}\n").len(), 1);
        assert_eq!(check("a.rs", "").len(), 1);
        assert_eq!(check("a.rs", "//!\nfn a() {}\n").len(), 1);
        assert_eq!(check("a.rs", "// about\n//! late\n").len(), 1);
        assert!(check("a.rs", "\n//! What it is.\nfn a() {}\n").is_empty());
        assert!(check("a.py", "x = 1\n").is_empty());
    }

    #[test]
    fn the_length_counts_up_to_the_tests() {
        let body = |lines: usize| format!("//! A.\n{}", "x\n".repeat(lines - 1));
        assert!(check("a.rs", &body(500)).is_empty());
        assert_eq!(check("a.rs", &body(501)).len(), 1);
        let tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", body(500), "y\n".repeat(900));
        assert!(check("a.rs", &tests).is_empty());
        assert!(check("a_tests.rs", &body(900)).is_empty());
        assert!(check("src/a/generated.rs", &body(900)).is_empty());
    }

    #[test]
    fn a_work_marker_is_named_with_its_line() {
        for marker in MARKERS {
            let found = check("a.rs", &format!("//! A.\n// {marker}: later\n"));
            assert_eq!(found.len(), 1, "{marker}");
            assert!(found[0].starts_with("a.rs:2:"), "{found:?}");
            assert!(check("a.rs", &format!("//! A.\nconst {marker}S: u8 = 1;\n")).is_empty());
        }
        assert_eq!(check("a.py", &format!("# {}\n", MARKERS[0])).len(), 1);
    }
}
