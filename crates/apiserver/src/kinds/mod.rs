//! The kinds this server serves, as one table: their names, scope, verbs and subresources as upstream's discovery states them.

#[derive(Debug, PartialEq, Eq)]
pub struct KindInfo {
    /// API group; empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    /// The kind's name in objects.
    pub kind: &'static str,
    /// The resource's name in paths.
    pub plural: &'static str,
    /// What users may type for one object.
    pub singular: &'static str,
    /// What users may type for short.
    pub short_names: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// The served subresources' names.
    pub subresources: &'static [&'static str],
    /// Groups of resources (`all`) this one is part of.
    pub categories: &'static [&'static str],
    /// The verbs of the main resource, sorted as discovery lists them.
    pub verbs: &'static [&'static str],
    /// The name of the kind's type in OpenAPI documents.
    pub schema_type: &'static str,
}

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const NO_COLLECTION: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];
const READ: &[&str] = &["get", "list"];
const CONNECT: &[&str] = &["create", "get"];

/// The usual kind: namespaced, all verbs, no subresources; `group` and the type's name come first.
const fn kind(group: &'static str, kind: &'static str, plural: &'static str, singular: &'static str, schema_type: &'static str) -> KindInfo {
    KindInfo {
        group,
        version: "v1",
        kind,
        plural,
        singular,
        short_names: &[],
        namespaced: true,
        subresources: &[],
        categories: &[],
        verbs: ALL,
        schema_type,
    }
}

impl KindInfo {
    const fn cluster(mut self) -> Self {
        self.namespaced = false;
        self
    }
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }
    const fn sub(mut self, names: &'static [&'static str]) -> Self {
        self.subresources = names;
        self
    }
    const fn in_all(mut self) -> Self {
        self.categories = &["all"];
        self
    }
    const fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    /// `GROUP/VERSION`, or the version alone in the core group: what objects say as `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }
}

const APPS: &str = "apps";
const EVENTS: &str = "events.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

pub const KINDS: &[KindInfo] = &[
    kind("", "ConfigMap", "configmaps", "configmap", "io.k8s.api.core.v1.ConfigMap").short(&["cm"]),
    kind("", "Endpoints", "endpoints", "endpoints", "io.k8s.api.core.v1.Endpoints").short(&["ep"]),
    kind("", "Event", "events", "event", "io.k8s.api.core.v1.Event").short(&["ev"]),
    kind("", "Namespace", "namespaces", "namespace", "io.k8s.api.core.v1.Namespace")
        .cluster()
        .short(&["ns"])
        .sub(&["finalize", "status"])
        .verbs(NO_COLLECTION),
    kind("", "Node", "nodes", "node", "io.k8s.api.core.v1.Node").cluster().short(&["no"]).sub(&["proxy", "status"]),
    kind("", "PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", "io.k8s.api.core.v1.PersistentVolumeClaim")
        .short(&["pvc"])
        .sub(&["status"]),
    kind("", "PersistentVolume", "persistentvolumes", "persistentvolume", "io.k8s.api.core.v1.PersistentVolume")
        .cluster()
        .short(&["pv"])
        .sub(&["status"]),
    kind("", "Pod", "pods", "pod", "io.k8s.api.core.v1.Pod")
        .short(&["po"])
        .sub(&["attach", "binding", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "status"])
        .in_all(),
    kind("", "Secret", "secrets", "secret", "io.k8s.api.core.v1.Secret"),
    kind("", "ServiceAccount", "serviceaccounts", "serviceaccount", "io.k8s.api.core.v1.ServiceAccount").short(&["sa"]).sub(&["token"]),
    kind("", "Service", "services", "service", "io.k8s.api.core.v1.Service").short(&["svc"]).sub(&["proxy", "status"]).in_all(),
    kind(APPS, "ControllerRevision", "controllerrevisions", "controllerrevision", "io.k8s.api.apps.v1.ControllerRevision"),
    kind(APPS, "DaemonSet", "daemonsets", "daemonset", "io.k8s.api.apps.v1.DaemonSet").short(&["ds"]).sub(&["status"]).in_all(),
    kind(APPS, "Deployment", "deployments", "deployment", "io.k8s.api.apps.v1.Deployment").short(&["deploy"]).sub(&["scale", "status"]).in_all(),
    kind(APPS, "ReplicaSet", "replicasets", "replicaset", "io.k8s.api.apps.v1.ReplicaSet").short(&["rs"]).sub(&["scale", "status"]).in_all(),
    kind("coordination.k8s.io", "Lease", "leases", "lease", "io.k8s.api.coordination.v1.Lease"),
    kind("discovery.k8s.io", "EndpointSlice", "endpointslices", "endpointslice", "io.k8s.api.discovery.v1.EndpointSlice"),
    kind(EVENTS, "Event", "events", "event", "io.k8s.api.events.v1.Event").short(&["ev"]),
    kind("node.k8s.io", "RuntimeClass", "runtimeclasses", "runtimeclass", "io.k8s.api.node.v1.RuntimeClass").cluster(),
    kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget", "io.k8s.api.policy.v1.PodDisruptionBudget")
        .short(&["pdb"])
        .sub(&["status"]),
    kind(RBAC, "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding", "io.k8s.api.rbac.v1.ClusterRoleBinding").cluster(),
    kind(RBAC, "ClusterRole", "clusterroles", "clusterrole", "io.k8s.api.rbac.v1.ClusterRole").cluster(),
    kind(RBAC, "RoleBinding", "rolebindings", "rolebinding", "io.k8s.api.rbac.v1.RoleBinding"),
    kind(RBAC, "Role", "roles", "role", "io.k8s.api.rbac.v1.Role"),
    kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", "priorityclass", "io.k8s.api.scheduling.v1.PriorityClass").cluster().short(&["pc"]),
    kind("storage.k8s.io", "StorageClass", "storageclasses", "storageclass", "io.k8s.api.storage.v1.StorageClass").cluster().short(&["sc"]),
];

/// Kinds that can only be created and are answered at once, never stored.
pub const REVIEWS: &[KindInfo] = &[
    review("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", "io.k8s.api.authentication.v1.SelfSubjectReview"),
    review("authentication.k8s.io", "TokenReview", "tokenreviews", "io.k8s.api.authentication.v1.TokenReview"),
    KindInfo {
        namespaced: true,
        ..review(
            "authorization.k8s.io",
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
            "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
        )
    },
    review("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", "io.k8s.api.authorization.v1.SelfSubjectAccessReview"),
    review("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews", "io.k8s.api.authorization.v1.SelfSubjectRulesReview"),
    review("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", "io.k8s.api.authorization.v1.SubjectAccessReview"),
];

/// Kinds whose objects are computed when somebody asks.
pub const METRICS: &[KindInfo] = &[
    KindInfo {
        version: "v1beta1",
        ..kind("metrics.k8s.io", "NodeMetrics", "nodes", "node", "io.k8s.metrics.v1beta1.NodeMetrics").cluster().verbs(READ)
    },
    KindInfo { version: "v1beta1", ..kind("metrics.k8s.io", "PodMetrics", "pods", "pod", "io.k8s.metrics.v1beta1.PodMetrics").verbs(READ) },
];

const fn review(group: &'static str, name: &'static str, plural: &'static str, schema_type: &'static str) -> KindInfo {
    let mut info = kind(group, name, plural, "", schema_type).cluster().verbs(CREATE);
    // Upstream names a review in the singular by its lower-case kind, which is the plural without its s.
    info.singular = without_last(plural);
    info
}

const fn without_last(plural: &'static str) -> &'static str {
    plural.split_at(plural.len() - 1).0
}

/// How discovery describes a subresource: the kind of its body and its verbs.
#[derive(Debug, PartialEq, Eq)]
pub struct SubresourceInfo {
    /// Group of the body's kind.
    pub group: &'static str,
    /// Version of the body's kind.
    pub version: &'static str,
    /// The body's kind.
    pub kind: &'static str,
    /// The verbs, sorted.
    pub verbs: &'static [&'static str],
}

/// What discovery says of a subresource.
pub fn subresource(info: &KindInfo, name: &str) -> SubresourceInfo {
    let own = |verbs| SubresourceInfo { group: info.group, version: info.version, kind: info.kind, verbs };
    let other = |group, version, kind, verbs| SubresourceInfo { group, version, kind, verbs };
    match name {
        "attach" => other("", "v1", "PodAttachOptions", CONNECT),
        "exec" => other("", "v1", "PodExecOptions", CONNECT),
        "portforward" => other("", "v1", "PodPortForwardOptions", CONNECT),
        "scale" => other("autoscaling", "v1", "Scale", &["get", "patch", "update"]),
        "binding" => other("", "v1", "Binding", CREATE),
        "eviction" => other("policy", "v1", "Eviction", CREATE),
        "token" => other("authentication.k8s.io", "v1", "TokenRequest", CREATE),
        "proxy" => {
            let options = match info.plural {
                "pods" => "PodProxyOptions",
                "services" => "ServiceProxyOptions",
                _ => "NodeProxyOptions",
            };
            other("", "v1", options, &["create", "delete", "get", "patch", "update"])
        }
        "log" => own(&["get"]),
        "finalize" => own(&["update"]),
        _ => own(&["get", "patch", "update"]),
    }
}

/// The stored kind of a resource path, if it is served.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static KindInfo> {
    KINDS.iter().find(|info| info.group == group && info.version == version && info.plural == plural)
}

/// Every resource of one group and version in discovery's order (by plural name).
pub fn of_group_version(group: &str, version: &str) -> Vec<&'static KindInfo> {
    let mut found: Vec<_> = KINDS.iter().chain(REVIEWS).chain(METRICS).filter(|info| info.group == group && info.version == version).collect();
    found.sort_by_key(|info| info.plural);
    found
}

/// The served groups with their versions, in upstream's order of priority; the core group comes first.
pub const GROUPS: &[(&str, &[&str])] = &[
    ("", &["v1"]),
    ("apps", &["v1"]),
    ("events.k8s.io", &["v1"]),
    ("authentication.k8s.io", &["v1"]),
    ("authorization.k8s.io", &["v1"]),
    ("policy", &["v1"]),
    ("rbac.authorization.k8s.io", &["v1"]),
    ("storage.k8s.io", &["v1"]),
    ("scheduling.k8s.io", &["v1"]),
    ("coordination.k8s.io", &["v1"]),
    ("node.k8s.io", &["v1"]),
    ("discovery.k8s.io", &["v1"]),
    ("metrics.k8s.io", &["v1beta1"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_in_a_served_group_and_unique() {
        let mut seen = std::collections::HashSet::new();
        for info in KINDS.iter().chain(REVIEWS).chain(METRICS) {
            assert!(seen.insert((info.group, info.plural)), "{} twice", info.plural);
            assert!(GROUPS.iter().any(|(group, versions)| *group == info.group && versions.contains(&info.version)), "{}", info.group);
            assert!(info.schema_type.ends_with(&format!(".{}", info.kind)), "{}", info.schema_type);
            assert!(!info.singular.is_empty());
        }
        for (group, versions) in GROUPS {
            assert!(versions.iter().all(|version| !of_group_version(group, version).is_empty()), "{group} is empty");
        }
    }

    #[test]
    fn kinds_are_found_by_resource() {
        let found = by_resource("apps", "v1", "deployments").unwrap();
        assert_eq!((found.kind, found.api_version().as_str()), ("Deployment", "apps/v1"));
        assert!(by_resource("extensions", "v1beta1", "deployments").is_none());
        assert!(by_resource("authorization.k8s.io", "v1", "subjectaccessreviews").is_none(), "reviews are not stored");
    }

    #[test]
    fn reviews_have_singular_names() {
        assert_eq!(REVIEWS[0].singular, "selfsubjectreview");
    }
}
