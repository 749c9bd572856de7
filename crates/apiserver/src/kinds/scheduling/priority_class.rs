//! PriorityClasses: one default at most, and the system's own (plugin/pkg/admission/priority).

use crate::defaults::set;
use crate::kind::Kind;
use crate::kind::{Attributes, Cluster};
use crate::object;
use crate::status::ApiError;
use crate::table::text::get;
use crate::table::{AGE, NAME, age, flag, name, number, text};
use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use k8s_openapi::api::scheduling;
use serde_json::{Value, json};

pub const PREFIX: &str = "scheduling.k8s.io/priorityclasses//";
/// Largest priority of a class that is not the system's.
const HIGHEST: i64 = 1_000_000_000;

/// The classes that are always there: name, value, description.
pub const SYSTEM_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
];

pub fn kind() -> Kind {
    Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "io.k8s.api.scheduling.v1.PriorityClass")
        .described_by::<scheduling::v1::PriorityClass>()
        .cluster()
        .short(&["pc"])
        .defaults(|object| set(object, "preemptionPolicy", || "PreemptLowerPriority".into())) // fn defaults
        .validate(validate)
        .admit_create(check_class)
        .admit_update(check_class)
        .admit_delete(check_deletion)
        .table([NAME, number("Value"), flag("Global-Default"), AGE, text("PreemptionPolicy")], cells)
}

/// The objects of [`SYSTEM_CLASSES`].
pub fn system_classes() -> impl Iterator<Item = Value> {
    SYSTEM_CLASSES.into_iter().map(|(name, value, description)| json!({"metadata": {"name": name}, "value": value, "description": description}))
}

/// A new or changed PriorityClass.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (name, value) = (new.get("metadata").get("name"), new.get("value"));
    if let Some(old) = old {
        if value.number().unwrap_or_default() != old.get("value").number().unwrap_or_default() {
            errors.forbidden(&value, "may not be changed in an update.");
        }
        return errors.immutable(&new.get("preemptionPolicy"), &old.get("preemptionPolicy"));
    }
    let number = value.number().unwrap_or_default();
    if name.text().starts_with("system-") {
        let problem = match SYSTEM_CLASSES.iter().find(|(known, ..)| *known == name.text()) {
            None => Some(format!("{} is not a known system priority class", name.text())),
            Some((known, wanted, _)) if *wanted != number => Some(format!("value of {known} PriorityClass must be {wanted}")),
            Some((known, ..)) if new.get("globalDefault").is_true() => Some(format!("globalDefault of {known} PriorityClass must be false")),
            Some(_) => None,
        };
        if let Some(problem) = problem {
            errors.forbidden(&name, format!("priority class names with 'system-' prefix are reserved for system use only. error: {problem}"));
        }
    } else if number > HIGHEST {
        errors.forbidden(&value, format!("maximum allowed value of a user defined priority is {HIGHEST}"));
    }
    errors.one_of_if_set(&new.get("preemptionPolicy"), &["PreemptLowerPriority", "Never"]);
}

/// The class of pods that name none; of several the one of the lowest value.
pub fn default_class(cluster: &Cluster) -> Option<Value> {
    let (_, classes) = cluster.store.list(PREFIX);
    let defaults = classes.into_iter().map(|(_, entry)| entry.value()).filter(is_default);
    defaults.min_by_key(|class| object::integer(class, &["value"]).unwrap_or_default())
}

fn is_default(class: &Value) -> bool {
    object::lookup(class, &["globalDefault"]) == Some(&Value::Bool(true))
}

/// A second default class is refused.
fn check_class(attributes: &Attributes<'_>, class: &mut Value) -> Result<(), ApiError> {
    if !is_default(class) {
        return Ok(());
    }
    match default_class(attributes.cluster).filter(|other| object::name(other) != object::name(class)) {
        Some(other) => {
            let why = format!("PriorityClass {} is already marked as default. Only one default can exist", object::name(&other));
            Err(ApiError::forbidden(attributes.kind, object::name(class), &why))
        }
        None => Ok(()),
    }
}

/// The system's classes stay.
fn check_deletion(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    if SYSTEM_CLASSES.iter().any(|(known, ..)| *known == attributes.name) {
        return Err(ApiError::forbidden(attributes.kind, attributes.name, "this is a system priority class and cannot be deleted"));
    }
    Ok(())
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        object.get("value").and_then(Value::as_i64).unwrap_or_default().into(),
        object.get("globalDefault").and_then(Value::as_bool).unwrap_or_default().into(),
        age(object, now),
        get(object, "/preemptionPolicy").into(),
    ]
}
