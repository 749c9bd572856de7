//! The Node authorizer: a node reads what the pods bound to it use, and writes what is its own
//! (plugin/pkg/auth/authorizer/node/node_authorizer.go; the fixed rules: plugin/pkg/auth/authorizer/rbac/bootstrappolicy `NodeRules`).

use super::{Attributes, Decision};
use crate::object;
use crate::selectors::FieldSelector;
use crate::store::{Store, Topic};
use serde_json::Value;

const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn decide(store: &Store, attributes: &Attributes) -> Decision {
    let Some(node) = attributes.user.node_name() else { return Decision::NoOpinion(String::new()) };
    if !attributes.is_resource {
        return Decision::NoOpinion(String::new());
    }
    match (attributes.group.as_str(), attributes.resource.as_str()) {
        ("", "secrets") => readable(attributes).unwrap_or_else(|| related(node, secret(store, node, &attributes.namespace, &attributes.name))),
        ("", "configmaps") => readable(attributes)
            .unwrap_or_else(|| related(node, users(store, node, &attributes.namespace).any(|pod| uses_config_map(&pod, &attributes.name)))),
        ("", "persistentvolumeclaims") => {
            single(attributes, Some("status")).unwrap_or_else(|| related(node, uses_claim(store, node, &attributes.namespace, &attributes.name)))
        }
        ("", "persistentvolumes") => single(attributes, None).unwrap_or_else(|| related(node, reads_volume(store, node, &attributes.name))),
        ("storage.k8s.io", "volumeattachments") => single(attributes, None).unwrap_or_else(|| {
            let attachment = store.get(&format!("storage.k8s.io/volumeattachments//{}", attributes.name));
            related(node, attachment.is_some_and(|entry| object::text(&entry.value(), &["spec", "nodeName"]) == node))
        }),
        ("", "serviceaccounts") => service_account(store, node, attributes),
        ("coordination.k8s.io", "leases") => lease(node, attributes),
        ("storage.k8s.io", "csinodes") => csi_node(node, attributes),
        ("", "pods") => pods(store, node, attributes),
        ("", "nodes") => own_node(node, attributes),
        _ if fixed_rules(attributes) => allow(),
        _ => refuse(""),
    }
}

fn allow() -> Decision {
    Decision::Allow(String::new())
}

fn refuse(why: &str) -> Decision {
    Decision::NoOpinion(why.to_string())
}

/// Whether something bound to the node leads to the object.
fn related(node: &str, leads: bool) -> Decision {
    if leads { allow() } else { Decision::NoOpinion(format!("no relationship found between node '{node}' and this object")) }
}

/// Why a request is no reading of one object in a namespace.
fn readable(attributes: &Attributes) -> Option<Decision> {
    let why = match attributes.verb.as_str() {
        "get" | "list" | "watch" if !attributes.subresource.is_empty() => "cannot read subresource",
        "get" | "list" | "watch" if attributes.namespace.is_empty() => "can only read namespaced object of this type",
        "get" | "list" | "watch" if attributes.name.is_empty() => "No Object name found",
        "get" | "list" | "watch" => return None,
        _ => "can only read resources of this type",
    };
    Some(refuse(why))
}

/// Why a request is neither a GET of one object nor a write of the `written` subresource.
fn single(attributes: &Attributes, written: Option<&str>) -> Option<Decision> {
    let writes = written == Some(attributes.subresource.as_str());
    let why = match attributes.verb.as_str() {
        "update" | "patch" if writes && !attributes.name.is_empty() => return None,
        _ if writes => "can only get/update/patch this type",
        "get" if !attributes.subresource.is_empty() => "cannot get subresource",
        "get" if attributes.name.is_empty() => "No Object name found",
        "get" => return None,
        _ => "can only get individual resources of this type",
    };
    Some(refuse(why))
}

/// The pods that give the node rights. A node makes its mirror pods itself: what they name gives none.
fn users(store: &Store, node: &str, namespace: &str) -> impl Iterator<Item = Value> {
    pods_of(store, node, namespace).filter(|pod| object::lookup(pod, &["metadata", "annotations", MIRROR]).is_none())
}

/// Some pod names the Secret, by itself, through its ServiceAccount, or through a volume.
fn secret(store: &Store, node: &str, namespace: &str, name: &str) -> bool {
    let named = users(store, node, namespace).any(|pod| uses_secret(&pod, name) || account_secret(store, &pod, name));
    named
        || store.list("core/persistentvolumes/").1.iter().any(|(_, entry)| {
            let volume = entry.value();
            volume_secrets(&volume).any(|secret| secret == (namespace, name)) && is_used(store, node, &volume)
        })
}

fn uses_claim(store: &Store, node: &str, namespace: &str, name: &str) -> bool {
    users(store, node, namespace).any(|pod| claims(&pod).any(|claim| claim == name))
}

/// Some pod uses the claim that the volume is bound to. What a claim says of itself does not count: its owner writes it.
fn is_used(store: &Store, node: &str, volume: &Value) -> bool {
    let claim = |member: &str| object::text(volume, &["spec", "claimRef", member]);
    !claim("name").is_empty() && uses_claim(store, node, claim("namespace"), claim("name"))
}

fn reads_volume(store: &Store, node: &str, name: &str) -> bool {
    store.get(&format!("core/persistentvolumes//{name}")).is_some_and(|entry| is_used(store, node, &entry.value()))
}

/// The accounts that pods on the node run under: reading them, and their tokens.
fn service_account(store: &Store, node: &str, attributes: &Attributes) -> Decision {
    if attributes.verb == "get" && attributes.subresource.is_empty() {
        if let Some(refused) = readable(attributes) {
            return refused;
        }
    } else if attributes.verb != "create" || attributes.name.is_empty() {
        return refuse("can only create tokens for individual service accounts");
    } else if attributes.subresource != "token" {
        return refuse("can only create token subresource of serviceaccount");
    }
    let runs_as = |pod: Value| object::text(&pod, &["spec", "serviceAccountName"]) == attributes.name;
    related(node, users(store, node, &attributes.namespace).any(runs_as))
}

fn lease(node: &str, attributes: &Attributes) -> Decision {
    if !matches!(attributes.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return Decision::NoOpinion("can only get, create, update, patch, or delete a node lease".into());
    }
    if attributes.namespace != "kube-node-lease" {
        return Decision::NoOpinion("can only access leases in the \"kube-node-lease\" system namespace".into());
    }
    if attributes.verb != "create" && attributes.name != node {
        return Decision::NoOpinion("can only access node lease with the same name as the requesting node".into());
    }
    allow()
}

fn csi_node(node: &str, attributes: &Attributes) -> Decision {
    if !matches!(attributes.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return Decision::NoOpinion("can only get, create, update, patch, or delete a CSINode".into());
    }
    if !attributes.subresource.is_empty() {
        return Decision::NoOpinion("cannot authorize CSINode subresources".into());
    }
    if attributes.verb != "create" && attributes.name != node {
        return Decision::NoOpinion("can only access CSINode with the same name as the requesting node".into());
    }
    allow()
}

/// Pods on the node, by name or selected by `spec.nodeName`; writes are narrowed by NodeRestriction.
fn pods(store: &Store, node: &str, attributes: &Attributes) -> Decision {
    let selected = || FieldSelector::terms(&attributes.field_selector).is_ok_and(|terms| terms.required("spec.nodeName") == Some(node));
    match (attributes.verb.as_str(), attributes.subresource.as_str()) {
        ("list" | "watch", "") if selected() => allow(),
        ("list" | "watch", "") if attributes.name.is_empty() => {
            Decision::NoOpinion("can only list/watch pods with spec.nodeName field selector".into())
        }
        ("list" | "watch", "") if attributes.namespace.is_empty() => related(node, false),
        // Only pods that are there: the name of one to come may be another node's.
        ("list" | "watch", "") => match pod_node(store, attributes) {
            Some(on) if on == node => allow(),
            _ => related(node, false),
        },
        ("get", "") => match pod_node(store, attributes) {
            Some(on) if on != node => related(node, false),
            _ => allow(),
        },
        ("create" | "delete", "") | ("update" | "patch", "status") | ("create", "eviction") => allow(),
        _ => Decision::NoOpinion(String::new()),
    }
}

/// The node of the pod that is asked for.
fn pod_node(store: &Store, attributes: &Attributes) -> Option<String> {
    let stored = store.get(&format!("core/pods/{}/{}", attributes.namespace, attributes.name))?;
    Some(object::text(&stored.value(), &["spec", "nodeName"]).to_string())
}

/// Its own Node. It may not delete it: the Node's taints and labels, which it may not change, would go with it.
fn own_node(node: &str, attributes: &Attributes) -> Decision {
    match (attributes.verb.as_str(), attributes.subresource.as_str()) {
        // NodeRestriction narrows writes to its own.
        ("create" | "update" | "patch", "") | ("update" | "patch", "status") => allow(),
        ("get" | "list" | "watch", "") if attributes.name == node => allow(),
        ("get" | "list" | "watch", "") if attributes.name.is_empty() => {
            Decision::NoOpinion(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("get" | "list" | "watch", "") => Decision::NoOpinion(format!("node '{node}' cannot read '{}', only its own Node object", attributes.name)),
        _ => Decision::NoOpinion(String::new()),
    }
}

/// What every node may do whatever its pods are.
fn fixed_rules(attributes: &Attributes) -> bool {
    let verb = attributes.verb.as_str();
    match (attributes.group.as_str(), attributes.resource.as_str(), attributes.subresource.as_str()) {
        ("authentication.k8s.io", "tokenreviews", "") => verb == "create",
        ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews", "") => verb == "create",
        ("", "services", "") => matches!(verb, "get" | "list" | "watch"),
        ("", "events", "") | ("events.k8s.io", "events", "") => matches!(verb, "create" | "update" | "patch"),
        ("certificates.k8s.io", "certificatesigningrequests", "") => matches!(verb, "create" | "get" | "list" | "watch"),
        ("", "endpoints", "") => verb == "get",
        ("storage.k8s.io", "csidrivers", "") => matches!(verb, "get" | "list" | "watch"),
        ("node.k8s.io", "runtimeclasses", "") | ("certificates.k8s.io", "clustertrustbundles", "") => matches!(verb, "get" | "list" | "watch"),
        _ => false,
    }
}

/// The pods bound to a node, in one namespace or ("") in all; each is decoded when it is looked at.
fn pods_of(store: &Store, node: &str, namespace: &str) -> impl Iterator<Item = Value> {
    let prefix = if namespace.is_empty() { "core/pods/".to_string() } else { format!("core/pods/{namespace}/") };
    let (_, pods) = store.list_of(&Topic::PodsOf(node.into()), &prefix);
    pods.into_iter().map(|(_, entry)| entry.value())
}

fn volumes(pod: &Value) -> &[Value] {
    object::list(pod, &["spec", "volumes"])
}

/// The claims that a pod names, and those made for its generic ephemeral volumes.
fn claims(pod: &Value) -> impl Iterator<Item = String> {
    volumes(pod).iter().filter_map(|volume| match object::text(volume, &["persistentVolumeClaim", "claimName"]) {
        "" => object::lookup(volume, &["ephemeral"]).map(|_| format!("{}-{}", object::name(pod), object::name_of(volume))),
        name => Some(name.to_string()),
    })
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(|list| object::list(pod, &["spec", list]))
}

fn environment_names(pod: &Value, name: &str, from: &str, key: &str) -> bool {
    containers(pod).any(|container| {
        let whole = object::list(container, &["envFrom"]).iter().any(|source| object::text(source, &[from, "name"]) == name);
        let single = object::list(container, &["env"]).iter().any(|variable| object::text(variable, &["valueFrom", key, "name"]) == name);
        whole || single
    })
}

fn projected_names(pod: &Value, name: &str, member: &str) -> bool {
    let sources = volumes(pod).iter().flat_map(|volume| object::list(volume, &["projected", "sources"]));
    sources.into_iter().any(|source| object::text(source, &[member, "name"]) == name)
}

/// Volumes that name a Secret in a member of an object of theirs (pkg/api/v1/pod/util.go `VisitPodSecretNames`).
const SECRET_REFS: [(&str, &str); 8] = [
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("flexVolume", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
];

/// Whether a volume of a pod names a Secret.
pub(crate) fn names_secret(volume: &Value) -> bool {
    object::lookup(volume, &["azureFile"]).is_some() || SECRET_REFS.iter().any(|(source, member)| object::lookup(volume, &[source, member]).is_some())
}

fn uses_secret(pod: &Value, name: &str) -> bool {
    let pulls = object::list(pod, &["spec", "imagePullSecrets"]).iter().any(|secret| object::name_of(secret) == name);
    let mounts = |volume: &Value| {
        object::text(volume, &["secret", "secretName"]) == name
            || object::text(volume, &["azureFile", "secretName"]) == name
            || SECRET_REFS.iter().any(|(source, member)| object::text(volume, &[source, member, "name"]) == name)
    };
    pulls || volumes(pod).iter().any(mounts) || projected_names(pod, name, "secret") || environment_names(pod, name, "secretRef", "secretKeyRef")
}

/// Namespaces and names of the Secrets that a node needs for a volume (pkg/api/v1/persistentvolume/util.go `VisitPVSecretNames`).
fn volume_secrets(volume: &Value) -> impl Iterator<Item = (&str, &str)> {
    let claimed = object::text(volume, &["spec", "claimRef", "namespace"]);
    let of_csi = ["nodeStageSecretRef", "nodeExpandSecretRef"].map(|member| ("csi", member));
    let refs = SECRET_REFS.into_iter().chain(of_csi).map(move |(source, member)| {
        let text = |own: &str| object::text(volume, &["spec", source, member, own]);
        (if text("namespace").is_empty() { claimed } else { text("namespace") }, text("name"))
    });
    let azure = |member: &str| object::text(volume, &["spec", "azureFile", member]);
    let azure = (if azure("secretNamespace").is_empty() { claimed } else { azure("secretNamespace") }, azure("secretName"));
    refs.chain([azure]).filter(|(_, name)| !name.is_empty())
}

fn uses_config_map(pod: &Value, name: &str) -> bool {
    volumes(pod).iter().any(|volume| object::text(volume, &["configMap", "name"]) == name)
        || projected_names(pod, name, "configMap")
        || environment_names(pod, name, "configMapRef", "configMapKeyRef")
}

/// Pull secrets that the pod's ServiceAccount brings.
fn account_secret(store: &Store, pod: &Value, name: &str) -> bool {
    let (namespace, account) = (object::namespace(pod), object::text(pod, &["spec", "serviceAccountName"]));
    let Some(entry) = store.get(&format!("core/serviceaccounts/{namespace}/{account}")) else { return false };
    let account = entry.value();
    object::list(&account, &["imagePullSecrets"]).iter().any(|secret| object::name_of(secret) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::UserInfo;
    use crate::store::Expect;
    use serde_json::json;

    async fn store(dir: &std::path::Path) -> Store {
        let store = Store::open(dir).unwrap();
        let pod = json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {
            "nodeName": "n1", "serviceAccountName": "default",
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}], "envFrom": [{"configMapRef": {"name": "whole"}}]}],
            "volumes": [{"secret": {"secretName": "vol"}}, {"persistentVolumeClaim": {"claimName": "data"}}, {"name": "scratch", "ephemeral": {}}, {"projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}],
        }});
        store.put("core/pods/a/p", Expect::Absent, pod).await.unwrap();
        let claim = json!({"metadata": {"name": "data", "namespace": "a"}, "spec": {"volumeName": "disk"}});
        store.put("core/persistentvolumeclaims/a/data", Expect::Absent, claim).await.unwrap();
        let claim = json!({"namespace": "a", "name": "data"});
        let volume = json!({"metadata": {"name": "disk"}, "spec": {"claimRef": claim}});
        store.put("core/persistentvolumes//disk", Expect::Absent, volume).await.unwrap();
        store
    }

    fn ask(store: &Store, node: &str, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = Attributes {
            user: UserInfo::new(&format!("system:node:{node}"), &["system:nodes"]),
            verb: verb.into(),
            is_resource: true,
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        };
        matches!(decide(store, &attributes), Decision::Allow(_))
    }

    #[tokio::test]
    async fn a_node_reads_what_its_pods_use_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path()).await;
        let cases = [
            ("n1", "get", "secrets", "a", "env", true),
            ("n1", "get", "secrets", "a", "vol", true),
            ("n1", "get", "secrets", "a", "other", false),
            ("n2", "get", "secrets", "a", "env", false),
            ("n1", "get", "secrets", "b", "env", false),
            ("n1", "list", "secrets", "a", "", false),
            ("n1", "update", "secrets", "a", "env", false),
            ("n1", "watch", "configmaps", "a", "whole", true),
            ("n1", "get", "configmaps", "a", "kube-root-ca.crt", true),
            ("n1", "create", "serviceaccounts/token", "a", "default", true),
            ("n2", "create", "serviceaccounts/token", "a", "default", false),
            ("n1", "get", "persistentvolumeclaims", "a", "data", true),
            ("n1", "get", "persistentvolumeclaims", "a", "p-scratch", true),
            ("n1", "get", "persistentvolumeclaims", "a", "other", false),
            ("n2", "get", "persistentvolumeclaims", "a", "data", false),
            ("n1", "update", "persistentvolumeclaims", "a", "data", false),
            ("n1", "get", "persistentvolumes", "", "disk", true),
            ("n1", "get", "persistentvolumes", "", "other", false),
            ("n2", "get", "persistentvolumes", "", "disk", false),
            ("n1", "list", "persistentvolumes", "", "", false),
            ("n1", "get", "nodes", "", "n1", true),
            ("n1", "get", "nodes", "", "n2", false),
            ("n1", "patch", "nodes/status", "", "n1", true),
            ("n1", "list", "nodes", "", "", false),
            ("n1", "watch", "nodes", "", "n1", true),
            ("n1", "delete", "nodes", "", "n1", false),
            ("n1", "delete", "nodes", "", "n2", false),
            ("n1", "watch", "secrets", "a", "env", true),
            ("n1", "watch", "secrets", "", "env", false),
            ("n1", "watch", "pods", "a", "p", true),
            ("n2", "watch", "pods", "a", "p", false),
            ("n1", "watch", "pods", "a", "to-come", false),
            ("n1", "watch", "pods", "", "p", false),
            ("n1", "update", "pods", "a", "p", false),
            ("n1", "create", "pods/binding", "a", "p", false),
            ("n1", "patch", "pods/ephemeralcontainers", "a", "p", false),
            ("n1", "get", "pods", "a", "p", true),
            ("n2", "get", "pods", "a", "p", false),
            ("n1", "list", "pods", "", "", false),
            ("n1", "list", "services", "", "", true),
            ("n1", "delete", "services", "a", "x", false),
        ];
        for (node, verb, resource, namespace, name, expected) in cases {
            assert_eq!(ask(&store, node, verb, resource, namespace, name), expected, "{node} {verb} {resource} {namespace}/{name}");
        }
        for (verb, name, expected) in [("create", "", true), ("get", "n1", true), ("delete", "n1", true), ("get", "n2", false), ("list", "", false)] {
            let attributes = Attributes {
                user: UserInfo::new("system:node:n1", &["system:nodes"]),
                verb: verb.into(),
                is_resource: true,
                group: "storage.k8s.io".into(),
                resource: "csinodes".into(),
                name: name.into(),
                ..Attributes::default()
            };
            assert_eq!(matches!(decide(&store, &attributes), Decision::Allow(_)), expected, "{verb} csinodes {name}");
        }
    }
}
