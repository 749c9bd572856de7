//! The Node authorizer: a node reads what the pods bound to it use, and writes what is its own
//! (plugin/pkg/auth/authorizer/node/node_authorizer.go; the fixed rules: plugin/pkg/auth/authorizer/rbac/bootstrappolicy `NodeRules`).

use super::{Attributes, Decision};
use crate::object;
use crate::selectors::FieldSelector;
use crate::store::Store;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

pub(super) fn decide(store: &Store, attributes: &Attributes) -> Decision {
    let Some(node) = attributes.user.node_name() else { return Decision::NoOpinion(String::new()) };
    if !attributes.is_resource {
        return Decision::NoOpinion(String::new());
    }
    let refused = |text: &str| Decision::NoOpinion(text.to_string());
    match (attributes.group.as_str(), attributes.resource.as_str()) {
        ("", kind @ ("secrets" | "configmaps")) => reference(store, node, attributes, kind),
        ("", "persistentvolumeclaims") if attributes.verb == "get" => reference(store, node, attributes, "persistentvolumeclaims"),
        ("", "persistentvolumes") if attributes.verb == "get" => volume(store, node, &attributes.name),
        ("", "serviceaccounts") => service_account(store, node, attributes),
        ("coordination.k8s.io", "leases") => lease(node, attributes),
        ("storage.k8s.io", "csinodes") => csi_node(node, attributes),
        ("", "pods") => pods(store, node, attributes),
        ("", "nodes") => own_node(node, attributes),
        _ if fixed_rules(attributes) => Decision::Allow(String::new()),
        _ => refused(""),
    }
}

fn allow() -> Decision {
    Decision::Allow(String::new())
}

fn no_relationship(node: &str, attributes: &Attributes) -> Decision {
    Decision::NoOpinion(format!("no relationship found between node '{node}' and this object"))
        .or(attributes.name.is_empty(), "can only read namespaced object of this type")
}

impl Decision {
    fn or(self, instead: bool, text: &str) -> Self {
        if instead { Self::NoOpinion(text.to_string()) } else { self }
    }
}

/// A Secret, ConfigMap or claim: some pod bound to the node names it.
fn reference(store: &Store, node: &str, attributes: &Attributes, kind: &str) -> Decision {
    let readable = matches!(attributes.verb.as_str(), "get" | "list" | "watch") && attributes.subresource.is_empty();
    if !readable {
        return Decision::NoOpinion("can only read resources of this type".into());
    }
    if attributes.name.is_empty() || attributes.namespace.is_empty() {
        return no_relationship(node, attributes);
    }
    let uses = |pod: &Value| match kind {
        "secrets" => uses_secret(pod, &attributes.name) || account_secret(store, pod, &attributes.name),
        "configmaps" => uses_config_map(pod, &attributes.name),
        _ => claims(pod).any(|claim| claim == attributes.name),
    };
    if pods_of(store, node, &attributes.namespace).iter().any(uses) { allow() } else { no_relationship(node, attributes) }
}

/// A volume: some pod bound to the node uses a claim that is bound to it.
fn volume(store: &Store, node: &str, name: &str) -> Decision {
    let bound = pods_of(store, node, "").iter().any(|pod| {
        let namespace = object::namespace(pod);
        claims(pod).any(|claim| {
            let stored = store.get(&format!("core/persistentvolumeclaims/{namespace}/{claim}"));
            stored.is_some_and(|entry| object::text(&entry.value(), &["spec", "volumeName"]) == name)
        })
    });
    if bound { allow() } else { Decision::NoOpinion(format!("no relationship found between node '{node}' and this object")) }
}

/// Tokens only of the accounts that pods on the node run under.
fn service_account(store: &Store, node: &str, attributes: &Attributes) -> Decision {
    let token = attributes.verb == "create" && attributes.subresource == "token";
    let reading = attributes.verb == "get" && attributes.subresource.is_empty();
    if !token && !reading {
        return Decision::NoOpinion("can only create tokens for individual service accounts".into());
    }
    let runs_as = |pod: &Value| object::text(pod, &["spec", "serviceAccountName"]) == attributes.name;
    if pods_of(store, node, &attributes.namespace).iter().any(runs_as) { allow() } else { no_relationship(node, attributes) }
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
        ("list" | "watch", "") if attributes.namespace.is_empty() => no_relationship(node, attributes),
        // Only pods that are there: the name of one to come may be another node's.
        ("list" | "watch", "") => match pod_node(store, attributes) {
            Some(on) if on == node => allow(),
            _ => no_relationship(node, attributes),
        },
        ("get", "") => match pod_node(store, attributes) {
            Some(on) if on != node => no_relationship(node, attributes),
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
        ("storage.k8s.io", "csidrivers" | "volumeattachments", "") => matches!(verb, "get" | "list" | "watch"),
        ("node.k8s.io", "runtimeclasses", "") => matches!(verb, "get" | "list" | "watch"),
        _ => false,
    }
}

/// The pods bound to a node, in one namespace or ("") in all.
pub(crate) fn pods_of(store: &Store, node: &str, namespace: &str) -> Vec<Value> {
    let prefix = if namespace.is_empty() { "core/pods/".to_string() } else { format!("core/pods/{namespace}/") };
    let pods = store.list(&prefix).1.into_iter().filter(|(_, entry)| is_bound_to(&entry.bytes, node));
    pods.map(|(_, entry)| entry.value()).collect()
}

/// Whether an encoded pod is bound to the node. The rest of it is passed over: every node asks for every token of its pods.
fn is_bound_to(pod: &[u8], node: &str) -> bool {
    #[derive(Deserialize)]
    struct Pod<'a> {
        #[serde(borrow, default)]
        spec: Spec<'a>,
    }
    #[derive(Default, Deserialize)]
    struct Spec<'a> {
        #[serde(borrow, default, rename = "nodeName")]
        node_name: Cow<'a, str>,
    }
    serde_json::from_slice(pod).is_ok_and(|pod: Pod<'_>| pod.spec.node_name == node)
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

fn uses_secret(pod: &Value, name: &str) -> bool {
    let pulls = object::list(pod, &["spec", "imagePullSecrets"]).iter().any(|secret| object::name_of(secret) == name);
    pulls
        || volumes(pod).iter().any(|volume| object::text(volume, &["secret", "secretName"]) == name)
        || projected_names(pod, name, "secret")
        || environment_names(pod, name, "secretRef", "secretKeyRef")
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

    #[test]
    fn pods_are_bound_to_the_node_that_their_specification_names() {
        let bound = |pod: Value| is_bound_to(pod.to_string().as_bytes(), "n1");
        assert!(bound(json!({"metadata": {"labels": {"nodeName": "n2"}}, "spec": {"containers": [{"nodeName": 1}], "nodeName": "n1"}})));
        for other in
            [json!({}), json!({"spec": {}}), json!({"nodeName": "n1"}), json!({"spec": {"nodeName": "n10"}}), json!({"spec": {"nodeName": null}})]
        {
            assert!(!bound(other.clone()), "{other}");
        }
        assert!(!is_bound_to(b"{", "n1"));
    }

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
