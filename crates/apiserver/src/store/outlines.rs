//! The outlines of recent events: hundreds of nodes may watch the same pods, each with a selector, and none of them decodes an event anew.

use super::{Change, Event};
use crate::selectors::Outline;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most events whose outlines are kept: watches read the newest ones, at about the same time.
const MOST: usize = 512;

/// Of an object before and after an event.
#[derive(Debug, PartialEq, Eq)]
pub struct Outlines {
    /// None for a creation.
    pub before: Option<Outline>,
    /// None for a deletion.
    pub after: Option<Outline>,
}

impl Outlines {
    fn of(event: &Event, outline: impl Fn(&[u8]) -> Outline) -> Self {
        Self {
            before: event.previous.as_ref().map(|previous| outline(&previous.bytes)),
            after: (event.change != Change::Deleted).then(|| outline(&event.object)),
        }
    }
}

/// By revision. Watches see only what is on disk, and that is never undone: a revision keeps its meaning.
#[derive(Default)]
pub(super) struct Cache(Mutex<BTreeMap<u64, Arc<Outlines>>>);

impl Cache {
    pub(super) fn get(&self, event: &Event, outline: impl Fn(&[u8]) -> Outline) -> Arc<Outlines> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept().get(&event.revision) {
            return Arc::clone(found);
        }
        let made = Arc::new(Outlines::of(event, outline));
        let mut kept = kept();
        kept.insert(event.revision, Arc::clone(&made));
        while kept.len() > MOST {
            kept.pop_first();
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Entry;
    use serde_json::json;
    use std::cell::Cell;

    fn event(revision: u64, app: &str) -> Event {
        let bytes = |app: &str| Arc::from(json!({"metadata": {"name": "a", "labels": {"app": app}}}).to_string().into_bytes());
        let previous = Some(Entry { revision: 1, bytes: bytes("old") });
        Event { revision, key: "core/pods/b/a".into(), change: Change::Modified, object: bytes(app), previous }
    }

    #[test]
    fn an_event_is_decoded_for_its_first_reader_alone() {
        let (cache, decoded) = (Cache::default(), Cell::new(0));
        let outline = |bytes: &[u8]| {
            decoded.set(decoded.get() + 1);
            Outline::of(&serde_json::from_slice(bytes).unwrap(), &[])
        };
        let first = cache.get(&event(7, "new"), outline);
        assert_eq!((cache.get(&event(7, "new"), outline), decoded.get()), (first, 2), "before and after, once each");
        assert_ne!(cache.get(&event(8, "other"), outline).after, cache.get(&event(7, "new"), outline).after);
        assert_eq!(decoded.get(), 4);
        (9..2_000).for_each(|revision| drop(cache.get(&event(revision, "new"), outline)));
        assert_eq!(cache.0.lock().unwrap().len(), MOST);
    }
}
