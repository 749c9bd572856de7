//! Informers: tables of compact rows, kept by a list and a watch.
//!
//! Flow: streaming list (one watch that begins with the present objects; a server that cannot do that is asked page by page instead), then
//! watch; after an error back off and resume; after 410, or from a server whose revisions are behind ours, list again and compare. The watch
//! is one of the hub (`hub`), shared with other readers of the same server; its loop is in `reflect`.
//! Guarantees: rows are swapped in at the end of a list, so no reader sees half a list; `changed` and the handler fire only for rows that
//! really differ; the newest state always wins (a wake-up carries no data).
//! Assumptions: the handler is quick and does not call back into the same informer's handler.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    runtime::watcher::{self, InitialListStrategy},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    ApiServer,
    hub::{self, Attachment},
    reflect::Target,
};

/// Objects per page where the server cannot stream a list.
const PAGE_SIZE: u32 = 100;

/// Namespace and name of an object; the namespace of a cluster-scoped object is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// Namespace, empty for cluster-scoped objects.
    pub ns: String,
    pub name: String,
}

impl Key {
    /// The key of an object in a namespace.
    pub fn new(ns: impl Into<String>, name: impl Into<String>) -> Self {
        Self { ns: ns.into(), name: name.into() }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self::new("", name)
    }

    /// The key of an object as read from the API.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ns.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.ns, self.name) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which objects an informer is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Label selector, as `kubectl -l` takes it.
    pub labels: Option<String>,
    /// Field selector, as `kubectl --field-selector` takes it.
    pub fields: Option<String>,
    /// The server, and its watches: readers with the same value share them.
    pub server: ApiServer,
}

impl Selection {
    /// Every object.
    pub fn all() -> Self {
        Self::default()
    }

    /// Objects with these labels.
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..Self::default() }
    }

    /// Objects with these fields, such as `spec.nodeName=win01`.
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), ..Self::default() }
    }

    /// The same objects, from the watches of this server.
    #[must_use]
    pub fn of(self, server: &ApiServer) -> Self {
        Self { server: server.clone(), ..self }
    }

    pub(crate) fn watcher_config(&self, strategy: InitialListStrategy) -> watcher::Config {
        watcher::Config {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            initial_list_strategy: strategy,
            page_size: Some(PAGE_SIZE),
            ..Default::default()
        }
    }
}

/// One row that changed: `old` is none for a new one, `new` is none for one that went away. Never both none.
#[derive(Debug)]
pub struct Change<'a, R> {
    /// The key of the row.
    pub key: &'a Key,
    /// The row before.
    pub old: Option<&'a Arc<R>>,
    /// The row now.
    pub new: Option<&'a Arc<R>>,
}

type Handler<R> = Arc<dyn Fn(Change<'_, R>) + Send + Sync>;

struct Shared<R> {
    rows: RwLock<BTreeMap<Key, Arc<R>>>,
    /// The list that is under way.
    list: Mutex<BTreeMap<Key, Arc<R>>>,
    changed: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    trouble: RwLock<Option<String>>,
    handlers: RwLock<Vec<Handler<R>>>,
}

/// A live table of compact rows. Clones share the table; the watch ends with the last clone of its last reader.
pub struct Informer<R> {
    shared: Arc<Shared<R>>,
    pub(crate) attachment: Arc<Attachment>,
}

impl<R> Clone for Informer<R> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), attachment: self.attachment.clone() }
    }
}

impl<R> fmt::Debug for Informer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("rows", &self.len()).field("synced", &self.is_synced()).finish()
    }
}

impl<R: PartialEq + Send + Sync + 'static> Informer<R> {
    /// Starts watching. `row` selects what is kept of an object; none leaves the object out.
    ///
    /// Panics outside a tokio runtime.
    pub fn start<K>(api: Api<K>, selection: Selection, row: impl Fn(&K) -> Option<R> + Send + Sync + 'static) -> Self
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        Self::start_shared(api, selection, row, Shared::new(Vec::new()))
    }

    /// Like [`Informer::start`], and calls `handler` once for each row that changed, after the table holds it.
    /// The handler should only note which keys to look at.
    pub fn start_with_handler<K>(
        api: Api<K>,
        selection: Selection,
        row: impl Fn(&K) -> Option<R> + Send + Sync + 'static,
        handler: impl Fn(Change<'_, R>) + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        Self::start_shared(api, selection, row, Shared::new(vec![Arc::new(handler)]))
    }

    /// Like [`Informer::start_with_handler`], for rows of metadata alone: a watch of whole objects serves it too.
    pub fn start_metadata<K>(
        api: Api<K>,
        selection: Selection,
        row: impl Fn(&ObjectMeta) -> Option<R> + Send + Sync + 'static,
        handler: impl Fn(Change<'_, R>) + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        let shared = Arc::new(Shared::new(vec![Arc::new(handler)]));
        let attachment = Arc::new(hub::read_metadata(api, &selection, row, shared.clone()));
        Self { shared, attachment }
    }

    fn start_shared<K>(api: Api<K>, selection: Selection, row: impl Fn(&K) -> Option<R> + Send + Sync + 'static, shared: Shared<R>) -> Self
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        let shared = Arc::new(shared);
        let attachment = Arc::new(hub::read(api, &selection, row, shared.clone()));
        Self { shared, attachment }
    }
}

impl<R> Informer<R> {
    /// All rows, in the order of their keys.
    pub fn snapshot(&self) -> Vec<(Key, Arc<R>)> {
        self.read(|rows| rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    /// The rows of one namespace, in the order of their names.
    pub fn in_namespace(&self, ns: &str) -> Vec<(Key, Arc<R>)> {
        self.read(|rows| rows.range(Key::new(ns, "")..).take_while(|(key, _)| key.ns == ns).map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    pub fn get(&self, key: impl Borrow<Key>) -> Option<Arc<R>> {
        self.read(|rows| rows.get(key.borrow()).cloned())
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.read(BTreeMap::len)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list has arrived.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until the first list has arrived.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender is in `self.shared`, so waiting cannot fail.
        let _ = synced.wait_for(|done| *done).await;
    }

    /// Why the table is not kept up to date at the moment, as far as is known.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fires after rows changed (and once when the first list arrived). Level-triggered: many changes may be one wake-up, the number
    /// means nothing but "different".
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Calls `handler` for the rows there are now, as new ones, and from then on once for each row that changed. A row that changes
    /// meanwhile may be reported twice. The handler should only note which keys to look at; it is kept as long as the informer.
    pub fn subscribe(&self, handler: impl Fn(Change<'_, R>) + Send + Sync + 'static) {
        let handler: Handler<R> = Arc::new(handler);
        self.shared.handlers.write().unwrap_or_else(PoisonError::into_inner).push(handler.clone());
        for (key, row) in self.snapshot() {
            handler(Change { key: &key, old: None, new: Some(&row) });
        }
    }

    fn read<T>(&self, f: impl FnOnce(&BTreeMap<Key, Arc<R>>) -> T) -> T {
        f(&self.shared.rows.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<R> Shared<R> {
    fn new(handlers: Vec<Handler<R>>) -> Self {
        Self {
            rows: RwLock::default(),
            list: Mutex::default(),
            changed: watch::Sender::new(0),
            synced: watch::Sender::new(false),
            trouble: RwLock::default(),
            handlers: RwLock::new(handlers),
        }
    }

    fn report(&self, key: &Key, old: Option<&Arc<R>>, new: Option<&Arc<R>>) {
        for handler in self.handlers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            handler(Change { key, old, new });
        }
    }

    fn write<T>(&self, f: impl FnOnce(&mut BTreeMap<Key, Arc<R>>) -> T) -> T {
        f(&mut self.rows.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn notify(&self) {
        self.changed.send_modify(|version| *version += 1);
    }
}

impl<R: PartialEq + Send + Sync + 'static> Target<R> for Shared<R> {
    fn begin(&self) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn listed(&self, key: Key, row: R) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(row));
    }

    fn end(&self) {
        let list = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.replace(list);
    }

    fn trouble(&self, reason: Option<&str>) {
        let mut trouble = self.trouble.write().unwrap_or_else(PoisonError::into_inner);
        if trouble.as_deref() != reason {
            *trouble = reason.map(ToOwned::to_owned);
        }
    }

    fn set(&self, key: Key, row: Option<R>) {
        let new = row.map(Arc::new);
        let old = self.write(|rows| {
            if rows.get(&key).map(|row| &**row) == new.as_deref() {
                return None;
            }
            Some(match &new {
                Some(row) => rows.insert(key.clone(), row.clone()),
                None => rows.remove(&key),
            })
        });
        let Some(old) = old else { return };
        self.report(&key, old.as_ref(), new.as_ref());
        self.notify();
    }
}

impl<R: PartialEq> Shared<R> {
    /// Puts a whole list in place of the table and reports the differences.
    fn replace(&self, mut list: BTreeMap<Key, Arc<R>>) {
        let (old, new) = self.write(|rows| {
            for (key, row) in &mut list {
                // Unchanged rows keep their allocation, so snapshots stay cheap to compare.
                if let Some(kept) = rows.get(key).filter(|kept| ***kept == **row) {
                    *row = kept.clone();
                }
            }
            let new = list.clone();
            (std::mem::replace(rows, list), new)
        });
        let mut different = false;
        for (key, row) in &new {
            let before = old.get(key);
            if before.is_none_or(|before| !Arc::ptr_eq(before, row)) {
                different = true;
                self.report(key, before, Some(row));
            }
        }
        for (key, row) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
            different = true;
            self.report(key, Some(row), None);
        }
        let first = !self.synced.send_replace(true);
        if different || first {
            self.notify();
        }
    }
}

#[cfg(test)]
mod tests;
