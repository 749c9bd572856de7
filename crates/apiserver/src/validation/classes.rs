//! StorageClasses, PriorityClasses and RuntimeClasses (pkg/apis/{storage,scheduling,node}/validation).

use super::field::{Errors, Field};
use super::{container, meta, names, scheduling};
use crate::admission::priority::SYSTEM_CLASSES;

/// Largest priority of a class that is not the system's.
const HIGHEST: i64 = 1_000_000_000;
const MOST_PARAMETERS: usize = 512;
const PARAMETERS_LIMIT: usize = 256 * 1024;

/// A new or changed StorageClass.
pub fn storage(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (provisioner, parameters) = (new.get("provisioner"), new.get("parameters"));
    let (policy, mode) = (new.get("reclaimPolicy"), new.get("volumeBindingMode"));
    if let Some(old) = old {
        for member in ["parameters", "provisioner", "reclaimPolicy"] {
            if new.get(member).value != old.get(member).value {
                errors.forbidden(&new.get(member), format!("updates to {member} are forbidden."));
            }
        }
        return errors.immutable(&mode, &old.get("volumeBindingMode"));
    }
    if provisioner.is_empty() {
        errors.required(&provisioner, "");
    } else {
        errors.invalid_each(&provisioner, names::qualified(&provisioner.text().to_lowercase()));
    }
    if parameters.members().count() > MOST_PARAMETERS {
        errors.too_long(&Field { path: "Provisioner Parameters Length".into(), value: parameters.value }, MOST_PARAMETERS);
    }
    let size: usize = parameters.members().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > PARAMETERS_LIMIT {
        errors.too_long(&parameters, PARAMETERS_LIMIT);
    }
    if parameters.members().any(|(key, _)| key.is_empty()) {
        errors.invalid_value(&parameters, "", "field can not be empty.");
    }
    errors.one_of_if_set(&policy, &["Delete", "Retain"]);
    errors.one_of(&mode, &["Immediate", "WaitForFirstConsumer"]);
}

/// A new or changed PriorityClass.
pub fn priority(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

/// A new or changed RuntimeClass.
pub fn runtime(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let handler = new.get("handler");
    if let Some(old) = old {
        return errors.immutable(&handler, &old.get("handler"));
    }
    errors.invalid_each(&handler, names::dns_label(handler.text()));
    let overhead = new.get("overhead").get("podFixed");
    container::quantities(&overhead, errors);
    let placement = new.get("scheduling");
    meta::labels(&placement.get("nodeSelector"), errors);
    let tolerations = placement.get("tolerations");
    scheduling::tolerations(&tolerations, errors);
    let items = tolerations.items();
    for (index, toleration) in items.iter().enumerate() {
        if items[..index].iter().any(|other| other.value == toleration.value) {
            errors.duplicate(toleration, toleration.value.clone());
        }
    }
}
