//! When invariants are looked at: after every public mutator in debug builds. Each structure has its
//! own `check()`; this decides how often a debug build can afford it.

use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Every call at first, then one in 64: checks walk whole tables, and a debug build under load must not
/// get slower with every session. Tests that want each step checked call `check()` themselves.
pub(crate) fn sometimes(check: impl FnOnce()) {
    let n = CALLS.with(|c| {
        c.set(c.get().wrapping_add(1));
        c.get()
    });
    if n < 4096 || n.is_multiple_of(64) {
        check();
    }
}
