//! The recent past: events kept for watches and for lists of an earlier revision, bounded by count and bytes.

use super::{Compacted, Entry};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most events kept.
const MOST_EVENTS: usize = 8192;
/// Most bytes of encoded objects that only the window keeps alive.
const MOST_BYTES: usize = 6 << 20;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was created.
    Added,
    /// It was replaced.
    Modified,
    /// It was deleted.
    Deleted,
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// The revision that made it.
    pub revision: u64,
    pub key: Arc<str>,
    /// What happened.
    pub change: Change,
    /// The object after the change (for a deletion: its last state).
    pub object: Arc<[u8]>,
    /// The object before the change.
    pub previous: Option<Entry>,
}

impl Event {
    fn weight(&self) -> usize {
        self.object.len() + self.key.len() + self.previous.as_ref().map_or(0, |entry| entry.bytes.len())
    }
}

pub(super) struct Window {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Everything after this revision is in `events`.
    floor: u64,
}

impl Window {
    pub(super) fn starting_at(revision: u64) -> Self {
        Self { events: VecDeque::new(), bytes: 0, floor: revision }
    }

    pub(super) fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.weight();
        self.events.push_back(event);
        while self.events.len() > MOST_EVENTS || self.bytes > MOST_BYTES && self.events.len() > 1 {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= oldest.weight();
                self.floor = oldest.revision;
            }
        }
    }

    /// The events after `revision`, oldest first.
    pub(super) fn after(&self, revision: u64) -> Result<impl DoubleEndedIterator<Item = &Arc<Event>>, Compacted> {
        if revision < self.floor {
            return Err(Compacted { oldest: self.floor });
        }
        let start = self.events.partition_point(|event| event.revision <= revision);
        Ok(self.events.range(start..))
    }

    /// The event of a revision that made one.
    pub(super) fn at(&self, revision: u64) -> Result<&Arc<Event>, Compacted> {
        let place = self.events.partition_point(|event| event.revision < revision);
        self.events.get(place).filter(|event| event.revision == revision).ok_or(Compacted { oldest: self.floor })
    }

    /// Takes the newest event off when it is later than `revision`.
    pub(super) fn pop_after(&mut self, revision: u64) -> Option<Arc<Event>> {
        let newest = self.events.back().filter(|event| event.revision > revision)?;
        self.bytes -= newest.weight();
        self.events.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: u64, size: usize) -> Arc<Event> {
        Arc::new(Event { revision, key: "core/pods/a/b".into(), change: Change::Added, object: vec![0; size].into(), previous: None })
    }

    #[test]
    fn old_events_leave_and_raise_the_floor() {
        let mut window = Window::starting_at(10);
        for revision in 11..=16 {
            window.push(event(revision, MOST_BYTES / 4));
        }
        let oldest = window.after(0).err().unwrap().oldest;
        assert!(oldest >= 12, "{oldest}");
        assert_eq!(window.after(oldest).unwrap().next().unwrap().revision, oldest + 1);
        assert_eq!(window.after(16).unwrap().count(), 0);
    }

    #[test]
    fn the_newest_can_be_taken_back() {
        let mut window = Window::starting_at(0);
        window.push(event(1, 1));
        window.push(event(2, 1));
        assert_eq!(window.pop_after(1).unwrap().revision, 2);
        assert!(window.pop_after(1).is_none());
    }
}
