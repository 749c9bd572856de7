//! Where a test can end a call half way, as a kill does: nothing that comes after runs, no clean-up either.

/// A step is done.
#[cfg(not(test))]
pub(crate) fn step() {}

#[cfg(test)]
pub(crate) use testing::{dying_after, step};

#[cfg(test)]
mod testing {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    struct Killed;

    /// A step is done; the one after which the call dies does not return.
    pub(crate) fn step() {
        match LEFT.get() {
            // No panic: nothing is reported.
            Some(0) => resume_unwind(Box::new(Killed)),
            left => LEFT.set(left.map(|left| left - 1)),
        }
    }

    /// What `call` answers, or none where it had another step after so many.
    pub(crate) fn dying_after<T>(steps: usize, call: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(Some(steps));
        let outcome = catch_unwind(AssertUnwindSafe(call));
        LEFT.set(None);
        match outcome {
            Ok(answer) => Some(answer),
            Err(cause) if cause.is::<Killed>() => None,
            Err(cause) => resume_unwind(cause),
        }
    }
}
