//! Each kind's strategy: what a creation starts with, which members an update of a part may change, when the generation rises
//! (pkg/registry/*/strategy.go).

use super::{Part, pod, service};
use crate::kinds::KindInfo;
use crate::object;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// Whether the kind has a status that only its status subresource writes.
fn has_status(kind: &KindInfo) -> bool {
    kind.subresources.contains(&"status")
}

/// Whether upstream counts the generations of this kind.
fn counts_generations(kind: &KindInfo) -> bool {
    matches!(
        (kind.group, kind.plural),
        ("", "pods" | "replicationcontrollers")
            | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
            | ("batch", _)
            | ("discovery.k8s.io", "endpointslices")
            | ("networking.k8s.io", "ingresses" | "networkpolicies")
            | ("policy", "poddisruptionbudgets")
    )
}

/// Where apps/v1 keeps a field of extensions/v1beta1: how often a DaemonSet's template changed.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn is_daemon_set(kind: &KindInfo) -> bool {
    kind.group == "apps" && kind.plural == "daemonsets"
}

fn count_template(object: &mut Value, generation: i64) {
    let annotations = object::metadata(object).entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(TEMPLATE_GENERATION.into(), generation.to_string().into());
    }
}

/// Sets what a creation does not leave to the client.
pub fn prepare_create(kind: &KindInfo, object: &mut Value) {
    if has_status(kind) && !matches!((kind.group, kind.plural), ("", "nodes")) {
        // Nodes register with their status; every other status starts empty.
        if let Some(map) = object.as_object_mut() {
            map.shift_remove("status");
        }
    }
    if counts_generations(kind) {
        object::metadata(object).insert("generation".into(), 1.into());
    }
    if is_daemon_set(kind) {
        count_template(object, 1);
    }
    match (kind.group, kind.plural) {
        ("", "pods") => {
            let status = pod::initial_status(object);
            set(object, "status", status);
        }
        ("", "namespaces") => prepare_namespace(object),
        ("", "secrets") => merge_string_data(object),
        ("", "services") => set(object, "status", json!({"loadBalancer": {}})),
        ("apps", "replicasets") => set(object, "status", json!({"replicas": 0})),
        ("apps", "deployments") => set(object, "status", json!({})),
        ("apps", "daemonsets") => {
            let counts = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
            set(object, "status", counts);
        }
        ("", "persistentvolumes") => set(object, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": object::now()})),
        ("", "persistentvolumeclaims") => set(object, "status", json!({"phase": "Pending"})),
        ("policy", "poddisruptionbudgets") => {
            let counts = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
            set(object, "status", counts);
        }
        _ => {}
    }
}

/// Puts back what an update of `part` may not change, and counts the generation.
pub fn prepare_update(kind: &KindInfo, part: Part, old: &Value, new: &mut Value) {
    match part {
        Part::Main => {
            if has_status(kind) {
                object::copy_member(old, new, "status");
            }
            if kind.plural == "namespaces" {
                let finalizers = old.get("spec").cloned().unwrap_or_else(|| json!({}));
                set(new, "spec", finalizers);
            }
            if kind.group.is_empty() && kind.plural == "secrets" {
                merge_string_data(new);
            }
            if kind.group.is_empty() && kind.plural == "services" {
                service::prepare_update(old, new);
            }
        }
        Part::Status => {
            restore_all_but_status(kind, old, new);
            if kind.group.is_empty() && kind.plural == "persistentvolumes" {
                note_phase(old, new);
            }
        }
        Part::EphemeralContainers => {
            let containers = object::lookup(new, &["spec", "ephemeralContainers"]).cloned();
            *new = old.clone();
            if let Some(containers) = containers {
                object::map_mut(new, "spec").insert("ephemeralContainers".into(), containers);
            }
        }
        Part::Finalize => {
            let finalizers = object::lookup(new, &["spec", "finalizers"]).cloned().unwrap_or_else(|| json!([]));
            let mut kept = old.clone();
            object::map_mut(&mut kept, "spec").insert("finalizers".into(), finalizers);
            *new = kept;
        }
        Part::Internal => {}
    }
    if is_daemon_set(kind) {
        let before = object::text(old, &["metadata", "annotations", TEMPLATE_GENERATION]).parse().unwrap_or(1);
        let changed = object::lookup(old, &["spec", "template"]) != object::lookup(new, &["spec", "template"]);
        count_template(new, if changed { before + 1 } else { before });
    }
    if counts_generations(kind) && content_changed(kind, old, new) {
        let generation = object::integer(old, &["metadata", "generation"]).unwrap_or_default();
        object::metadata(new).insert("generation".into(), (generation + 1).into());
    }
}

/// A volume says when its phase changed.
fn note_phase(old: &Value, new: &mut Value) {
    let phase = |object: &Value| object::text(object, &["status", "phase"]).to_string();
    let status = object::map_mut(new, "status");
    let unnoted = status.get("lastPhaseTransitionTime") == object::lookup(old, &["status", "lastPhaseTransitionTime"]);
    if unnoted && phase(old) != status.get("phase").and_then(Value::as_str).unwrap_or_default() {
        status.insert("lastPhaseTransitionTime".into(), object::now().into());
    }
}

/// A status update keeps the old spec and most of the old metadata.
fn restore_all_but_status(kind: &KindInfo, old: &Value, new: &mut Value) {
    let status = new.get("status").cloned();
    let metadata = new.get("metadata").cloned();
    let mut kept = old.clone();
    if let Some(map) = kept.as_object_mut() {
        match status {
            Some(status) => drop(map.insert("status".into(), status)),
            None => drop(map.shift_remove("status")),
        }
    }
    // Pods, Nodes and Services let labels and annotations through (their strategies reset less than apps' do).
    if kind.group.is_empty() {
        let target = object::metadata(&mut kept);
        for member in ["labels", "annotations", "finalizers"] {
            match metadata.as_ref().and_then(|metadata| metadata.get(member)) {
                Some(value) => drop(target.insert(member.into(), value.clone())),
                None => drop(target.shift_remove(member)),
            }
        }
    }
    *new = kept;
}

/// Everything but metadata and status, for EndpointSlices metadata's labels too.
fn content_changed(kind: &KindInfo, old: &Value, new: &Value) -> bool {
    let differs = |member: &str| old.get(member) != new.get(member);
    if kind.group == "discovery.k8s.io" {
        let labels = ["metadata", "labels"];
        return differs("endpoints") || differs("ports") || object::lookup(old, &labels) != object::lookup(new, &labels);
    }
    differs("spec")
}

fn prepare_namespace(object: &mut Value) {
    let name = object::name(object).to_string();
    let labels = object::metadata(object).entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut().filter(|_| !name.is_empty()) {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
    let finalizers = object::map_mut(object, "spec").entry("finalizers").or_insert_with(|| json!([]));
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
    {
        finalizers.push("kubernetes".into());
    }
    set(object, "status", json!({"phase": "Active"}));
}

/// `stringData` is write-only: encoded into `data`.
fn merge_string_data(object: &mut Value) {
    let Some(Value::Object(plain)) = object.as_object_mut().and_then(|map| map.shift_remove("stringData")) else { return };
    let data = object::map_mut(object, "data");
    for (key, value) in plain {
        data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
    }
}

fn set(object: &mut Value, member: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert(member.to_string(), value);
    }
}

/// Removes members that are `null`: Go's decoder treats them as absent.
pub fn drop_nulls(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, version: &str, plural: &str) -> &'static KindInfo {
        crate::kinds::by_resource(group, version, plural).unwrap()
    }

    #[test]
    fn a_new_pod_is_pending_whatever_it_says() {
        let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {"phase": "Running"}});
        prepare_create(kind("", "v1", "pods"), &mut pod);
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
        assert_eq!(pod["metadata"]["generation"], 1);
    }

    #[test]
    fn parts_change_only_what_is_theirs() {
        let deployments = kind("apps", "v1", "deployments");
        let old = json!({"metadata": {"name": "a", "generation": 1}, "spec": {"replicas": 1}, "status": {"replicas": 1}});
        let changed = json!({"metadata": {"name": "a", "generation": 1}, "spec": {"replicas": 2}, "status": {"replicas": 2}});
        let mut main = changed.clone();
        prepare_update(deployments, Part::Main, &old, &mut main);
        assert_eq!((&main["spec"], &main["status"], &main["metadata"]["generation"]), (&changed["spec"], &old["status"], &json!(2)));
        let mut status = changed.clone();
        prepare_update(deployments, Part::Status, &old, &mut status);
        assert_eq!((&status["spec"], &status["status"], &status["metadata"]["generation"]), (&old["spec"], &changed["status"], &json!(1)));
    }

    #[test]
    fn daemon_sets_count_their_templates() {
        let sets = kind("apps", "v1", "daemonsets");
        let mut set = json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": {}}, "minReadySeconds": 1}});
        prepare_create(sets, &mut set);
        let counted = |set: &Value| set["metadata"]["annotations"][TEMPLATE_GENERATION].clone();
        assert_eq!(counted(&set), "1");
        let mut other = set.clone();
        other["metadata"]["annotations"] = json!({"own": "kept"});
        other["spec"]["minReadySeconds"] = 2.into();
        prepare_update(sets, Part::Main, &set, &mut other);
        assert_eq!((counted(&other), &other["metadata"]["generation"]), (json!("1"), &json!(2)));
        other["spec"]["template"]["spec"]["hostNetwork"] = true.into();
        prepare_update(sets, Part::Main, &set, &mut other);
        assert_eq!((counted(&other), &other["metadata"]["annotations"]["own"]), (json!("2"), &json!("kept")));
    }

    #[test]
    fn namespaces_carry_their_name_and_finalizer() {
        let namespaces = kind("", "v1", "namespaces");
        let mut namespace = json!({"metadata": {"name": "a"}});
        prepare_create(namespaces, &mut namespace);
        assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
        assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
        let mut emptied = namespace.clone();
        emptied["spec"]["finalizers"] = json!([]);
        let mut main = emptied.clone();
        prepare_update(namespaces, Part::Main, &namespace, &mut main);
        assert_eq!(main["spec"]["finalizers"], json!(["kubernetes"]));
        prepare_update(namespaces, Part::Finalize, &namespace, &mut emptied);
        assert_eq!(emptied["spec"]["finalizers"], json!([]));
    }

    #[test]
    fn string_data_becomes_data() {
        let mut secret = json!({"metadata": {"name": "a"}, "data": {"a": "AA=="}, "stringData": {"b": "hi"}});
        prepare_create(kind("", "v1", "secrets"), &mut secret);
        assert_eq!(secret["data"], json!({"a": "AA==", "b": "aGk="}));
        assert!(secret.get("stringData").is_none());
    }
}
