//! Where the pages of a long list begin and end.
//!
//! etcd counts all keys of a range that it is asked for, however few of them it may send: a million keys in pages that
//! each reach to the end are counted thirty times over. So each page asks for a window that holds about what one may:
//! how wide that is follows from how many keys the last window held, whatever keys look like. A wrong guess costs a
//! shorter page, or more to count; never a key.

/// Bytes of a key that a width is measured in.
const DIGITS: usize = 8;

/// See the module.
pub(super) struct Pages {
    from: Vec<u8>,
    end: Vec<u8>,
    till: Vec<u8>,
    width: Option<Width>,
}

/// What has come of a page.
pub(super) struct Page<'a> {
    /// Its first key and its last one; `None`: there is none.
    pub(super) ends: Option<(&'a [u8], &'a [u8])>,
    /// Whether its window holds more than it.
    pub(super) more: bool,
    /// How many its window holds.
    pub(super) all: u64,
    /// How many it might have held.
    pub(super) limit: u64,
}

impl Pages {
    /// Of all keys from here up to there, which is not included.
    pub(super) fn new(from: Vec<u8>, end: Vec<u8>) -> Self {
        Self { from, till: end.clone(), end, width: None }
    }

    /// The window to ask for the first keys of.
    pub(super) fn window(&self) -> (&[u8], &[u8]) {
        (&self.from, &self.till)
    }

    /// Moves on behind what has come. False: that was all.
    pub(super) fn came(&mut self, page: &Page<'_>) -> bool {
        match (&mut self.width, page.ends) {
            (None, None) => {}
            (Some(width), None) => width.widen(),
            (Some(width), Some(_)) if page.all <= 2 * page.limit => width.fit(page.all, page.limit),
            // Far too much: what one page holds is as wide as this one.
            (width, Some((first, last))) => *width = Some(Width::between(first, last)),
        }
        match page.ends {
            Some((_, last)) if page.more => {
                self.from.clear();
                self.from.extend_from_slice(last);
                self.from.push(0);
            }
            _ => self.from.clone_from(&self.till),
        }
        if self.from >= self.end {
            return false;
        }
        let till = self.width.as_ref().and_then(|width| width.behind(&self.from));
        self.till = till.filter(|till| *till < self.end).unwrap_or_else(|| self.end.clone());
        true
    }
}

/// So many in the bytes `at..at + DIGITS` of a key; never 0.
struct Width {
    at: usize,
    many: u64,
    /// Windows in a row in which there was nothing.
    empty: u32,
}

impl Width {
    fn between(first: &[u8], last: &[u8]) -> Self {
        let at = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let digits = |key: &[u8]| {
            let mut digits = [0; DIGITS];
            for (digit, byte) in digits.iter_mut().zip(key.iter().skip(at)) {
                *digit = *byte;
            }
            u64::from_be_bytes(digits)
        };
        Self { at, many: digits(last).saturating_sub(digits(first)).max(1), empty: 0 }
    }

    /// Nobody lives there. The next key may be near, as behind the last letter of an alphabet, or far away.
    fn widen(&mut self) {
        self.empty += 1;
        let factor = 1 << self.empty.min(8);
        if self.at > 0 && self.many > u64::MAX / factor {
            (self.at, self.many) = (self.at - 1, self.many >> 8);
        }
        self.many = self.many.saturating_mul(factor);
    }

    /// So many keys were in it, and should be. It at most doubles at once: they may lie closer together there.
    fn fit(&mut self, were: u64, should: u64) {
        self.empty = 0;
        let many = u128::from(self.many) * u128::from(should) / u128::from(were.max(1));
        let most = self.many.saturating_mul(2);
        self.many = u64::try_from(many).map_or(most, |many| many.clamp(1, most));
        if self.many < 1 << 16 {
            (self.at, self.many) = (self.at + 4, self.many << 32);
        }
    }

    /// What is so far behind a key; `None`: no key is.
    fn behind(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut sum = key.to_vec();
        sum.resize(self.at + DIGITS, 0);
        let (head, digits) = sum.split_at_mut(self.at);
        let there = u64::from_be_bytes(<[u8; DIGITS]>::try_from(&*digits).ok()?);
        let (there, carry) = there.overflowing_add(self.many);
        digits.copy_from_slice(&there.to_be_bytes());
        if carry {
            let next = head.iter().rposition(|byte| *byte < u8::MAX)?;
            head[next] += 1;
            head[next + 1..].fill(0);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    type Keys = BTreeSet<Vec<u8>>;

    /// Reads a list as etcd gives it: what came, of how many pages, and how many keys it counted for them.
    fn read(keys: &Keys, limit: usize, ends: (&[u8], &[u8])) -> (Vec<Vec<u8>>, usize, usize) {
        let mut pages = Pages::new(ends.0.to_vec(), ends.1.to_vec());
        let (mut came, mut asked, mut counted) = (Vec::new(), 0, 0);
        loop {
            let (from, till) = pages.window();
            assert!(from < till, "etcd refuses an empty range");
            let there: Vec<&Vec<u8>> = keys.range(from.to_vec()..till.to_vec()).collect();
            let page = &there[..there.len().min(limit)];
            (asked, counted) = (asked + 1, counted + there.len());
            came.extend(page.iter().map(|key| (*key).clone()));
            assert!(asked < 100_000, "it comes to an end");
            let ends = page.first().zip(page.last()).map(|(a, b)| (a.as_slice(), b.as_slice()));
            let (more, all) = (there.len() > page.len(), there.len() as u64);
            if !pages.came(&Page { ends, more, all, limit: limit as u64 }) {
                return (came, asked, counted);
            }
        }
    }

    fn sessions(pool: &str, many: u64) -> impl Iterator<Item = Vec<u8>> {
        // Spread as digests are.
        (0..many).map(move |i| {
            let digest = u128::from(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | u128::from(i);
            format!("/homing/a/bindings/{pool}.{digest:032x}").into_bytes()
        })
    }

    #[test]
    fn sessions_are_counted_few_times() {
        let keys: Keys = sessions("decode.0123456789abcdef", 30_000)
            .chain(sessions("decode.3000000000000000", 100))
            .chain(sessions("prefill.0123456789abcdef", 60_000))
            .collect();
        let ends: (&[u8], &[u8]) = (b"/homing/a/bindings/", b"/homing/a/bindings0");
        let (came, asked, counted) = read(&keys, 1_000, ends);
        assert!(came.iter().eq(&keys));
        // Of 91 pages that each reach to the end 45 times as many as there are would be counted.
        assert!(asked < 400, "{asked} pages");
        assert!(counted < 8 * keys.len(), "{counted} counted of {}", keys.len());
    }

    #[test]
    fn what_fits_a_page_is_one() {
        let keys: Keys = sessions("unified.0123456789abcdef", 100).collect();
        let (came, asked, _) = read(&keys, 1_000, (b"/homing/", b"/homing0"));
        assert_eq!((came.len(), asked), (100, 1));
        assert_eq!(read(&Keys::new(), 10, (b"/homing/", b"/homing0")), (Vec::new(), 1, 0));
    }

    proptest! {
        #[test]
        fn whatever_the_keys_each_is_read_once_and_in_order(
            keys in prop::collection::btree_set(
                prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..12), 0..200),
            head in 0_u8..255,
            limit in 1_usize..20,
        ) {
            let keys: Keys = keys.into_iter().map(|key| [&[head][..], &key].concat()).collect();
            let (came, ..) = read(&keys, limit, (&[head], &[head + 1]));
            prop_assert!(came.iter().eq(&keys));
        }
    }
}
