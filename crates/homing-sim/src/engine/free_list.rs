//! The order in which unreferenced blocks are given away: a doubly linked list over slot numbers.
//!
//! A `VecDeque` would do but for one operation: a prefix hit takes a block out of the *middle*. The
//! links live in two flat arrays, so that nothing is allocated after construction.

const NIL: u32 = u32::MAX;

/// Free slots, the next one to be given away first.
#[derive(Clone, Debug)]
pub(super) struct FreeList {
    prev: Vec<u32>,
    next: Vec<u32>,
    head: u32,
    tail: u32,
    len: u32,
}

impl FreeList {
    /// All of `slots`, in order.
    pub(super) fn full(slots: u32) -> Self {
        let n = slots as usize;
        let mut list =
            Self { prev: vec![NIL; n], next: vec![NIL; n], head: NIL, tail: NIL, len: 0 };
        for slot in 0..slots {
            list.push_back(slot);
        }
        list
    }

    /// Gives back a slot that is not in the list; it will be taken last.
    pub(super) fn push_back(&mut self, slot: u32) {
        self.prev[slot as usize] = self.tail;
        self.next[slot as usize] = NIL;
        match self.tail {
            NIL => self.head = slot,
            tail => self.next[tail as usize] = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    /// Takes the slot that has been free the longest.
    pub(super) fn pop_front(&mut self) -> Option<u32> {
        if self.head == NIL {
            return None;
        }
        let slot = self.head;
        self.remove(slot);
        Some(slot)
    }

    /// Takes a slot that is in the list.
    pub(super) fn remove(&mut self, slot: u32) {
        let (prev, next) = (self.prev[slot as usize], self.next[slot as usize]);
        match prev {
            NIL => self.head = next,
            p => self.next[p as usize] = next,
        }
        match next {
            NIL => self.tail = prev,
            n => self.prev[n as usize] = prev,
        }
        self.len -= 1;
    }

    /// How many slots are free.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_out_in_the_order_of_their_return_except_those_taken_from_the_middle() {
        let mut list = FreeList::full(4);
        list.remove(1);
        assert_eq!(list.pop_front(), Some(0));
        list.push_back(1);
        list.push_back(0);
        list.remove(3);
        assert_eq!(list.len(), 3);
        let rest: Vec<u32> = std::iter::from_fn(|| list.pop_front()).collect();
        assert_eq!(rest, [2, 1, 0]);
        assert_eq!(list.pop_front(), None);
    }
}
