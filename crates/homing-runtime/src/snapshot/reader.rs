//! Reading a snapshot: once to believe it, once to give out its bindings.
//!
//! The first pass looks at every checksum, decodes every record and compares the totals, and keeps
//! the places and lives, which may stand anywhere. The second one gives out the bindings a block at a time;
//! it is the same code and looks at the same things again, so a file that is changed in between is noticed too.

use super::format::{
    self, BINDING, END, HEAD, HEADER, Kind, LIVES_MAX, PAYLOAD_MAX, PLACES_MAX, PREAMBLE,
    RECORDS_MAX, SUM, Totals, VERSION,
};
use super::{Header, Life, Place, SavedBinding};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Why a snapshot can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// There is none: a fresh start.
    #[error("there is no snapshot {path}", path = .0.display())]
    Absent(PathBuf),
    /// It is not what was written; [`super::set_aside`] it.
    #[error("the snapshot {path} is damaged: {damage}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// A later version of Homing wrote it.
    #[error("the snapshot {path} has format {found}, this version reads up to {VERSION}", path = path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The system won't.
    #[error("can't {doing} the snapshot {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, a verb.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl Problem {
    /// An error about `path`; "not found" is a kind of its own.
    pub(super) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Absent(path),
            _ => Self::Io { path, doing, source },
        }
    }
}

/// What is wrong with a damaged snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its first bytes are another kind of file's.
    #[error("it does not begin like a snapshot")]
    Foreign,
    /// Something is missing at its end.
    #[error("it ends early")]
    Truncated,
    /// The header's checksum is wrong, or what it says can't be.
    #[error("its header is not what was written")]
    Header,
    /// A block's checksum is wrong.
    #[error("the block at byte {0} is not what was written")]
    Checksum(u64),
    /// A block says what no writer says.
    #[error("the block at byte {0} can't be: {1}")]
    Impossible(u64, &'static str),
    /// The end block doesn't fit what comes before it.
    #[error("its end does not fit the rest")]
    Totals,
    /// Something follows the end block.
    #[error("something follows its end")]
    Trailing,
}

/// A [`Problem`] without its path.
#[derive(Debug)]
pub(super) enum Fail {
    Damage(Damage),
    Newer(u32),
    Io(io::Error),
}

impl Fail {
    fn of(self, path: &Path) -> Problem {
        match self {
            Self::Damage(damage) => Problem::Damaged { path: path.to_owned(), damage },
            Self::Newer(found) => Problem::Newer { path: path.to_owned(), found },
            Self::Io(e) => Problem::io(path, "read", e),
        }
    }
}

impl From<Damage> for Fail {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

impl From<io::Error> for Fail {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Damage::Truncated.into(),
            _ => Self::Io(e),
        }
    }
}

/// The header of the snapshot at `path`. Its records are not looked at.
///
/// # Errors
/// See [`Problem`].
pub fn read_header(path: &Path) -> Result<Header, Problem> {
    header_and_mode(path).map(|(header, _)| header)
}

pub(super) fn header_and_mode(path: &Path) -> Result<(Header, u32), Problem> {
    let (file, metadata) = open(path)?;
    let blocks = Blocks::begin(file, metadata.len()).map_err(|fail| fail.of(path))?;
    Ok((blocks.header, metadata.permissions().mode()))
}

/// A snapshot that has been verified as a whole.
pub struct Reader {
    path: PathBuf,
    blocks: Blocks<File>,
    content: Content,
    batch: Vec<SavedBinding>,
}

impl Reader {
    /// Verifies the snapshot at `path`. This reads all of it, and holds its places and lives in memory.
    ///
    /// # Errors
    /// See [`Problem`].
    pub fn open(path: &Path) -> Result<Self, Problem> {
        let (file, metadata) = open(path)?;
        let two_passes = || {
            let (content, file) = verify(Blocks::begin(file, metadata.len())?)?;
            Ok((content, Blocks::begin(file, metadata.len())?))
        };
        let (content, blocks) = two_passes().map_err(|fail: Fail| fail.of(path))?;
        Ok(Self { path: path.to_owned(), blocks, content, batch: Vec::new() })
    }

    /// What the file says before its records.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.blocks.header
    }

    /// The places that bindings name by their position here.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.content.places
    }

    /// The lives; no two have the same id.
    #[must_use]
    pub fn lives(&self) -> &[Life] {
        &self.content.lives
    }

    /// How many bindings there are.
    #[must_use]
    pub fn bindings(&self) -> u64 {
        self.content.bindings
    }

    /// The next bindings: between 1 and 4096, in the order in which they were written; `None` after
    /// the last. Each one's `partition` is within [`places`](Self::places).
    ///
    /// # Errors
    /// [`Problem::Io`], and [`Problem::Damaged`] if the file was changed since it was opened. What was given out
    /// before is what was written.
    pub fn batch(&mut self) -> Result<Option<&[SavedBinding]>, Problem> {
        match self.next() {
            Ok(true) => Ok(Some(&self.batch)),
            Ok(false) => Ok(None),
            Err(fail) => Err(fail.of(&self.path)),
        }
    }

    /// Whether there is another batch; it is in `self.batch` then.
    fn next(&mut self) -> Result<bool, Fail> {
        while let Some(block) = self.blocks.next()? {
            if block.kind != Kind::Bindings {
                continue;
            }
            self.batch.clear();
            self.blocks.records(&block, &mut self.batch, format::take_binding)?;
            if !self.content.has_places_of(&self.batch) {
                return Err(Damage::Impossible(block.at, NO_PLACE).into());
            }
            return Ok(true);
        }
        Ok(false)
    }
}

impl fmt::Debug for Reader {
    /// Not the buffers: the header with its secret goes through them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .field("header", self.header())
            .field("bindings", &self.content.bindings)
            .finish_non_exhaustive()
    }
}

const NO_PLACE: &str = "a binding without a place";

/// What is kept of a first pass.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) places: Vec<Place>,
    pub(super) lives: Vec<Life>,
    pub(super) bindings: u64,
}

impl Content {
    /// The first pass has looked at this too; the file may have changed since.
    fn has_places_of(&self, batch: &[SavedBinding]) -> bool {
        batch.iter().all(|it| (it.partition as usize) < self.places.len())
    }
}

/// The first pass. Gives back the file, rewound.
pub(super) fn verify<F: Read + Seek>(mut blocks: Blocks<F>) -> Result<(Content, F), Fail> {
    let mut content = Content::default();
    let mut batch = Vec::new();
    let mut highest = None;
    while let Some(block) = blocks.next()? {
        let room = |held: usize, max: usize| match held + block.count <= max {
            true => Ok(()),
            false => Err(Damage::Impossible(block.at, "more names than a file may have")),
        };
        match block.kind {
            Kind::Bindings => {
                batch.clear();
                blocks.records(&block, &mut batch, format::take_binding)?;
                highest = highest.max(batch.iter().map(|it| it.partition).max());
                content.bindings += block.count as u64;
            }
            Kind::Places => {
                room(content.places.len(), PLACES_MAX)?;
                blocks.records(&block, &mut content.places, format::take_place)?;
            }
            Kind::Lives => {
                room(content.lives.len(), LIVES_MAX)?;
                blocks.records(&block, &mut content.lives, format::take_life)?;
            }
            Kind::End => {}
        }
    }
    let end = blocks.at;
    if highest.is_some_and(|place| place as usize >= content.places.len()) {
        return Err(Damage::Impossible(end, NO_PLACE).into());
    }
    if !are_distinct(&content.lives) {
        return Err(Damage::Impossible(end, "two lives with one id").into());
    }
    let mut file = blocks.file.into_inner();
    file.seek(SeekFrom::Start(0))?;
    Ok((content, file))
}

/// Whether no two lives have the same id.
pub(super) fn are_distinct(lives: &[Life]) -> bool {
    let mut ids: Vec<u32> = lives.iter().map(|life| life.id).collect();
    ids.sort_unstable();
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

/// A block whose checksum is right. Its payload lies in the [`Blocks`] that it came from.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) kind: Kind,
    /// Where it starts in the file.
    at: u64,
    count: usize,
}

/// A file as a sequence of blocks. What it allocates doesn't depend on what the file claims.
pub(super) struct Blocks<F> {
    file: BufReader<F>,
    size: u64,
    at: u64,
    header: Header,
    whole: Xxh3,
    totals: Totals,
    bytes: Vec<u8>,
    ended: bool,
}

impl<F: Read> Blocks<F> {
    /// Reads the header. `file` stands at its start and has `size` bytes.
    pub(super) fn begin(file: F, size: u64) -> Result<Self, Fail> {
        let mut file = BufReader::new(file);
        let mut bytes = vec![0; PREAMBLE];
        // What is no snapshot at all is not called a truncated one.
        let got = read_up_to(&mut file, &mut bytes)?;
        let magic = got.min(format::MAGIC.len());
        if bytes[..magic] != format::MAGIC[..magic] {
            return Err(Damage::Foreign.into());
        }
        if got < PREAMBLE {
            return Err(Damage::Truncated.into());
        }
        let (version, length) = format::preamble(&bytes).ok_or(Damage::Header)?;
        bytes.resize(length, 0);
        file.read_exact(&mut bytes[PREAMBLE..])?;
        if !format::is_sound(&bytes) {
            return Err(Damage::Header.into());
        }
        if version > VERSION {
            return Err(Fail::Newer(version));
        }
        let header = format::parse_header(&bytes).ok_or(Damage::Header)?;
        let mut whole = Xxh3::new();
        whole.update(&bytes);
        let (at, totals) = (HEADER as u64, Totals::default());
        Ok(Self { file, size, at, header, whole, totals, bytes, ended: false })
    }

    /// The next block; `None` after the end block, when everything has been compared with it.
    pub(super) fn next(&mut self) -> Result<Option<Block>, Fail> {
        if self.ended {
            return Ok(None);
        }
        let at = self.at;
        let mut head = [0; HEAD];
        self.file.read_exact(&mut head)?;
        let (code, count, length) = format::head(&head);
        if length > PAYLOAD_MAX {
            return Err(Damage::Impossible(at, "it is too long").into());
        }
        let end = at + (HEAD + length + SUM) as u64;
        if end > self.size {
            return Err(Damage::Truncated.into());
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(&head);
        self.bytes.resize(HEAD + length + SUM, 0);
        self.file.read_exact(&mut self.bytes[HEAD..])?;
        if !format::is_sound(&self.bytes) {
            return Err(Damage::Checksum(at).into());
        }
        let impossible = |what| Fail::from(Damage::Impossible(at, what));
        let kind = Kind::from_code(code).ok_or_else(|| impossible("an unknown kind"))?;
        let fits = match kind {
            Kind::Bindings => (1..=RECORDS_MAX).contains(&count) && length == count * BINDING,
            Kind::Places | Kind::Lives => (1..=RECORDS_MAX).contains(&count),
            Kind::End => count == 0 && length == END,
        };
        if !fits {
            return Err(impossible("count and length do not fit"));
        }
        self.at = end;
        if kind == Kind::End {
            self.end()?;
            return Ok(None);
        }
        self.totals.add(kind, count);
        self.whole.update(&self.bytes);
        Ok(Some(Block { kind, at, count }))
    }

    /// Decodes the records of the block that came last.
    fn records<T>(
        &self,
        block: &Block,
        out: &mut Vec<T>,
        take: fn(&mut &[u8]) -> Option<T>,
    ) -> Result<(), Damage> {
        let mut payload = self.bytes.get(HEAD..self.bytes.len() - SUM).unwrap_or_default();
        let cant = Damage::Impossible(block.at, "a record that no writer writes");
        for _ in 0..block.count {
            out.push(take(&mut payload).ok_or(cant)?);
        }
        if payload.is_empty() { Ok(()) } else { Err(cant) }
    }

    fn end(&mut self) -> Result<(), Fail> {
        let mut payload = &self.bytes[HEAD..HEAD + END];
        let (totals, whole) = format::take_end(&mut payload).ok_or(Damage::Totals)?;
        if totals != self.totals || whole != self.whole.digest() {
            return Err(Damage::Totals.into());
        }
        if read_up_to(&mut self.file, &mut [0])? > 0 {
            return Err(Damage::Trailing.into());
        }
        self.ended = true;
        Ok(())
    }
}

/// Opens a regular file. Others are refused before they are opened: a pipe would block for ever.
fn open(path: &Path) -> Result<(File, fs::Metadata), Problem> {
    let opened = || {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    opened().map_err(|e| Problem::io(path, "open", e))
}

/// Fills `bytes` as far as the file goes; how far.
fn read_up_to(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
