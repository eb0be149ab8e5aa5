//! Writing a snapshot: beside its target, synced, renamed. Whatever the moment of a crash, the
//! target's name leads to a whole file, the old one or the new one.
//!
//! The temporary file is locked while it is written. That tells a left-over of a killed process, which is
//! removed, from the work of one that lives: two routers that share a snapshot by mistake get an
//! error, not each other's bytes.

use super::aside::{folder, regular, temporaries, temporary};
use super::format::{self, HEAD, Kind, LIVES_MAX, PAYLOAD_MAX, PLACES_MAX, RECORDS_MAX, Totals};
use super::reader::are_distinct;
use super::{Header, Life, Place, SavedBinding};
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Why a snapshot was not written. Until [`Writer::finish`] has renamed the new one, the old one is as it was.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The system won't.
    #[error("can't {doing} {path}: {source}", path = path.display())]
    Io {
        /// The file or folder that it is about.
        path: PathBuf,
        /// What was tried, a verb.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another writer is at work on it.
    #[error("another process writes {path}; give each router a snapshot of its own", path = .0.display())]
    Busy(PathBuf),
    /// Another process took away the temporary file.
    #[error("{path} was taken away while it was written; give each router a snapshot of its own", path = .0.display())]
    Lost(PathBuf),
    /// What it was given can't be in a file.
    #[error("can't write the snapshot {path}: {what}", path = path.display())]
    Unfit {
        /// The snapshot.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bindings in the file.
    pub bindings: u64,
    /// The file's size.
    pub bytes: u64,
}

/// A snapshot that is being written. Dropped before [`finish`](Self::finish), it leaves nothing.
pub struct Writer {
    target: PathBuf,
    temporary: PathBuf,
    file: File,
    renamed: bool,
    whole: Xxh3,
    /// The bindings' block that is being filled, its head left free.
    block: Vec<u8>,
    pending: usize,
    highest_place: Option<u32>,
    totals: Totals,
    bytes: u64,
}

impl Writer {
    /// Begins a snapshot that shall lie at `path`: removes what killed writers have left, opens a
    /// temporary file in the same folder with mode 0600, and writes the header. The folder must exist. If
    /// `path` is a symbolic link, the link will be replaced; anything but a file there is left alone.
    ///
    /// # Errors
    /// [`WriteError::Io`] and [`WriteError::Busy`].
    pub fn create(path: &Path, header: &Header) -> Result<Self, WriteError> {
        if path.file_name().is_none() {
            return Err(WriteError::Unfit {
                path: path.to_owned(),
                what: "its path names no file",
            });
        }
        regular(path).map_err(|e| io(path, "write", e))?;
        sweep(path)?;
        let temporary = temporary(path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&temporary).map_err(|e| io(&temporary, "create", e))?;
        let mut writer = Self {
            target: path.to_owned(),
            temporary,
            file,
            renamed: false,
            whole: Xxh3::new(),
            block: vec![0; HEAD],
            pending: 0,
            highest_place: None,
            totals: Totals::default(),
            bytes: 0,
        };
        // Where the file system has no locks we do without: they guard against a mistake only.
        if let Err(TryLockError::WouldBlock) = writer.file.try_lock() {
            return Err(WriteError::Busy(path.to_owned()));
        }
        writer.put(&format::header(header))?;
        Ok(writer)
    }

    /// Adds bindings, in batches of any size.
    ///
    /// # Errors
    /// [`WriteError::Io`], after which the writer is of no use.
    pub fn bindings(&mut self, batch: &[SavedBinding]) -> Result<(), WriteError> {
        for binding in batch {
            format::put_binding(&mut self.block, binding);
            self.pending += 1;
            self.highest_place = self.highest_place.max(Some(binding.partition));
            if self.pending == RECORDS_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Adds the places and lives that the bindings name, and puts the whole in the target's place.
    ///
    /// # Errors
    /// [`WriteError::Unfit`] when a binding has no place, two lives have one id, a name is longer than
    /// 4096 bytes or there are more than 65,536 places or 1,048,576 lives; [`WriteError::Lost`];
    /// [`WriteError::Io`]: the target is the old one then, unless it is the folder that can't be synced.
    pub fn finish(mut self, places: &[Place], lives: &[Life]) -> Result<Written, WriteError> {
        self.complete(places, lives)?;
        self.publish()?;
        sync_folder(folder(&self.target))?;
        Ok(Written { bindings: self.totals.bindings, bytes: self.bytes })
    }

    /// Everything up to the end block, on the disk.
    fn complete(&mut self, places: &[Place], lives: &[Life]) -> Result<(), WriteError> {
        if self.highest_place.is_some_and(|place| place as usize >= places.len()) {
            return Err(self.unfit("a binding without a place"));
        }
        if places.len() > PLACES_MAX || lives.len() > LIVES_MAX {
            return Err(self.unfit("too many places or lives"));
        }
        if !are_distinct(lives) {
            return Err(self.unfit("two lives with one id"));
        }
        self.flush()?;
        self.names(Kind::Places, places, format::put_place)?;
        self.names(Kind::Lives, lives, format::put_life)?;
        let whole = self.whole.digest();
        format::put_end(&mut self.block, self.totals, whole);
        self.write_block(Kind::End, 0)?;
        self.file.sync_all().map_err(|e| io(&self.temporary, "sync", e))
    }

    fn publish(&mut self) -> Result<(), WriteError> {
        if !self.is_ours() {
            return Err(WriteError::Lost(self.temporary.clone()));
        }
        fs::rename(&self.temporary, &self.target).map_err(|e| io(&self.target, "replace", e))?;
        self.renamed = true;
        Ok(())
    }

    /// Whether the temporary file's name still leads to what we write.
    fn is_ours(&self) -> bool {
        let same = |(a, b): (fs::Metadata, fs::Metadata)| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let named = self.temporary.symlink_metadata();
        named.ok().zip(self.file.metadata().ok()).is_some_and(same)
    }

    /// Writes records of variable length, in as many blocks as they take.
    fn names<T>(
        &mut self,
        kind: Kind,
        records: &[T],
        put: fn(&mut Vec<u8>, &T) -> bool,
    ) -> Result<(), WriteError> {
        let mut count = 0;
        for record in records {
            let before = self.block.len();
            if !put(&mut self.block, record) {
                return Err(self.unfit("a name is longer than 4096 bytes"));
            }
            if self.block.len() - HEAD > PAYLOAD_MAX {
                // This one begins the next block.
                self.block.truncate(before);
                self.write_block(kind, count)?;
                count = 0;
                put(&mut self.block, record);
            }
            count += 1;
            if count == RECORDS_MAX {
                self.write_block(kind, count)?;
                count = 0;
            }
        }
        if count > 0 { self.write_block(kind, count) } else { Ok(()) }
    }

    /// Writes out the bindings that wait in the block.
    fn flush(&mut self) -> Result<(), WriteError> {
        match std::mem::take(&mut self.pending) {
            0 => Ok(()),
            count => self.write_block(Kind::Bindings, count),
        }
    }

    /// Writes the block and begins another one.
    fn write_block(&mut self, kind: Kind, count: usize) -> Result<(), WriteError> {
        let mut block = std::mem::take(&mut self.block);
        format::seal(&mut block, kind, count);
        self.totals.add(kind, count);
        let written = self.put(&block);
        block.truncate(HEAD);
        self.block = block;
        written
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.whole.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| io(&self.temporary, "write", e))
    }

    fn unfit(&self, what: &'static str) -> WriteError {
        WriteError::Unfit { path: self.target.clone(), what }
    }
}

impl fmt::Debug for Writer {
    /// Not the buffers: the header with its secret goes through the checksum's, keys through the block's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("target", &self.target)
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.renamed && self.is_ours() {
            // Nobody is left to tell; the next writer tries again.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Removes the temporary files of killed writers.
fn sweep(path: &Path) -> Result<(), WriteError> {
    for left in temporaries(path).map_err(|e| io(folder(path), "list", e))? {
        let is_file = left.symlink_metadata().is_ok_and(|it| it.is_file());
        if let Some(file) = is_file.then(|| File::open(&left).ok()).flatten()
            && let Err(TryLockError::WouldBlock) = file.try_lock()
        {
            return Err(WriteError::Busy(path.to_owned()));
        }
        // If it won't go and has our name, creating ours says so.
        let _ = fs::remove_file(&left);
    }
    Ok(())
}

/// Makes the rename last. Some file systems can't sync folders and say so; they have done what they can.
fn sync_folder(folder: &Path) -> Result<(), WriteError> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Err(io(folder, "sync", e))
        }
        _ => Ok(()),
    }
}

fn io(path: &Path, doing: &'static str, source: io::Error) -> WriteError {
    WriteError::Io { path: path.to_owned(), doing, source }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
