//! The roles and bindings that exist from the first start
//! (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go; those named `mullion:` are ours).

use serde_json::{Value, json};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn paths(paths: &[&str]) -> Value {
    json!({"nonResourceURLs": paths, "verbs": ["get"]})
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    })
}

pub fn cluster_roles() -> Vec<Value> {
    let mut roles = vec![("cluster-admin", vec![rule(&["*"], &["*"], &["*"]), json!({"nonResourceURLs": ["*"], "verbs": ["*"]})])];
    roles.extend(system_roles());
    roles.push(("system:kube-controller-manager", controller_rules()));
    roles.push(("system:kube-scheduler", scheduler_rules()));
    let document = |(name, rules): (&str, Vec<Value>)| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(name), "rules": rules});
    roles.into_iter().map(document).chain(user_roles()).collect()
}

pub fn cluster_role_bindings() -> Vec<Value> {
    let bindings = [
        ("cluster-admin", "cluster-admin", vec![("Group", "system:masters")]),
        ("system:discovery", "system:discovery", vec![("Group", "system:authenticated")]),
        ("system:basic-user", "system:basic-user", vec![("Group", "system:authenticated")]),
        ("system:public-info-viewer", "system:public-info-viewer", vec![("Group", "system:authenticated"), ("Group", "system:unauthenticated")]),
        ("system:node-proxier", "system:node-proxier", vec![("User", "system:kube-proxy")]),
        ("system:kube-controller-manager", "system:kube-controller-manager", vec![("User", "system:kube-controller-manager")]),
        ("system:kube-scheduler", "system:kube-scheduler", vec![("User", "system:kube-scheduler")]),
        ("system:kube-dns", "system:kube-dns", vec![("User", "system:kube-dns"), ("ServiceAccount", "kube-dns")]),
        ("system:monitoring", "system:monitoring", vec![("Group", "system:monitoring")]),
        ("system:service-account-issuer-discovery", "system:service-account-issuer-discovery", vec![("Group", "system:serviceaccounts")]),
        ("mullion:kubelet-api", "system:kubelet-api-admin", vec![("User", "kube-apiserver-kubelet-client")]),
        // The node agent, the service proxy and the pod network are one process with one identity.
        ("mullion:nodes", "mullion:node-network", vec![("Group", "system:nodes")]),
    ];
    let document = |(name, role, subjects): (&str, &str, Vec<(&str, &str)>)| {
        let subjects: Vec<Value> = subjects.into_iter().map(|(kind, name)| subject(kind, name)).collect();
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(name), "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        })
    };
    bindings.into_iter().map(document).collect()
}

fn subject(kind: &str, name: &str) -> Value {
    if kind == "ServiceAccount" {
        json!({"kind": kind, "name": name, "namespace": "kube-system"})
    } else {
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
    }
}

/// What a viewer may do.
fn view_rules() -> Vec<Value> {
    vec![
        rule(
            &[""],
            &[
                "configmaps",
                "endpoints",
                "persistentvolumeclaims",
                "persistentvolumeclaims/status",
                "pods",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "serviceaccounts",
                "services",
                "services/status",
            ],
            READ,
        ),
        rule(
            &[""],
            &[
                "bindings",
                "events",
                "limitranges",
                "namespaces/status",
                "pods/log",
                "pods/status",
                "replicationcontrollers/status",
                "resourcequotas",
                "resourcequotas/status",
            ],
            READ,
        ),
        rule(&[""], &["namespaces"], READ),
        rule(&["discovery.k8s.io"], &["endpointslices"], READ),
        rule(
            &["apps"],
            &[
                "controllerrevisions",
                "daemonsets",
                "daemonsets/status",
                "deployments",
                "deployments/scale",
                "deployments/status",
                "replicasets",
                "replicasets/scale",
                "replicasets/status",
                "statefulsets",
                "statefulsets/scale",
                "statefulsets/status",
            ],
            READ,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers", "horizontalpodautoscalers/status"], READ),
        rule(&["batch"], &["cronjobs", "cronjobs/status", "jobs", "jobs/status"], READ),
        rule(&["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"], READ),
        rule(&["networking.k8s.io"], &["ingresses", "ingresses/status", "networkpolicies"], READ),
    ]
}

/// What an editor may do.
fn edit_rules() -> Vec<Value> {
    vec![
        rule(&[""], &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"], READ),
        rule(&[""], &["serviceaccounts"], &["impersonate"]),
        rule(&[""], &["pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"], WRITE),
        rule(&[""], &["pods/eviction", "serviceaccounts/token"], &["create"]),
        rule(
            &[""],
            &[
                "configmaps",
                "events",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
                "services/proxy",
            ],
            WRITE,
        ),
        rule(
            &["apps"],
            &[
                "daemonsets",
                "deployments",
                "deployments/rollback",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
            WRITE,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], WRITE),
        rule(&["batch"], &["cronjobs", "jobs"], WRITE),
        rule(&["policy"], &["poddisruptionbudgets"], WRITE),
        rule(&["networking.k8s.io"], &["ingresses", "networkpolicies"], WRITE),
        rule(&["coordination.k8s.io"], &["leases"], ALL),
    ]
}

/// admin, edit and view, each put together from parts that are labelled for it; anybody may add parts.
fn user_roles() -> Vec<Value> {
    let admin_rules = vec![
        rule(&["authorization.k8s.io"], &["localsubjectaccessreviews"], &["create"]),
        rule(&["rbac.authorization.k8s.io"], &["rolebindings", "roles"], ALL),
    ];
    let metrics = vec![rule(&["metrics.k8s.io"], &["nodes", "pods"], READ)];
    let whole = |name: &str, parts_of: &[&str]| {
        let selectors = json!([{"matchLabels": {format!("{AGGREGATE}{name}"): "true"}}]);
        let mut role = part(name, parts_of, Vec::new());
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        role
    };
    vec![
        whole("admin", &[]),
        whole("edit", &["admin"]),
        whole("view", &["edit"]),
        part("system:aggregate-to-admin", &["admin"], admin_rules),
        part("system:aggregate-to-edit", &["edit"], edit_rules()),
        part("system:aggregate-to-view", &["view"], view_rules()),
        part("system:aggregated-metrics-reader", &["admin", "edit", "view"], metrics),
    ]
}

const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// A ClusterRole that is part of others.
fn part(name: &str, of: &[&str], rules: Vec<Value>) -> Value {
    let mut metadata = metadata(name);
    for whole in of {
        metadata["labels"][format!("{AGGREGATE}{whole}")] = "true".into();
    }
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules})
}

fn system_roles() -> Vec<(&'static str, Vec<Value>)> {
    let discovery = ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/"];
    let network = vec![
        rule(&[""], &["endpoints", "services", "nodes", "namespaces"], &["list", "watch"]),
        rule(&[""], &["nodes"], &["get"]),
        rule(&["", "events.k8s.io"], &["events"], &["create", "patch", "update"]),
        rule(&["discovery.k8s.io"], &["endpointslices"], &["list", "watch"]),
    ];
    vec![
        ("system:discovery", vec![paths(&discovery)]),
        ("system:public-info-viewer", vec![paths(&["/healthz", "/livez", "/readyz", "/version", "/version/"])]),
        ("system:monitoring", vec![paths(&["/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/readyz", "/readyz/*"])]),
        (
            "system:basic-user",
            vec![
                rule(&["authorization.k8s.io"], &["selfsubjectaccessreviews", "selfsubjectrulesreviews"], &["create"]),
                rule(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
            ],
        ),
        (
            "system:service-account-issuer-discovery",
            vec![paths(&["/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/"])],
        ),
        (
            "system:auth-delegator",
            vec![
                rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
                rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
            ],
        ),
        (
            "system:kubelet-api-admin",
            vec![
                rule(&[""], &["nodes"], READ),
                rule(&[""], &["nodes"], &["proxy"]),
                rule(&[""], &["nodes/configz", "nodes/healthz", "nodes/log", "nodes/metrics", "nodes/pods", "nodes/proxy", "nodes/stats"], &["*"]),
            ],
        ),
        ("system:node-bootstrapper", vec![rule(&["certificates.k8s.io"], &["certificatesigningrequests"], &["create", "get", "list", "watch"])]),
        (
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            vec![rule(&["certificates.k8s.io"], &["certificatesigningrequests/nodeclient"], &["create"])],
        ),
        (
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            vec![rule(&["certificates.k8s.io"], &["certificatesigningrequests/selfnodeclient"], &["create"])],
        ),
        ("system:node-proxier", network.clone()),
        ("mullion:node-network", network),
        (
            "system:kube-dns",
            vec![
                rule(&[""], &["endpoints", "services", "namespaces", "pods"], &["list", "watch"]),
                rule(&["discovery.k8s.io"], &["endpointslices"], &["list", "watch"]),
            ],
        ),
    ]
}

/// Upstream gives each controller a role of its own; the embedded ones run in one process with one identity and share their union.
fn controller_rules() -> Vec<Value> {
    vec![
        // Garbage collection and the emptying of namespaces reach every kind.
        rule(&["*"], &["*"], &["get", "list", "watch", "delete", "deletecollection", "patch", "update"]),
        rule(&["", "events.k8s.io"], &["events"], &["create", "patch", "update"]),
        rule(
            &[""],
            &[
                "pods",
                "configmaps",
                "serviceaccounts",
                "endpoints",
                "secrets",
                "services",
                "persistentvolumes",
                "persistentvolumeclaims",
                "namespaces",
            ],
            &["create"],
        ),
        rule(&[""], &["pods/binding", "pods/eviction", "serviceaccounts/token"], &["create"]),
        rule(&["apps"], &["replicasets", "controllerrevisions"], &["create"]),
        rule(&["storage.k8s.io"], &["storageclasses", "volumeattachments"], &["create"]),
        rule(&["batch"], &["jobs"], &["create"]),
        rule(&["discovery.k8s.io"], &["endpointslices"], &["create"]),
        rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
        rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
        rule(&["certificates.k8s.io"], &["certificatesigningrequests/approval", "certificatesigningrequests/status"], &["update", "patch"]),
        rule(&["certificates.k8s.io"], &["signers"], &["approve", "sign"]),
    ]
}

fn scheduler_rules() -> Vec<Value> {
    vec![
        rule(&["", "events.k8s.io"], &["events"], &["create", "patch", "update"]),
        rule(&["coordination.k8s.io"], &["leases"], &["create", "get", "list", "patch", "update", "watch"]),
        rule(&[""], &["nodes", "namespaces"], READ),
        rule(&[""], &["pods"], &["delete", "get", "list", "watch"]),
        rule(&[""], &["bindings", "pods/binding"], &["create"]),
        rule(&[""], &["pods/status"], &["patch", "update"]),
        rule(&[""], &["replicationcontrollers", "services"], READ),
        // Upstream's separate role `system:volume-scheduler`.
        rule(&[""], &["persistentvolumeclaims", "persistentvolumes"], &["get", "list", "patch", "update", "watch"]),
        rule(&["apps"], &["replicasets", "statefulsets"], READ),
        rule(&["policy"], &["poddisruptionbudgets"], READ),
        rule(&["storage.k8s.io"], &["csidrivers", "csinodes", "csistoragecapacities", "storageclasses", "volumeattachments"], READ),
        rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
        rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_binding_leads_to_a_role() {
        let roles = cluster_roles();
        let names: HashSet<&str> = roles.iter().filter_map(|role| role["metadata"]["name"].as_str()).collect();
        assert_eq!(names.len(), roles.len(), "a role is there twice");
        for binding in cluster_role_bindings() {
            assert!(names.contains(binding["roleRef"]["name"].as_str().unwrap()), "{}", binding["metadata"]["name"]);
        }
    }

    #[test]
    fn nobody_ordinary_reads_secrets() {
        for role in cluster_roles() {
            let name = role["metadata"]["name"].as_str().unwrap().to_string();
            let reads = role["rules"].as_array().unwrap().iter().any(|rule| {
                rule["resources"].as_array().is_some_and(|resources| resources.iter().any(|resource| resource == "secrets" || resource == "*"))
            });
            let trusted = ["cluster-admin", "system:aggregate-to-edit", "system:kube-controller-manager"];
            assert_eq!(reads, trusted.contains(&name.as_str()), "{name}");
        }
    }
}
