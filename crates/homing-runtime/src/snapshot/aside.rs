//! The names beside a snapshot: `<name>.damaged-<seconds>` is kept for who wants to look, and
//! `<name>.tmp-<pid>` is what a writer works on, or what a killed one has left.

use super::reader::Problem;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Damaged files that are kept. The first ones tell most, the last one is wanted most; five of up to
/// half a gigabyte are enough for a disk.
const KEPT: usize = 5;

/// Tries for a free name; more than [`KEPT`] never lie there by our doing.
const NAMES: u64 = 64;

const DAMAGED: &str = "damaged";
const TEMPORARY: &str = "tmp";

/// Renames a damaged snapshot to `<name>.damaged-<unix seconds>` (`-1`, `-2`.. behind it where that
/// exists), takes it from the eyes of others, and removes the oldest of these until five are left. The new name.
///
/// # Errors
/// [`Problem::Absent`] or [`Problem::Io`] when it can't be renamed. That older ones can't be removed,
/// or the mode can't be set, is no error: the file is out of the way.
pub fn set_aside(path: &Path) -> Result<PathBuf, Problem> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    set_aside_at(path, unix.as_secs())
}

pub(super) fn set_aside_at(path: &Path, seconds: u64) -> Result<PathBuf, Problem> {
    regular(path).map_err(|e| Problem::io(path, "set aside", e))?;
    let name = (0..NAMES)
        .map(|n| match n {
            0 => beside(path, &format!("{DAMAGED}-{seconds}")),
            _ => beside(path, &format!("{DAMAGED}-{seconds}-{n}")),
        })
        .find(
            |name| matches!(name.symlink_metadata(), Err(e) if e.kind() == io::ErrorKind::NotFound),
        )
        .ok_or_else(|| io::Error::other("too many damaged files of this second"))
        .map_err(|e| Problem::io(path, "set aside", e))?;
    fs::rename(path, &name).map_err(|e| Problem::io(path, "set aside", e))?;
    // The secret may be in it.
    let _ = fs::set_permissions(&name, fs::Permissions::from_mode(0o600));
    let mut others = siblings(path, DAMAGED).unwrap_or_default();
    // By their place in time, but the clock may have gone back: never the one of just now.
    others.retain(|(_, other)| *other != name);
    others.sort();
    let surplus = (others.len() + 1).saturating_sub(KEPT);
    for (_, oldest) in others.into_iter().take(surplus) {
        let _ = fs::remove_file(oldest);
    }
    Ok(name)
}

/// Only what can be a snapshot may be renamed or replaced: a slip in the settings must not move a folder
/// or a device away.
///
/// # Errors
/// When something else is there.
pub(super) fn regular(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(there) if !there.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
        }
        _ => Ok(()),
    }
}

/// The name that the writer of this process works on.
pub(super) fn temporary(path: &Path) -> PathBuf {
    beside(path, &format!("{TEMPORARY}-{}", std::process::id()))
}

/// What writers work on, or have left.
pub(super) fn temporaries(path: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(siblings(path, TEMPORARY)?.into_iter().map(|(_, path)| path).collect())
}

/// The folder of `path`.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// `path` with `.<ending>` behind its name, whatever its name ends with.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// The files `<path>.<mark>-<number>` and `<path>.<mark>-<number>-<number>`, with their numbers.
fn siblings(path: &Path, mark: &str) -> io::Result<Vec<([u64; 2], PathBuf)>> {
    let base = beside(path, &format!("{mark}-"));
    let base = base.file_name().unwrap_or_default();
    let mut found = Vec::new();
    for entry in fs::read_dir(folder(path))? {
        let name = entry?.file_name();
        let rest = name.as_encoded_bytes().strip_prefix(base.as_encoded_bytes());
        if let Some(numbers) = rest.and_then(|rest| numbers(std::str::from_utf8(rest).ok()?)) {
            found.push((numbers, path.with_file_name(&name)));
        }
    }
    Ok(found)
}

fn numbers(text: &str) -> Option<[u64; 2]> {
    // `parse` would take a sign.
    let number = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    match text.split_once('-') {
        None => Some([number(text)?, 0]),
        Some((a, b)) => Some([number(a)?, number(b)?]),
    }
}

#[cfg(test)]
#[path = "aside_tests.rs"]
mod tests;
