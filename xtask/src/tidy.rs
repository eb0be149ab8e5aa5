//! `cargo xtask tidy`: guards the shape of the project, where compiler and linter don't look.
//!
//! `edges` checks the graph of the crates, `sources` the files, `sans_io` what the core may touch.
//! Each is a function from text to complaints, so that its tests show that it can fail; this file
//! finds the text and prints the complaints.

mod edges;
mod sans_io;
mod sources;

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};

/// Folders that hold no sources of ours.
const NOT_OURS: [&str; 6] = ["target", ".git", ".venv", "testdata", "__pycache__", "node_modules"];

/// One thing that is wrong: where, and what to do about it.
type Complaint = String;

/// Checks everything; prints each complaint, and fails if there was one.
pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec()
        .context("cargo metadata failed")?;
    let mut complaints = edges::check(&metadata.packages);
    let files = files(root)?;
    for path in &files {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        complaints.extend(sources::check(&name, &text));
        if sans_io::applies(&name) {
            complaints.extend(sans_io::check(&name, &text));
        }
    }
    for complaint in &complaints {
        println!("{complaint}");
    }
    ensure!(complaints.is_empty(), "{} complaints", complaints.len());
    println!("{} crates and {} source files are tidy", metadata.packages.len(), files.len());
    Ok(())
}

/// The Rust, Python and shell sources below a folder, in order of their names.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if entry.file_type()?.is_dir() {
                if !NOT_OURS.contains(&name.as_ref()) {
                    folders.push(path);
                }
            } else if sources::is_source(&name) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The lines of a file before its tests: a `mod` under `#[cfg(test)]` that comes as the last thing in
/// our files. A lone `#[cfg(test)]` on a helper doesn't end the count.
fn before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    (0..lines.len())
        .find(|&at| {
            lines[at] == "#[cfg(test)]"
                && lines[at + 1..].iter().find(|line| !line.starts_with("#[")).is_some_and(|line| {
                    line.starts_with("mod ") || line.starts_with("pub(crate) mod ")
                })
        })
        .unwrap_or(lines.len())
}

/// True for files that hold nothing but tests.
fn is_test_file(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.ends_with("_tests.rs") || file == "tests.rs" || name.contains("/tests/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_ends_at_the_test_module_only() {
        assert_eq!(before_tests("a\nb\n#[cfg(test)]\nmod tests {\n}\n"), 2);
        assert_eq!(before_tests("a\n#[cfg(test)]\n#[path = \"x_tests.rs\"]\nmod tests;\n"), 1);
        assert_eq!(before_tests("#[cfg(test)]\nuse a::b;\nfn c() {}\n"), 3);
        assert_eq!(before_tests(""), 0);
    }

    #[test]
    fn test_files_are_known_by_their_names() {
        assert!(is_test_file("crates/homing-core/src/hash_tests.rs"));
        assert!(is_test_file("crates/homing-core/tests/simulation.rs"));
        assert!(is_test_file("crates/homing-core/src/load/tests.rs"));
        assert!(!is_test_file("crates/homing-core/src/hash.rs"));
    }
}
