//! A kind: everything the server knows of one, as a value. Built-in kinds (`kinds/GROUP/KIND.rs`) and custom ones are made by the same
//! builder, and the registry, discovery, OpenAPI, decoding, patches, watches and tables read nothing else.
//!
//! ```text
//! pub fn kind() -> Kind {
//!     Kind::new("batch", "v1", "Job", "jobs", "io.k8s.api.batch.v1.Job")
//!         .described_by::<k8s_openapi::api::batch::v1::Job>()
//!         .in_all()
//!         .status()
//!         .counts_generations()
//!         .defaults(defaults)               // fn(&mut Map<String, Value>)
//!         .validate(validate)               // fn(&Field, Option<&Field>, &mut Errors)
//!         .validate_status(validate_status) // fn(&Field, &Field, &mut Errors)
//!         .prepare_create(prepare_create)   // fn(&mut Value)
//!         .prepare_update(prepare_update)   // fn(&Value, &mut Value)
//!         .selectable(SelectableField::new("status.successful").at(&["status", "succeeded"]).or("0"))
//!         .table([NAME, text("Status"), AGE], row) // fn(&Value, Timestamp) -> Vec<Value>
//! }
//! ```

mod attributes;
mod build;
mod custom;
mod hooks;
mod registry;
mod subresource;
#[cfg(test)]
mod tests;
mod versions;

pub use crate::selectors::SelectableField;
pub use attributes::{Attributes, Cluster, FieldWriter, Operation, Part, WriteContext};
pub use custom::{Custom, CustomSchema, Definition, IDLE, KnownDefinitions, SWEEP_EVERY};
pub use registry::{Group, Kinds, Set};
pub use subresource::{BodyKind, PartHooks, Route, ScalePaths, Subresource};
pub use versions::Versions;

use crate::names::Names;
use crate::status::ApiError;
use crate::table::Printer;
use crate::validation::field::{Errors, Field};
use futures::future::BoxFuture;
use schemars::SchemaGenerator;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Fills in what a client left out. Doing it twice changes nothing.
pub type Defaults = Arc<dyn Fn(&mut Map<String, Value>) + Send + Sync>;
/// Says what is wrong with a new object (the second argument is absent) or with a replacement of the second argument. The object has been
/// decoded and defaulted; its metadata has been checked by the generic rules.
pub type Validate = Arc<dyn Fn(&Field<'_>, Option<&Field<'_>>, &mut Errors) + Send + Sync>;
/// Says what is wrong with an update of a part: new, old.
pub type ValidatePart = Arc<dyn Fn(&Field<'_>, &Field<'_>, &mut Errors) + Send + Sync>;
/// Adds what is accepted and still not as it should be.
pub type Warnings = Arc<dyn Fn(&Field<'_>, &mut Vec<String>) + Send + Sync>;
/// Changes a new object before validation.
pub type PrepareCreate = Arc<dyn Fn(&mut Value) + Send + Sync>;
/// Changes the new state (second) of an object by the old one (first) before validation.
pub type PrepareUpdate = Arc<dyn Fn(&Value, &mut Value) + Send + Sync>;
/// Whether the generation rises from the old state to the new one.
pub type ContentChanged = Arc<dyn Fn(&Value, &Value) -> bool + Send + Sync>;
/// Says what is wrong with a name (or with a `generateName` to which a letter has been added for its dash).
pub type NameRule = Arc<dyn Fn(&str) -> Vec<String> + Send + Sync>;
/// The grace period of a deletion: the object and what the client asked for.
pub type Grace = Arc<dyn Fn(&Value, Option<i64>) -> i64 + Send + Sync>;
/// What a deletion makes of an object, and whether the object stays for now: instead of the generic plan.
pub type PlanDeletion = Arc<dyn Fn(Value) -> (Value, bool) + Send + Sync>;
/// Whether something beside finalizers and grace holds back an object whose deletion has begun.
pub type Held = Arc<dyn Fn(&Value) -> bool + Send + Sync>;
/// Fills in and refuses between a request and validation; of a deletion the object is `null`.
pub type Admit = Arc<dyn for<'a> Fn(&'a Attributes<'a>, &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> + Send + Sync>;
/// Brings an object of the wire into the form in which it is stored, or back.
pub type Convert = Arc<dyn Fn(Value) -> Value + Send + Sync>;
/// Adds the OpenAPI schema of the kind, or of the body of a subresource.
pub type Describe = fn(&mut SchemaGenerator);

/// A kind in one version. Its names are members of it, by [`std::ops::Deref`].
#[derive(Clone)]
pub struct Kind {
    pub names: Names,
    /// The verbs of the main resource, sorted as discovery lists them.
    pub verbs: &'static [&'static str],
    /// Who keeps the objects.
    pub storage: Storage,
    /// What is known of the members of objects.
    pub schema: Schema,
    /// How lists and maps of objects merge, where neither `schema` nor `custom` says it.
    pub merges: Option<Arc<kube_schema::schema::Schema>>,
    /// The types that make up the kind's OpenAPI document.
    pub described_by: Vec<Describe>,
    /// The definition of a custom kind; absent for built-in ones.
    pub custom: Option<Custom>,
    /// Sorted by name.
    pub subresources: Vec<Subresource>,
    /// Beside `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<SelectableField>,
    /// Sent with every answer that concerns the kind.
    pub deprecation: Option<String>,
    pub defaults: Option<Defaults>,
    pub validation: Validation,
    pub strategy: Strategy,
    pub deletion: Deletion,
    pub admission: Admission,
    pub printer: Printer,
}

/// Who keeps the objects of a kind.
#[derive(Clone)]
pub enum Storage {
    /// The store, in this form.
    Own,
    /// The store, in the form of another version or group. Defaults, validation and strategy see the stored form.
    View(View),
    /// The store, in one of several versions. Hooks see the version of the request.
    Versioned(Arc<dyn Versions>),
    /// Nobody: a creation is answered at once.
    Review,
    /// Nobody: objects are computed when somebody asks.
    Computed,
}

/// How a kind's objects are stored as another kind's.
#[derive(Clone)]
pub struct View {
    /// The group that stores them.
    pub group: String,
    /// The stored `apiVersion`.
    pub api_version: String,
    pub incoming: Convert,
    pub outgoing: Convert,
}

/// What is known of the members of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schema {
    /// A type of `schema/types.txt`, by its name there, which is its name in OpenAPI documents too.
    Type(&'static str),
    /// Anything goes: objects are kept as they come.
    Open,
}

/// What is checked beside metadata.
#[derive(Clone)]
pub struct Validation {
    pub name: NameRule,
    /// Creations and updates of the main resource; updates of status too unless `status` is set.
    pub content: Option<Validate>,
    pub status: Option<ValidatePart>,
    pub warnings: Option<Warnings>,
}

/// What a creation starts with, and which members an update of a part may change.
#[derive(Clone)]
pub struct Strategy {
    /// When the generation rises; absent: the kind counts no generations.
    pub generation: Option<ContentChanged>,
    /// Whether a creation may bring a status (Nodes); else it is removed before `prepare_create`.
    pub status_on_create: bool,
    /// Whether an update of the status takes over labels, annotations and finalizers.
    pub metadata_with_status: bool,
    /// Whether a PUT of an object that does not exist creates it (`AllowCreateOnUpdate`).
    pub create_on_update: bool,
    pub prepare_create: Option<PrepareCreate>,
    /// For the main resource: the old status has been put back before.
    pub prepare_update: Option<PrepareUpdate>,
    /// For the status: everything else has been put back before.
    pub prepare_status: Option<PrepareUpdate>,
}

/// How objects go.
#[derive(Clone, Default)]
pub struct Deletion {
    /// Absent: no grace.
    pub grace: Option<Grace>,
    pub plan: Option<PlanDeletion>,
    pub held: Option<Held>,
    /// A deletion that names no policy orphans dependents (`DefaultGarbageCollectionPolicy`).
    pub orphans: bool,
    /// For clients whose deletion names no policy.
    pub warning: Option<&'static str>,
}

/// Admission that is of the kind: after namespaces' life cycle and NodeRestriction, before the strategy.
#[derive(Clone, Default)]
pub struct Admission {
    pub create: Option<Admit>,
    /// Of every part but the server's own writes: `Attributes::part` says which.
    pub update: Option<Admit>,
    pub delete: Option<Admit>,
}

impl std::ops::Deref for Kind {
    type Target = Names;

    fn deref(&self) -> &Names {
        &self.names
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Kind").field(&self.names).finish()
    }
}

impl Kind {
    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Where the objects of the kind have what their Scale shows, when there is one.
    pub fn scale_paths(&self) -> Option<&ScalePaths> {
        match &self.subresource("scale")?.route {
            Route::Scale(paths) => Some(paths),
            _ => None,
        }
    }

    /// Whether the kind has a status that only its status subresource writes.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// The name of the kind's type in `schema/types.txt` and in OpenAPI documents.
    pub fn schema_type(&self) -> Option<&'static str> {
        match self.schema {
            Schema::Type(name) => Some(name),
            Schema::Open => None,
        }
    }

    fn storage_group(&self) -> &str {
        let group = match &self.storage {
            Storage::View(view) => &view.group,
            _ => &self.group,
        };
        if group.is_empty() { "core" } else { group }
    }

    /// What objects say as `apiVersion` between the request and the store. Kinds of several versions are brought into that of the store only
    /// when they are written.
    pub fn stored_api_version(&self) -> String {
        match &self.storage {
            Storage::View(view) => view.api_version.clone(),
            _ => self.api_version(),
        }
    }

    /// The store's prefix of the kind ("") or of the kind in a namespace.
    pub fn prefix(&self, namespace: &str) -> String {
        let group = self.storage_group();
        if namespace.is_empty() || !self.namespaced { format!("{group}/{}/", self.plural) } else { format!("{group}/{}/{namespace}/", self.plural) }
    }

    /// The store's key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        let namespace = if self.namespaced { namespace } else { "" };
        format!("{}/{}/{namespace}/{name}", self.storage_group(), self.plural)
    }

    /// A stored object as clients of this kind see it.
    pub fn outgoing(&self, object: Value) -> Value {
        match &self.storage {
            Storage::View(view) if object.get("kind").is_some_and(|kind| *kind == self.kind.as_str()) => (view.outgoing)(object),
            _ => object,
        }
    }

    /// An object of a client of this kind as it is stored.
    pub fn incoming(&self, object: Value) -> Value {
        match &self.storage {
            Storage::View(view) => (view.incoming)(object),
            _ => object,
        }
    }

    /// Whether objects are stored under another kind's form.
    pub fn is_view(&self) -> bool {
        matches!(self.storage, Storage::View(_))
    }

    /// Whether objects are in the store.
    pub fn is_stored(&self) -> bool {
        matches!(self.storage, Storage::Own | Storage::View(_) | Storage::Versioned(_))
    }
}
