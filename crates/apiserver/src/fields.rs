//! Who owns which fields of an object (`metadata.managedFields`): the types of kinds in the schema tree, and the field manager of a
//! request.

use crate::kind::{Cluster, FieldWriter, Kind, Part, Schema, Set, WriteContext};
use crate::kinds;
use crate::object;
use crate::schema::tree;
use crate::status::ApiError;
use kube_schema::managed;
use kube_schema::manager::{ApplyError, FieldManager, ResetFields};
use kube_schema::openapi;
use kube_schema::schema::{Schema as Tree, Type};
use kube_schema::set::FieldSet;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Conversions for one write: each version that owns fields asks for a few.
const MOST_CONVERSIONS: usize = 64;

/// The type of the kind's objects, as clients see them. `own` is the kind's own tree ([`Kind::own_tree`]).
pub fn type_of<'t>(kind: &Kind, own: Option<&'t Tree>) -> Type<'t> {
    static DEDUCED: OnceLock<Tree> = OnceLock::new();
    let found = match (own, &kind.schema) {
        (Some(own), _) => own.find(openapi::ROOT),
        (None, Schema::Type(name)) => tree().find(name),
        (None, Schema::Open) => None,
    };
    found.unwrap_or_else(|| DEDUCED.get_or_init(Tree::deduced).type_at(Tree::DEDUCED))
}

/// The type of the kind's objects, as they are stored.
fn stored_type<'t>(kind: &Kind, own: Option<&'t Tree>) -> Type<'t> {
    let api_version = kind.stored_api_version();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let stored = if kind.is_view() { kinds::by_resource(group, version, &kind.plural) } else { None };
    type_of(stored.map_or(kind, |stored| stored), own)
}

/// What a write of `pods/ephemeralcontainers` and `pods/resize` can change.
const EPHEMERAL: &[&[&str]] = &[&["spec", "ephemeralContainers"]];
const RESIZE: &[&[&str]] = &[
    &["spec", "containers", "*", "resources"],
    &["spec", "containers", "*", "resizePolicy"],
    &["spec", "initContainers", "*", "resources"],
    &["spec", "initContainers", "*", "resizePolicy"],
];

/// The fields that a write of this part cannot change, and so does not own (upstream's `GetResetFields`, `GetResetFieldsFilter`).
fn reset(kind: &Kind, part: Part) -> ResetFields {
    ResetFields::These(match part {
        Part::Status if kind.strategy.metadata_with_status => FieldSet::of_names(&[&["spec"]]),
        Part::Status => FieldSet::of_names(&[&["spec"], &["metadata"]]),
        Part::Other("approval") => FieldSet::of_names(&[&["spec"], &["status", "certificate"]]),
        Part::Other("ephemeralcontainers") => return ResetFields::AllBut(EPHEMERAL),
        Part::Other("resize") => return ResetFields::AllBut(RESIZE),
        Part::Main | Part::Scale | Part::Other(_) if kind.has_status() => FieldSet::of_names(&[&["status"]]),
        _ => FieldSet::default(),
    })
}

/// Objects in the other versions in which fields of theirs are owned. Field management is pure: what it lacks fails and is noted, is converted
/// by [`Conversions::resolve`], and then the work begins anew.
pub struct Conversions<'c> {
    cluster: &'c Cluster,
    kinds: Arc<Set>,
    /// The trees of the versions that were asked for.
    trees: Vec<(String, OnceLock<Option<Arc<Tree>>>)>,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    known: Vec<(Wanted, Result<Value, String>)>,
    missing: Option<Wanted>,
}

/// An object, and the version that it is wanted in.
type Wanted = (Value, String);

impl<'c> Conversions<'c> {
    /// Of a kind, as it is served now.
    pub fn new(cluster: &'c Cluster, kind: &Kind) -> Self {
        let kinds = cluster.kinds.now();
        let versions = if kind.versions().is_some() { kinds.versions(&kind.group, &kind.plural) } else { &[] };
        let trees = versions.iter().map(|served| (served.version.clone(), OnceLock::new())).collect();
        Self { cluster, kinds, trees, notes: Mutex::default() }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object in a version, with its type there; none when the version is not served.
    fn find(&self, kind: &Kind, object: &Value, version: &str) -> Result<Option<(Type<'_>, Value)>, String> {
        let Some((_, name)) = version.split_once('/').filter(|(group, _)| *group == kind.group) else { return Ok(None) };
        let Some(served) = self.kinds.find(&kind.group, name, &kind.plural) else { return Ok(None) };
        let mut notes = self.notes();
        match notes.known.iter().find(|((known, at), _)| at == version && known == object) {
            Some((_, Ok(converted))) => {
                let tree = self.trees.iter().find(|(version, _)| version == name);
                let tree = tree.and_then(|(_, tree)| tree.get_or_init(|| served.own_tree()).as_deref());
                Ok(Some((type_of(served, tree), converted.clone())))
            }
            Some((_, Err(why))) => Err(why.clone()),
            None => {
                notes.missing = Some((object.clone(), version.to_string()));
                Err("a conversion is missing".to_string())
            }
        }
    }

    /// Converts what was missing. Whether there was something: then the work has to be done again.
    pub async fn resolve(&self, kind: &Kind) -> Result<bool, ApiError> {
        let Some((object, version)) = self.notes().missing.take() else { return Ok(false) };
        if self.notes().known.len() >= MOST_CONVERSIONS {
            return Err(ApiError::internal("the owners of fields use too many versions"));
        }
        let Some(versions) = kind.versions() else { return Ok(false) };
        let converted = versions.convert(self.cluster, vec![object.clone()], &version).await;
        let converted = converted.map(|objects| objects.into_iter().next().unwrap_or_default());
        self.notes().known.push(((object, version), converted));
        Ok(true)
    }
}

/// Runs `work` with the field manager of a write; `stored` says which form of the object is written.
fn with_manager<T>(
    kind: &Kind,
    part: Part,
    writer: &FieldWriter,
    stored: bool,
    conversions: &Conversions<'_>,
    work: impl FnOnce(&FieldManager<'_, '_>) -> T,
) -> T {
    let stored_version = kind.stored_api_version();
    let own_version = kind.api_version();
    let own = kind.own_tree();
    let own = own.as_deref();
    let convert = |object: &Value, version: &str| {
        if kind.versions().is_some() {
            return conversions.find(kind, object, version);
        }
        Ok(match version {
            version if version == stored_version => Some((stored_type(kind, own), kind.incoming(object.clone()))),
            version if version == own_version => Some((type_of(kind, own), kind.outgoing(object.clone()))),
            _ => None,
        })
    };
    let reset = |_: &str| reset(kind, part);
    work(&FieldManager {
        of: if stored { stored_type(kind, own) } else { type_of(kind, own) },
        api_version: if stored { &stored_version } else { &own_version },
        kind: &kind.kind,
        subresource: &writer.subresource,
        reset: &reset,
        convert: &convert,
        now: writer.now,
    })
}

/// Writes into a new object who owns its fields. Nobody owns what the server makes by itself.
pub fn track_creation(cluster: &Cluster, kind: &Kind, context: &WriteContext, object: &mut Value) {
    match &context.fields {
        Some(writer) if writer.applies => {}
        Some(writer) => {
            // Nothing is there yet, so nothing is owned in another version.
            let conversions = Conversions::new(cluster, kind);
            with_manager(kind, Part::Main, writer, true, &conversions, |fields| fields.update(None, object, &writer.manager));
        }
        None => drop(object::metadata(object).shift_remove("managedFields")),
    }
}

/// Writes into the new state of an object who owns its fields. The server's own writes leave that as it is.
pub async fn track_update(cluster: &Cluster, kind: &Kind, part: Part, context: &WriteContext, old: &Value, new: &mut Value) -> Result<(), ApiError> {
    match &context.fields {
        Some(writer) if writer.applies => {}
        Some(writer) => {
            let conversions = Conversions::new(cluster, kind);
            if kind.versions().is_none() {
                with_manager(kind, part, writer, true, &conversions, |fields| fields.update(Some(old), new, &writer.manager));
                return Ok(());
            }
            loop {
                let mut tracked = new.clone();
                with_manager(kind, part, writer, true, &conversions, |fields| fields.update(Some(old), &mut tracked, &writer.manager));
                if !conversions.resolve(kind).await? {
                    *new = tracked;
                    break;
                }
            }
        }
        None => put_owners(new, owners(old)),
    }
    Ok(())
}

/// Writes who owns what the server itself has changed in an object; without an old state it is new. Only kinds in one version are written so.
pub fn track_own(cluster: &Cluster, kind: &Kind, writer: &FieldWriter, old: Option<&Value>, new: &mut Value) {
    let conversions = Conversions::new(cluster, kind);
    if old.is_some() && kind.has_status() {
        // First, because a write of a part starts from the stored owners.
        let status = FieldWriter { subresource: "status".into(), ..writer.clone() };
        with_manager(kind, Part::Status, &status, true, &conversions, |fields| fields.update(old, new, &writer.manager));
    }
    with_manager(kind, Part::Main, writer, true, &conversions, |fields| fields.update(old, new, &writer.manager));
}

/// An empty list of owners forgets them all. Decoding drops empty lists, so it becomes upstream's other way to say that: an empty entry.
pub fn keep_reset(mut object: Value) -> Value {
    if let Some(owners) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut)
        && owners.is_empty()
    {
        owners.push(json!({}));
    }
    object
}

/// `metadata.managedFields`.
pub fn owners(object: &Value) -> Option<Value> {
    object::lookup(object, &["metadata", "managedFields"]).cloned()
}

/// Takes `metadata.managedFields` out of an object. Its place among the members is kept for [`put_owners`].
pub fn take_owners(object: &mut Value) -> Option<Value> {
    object.pointer_mut("/metadata/managedFields").map(Value::take).filter(|owners| !owners.is_null())
}

/// Sets or removes `metadata.managedFields`.
pub fn put_owners(object: &mut Value, owners: Option<Value>) {
    match owners {
        Some(owners) => drop(object::metadata(object).insert("managedFields".into(), owners)),
        None => drop(object::metadata(object).shift_remove("managedFields")),
    }
}

/// What the object's owners were before admission comes back when admission has broken them.
pub fn repair_owners(context: &WriteContext, object: &mut Value, before: Option<Value>) {
    let found = object::lookup(object, &["metadata", "managedFields"]);
    if found != before.as_ref()
        && let Err(error) = managed::validate(found.unwrap_or(&Value::Null))
    {
        context.warn(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {error}"
        ));
        put_owners(object, before);
    }
}

/// A write that only changes times of owners is none.
pub fn keep_times(old: &Value, new: &mut Value) {
    managed::keep_times(old, new);
}

/// Applies a configuration to an object as clients of the kind see it; without one, to nothing.
/// Where owners use other versions, `conversions` may have to be resolved and the work repeated.
pub fn apply(
    kind: &Kind,
    part: Part,
    writer: &FieldWriter,
    live: Option<&Value>,
    config: &Value,
    force: bool,
    conversions: &Conversions<'_>,
) -> Result<Value, ApiError> {
    with_manager(kind, part, writer, false, conversions, |fields| fields.apply(live, config, &writer.manager, force)).map_err(apply_error)
}

/// Applies a configuration to a Scale.
pub fn apply_scale(writer: &FieldWriter, live: &Value, config: &Value, force: bool) -> Result<Value, ApiError> {
    let Some(of) = tree().find("io.k8s.api.autoscaling.v1.Scale") else {
        return Err(ApiError::internal("no type of Scale"));
    };
    let fields = FieldManager {
        of,
        api_version: "autoscaling/v1",
        kind: "Scale",
        subresource: &writer.subresource,
        reset: &|_| ResetFields::These(FieldSet::of_names(&[&["status"]])),
        convert: &kube_schema::manager::one_version,
        now: writer.now,
    };
    fields.apply(Some(live), config, &writer.manager, force).map_err(apply_error)
}

fn apply_error(error: ApplyError) -> ApiError {
    match error {
        ApplyError::BadRequest(text) => ApiError::bad_request(text),
        // Upstream returns these as they are, without a reason.
        ApplyError::Internal(text) => ApiError::new(500, "", text),
        ApplyError::Conflicts(conflicts) => {
            let cause = |conflict: &kube_schema::conflict::Conflict| json!({"reason": "FieldManagerConflict", "message": conflict.message(), "field": conflict.field()});
            let causes: Vec<Value> = conflicts.0.iter().map(cause).collect();
            ApiError { details: Some(json!({"causes": causes})), ..ApiError::new(409, "Conflict", conflicts.message()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_types_makes_a_tree() {
        assert!(tree().names().count() > 100);
        for kind in kinds::builtin().all() {
            let Some(name) = kind.schema_type().filter(|name| crate::schema::types::find(name).is_some()) else { continue };
            assert_eq!(&*type_of(kind, None).node().name, name);
        }
    }

    #[test]
    fn owners_that_admission_broke_come_back() {
        let context = WriteContext::new(crate::authn::UserInfo::new("a", &[]), false);
        let good = json!([{"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]);
        let mut object = json!({"metadata": {"managedFields": [{"manager": "a"}]}});
        repair_owners(&context, &mut object, Some(good.clone()));
        assert_eq!(object["metadata"]["managedFields"], good);
        let warning = context.take_warnings().concat();
        assert!(warning.ends_with("please fix your requests: operation must be `Apply` or `Update`"), "{warning}");
        repair_owners(&context, &mut object, None);
        assert_eq!((&object["metadata"]["managedFields"], context.take_warnings()), (&good, vec![]));
    }

    #[test]
    fn views_are_owned_in_their_stored_form() {
        let events = kinds::builtin().find("events.k8s.io", "v1", "events").unwrap();
        assert_eq!(&*stored_type(events, None).node().name, "io.k8s.api.core.v1.Event");
    }
}
