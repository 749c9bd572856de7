//! Priority: a pod's number from its class, one default class at most (plugin/pkg/admission/priority).

use crate::kinds::KindInfo;
use crate::object;
use crate::registry::Registry;
use crate::status::ApiError;
use serde_json::{Value, json};

const PREFIX: &str = "scheduling.k8s.io/priorityclasses//";
const PREEMPTS: &str = "PreemptLowerPriority";

/// The classes that are always there: name, value, description.
pub const SYSTEM_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
];

/// The objects of [`SYSTEM_CLASSES`].
pub fn system_classes() -> impl Iterator<Item = Value> {
    SYSTEM_CLASSES.into_iter().map(|(name, value, description)| json!({"metadata": {"name": name}, "value": value, "description": description}))
}

/// Gives a new pod the number and the preemption policy of its class, or of the default class.
pub(super) fn prioritize(registry: &Registry, kind: &KindInfo, pod: &mut Value) -> Result<(), ApiError> {
    let asked = object::text(pod, &["spec", "priorityClassName"]).to_string();
    let refuse = |why: String| Err(ApiError::forbidden(kind, object::name(pod), &why));
    let class = if asked.is_empty() { default_class(registry) } else { registry.store.get(&format!("{PREFIX}{asked}")).map(|entry| entry.value()) };
    if class.is_none() && !asked.is_empty() {
        return refuse(format!("no PriorityClass with name {asked} was found"));
    }
    let priority = class.as_ref().and_then(|class| object::integer(class, &["value"])).unwrap_or_default();
    let policy = class.as_ref().map(|class| object::text(class, &["preemptionPolicy"])).filter(|policy| !policy.is_empty()).unwrap_or(PREEMPTS);
    if let Some(given) = object::integer(pod, &["spec", "priority"]).filter(|given| *given != priority) {
        return refuse(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the \
             given PriorityClass name"
        ));
    }
    let given = object::text(pod, &["spec", "preemptionPolicy"]);
    if !given.is_empty() && given != policy {
        return refuse(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from \
             the given PriorityClass name"
        ));
    }
    let name = class.as_ref().map(|class| object::name(class).to_string());
    let spec = object::map_mut(pod, "spec");
    if let Some(name) = name {
        spec.insert("priorityClassName".into(), name.into());
    }
    spec.insert("priority".into(), priority.into());
    spec.insert("preemptionPolicy".into(), policy.into());
    Ok(())
}

/// The class of pods that name none; of several the one of the lowest value.
fn default_class(registry: &Registry) -> Option<Value> {
    let (_, classes) = registry.store.list(PREFIX);
    let defaults = classes.into_iter().map(|(_, entry)| entry.value()).filter(is_default);
    defaults.min_by_key(|class| object::integer(class, &["value"]).unwrap_or_default())
}

fn is_default(class: &Value) -> bool {
    object::lookup(class, &["globalDefault"]) == Some(&Value::Bool(true))
}

/// A second default class is refused.
pub(super) fn check_class(registry: &Registry, kind: &KindInfo, class: &Value) -> Result<(), ApiError> {
    if !is_default(class) {
        return Ok(());
    }
    match default_class(registry).filter(|other| object::name(other) != object::name(class)) {
        Some(other) => {
            let why = format!("PriorityClass {} is already marked as default. Only one default can exist", object::name(&other));
            Err(ApiError::forbidden(kind, object::name(class), &why))
        }
        None => Ok(()),
    }
}

/// The system's classes stay.
pub(super) fn check_deletion(kind: &KindInfo, name: &str) -> Result<(), ApiError> {
    if SYSTEM_CLASSES.iter().any(|(known, ..)| *known == name) {
        return Err(ApiError::forbidden(kind, name, "this is a system priority class and cannot be deleted"));
    }
    Ok(())
}
