//! Watch streams: a cursor over the store's events, turned into lines of JSON.
//!
//! Guarantees: every event after the starting revision that concerns the selection is sent once and in order; an object that enters or
//! leaves the selection is ADDED or DELETED; a stream that falls behind the window ends with a 410 event. A stream holds no queue: it
//! reads the window when it is polled, so a slow client costs nothing.

use crate::http::negotiate::Transform;
use crate::kind::Kind;
use crate::object;
use crate::registry::Registry;
use crate::registry::read::Selection;
use crate::selectors::Outline;
use crate::status::ApiError;
use crate::store::{Change, Entry, Event, Store, Topic};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Most events in one chunk of the response.
const BATCH: usize = 128;
/// Time between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// What a watch sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Only what comes after this revision.
    After(u64),
    /// The present state as ADDED events, then what comes.
    State,
    /// The same, closed by the bookmark that ends the initial events (`sendInitialEvents=true`).
    StateThenBookmark,
}

/// One watch as asked for.
pub struct Request {
    /// What is watched.
    pub kind: Arc<Kind>,
    /// Namespace, "" for all.
    pub namespace: String,
    pub selection: Selection,
    /// Where it starts.
    pub start: Start,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// How long it lasts.
    pub timeout: Duration,
    /// Table, metadata only, or the objects.
    pub transform: Transform,
    /// `includeObject` of Table rows.
    pub include_object: String,
    /// Brings objects into the version of the kind; absent for kinds of one version.
    pub registry: Option<Arc<Registry>>,
}

/// A running watch.
pub struct Watch {
    store: Arc<Store>,
    request: Request,
    prefix: String,
    topic: Topic,
    cursor: u64,
    published: tokio::sync::watch::Receiver<u64>,
    shutdown: tokio_util::sync::CancellationToken,
    deadline: Instant,
    next_bookmark: Instant,
    /// The state that is still to be sent, of kinds of several versions.
    state: VecDeque<Entry>,
    pending: Vec<u8>,
    ended: bool,
    headed: bool,
}

impl Watch {
    /// Starts a watch; what can be refused is refused here.
    pub fn start(store: Arc<Store>, request: Request, shutdown: tokio_util::sync::CancellationToken) -> Result<Self, ApiError> {
        let prefix = request.kind.prefix(&request.namespace);
        let topic = request.selection.topic(&request.kind, &request.namespace);
        let published = store.follow(&topic);
        let now = Instant::now();
        let mut watch = Self {
            cursor: 0,
            deadline: now + request.timeout,
            next_bookmark: now + BOOKMARK_EVERY,
            state: VecDeque::new(),
            pending: Vec::new(),
            ended: false,
            headed: false,
            store,
            request,
            prefix,
            topic,
            published,
            shutdown,
        };
        match watch.request.start {
            Start::After(revision) => {
                let current = watch.store.revision();
                if revision > current {
                    return Err(ApiError::too_large(revision, current));
                }
                watch.cursor = revision;
                // A revision that is too old is an event of the stream, as upstream's watch cache answers it.
            }
            Start::State | Start::StateThenBookmark => watch.send_state(),
        }
        Ok(watch)
    }

    /// The response's body.
    pub fn into_stream(self) -> impl futures::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        futures::stream::unfold(self, |mut watch| async move { watch.next().await.map(|chunk| (Ok(chunk), watch)) })
    }

    fn send_state(&mut self) {
        let (revision, entries) = self.store.list_of(&self.topic, &self.prefix);
        self.cursor = revision;
        if self.request.registry.is_some() {
            self.state = entries.into_iter().map(|(_, entry)| entry).collect();
        } else {
            entries.iter().for_each(|(_, entry)| self.push_state(entry));
        }
        if self.state.is_empty() {
            self.end_state();
        }
    }

    fn push_state(&mut self, entry: &Entry) {
        if self.request.selection.matches_bytes(&entry.bytes) {
            self.push("ADDED", &entry.bytes);
        }
    }

    fn end_state(&mut self) {
        if self.request.start == Start::StateThenBookmark {
            self.push_bookmark(true);
        }
    }

    /// The next part of the state, in the version of the kind.
    async fn collect_state(&mut self) {
        let batch = self.state.drain(..BATCH.min(self.state.len())).collect();
        if let Some(entries) = self.shown(batch).await {
            entries.iter().for_each(|entry| self.push_state(entry));
            if self.state.is_empty() {
                self.end_state();
            }
        }
    }

    /// Entries in the version of the kind. A failure ends the watch.
    async fn shown(&mut self, entries: Vec<Entry>) -> Option<Vec<Entry>> {
        let Some(registry) = &self.request.registry else { return Some(entries) };
        match registry.shown(&self.request.kind, entries).await {
            Ok(shown) => Some(shown),
            Err(error) => {
                self.push_value("ERROR", &ApiError::internal(error.message).to_value());
                self.state.clear();
                self.ended = true;
                None
            }
        }
    }

    /// Events with their objects in the version of the kind.
    async fn shown_events(&mut self, events: Vec<Arc<Event>>) -> Option<Vec<Arc<Event>>> {
        if self.request.registry.is_none() {
            return Some(events);
        }
        let now = events.iter().map(|event| Entry { revision: event.revision, bytes: Arc::clone(&event.object) });
        let objects = now.chain(events.iter().filter_map(|event| event.previous.clone())).collect();
        let mut shown = self.shown(objects).await?.into_iter();
        let objects: Vec<Entry> = shown.by_ref().take(events.len()).collect();
        let event = |(event, entry): (&Arc<Event>, Entry)| {
            let previous = event.previous.as_ref().and_then(|_| shown.next());
            Arc::new(Event { key: Arc::clone(&event.key), object: entry.bytes, previous, ..**event })
        };
        Some(events.iter().zip(objects).map(event).collect())
    }

    /// The next chunk; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.pending.is_empty() {
                return Some(std::mem::take(&mut self.pending).into());
            }
            if self.ended {
                return None;
            }
            if !self.state.is_empty() {
                self.collect_state().await;
                continue;
            }
            // Marked seen before reading, so that a change in between wakes us again.
            self.published.borrow_and_update();
            self.collect().await;
            if self.pending.is_empty() && !self.ended {
                self.wait().await;
            }
        }
    }

    async fn collect(&mut self) {
        match self.store.events_of(&self.topic, &self.prefix, self.cursor, BATCH) {
            Ok((events, cursor)) => {
                let current = self.cursor;
                self.cursor = cursor.max(current);
                let events = self.shown_events(events).await.unwrap_or_default();
                events.iter().for_each(|event| self.push_event(event));
            }
            Err(compacted) => {
                let error = ApiError::expired(format!("too old resource version: {} ({})", self.cursor, compacted.oldest));
                self.push_value("ERROR", &error.to_value());
                self.ended = true;
            }
        }
    }

    async fn wait(&mut self) {
        let bookmark = tokio::select! {
            changed = self.published.changed() => {
                self.ended = changed.is_err();
                false
            }
            () = self.shutdown.cancelled() => {
                self.ended = true;
                false
            }
            () = tokio::time::sleep_until(self.deadline) => {
                self.ended = true;
                false
            }
            () = tokio::time::sleep_until(self.next_bookmark), if self.request.bookmarks => true,
        };
        if bookmark {
            self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
            // Nothing has woken it since the last event of its own, and the bookmark is to say what is past now.
            self.collect().await;
            if !self.ended {
                self.push_bookmark(false);
            }
        }
    }

    fn push_event(&mut self, event: &Event) {
        let selection = &self.request.selection;
        if selection.is_empty() {
            let kind = match event.change {
                Change::Added => "ADDED",
                Change::Modified => "MODIFIED",
                Change::Deleted => "DELETED",
            };
            return self.push(kind, &event.object);
        }
        match self.selected(event) {
            (false, true) => self.push("ADDED", &event.object),
            (true, true) => self.push("MODIFIED", &event.object),
            (true, false) if event.change == Change::Deleted => self.push("DELETED", &event.object),
            (true, false) => {
                // It left the selection: its last state inside, with the revision at which it left.
                let mut last = event.previous.as_ref().map(Entry::value).unwrap_or_default();
                object::metadata(&mut last).insert("resourceVersion".into(), event.revision.to_string().into());
                let bytes = serde_json::to_vec(&last).unwrap_or_default();
                self.push("DELETED", &bytes);
            }
            (false, false) => {}
        }
    }

    /// Whether the selection matched the object before the event, and whether it matches it now. Events of kinds that alone are stored where
    /// they are watched are decoded once for all watches.
    fn selected(&self, event: &Event) -> (bool, bool) {
        let Request { kind, selection, .. } = &self.request;
        if kind.is_view() || kind.custom.is_some() {
            let before = event.previous.as_ref().is_some_and(|previous| selection.matches_bytes(&previous.bytes));
            return (before, event.change != Change::Deleted && selection.matches_bytes(&event.object));
        }
        let outline = |bytes: &[u8]| Outline::read(bytes, &kind.selectable_fields);
        let outlines = self.store.outlines(event, outline);
        let matches = |outline: &Option<Outline>| outline.as_ref().is_some_and(|outline| selection.matches_outline(outline));
        (matches(&outlines.before), matches(&outlines.after))
    }

    fn push(&mut self, kind: &str, bytes: &[u8]) {
        match self.request.transform {
            Transform::Table => {
                let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
                let options = (self.request.include_object.as_str(), json!({"resourceVersion": object::resource_version(&object)}));
                let mut table = crate::http::respond::table(&self.request.kind, &[object], options.0, options.1);
                if std::mem::replace(&mut self.headed, true) {
                    table["columnDefinitions"] = Value::Null;
                }
                self.push_value(kind, &table);
            }
            Transform::Metadata => {
                let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
                self.push_value(kind, &crate::http::respond::partial(&object));
            }
            Transform::None | Transform::AggregatedDiscovery if self.request.kind.is_view() => {
                let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
                self.push_value(kind, &self.request.kind.outgoing(object));
            }
            Transform::None | Transform::AggregatedDiscovery => self.push_raw(kind, bytes),
        }
    }

    fn push_raw(&mut self, kind: &str, bytes: &[u8]) {
        self.pending.extend_from_slice(b"{\"type\":\"");
        self.pending.extend_from_slice(kind.as_bytes());
        self.pending.extend_from_slice(b"\",\"object\":");
        self.pending.extend_from_slice(bytes);
        self.pending.extend_from_slice(b"}\n");
    }

    fn push_value(&mut self, kind: &str, value: &Value) {
        let bytes = serde_json::to_vec(value).unwrap_or_default();
        self.push_raw(kind, &bytes);
    }

    fn push_bookmark(&mut self, end_of_initial: bool) {
        let kind = &self.request.kind;
        let mut bookmark = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": self.cursor.to_string(), "creationTimestamp": null},
        });
        if end_of_initial {
            bookmark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.request.transform {
            Transform::Table => {
                let metadata = bookmark["metadata"].clone();
                let table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": null, "rows": [{"cells": [], "object": crate::http::respond::partial(&bookmark)}]});
                self.push_value("BOOKMARK", &table);
            }
            Transform::Metadata => self.push_value("BOOKMARK", &crate::http::respond::partial(&bookmark)),
            Transform::None | Transform::AggregatedDiscovery => self.push_value("BOOKMARK", &bookmark),
        }
    }
}

#[cfg(test)]
mod tests;
