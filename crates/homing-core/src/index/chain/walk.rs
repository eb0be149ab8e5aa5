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
use std::sync::atomic::Ordering::Relaxed;

/// So often a prompt is walked, and a set looked up, until nothing went away meanwhile.
const TRIES: usize = 4;
const TRIES_OF_SET: usize = 32;

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

/// The page that is read.
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

    /// Where the node of a prefix is; most often it lies behind the one before it. `last`: the page that was
    /// read last.
    fn find(
        &self,
        chain: ChainHash,
        behind: Option<Slot>,
        last: &mut Option<Here>,
    ) -> Option<(Slot, Here)> {
        let mut at = |slot: Slot| {
            if let Some(here) = last.take_if(|here| here.number == slot / PAGE) {
                if here.holders(slot, chain).is_some() {
                    return Some((slot, here));
                }
                *last = Some(here);
                return None;
            }
            let here = self.look(slot)?;
            here.holders(slot, chain).map(|_| (slot, here))
        };
        behind.and_then(&mut at).or_else(|| {
            let mut found = None;
            self.chains.find(key(chain.0), |slot| {
                found = at(slot);
                found.is_some()
            });
            found
        })
    }
}

impl Here {
    fn holders(&self, slot: Slot, chain: ChainHash) -> Option<SetId> {
        self.page.as_ref()?.holders(slot, chain)
    }
}

impl Way<'_> {
    /// Goes as far as it can. False: something changed under its feet.
    fn go(&mut self, chain: &[ChainHash], step: &mut impl FnMut(&[u64], u32) -> bool) -> bool {
        let mut known = Known { set: SetId::EMPTY, reused: 0 };
        let mut behind = None;
        let mut last: Option<Here> = None;
        let sets = &*self.view.sets;
        while let Some(next) = chain.get(self.depth as usize) {
            let Some((slot, here)) = self.view.find(*next, behind, &mut last) else { return true };
            let Some(page) = here.page.as_deref() else { return true };
            self.visit(page, &here);
            // As far as it goes in this page.
            let (began, room) = (self.depth as usize, (PAGE - slot % PAGE) as usize);
            let run = &chain[began..chain.len().min(began + room)];
            let mut read = 0;
            for (slot, next) in (slot..).zip(run) {
                let Some(set) = page.holders(slot, *next) else { break };
                let words = if set == known.set && sets.reused() == known.reused {
                    None
                } else {
                    let Some((words, now)) = self.words(page, slot, *next) else { return false };
                    known = now;
                    Some(words)
                };
                if page.lost() != here.lost {
                    return false;
                }
                if let Some(words) = words.as_ref().and_then(|words| words.as_deref())
                    && !step(words, self.depth + read)
                {
                    self.depth += read;
                    return true;
                }
                read += 1;
            }
            self.depth += read;
            if read == 0 {
                return false;
            }
            behind = Some(slot + read);
            last = Some(here);
        }
        true
    }

    /// Who is in the node's set.
    fn words(&self, page: &Page, slot: Slot, chain: ChainHash) -> Option<(Found<Words>, Known)> {
        let sets = &self.view.sets;
        for _ in 0..TRIES_OF_SET {
            let reused = sets.reused();
            let set = page.holders(slot, chain)?;
            let words = sets.look(set)?;
            if words.is_some() && sets.reused() == reused {
                return Some((words, Known { set, reused }));
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
