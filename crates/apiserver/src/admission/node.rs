//! NodeRestriction (plugin/pkg/admission/noderestriction).

use super::Plugin;
use crate::kind::{Attributes, Kind, Operation, Part};
use crate::kinds;
use crate::object;
use crate::status::ApiError;
use futures::future::BoxFuture;
use serde_json::Value;

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

const LEASES: &str = "kube-node-lease";

pub struct NodeRestriction;

impl Plugin for NodeRestriction {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.context.user.node_name().is_some()
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(check(attributes, object)))
    }
}

fn check(attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
    let Attributes { kind, name, namespace, .. } = *attributes;
    let Some(node) = attributes.context.user.node_name() else { return Ok(()) };
    let stored = |key: &str| attributes.cluster.store.get(key).map(|entry| entry.value());
    // Mirror pods alone name the node's own object.
    let own = if kind.is("", "pods") && attributes.operation == Operation::Create { stored(&format!("core/nodes//{node}")) } else { None };
    let restriction = Restriction { node, kind, own: own.as_ref() };
    match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => restriction.create(object),
        (Operation::Create, "eviction") => restriction.evict(name, &stored(&kind.key(namespace, name)).unwrap_or_default()),
        (Operation::Update, _) => restriction.update(attributes.part, attributes.old.unwrap_or(&Value::Null), object),
        (Operation::Delete, _) => restriction.delete(name, namespace, &stored(&kind.key(namespace, name)).unwrap_or_default()),
        (Operation::Create | Operation::Connect, _) => Ok(()),
    }
}

/// The writer, and what a rule needs beside the object.
struct Restriction<'a> {
    pub node: &'a str,
    pub kind: &'a Kind,
    /// The node's own object as it is stored, if it is.
    pub own: Option<&'a Value>,
}

impl Restriction<'_> {
    fn refuse(&self, name: &str, why: &str) -> ApiError {
        ApiError::forbidden(self.kind, name, why)
    }

    /// What a node may create: itself, its Lease and CSINode, mirror pods of itself.
    fn create(&self, object: &Value) -> Result<(), ApiError> {
        let (node, name) = (self.node, object::name(object));
        let refuse = |why: String| Err(self.refuse(name, &why));
        match (self.kind.group.as_str(), self.kind.plural.as_str()) {
            ("", "pods") => self.create_pod(object),
            ("", "nodes") if name != node => refuse(format!("node {node:?} is not allowed to modify node {name:?}")),
            ("", "nodes") if object::lookup(object, &["spec", "configSource"]).is_some_and(|source| !source.is_null()) => {
                refuse(format!("node {node:?} is not allowed to create pods with a non-nil configSource"))
            }
            ("", "nodes") => match forbidden_labels(&Value::Null, object) {
                Some(labels) => refuse(format!("node {node:?} is not allowed to set the following labels: {labels}")),
                None => Ok(()),
            },
            ("", "persistentvolumeclaims") => refuse("may only update PVC status".into()),
            _ => self.own_name(name, object::namespace(object)),
        }
    }

    fn create_pod(&self, pod: &Value) -> Result<(), ApiError> {
        let node = self.node;
        let refuse = |why: String| Err(self.refuse(object::name(pod), &why));
        if object::lookup(pod, &["metadata", "annotations", MIRROR]).is_none() {
            return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
        }
        if object::text(pod, &["spec", "nodeName"]) != node {
            return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
        }
        let owner = match object::list(pod, &["metadata", "ownerReferences"]) {
            [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
            [owner] => owner,
            _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
        };
        if [("apiVersion", "v1"), ("kind", "Node"), ("name", node)].iter().any(|(member, wanted)| object::text(owner, &[member]) != *wanted) {
            return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
        }
        let flag = |member: &str| owner.get(member).and_then(Value::as_bool).unwrap_or_default();
        if !flag("controller") {
            return refuse(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
        }
        if flag("blockOwnerDeletion") {
            return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
        }
        let nodes = kinds::by_resource("", "v1", "nodes").ok_or_else(ApiError::no_such_resource)?;
        let own = self.own.ok_or_else(|| ApiError::not_found(nodes, node))?;
        let (claimed, uid) = (object::text(owner, &["uid"]), object::uid(own));
        if claimed != uid {
            return refuse(format!("node {node} UID mismatch: expected {claimed} got {uid}"));
        }
        // Whatever a pod on a node names, the node may read.
        match references(pod) {
            Some(what) => refuse(format!("node {node:?} can not create pods that reference {what}")),
            None => Ok(()),
        }
    }

    /// What a node may change: itself (but not its taints, its owners, nor the labels reserved for administrators), the status of its pods,
    /// its Lease and CSINode.
    fn update(&self, part: Part, old: &Value, new: &Value) -> Result<(), ApiError> {
        let (node, name) = (self.node, object::name(old));
        let refuse = |why: String| Err(self.refuse(name, &why));
        match (self.kind.group.as_str(), self.kind.plural.as_str(), part) {
            ("", "nodes", _) => self.update_node(old, new),
            ("", "pods", Part::Main) => refuse(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods")),
            ("", "pods", Part::Status) => {
                if object::text(old, &["spec", "nodeName"]) != node {
                    return refuse(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
                }
                if members(old, &["metadata", "labels"]) != members(new, &["metadata", "labels"]) {
                    return refuse(format!("node {node:?} cannot update labels through pod status"));
                }
                if object::list(old, &["status", "resourceClaimStatuses"]) != object::list(new, &["status", "resourceClaimStatuses"]) {
                    return refuse(format!("node {node:?} cannot update resource claim statues"));
                }
                Ok(())
            }
            ("", "pods", Part::Other(below)) => refuse(format!("unexpected pod subresource {below:?}, only 'status' and 'eviction' are allowed")),
            ("", "persistentvolumeclaims", Part::Status) if claim(old) == claim(new) => Ok(()),
            ("", "persistentvolumeclaims", Part::Status) => {
                refuse(format!("node {node:?} is not allowed to update fields other than status.capacity and status.conditions"))
            }
            ("", "persistentvolumeclaims", Part::Main) => refuse("may only update PVC status".into()),
            (_, _, Part::Internal) => Ok(()),
            _ => self.own_name(name, object::namespace(old)),
        }
    }

    fn update_node(&self, old: &Value, new: &Value) -> Result<(), ApiError> {
        let (node, name) = (self.node, object::name(old));
        let refuse = |why: String| Err(self.refuse(name, &why));
        if name != node {
            return refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
        }
        let source = |object| object::lookup(object, &["spec", "configSource"]).filter(|source| !source.is_null());
        if source(new).is_some() && source(new) != source(old) {
            return refuse(format!("node {node:?} is not allowed to update configSource to a new non-nil configSource"));
        }
        if object::list(old, &["spec", "taints"]) != object::list(new, &["spec", "taints"]) {
            return refuse(format!("node {node:?} is not allowed to modify taints"));
        }
        // An owner that is not there makes the garbage collector delete the Node.
        let owners = ["metadata", "ownerReferences"];
        if object::list(old, &owners) != object::list(new, &owners) {
            return refuse(format!("node {node:?} is not allowed to modify ownerReferences"));
        }
        match forbidden_labels(old, new) {
            Some(labels) => refuse(format!("is not allowed to modify labels: {labels}")),
            None => Ok(()),
        }
    }

    /// What a node may delete: its pods, its Lease and CSINode.
    fn delete(&self, name: &str, namespace: &str, stored: &Value) -> Result<(), ApiError> {
        let node = self.node;
        let refuse = |why: String| Err(self.refuse(name, &why));
        match (self.kind.group.as_str(), self.kind.plural.as_str()) {
            ("", "pods") if stored.is_null() => Ok(()),
            ("", "pods") if object::text(stored, &["spec", "nodeName"]) != node => {
                refuse(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            ("", "nodes") if name != node => refuse(format!("node {node:?} is not allowed to modify node {name:?}")),
            ("", "persistentvolumeclaims") => refuse("may only update PVC status".into()),
            _ => self.own_name(name, namespace),
        }
    }

    /// A node evicts its own pods only.
    fn evict(&self, name: &str, stored: &Value) -> Result<(), ApiError> {
        if stored.is_null() || object::text(stored, &["spec", "nodeName"]) == self.node {
            return Ok(());
        }
        Err(self.refuse(name, &format!("node {} can only evict pods with spec.nodeName set to itself", self.node)))
    }

    /// Objects that belong to the node of their name.
    fn own_name(&self, name: &str, namespace: &str) -> Result<(), ApiError> {
        let why = match (self.kind.group.as_str(), self.kind.plural.as_str()) {
            ("coordination.k8s.io", "leases") if namespace != LEASES => &format!("can only access leases in the {LEASES:?} system namespace"),
            ("coordination.k8s.io", "leases") if name != self.node => "can only access node lease with the same name as the requesting node",
            ("storage.k8s.io", "csinodes") if name != self.node => "can only access CSINode with the same name as the requesting node",
            _ => return Ok(()),
        };
        Err(self.refuse(name, why))
    }
}

/// Members of an object; one that is absent has none.
fn members<'a>(object: &'a Value, path: &[&str]) -> Vec<(&'a String, &'a Value)> {
    let mut found: Vec<_> = object::lookup(object, path).and_then(Value::as_object).into_iter().flatten().collect();
    found.sort_by_key(|(key, _)| *key);
    found
}

/// A claim without what a node says of it.
fn claim(claim: &Value) -> Value {
    let mut claim = claim.clone();
    for own in ["resourceVersion", "managedFields"] {
        object::metadata(&mut claim).shift_remove(own);
    }
    for own in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
        object::map_mut(&mut claim, "status").shift_remove(own);
    }
    claim
}

/// What a pod names beside itself: nothing a node may make up (upstream `HasAPIObjectReference`).
fn references(pod: &Value) -> Option<&'static str> {
    if !object::text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Some("serviceaccounts");
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
    let by_driver = volumes.iter().any(crate::authz::names_secret);
    if volume("secret") || by_driver || environment("secretRef", "secretKeyRef") || !object::list(pod, &["spec", "imagePullSecrets"]).is_empty() {
        return Some("secrets");
    }
    if volume("configMap") || environment("configMapRef", "configMapKeyRef") {
        return Some("configmaps");
    }
    if !object::list(pod, &["spec", "resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    let by_volume = [
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    by_volume.into_iter().find(|(source, _)| volume(source)).map(|(_, what)| what)
}

/// The changed labels that are not the node's own to change, by their keys.
fn forbidden_labels(old: &Value, new: &Value) -> Option<String> {
    let (before, after) = (members(old, &["metadata", "labels"]), members(new, &["metadata", "labels"]));
    let changed = after.iter().filter(|label| !before.contains(label)).chain(before.iter().filter(|label| !after.contains(label)));
    let mut keys: Vec<&str> = changed.map(|(key, _)| key.as_str()).filter(|key| is_reserved(key)).collect();
    keys.sort_unstable();
    keys.dedup();
    (!keys.is_empty()).then(|| keys.join(", "))
}

fn is_reserved(key: &str) -> bool {
    let space = key.split_once('/').map_or("", |(space, _)| space);
    let within = |domain: &str| space == domain || space.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    let own = OWN_LABELS.contains(&key) || OWN_SPACES.iter().any(|own| within(own));
    within("node-restriction.kubernetes.io") || (within("kubernetes.io") || within("k8s.io")) && !own
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn kind(plural: &str) -> &'static Arc<Kind> {
        kinds::by_resource("", "v1", plural).unwrap()
    }

    fn restriction<'a>(kind: &'a Kind, own: &'a Value) -> Restriction<'a> {
        Restriction { node: "n1", kind, own: Some(own) }
    }

    fn own() -> Value {
        json!({"metadata": {"name": "n1", "uid": "u1"}})
    }

    fn message(outcome: Result<(), ApiError>) -> Option<String> {
        outcome.err().map(|error| error.message.split_once(" is forbidden: ").unwrap().1.to_string())
    }

    fn check(outcome: Result<(), ApiError>, refused: &str, what: &str) {
        assert_eq!(message(outcome).unwrap_or_default(), refused, "{what}");
    }

    /// A mirror pod of the node, as its agent makes it; `change` makes another one of it.
    fn mirror(change: impl Fn(&mut Value)) -> Value {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true});
        let metadata = json!({"name": "p", "namespace": "a", "annotations": {MIRROR: "hash"}, "ownerReferences": [owner]});
        let mut pod = json!({"metadata": metadata, "spec": {"nodeName": "n1", "containers": [{"env": [{"name": "A", "value": "b"}]}]}});
        change(&mut pod);
        pod
    }

    /// plugin/pkg/admission/noderestriction/admission_test.go, pods.
    #[test]
    fn a_node_creates_mirror_pods_of_its_own() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 9] = [
            (|_| {}, ""),
            (
                |pod| drop(pod["metadata"].as_object_mut().unwrap().remove("annotations")),
                "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
            ),
            (|pod| pod["spec"]["nodeName"] = "n2".into(), "node \"n1\" can only create pods with spec.nodeName set to itself"),
            (
                |pod| drop(pod["metadata"].as_object_mut().unwrap().remove("ownerReferences")),
                "node \"n1\" can only create pods with an owner reference set to itself",
            ),
            (
                |pod| {
                    let owner = pod["metadata"]["ownerReferences"][0].clone();
                    pod["metadata"]["ownerReferences"] = json!([owner, owner]);
                },
                "node \"n1\" can only create pods with a single owner reference set to itself",
            ),
            (
                |pod| pod["metadata"]["ownerReferences"][0]["name"] = "n2".into(),
                "node \"n1\" can only create pods with an owner reference set to itself",
            ),
            (
                |pod| pod["metadata"]["ownerReferences"][0]["controller"] = false.into(),
                "node \"n1\" can only create pods with a controller owner reference set to itself",
            ),
            (
                |pod| pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into(),
                "node \"n1\" must not set blockOwnerDeletion on an owner reference",
            ),
            (|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "u9".into(), "node n1 UID mismatch: expected u9 got u1"),
        ];
        let own = own();
        for (change, refused) in cases {
            check(restriction(kind("pods"), &own).create(&mirror(change)), refused, refused);
        }
        let unknown = Restriction { node: "n1", kind: kind("pods"), own: None };
        assert_eq!(unknown.create(&mirror(|_| {})).unwrap_err().code, 404);
        for (spec, what) in [
            (json!({"serviceAccountName": "default"}), "serviceaccounts"),
            (json!({"volumes": [{"secret": {"secretName": "s"}}]}), "secrets"),
            (json!({"imagePullSecrets": [{"name": "s"}]}), "secrets"),
            (json!({"volumes": [{"projected": {"sources": [{"configMap": {"name": "c"}}]}}]}), "configmaps"),
            (json!({"volumes": [{"projected": {"sources": [{"clusterTrustBundle": {"name": "c"}}]}}]}), "clustertrustbundles"),
            (json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}), "secrets"),
            (json!({"initContainers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}), "configmaps"),
            (json!({"volumes": [{"persistentVolumeClaim": {"claimName": "d"}}]}), "persistentvolumeclaims"),
            (json!({"volumes": [{"ephemeral": {}}]}), "persistentvolumeclaims (via ephemeral volumes)"),
            (json!({"volumes": [{"csi": {"driver": "d.io"}}]}), "csidrivers (via CSI volumes)"),
            (json!({"volumes": [{"glusterfs": {"endpoints": "e"}}]}), "endpoints (via glusterFS volumes)"),
            (json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}), "serviceaccounts (via projected volumes)"),
            (json!({"volumes": [{"projected": {"sources": [{"podCertificate": {}}]}}]}), "podcertificates"),
            // CVE-2025-4563: devices of others.
            (json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "theirs"}]}), "resourceclaims"),
        ] {
            let pod = mirror(|pod| pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone()));
            let refused = format!("node \"n1\" can not create pods that reference {what}");
            check(restriction(kind("pods"), &own).create(&pod), &refused, what);
        }
    }

    #[test]
    fn a_node_changes_the_status_of_its_own_pods() {
        let own = own();
        let pods = restriction(kind("pods"), &own);
        let (mine, other) = (mirror(|_| {}), mirror(|pod| pod["spec"]["nodeName"] = "n2".into()));
        let labelled = mirror(|pod| pod["metadata"]["labels"] = json!({"app": "db"}));
        let claimed = mirror(|pod| pod["status"] = json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "d"}]}));
        check(pods.update(Part::Status, &mine, &mine), "", "its own");
        let foreign = "node \"n1\" can only update pod status for pods with spec.nodeName set to itself";
        check(pods.update(Part::Status, &other, &other), foreign, "another's");
        check(pods.update(Part::Status, &mine, &labelled), "node \"n1\" cannot update labels through pod status", "labels");
        check(pods.update(Part::Status, &mine, &claimed), "node \"n1\" cannot update resource claim statues", "claims");
        let whole = "unexpected operation \"UPDATE\", node \"n1\" can only create and delete mirror pods";
        check(pods.update(Part::Main, &mine, &mine), whole, "the pod");
        for below in ["ephemeralcontainers", "resize"] {
            let refused = format!("unexpected pod subresource {below:?}, only 'status' and 'eviction' are allowed");
            check(pods.update(Part::Other(below), &mine, &mine), &refused, below);
        }
        check(pods.delete("p", "a", &mine), "", "deletion");
        check(pods.delete("p", "a", &other), "node \"n1\" can only delete pods with spec.nodeName set to itself", "another's deletion");
        check(pods.evict("p", &mine), "", "eviction");
        check(pods.evict("p", &other), "node n1 can only evict pods with spec.nodeName set to itself", "another's eviction");
    }

    #[test]
    fn a_node_changes_only_itself() {
        let own = own();
        let nodes = restriction(kind("nodes"), &own);
        let with = |path: &str, value: Value| {
            let mut node = own.clone();
            let (outer, inner) = path.split_once('.').unwrap();
            node[outer][inner] = value;
            node
        };
        let other = json!({"metadata": {"name": "n2"}});
        let foreign = "node \"n1\" is not allowed to modify node \"n2\"";
        check(nodes.create(&other), foreign, "creation");
        check(nodes.update(Part::Main, &other, &other), foreign, "update");
        check(nodes.delete("n2", "", &other), foreign, "deletion");
        check(nodes.create(&own), "", "its own creation");
        let taints = with("spec.taints", json!([{"key": "a", "effect": "NoSchedule"}]));
        check(nodes.create(&taints), "", "created with taints");
        let owned = with("metadata.ownerReferences", json!([{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "y"}]));
        let configured = with("spec.configSource", json!({"configMap": {}}));
        check(nodes.create(&configured), "node \"n1\" is not allowed to create pods with a non-nil configSource", "configSource");
        for part in [Part::Main, Part::Status] {
            check(nodes.update(part, &own, &own), "", "nothing");
            check(nodes.update(part, &taints, &own), "node \"n1\" is not allowed to modify taints", "taints");
            check(nodes.update(part, &own, &owned), "node \"n1\" is not allowed to modify ownerReferences", "owners");
            check(nodes.update(part, &owned, &own), "node \"n1\" is not allowed to modify ownerReferences", "fewer owners");
            let refused = "node \"n1\" is not allowed to update configSource to a new non-nil configSource";
            check(nodes.update(part, &own, &configured), refused, "configSource");
            check(nodes.update(part, &configured, &own), "", "no configSource");
        }
    }

    #[test]
    fn a_node_sets_its_own_labels_only() {
        let own = own();
        let nodes = restriction(kind("nodes"), &own);
        let labelled = |label: &str, value: &str| json!({"metadata": {"name": "n1", "labels": {label: value}}});
        for label in ["kubernetes.io/os", "node.kubernetes.io/windows-build", "example.com/any", "plain", "a.kubelet.kubernetes.io/b"] {
            check(nodes.create(&labelled(label, "x")), "", label);
            check(nodes.update(Part::Main, &own, &labelled(label, "x")), "", label);
        }
        for label in [
            "node-role.kubernetes.io/control-plane",
            "node-restriction.kubernetes.io/a",
            "b.node-restriction.kubernetes.io/a",
            "k8s.io/a",
            "x.k8s.io/b",
        ] {
            check(nodes.create(&labelled(label, "x")), &format!("node \"n1\" is not allowed to set the following labels: {label}"), label);
            let refused = format!("is not allowed to modify labels: {label}");
            for (old, new) in [(own.clone(), labelled(label, "x")), (labelled(label, "x"), own.clone()), (labelled(label, "x"), labelled(label, "y"))]
            {
                check(nodes.update(Part::Main, &old, &new), &refused, label);
                check(nodes.update(Part::Status, &old, &new), &refused, label);
            }
            check(nodes.update(Part::Status, &labelled(label, "x"), &labelled(label, "x")), "", label);
        }
        let two = json!({"metadata": {"name": "n1", "labels": {"x.k8s.io/b": "1", "k8s.io/a": "1"}}});
        check(nodes.create(&two), "node \"n1\" is not allowed to set the following labels: k8s.io/a, x.k8s.io/b", "two");
    }

    #[test]
    fn a_node_has_one_lease_and_no_claims() {
        let own = own();
        let lease = kinds::by_resource("coordination.k8s.io", "v1", "leases").unwrap();
        let leases = restriction(lease, &own);
        let named = |namespace: &str, name: &str| json!({"metadata": {"name": name, "namespace": namespace}});
        let place = "can only access leases in the \"kube-node-lease\" system namespace";
        let name = "can only access node lease with the same name as the requesting node";
        for (object, refused) in [(named(LEASES, "n1"), ""), (named("a", "n1"), place), (named(LEASES, "n2"), name)] {
            check(leases.create(&object), refused, "creation");
            check(leases.update(Part::Main, &object, &object), refused, "update");
            check(leases.delete(object::name(&object), object::namespace(&object), &object), refused, "deletion");
        }
        let claims = restriction(kind("persistentvolumeclaims"), &own);
        let claim = |status: Value| json!({"metadata": {"name": "c", "namespace": "a"}, "status": status});
        let (old, grown) = (claim(json!({})), claim(json!({"capacity": {"storage": "2Gi"}})));
        check(claims.update(Part::Status, &old, &grown), "", "capacity");
        let refused = "node \"n1\" is not allowed to update fields other than status.capacity and status.conditions";
        check(claims.update(Part::Status, &old, &claim(json!({"phase": "Bound"}))), refused, "phase");
        check(claims.update(Part::Main, &old, &old), "may only update PVC status", "spec");
        check(claims.create(&old), "may only update PVC status", "creation");
        check(claims.delete("c", "a", &old), "may only update PVC status", "deletion");
    }
}
