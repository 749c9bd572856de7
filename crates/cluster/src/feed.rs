//! Feeds: watches whose rows their owner keeps.
//!
//! An [`Informer`](crate::Informer) keeps a table of rows by name. An owner that files rows in its own way would hold everything twice; it
//! is a [`Keeper`] and follows a [`Feed`].
//! Flow: as an informer's. A list puts its rows one by one; what it did not bring is removed at its end.
//! Guarantees: `changed` fires only when the keeper says that something differs; rows of a list that is not complete are never taken for all
//! there is: nothing is removed before its end.
//! Assumptions: the keeper is quick.

use std::{fmt, sync::Arc};

use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    Key, Selection,
    hub::{self, Attachment},
    reflect::Target,
};

/// Owner of the rows of a feed.
pub trait Keeper<R>: Send + Sync + 'static {
    /// A list begins, or begins anew after a failure.
    fn begin(&self);
    /// Keeps a row. Returns whether it differs from what was kept.
    fn put(&self, key: Key, row: R) -> bool;
    /// Lets a row go. Returns whether there was one.
    fn remove(&self, key: &Key) -> bool;
    /// A list is complete: rows that were not put since it began go. Returns whether there were any.
    fn end(&self) -> bool;
}

/// A reader of a watch. It ends with this value.
pub struct Feed {
    changed: watch::Receiver<u64>,
    synced: watch::Receiver<bool>,
    _attachment: Attachment,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("synced", &*self.synced.borrow()).finish()
    }
}

impl Feed {
    /// Starts watching for `keeper`. `row` selects what is kept of an object; none leaves the object out.
    ///
    /// Panics outside a tokio runtime.
    pub fn start<K, R>(api: Api<K>, selection: Selection, row: impl Fn(&K) -> Option<R> + Send + Sync + 'static, keeper: impl Keeper<R>) -> Self
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
        R: Send + 'static,
    {
        let (version, changed) = watch::channel(0);
        let (listed, synced) = watch::channel(false);
        let target = Arc::new(Kept { keeper, changed: version, synced: listed, different: watch::Sender::new(false) });
        let attachment = hub::read(api, &selection, row, target);
        Self { changed, synced, _attachment: attachment }
    }

    /// Fires after rows changed (and once when the first list arrived). Level-triggered: many changes may be one wake-up, the number
    /// means nothing but "different".
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Waits until the first list has arrived.
    pub async fn synced(&self) {
        // The task owns the sender, and ends with `self`.
        let _ = self.synced.clone().wait_for(|done| *done).await;
    }
}

struct Kept<S> {
    keeper: S,
    changed: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    /// The list under way brought something new.
    different: watch::Sender<bool>,
}

impl<S> Kept<S> {
    fn notify(&self, different: bool) {
        if different {
            self.changed.send_modify(|version| *version += 1);
        }
    }
}

impl<R, S: Keeper<R>> Target<R> for Kept<S> {
    fn begin(&self) {
        self.keeper.begin();
    }

    fn listed(&self, key: Key, row: R) {
        if self.keeper.put(key, row) {
            self.different.send_replace(true);
        }
    }

    fn end(&self) {
        let gone = self.keeper.end();
        let first = !self.synced.send_replace(true);
        self.notify(self.different.send_replace(false) || gone || first);
    }

    fn set(&self, key: Key, row: Option<R>) {
        let different = match row {
            Some(row) => self.keeper.put(key, row),
            None => self.keeper.remove(&key),
        };
        self.notify(different);
    }

    fn trouble(&self, _: Option<&str>) {}
}

#[cfg(test)]
mod tests;
