//! What tells one state of a file from another without reading it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

/// See the module. Two that are equal are of one state, unless it was rewritten in place within the clock's step and
/// to the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: SystemTime,
    length: u64,
    inode: u64,
}

impl Stamp {
    /// As the file is now; `None` where there is none.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let about = std::fs::metadata(path).ok()?;
        let modified = about.modified().ok()?;
        Some(Self { modified, length: about.len(), inode: about.ino() })
    }
}
