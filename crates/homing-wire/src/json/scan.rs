//! Where JSON values end: the walk over the bytes, by the grammar of RFC 8259 and nothing else.
//!
//! What `serde_json` refuses when it only skips a value is refused here, and what it takes is taken: the tests and the
//! fuzzer `requests` hold the two against each other.

use super::NotJson;

/// A place in a text of JSON.
#[derive(Clone, Debug)]
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next byte, which stays.
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes the next byte behind white space.
    fn next(&mut self) -> Option<u8> {
        self.white();
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    /// The same if it is this one.
    pub(super) fn takes(&mut self, byte: u8) -> bool {
        self.white();
        let is_it = self.peek() == Some(byte);
        self.at += usize::from(is_it);
        is_it
    }

    /// The same where nothing else may stand.
    pub(super) fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        (self.next() == Some(byte)).then_some(()).ok_or(NotJson)
    }

    /// Nothing but white space is left.
    pub(super) fn end(&mut self) -> Result<(), NotJson> {
        self.white();
        (self.at == self.text.len()).then_some(()).ok_or(NotJson)
    }

    fn white(&mut self) {
        // Mostly there is none, and one look tells.
        while let Some(byte @ ..=b' ') = self.peek()
            && matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
        {
            self.at += 1;
        }
    }

    /// The text from a place that was to this one. Both lie beside ASCII, so none is within a character.
    fn since(&self, start: usize) -> Result<&'a str, NotJson> {
        self.text.get(start..self.at).ok_or(NotJson)
    }

    /// A member's name with its quotes, and whether it has escapes; the colon behind it is taken, too.
    pub(super) fn name(&mut self) -> Result<(&'a str, bool), NotJson> {
        self.white();
        let start = self.at;
        self.expect(b'"')?;
        let escapes = self.string()?;
        let name = self.since(start)?;
        self.expect(b':')?;
        Ok((name, escapes))
    }

    /// The same where nobody wants to know.
    fn skip_name(&mut self) -> Result<(), NotJson> {
        self.expect(b'"')?;
        self.string()?;
        self.expect(b':')
    }

    /// The next value, as it is written. Without recursion: a client chooses how deep it nests.
    pub(super) fn value(&mut self) -> Result<&'a str, NotJson> {
        self.white();
        let start = self.at;
        let mut inside = Inside::default();
        loop {
            if let Some(kind) = self.begin()? {
                inside.push(kind);
            } else if !self.close(&mut inside)? {
                return self.since(start);
            }
            if inside.in_object() == Some(true) {
                self.skip_name()?;
            }
            self.white();
        }
    }

    /// Takes a value that holds none, or the bracket of one that does: then that is told.
    fn begin(&mut self) -> Result<Option<Kind>, NotJson> {
        let first = self.peek().ok_or(NotJson)?;
        match first {
            b'"' => {
                self.at += 1;
                self.string()?;
            }
            b'{' => {
                self.at += 1;
                if !self.takes(b'}') {
                    return Ok(Some(Kind::Object));
                }
            }
            b'[' => {
                self.at += 1;
                if !self.takes(b']') {
                    return Ok(Some(Kind::List));
                }
            }
            b't' => self.word("true")?,
            b'f' => self.word("false")?,
            b'n' => self.word("null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(NotJson),
        }
        Ok(None)
    }

    /// Behind a value: takes the brackets that end here, and the comma behind them. False if nothing is open any more.
    fn close(&mut self, inside: &mut Inside) -> Result<bool, NotJson> {
        while let Some(in_object) = inside.in_object() {
            match (self.next(), in_object) {
                (Some(b','), _) => return Ok(true),
                (Some(b'}'), true) | (Some(b']'), false) => inside.pop(),
                _ => return Err(NotJson),
            }
        }
        Ok(false)
    }

    fn word(&mut self, word: &str) -> Result<(), NotJson> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(NotJson);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), NotJson> {
        self.at += usize::from(self.peek() == Some(b'-'));
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// At least one.
    fn digits(&mut self) -> Result<(), NotJson> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        (self.at > start).then_some(()).ok_or(NotJson)
    }

    /// A text, behind its first quote; whether it has escapes.
    fn string(&mut self) -> Result<bool, NotJson> {
        let mut escapes = false;
        loop {
            self.at += plain(&self.text.as_bytes()[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escapes);
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                    escapes = true;
                }
                // A control character, or the end.
                _ => return Err(NotJson),
            }
        }
    }

    /// Behind the backslash.
    fn escape(&mut self) -> Result<(), NotJson> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += match rest {
            [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 1,
            [b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|h| h.is_ascii_hexdigit()) => 5,
            _ => return Err(NotJson),
        };
        Ok(())
    }
}

/// What a value is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    List,
    Object,
}

/// The brackets that are open, a bit each; the innermost is the lowest of `near`.
#[derive(Debug, Default)]
struct Inside {
    near: u64,
    depth: usize,
    /// Those further out, where there are more than a word holds.
    far: Vec<u64>,
}

impl Inside {
    const WORD: usize = u64::BITS as usize;

    fn push(&mut self, kind: Kind) {
        if self.depth > 0 && self.depth.is_multiple_of(Self::WORD) {
            self.far.push(self.near);
        }
        self.near = self.near << 1 | u64::from(kind == Kind::Object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.near >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(Self::WORD) {
            self.near = self.far.pop().unwrap_or_default();
        }
    }

    /// Whether the innermost is an object; `None` where nothing is open.
    fn in_object(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.near & 1 == 1)
    }
}

/// Bytes that are looked at at once.
const WORD: usize = 8;
const BLOCK: usize = 64;
/// A run that is as long as this may be much longer.
const LONG: usize = 4 * WORD;

/// How many bytes there are before one that ends a run of a text: a quote, a backslash, a control character.
fn plain(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<WORD>() {
        let ends = ends_in(u64::from_le_bytes(*word));
        if ends != 0 {
            return at + ends.trailing_zeros() as usize / 8;
        }
        at += WORD;
        if at == LONG {
            at += clean_blocks(&bytes[at..]);
        }
    }
    let ends = |b: &u8| *b < b' ' || *b == b'"' || *b == b'\\';
    bytes[at..].iter().position(ends).map_or(bytes.len(), |tail| at + tail)
}

/// How many bytes there are in blocks in which nothing ends a run, before the first in which something does: a text of
/// prose has long ones.
#[inline(never)]
fn clean_blocks(bytes: &[u8]) -> usize {
    // What is 0 for a byte that ends a run, and the least of it in a block: without a branch or a mask, so that the
    // compiler makes some vector instructions of a block.
    let nought = |b: &u8| (b ^ b'"').min(b ^ b'\\').min(b.saturating_sub(b' ' - 1));
    let ends = |block: &[u8; BLOCK]| block.iter().map(nought).fold(u8::MAX, u8::min) == 0;
    let blocks = bytes.as_chunks::<BLOCK>().0;
    blocks.iter().position(ends).unwrap_or(blocks.len()) * BLOCK
}

/// The highest bit of each byte that ends a run, exact for the lowest one of them: a borrow only spoils those above.
const fn ends_in(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    const fn zeros(word: u64) -> u64 {
        word.wrapping_sub(ONES) & !word
    }
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = zeros(word ^ (ONES * b'"' as u64));
    let backslash = zeros(word ^ (ONES * b'\\' as u64));
    (control | quote | backslash) & HIGH
}
