//! A reader's way along a prompt, past a writer that goes on changing what is read.
//!
//! What was read counts as far as nothing of it has gone away by the end: then all of it was true together, at
//! that moment. Pages know that by their losses. Where one has lost something the walk is done again, a few
//! times; in the end it is believed up to that page. So an answer may say less than there is, where blocks go
//! away over and over, and never more.

use super::nodes::{HOT, HOT_HEAD, PAGE, Slot, key};
use super::pages::Page;
use super::sets::{SetId, Words};
use super::view::View;
use crate::hash::{ChainHash, Prompt};
use crate::shelf::Found;
use smallvec::SmallVec;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

/// So often a prompt is walked, and a set looked up, until nothing went away meanwhile.
const TRIES: usize = 4;
const TRIES_OF_SET: usize = 32;

/// So many pages are asked for at once: of what is kept hold of at a time, eight are cheap (`arc-swap`).
const AHEAD: usize = 4;

/// How many blocks of a prompt there were, and how many of these can be believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    pub(super) depth: u32,
    pub(super) believed: u32,
}

/// A page that was read.
#[derive(Debug)]
struct Visit {
    number: u32,
    /// What its last loss was, before anything in it was read.
    lost: u64,
    /// Blocks that came before.
    depth: u32,
}

/// The way so far.
struct Way<'a> {
    view: &'a View,
    visits: SmallVec<[Visit; 16]>,
    depth: u32,
}

/// Pages to come, the next one last.
type Near = SmallVec<[Here; AHEAD]>;

/// A page that is read, or will be.
struct Here {
    page: Found<Page>,
    number: u32,
    lost: u64,
}

/// A set, and how often numbers of sets had been reused when it was looked up.
struct Known {
    set: SetId,
    reused: u64,
}

impl View {
    /// Calls `step` with the set of each block from the first on, where it is another than the last one's,
    /// and how many blocks came before, until that says it is enough; `begin` makes what it starts from.
    pub(super) fn walk<T>(
        &self,
        prompt: &Prompt,
        mut begin: impl FnMut() -> T,
        mut step: impl FnMut(&mut T, &[u64], u32) -> bool,
    ) -> (T, Walked) {
        let most = (prompt.reusable_blocks() as usize).min(prompt.chain.len());
        let mut tries = 0;
        loop {
            let losses = self.pages.losses();
            let mut state = begin();
            let mut way = Way { view: self, visits: SmallVec::new(), depth: 0 };
            let whole =
                way.go(&prompt.chain[..most], &mut |words, depth| step(&mut state, words, depth));
            let depth = way.depth;
            tries += 1;
            let believed =
                if whole && self.pages.losses() == losses { depth } else { way.believed(whole) };
            if believed == depth && whole || tries == TRIES {
                return (state, Walked { depth, believed });
            }
        }
    }

    fn look(&self, slot: Slot) -> Option<Here> {
        let page = self.pages.shelf.look(slot / PAGE)?;
        let lost = page.as_ref()?.lost();
        Some(Here { page, number: slot / PAGE, lost })
    }

    /// Comes to the page of a node, and to so many in all that may be next for these blocks: all that will be read
    /// of them is asked for at once. One after the other, that would be a wait for memory each.
    fn fetch(&self, slot: Slot, rest: &[ChainHash], pages: usize, near: &mut Near) {
        near.clear();
        let mut ways: SmallVec<[(Slot, &[ChainHash]); AHEAD]> = SmallVec::new();
        let (mut next, mut rest) = (Some(slot), rest);
        // To keep hold of a page takes a locked instruction, which waits for what was asked for before it.
        while let Some(slot) = next.filter(|_| near.len() < pages && !rest.is_empty()) {
            let number = slot / PAGE;
            let Some(page) = self.pages.shelf.look(number).filter(|page| page.is_some()) else {
                break;
            };
            near.push(Here { page, number, lost: 0 });
            ways.push((slot, rest));
            rest = rest.get((PAGE - slot % PAGE) as usize..).unwrap_or_default();
            next = self.pages.next(number);
        }
        let mut seen = 0;
        for (here, (slot, rest)) in near.iter_mut().zip(ways) {
            if let Some(page) = here.page.as_deref() {
                here.lost = page.lost();
                seen ^= page.touch(slot, rest);
            }
        }
        black_box(seen);
        near.reverse();
    }

    /// Where the node of the first of these blocks is, in the last page of `near`; most often it is the one that
    /// is `likely`.
    fn find(
        &self,
        rest: &[ChainHash],
        likely: Option<Slot>,
        near: &mut Near,
        pages: usize,
    ) -> Option<Slot> {
        let chain = *rest.first()?;
        let mut at = |slot: Slot| {
            if near.last().is_none_or(|here| here.number != slot / PAGE) {
                self.fetch(slot, rest, pages, near);
            }
            near.last()?.page.as_ref()?.is(slot, chain).then_some(slot)
        };
        likely.and_then(&mut at).or_else(|| {
            let mut found = None;
            self.chains.find(key(chain.0), |slot| {
                found = at(slot);
                found.is_some()
            });
            found
        })
    }
}

impl Way<'_> {
    /// Goes as far as it can. False: something changed under its feet.
    fn go(&mut self, chain: &[ChainHash], step: &mut impl FnMut(&[u64], u32) -> bool) -> bool {
        let mut known = Known { set: SetId::EMPTY, reused: 0 };
        let mut likely = None;
        let mut near = Near::new();
        while let Some(rest) = chain.get(self.depth as usize..).filter(|rest| !rest.is_empty()) {
            // Many prompts begin alike, and where they part nobody can foresee; then they go on by themselves.
            let pages = if self.depth == 0 { 1 } else { AHEAD };
            let found = self.view.find(rest, likely, &mut near, pages);
            let Some((slot, here)) = found.zip(near.last()) else { return true };
            let Some(page) = here.page.as_deref() else { return true };
            self.visit(page, here);
            // As far as it goes in this page.
            let run = page.run(slot, rest);
            let mut read = 0;
            while read < run {
                let Some((words, alike)) = self.held(page, slot + read, &mut known) else {
                    return false;
                };
                if page.lost() != here.lost {
                    return false;
                }
                if alike == 0 {
                    break;
                }
                if let Some(words) = words.as_ref().and_then(|words| words.as_deref())
                    && !step(words, self.depth)
                {
                    return true;
                }
                let more = alike.min(run - read);
                (read, self.depth) = (read + more, self.depth + more);
            }
            if read == 0 {
                return false;
            }
            let behind = slot + read;
            likely = Some(behind);
            if behind % PAGE == 0 {
                likely = self.view.pages.next(here.number);
                near.pop();
            }
        }
        true
    }

    /// Who is in the node's set, if that is not `known`, and of how many nodes from it on; of none, if it is
    /// nobody's by now. `None`: its set went away over and over.
    fn held(
        &self,
        page: &Page,
        slot: Slot,
        known: &mut Known,
    ) -> Option<(Option<Found<Words>>, u32)> {
        let sets = &self.view.sets;
        for _ in 0..TRIES_OF_SET {
            let reused = sets.reused();
            let (set, alike) = page.held(slot);
            if set == SetId::EMPTY {
                return Some((None, 0));
            }
            if (set, reused) == (known.set, known.reused) {
                return Some((None, alike));
            }
            let words = sets.look(set)?;
            if words.is_some() && sets.reused() == reused {
                *known = Known { set, reused };
                return Some((Some(words), alike));
            }
        }
        None
    }

    fn visit(&mut self, page: &Page, here: &Here) {
        if self.visits.last().is_some_and(|last| last.number == here.number) {
            return;
        }
        let before = self.visits.len() as u32;
        let now = self.view.pages.now.load(Relaxed);
        page.warm_until(now + HOT + HOT_HEAD.saturating_sub(before));
        let (number, lost) = (here.number, here.lost);
        self.visits.push(Visit { number, lost, depth: self.depth });
    }

    /// Blocks before the first page that has lost anything since it was read; `whole`: of all of them.
    fn believed(&self, whole: bool) -> u32 {
        let same = |visit: &&Visit| {
            let here = self.view.look(visit.number * PAGE);
            here.is_some_and(|here| here.lost == visit.lost)
        };
        match self.visits.iter().find(|visit| !same(visit)) {
            Some(torn) => torn.depth,
            None if whole => self.depth,
            // What changed was a set's number: the last page is not to be relied on.
            None => self.visits.last().map_or(0, |last| last.depth),
        }
    }
}
