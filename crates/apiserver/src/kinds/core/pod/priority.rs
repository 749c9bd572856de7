//! Priority: a pod's number from its class, or from the default one (plugin/pkg/admission/priority).

use crate::kind::{Cluster, Kind};
use crate::kinds::scheduling::priority_class::{PREFIX, default_class};
use crate::object;
use crate::status::ApiError;
use serde_json::Value;

const PREEMPTS: &str = "PreemptLowerPriority";

/// Gives a new pod the number and the preemption policy of its class, or of the default class.
pub(super) fn prioritize(cluster: &Cluster, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
    let asked = object::text(pod, &["spec", "priorityClassName"]).to_string();
    let refuse = |why: String| Err(ApiError::forbidden(kind, object::name(pod), &why));
    let class = if asked.is_empty() { default_class(cluster) } else { cluster.store.get(&format!("{PREFIX}{asked}")).map(|entry| entry.value()) };
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

/// Keeps the number and the preemption policy that an update leaves out.
pub(super) fn keep(old: &Value, pod: &mut Value) {
    for field in ["priority", "preemptionPolicy"] {
        let given = object::lookup(pod, &["spec", field]).is_some_and(|value| !value.is_null());
        if let Some(kept) = object::lookup(old, &["spec", field]).filter(|_| !given) {
            object::map_mut(pod, "spec").insert(field.into(), kept.clone());
        }
    }
}
