//! `metadata.managedFields`: who owns which fields, decoded and encoded.

use crate::set::FieldSet;
use jiff::Timestamp;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

impl Operation {
    fn text(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// What tells managers apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    /// The name.
    pub manager: String,
    /// How it writes.
    pub operation: Operation,
    /// Empty for [`Operation::Apply`]: an applier is the same in every version.
    pub api_version: String,
    /// Empty for the object itself.
    pub subresource: String,
}

impl ManagerId {
    /// The identity of a manager that writes in this version.
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> ManagerId {
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        let manager = if manager.is_empty() { "unknown" } else { manager };
        ManagerId { manager: manager.into(), operation, api_version: api_version.into(), subresource: subresource.into() }
    }
}

/// What a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The fields.
    pub set: FieldSet,
    /// The version that the fields are of.
    pub api_version: String,
    /// Whether it applied them.
    pub applied: bool,
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// What each owns.
    pub fields: BTreeMap<ManagerId, Owned>,
    /// When each wrote last.
    pub times: BTreeMap<ManagerId, Timestamp>,
}

/// Why managedFields cannot be decoded. Texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagedError {
    /// Neither operation.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// No version.
    #[error("apiVersion must not be empty")]
    NoVersion,
    /// No type.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoType(usize),
    /// Another type.
    #[error("invalid fieldsType {0:?} in managed fields entry {1}")]
    Type(String, usize),
    /// A set that cannot be read.
    #[error("error decoding versioned set from managed fields entry {0}: error decoding set: {1}")]
    Set(usize, crate::set::FieldsError),
}

fn text<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry[name].as_str().unwrap_or_default()
}

impl Managed {
    /// Decodes `metadata.managedFields`; something else than a list has no entries.
    pub fn decode(entries: &Value) -> Result<Managed, ManagedError> {
        let mut managed = Managed::default();
        for (index, entry) in entries.as_array().into_iter().flatten().enumerate() {
            let operation = match text(entry, "operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(ManagedError::Operation),
            };
            let api_version = text(entry, "apiVersion");
            if api_version.is_empty() {
                return Err(ManagedError::NoVersion);
            }
            match text(entry, "fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagedError::NoType(index)),
                other => return Err(ManagedError::Type(other.into(), index)),
            }
            let id = ManagerId { manager: text(entry, "manager").into(), ..ManagerId::new("-", operation, api_version, text(entry, "subresource")) };
            let set = FieldSet::from_json(&entry["fieldsV1"]).map_err(|error| ManagedError::Set(index, error))?;
            match text(entry, "time").parse() {
                Ok(time) => drop(managed.times.insert(id.clone(), time)),
                Err(_) => drop(managed.times.remove(&id)),
            }
            managed.fields.insert(id, Owned { set, api_version: api_version.into(), applied: operation == Operation::Apply });
        }
        Ok(managed)
    }

    /// The entries in upstream's order; none when nobody owns anything.
    pub fn encode(&self) -> Option<Value> {
        let seconds = |id: &ManagerId| self.times.get(id).map_or(0, |time| time.as_second());
        let mut entries: Vec<(&ManagerId, &Owned)> = self.fields.iter().collect();
        entries.sort_by(|(left, left_owned), (right, right_owned)| {
            let key = |id: &ManagerId| (id.operation, seconds(id));
            let names =
                || (&left.manager, &left_owned.api_version, &left.subresource).cmp(&(&right.manager, &right_owned.api_version, &right.subresource));
            key(left).cmp(&key(right)).then_with(names)
        });
        let entries: Vec<Value> = entries.into_iter().map(|(id, owned)| self.entry(id, owned)).collect();
        (!entries.is_empty()).then_some(Value::Array(entries))
    }

    fn entry(&self, id: &ManagerId, owned: &Owned) -> Value {
        let mut entry = Map::new();
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                entry.insert(name.into(), value.into());
            }
        };
        put("manager", &id.manager);
        put("operation", id.operation.text());
        put("apiVersion", &owned.api_version);
        put("time", &self.times.get(id).map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default());
        put("fieldsType", "FieldsV1");
        entry.insert("fieldsV1".into(), owned.set.to_json());
        if !id.subresource.is_empty() {
            entry.insert("subresource".into(), id.subresource.as_str().into());
        }
        Value::Object(entry)
    }
}

/// Checks `metadata.managedFields` that a client or a webhook wrote.
pub fn validate(entries: &Value) -> Result<(), ManagedError> {
    Managed::decode(entries).map(drop)
}

/// Undoes changes of times in `new` when nothing else differs from `old`: such a write is none. Entries are compared in any order, since they
/// are sorted by time.
pub fn keep_times(old: &Value, new: &mut Value) {
    fn entries(object: &Value) -> &[Value] {
        object["metadata"]["managedFields"].as_array().map_or(&[], Vec::as_slice)
    }
    let (old_entries, new_entries) = (entries(old), entries(new));
    if new_entries.is_empty() || old_entries.len() != new_entries.len() {
        return;
    }
    let is_known = |new: &Value| old_entries.iter().any(|old| same_but(old, new, "time"));
    if old_entries == new_entries || !new_entries.iter().all(is_known) {
        return;
    }
    let (Some(old_members), Some(new_members)) = (old.as_object(), new.as_object()) else { return };
    let same = old_members.len() == new_members.len()
        && old_members.iter().all(|(name, value)| match new_members.get(name) {
            Some(other) if name == "metadata" => same_but(value, other, "managedFields"),
            Some(other) => crate::value::equal(value, other),
            None => false,
        });
    if same && let Some(place) = new.pointer_mut("/metadata/managedFields") {
        *place = Value::Array(old_entries.to_vec());
    }
}

fn same_but(left: &Value, right: &Value, ignored: &str) -> bool {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else { return left == right };
    let covered = |left: &Map<String, Value>, right: &Map<String, Value>| {
        left.iter().all(|(name, value)| name == ignored || right.get(name).is_some_and(|other| crate::value::equal(value, other)))
    };
    covered(left, right) && covered(right, left)
}
