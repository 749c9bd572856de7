//! What a kind has from its CustomResourceDefinition.
//!
//! A compiled schema takes some twenty times the memory of its source, and most definitions of a cluster are seldom used. So a schema is
//! compiled when a request needs it, which takes about a millisecond, and let go when none has needed it for a while.

use super::{Kind, Kinds};
use crate::schema::tree;
use crd::resource::{Compiled, Version};
use kube_schema::schema::Schema as Tree;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an unused schema stays compiled.
pub const IDLE: Duration = Duration::from_secs(2);
/// Time between looks for unused schemas.
pub const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// What a kind has from its CustomResourceDefinition.
#[derive(Clone)]
pub struct Custom {
    pub definition: Definition,
    pub schema: Arc<CustomSchema>,
    /// Whether the definition keeps unknown fields everywhere (`preserveUnknownFields`).
    pub preserves_unknown: bool,
}

/// A state of a CustomResourceDefinition: kinds are made anew when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    /// No more objects are created, because the definition is being deleted.
    pub terminating: bool,
}

/// Definitions without what is large in them, by their keys in the store, each with the revision that it was read at.
pub type KnownDefinitions = BTreeMap<Arc<str>, (u64, Arc<Value>)>;

/// A version of a definition, whose schema is compiled while it is in use.
pub struct CustomSchema {
    pub version: Version,
    compiled: OnDemand<Compiled>,
    merges: OnDemand<Tree>,
}

impl CustomSchema {
    pub fn new(version: Version) -> Self {
        Self { version, compiled: OnDemand::default(), merges: OnDemand::default() }
    }

    /// What prunes, completes and judges objects.
    pub fn compiled(&self) -> Arc<Compiled> {
        self.compiled.get(|| self.version.compile())
    }

    /// How lists and maps of objects merge, and against what applies are checked. With a schema that makes no sense every list is one value.
    pub fn merges(&self) -> Arc<Tree> {
        self.merges.get(|| merges(&self.version))
    }

    /// Whether a part of it is compiled.
    pub fn is_compiled(&self) -> bool {
        self.compiled.is_made() || self.merges.is_made()
    }

    /// Lets go of what has not been used since `before`.
    fn release(&self, before: Instant) {
        self.compiled.release(before);
        self.merges.release(before);
    }
}

fn merges(version: &Version) -> Tree {
    let openapi = version.openapi();
    let found = match tree().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
        Some(meta) if openapi.is_object() => kube_schema::openapi::schema(&openapi, meta, false),
        _ => return Tree::deduced(),
    };
    found.unwrap_or_else(|error| {
        tracing::warn!(%error, version = version.name, "lists of a custom kind are applied as one value each");
        Tree::deduced()
    })
}

/// A value that is made when it is used.
struct OnDemand<T> {
    /// With the time of its last use.
    made: Mutex<Option<(Arc<T>, Instant)>>,
}

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self { made: Mutex::default() }
    }
}

impl<T> OnDemand<T> {
    fn made(&self) -> MutexGuard<'_, Option<(Arc<T>, Instant)>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value. Who needs it while it is being made waits.
    fn get(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut made = self.made();
        let (value, used) = made.get_or_insert_with(|| (Arc::new(make()), Instant::now()));
        *used = Instant::now();
        Arc::clone(value)
    }

    fn is_made(&self) -> bool {
        self.made().is_some()
    }

    /// Lets go of a value that has not been used since `before`; who uses it keeps it.
    fn release(&self, before: Instant) {
        self.made().take_if(|(_, used)| *used < before);
    }
}

impl Kind {
    /// The tree that says how the kind's objects merge, where it is the kind's own.
    pub fn own_tree(&self) -> Option<Arc<Tree>> {
        self.merges.clone().or_else(|| Some(self.custom.as_ref()?.schema.merges()))
    }
}

impl Kinds {
    /// Lets go of compiled schemas that have not been used since `before`.
    pub fn release_schemas(&self, before: Instant) {
        self.now().all().filter_map(|kind| kind.custom.as_ref()).for_each(|custom| custom.schema.release(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_value_is_let_go_and_made_again() {
        let (value, start) = (OnDemand::default(), Instant::now());
        let kept = value.get(|| 1);
        assert_eq!((*kept, *value.get(|| 2)), (1, 1), "it is made once");
        value.release(start);
        assert!(value.is_made(), "it was used later");
        value.release(Instant::now() + IDLE);
        assert!(!value.is_made());
        assert_eq!((*kept, *value.get(|| 3)), (1, 3));
    }
}
