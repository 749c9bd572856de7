//! The world behind its watches: rows go into it as they come.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{Keeper, Key};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::policy::PolicyId;
use crate::world::{Kind, World};

/// The world, and which policies changed when.
#[derive(Debug)]
pub struct Inputs {
    world: Mutex<World>,
    heard: Mutex<BTreeMap<PolicyId, Instant>>,
    changed: Notify,
}

impl Inputs {
    pub fn new(world: World) -> Self {
        Self { world: Mutex::new(world), heard: Mutex::default(), changed: Notify::new() }
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<PolicyId, Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes when something changed since this completed last.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The policies that changed since the last pass, with when the first change was heard of.
    pub fn take_heard(&self) -> BTreeMap<PolicyId, Instant> {
        std::mem::take(&mut *self.heard())
    }

    /// The pass failed: they still wait.
    pub fn put_back(&self, policies: &BTreeMap<PolicyId, Instant>) {
        let mut heard = self.heard();
        policies.iter().for_each(|(id, at)| _ = heard.insert(id.clone(), *at));
    }
}

type Set<R> = fn(&mut World, &Key, Option<R>) -> bool;

/// Keeps the rows of one kind in the world.
pub struct Rows<R> {
    inputs: Arc<Inputs>,
    kind: Kind,
    set: Set<R>,
}

impl<R> Rows<R> {
    pub fn new(inputs: &Arc<Inputs>, kind: Kind, set: Set<R>) -> Self {
        Self { inputs: inputs.clone(), kind, set }
    }

    fn note(&self, key: &Key, different: bool) -> bool {
        if different {
            let id = match self.kind {
                Kind::NamespacedPolicies => Some(PolicyId::Namespaced(key.clone())),
                Kind::ClusterPolicies => Some(PolicyId::Cluster(key.name.as_str().into())),
                Kind::Pods | Kind::Namespaces | Kind::Nodes => None,
            };
            if let Some(id) = id {
                self.inputs.heard().entry(id).or_insert_with(Instant::now);
            }
            self.inputs.changed.notify_one();
        }
        different
    }
}

impl<R: Send + 'static> Keeper<R> for Rows<R> {
    fn begin(&self) {
        self.inputs.world().begin(self.kind);
    }

    fn put(&self, key: Key, row: R) -> bool {
        let different = (self.set)(&mut self.inputs.world(), &key, Some(row));
        self.note(&key, different)
    }

    fn remove(&self, key: &Key) -> bool {
        let different = (self.set)(&mut self.inputs.world(), key, None);
        self.note(key, different)
    }

    fn end(&self) -> bool {
        let different = self.inputs.world().end(self.kind);
        if different {
            self.inputs.changed.notify_one();
        }
        different
    }
}
