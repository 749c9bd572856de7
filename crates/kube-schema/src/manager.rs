//! The field manager (apimachinery pkg/util/managedfields): keeps `metadata.managedFields` on writes, and applies configurations.

use crate::conflict::Conflicts;
use crate::last_applied;
use crate::managed::{Managed, ManagerId, Operation, Owned};
use crate::schema::Type;
use crate::set::FieldSet;
use crate::typed::Duplicates;
pub use crate::update::{Convert, Reset, ResetFields};
use crate::update::{UpdateError, Updater, Versioned};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Most entries of updates; the oldest of more become one.
const MOST_UPDATES: usize = 10;

/// Who owns what the oldest updates owned.
const ANCIENT: &str = "ancient-changes";

/// Who owns what was there before an object's owners were kept.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Longest name of a manager, in bytes.
const LONGEST_NAME: usize = 128;

/// The manager of the fields of one kind, for one request.
pub struct FieldManager<'a, 'f> {
    /// The type of the object that is written.
    pub of: Type<'a>,
    /// `GROUP/VERSION` of the request.
    pub api_version: &'f str,
    /// The kind of the request.
    pub kind: &'f str,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'f str,
    /// The fields that a write of this part never owns.
    pub reset: &'f Reset<'f>,
    /// How other versions are reached. A kind with one version has [`one_version`].
    pub convert: &'f Convert<'a, 'f>,
    /// The time that entries get.
    pub now: Timestamp,
}

/// The conversion of a kind that has no other version.
pub fn one_version<'a>(_: &Value, _: &str) -> Result<Option<(Type<'a>, Value)>, String> {
    Ok(None)
}

/// Why an apply fails. Texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// Others own what would change: status 409.
    Conflicts(Conflicts),
    /// The configuration is no such object: status 400.
    BadRequest(String),
    /// The configuration or the live object does not fit the schema: status 500.
    Internal(String),
}

/// The name of the manager that writes: what the request names, else the program at the start of its user agent.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_string();
    }
    let program = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for letter in program.chars().filter(|letter| !letter.is_control()) {
        if name.len() + letter.len_utf8() > LONGEST_NAME {
            break;
        }
        name.push(letter);
    }
    name
}

fn entries(object: &Value) -> &Value {
    &object["metadata"]["managedFields"]
}

/// Whether the client asks to forget all owners: with an empty list, or one empty entry.
fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}

fn set_entries(object: &mut Value, managed: &Managed) {
    let entries = managed.encode();
    let Some(members) = object.as_object_mut() else { return };
    if entries.is_none() && !members.contains_key("metadata") {
        return;
    }
    let Some(meta) = members.entry("metadata").or_insert_with(|| json!({})).as_object_mut() else { return };
    match entries {
        Some(entries) => drop(meta.insert("managedFields".into(), entries)),
        None => drop(meta.shift_remove("managedFields")),
    }
}

fn without_entries(object: &Value) -> Value {
    let mut object = object.clone();
    drop_entries(&mut object);
    object
}

fn drop_entries(object: &mut Value) {
    if let Some(meta) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.shift_remove("managedFields");
    }
}

/// `NAMESPACE/NAME; GROUP/VERSION, Kind=KIND`, as errors name an object.
fn printed(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let meta = &object["metadata"];
    format!("{}/{}; {}", text(&meta["namespace"]), text(&meta["name"]), printed_kind(object))
}

fn printed_kind(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    format!("{group}/{version}, Kind={}", object["kind"].as_str().unwrap_or_default())
}

/// Fields of every object that nobody owns.
fn stripped() -> &'static FieldSet {
    static STRIPPED: OnceLock<FieldSet> = OnceLock::new();
    STRIPPED.get_or_init(|| {
        let meta = ["name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "managedFields", "resourceVersion"];
        let above = FieldSet::of_names(&[&["apiVersion"], &["kind"], &["metadata"]]);
        meta.iter().fold(above, |set, name| set.union(&FieldSet::of_names(&[&["metadata", name]])))
    })
}

fn strip(managed: &mut Managed, id: &ManagerId) {
    if let Some(owned) = managed.fields.get_mut(id) {
        owned.set = owned.set.difference(stripped());
        if owned.set.is_empty() {
            managed.fields.remove(id);
        }
    }
}

impl<'a, 'f> FieldManager<'a, 'f> {
    fn updater(&self) -> Updater<'a, 'f> {
        Updater { convert: self.convert, reset: self.reset }
    }

    fn versioned<'v>(&'v self, value: &'v Value) -> Versioned<'v, 'a> {
        Versioned { of: self.of, version: self.api_version, value: Cow::Borrowed(value) }
    }

    fn empty(&self) -> Value {
        json!({"apiVersion": self.api_version, "kind": self.kind})
    }

    /// Writes into `new` who owns its fields after `manager` wrote it in any way but apply. `live` is what was stored; none for a
    /// creation. An object that does not fit its schema is left without owners.
    pub fn update(&self, live: Option<&Value>, new: &mut Value, manager: &str) {
        let managed = self.starting_point(live, new);
        drop_entries(new);
        let tracked = match live {
            Some(_) if managed.fields.is_empty() => Ok(managed),
            Some(live) => self.updated(live, new, managed, manager),
            None => self.updated(&self.empty(), new, managed, manager),
        };
        if let Ok(managed) = tracked {
            set_entries(new, &managed);
        }
    }

    /// The owners that the request starts from: those that it sends, else those of the live object.
    fn starting_point(&self, live: Option<&Value>, new: &Value) -> Managed {
        let stored = || live.and_then(|live| Managed::decode(entries(live)).ok()).unwrap_or_default();
        if !self.subresource.is_empty() {
            return stored();
        }
        if is_reset(entries(new)) {
            return Managed::default();
        }
        match Managed::decode(entries(new)) {
            Ok(managed) if !managed.fields.is_empty() => managed,
            _ => stored(),
        }
    }

    fn updated(&self, live: &Value, new: &Value, managed: Managed, manager: &str) -> Result<Managed, String> {
        self.of.validate(new, Duplicates::Allowed).map_err(|error| error.to_string())?;
        self.of.validate(live, Duplicates::Allowed).map_err(|error| error.to_string())?;
        // An identity that no entry has: the changes of this request alone.
        let current = ManagerId { api_version: String::new(), ..ManagerId::new("current-operation", Operation::Update, "", "") };
        let fields = self.updater().update(&self.versioned(live), &self.versioned(new), managed.fields, &current);
        let fields = fields.map_err(|error| match error {
            UpdateError::Other(text) => text,
            UpdateError::Conflicts(conflicts) => conflicts.message(),
        })?;
        let mut managed = Managed { fields, times: managed.times };
        strip(&mut managed, &current);
        if let Some(owned) = managed.fields.remove(&current) {
            let id = ManagerId::new(manager, Operation::Update, self.api_version, self.subresource);
            let before = managed.fields.remove(&id).map(|before| before.set).unwrap_or_default();
            managed.fields.insert(id.clone(), Owned { set: owned.set.union(&before), ..owned });
            managed.times.insert(id, self.now);
        }
        cap(&mut managed);
        Ok(managed)
    }

    /// Applies a configuration: the merged object with its owners. `live` is what is stored; none when the apply creates.
    pub fn apply(&self, live: Option<&Value>, config: &Value, manager: &str, force: bool) -> Result<Value, ApplyError> {
        if config["apiVersion"] != self.api_version || config["kind"] != self.kind {
            return Err(ApplyError::BadRequest(format!("invalid object type: {}", printed_kind(config))));
        }
        let empty = self.empty();
        let live = live.unwrap_or(&empty);
        let managed = Managed::decode(entries(live)).map_err(|error| ApplyError::Internal(format!("failed to decode managed fields: {error}")))?;
        let applied = match self.tracked_apply(live, config, managed.clone(), manager, force) {
            Err(ApplyError::Conflicts(conflicts)) if manager == "kubectl" => match last_applied::owned(self.of, self.api_version, live) {
                Some(allowed) if conflicts.set().difference(&allowed).is_empty() => self.tracked_apply(live, config, managed, manager, true),
                Some(allowed) => {
                    let left = conflicts.0.into_iter().filter(|conflict| !allowed.has(&conflict.path));
                    Err(ApplyError::Conflicts(Conflicts(left.collect())))
                }
                None => Err(ApplyError::Conflicts(conflicts)),
            },
            other => other,
        };
        let (mut object, managed) = applied?;
        if manager == "kubectl" {
            last_applied::refresh(&mut object, config);
        }
        set_entries(&mut object, &managed);
        Ok(object)
    }

    /// The merged object without entries, and the owners.
    fn tracked_apply(&self, live: &Value, config: &Value, managed: Managed, manager: &str, force: bool) -> Result<(Value, Managed), ApplyError> {
        let mut managed = managed;
        if managed.fields.is_empty() {
            managed = self
                .updated(&self.empty(), &without_entries(live), managed, BEFORE_FIRST_APPLY)
                .map_err(|error| ApplyError::Internal(format!("failed to create manager for existing fields: {error}")))?;
        }
        if entries(config).is_array() {
            return Err(ApplyError::BadRequest("metadata.managedFields must be nil".into()));
        }
        self.of
            .validate(config, Duplicates::Refused)
            .map_err(|error| ApplyError::Internal(format!("failed to create typed patch object ({}): {error}", printed(config))))?;
        self.of
            .validate(live, Duplicates::Allowed)
            .map_err(|error| ApplyError::Internal(format!("failed to create typed live object ({}): {error}", printed(live))))?;
        let id = ManagerId::new(manager, Operation::Apply, self.api_version, self.subresource);
        let applied = self.updater().apply(&self.versioned(live), &self.versioned(config), managed.fields, &id, force);
        let (value, fields) = applied.map_err(|error| match error {
            UpdateError::Conflicts(conflicts) => ApplyError::Conflicts(conflicts),
            UpdateError::Other(text) => ApplyError::Internal(text),
        })?;
        let mut managed = Managed { fields, times: managed.times };
        strip(&mut managed, &id);
        if value.is_some() {
            managed.times.insert(id, self.now);
        }
        Ok((without_entries(value.as_ref().unwrap_or(live)), managed))
    }
}

/// Puts the oldest entries of updates together, one for each version, until few enough are left.
fn cap(managed: &mut Managed) {
    let mut updates: Vec<ManagerId> = managed.fields.iter().filter(|(_, owned)| !owned.applied).map(|(id, _)| id.clone()).collect();
    let mut left = updates.len();
    updates.sort_by_key(|id| (managed.times.get(id).map_or(0, |time| time.as_second()), id.clone()));
    let mut first_of: BTreeMap<String, ManagerId> = BTreeMap::new();
    for id in updates {
        if left <= MOST_UPDATES {
            break;
        }
        let Some(owned) = managed.fields.get(&id).cloned() else { continue };
        let Some(first) = first_of.get(&owned.api_version) else {
            first_of.insert(owned.api_version, id);
            continue;
        };
        let bucket = ManagerId::new(ANCIENT, Operation::Update, &owned.api_version, "");
        if !managed.fields.contains_key(&bucket)
            && let Some(oldest) = managed.fields.remove(first)
        {
            managed.fields.insert(bucket.clone(), oldest);
        }
        let before = managed.fields.get(&bucket).map(|before| before.set.clone()).unwrap_or_default();
        managed.fields.remove(&id);
        managed.fields.insert(bucket.clone(), Owned { set: owned.set.union(&before), ..owned });
        match managed.times.get(&id).copied() {
            Some(time) => drop(managed.times.insert(bucket, time)),
            None => drop(managed.times.remove(&bucket)),
        }
        left -= 1;
    }
}
