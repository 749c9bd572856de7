//! Event aggregation and rate limits: pure, after `client-go/tools/record/events_cache.go`.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::EventType;

/// Remembered keys (upstream keeps 4096; an agent has far fewer).
const REMEMBERED: usize = 1024;
/// From this many different messages about one matter on, they become one Event (upstream: `defaultAggregateMaxEvents`).
const SIMILAR: usize = 10;
/// Similar messages count only within this many seconds (upstream: `defaultAggregateIntervalInSeconds`).
const SIMILAR_SECONDS: i64 = 600;
/// Events about one object at once (upstream: `defaultSpamBurst`), and the seconds that one more takes (`1 / defaultSpamQPS`).
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;

/// One Event as its caller noted it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Note {
    pub object: ObjectReference,
    pub type_: EventType,
    pub reason: String,
    pub action: Option<String>,
    pub message: String,
    pub at: Timestamp,
}

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A new Event.
    Create { message: String },
    /// The Event of this name happened once more.
    Bump { message: String, event: String, count: i32 },
    /// Too many Events about this object.
    Skip,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Subject {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    field_path: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Matter {
    subject: Subject,
    type_: EventType,
    reason: String,
}

#[derive(Debug, Default)]
struct Messages {
    seen: Vec<String>,
    last: Option<Timestamp>,
}

#[derive(Debug)]
struct Tokens {
    left: f64,
    at: Timestamp,
}

/// Remembers which Events were written; bounded, forgetting the oldest first.
#[derive(Debug, Default)]
pub(super) struct Correlator {
    written: Bounded<(Matter, String), (String, i32)>,
    messages: Bounded<Matter, Messages>,
    tokens: Bounded<Subject, Tokens>,
    /// The latest note: a retry of it must not spend a second token.
    latest: Option<Note>,
}

impl Correlator {
    /// What to do with `note`.
    pub fn correlate(&mut self, note: &Note) -> Verdict {
        let matter = matter(note);
        let retry = self.latest.as_ref() == Some(note);
        if !retry && !self.spend(&matter.subject, note.at) {
            self.latest = None;
            return Verdict::Skip;
        }
        self.latest = Some(note.clone());
        let message = self.combine(&matter, note);
        match self.written.get(&(matter, message.clone())) {
            Some((event, count)) => Verdict::Bump { event: event.clone(), count: count + 1, message },
            None => Verdict::Create { message },
        }
    }

    /// The Event for `note` exists now under this name with this count.
    pub fn written(&mut self, note: &Note, event: String, count: i32) {
        let matter = matter(note);
        let message = self.combine(&matter, note);
        self.written.insert((matter, message), (event, count));
    }

    fn combine(&mut self, matter: &Matter, note: &Note) -> String {
        let messages = self.messages.entry(matter);
        let expired = messages.last.is_some_and(|last| note.at.duration_since(last).as_secs() > SIMILAR_SECONDS);
        if expired {
            messages.seen.clear();
        }
        messages.last = Some(note.at);
        if !messages.seen.contains(&note.message) {
            if messages.seen.len() >= SIMILAR {
                return format!("(combined from similar events): {}", note.message);
            }
            messages.seen.push(note.message.clone());
        }
        note.message.clone()
    }

    fn spend(&mut self, subject: &Subject, at: Timestamp) -> bool {
        let tokens = self.tokens.entry_or(subject, || Tokens { left: BURST, at });
        let passed = at.duration_since(tokens.at).as_secs_f64().max(0.0);
        tokens.left = (tokens.left + passed / REFILL_SECONDS).min(BURST);
        tokens.at = at;
        let enough = tokens.left >= 1.0;
        if enough {
            tokens.left -= 1.0;
        }
        enough
    }
}

fn matter(note: &Note) -> Matter {
    let object = &note.object;
    let subject = Subject {
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        uid: object.uid.clone(),
        field_path: object.field_path.clone(),
    };
    Matter { subject, type_: note.type_, reason: note.reason.clone() }
}

/// A map of at most [`REMEMBERED`] entries; the one inserted first goes first.
#[derive(Debug)]
struct Bounded<K, V> {
    map: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Self { map: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + std::hash::Hash, V> Bounded<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.map.remove(&oldest);
            }
        }
    }

    fn entry_or(&mut self, key: &K, new: impl FnOnce() -> V) -> &mut V {
        if !self.map.contains_key(key) {
            self.insert(key.clone(), new());
        }
        self.map.get_mut(key).expect("just inserted")
    }

    fn entry(&mut self, key: &K) -> &mut V
    where
        V: Default,
    {
        self.entry_or(key, V::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &str, message: &str, second: i64) -> Note {
        Note {
            object: ObjectReference { kind: Some("Pod".into()), name: Some(name.into()), ..Default::default() },
            type_: EventType::Warning,
            reason: "BackOff".into(),
            action: None,
            message: message.into(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    fn create(message: &str) -> Verdict {
        Verdict::Create { message: message.into() }
    }

    #[test]
    fn a_repeat_counts_up() {
        let mut correlator = Correlator::default();
        let first = note("a", "m", 0);
        assert_eq!(correlator.correlate(&first), create("m"));
        correlator.written(&first, "a.1".into(), 1);
        assert_eq!(correlator.correlate(&note("a", "m", 5)), Verdict::Bump { message: "m".into(), event: "a.1".into(), count: 2 });
        assert_eq!(correlator.correlate(&note("b", "m", 6)), create("m"), "another object is another event");
        assert_eq!(correlator.correlate(&note("a", "n", 7)), create("n"), "another message is another event");
    }

    #[test]
    fn the_eleventh_message_is_combined() {
        let mut correlator = Correlator::default();
        for i in 0..10 {
            let n = note("a", &format!("m{i}"), i);
            assert_eq!(correlator.correlate(&n), create(&format!("m{i}")));
            correlator.written(&n, format!("a.{i}"), 1);
        }
        assert_eq!(correlator.correlate(&note("a", "m10", 10)), create("(combined from similar events): m10"));
        assert_eq!(correlator.correlate(&note("a", "m11", 2000)), create("m11"), "old messages do not count");
    }

    #[test]
    fn a_flood_is_cut_and_refills() {
        let mut correlator = Correlator::default();
        let passed = (0..40).filter(|_| correlator.correlate(&note("a", "m", 0)) != Verdict::Skip).count();
        assert_eq!(passed, 40, "the very same note is a retry, not a flood");
        let mut correlator = Correlator::default();
        let passed = (0..40).filter(|i| correlator.correlate(&note("a", &format!("m{}", i % 2), 0)) != Verdict::Skip).count();
        assert_eq!(passed, 25);
        assert_ne!(correlator.correlate(&note("a", "m", 301)), Verdict::Skip);
        assert_eq!(correlator.correlate(&note("a", "n", 302)), Verdict::Skip);
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for i in 0..3 * REMEMBERED {
            let n = note(&format!("pod-{i}"), "m", 0);
            correlator.correlate(&n);
            correlator.written(&n, "e".into(), 1);
        }
        assert_eq!(correlator.written.map.len(), REMEMBERED);
        assert_eq!(correlator.tokens.map.len(), REMEMBERED);
    }
}
