//! The records of a partition, in pages of some 32 KiB: the last one is written, and when there are as many as
//! may be, the oldest is emptied and written anew. So nothing is copied or allocated as records come and go,
//! no call does more than empty one page, and whoever reads takes one page at a time. What targets look like in a
//! page is [`super::stands`]' idea.
//! What is bounded is the room that the pages take, not what lies in them.
//!
//! A record's place is known by its page's number, which no other page gets: what is said late of a record that
//! is gone finds nothing.

use super::record::Record;
use super::stands::{Own, Rows, Seen, Stamps, Told};
use crate::select::Candidate;
use crate::select::policy::Weight;
use std::collections::VecDeque;
use std::mem::size_of;

/// Bytes of what lies in a page.
const PAGE: usize = 32 << 10;
/// A page's lists grow by so many bytes at a time.
const MORE: usize = 3 << 10;
/// Bytes that a page takes at most, as its lists grow; one that has more is made anew.
const GROWN: usize = PAGE + PAGE / 2;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    page: u64,
    at: u32,
}

/// Where a record's targets lie: so many from there on, in each of the page's lists.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    page: u64,
    refs: (u32, u16),
    owns: (u32, u16),
    said: (u32, u16),
    told: Told,
}

#[derive(Debug, Default)]
struct Page {
    heads: Vec<(Record, Span)>,
    /// Targets as they stood,
    stands: Vec<Candidate>,
    /// who of them was looked at,
    refs: Vec<u16>,
    /// and what the request added.
    owns: Vec<Own>,
    /// What they cost, by policies that can't be asked again.
    said: Vec<Weight>,
}

impl Page {
    /// Bytes of what it keeps.
    fn used(&self) -> usize {
        let (heads, stands) = (size_of_val(&*self.heads), size_of_val(&*self.stands));
        let rest = size_of_val(&*self.owns) + size_of_val(&*self.said);
        heads + stands + size_of_val(&*self.refs) + rest
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        fn taken<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        let rest = taken(&self.owns) + taken(&self.said);
        taken(&self.heads) + taken(&self.stands) + taken(&self.refs) + rest
    }

    fn empty(&mut self) {
        self.heads.clear();
        self.stands.clear();
        self.refs.clear();
        self.owns.clear();
        self.said.clear();
        // Room that another mix of records has left is not kept beside what this one takes.
        if self.bytes() > GROWN {
            *self = Self::default();
        }
    }
}

/// Makes room for so many more.
fn room<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() < list.len() + more {
        list.reserve_exact(more.max(MORE / size_of::<T>()));
    }
}

/// A place in a list of a page. Pages are small.
fn short(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Which of those that are kept this one is, if it is.
fn place(kept: Option<&[u32]>, i: usize) -> Option<u16> {
    let at = match kept {
        Some(kept) => kept.binary_search(&u32::try_from(i).ok()?).ok()?,
        None => i,
    };
    u16::try_from(at).ok()
}

/// The last `n` of a list, to be found again.
fn last<T>(list: &[T], n: usize) -> (u32, u16) {
    (short(list.len() - n), u16::try_from(n).unwrap_or(u16::MAX))
}

/// They.
fn those<T>(list: &[T], (from, len): (u32, u16)) -> &[T] {
    list.get(from as usize..from as usize + usize::from(len)).unwrap_or_default()
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
        let (number, page) = self.last(size_of::<(Record, Span)>());
        room(&mut page.heads, 1);
        page.heads.push((record, Span::default()));
        let at = short(page.heads.len() - 1);
        self.measured();
        Slot { page: number, at }
    }

    /// The record that lies there, if it still does.
    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Record> {
        Some(&mut self.head(slot)?.0)
    }

    fn head(&mut self, slot: Slot) -> Option<&mut (Record, Span)> {
        let page = usize::try_from(slot.page.checked_sub(self.first)?).ok()?;
        self.pages.get_mut(page)?.heads.get_mut(slot.at as usize)
    }

    /// Keeps a record's targets, instead of those that it had: those of `seen` that have these numbers, or all.
    /// `said`: what they cost, if the policy can't be asked again.
    pub(crate) fn weigh(
        &mut self,
        slot: Slot,
        seen: &Seen<'_>,
        kept: Option<&[u32]>,
        stamps: &mut Stamps,
        told: Told,
        said: &[Weight],
    ) {
        let n = kept.map_or(seen.all.len(), <[u32]>::len);
        let each = || (0..n).map(|at| kept.map_or(at, |kept| kept[at] as usize));
        let known = match stamps.is_of(self.last_page()) {
            true => each().filter(|i| stamps.get(seen.number(*i)).is_some()).count(),
            false => 0,
        };
        let more = n * (size_of::<u16>() + size_of::<Own>()) + size_of_val(said);
        let (number, page) = self.last(more + (n - known) * size_of::<Candidate>());
        stamps.turn(number);
        room(&mut page.refs, n);
        let stands = &mut page.stands;
        page.refs.extend(each().map(|i| {
            stamps.or_put(seen.number(i), || {
                room(stands, 1);
                stands.push(seen.lasting(i));
                // Of a page of candidates there are fewer.
                u16::try_from(stands.len() - 1).unwrap_or_default()
            })
        }));
        let before = page.owns.len();
        room(&mut page.owns, n);
        if seen.only_holders() {
            let holders = seen.holders.iter().map(|i| *i as usize);
            page.owns.extend(holders.filter_map(|i| seen.own(i, place(kept, i)?)));
        } else {
            page.owns.extend(each().zip(0..).filter_map(|(i, at)| seen.own(i, at)));
        }
        room(&mut page.said, said.len());
        page.said.extend_from_slice(said);
        let span = Span {
            page: number,
            refs: last(&page.refs, n),
            owns: last(&page.owns, page.owns.len() - before),
            said: last(&page.said, said.len()),
            told,
        };
        self.measured();
        // Making room may have dropped the very record.
        if let Some((_, own)) = self.head(slot) {
            *own = span;
        }
    }

    /// The page that is written, with room for so many bytes more. Its own bytes are not counted until it is
    /// [`Self::measured`].
    fn last(&mut self, more: usize) -> (u64, &mut Page) {
        if self.pages.back().is_none_or(|p| p.used() > 0 && p.used() + more > PAGE) {
            let mut page = Page::default();
            while self.is_full() {
                page = self.drop_first().unwrap_or_default();
            }
            self.bytes += page.bytes();
            self.pages.push_back(page);
        }
        let number = self.first + (self.pages.len() as u64).saturating_sub(1);
        let page = self.pages.back_mut().expect("one was pushed if there was none");
        self.bytes -= page.bytes();
        (number, page)
    }

    /// Counts the last page, which has changed.
    fn measured(&mut self) {
        self.bytes += self.pages.back().map_or(0, Page::bytes);
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
    ) -> Option<impl Iterator<Item = (&Record, Rows<'_>)> + '_> {
        let heads = &self.at(number)?.heads;
        Some(heads.iter().rev().map(|(record, span)| (record, self.rows(span))))
    }

    fn rows(&self, span: &Span) -> Rows<'_> {
        let Some(page) = self.at(span.page) else { return Rows::default() };
        Rows {
            stands: &page.stands,
            refs: those(&page.refs, span.refs),
            owns: those(&page.owns, span.owns),
            said: those(&page.said, span.said),
            told: span.told,
        }
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

    /// What the stamps say of targets lies there.
    ///
    /// # Panics
    /// When it doesn't.
    pub(crate) fn check_stamps(&self, seen: &Seen<'_>, stamps: &Stamps) {
        let Some(page) = self.pages.back().filter(|_| stamps.is_of(self.last_page())) else {
            return;
        };
        for i in 0..seen.all.len() {
            let lies = stamps.get(i).map(|at| page.stands[at as usize]);
            assert!(lies.is_none_or(|c| c == seen.lasting(i)), "a target in the records");
        }
    }
}
