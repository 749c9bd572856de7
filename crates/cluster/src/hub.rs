//! The hub: one watch per kind and process, many readers.
//!
//! A reader asks for a kind, a selection and its own projection. Readers of one [`ApiServer`] share a watch wherever one can serve them:
//!
//! | reader | shares a watch with |
//! | --- | --- |
//! | of all objects | every reader of the kind whose selection can be evaluated here: labels, and the fields name and namespace |
//! | of a selection | readers of the same selection |
//! | of metadata only | any reader of the kind; the objects are then decoded whole, once |
//!
//! A reader that comes late makes the watch list again: it gets the present state first, and the others compare and see no change. A watch
//! of a wider selection takes over the readers of narrower ones. The last reader ends the watch.
//! Guarantees: a reader sees `begin` before anything else, and never half a list; nothing is kept here but the readers.
//! Assumptions: readers only keep rows and note keys; they neither block nor start or end other readers while they are called.

use std::{
    any::{Any, TypeId},
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource};
use kube_rules::{FieldSelector, Selector};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::AbortHandle};

use crate::{
    ApiServer, Key, Selection,
    reflect::{self, Target},
};

/// An object as the hub hands it to readers.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    whole: &'a dyn Any,
    pub meta: &'a ObjectMeta,
}

impl<'a> Object<'a> {
    pub fn new<K: Resource + 'static>(object: &'a K) -> Self {
        Self { whole: object, meta: object.meta() }
    }

    fn key(&self) -> Key {
        Key::new(self.meta.namespace.clone().unwrap_or_default(), self.meta.name.clone().unwrap_or_default())
    }
}

/// One reader of a watch: a projection, and where its rows go.
trait Reader: Send + Sync {
    fn begin(&self);
    fn listed(&self, object: Object<'_>, selected: bool);
    fn end(&self);
    fn set(&self, object: Object<'_>, selected: bool);
    fn removed(&self, object: Object<'_>);
    fn trouble(&self, reason: Option<&str>);
}

struct Projection<R, F, T> {
    row: F,
    target: Arc<T>,
    rows: PhantomData<fn() -> R>,
}

impl<R, F, T> Reader for Projection<R, F, T>
where
    F: Fn(Object<'_>) -> Option<R> + Send + Sync,
    T: Target<R>,
{
    fn begin(&self) {
        self.target.begin();
    }

    fn listed(&self, object: Object<'_>, selected: bool) {
        if let Some(row) = selected.then(|| (self.row)(object)).flatten() {
            self.target.listed(object.key(), row);
        }
    }

    fn end(&self) {
        self.target.end();
    }

    fn set(&self, object: Object<'_>, selected: bool) {
        self.target.set(object.key(), selected.then(|| (self.row)(object)).flatten());
    }

    fn removed(&self, object: Object<'_>) {
        self.target.set(object.key(), None);
    }

    fn trouble(&self, reason: Option<&str>) {
        self.target.trouble(reason);
    }
}

/// What a watch decodes and selects, or what a reader needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scope {
    /// The type of the objects, and whether it holds metadata only.
    of: (TypeId, bool),
    labels: Option<String>,
    fields: Option<String>,
}

impl Scope {
    fn selects_all(&self) -> bool {
        self.labels.is_none() && self.fields.is_none()
    }

    /// The scope of one watch that serves both, if there is one.
    fn combine(&self, other: &Self) -> Option<Self> {
        let of = match (self.of, other.of) {
            (a, b) if a == b => a,
            ((_, true), b) => b,
            (a, (_, true)) => a,
            _ => return None,
        };
        let same = self.labels == other.labels && self.fields == other.fields;
        let one_of_all = (self.selects_all() && Filter::new(other).is_some()) || (other.selects_all() && Filter::new(self).is_some());
        match (same, one_of_all) {
            (true, _) => Some(Self { of, ..self.clone() }),
            (_, true) => Some(Self { of, labels: None, fields: None }),
            _ => None,
        }
    }
}

/// A selection that is evaluated here, for a reader whose watch selects more.
struct Filter {
    labels: Selector,
    fields: FieldSelector,
}

impl Filter {
    fn new(scope: &Scope) -> Option<Self> {
        let labels = Selector::parse(scope.labels.as_deref().unwrap_or_default()).ok()?;
        let fields = FieldSelector::parse(scope.fields.as_deref().unwrap_or_default()).ok()?;
        let known = fields.paths().all(|path| matches!(path, "metadata.name" | "metadata.namespace"));
        known.then_some(Self { labels, fields })
    }

    fn selects(&self, meta: &ObjectMeta) -> bool {
        let field = |path: &str| if path == "metadata.name" { meta.name.clone() } else { meta.namespace.clone() };
        self.fields.matches_by(|path| field(path).unwrap_or_default())
            && self.labels.matches_by(|key| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str))
    }
}

type Open = Arc<dyn Fn(&Selection, &Arc<Watch>) -> AbortHandle + Send + Sync>;

/// A reader and what it asked for.
struct Slot {
    id: u64,
    scope: Scope,
    /// Opens a watch of its type, with its client.
    open: Open,
    reader: Box<dyn Reader>,
    /// Its selection, where the watch selects more.
    filter: Option<Filter>,
    /// It has seen the beginning of a list.
    begun: bool,
}

/// A watch and its readers.
pub(crate) struct Watch {
    url: String,
    scope: Scope,
    slots: Mutex<Vec<Slot>>,
    task: Mutex<Option<AbortHandle>>,
    /// Changes when a reader waits for a list.
    joined: watch::Sender<()>,
}

impl Watch {
    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }

    fn each(&self, notify: impl Fn(&Slot)) {
        self.slots().iter().filter(|slot| slot.begun).for_each(notify);
    }

    /// Completes when a reader joined after the last list began, and so needs another one.
    pub async fn reader_waits(&self) {
        let mut joined = self.joined.subscribe();
        while self.slots().iter().all(|slot| slot.begun) {
            // The sender is in `self`, so waiting cannot fail.
            let _ = joined.changed().await;
        }
    }

    pub fn begin(&self) {
        for slot in &mut *self.slots() {
            slot.begun = true;
            slot.reader.begin();
        }
    }

    pub fn listed(&self, object: Object<'_>) {
        self.each(|slot| slot.reader.listed(object, slot.selects(object)));
    }

    pub fn end(&self) {
        self.each(|slot| slot.reader.end());
    }

    pub fn set(&self, object: Object<'_>) {
        self.each(|slot| slot.reader.set(object, slot.selects(object)));
    }

    pub fn removed(&self, object: Object<'_>) {
        self.each(|slot| slot.reader.removed(object));
    }

    pub fn trouble(&self, reason: Option<&str>) {
        self.slots().iter().for_each(|slot| slot.reader.trouble(reason));
    }
}

impl Slot {
    fn selects(&self, object: Object<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.selects(object.meta))
    }
}

/// The watches of one process to one API server.
#[derive(Default)]
pub(crate) struct Hub {
    watches: Mutex<Vec<Arc<Watch>>>,
    last_id: AtomicU64,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.open()).finish()
    }
}

impl Hub {
    fn watches(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Path and selection of each open watch.
    pub fn open(&self) -> Vec<String> {
        let text = |watch: &Arc<Watch>| {
            let parts = [Some(&watch.url), watch.scope.labels.as_ref(), watch.scope.fields.as_ref()];
            parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        self.watches().iter().map(text).collect()
    }

    fn join(&self, server: &ApiServer, url: String, mut slot: Slot) {
        let mut watches = self.watches();
        let mut scope = slot.scope.clone();
        let (mut merged, others): (Vec<_>, Vec<_>) = watches.drain(..).partition(|watch| {
            let combined = (watch.url == url).then(|| scope.combine(&watch.scope)).flatten();
            combined.map(|combined| scope = combined).is_some()
        });
        *watches = others;
        if merged.len() == 1 && merged[0].scope == scope {
            let watch = merged.remove(0);
            slot.filter = filter_for(&slot.scope, &scope);
            watch.slots().push(slot);
            watch.joined.send_replace(());
            watches.push(watch);
            return;
        }
        let mut slots = vec![slot];
        for watch in merged {
            watch.abort();
            // The task may be in the middle of an event on another thread; it holds the lock until every reader has it, and finds none after.
            slots.append(&mut watch.slots());
        }
        for slot in &mut slots {
            slot.begun = false;
            slot.filter = filter_for(&slot.scope, &scope);
        }
        let of_type = |slot: &&Slot| slot.scope.of == scope.of;
        let opener = slots.iter().filter(of_type).find(|slot| slot.filter.is_none()).or_else(|| slots.iter().find(of_type));
        let open = opener.map(|slot| slot.open.clone());
        let selection = Selection { labels: scope.labels.clone(), fields: scope.fields.clone(), server: server.clone() };
        let watch = Arc::new(Watch { url, scope, slots: Mutex::new(slots), task: Mutex::default(), joined: watch::Sender::default() });
        *watch.task.lock().unwrap_or_else(PoisonError::into_inner) = open.map(|open| open(&selection, &watch));
        watches.push(watch);
    }

    fn leave(&self, url: &str, id: u64) {
        let mut watches = self.watches();
        let mut left = None;
        watches.retain(|watch| {
            if watch.url != url {
                return true;
            }
            let mut slots = watch.slots();
            if let Some(index) = slots.iter().position(|slot| slot.id == id) {
                left = Some(slots.swap_remove(index));
                if slots.is_empty() {
                    watch.abort();
                    return false;
                }
            }
            true
        });
        drop(watches);
        // Its rows may hold other readers, which leave now.
        drop(left);
    }
}

/// The filter of a reader whose watch has this scope; none if the watch selects the same.
fn filter_for(reader: &Scope, watch: &Scope) -> Option<Filter> {
    let same = reader.labels == watch.labels && reader.fields == watch.fields;
    if same { None } else { Filter::new(reader) }
}

/// A reader's place in the hub. It leaves with this value.
pub(crate) struct Attachment {
    server: ApiServer,
    url: String,
    id: u64,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.server.hub().leave(&self.url, self.id);
    }
}

impl Attachment {
    /// The task of the watch that serves this reader.
    #[cfg(test)]
    pub fn task(&self) -> AbortHandle {
        let watches = self.server.hub().watches();
        let watch = watches.iter().find(|watch| watch.slots().iter().any(|slot| slot.id == self.id)).expect("its watch");
        watch.task.lock().unwrap().clone().expect("its task")
    }
}

/// Reads whole objects.
///
/// Panics outside a tokio runtime.
pub(crate) fn read<K, R>(
    api: Api<K>,
    selection: &Selection,
    row: impl Fn(&K) -> Option<R> + Send + Sync + 'static,
    target: Arc<impl Target<R>>,
) -> Attachment
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    R: 'static,
{
    // A watch never hands its readers objects of another type.
    attach(api, selection, false, move |object: Object<'_>| object.whole.downcast_ref::<K>().and_then(&row), target)
}

/// Reads metadata, from a watch of whole objects where there is one.
///
/// Panics outside a tokio runtime.
pub(crate) fn read_metadata<K, R>(
    api: Api<K>,
    selection: &Selection,
    row: impl Fn(&ObjectMeta) -> Option<R> + Send + Sync + 'static,
    target: Arc<impl Target<R>>,
) -> Attachment
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    R: 'static,
{
    attach(api, selection, true, move |object: Object<'_>| row(object.meta), target)
}

fn attach<K, R>(
    api: Api<K>,
    selection: &Selection,
    metadata: bool,
    row: impl Fn(Object<'_>) -> Option<R> + Send + Sync + 'static,
    target: Arc<impl Target<R>>,
) -> Attachment
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    R: 'static,
{
    let server = selection.server.clone();
    let id = server.hub().last_id.fetch_add(1, Ordering::Relaxed);
    let url = api.resource_url().to_owned();
    let open =
        move |selection: &Selection, watch: &Arc<Watch>| tokio::spawn(reflect::run(api.clone(), selection.clone(), watch.clone())).abort_handle();
    let scope = Scope { of: (TypeId::of::<K>(), metadata), labels: selection.labels.clone(), fields: selection.fields.clone() };
    let reader = Box::new(Projection { row, target, rows: PhantomData });
    server.hub().join(&server, url.clone(), Slot { id, scope, open: Arc::new(open), reader, filter: None, begun: false });
    Attachment { server, url, id }
}

#[cfg(test)]
mod tests;
