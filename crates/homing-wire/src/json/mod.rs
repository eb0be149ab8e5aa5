//! JSON as the slices of it that are wanted, without a tree: a request's body is walked once and hardly anything
//! of it is read, so nearly all of the time goes into finding where its texts end. `scan` does that in blocks that the
//! compiler makes vectors of; `serde_json`, which goes a word at a time, took half of the instructions of a
//! request of 64 KB. What is small is read by it all the same: texts with escapes, numbers, and what is wrong.

mod scan;

use scan::Scanner;
use std::borrow::Cow;

/// One JSON value, as it is written: valid, and without white space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a>(&'a str);

/// Not one JSON value, or none of the kind that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotJson;

impl From<std::str::Utf8Error> for NotJson {
    fn from(_: std::str::Utf8Error) -> Self {
        Self
    }
}

impl<'a> Raw<'a> {
    /// The one value that `json` is. Time is linear in its length; nesting costs a bit of memory a level, and no stack.
    pub(crate) fn parse(json: &'a [u8]) -> Result<Self, NotJson> {
        let mut scanner = Scanner::new(std::str::from_utf8(json)?);
        let raw = Self(scanner.value()?);
        scanner.end()?;
        Ok(raw)
    }

    /// It, as it is written.
    #[must_use]
    pub const fn get(self) -> &'a str {
        self.0
    }

    /// What it says, if it is a text, and one that Unicode has: borrowed unless it has escapes.
    #[must_use]
    pub fn text(self) -> Option<Cow<'a, str>> {
        let inside = self.0.strip_prefix('"')?.strip_suffix('"')?;
        match memchr::memchr(b'\\', inside.as_bytes()) {
            None => Some(Cow::Borrowed(inside)),
            Some(_) => serde_json::from_str(self.0).ok().map(Cow::Owned),
        }
    }

    /// Its members, in order; none if it is no object.
    pub(crate) fn members(self) -> impl Iterator<Item = (Cow<'a, str>, Self)> {
        Members::of_text(self.0).into_iter().flatten().map_while(Result::ok)
    }

    /// The last value under `name`, if it is an object that has one.
    pub(crate) fn member(self, name: &str) -> Option<Self> {
        let [value] = self.pick([name]);
        value
    }

    /// The same of several names.
    pub(crate) fn pick<const N: usize>(self, names: [&str; N]) -> [Option<Self>; N] {
        // It is known to be JSON.
        Members::of_text(self.0).and_then(|members| members.pick(names)).unwrap_or([None; N])
    }

    /// Its items, in order; none if it is no list.
    pub(crate) fn items(self) -> impl Iterator<Item = Self> {
        let mut scanner = Scanner::new(self.0);
        let mut more = scanner.takes(b'[') && !scanner.takes(b']');
        std::iter::from_fn(move || {
            let item = more.then(|| scanner.value().ok()).flatten()?;
            more = scanner.takes(b',');
            Some(Self(item))
        })
    }
}

/// The members of an object that is the whole of a text, which is known to be JSON when the last one has been handed
/// out without an error, and not before.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    scanner: Scanner<'a>,
    next: Next,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A member, or nothing if there is none at all.
    First,
    /// A comma, or the end.
    More,
    Nothing,
}

impl<'a> Members<'a> {
    /// # Errors
    /// If `json` is no text, or begins no object.
    pub(crate) fn of(json: &'a [u8]) -> Result<Self, NotJson> {
        Self::of_text(std::str::from_utf8(json)?)
    }

    /// The members that are left of an object, from the first byte of a name on.
    ///
    /// # Errors
    /// If `json` is no text.
    pub(crate) fn within(json: &'a [u8]) -> Result<Self, NotJson> {
        Ok(Self { scanner: Scanner::new(std::str::from_utf8(json)?), next: Next::First })
    }

    fn of_text(text: &'a str) -> Result<Self, NotJson> {
        let mut scanner = Scanner::new(text);
        scanner.expect(b'{')?;
        Ok(Self { scanner, next: Next::First })
    }

    /// The last value under each of these names.
    pub(crate) fn pick<const N: usize>(
        self,
        names: [&str; N],
    ) -> Result<[Option<Raw<'a>>; N], NotJson> {
        let mut found = [None; N];
        for member in self {
            let (key, value) = member?;
            if let Some(i) = names.iter().position(|name| *name == key) {
                found[i] = Some(value);
            }
        }
        Ok(found)
    }

    fn read(&mut self) -> Result<Option<(Cow<'a, str>, Raw<'a>)>, NotJson> {
        let ends = match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::First => self.scanner.takes(b'}'),
            Next::More if self.scanner.takes(b',') => false,
            Next::More => self.scanner.expect(b'}').map(|()| true)?,
            Next::Nothing => return Ok(None),
        };
        if ends {
            return self.scanner.end().map(|()| None);
        }
        let (name, escapes) = self.scanner.name()?;
        let name = match escapes {
            false => Cow::Borrowed(&name[1..name.len() - 1]),
            true => Raw(name).text().ok_or(NotJson)?,
        };
        let value = Raw(self.scanner.value()?);
        self.next = Next::More;
        Ok(Some((name, value)))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<(Cow<'a, str>, Raw<'a>), NotJson>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
