//! The durable store: one revision counter, an index of encoded objects in memory, a window of recent events for watches, and redb
//! below, written by one thread that commits whatever is waiting in one transaction.
//!
//! Guarantees: revisions rise by one a write; a write is answered, and its event seen by watches, only when it is on disk; a list and a
//! watch from its revision miss nothing and repeat nothing. A failed commit (disk full) undoes every write that was not yet on disk and
//! answers each with the error, so that memory never runs ahead of the disk for longer than a commit takes.
//!
//! Keys are `GROUP/RESOURCE/NAMESPACE/NAME` (`core` for the legacy group, an empty namespace for cluster-scoped objects).

mod bound;
mod disk;
mod encryption;
mod outlines;
mod topics;
mod window;

use crate::selectors::Outline;
use bound::{PodsByNode, node_of};
use disk::{Disk, Op};
pub use outlines::Outlines;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};
pub use topics::Topic;
use topics::Topics;
use window::Window;
pub use window::{Change, Event, YOUNG};

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or directory could not be read or written.
    #[error("opening the store in {dir:?}: {operation} failed")]
    File {
        dir: std::path::PathBuf,
        /// What was attempted.
        operation: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// redb refused the file.
    #[error("opening the store {path:?} failed: another process may hold it, or it is damaged")]
    Database {
        path: std::path::PathBuf,
        /// redb's error.
        #[source]
        source: redb::Error,
    },
    /// Written by a newer release.
    #[error("the store has format {found}, this release reads up to {known}: use the release that wrote it, or another directory")]
    Newer {
        /// The format found.
        found: u64,
        /// The newest one known.
        known: u64,
    },
    /// The encryption configuration does not fit.
    #[error("reading {path:?} failed: {reason}")]
    Encryption {
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A stored object cannot be decrypted.
    #[error("{key:?} cannot be decrypted: the encryption configuration beside the store is not the one it was written with")]
    Decrypt { key: String },
}

/// Why a write was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The key is taken (create).
    #[error("the key exists already")]
    Exists,
    /// Somebody wrote or deleted in between.
    #[error("the object has changed")]
    Changed,
    /// The disk refused it.
    #[error("writing to the store failed: {0}")]
    Disk(String),
}

/// A resourceVersion below what the window still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest revision that can still be watched from.
    pub oldest: u64,
}

/// Objects with their keys, in key order.
pub type Rows = Vec<(Arc<str>, Entry)>;

/// One stored object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The revision that wrote it (metadata.resourceVersion).
    pub revision: u64,
    /// The object as JSON, resourceVersion included.
    pub bytes: Arc<[u8]>,
}

impl Entry {
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }
}

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing: a creation.
    Absent,
    /// The object as this revision left it.
    Revision(u64),
}

/// One of several writes that are made together.
#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    pub expect: Expect,
    /// The new state, or the final one of an object that is removed.
    pub object: Value,
    pub removes: bool,
}

/// The store; cheap to share behind an `Arc`.
pub struct Store {
    shared: Arc<Shared>,
    disk: Disk,
}

/// What the request side and the disk thread share.
struct Shared {
    state: Mutex<State>,
    outlines: outlines::Cache,
    published: watch::Sender<u64>,
    /// Lists of earlier revisions are refused.
    compacted: AtomicU64,
}

struct State {
    revision: u64,
    index: BTreeMap<Arc<str>, Entry>,
    window: Window,
    topics: Topics,
    bound: PodsByNode,
    /// The revision of the last write below each `GROUP/RESOURCE/`.
    changed: HashMap<String, u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Store {
    /// Opens (or makes) the store in `dir`.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (disk, loaded) = Disk::open(dir)?;
        let state = State::new(loaded.revision, loaded.index);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            outlines: outlines::Cache::default(),
            published: watch::Sender::new(loaded.revision),
            compacted: AtomicU64::new(0),
        });
        let disk = disk.start(Arc::clone(&shared)).map_err(|source| OpenError::File {
            dir: dir.to_path_buf(),
            operation: "starting the writer thread",
            source,
        })?;
        Ok(Self { shared, disk })
    }

    /// For how long events stay in the window whatever is written meanwhile, within bounds.
    pub fn keep_events_for(&self, young: std::time::Duration) {
        self.shared.lock().window.set_young(young);
    }

    /// The latest revision.
    pub fn revision(&self) -> u64 {
        self.shared.lock().revision
    }

    /// Follows the revision up to which everything is on disk and may be seen by watches.
    pub fn published(&self) -> watch::Receiver<u64> {
        self.shared.published.subscribe()
    }

    /// Follows the writes that concern a topic: a change says that a new one may be seen by watches.
    pub fn follow(&self, topic: &Topic) -> watch::Receiver<u64> {
        let mut state = self.shared.lock();
        let revision = state.revision;
        state.topics.follow(topic, revision)
    }

    /// Everything of a topic below `prefix`, as [`Self::list`].
    pub fn list_of(&self, topic: &Topic, prefix: &str) -> (u64, Rows) {
        let state = self.shared.lock();
        let row = |key: &Arc<str>| state.index.get_key_value(key).map(|(key, entry)| (Arc::clone(key), entry.clone()));
        let rows = match topic {
            Topic::Resource(_) => range(&state.index, prefix).map(|(key, entry)| (Arc::clone(key), entry.clone())).collect(),
            Topic::Object(key) => row(key).into_iter().collect(),
            Topic::PodsOf(node) => state.bound.pods_of(node).filter(|key| key.starts_with(prefix)).filter_map(row).collect(),
        };
        (state.revision, rows)
    }

    /// The revision of the last write below a `GROUP/RESOURCE/` since the start (0 for none): for caches of derived state.
    pub fn last_change(&self, prefix: &str) -> u64 {
        self.shared.lock().changed.get(prefix).copied().unwrap_or_default()
    }

    pub fn get(&self, key: &str) -> Option<Entry> {
        self.shared.lock().index.get(key).cloned()
    }

    /// Everything below `prefix`, in key order, with the revision it is true for.
    pub fn list(&self, prefix: &str) -> (u64, Rows) {
        let state = self.shared.lock();
        (state.revision, range(&state.index, prefix).map(|(key, entry)| (Arc::clone(key), entry.clone())).collect())
    }

    /// Everything below `prefix` as it was at `revision`: today's state with the later events undone.
    pub fn list_at(&self, prefix: &str, revision: u64) -> Result<Rows, Compacted> {
        let compacted = self.shared.compacted.load(Ordering::Acquire);
        if revision < compacted {
            return Err(Compacted { oldest: compacted });
        }
        let state = self.shared.lock();
        let later = state.window.after(revision)?;
        let mut found: BTreeMap<Arc<str>, Entry> = range(&state.index, prefix).map(|(key, entry)| (Arc::clone(key), entry.clone())).collect();
        for event in later.rev().filter(|event| event.key.starts_with(prefix)) {
            match &event.previous {
                Some(previous) => found.insert(Arc::clone(&event.key), previous.clone()),
                None => found.remove(&event.key),
            };
        }
        Ok(found.into_iter().collect())
    }

    /// Refuses lists of revisions before this one from now on. Watches may still begin earlier, as far as the window goes back.
    pub fn compact(&self, revision: u64) {
        self.shared.compacted.fetch_max(revision, Ordering::AcqRel);
    }

    /// Up to `most` events of a topic below `prefix` after revision `cursor` that are on disk, and the cursor to go on from. Events that
    /// the window has lost do not matter when none of them was the topic's.
    pub fn events_of(&self, topic: &Topic, prefix: &str, cursor: u64, most: usize) -> Result<(Vec<Arc<Event>>, u64), Compacted> {
        let state = self.shared.lock();
        let published = *self.shared.published.borrow();
        let known = state.topics.after(topic, cursor);
        let Some(revisions) = known.map(|all| all.take_while(|revision| *revision <= published).collect::<Vec<_>>()) else {
            drop(state);
            return self.events(prefix, cursor, most);
        };
        let mut events = Vec::new();
        let mut reached = cursor.max(published);
        for revision in revisions {
            let event = state.window.at(revision)?;
            if event.key.starts_with(prefix) {
                events.push(Arc::clone(event));
                if events.len() == most {
                    reached = revision;
                    break;
                }
            }
        }
        Ok((events, reached))
    }

    /// Up to `most` events below `prefix` after revision `cursor` that are on disk, and the cursor to go on from.
    pub fn events(&self, prefix: &str, cursor: u64, most: usize) -> Result<(Vec<Arc<Event>>, u64), Compacted> {
        let state = self.shared.lock();
        let published = *self.shared.published.borrow();
        let mut events = Vec::new();
        let mut reached = cursor.max(published);
        for event in state.window.after(cursor)?.take_while(|event| event.revision <= published) {
            if event.key.starts_with(prefix) {
                events.push(Arc::clone(event));
                if events.len() == most {
                    reached = event.revision;
                    break;
                }
            }
        }
        Ok((events, reached))
    }

    /// What selectors look at of an event's object, made by `outline` once for all watches that ask.
    pub fn outlines(&self, event: &Event, outline: impl Fn(&[u8]) -> Outline) -> Arc<Outlines> {
        self.shared.outlines.get(event, outline)
    }

    /// Creates or replaces an object. Answers when it is on disk, with the object as stored (its resourceVersion set).
    pub async fn put(&self, key: &str, expect: Expect, object: Value) -> Result<Value, WriteError> {
        self.write_one(Write { key: key.to_string(), expect, object, removes: false }).await
    }

    /// Deletes an object; watches see `last` (its resourceVersion set to the deletion's) as its final state.
    pub async fn delete(&self, key: &str, expect: Expect, last: Value) -> Result<Value, WriteError> {
        self.write_one(Write { key: key.to_string(), expect, object: last, removes: true }).await
    }

    async fn write_one(&self, write: Write) -> Result<Value, WriteError> {
        let mut stored = self.write_all(vec![write]).await?;
        stored.pop().ok_or_else(|| WriteError::Disk("nothing was written".into()))
    }

    /// Makes all of these writes (each to a key of its own), or none, in one transaction and with revisions in their order. Answers when
    /// they are on disk, with the objects as stored.
    pub async fn write_all(&self, writes: Vec<Write>) -> Result<Vec<Value>, WriteError> {
        let (answers, stored) = self.enqueue(writes)?;
        for answer in answers {
            answer.await.unwrap_or_else(|_| Err(WriteError::Disk("the store is closed".into())))?;
        }
        Ok(stored)
    }

    /// Puts changes into memory and into the writer's queue, under the one lock, so that both see the same order.
    fn enqueue(&self, writes: Vec<Write>) -> Result<(Vec<Answer>, Vec<Value>), WriteError> {
        let mut state = self.shared.lock();
        let (mut operations, mut answers, mut events, mut stored) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (revision, Write { key, expect, mut object, removes }) in (state.revision + 1..).zip(writes) {
            let previous = state.check(&key, expect)?;
            crate::object::metadata(&mut object).insert("resourceVersion".into(), revision.to_string().into());
            let bytes: Arc<[u8]> = serde_json::to_vec(&object).map_err(|error| WriteError::Disk(error.to_string()))?.into();
            let change = match (removes, &previous) {
                (true, _) => Change::Deleted,
                (false, Some(_)) => Change::Modified,
                (false, None) => Change::Added,
            };
            let (key, (done, answer)): (Arc<str>, _) = (key.into(), oneshot::channel());
            let node = key.starts_with(bound::PODS) && !removes;
            let node = node.then(|| crate::object::text(&object, &["spec", "nodeName"])).filter(|node| !node.is_empty()).map(str::to_owned);
            operations.push(Op { key: Arc::clone(&key), bytes: (!removes).then(|| Arc::clone(&bytes)), revision, topics: Vec::new(), done });
            answers.push(answer);
            events.push((Event { revision, key, change, object: bytes, previous }, node));
            stored.push(object);
        }
        for ((event, node), operation) in events.iter().zip(&mut operations) {
            operation.topics = state.topics_of(&event.key, node.clone());
        }
        self.disk.enqueue(operations)?;
        events.into_iter().for_each(|(event, node)| state.apply(event, node));
        Ok((answers, stored))
    }

    /// Whether writes are taken.
    pub fn is_open(&self) -> bool {
        self.disk.is_open()
    }

    /// Waits for the writer to finish what is queued and closes the file.
    pub fn close(&self) {
        self.disk.close();
    }
}

/// Tells whether a write is on disk.
type Answer = oneshot::Receiver<Result<(), WriteError>>;

/// `GROUP/RESOURCE/` of a key.
fn resource_prefix(key: &str) -> &str {
    key.match_indices('/').nth(1).map_or(key, |(position, _)| &key[..=position])
}

fn range<'a>(index: &'a BTreeMap<Arc<str>, Entry>, prefix: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Entry)> {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    index.range::<str, _>(from).take_while(move |(key, _)| key.starts_with(prefix))
}

impl State {
    fn new(revision: u64, index: BTreeMap<Arc<str>, Entry>) -> Self {
        let mut bound = PodsByNode::default();
        for (key, entry) in range(&index, bound::PODS) {
            bound.set(key, node_of(&entry.bytes));
        }
        Self { revision, index, window: Window::starting_at(revision), topics: Topics::default(), bound, changed: HashMap::new() }
    }

    /// The topics of a write; `node` is the one that a pod is bound to from now on.
    fn topics_of(&self, key: &Arc<str>, node: Option<String>) -> Vec<Topic> {
        let mut topics = vec![Topic::resource(key), Topic::Object(Arc::clone(key))];
        let before = self.bound.node_of(key);
        let after = node.map(Arc::from).filter(|node| Some(node) != before.as_ref());
        topics.extend(before.into_iter().chain(after).map(Topic::PodsOf));
        topics
    }

    fn check(&self, key: &str, expect: Expect) -> Result<Option<Entry>, WriteError> {
        let current = self.index.get(key);
        match (expect, current) {
            (Expect::Absent, None) => Ok(None),
            (Expect::Absent, Some(_)) => Err(WriteError::Exists),
            (Expect::Revision(revision), Some(entry)) if entry.revision == revision => Ok(Some(entry.clone())),
            (Expect::Revision(_), _) => Err(WriteError::Changed),
        }
    }

    fn apply(&mut self, event: Event, node: Option<String>) {
        self.revision = event.revision;
        for topic in self.topics_of(&event.key, node.clone()) {
            self.topics.push(&topic, event.revision);
        }
        if event.key.starts_with(bound::PODS) {
            self.bound.set(&event.key, node);
        }
        self.changed.insert(resource_prefix(&event.key).to_string(), event.revision);
        match event.change {
            Change::Deleted => self.index.remove(&event.key),
            Change::Added | Change::Modified => {
                self.index.insert(Arc::clone(&event.key), Entry { revision: event.revision, bytes: Arc::clone(&event.object) })
            }
        };
        self.window.push(Arc::new(event), std::time::Instant::now());
    }

    /// Undoes everything after `published`: the disk refused it.
    fn roll_back(&mut self, published: u64) {
        while let Some(event) = self.window.pop_after(published) {
            match &event.previous {
                Some(previous) => self.index.insert(Arc::clone(&event.key), previous.clone()),
                None => self.index.remove(&event.key),
            };
            if event.key.starts_with(bound::PODS) {
                self.bound.set(&event.key, event.previous.as_ref().and_then(|previous| node_of(&previous.bytes)));
            }
        }
        self.topics.roll_back(published);
        self.revision = published;
    }
}

#[cfg(test)]
mod tests;
