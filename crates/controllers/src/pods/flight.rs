//! Pods created and deleted but not yet seen in the watch, by uid (upstream's expectations, without their timeouts blocking a key).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cluster::Key;
use tokio::time::Instant;

use super::UNSEEN;

/// The writes of one workload that its pods do not show yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Observed {
    /// How many created pods are not in the list yet.
    pub coming: usize,
    /// Pods in the list that are deleted already.
    pub going: Vec<String>,
}

#[derive(Default)]
struct Writes {
    created: HashMap<String, (Key, Instant)>,
    deleted: HashMap<String, Key>,
}

/// Shared by the controller's work and its informer handler.
#[derive(Clone, Default)]
pub(crate) struct Flight(Arc<Mutex<Writes>>);

impl Flight {
    fn writes(&self) -> MutexGuard<'_, Writes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod was created for `key`.
    pub fn created(&self, key: &Key, uid: String) {
        self.writes().created.insert(uid, (key.clone(), Instant::now()));
    }

    /// A pod of `key` is being deleted.
    pub fn deleted(&self, key: &Key, uid: String) {
        self.writes().deleted.insert(uid, key.clone());
    }

    /// The informer shows this pod.
    pub fn seen(&self, uid: &str) {
        self.writes().created.remove(uid);
    }

    /// The informer shows that this pod is gone, or its deletion failed.
    pub fn gone(&self, uid: &str) {
        let mut writes = self.writes();
        writes.created.remove(uid);
        writes.deleted.remove(uid);
    }

    /// The workload is gone.
    pub fn forget(&self, key: &Key) {
        let mut writes = self.writes();
        writes.created.retain(|_, (owner, _)| owner != key);
        writes.deleted.retain(|_, owner| owner != key);
    }

    /// Our writes that the informer's pods (`listed`) do not show yet.
    pub fn observe<'a>(&self, key: &Key, listed: impl Iterator<Item = &'a str>) -> Observed {
        let mut writes = self.writes();
        let now = Instant::now();
        writes.created.retain(|_, (_, since)| now.duration_since(*since) < UNSEEN);
        let mut going = Vec::new();
        for uid in listed {
            // An answer may arrive after the informer saw its pod.
            writes.created.remove(uid);
            if writes.deleted.contains_key(uid) {
                going.push(uid.to_owned());
            }
        }
        Observed { coming: writes.created.values().filter(|(owner, _)| owner == key).count(), going }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_count_until_they_are_seen() {
        let (flight, web, db) = (Flight::default(), Key::new("a", "web"), Key::new("a", "db"));
        flight.created(&web, "p1".into());
        flight.created(&web, "p2".into());
        flight.created(&db, "p3".into());
        assert_eq!(flight.observe(&web, ["p1"].into_iter()), Observed { coming: 1, going: vec![] });
        flight.seen("p2");
        assert_eq!(flight.observe(&web, ["p1", "p2"].into_iter()), Observed::default());
        flight.deleted(&web, "p1".into());
        assert_eq!(flight.observe(&web, ["p1", "p2"].into_iter()), Observed { coming: 0, going: vec!["p1".into()] });
        flight.gone("p1");
        assert_eq!(flight.observe(&web, ["p2"].into_iter()), Observed::default());
        flight.forget(&db);
        assert_eq!(flight.observe(&db, [].into_iter()), Observed::default());
    }
}
