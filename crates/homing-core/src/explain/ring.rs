//! The records of a partition, in pages of some 32 KiB: the last one is written, and when there are as many as
//! may be, the oldest is emptied and written anew. So nothing is copied or allocated as records come and go,
//! no call does more than empty one page, and whoever reads takes one page at a time.
//! What is bounded is the room that the pages take, not what lies in them.
//!
//! A record's place is known by its page's number, which no other page gets: what is said late of a record that
//! is gone finds nothing.

use super::record::{Record, Weighed};
use std::collections::VecDeque;
use std::mem::size_of;

/// Bytes of what lies in a page.
const PAGE: usize = 32 << 10;
/// A page's lists grow by so many at a time.
const MORE: usize = 64;
/// Bytes that a page takes at most, as its lists grow; one that has more is made anew.
const GROWN: usize = PAGE + PAGE / 2;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    page: u64,
    at: u32,
}

/// Where a record's targets lie.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    page: u64,
    from: u32,
    len: u32,
}

#[derive(Debug, Default)]
struct Page {
    heads: Vec<(Record, Span)>,
    weighed: Vec<Weighed>,
}

impl Page {
    /// Bytes of what it keeps.
    fn used(&self) -> usize {
        self.heads.len() * size_of::<(Record, Span)>() + self.weighed.len() * size_of::<Weighed>()
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let heads = self.heads.capacity() * size_of::<(Record, Span)>();
        heads + self.weighed.capacity() * size_of::<Weighed>()
    }

    fn empty(&mut self) {
        self.heads.clear();
        self.weighed.clear();
        // Room that another mix of records has left is not kept beside what this one takes.
        if self.bytes() > GROWN {
            *self = Self::default();
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: VecDeque<Page>,
    /// The number of the first page that is there.
    first: u64,
    /// Bytes that it may take, and takes.
    most: usize,
    bytes: usize,
    /// Records that were dropped to make room.
    dropped: u64,
}

impl Ring {
    /// One that takes at most so many bytes, and two pages in any case.
    pub(crate) fn new(most: usize) -> Self {
        Self { pages: VecDeque::new(), first: 0, most, bytes: 0, dropped: 0 }
    }

    /// From now on it takes at most so many bytes.
    pub(crate) fn bound(&mut self, most: usize) {
        self.most = most;
        while self.is_full() {
            self.drop_first();
        }
    }

    /// Whether another page would be too much.
    fn is_full(&self) -> bool {
        self.pages.len() >= 2 && self.bytes + GROWN > self.most
    }

    /// Keeps a record.
    pub(crate) fn push(&mut self, record: Record) -> Slot {
        let page = self.last(size_of::<(Record, Span)>());
        if page.heads.len() == page.heads.capacity() {
            page.heads.reserve_exact(MORE / 4);
        }
        page.heads.push((record, Span::default()));
        let at = u32::try_from(page.heads.len() - 1).unwrap_or(u32::MAX);
        Slot { page: self.measured(), at }
    }

    /// The record that lies there, if it still does.
    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Record> {
        Some(&mut self.head(slot)?.0)
    }

    fn head(&mut self, slot: Slot) -> Option<&mut (Record, Span)> {
        let page = usize::try_from(slot.page.checked_sub(self.first)?).ok()?;
        self.pages.get_mut(page)?.heads.get_mut(slot.at as usize)
    }

    /// Keeps a record's targets, instead of those that it had.
    pub(crate) fn weigh(&mut self, slot: Slot, targets: impl ExactSizeIterator<Item = Weighed>) {
        let len = targets.len();
        let page = self.last(len * size_of::<Weighed>());
        let from = page.weighed.len();
        if page.weighed.capacity() < from + len {
            page.weighed.reserve_exact(len.max(MORE));
        }
        page.weighed.extend(targets);
        let short = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let span = Span { page: self.measured(), from: short(from), len: short(len) };
        // Making room may have dropped the very record.
        if let Some((_, own)) = self.head(slot) {
            *own = span;
        }
    }

    /// The page that is written, with room for so many bytes more. Its own bytes are not counted until it is
    /// [`Self::measured`].
    fn last(&mut self, more: usize) -> &mut Page {
        if self.pages.back().is_none_or(|p| p.used() > 0 && p.used() + more > PAGE) {
            let mut page = Page::default();
            while self.is_full() {
                page = self.drop_first().unwrap_or_default();
            }
            self.bytes += page.bytes();
            self.pages.push_back(page);
        }
        let page = self.pages.back_mut().expect("one was pushed if there was none");
        self.bytes -= page.bytes();
        page
    }

    /// Counts the last page, which has changed; its number.
    fn measured(&mut self) -> u64 {
        self.bytes += self.pages.back().map_or(0, Page::bytes);
        self.first + (self.pages.len() as u64).saturating_sub(1)
    }

    fn drop_first(&mut self) -> Option<Page> {
        let mut page = self.pages.pop_front()?;
        self.first += 1;
        self.bytes -= page.bytes();
        self.dropped += page.heads.len() as u64;
        page.empty();
        Some(page)
    }

    /// The number of the page that is written.
    pub(crate) fn last_page(&self) -> Option<u64> {
        Some(self.first + (self.pages.len() as u64).checked_sub(1)?)
    }

    /// The records of one page, the newest first, each with its targets; `None`: it has gone.
    pub(crate) fn page(
        &self,
        number: u64,
    ) -> Option<impl Iterator<Item = (&Record, &[Weighed])> + '_> {
        let heads = &self.at(number)?.heads;
        Some(heads.iter().rev().map(|(record, span)| (record, self.targets(*span))))
    }

    fn targets(&self, span: Span) -> &[Weighed] {
        let (from, len) = (span.from as usize, span.len as usize);
        self.at(span.page).and_then(|p| p.weighed.get(from..from + len)).unwrap_or_default()
    }

    fn at(&self, number: u64) -> Option<&Page> {
        self.pages.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Records that are there.
    pub(crate) fn len(&self) -> usize {
        self.pages.iter().map(|p| p.heads.len()).sum()
    }

    /// Records that were dropped to make room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self) {
        let bytes: usize = self.pages.iter().map(Page::bytes).sum();
        assert_eq!(bytes, self.bytes, "bytes and their count");
        let least = 2 * (GROWN + PAGE);
        assert!(bytes <= self.most.max(least), "records have outgrown their bound");
    }
}
