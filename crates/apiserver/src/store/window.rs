//! The recent past: events kept for watches and for lists of an earlier revision, bounded by count and bytes. Young events have wider bounds
//! than old ones, as in upstream's watch cache (`eventFreshDuration`): thousands of writes a second must not drive those from the window that
//! watches have yet to read, or that are not yet on disk.

use super::{Compacted, Entry};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the window may hold.
struct Bounds {
    events: usize,
    /// Bytes of encoded objects that only the window keeps alive.
    bytes: usize,
}

/// For all events.
const ANY: Bounds = Bounds { events: 8192, bytes: 6 << 20 };
/// While the oldest is young.
const FRESH: Bounds = Bounds { events: 1 << 17, bytes: 64 << 20 };
/// How long events count as young unless the server is told otherwise.
pub const YOUNG: Duration = Duration::from_secs(15);

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
    /// What nobody else keeps alive: the state before, and the last state of what is gone. The present state is in the index or, when it was
    /// replaced since, the state before a later event.
    fn weight(&self) -> usize {
        let last = if self.change == Change::Deleted { self.object.len() } else { 0 };
        self.key.len() + last + self.previous.as_ref().map_or(0, |entry| entry.bytes.len())
    }
}

pub(super) struct Window {
    events: VecDeque<Arc<Event>>,
    /// When each came.
    times: VecDeque<Instant>,
    bytes: usize,
    /// Everything after this revision is in `events`.
    floor: u64,
    /// How long an event is young.
    young: Duration,
}

impl Window {
    pub(super) fn starting_at(revision: u64) -> Self {
        Self { events: VecDeque::new(), times: VecDeque::new(), bytes: 0, floor: revision, young: YOUNG }
    }

    pub(super) fn push(&mut self, event: Arc<Event>, now: Instant) {
        self.bytes += event.weight();
        self.events.push_back(event);
        self.times.push_back(now);
        while self.is_beyond(&ANY) && (self.is_beyond(&FRESH) || self.times.front().is_none_or(|oldest| now.duration_since(*oldest) >= self.young)) {
            self.times.pop_front();
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= oldest.weight();
                self.floor = oldest.revision;
            }
        }
        if self.events.capacity() > 4 * self.events.len().max(ANY.events) {
            self.events.shrink_to(2 * self.events.len());
            self.times.shrink_to(2 * self.times.len());
        }
    }

    pub(super) fn set_young(&mut self, young: Duration) {
        self.young = young;
    }

    /// As if more than it holds had been written.
    #[cfg(test)]
    pub(super) fn move_on(&mut self) {
        self.floor = self.events.back().map_or(self.floor, |newest| newest.revision);
        *self = Self { young: self.young, ..Self::starting_at(self.floor) };
    }

    fn is_beyond(&self, bounds: &Bounds) -> bool {
        self.events.len() > bounds.events || self.bytes > bounds.bytes && self.events.len() > 1
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
        self.times.pop_back();
        self.events.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replacement of an object of this size.
    fn event(revision: u64, size: usize) -> Arc<Event> {
        let previous = Some(Entry { revision: revision - 1, bytes: vec![0; size].into() });
        Arc::new(Event { revision, key: "core/pods/a/b".into(), change: Change::Modified, object: vec![0; size].into(), previous })
    }

    #[test]
    fn old_events_leave_and_raise_the_floor() {
        let (mut window, begun) = (Window::starting_at(10), Instant::now());
        for revision in 11..=16 {
            window.push(event(revision, ANY.bytes / 4), begun + YOUNG * u32::try_from(revision).unwrap());
        }
        let oldest = window.after(0).err().unwrap().oldest;
        assert!(oldest >= 12, "{oldest}");
        assert_eq!(window.after(oldest).unwrap().next().unwrap().revision, oldest + 1);
        assert_eq!(window.after(16).unwrap().count(), 0);
    }

    #[test]
    fn young_events_stay_however_many_are_written() {
        let (mut window, begun) = (Window::starting_at(0), Instant::now());
        let writes = 3 * ANY.events as u64;
        for revision in 1..=writes {
            window.push(event(revision, 1 << 10), begun);
        }
        assert_eq!(window.after(0).unwrap().count() as u64, writes, "a watch that begins here misses none");
        assert!(window.bytes > ANY.bytes);
        window.push(event(writes + 1, 1), begun + YOUNG);
        assert!(window.bytes <= ANY.bytes && window.events.len() <= ANY.events, "they are old now");
        assert_eq!(window.events.len(), window.times.len());
        for revision in 0..FRESH.events as u64 + 9 {
            window.push(event(writes + 2 + revision, 1), begun + YOUNG);
        }
        assert_eq!(window.events.len(), FRESH.events, "even young ones have bounds");
        let last = writes + 2 + FRESH.events as u64 + 9;
        for revision in last..last + 9 {
            window.push(event(revision, FRESH.bytes / 4), begun + YOUNG);
        }
        assert!(window.bytes <= FRESH.bytes);
    }

    #[test]
    fn only_what_the_window_alone_keeps_alive_counts() {
        let weight = |change, previous: Option<usize>| {
            let previous = previous.map(|size| Entry { revision: 1, bytes: vec![0; size].into() });
            Event { revision: 2, key: "k".into(), change, object: vec![0; 100].into(), previous }.weight()
        };
        assert_eq!((weight(Change::Added, None), weight(Change::Modified, Some(30)), weight(Change::Deleted, Some(30))), (1, 31, 131));
    }

    #[test]
    fn the_newest_can_be_taken_back() {
        let mut window = Window::starting_at(0);
        window.push(event(1, 1), Instant::now());
        window.push(event(2, 1), Instant::now());
        assert_eq!(window.pop_after(1).unwrap().revision, 2);
        assert!(window.pop_after(1).is_none());
    }
}
