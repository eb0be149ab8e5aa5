//! Where one thread of the shell could see another's doings: nothing, but in the tests that let a
//! scheduler choose who goes on there (`model_tests`).

/// Never with a lock in hand.
#[cfg(not(test))]
#[inline]
pub(crate) fn point() {}

#[cfg(test)]
pub(crate) use modelling::{modelled, point};

#[cfg(test)]
mod modelling {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    thread_local! {
        static MODELLED: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a model: on this thread all points are real.
    pub(crate) fn modelled(model: impl FnOnce()) {
        MODELLED.set(true);
        model();
        MODELLED.set(false);
    }

    /// Any operation of shuttle's is one.
    pub(crate) fn point() {
        if MODELLED.get() {
            shuttle::sync::atomic::AtomicBool::new(true).load(Ordering::SeqCst);
        }
    }
}
