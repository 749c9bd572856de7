//! The table against what Kubernetes 1.36 documents and tests of its policy: names, numbers, and rules that matter.

use super::*;
use std::collections::{BTreeSet, HashMap};

fn by_name() -> HashMap<String, Value> {
    let name = |object: &Value| {
        let text = |member: &str| object["metadata"][member].as_str().unwrap_or_default().to_owned();
        format!("{} {}/{}", object["kind"].as_str().unwrap(), text("namespace"), text("name"))
    };
    objects().into_iter().map(|(_, object)| (name(&object), object)).collect()
}

/// Each permission of a ClusterRole as `VERB GROUP/RESOURCE[:NAME]` or `VERB PATH`.
fn permissions(role: &str) -> BTreeSet<String> {
    let all = by_name();
    let role = all.get(&format!("ClusterRole /{role}")).unwrap_or_else(|| panic!("no role {role}"));
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let mut found = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for verb in texts(&rule["verbs"]) {
            found.extend(texts(&rule["nonResourceURLs"]).into_iter().map(|path| format!("{verb} {path}")));
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let names = texts(&rule["resourceNames"]);
                    let plain = format!("{verb} {group}/{resource}");
                    let named = names.iter().map(|name| format!("{plain}:{name}"));
                    if names.is_empty() {
                        found.insert(plain.clone());
                    } else {
                        found.extend(named)
                    }
                }
            }
        }
    }
    found
}

#[test]
fn every_line_of_the_table_is_read() {
    let objects = objects();
    let count = |plural: &str| {
        objects.iter().filter(|(own, object)| *own == plural && !object["metadata"]["name"].as_str().unwrap().starts_with("mullion:")).count()
    };
    // Upstream's, that of the feature gate ClusterTrustBundle, and metrics-server's role.
    assert_eq!((count("clusterroles"), count("roles")), (31 + 38 + 1 + 1, 7));
    assert_eq!((count("clusterrolebindings"), count("rolebindings")), (12 + 38 + 1, 7));
    assert_eq!(by_name().len(), objects.len(), "something is there twice");
    for (_, object) in &objects {
        for rule in object["rules"].as_array().into_iter().flatten() {
            let lists = ["verbs", "nonResourceURLs", "apiGroups", "resources"].map(|member| rule[member].as_array().map(Vec::len));
            assert!(matches!(lists, [Some(1..), None, Some(1..), Some(1..)] | [Some(1..), Some(1..), None, None]), "{object}: {rule}");
        }
    }
}

#[test]
fn every_binding_leads_to_a_role() {
    let all = by_name();
    for (name, binding) in all.iter().filter(|(name, _)| name.contains("Binding ")) {
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        let role = format!("{} {namespace}/{}", binding["roleRef"]["kind"].as_str().unwrap(), binding["roleRef"]["name"].as_str().unwrap());
        assert!(all.contains_key(&role), "{name} -> {role}");
        // The Node authorizer decides for nodes.
        assert_eq!(binding["subjects"].is_array(), name != "ClusterRoleBinding /system:node", "{name}");
    }
    for name in all.keys().filter_map(|name| name.strip_prefix("ClusterRole /system:controller:")) {
        let binding = &all[&format!("ClusterRoleBinding /system:controller:{name}")];
        assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}]));
    }
}

#[test]
fn approvers_may_approve_for_their_signer() {
    let signers = [
        ("kube-apiserver-client-approver", "kubernetes.io/kube-apiserver-client"),
        ("kube-apiserver-client-kubelet-approver", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("kubelet-serving-approver", "kubernetes.io/kubelet-serving"),
        ("legacy-unknown-approver", "kubernetes.io/legacy-unknown"),
    ];
    for (role, signer) in signers {
        let expected = BTreeSet::from([format!("approve certificates.k8s.io/signers:{signer}")]);
        assert_eq!(permissions(&format!("system:certificates.k8s.io:{role}")), expected);
    }
}

#[test]
fn roles_hold_what_their_programs_do() {
    let cases = [
        ("system:kube-scheduler", "create /pods/binding"),
        ("system:kube-scheduler", "get coordination.k8s.io/leases:kube-scheduler"),
        ("system:volume-scheduler", "patch /persistentvolumes"),
        ("system:node", "create /pods/eviction"),
        ("system:node", "create /serviceaccounts/token"),
        ("system:node", "create certificates.k8s.io/certificatesigningrequests"),
        ("system:node", "watch certificates.k8s.io/clustertrustbundles"),
        ("system:cluster-trust-bundle-discovery", "get certificates.k8s.io/clustertrustbundles"),
        ("system:node-proxier", "watch discovery.k8s.io/endpointslices"),
        ("system:controller:deployment-controller", "update apps/deployments/status"),
        ("system:controller:generic-garbage-collector", "delete */*"),
        ("system:controller:horizontal-pod-autoscaler", "update */*/scale"),
        ("system:controller:validatingadmissionpolicy-status-controller", "patch admissionregistration.k8s.io/validatingadmissionpolicies/status"),
        ("system:controller:root-ca-cert-publisher", "create /configmaps"),
        ("system:persistent-volume-provisioner", "create /persistentvolumes"),
        ("system:discovery", "get /openapi/*"),
        ("system:monitoring", "get /readyz/*"),
        ("system:auth-delegator", "create authentication.k8s.io/tokenreviews"),
    ];
    for (role, permission) in cases {
        assert!(permissions(role).contains(permission), "{role}: {permission} not in {:?}", permissions(role));
    }
    assert!(!permissions("system:kube-scheduler").contains("get /secrets"));
}

#[test]
fn nobody_ordinary_reads_secrets() {
    for (name, role) in by_name().iter().filter(|(name, _)| name.starts_with("ClusterRole /")) {
        let name = name.trim_start_matches("ClusterRole /");
        let reads = |permission: &String| {
            let (verb, what) = permission.split_once(' ').unwrap();
            ["get", "list", "watch", "*"].contains(&verb) && ["/secrets", "*/*", "/*"].contains(&what)
        };
        let trusted = [
            "cluster-admin",
            "mullion:controllers",
            "system:aggregate-to-edit",
            "system:controller:generic-garbage-collector",
            "system:controller:namespace-controller",
            "system:controller:resourcequota-controller",
            "system:kube-controller-manager",
            "system:node",
        ];
        assert_eq!(permissions(name).iter().any(reads), trusted.contains(&name), "{role}");
    }
}

/// CVE-2021-25740: who may edit a namespace sent load balancers that others trust to addresses elsewhere.
#[test]
fn nobody_ordinary_writes_endpoints() {
    let what = ["/endpoints", "discovery.k8s.io/endpointslices", "*/*"];
    let writes = |permission: &String| {
        let (verb, on) = permission.split_once(' ').unwrap();
        ["create", "update", "patch", "*"].contains(&verb) && what.contains(&on)
    };
    let all = by_name();
    let names = all.keys().filter_map(|name| name.strip_prefix("ClusterRole /"));
    let found: BTreeSet<&str> = names.filter(|name| permissions(name).iter().any(writes)).collect();
    let trusted = [
        "cluster-admin",
        "mullion:controllers",
        "system:controller:endpoint-controller",
        "system:controller:endpointslice-controller",
        "system:controller:endpointslicemirroring-controller",
        "system:controller:generic-garbage-collector",
    ];
    assert_eq!(found, BTreeSet::from(trusted));
}
