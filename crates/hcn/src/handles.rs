//! Open handles by number.
//!
//! Callers name a handle by a number, so that a wrong one is an error instead of a wild pointer. Several threads may use one handle at
//! once. Guarantees: of all threads that close a handle, one gets it and the others get `INVALID_HANDLE`; a handle that another thread
//! still uses is dropped when that use ends, never before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::HResult;
use crate::port::{Handle, Kind, RawError};

/// A table of open handles. `T` closes the handle when it is dropped.
pub(crate) struct Handles<T>(Mutex<Table<T>>);

struct Table<T> {
    last: u64,
    open: HashMap<u64, (Kind, Arc<T>)>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::new(Table { last: 0, open: HashMap::new() }))
    }
}

impl<T> Handles<T> {
    /// Keeps an open handle and numbers it. Numbers are never used again.
    pub(crate) fn keep(&self, kind: Kind, open: T) -> Handle {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.last += 1;
        let number = table.last;
        table.open.insert(number, (kind, Arc::new(open)));
        Handle(number)
    }

    /// The handle, for one call: it stays open at least until the returned value is dropped.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where no handle of that number and kind is open.
    pub(crate) fn get(&self, kind: Kind, handle: Option<Handle>) -> Result<Arc<T>, RawError> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match handle.and_then(|handle| table.open.get(&handle.0)) {
            Some((of, open)) if *of == kind => Ok(open.clone()),
            _ => Err(HResult::INVALID_HANDLE.into()),
        }
    }

    /// Takes the handle out of the table, to close it. None where another call still uses it: the end of that call closes it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where no handle of that number and kind is open, which is what all but one of several closers get.
    pub(crate) fn take(&self, kind: Kind, handle: Option<Handle>) -> Result<Option<T>, RawError> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = handle.map(|handle| handle.0).filter(|number| table.open.get(number).is_some_and(|(of, _)| *of == kind));
        let taken = number.and_then(|number| table.open.remove(&number)).ok_or(HResult::INVALID_HANDLE)?;
        // Within the lock: `get` can make no further user of it.
        Ok(Arc::into_inner(taken.1))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how often it was closed.
    struct Open<'a>(&'a AtomicUsize);

    impl Drop for Open<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn racing_closers_close_a_handle_once() {
        for _ in 0..200 {
            let closes = AtomicUsize::new(0);
            let handles = Handles::default();
            let handle = handles.keep(Kind::Endpoint, Open(&closes));
            let barrier = Barrier::new(4);
            let won = std::thread::scope(|scope| {
                let close = || {
                    barrier.wait();
                    handles.take(Kind::Endpoint, Some(handle)).is_ok()
                };
                let closers = [(); 4].map(|()| scope.spawn(close));
                closers.into_iter().filter_map(|closer| closer.join().ok()).filter(|won| *won).count()
            });
            assert_eq!((won, closes.load(Ordering::SeqCst)), (1, 1));
        }
    }

    #[test]
    fn handle_in_use_is_closed_when_the_use_ends() {
        let closes = AtomicUsize::new(0);
        let handles = Handles::default();
        let handle = handles.keep(Kind::Network, Open(&closes));
        let used = handles.get(Kind::Network, Some(handle)).unwrap();
        assert!(handles.take(Kind::Network, Some(handle)).unwrap().is_none());
        assert_eq!(closes.load(Ordering::SeqCst), 0, "a call still uses it");
        assert!(handles.get(Kind::Network, Some(handle)).is_err(), "nobody else can begin to use it");
        drop(used);
        assert_eq!(closes.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn wrong_numbers_and_kinds_are_invalid_handles() {
        let closes = AtomicUsize::new(0);
        let handles = Handles::default();
        let handle = handles.keep(Kind::Network, Open(&closes));
        assert!(handles.take(Kind::Endpoint, Some(handle)).is_err());
        assert!(handles.get(Kind::Endpoint, Some(handle)).is_err());
        assert!(handles.get(Kind::Network, None).is_err());
        assert!(handles.take(Kind::Network, Some(Handle(handle.0 + 1))).is_err());
        assert_eq!(closes.load(Ordering::SeqCst), 0);
        assert!(handles.take(Kind::Network, Some(handle)).unwrap().is_some());
        assert_ne!(handles.keep(Kind::Network, Open(&closes)), handle, "a number is never used again");
    }
}
