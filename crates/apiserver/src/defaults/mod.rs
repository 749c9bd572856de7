//! What upstream fills in when a client leaves it out (pkg/apis/*/v1/defaults.go), kind by kind.

mod pod;
#[cfg(test)]
mod tests;

use crate::kinds::KindInfo;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// Fills in the defaults of an object of this kind. Doing it twice changes nothing.
pub fn apply(info: &KindInfo, object: &mut Value) {
    let Value::Object(object) = object else { return };
    match (info.group, info.kind) {
        ("", "Pod") => pod::defaults(object),
        ("", "Service") => service(object),
        ("", "Secret") => set(object, "type", || "Opaque".into()),
        ("", "Node") => node(object),
        ("", "Namespace") => namespace(object),
        ("", "Endpoints") => endpoints(object),
        ("", "PersistentVolume") => persistent_volume(object),
        ("", "PersistentVolumeClaim") => persistent_volume_claim(object),
        ("storage.k8s.io", "StorageClass") => {
            set(object, "reclaimPolicy", || "Delete".into());
            set(object, "volumeBindingMode", || "Immediate".into());
        }
        ("scheduling.k8s.io", "PriorityClass") => set(object, "preemptionPolicy", || "PreemptLowerPriority".into()),
        ("apps", "DaemonSet") => daemon_set(object),
        ("apps", "Deployment") => deployment(object),
        ("apps", "ReplicaSet") => replica_set(object),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(object),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(object),
        _ => {}
    }
}

/// Sets a member that is missing or empty text.
fn set(object: &mut Object, member: &str, value: impl FnOnce() -> Value) {
    if object.get(member).is_none_or(|old| old.is_null() || old == "") {
        object.insert(member.to_string(), value());
    }
}

/// The member as an object, when it is one.
fn inner<'a>(object: &'a mut Object, member: &str) -> Option<&'a mut Object> {
    object.get_mut(member).and_then(Value::as_object_mut)
}

/// The member as an object, made when it is missing.
fn made<'a>(object: &'a mut Object, member: &str) -> Option<&'a mut Object> {
    set(object, member, || json!({}));
    inner(object, member)
}

/// The objects in a list member.
fn each<'a>(object: &'a mut Object, member: &str) -> impl Iterator<Item = &'a mut Object> {
    object.get_mut(member).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn is_text(object: &Object, member: &str, text: &str) -> bool {
    object.get(member).is_some_and(|value| value == text)
}

fn service(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "sessionAffinity", || "None".into());
    if is_text(spec, "sessionAffinity", "None") {
        spec.shift_remove("sessionAffinityConfig");
    }
    if is_text(spec, "sessionAffinity", "ClientIP")
        && let Some(client) = made(spec, "sessionAffinityConfig").and_then(|config| made(config, "clientIP"))
    {
        set(client, "timeoutSeconds", || 10800.into());
    }
    set(spec, "type", || "ClusterIP".into());
    for port in each(spec, "ports") {
        set(port, "protocol", || "TCP".into());
        let number = port.get("port").cloned();
        if let Some(number) = number
            && port.get("targetPort").is_none_or(|target| target == 0 || target == "")
        {
            port.insert("targetPort".into(), number);
        }
    }
    let external = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if is_text(spec, "type", "NodePort") || is_text(spec, "type", "LoadBalancer") || (external && is_text(spec, "type", "ClusterIP")) {
        set(spec, "externalTrafficPolicy", || "Cluster".into());
    }
    if !is_text(spec, "type", "ExternalName") {
        set(spec, "internalTrafficPolicy", || "Cluster".into());
    }
    if is_text(spec, "type", "LoadBalancer") {
        set(spec, "allocateLoadBalancerNodePorts", || true.into());
    }
}

fn node(object: &mut Object) {
    if let Some(status) = inner(object, "status")
        && let Some(capacity) = status.get("capacity").cloned()
    {
        set(status, "allocatable", || capacity);
    }
}

fn namespace(object: &mut Object) {
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).cloned();
    if let (Some(name), Some(metadata)) = (name, inner(object, "metadata"))
        && let Some(labels) = made(metadata, "labels")
    {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
    if let Some(status) = made(object, "status") {
        set(status, "phase", || "Active".into());
    }
}

fn endpoints(object: &mut Object) {
    for subset in each(object, "subsets") {
        for port in each(subset, "ports") {
            set(port, "protocol", || "TCP".into());
        }
    }
}

fn endpoint_slice(object: &mut Object) {
    for port in each(object, "ports") {
        if port.get("name").is_none_or(Value::is_null) {
            port.insert("name".into(), "".into());
        }
        set(port, "protocol", || "TCP".into());
    }
}

fn deployment(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "replicas", || 1.into());
    if let Some(strategy) = made(spec, "strategy") {
        set(strategy, "type", || "RollingUpdate".into());
        if is_text(strategy, "type", "RollingUpdate")
            && let Some(rolling) = made(strategy, "rollingUpdate")
        {
            set(rolling, "maxUnavailable", || "25%".into());
            set(rolling, "maxSurge", || "25%".into());
        }
    }
    set(spec, "revisionHistoryLimit", || 10.into());
    set(spec, "progressDeadlineSeconds", || 600.into());
    template(spec);
}

fn daemon_set(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    if let Some(strategy) = made(spec, "updateStrategy") {
        set(strategy, "type", || "RollingUpdate".into());
        if is_text(strategy, "type", "RollingUpdate")
            && let Some(rolling) = made(strategy, "rollingUpdate")
        {
            set(rolling, "maxUnavailable", || 1.into());
            set(rolling, "maxSurge", || 0.into());
        }
    }
    set(spec, "revisionHistoryLimit", || 10.into());
    template(spec);
}

fn persistent_volume(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "persistentVolumeReclaimPolicy", || "Retain".into());
    set(spec, "volumeMode", || "Filesystem".into());
    if let Some(path) = inner(spec, "hostPath")
        && path.get("type").is_none_or(Value::is_null)
    {
        path.insert("type".into(), "".into());
    }
}

fn persistent_volume_claim(object: &mut Object) {
    if let Some(spec) = made(object, "spec") {
        set(spec, "volumeMode", || "Filesystem".into());
    }
}

fn replica_set(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "replicas", || 1.into());
    template(spec);
}

fn template(spec: &mut Object) {
    if let Some(pod_spec) = inner(spec, "template").and_then(|template| inner(template, "spec")) {
        pod::template_spec(pod_spec);
    }
}

fn binding(object: &mut Object) {
    if let Some(role) = inner(object, "roleRef") {
        set(role, "apiGroup", || "rbac.authorization.k8s.io".into());
    }
    for subject in each(object, "subjects") {
        if is_text(subject, "kind", "User") || is_text(subject, "kind", "Group") {
            set(subject, "apiGroup", || "rbac.authorization.k8s.io".into());
        }
    }
}
