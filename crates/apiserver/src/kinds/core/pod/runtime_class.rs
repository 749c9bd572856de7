//! RuntimeClass: a pod's overhead, node selector and tolerations from its class (plugin/pkg/admission/runtimeclass).

use crate::kind::{Cluster, Kind};
use crate::object;
use crate::status::ApiError;
use serde_json::{Map, Value, json};

/// Checks and completes a new pod.
pub(super) fn apply(cluster: &Cluster, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
    let name = object::text(pod, &["spec", "runtimeClassName"]);
    let class = if name.is_empty() {
        None
    } else {
        let stored = cluster.store.get(&format!("node.k8s.io/runtimeclasses//{name}"));
        let why = format!("pod rejected: RuntimeClass {name:?} not found");
        Some(stored.ok_or_else(|| ApiError::forbidden(kind, object::name(pod), &why))?.value())
    };
    merge(class.as_ref(), pod).map_err(|why| ApiError::forbidden(kind, object::name(pod), &why))
}

fn merge(class: Option<&Value>, pod: &mut Value) -> Result<(), String> {
    let overhead = class.and_then(|class| object::lookup(class, &["overhead", "podFixed"]));
    match (overhead, object::lookup(pod, &["spec", "overhead"])) {
        (None, Some(own)) if own != &json!({}) => {
            return Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".into());
        }
        (Some(fixed), Some(own)) if own != fixed => {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into());
        }
        (Some(fixed), _) => drop(object::map_mut(pod, "spec").insert("overhead".into(), fixed.clone())),
        (None, _) => {}
    }
    let Some(placement) = class.and_then(|class| object::lookup(class, &["scheduling"])) else { return Ok(()) };
    let selector = object::lookup(placement, &["nodeSelector"]).and_then(Value::as_object);
    let spec = object::map_mut(pod, "spec");
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        let own = spec.entry("nodeSelector").or_insert_with(|| Value::Object(Map::new()));
        for (key, value) in selector {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            if let Some(found) = own.get(key).filter(|found| *found != value) {
                let (wanted, found) = (text(value), text(found));
                return Err(format!("conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {found}"));
            }
            own[key.as_str()] = value.clone();
        }
    }
    let tolerations = object::list(placement, &["tolerations"]);
    if !tolerations.is_empty() {
        let own = object::array_mut(spec, "tolerations");
        for toleration in tolerations {
            if !own.contains(toleration) {
                own.push(toleration.clone());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_brings_overhead_and_placement() {
        let class = json!({"handler": "h", "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"}, "tolerations": [{"key": "a", "operator": "Exists"}]}});
        let mut pod = json!({"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}, "tolerations": [{"key": "a", "operator": "Exists"}]}});
        merge(Some(&class), &mut pod).unwrap();
        assert_eq!(pod["spec"]["overhead"], json!({"cpu": "250m"}));
        assert_eq!(pod["spec"]["nodeSelector"], json!({"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": "10.0.20348"}));
        assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn what_contradicts_the_class_is_refused() {
        let class = json!({"scheduling": {"nodeSelector": {"kubernetes.io/os": "windows"}}});
        let error = merge(Some(&class), &mut json!({"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}})).unwrap_err();
        assert_eq!(
            error,
            "conflict: runtimeClass.scheduling.nodeSelector[kubernetes.io/os] = windows; pod.spec.nodeSelector[kubernetes.io/os] = linux"
        );
        let overhead = json!({"spec": {"overhead": {"cpu": "1"}}});
        assert!(merge(None, &mut overhead.clone()).unwrap_err().starts_with("pod rejected: Pod Overhead set without"));
        let other = json!({"overhead": {"podFixed": {"cpu": "2"}}});
        assert!(merge(Some(&other), &mut overhead.clone()).unwrap_err().contains("doesn't match"));
    }
}
