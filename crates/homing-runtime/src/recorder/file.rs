//! The file of a trace. It is appended to; what is there and no trace of ours is left alone. Lines gather in memory
//! and are written at a known place behind each other, so that a write that fails half-way is written over by the
//! next one, and the file never has half a line in its middle.

use homing_wire::trace::{Header, Line, SCHEMA};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A first line is no longer.
const MAX_HEADER: usize = 4 << 10;
/// What a killed writer has left of its last line is looked for in so many bytes at a time.
const PIECE: u64 = 64 << 10;

/// Why nothing can be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The system won't.
    #[error("can't {doing} {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, a verb.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Something else is there.
    #[error(
        "{path} is there and no trace that can be gone on with; name another file, or move it away",
        path = .0.display()
    )]
    Foreign(PathBuf),
    /// Another process writes it.
    #[error("another process writes {path}; give each router a file of its own", path = .0.display())]
    Busy(PathBuf),
    /// The system gives no thread.
    #[error("the system refuses a thread: {0}")]
    Thread(io::Error),
}

/// What became of the lines that had gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Lines that were written.
    pub written: u64,
    /// Lines that were not, and are gone.
    pub lost: u64,
}

/// See the module.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
    /// Up to here the file is whole.
    end: u64,
    began_ms: u64,
    /// The header's block size, once it has one.
    block_size: Option<u32>,
    buffer: Vec<u8>,
    lines: u64,
    failing: bool,
}

impl TraceFile {
    /// Opens it, or makes it with mode 0600; one that is there is gone on with. The header is written with the
    /// first line.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open(path: &Path, now_ms: u64) -> Result<Self, RecordError> {
        let failed = |doing| move |source| RecordError::Io { path: path.to_owned(), doing, source };
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            return Err(RecordError::Foreign(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(failed("open"))?;
        // Where the file system has no locks we do without: they guard against a mistake only.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(RecordError::Busy(path.to_owned()));
        }
        let mut trace = Self {
            path: path.to_owned(),
            file,
            end: 0,
            began_ms: now_ms,
            block_size: None,
            buffer: Vec::new(),
            lines: 0,
            failing: false,
        };
        let len = trace.file.metadata().map_err(failed("read"))?.len();
        if len > 0 {
            let header = trace.first_line().map_err(failed("read"))?;
            let Some(Header { block_size, began_ms: Some(began), .. }) = header else {
                return Err(RecordError::Foreign(path.to_owned()));
            };
            (trace.block_size, trace.began_ms) = (Some(block_size), began);
            trace.end = trace.whole(len).map_err(failed("read"))?;
            trace.file.set_len(trace.end).map_err(failed("write"))?;
        }
        Ok(trace)
    }

    /// The header; `None`: it is none of ours.
    fn first_line(&self) -> io::Result<Option<Header>> {
        let mut head = vec![0; MAX_HEADER];
        let mut read = 0;
        while read < head.len() {
            match self.file.read_at(&mut head[read..], read as u64)? {
                0 => break,
                n => read += n,
            }
        }
        let Some(end) = head[..read].iter().position(|b| *b == b'\n') else { return Ok(None) };
        let header = serde_json::from_slice(&head[..end]).ok();
        Ok(header.filter(|h: &Header| h.schema == SCHEMA && h.block_size > 0))
    }

    /// Where its last whole line ends. The header is one.
    fn whole(&self, len: u64) -> io::Result<u64> {
        let mut end = len;
        let mut piece = Vec::new();
        while end > 0 {
            let from = end.saturating_sub(PIECE);
            piece.resize(usize::try_from(end - from).unwrap_or(0), 0);
            self.file.read_exact_at(&mut piece, from)?;
            if let Some(last) = piece.iter().rposition(|b| *b == b'\n') {
                return Ok(from + last as u64 + 1);
            }
            end = from;
        }
        Ok(0)
    }

    /// When its times begin, in Unix milliseconds.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// The header's block size: `first`, if it has none yet.
    pub fn header(&mut self, first: u32) -> u32 {
        if let Some(size) = self.block_size {
            return size;
        }
        let (schema, began_ms) = (SCHEMA.to_owned(), Some(self.began_ms));
        self.put(&Header { schema, block_size: first, began_ms });
        self.block_size = Some(first);
        first
    }

    /// Adds a line.
    pub fn line(&mut self, line: &Line) {
        self.put(line);
        self.lines += 1;
    }

    fn put(&mut self, what: &impl serde::Serialize) {
        // Into memory, and of maps with plain keys: neither can fail.
        if serde_json::to_writer(&mut self.buffer, what).is_ok() {
            self.buffer.push(b'\n');
        }
    }

    /// Bytes that have gathered.
    #[must_use]
    pub fn gathered(&self) -> usize {
        self.buffer.len()
    }

    /// Writes what has gathered; where that can't be, it is lost, and said so once.
    pub fn flush(&mut self) -> Flushed {
        let lines = std::mem::take(&mut self.lines);
        if self.buffer.is_empty() {
            return Flushed::default();
        }
        let written = self.file.write_all_at(&self.buffer, self.end);
        let bytes = self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(PIECE as usize);
        let path = self.path.display();
        match written {
            Ok(()) => {
                self.end += bytes;
                if std::mem::take(&mut self.failing) {
                    tracing::info!(%path, "the record of requests goes on");
                }
                Flushed { written: lines, lost: 0 }
            }
            Err(error) => {
                // What was written of it is written over by the next, or cut off here.
                let _ = self.file.set_len(self.end);
                if self.end == 0 {
                    self.block_size = None;
                }
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%path, %error, "the record of requests can't be written; lines are lost until it can");
                }
                Flushed { written: 0, lost: lines }
            }
        }
    }

    /// Another file in its place, for tests of what can't be written; the one that it had.
    #[cfg(test)]
    pub(super) fn replace(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// At the end: onto the disk.
    pub fn sync(&self) {
        if let Err(error) = self.file.sync_data() {
            tracing::warn!(path = %self.path.display(), %error, "the record of requests may not be whole");
        }
    }
}
