//! Who is woken by which write. A cluster of a thousand nodes has thousands of watches; a write concerns a handful of them.
//!
//! A topic is a resource (`core/pods/`), one object by its key, or the pods of a node. It keeps the revisions of its last events, so that a
//! watch that was not woken for long knows which of the window's events are its own, and that it missed none of those that are gone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// Most revisions that a topic keeps: as many as the window has events that are not young, and fewer of what concerns one object or node.
const MOST_OF_RESOURCE: usize = 8192;
const MOST_OF_ONE: usize = 64;

/// What a watch is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `GROUP/RESOURCE/`.
    Resource(Arc<str>),
    /// The key of an object.
    Object(Arc<str>),
    /// The name of the node that pods are bound to.
    PodsOf(Arc<str>),
}

impl Topic {
    /// Of the resource of a key, or of what a key begins with.
    pub fn resource(key: &str) -> Self {
        Self::Resource(super::resource_prefix(key).into())
    }
}

/// The events that a topic knows of.
struct Recent {
    wake: watch::Sender<u64>,
    revisions: VecDeque<u64>,
    /// Of the events after this revision none is missing.
    floor: u64,
}

/// All topics that a watch follows.
#[derive(Default)]
pub(super) struct Topics(HashMap<Topic, Recent>);

impl Topics {
    /// Follows a topic from `revision` on; the value is the revision of its last event that is on disk.
    pub fn follow(&mut self, topic: &Topic, revision: u64) -> watch::Receiver<u64> {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, recent| recent.wake.receiver_count() > 0);
        }
        let new = || Recent { wake: watch::Sender::new(revision), revisions: VecDeque::new(), floor: revision };
        self.0.entry(topic.clone()).or_insert_with(new).wake.subscribe()
    }

    /// Notes an event.
    pub fn push(&mut self, topic: &Topic, revision: u64) {
        let Some(recent) = self.0.get_mut(topic) else { return };
        let most = if matches!(topic, Topic::Resource(_)) { MOST_OF_RESOURCE } else { MOST_OF_ONE };
        if recent.revisions.len() == most {
            recent.floor = recent.revisions.pop_front().unwrap_or(revision);
        }
        // An object may belong to a topic before and after a write.
        if recent.revisions.back() != Some(&revision) {
            recent.revisions.push_back(revision);
        }
    }

    /// Wakes those who follow a topic.
    pub fn wake(&self, topic: &Topic, revision: u64) {
        if let Some(recent) = self.0.get(topic) {
            recent.wake.send_replace(revision);
        }
    }

    /// The revisions of a topic's events after `cursor`; None when it does not know all of them.
    pub fn after(&self, topic: &Topic, cursor: u64) -> Option<impl Iterator<Item = u64>> {
        let recent = self.0.get(topic).filter(|recent| cursor >= recent.floor)?;
        let start = recent.revisions.partition_point(|revision| *revision <= cursor);
        Some(recent.revisions.range(start..).copied())
    }

    /// Forgets the events after `published`.
    pub fn roll_back(&mut self, published: u64) {
        for recent in self.0.values_mut() {
            while recent.revisions.back().is_some_and(|revision| *revision > published) {
                recent.revisions.pop_back();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_knows_its_events_since_it_is_followed() {
        let (mut topics, topic) = (Topics::default(), Topic::PodsOf("n1".into()));
        topics.push(&topic, 4);
        assert!(topics.after(&topic, 4).is_none(), "nobody follows it");
        let mut woken = topics.follow(&topic, 4);
        for revision in [7, 9, 9, 12] {
            topics.push(&topic, revision);
        }
        let after = |topics: &Topics, cursor| topics.after(&topic, cursor).map(Iterator::collect::<Vec<u64>>);
        assert_eq!(after(&topics, 4), Some(vec![7, 9, 12]));
        assert_eq!(after(&topics, 9), Some(vec![12]));
        assert_eq!(after(&topics, 3), None, "what came before is not known");
        assert!(!woken.has_changed().unwrap());
        topics.wake(&topic, 12);
        assert_eq!(*woken.borrow_and_update(), 12);
        topics.roll_back(9);
        assert_eq!(after(&topics, 4), Some(vec![7, 9]));
        (20..20 + MOST_OF_ONE as u64).for_each(|revision| topics.push(&topic, revision));
        assert_eq!(after(&topics, 8), None, "too many came since");
        assert_eq!(after(&topics, 20).unwrap().len(), MOST_OF_ONE - 1);
    }

    #[test]
    fn topics_that_nobody_follows_go() {
        let mut topics = Topics::default();
        for number in 0..10_000 {
            drop(topics.follow(&Topic::Object(format!("core/pods/a/{number}").into()), 0));
        }
        assert!(topics.0.len() < 100, "{}", topics.0.len());
    }
}
