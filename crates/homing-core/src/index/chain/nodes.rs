//! One node a distinct prefix: its chain, who holds it, and what engines call it.
//!
//! Nodes lie in pages, and a block that follows another lies behind it where it can: so a prompt's
//! prefix is read as a run of memory, and only where the run breaks its next block is looked up. A page
//! that nobody needs any more is given back.
//!
//! A page knows until when it is warm, on a clock that goes on with what is dropped: what was asked for is warm
//! for longer than what was only told, and beginnings for longer than ends, since engines tell each block
//! once, and who loses the head of a conversation has lost all of it. Who makes room goes round and takes
//! what is cold, and where nothing is, what will be first (after the clock with counters; Corbató, "A
//! paging experiment with the Multics system", 1968).

use super::pages::{Node, Page, Pages};
use super::sets::SetId;
use crate::hash::{ChainHash, EngineHash};
use crate::keys::{Finder, Gap, Keys};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Nodes of a page: as many as a word has bits.
pub(super) const PAGE: u32 = 64;
const LAST: u32 = PAGE - 1;

/// A block that so many follow begins a run.
const RUN: usize = 8;

/// For how long a page is warm that has a new node, and how much longer the first of a sequence is; each one
/// behind it has one less.
const WARM: u32 = 1;
const HEAD: u32 = 2;
/// The same of one that was asked for.
pub(super) const HOT: u32 = 6;
pub(super) const HOT_HEAD: u32 = 8;
/// The clock goes on when so large a part of all pages was dropped.
const PART: usize = 8;
/// What an `Arc` takes besides.
const COUNTS: usize = 2 * size_of::<usize>();

/// The number of a node.
pub(super) type Slot = u32;

/// See the module.
#[derive(Debug, Default)]
struct Clock {
    /// The page that is looked at next.
    hand: u32,
    /// Pages that were dropped since it last went on.
    dropped: usize,
    /// Pages that were looked at since one was dropped, and how warm a page may be to be dropped.
    looked: usize,
    level: u32,
}

/// A page, and what only its writer knows of it.
#[derive(Debug)]
struct Kept {
    page: Arc<Page>,
    /// Which nodes are somebody's, a bit each.
    used: u64,
    /// It is in [`Nodes::roomy`].
    listed: bool,
}

/// All nodes of an index.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pages: Vec<Option<Kept>>,
    /// The same, for readers.
    shared: Arc<Pages>,
    /// Pages with room, each once; some may have filled, or gone, since.
    roomy: Vec<u32>,
    /// Pages that have gone.
    gone: Vec<u32>,
    /// Pages whose nodes were dropped while names may still lead to them: not to be used again yet.
    ghosts: Vec<u32>,
    clock: Clock,
    by_chain: Keys,
    by_engine: Keys,
    len: usize,
    /// Nodes that were somebody's, in all.
    removed: u64,
}

impl Nodes {
    /// What readers need: the pages, and the nodes by their prefixes.
    pub(super) fn shared(&self) -> (&Arc<Pages>, &Arc<Finder>) {
        (&self.shared, self.by_chain.finder())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Nothing of it is needed: all pages are empty, and no name leads to any.
    pub(super) fn is_bare(&self) -> bool {
        self.len == 0 && self.ghosts.is_empty()
    }

    /// Gives all room back, where it is bare. Readers of before see nothing of what comes.
    pub(super) fn reset(&mut self) {
        *self = Self { removed: self.removed, ..Self::default() };
    }

    /// Counts those that have gone.
    pub(super) fn removed(&self) -> u64 {
        self.removed
    }

    fn kept(&self, slot: Slot) -> Option<&Kept> {
        let kept = self.pages.get((slot / PAGE) as usize)?.as_ref()?;
        (kept.used >> (slot % PAGE) & 1 == 1).then_some(kept)
    }

    /// The node, if it is somebody's.
    pub(super) fn get(&self, slot: Slot) -> Option<Node> {
        Some(self.kept(slot)?.page.node(slot))
    }

    /// The node, somebody's, is held by a set from now on. `loss`: by one less than before.
    pub(super) fn hold(&mut self, slot: Slot, set: SetId, loss: bool) {
        let Some(kept) = self.kept(slot) else { return };
        let loss = loss.then(|| self.shared.next_loss());
        kept.page.hold(slot, set, loss);
        if let Some(loss) = loss {
            self.shared.lost(loss);
        }
    }

    /// It is somebody's.
    pub(super) fn lives(&self, slot: Slot) -> bool {
        self.kept(slot).is_some()
    }

    /// Who holds the node, if it is somebody's.
    pub(super) fn holders(&self, slot: Slot) -> Option<SetId> {
        Some(self.kept(slot)?.page.set(slot))
    }

    /// The node of a prefix; most often it lies behind `before`.
    pub(super) fn find(&self, chain: ChainHash, before: Option<Slot>) -> Option<Slot> {
        self.find_or_gap(chain, before).ok()
    }

    /// The same; or else where its key goes.
    pub(super) fn find_or_gap(&self, chain: ChainHash, before: Option<Slot>) -> Result<Slot, Gap> {
        let is = |slot: Slot| self.kept(slot).is_some_and(|k| k.page.chain(slot) == chain);
        let next = before.and_then(|slot| self.behind(slot)).filter(|s| is(*s));
        next.map_or_else(|| self.by_chain.find_or_gap(key(chain.0), is), Ok)
    }

    /// The node that is called so.
    pub(super) fn called(&self, engine: EngineHash) -> Option<Slot> {
        self.called_or_gap(engine).ok()
    }

    /// The same; or else where the name goes.
    pub(super) fn called_or_gap(&self, engine: EngineHash) -> Result<Slot, Gap> {
        self.by_engine.find_or_gap(key(engine.0), |s| self.is_called(s, engine))
    }

    /// The node that lies behind this one, if it is called so: most often it is.
    pub(super) fn called_behind(&self, engine: EngineHash, before: Slot) -> Option<Slot> {
        self.behind(before).filter(|s| self.is_called(*s, engine))
    }

    /// Where most often the one is that follows this one.
    fn behind(&self, slot: Slot) -> Option<Slot> {
        match slot % PAGE {
            LAST => self.shared.next(slot / PAGE),
            _ => Some(slot + 1),
        }
    }

    fn is_called(&self, slot: Slot, engine: EngineHash) -> bool {
        self.kept(slot).is_some_and(|k| k.page.is_called(slot, engine))
    }

    /// Brings near the processor what will be read to find a block by its name, and a prefix. What it
    /// returns says nothing.
    pub(super) fn touch(&self, engine: EngineHash) -> u64 {
        self.by_engine.touch(key(engine.0))
    }

    pub(super) fn touch_chain(&self, chain: ChainHash) -> u64 {
        self.by_chain.touch(key(chain.0))
    }

    /// A new node of a prefix that has none, behind `before` if there is room. About so many will `follow`
    /// it. It has no name yet. `gap`: where its key goes. `None`: there is no room in all.
    pub(super) fn insert(
        &mut self,
        chain: ChainHash,
        gap: Gap,
        space: u16,
        before: Option<Slot>,
        follow: usize,
    ) -> Option<Slot> {
        let behind = before.map(|slot| slot + 1).filter(|s| s % PAGE != 0 && !self.lives(*s));
        let slot = match behind {
            Some(slot) => slot,
            None => self.room(follow)?,
        };
        if !self.by_chain.insert_at(gap, slot) {
            return None;
        }
        let now = self.shared.now.load(Relaxed);
        let until = match before.filter(|b| b / PAGE != slot / PAGE) {
            None if before.is_none() => now + WARM + HEAD,
            // In the page of the one before it.
            None => now + WARM,
            Some(before) => {
                let kept = self.pages[(before / PAGE) as usize].as_ref();
                let until = kept.map_or(0, |kept| kept.page.warm()).saturating_sub(1);
                until.clamp(now + WARM, now + WARM + HEAD)
            }
        };
        let kept = self.pages[(slot / PAGE) as usize].as_mut()?;
        kept.used |= 1 << (slot % PAGE);
        kept.page.begin(slot, chain, space, behind.is_some());
        kept.page.warm_until(until);
        self.len += 1;
        if let Some(before) = before.filter(|b| b % PAGE == LAST) {
            self.shared.goes_on(before / PAGE, slot);
        }
        Some(slot)
    }

    /// A node without a name is called so from now on, which nobody else is. `gap`: where the name goes. False: there
    /// is no room for it.
    pub(super) fn name(&mut self, slot: Slot, engine: EngineHash, gap: Gap) -> bool {
        let named = self.by_engine.insert_at(gap, slot);
        if let Some(kept) = self.kept(slot).filter(|_| named) {
            kept.page.name(slot, engine);
        }
        named
    }

    /// A free slot: of a page of its own for a run, as long as pages are well used; else anywhere.
    fn room(&mut self, follow: usize) -> Option<Slot> {
        let pages = self.live_pages();
        let run = follow >= RUN && self.len * 2 >= pages * PAGE as usize;
        while let Some(number) = self.roomy.last().copied().filter(|_| !run) {
            let kept = self.pages[number as usize].as_mut().filter(|p| p.used < u64::MAX);
            if let Some(kept) = kept {
                return Some(number * PAGE + (!kept.used).trailing_zeros());
            }
            self.roomy.pop();
            if let Some(kept) = &mut self.pages[number as usize] {
                kept.listed = false;
            }
        }
        let number = match self.gone.pop() {
            Some(number) => number,
            None => {
                self.pages.push(None);
                u32::try_from(self.pages.len() - 1).ok().filter(|n| *n < u32::MAX / PAGE - 1)?
            }
        };
        // A number of its own, so that it is never taken for one that lay here before.
        let (loss, now) = (self.shared.next_loss(), self.shared.now.load(Relaxed));
        let page = Arc::new(Page::new(loss, now));
        self.shared.lost(loss);
        self.shared.shelf.put(number, Some(page.clone()));
        self.pages[number as usize] = Some(Kept { page, used: 0, listed: true });
        self.roomy.push(number);
        Some(number * PAGE)
    }

    /// Nobody holds it any more.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.unlink(slot);
        let number = slot / PAGE;
        let Some(Some(kept)) = self.pages.get_mut(number as usize) else { return };
        if kept.used == 0 {
            self.give_back(number, false);
        } else if !kept.listed {
            kept.listed = true;
            self.roomy.push(number);
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let Some(node) = self.get(slot) else { return };
        self.by_chain.remove(key(node.chain.0), slot);
        if node.named {
            self.by_engine.remove(key(node.engine.0), slot);
        }
        self.len -= 1;
        self.removed += 1;
        let loss = self.shared.next_loss();
        if let Some(kept) = &mut self.pages[(slot / PAGE) as usize] {
            kept.used &= !(1 << (slot % PAGE));
            kept.page.end(slot, loss);
        }
        self.shared.lost(loss);
    }

    /// An empty page goes. `ghost`: names may still lead to its nodes.
    fn give_back(&mut self, number: u32, ghost: bool) {
        let kept = self.pages[number as usize].take();
        self.shared.shelf.put(number, None);
        if kept.is_some_and(|kept| kept.listed) {
            self.roomy.retain(|n| *n != number);
        }
        if ghost { &mut self.ghosts } else { &mut self.gone }.push(number);
    }

    /// The hand goes on by one page: one to be dropped. `None`: it is warm, or there is none.
    pub(super) fn tick(&mut self) -> Option<u32> {
        let (number, live) = (self.clock.hand, self.live_pages());
        let clock = &mut self.clock;
        clock.hand = if number as usize + 1 < self.pages.len() { number + 1 } else { 0 };
        clock.looked += 1;
        if clock.looked > self.pages.len() {
            (clock.looked, clock.level) = (0, clock.level + 1);
        }
        let kept = self.pages.get(number as usize)?.as_ref()?;
        let now = &self.shared.now;
        if kept.page.warm() > now.load(Relaxed) + clock.level {
            return None;
        }
        (clock.looked, clock.dropped) = (0, clock.dropped + 1);
        if clock.dropped >= (live / PART).max(1) {
            (clock.dropped, clock.level) = (0, clock.level.saturating_sub(1));
            now.store(now.load(Relaxed) + 1, Relaxed);
        }
        Some(number)
    }

    /// There is room: what is warm is let alone from now on.
    pub(super) fn rest(&mut self) {
        (self.clock.looked, self.clock.level) = (0, 0);
    }

    /// The nodes of a page.
    pub(super) fn of_page(&self, number: u32) -> impl Iterator<Item = (Slot, Node)> {
        let slots = number * PAGE..(number + 1) * PAGE;
        slots.filter_map(|slot| Some((slot, self.get(slot)?)))
    }

    /// A page goes with all its nodes. `ghost`: names may still lead to them, until [`Self::lay_ghosts`].
    pub(super) fn drop_page(&mut self, number: u32, ghost: bool) {
        (number * PAGE..(number + 1) * PAGE).for_each(|slot| self.unlink(slot));
        self.give_back(number, ghost);
    }

    /// Pages that names may still lead to.
    pub(super) fn ghosts(&self) -> usize {
        self.ghosts.len()
    }

    /// No name leads any more to the first `n` ghosts.
    pub(super) fn lay_ghosts(&mut self, n: usize) {
        self.gone.extend(self.ghosts.drain(..n));
    }

    /// Pages, with those that have gone.
    pub(super) fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    fn live_pages(&self) -> usize {
        self.pages.len() - self.gone.len() - self.ghosts.len()
    }

    /// Every node with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, Node)> {
        (0..self.pages()).flat_map(|number| self.of_page(number))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let lists = self.roomy.capacity() + self.gone.capacity() + self.ghosts.capacity();
        self.live_pages() * (size_of::<Page>() + COUNTS)
            + self.pages.capacity() * size_of::<Option<Kept>>()
            + self.shared.bytes()
            + lists * size_of::<u32>()
            + self.by_chain.bytes()
            + self.by_engine.bytes()
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check(&self) {
        let named = self.iter().filter(|(_, n)| n.named).count();
        assert_eq!((self.iter().count(), self.by_chain.len()), (self.len, self.len), "nodes");
        assert_eq!(named, self.by_engine.len(), "names");
        for (slot, node) in self.iter() {
            assert_eq!(self.find(node.chain, None), Some(slot), "a prefix that is not found");
            assert!(!node.named || self.called(node.engine) == Some(slot), "a lost name");
        }
        assert_eq!(self.pages.iter().flatten().count(), self.live_pages(), "pages");
        for kept in self.pages.iter().flatten() {
            kept.page.check(|slot| kept.used >> slot & 1 == 1);
        }
        self.by_chain.check(|slot| self.get(slot).map(|n| key(n.chain.0)));
        self.by_engine.check(|slot| self.get(slot).map(|n| key(n.engine.0)));
    }
}

/// Engines' names may be small numbers: mixed, so that they spread.
pub(super) fn key(hash: u64) -> u128 {
    u128::from(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ hash.rotate_left(32))
}
