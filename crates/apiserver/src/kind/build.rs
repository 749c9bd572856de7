//! The builder of kinds.

use super::{
    Admission, Attributes, BodyKind, Deletion, Kind, PartHooks, Route, ScalePaths, Schema, SelectableField, Storage, Strategy, Subresource,
    Validation, View,
};
use crate::names::Names;
use crate::schema::tree;
use crate::status::ApiError;
use crate::table::{Column, Printer};
use crate::validation::field::{Errors, Field};
use crate::validation::names::dns_subdomain;
use futures::future::BoxFuture;
use jiff::Timestamp;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};
use std::sync::Arc;

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];
const READ: &[&str] = &["get", "list"];
const CONNECT: &[&str] = &["create", "get"];
const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
const GET: &[&str] = &["get"];
const CHANGE: &[&str] = &["get", "patch", "update"];

fn describe<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

impl Kind {
    /// A stored kind of a type in `schema/types.txt`: namespaced, all verbs, no subresources, names that are DNS subdomains. The singular
    /// is the kind's name in lower case.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str, schema_type: &'static str) -> Self {
        Self::with_schema(group, version, kind, plural, Schema::Type(schema_type))
    }

    /// A stored kind of which nothing is known but its names.
    pub fn open(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self::with_schema(group, version, kind, plural, Schema::Open)
    }

    fn with_schema(group: &str, version: &str, kind: &str, plural: &str, schema: Schema) -> Self {
        let names = Names {
            group: group.to_string(),
            version: version.to_string(),
            kind: kind.to_string(),
            list_kind: format!("{kind}List"),
            plural: plural.to_string(),
            singular: kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
        };
        Self {
            names,
            verbs: ALL,
            storage: Storage::Own,
            schema,
            merges: None,
            described_by: Vec::new(),
            custom: None,
            subresources: Vec::new(),
            selectable_fields: Vec::new(),
            deprecation: None,
            defaults: None,
            validation: Validation { name: Arc::new(dns_subdomain), content: None, status: None, warnings: None },
            strategy: Strategy {
                generation: None,
                status_on_create: false,
                metadata_with_status: false,
                create_on_update: false,
                prepare_create: None,
                prepare_update: None,
                prepare_status: None,
            },
            deletion: Deletion::default(),
            admission: Admission::default(),
            printer: Printer::default(),
        }
    }

    /// Objects live outside of namespaces.
    #[must_use]
    pub fn cluster(mut self) -> Self {
        self.names.namespaced = false;
        self
    }

    #[must_use]
    pub fn singular(mut self, name: &str) -> Self {
        self.names.singular = name.to_string();
        self
    }

    #[must_use]
    pub fn short(mut self, names: &[&str]) -> Self {
        self.names.short_names = names.iter().map(ToString::to_string).collect();
        self
    }

    /// `kubectl get all` lists the kind.
    #[must_use]
    pub fn in_all(self) -> Self {
        self.category("all")
    }

    /// `kubectl get CATEGORY` lists the kind.
    #[must_use]
    pub fn category(mut self, name: &str) -> Self {
        self.names.categories.push(name.to_string());
        self
    }

    /// Other verbs than all; sorted.
    #[must_use]
    pub fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    /// A kind that can only be created and is answered at once, never stored.
    #[must_use]
    pub fn review(mut self) -> Self {
        self.storage = Storage::Review;
        self.verbs = CREATE;
        self
    }

    /// A kind whose objects are computed when somebody asks.
    #[must_use]
    pub fn computed(mut self) -> Self {
        self.storage = Storage::Computed;
        self.verbs = READ;
        self
    }

    /// Objects are stored as `api_version` of `group` says; the hooks see the stored form.
    #[must_use]
    pub fn stored_as(
        mut self,
        group: &str,
        api_version: &str,
        incoming: impl Fn(Value) -> Value + Send + Sync + 'static,
        outgoing: impl Fn(Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let (incoming, outgoing) = (Arc::new(incoming), Arc::new(outgoing));
        self.storage = Storage::View(View { group: group.to_string(), api_version: api_version.to_string(), incoming, outgoing });
        self
    }

    /// Objects are stored in one of several versions.
    #[must_use]
    pub fn versioned(mut self, versions: Arc<dyn super::Versions>) -> Self {
        self.storage = Storage::Versioned(versions);
        self
    }

    /// The type whose schema the OpenAPI document has; once more for the body of each subresource that has one of its own.
    #[must_use]
    pub fn described_by<T: JsonSchema>(mut self) -> Self {
        self.described_by.push(describe::<T>);
        self
    }

    /// The kind comes from a CustomResourceDefinition.
    #[must_use]
    pub fn custom(mut self, custom: super::Custom) -> Self {
        self.custom = Some(custom);
        self
    }

    /// Lists and maps merge as a structural OpenAPI schema says, and applies are checked against it.
    /// With a schema that makes no sense every list is one value.
    #[must_use]
    pub fn merged_by(mut self, openapi: &Value) -> Self {
        let meta = tree().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        self.merges = meta.and_then(|meta| match kube_schema::openapi::schema(openapi, meta, false) {
            Ok(found) => Some(Arc::new(found)),
            Err(error) => {
                tracing::warn!(%error, kind = self.names.kind, "lists of a kind are applied as one value each");
                None
            }
        });
        self
    }

    /// Every answer carries this warning.
    #[must_use]
    pub fn deprecated(mut self, warning: &str) -> Self {
        self.deprecation = Some(warning.to_string());
        self
    }

    #[must_use]
    pub fn selectable(mut self, field: SelectableField) -> Self {
        self.selectable_fields.push(field);
        self
    }

    #[must_use]
    pub fn defaults(mut self, hook: impl Fn(&mut Map<String, Value>) + Send + Sync + 'static) -> Self {
        self.defaults = Some(Arc::new(hook));
        self
    }

    /// What names may be, in place of DNS subdomains.
    #[must_use]
    pub fn name_rule(mut self, rule: impl Fn(&str) -> Vec<String> + Send + Sync + 'static) -> Self {
        self.validation.name = Arc::new(rule);
        self
    }

    /// Checks creations, and updates (the second argument is the old state).
    #[must_use]
    pub fn validate(mut self, hook: impl Fn(&Field<'_>, Option<&Field<'_>>, &mut Errors) + Send + Sync + 'static) -> Self {
        self.validation.content = Some(Arc::new(hook));
        self
    }

    /// Checks updates of the status (new, old) instead of the hook of [`Kind::validate`].
    #[must_use]
    pub fn validate_status(mut self, hook: impl Fn(&Field<'_>, &Field<'_>, &mut Errors) + Send + Sync + 'static) -> Self {
        self.validation.status = Some(Arc::new(hook));
        self
    }

    #[must_use]
    pub fn warnings(mut self, hook: impl Fn(&Field<'_>, &mut Vec<String>) + Send + Sync + 'static) -> Self {
        self.validation.warnings = Some(Arc::new(hook));
        self
    }

    /// The generation rises when the spec changes.
    #[must_use]
    pub fn counts_generations(self) -> Self {
        self.counts_generations_by(|old, new| old.get("spec") != new.get("spec"))
    }

    /// The generation rises when the hook says so of the old and the new state.
    #[must_use]
    pub fn counts_generations_by(mut self, changed: impl Fn(&Value, &Value) -> bool + Send + Sync + 'static) -> Self {
        self.strategy.generation = Some(Arc::new(changed));
        self
    }

    /// A creation may bring a status.
    #[must_use]
    pub fn status_on_create(mut self) -> Self {
        self.strategy.status_on_create = true;
        self
    }

    /// An update of the status takes over labels, annotations and finalizers.
    #[must_use]
    pub fn metadata_with_status(mut self) -> Self {
        self.strategy.metadata_with_status = true;
        self
    }

    /// A PUT creates what does not exist.
    #[must_use]
    pub fn create_on_update(mut self) -> Self {
        self.strategy.create_on_update = true;
        self
    }

    /// Changes a new object; its status has been removed and its generation set before.
    #[must_use]
    pub fn prepare_create(mut self, hook: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        self.strategy.prepare_create = Some(Arc::new(hook));
        self
    }

    /// Changes an update of the main resource (old, new); the old status has been put back before, the generation is counted afterwards.
    #[must_use]
    pub fn prepare_update(mut self, hook: impl Fn(&Value, &mut Value) + Send + Sync + 'static) -> Self {
        self.strategy.prepare_update = Some(Arc::new(hook));
        self
    }

    /// Changes an update of the status (old, new); everything else has been put back before.
    #[must_use]
    pub fn prepare_status(mut self, hook: impl Fn(&Value, &mut Value) + Send + Sync + 'static) -> Self {
        self.strategy.prepare_status = Some(Arc::new(hook));
        self
    }

    /// How long an object may take to go.
    #[must_use]
    pub fn grace(mut self, hook: impl Fn(&Value, Option<i64>) -> i64 + Send + Sync + 'static) -> Self {
        self.deletion.grace = Some(Arc::new(hook));
        self
    }

    /// Replaces the generic plan of a deletion, and says what holds back an object beside finalizers.
    #[must_use]
    pub fn deleted_by(
        mut self,
        plan: impl Fn(Value) -> (Value, bool) + Send + Sync + 'static,
        held: impl Fn(&Value) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.deletion.plan = Some(Arc::new(plan));
        self.deletion.held = Some(Arc::new(held));
        self
    }

    /// A deletion that names no policy is answered with this warning.
    #[must_use]
    pub fn deletion_warning(mut self, text: &'static str) -> Self {
        self.deletion.warning = Some(text);
        self
    }

    /// A deletion that names no policy orphans dependents.
    #[must_use]
    pub fn orphans_dependents(mut self) -> Self {
        self.deletion.orphans = true;
        self
    }

    /// Admission of creations, which may wait. The hook is a function that returns `Box::pin(async move { … })`.
    #[must_use]
    pub fn admit_create_async(
        mut self,
        hook: impl for<'a> Fn(&'a Attributes<'a>, &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> + Send + Sync + 'static,
    ) -> Self {
        self.admission.create = Some(Arc::new(hook));
        self
    }

    #[must_use]
    pub fn admit_create(mut self, hook: impl Fn(&Attributes<'_>, &mut Value) -> Result<(), ApiError> + Send + Sync + 'static) -> Self {
        self.admission.create = Some(Arc::new(move |attributes, object| Box::pin(std::future::ready(hook(attributes, object)))));
        self
    }

    /// Admission of updates: `Attributes::part` and `Attributes::old` say of what.
    #[must_use]
    pub fn admit_update(mut self, hook: impl Fn(&Attributes<'_>, &mut Value) -> Result<(), ApiError> + Send + Sync + 'static) -> Self {
        self.admission.update = Some(Arc::new(move |attributes, object| Box::pin(std::future::ready(hook(attributes, object)))));
        self
    }

    /// Admission of deletions, before anybody has looked whether the object exists.
    #[must_use]
    pub fn admit_delete(mut self, hook: impl Fn(&Attributes<'_>) -> Result<(), ApiError> + Send + Sync + 'static) -> Self {
        self.admission.delete = Some(Arc::new(move |attributes, _| Box::pin(std::future::ready(hook(attributes)))));
        self
    }

    /// The columns of the kind's table, and the cells of an object's row at a time.
    #[must_use]
    pub fn table(mut self, columns: impl Into<Vec<Column>>, cells: impl Fn(&Value, Timestamp) -> Vec<Value> + Send + Sync + 'static) -> Self {
        self.printer = Printer::new(columns, cells);
        self
    }

    /// The condition of a row, for kinds whose objects are over at some time.
    #[must_use]
    pub fn row_condition(mut self, hook: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        self.printer = self.printer.with_condition(hook);
        self
    }

    /// Adds a subresource.
    #[must_use]
    pub fn subresource_of(mut self, subresource: Subresource) -> Self {
        self.subresources.push(subresource);
        self.subresources.sort_by_key(|subresource| subresource.name);
        self
    }

    fn own_body(&self) -> BodyKind {
        BodyKind::new(&self.group, &self.version, &self.kind)
    }

    /// A status that only its subresource writes.
    #[must_use]
    pub fn status(self) -> Self {
        let body = self.own_body();
        self.subresource_of(Subresource { name: "status", body, verbs: CHANGE, route: Route::Status })
    }

    /// `autoscaling/v1` Scale of `spec.replicas`, `status.replicas` and `spec.selector`.
    #[must_use]
    pub fn scale(self) -> Self {
        self.scale_at(ScalePaths::default())
    }

    /// The same with other places.
    #[must_use]
    pub fn scale_at(self, paths: ScalePaths) -> Self {
        let body = BodyKind::new("autoscaling", "v1", "Scale");
        self.subresource_of(Subresource { name: "scale", body, verbs: CHANGE, route: Route::Scale(paths) })
    }

    /// A subresource whose body is the object and which writes a part of it (`approval`, `resize`): `prepare` (old, new) puts back what it
    /// may not change; `validate` (new, old) takes the place of the main resource's checks.
    #[must_use]
    pub fn part(
        self,
        name: &'static str,
        verbs: &'static [&'static str],
        prepare: impl Fn(&Value, &mut Value) + Send + Sync + 'static,
        validate: Option<super::ValidatePart>,
    ) -> Self {
        let body = self.own_body();
        let route = Route::Part(PartHooks { prepare: Arc::new(prepare), validate });
        self.subresource_of(Subresource { name, body, verbs, route })
    }

    /// A creation below an object that is answered by the module of that name in `subresources`.
    #[must_use]
    pub fn action(self, name: &'static str, group: &str, version: &str, kind: &str) -> Self {
        self.subresource_of(Subresource { name, body: BodyKind::new(group, version, kind), verbs: CREATE, route: Route::Action })
    }

    /// A connection to a node or pod, with the options of this kind.
    #[must_use]
    pub fn connect(self, name: &'static str, options: &str) -> Self {
        let verbs = if name == "proxy" { PROXY } else { CONNECT };
        self.subresource_of(Subresource { name, body: BodyKind::new("", "v1", options), verbs, route: Route::Connect })
    }

    /// What a pod wrote.
    #[must_use]
    pub fn log(self) -> Self {
        let body = self.own_body();
        self.subresource_of(Subresource { name: "log", body, verbs: GET, route: Route::Connect })
    }
}
