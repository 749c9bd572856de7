//! NodeRestriction and TaintNodesByCondition (plugin/pkg/admission/noderestriction, plugin/pkg/admission/nodetaint).

use crate::kinds::KindInfo;
use crate::object;
use crate::registry::Part;
use crate::status::ApiError;
use serde_json::{Value, json};

const MIRROR: &str = "kubernetes.io/config.mirror";
/// The labels of Kubernetes' own name spaces that a node gives itself (staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go).
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const OWN_SPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// A new node takes no pods until it is ready.
pub(super) fn taint_not_ready(node: &mut Value) {
    let taints = object::array_mut(object::map_mut(node, "spec"), "taints");
    if !taints
        .iter()
        .any(|taint| taint.get("key").is_some_and(|key| key == NOT_READY) && taint.get("effect").is_some_and(|effect| effect == "NoSchedule"))
    {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

/// What a node may create: itself, its lease, mirror pods of itself.
pub(super) fn restrict_create(node: &str, kind: &KindInfo, object: &Value) -> Result<(), ApiError> {
    let name = object::name(object);
    let refuse = |why: String| Err(ApiError::forbidden(kind, name, &why));
    match (kind.group, kind.plural) {
        ("", "pods") => {
            if object::lookup(object, &["metadata", "annotations", MIRROR]).is_none() {
                return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
            }
            if object::text(object, &["spec", "nodeName"]) != node {
                return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
            }
            // Whatever a pod on a node names, the node may read.
            match references(object) {
                Some(what) => refuse(format!("node {node:?} can not create pods that reference {what}")),
                None => Ok(()),
            }
        }
        ("", "nodes") if name != node => refuse(format!("node {node:?} is not allowed to modify node {name:?}")),
        ("", "nodes") => match restricted_labels(object).first() {
            Some(label) => refuse(format!("node {node:?} is not allowed to set the following labels: {label}")),
            None => Ok(()),
        },
        ("coordination.k8s.io", "leases") if name != node => refuse("can only access node lease with the same name as the requesting node".into()),
        _ => Ok(()),
    }
}

/// What a node may change: itself (but not its taints, nor the labels reserved for administrators) and the status of its pods.
pub(super) fn restrict_update(node: &str, kind: &KindInfo, part: Part, old: &Value, new: &Value) -> Result<(), ApiError> {
    let name = object::name(old);
    let refuse = |why: String| Err(ApiError::forbidden(kind, name, &why));
    match (kind.group, kind.plural) {
        ("", "nodes") => {
            if name != node {
                return refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
            }
            if part == Part::Main && object::list(old, &["spec", "taints"]) != object::list(new, &["spec", "taints"]) {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            let (before, after) = (restricted_labels(old), restricted_labels(new));
            match after.iter().find(|label| !before.contains(label)).or_else(|| before.iter().find(|label| !after.contains(label))) {
                Some(label) => refuse(format!("is not allowed to modify labels: {}", label.split('=').next().unwrap_or_default())),
                None => Ok(()),
            }
        }
        ("", "pods") if object::text(old, &["spec", "nodeName"]) != node => {
            refuse(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"))
        }
        ("", "pods") if object::lookup(old, &["metadata", "labels"]) != object::lookup(new, &["metadata", "labels"]) => {
            refuse(format!("node {node:?} cannot update labels through pod status"))
        }
        _ => Ok(()),
    }
}

/// What a node may delete: its pods, itself.
pub(super) fn restrict_delete(node: &str, kind: &KindInfo, name: &str, stored: &Value) -> Result<(), ApiError> {
    match (kind.group, kind.plural) {
        ("", "pods") if object::text(stored, &["spec", "nodeName"]) != node => {
            Err(ApiError::forbidden(kind, name, &format!("node {node:?} can only delete pods with spec.nodeName set to itself")))
        }
        ("", "nodes") if name != node => Err(ApiError::forbidden(kind, name, &format!("node {node:?} is not allowed to modify node {name:?}"))),
        _ => Ok(()),
    }
}

/// What a pod names beside itself: nothing a node may make up.
fn references(pod: &Value) -> Option<&'static str> {
    if !object::text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Some("a service account");
    }
    let volumes = object::list(pod, &["spec", "volumes"]);
    let sources = || volumes.iter().flat_map(|volume| object::list(volume, &["projected", "sources"])).chain(volumes);
    let containers = || ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(|list| object::list(pod, &["spec", list]));
    let environment = |from: &str, key: &str| {
        containers().any(|container| {
            object::list(container, &["envFrom"]).iter().any(|entry| object::lookup(entry, &[from]).is_some())
                || object::list(container, &["env"]).iter().any(|entry| object::lookup(entry, &["valueFrom", key]).is_some())
        })
    };
    let volume = |source: &str| sources().any(|volume| object::lookup(volume, &[source]).is_some());
    if volume("secret") || environment("secretRef", "secretKeyRef") || !object::list(pod, &["spec", "imagePullSecrets"]).is_empty() {
        return Some("secrets");
    }
    if volume("configMap") || environment("configMapRef", "configMapKeyRef") {
        return Some("configmaps");
    }
    if volume("serviceAccountToken") {
        return Some("a service account");
    }
    (volume("persistentVolumeClaim") || volume("ephemeral")).then_some("persistentvolumeclaims")
}

/// The labels of Kubernetes' name spaces that are not the node's own to set.
fn restricted_labels(object: &Value) -> Vec<String> {
    let labels = object::lookup(object, &["metadata", "labels"]).and_then(Value::as_object);
    let reserved = |key: &str| {
        let space = key.split_once('/').map_or("", |(space, _)| space);
        let within = |domain: &str| space == domain || space.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        (within("kubernetes.io") || within("k8s.io")) && !OWN_LABELS.contains(&key) && !OWN_SPACES.iter().any(|own| within(own))
    };
    let own = |(key, value): (&String, &Value)| reserved(key).then(|| format!("{key}={value}"));
    labels.into_iter().flatten().filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(plural: &str) -> &'static KindInfo {
        crate::kinds::by_resource("", "v1", plural).unwrap()
    }

    #[test]
    fn a_node_touches_only_itself_and_its_pods() {
        let other = json!({"metadata": {"name": "n2"}});
        assert_eq!(
            restrict_create("n1", kind("nodes"), &other).unwrap_err().message,
            "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\""
        );
        let own = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        let untainted = json!({"metadata": {"name": "n1"}});
        assert!(restrict_update("n1", kind("nodes"), Part::Main, &own, &untainted).is_err());
        assert!(restrict_update("n1", kind("nodes"), Part::Status, &own, &own).is_ok());
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n2"}});
        assert!(restrict_create("n1", kind("pods"), &pod).is_err());
        assert!(restrict_update("n1", kind("pods"), Part::Status, &pod, &pod).is_err());
        assert!(restrict_delete("n1", kind("pods"), "p", &pod).is_err());
        assert!(restrict_delete("n2", kind("pods"), "p", &pod).is_ok());
    }

    #[test]
    fn a_node_s_pod_names_nothing_it_could_then_read() {
        let mirror = |spec: Value| {
            let mut pod = json!({"metadata": {"name": "p", "annotations": {MIRROR: "hash"}}, "spec": spec});
            pod["spec"]["nodeName"] = "n1".into();
            restrict_create("n1", kind("pods"), &pod).map_err(|error| error.message)
        };
        assert!(mirror(json!({"containers": [{"env": [{"name": "A", "value": "b"}]}], "volumes": [{"hostPath": {"path": "/"}}]})).is_ok());
        for (spec, what) in [
            (json!({"serviceAccountName": "default"}), "a service account"),
            (json!({"volumes": [{"secret": {"secretName": "s"}}]}), "secrets"),
            (json!({"volumes": [{"projected": {"sources": [{"configMap": {"name": "c"}}]}}]}), "configmaps"),
            (json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}), "secrets"),
            (json!({"initContainers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}), "configmaps"),
            (json!({"volumes": [{"persistentVolumeClaim": {"claimName": "d"}}]}), "persistentvolumeclaims"),
        ] {
            assert!(mirror(spec).unwrap_err().ends_with(&format!("can not create pods that reference {what}")));
        }
    }

    #[test]
    fn a_node_sets_its_own_labels_only() {
        let node = |label: &str| json!({"metadata": {"name": "n1", "labels": {label: "x"}}});
        for own in ["kubernetes.io/os", "node.kubernetes.io/windows-build", "example.com/any", "plain", "a.kubelet.kubernetes.io/b"] {
            assert!(restrict_create("n1", kind("nodes"), &node(own)).is_ok(), "{own}");
        }
        for other in ["node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/a", "k8s.io/a", "x.k8s.io/b"] {
            assert!(restrict_create("n1", kind("nodes"), &node(other)).is_err(), "{other}");
        }
        let labelled = json!({"metadata": {"name": "p", "labels": {"app": "db"}}, "spec": {"nodeName": "n1"}});
        let plain = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}});
        assert!(restrict_update("n1", kind("pods"), Part::Status, &plain, &labelled).is_err());
    }

    #[test]
    fn new_nodes_are_not_ready_once() {
        let mut node = json!({"metadata": {"name": "n"}});
        taint_not_ready(&mut node);
        taint_not_ready(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
    }
}
