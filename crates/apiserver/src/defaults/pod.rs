//! Pods and pod templates (pkg/apis/core/v1/defaults.go).

use super::{Object, each, inner, made, set};
use serde_json::{Value, json};

/// A pod: what a template gets, and requests from limits, which upstream fills in for pods alone.
pub fn defaults(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    template_spec(spec);
    for list in ["initContainers", "containers"] {
        for container in each(spec, list) {
            requests_from_limits(container);
        }
    }
    set(spec, "enableServiceLinks", || true.into());
    if is_true(spec, "hostNetwork") {
        for list in ["containers", "initContainers"] {
            each(spec, list).for_each(host_ports);
        }
    }
}

/// The specification of a pod or a pod template.
pub fn template_spec(spec: &mut Object) {
    set(spec, "dnsPolicy", || "ClusterFirst".into());
    set(spec, "restartPolicy", || "Always".into());
    if is_true(spec, "hostNetwork") {
        for list in ["containers", "initContainers"] {
            each(spec, list).for_each(host_ports);
        }
    }
    made(spec, "securityContext");
    set(spec, "terminationGracePeriodSeconds", || 30.into());
    set(spec, "schedulerName", || "default-scheduler".into());
    service_account(spec);
    each(spec, "volumes").for_each(volume);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, list).for_each(container);
    }
    for constraint in each(spec, "topologySpreadConstraints") {
        set(constraint, "nodeAffinityPolicy", || "Honor".into());
        set(constraint, "nodeTaintsPolicy", || "Ignore".into());
    }
}

fn is_true(object: &Object, member: &str) -> bool {
    object.get(member).and_then(Value::as_bool).unwrap_or_default()
}

/// `serviceAccount` is the old name of `serviceAccountName`; conversions keep both the same.
fn service_account(spec: &mut Object) {
    let filled = |member: &str| spec.get(member).filter(|value| *value != "").cloned();
    if let Some(name) = filled("serviceAccountName").or_else(|| filled("serviceAccount")) {
        spec.insert("serviceAccountName".into(), name.clone());
        spec.insert("serviceAccount".into(), name);
    }
}

fn host_ports(container: &mut Object) {
    for port in each(container, "ports") {
        let number = port.get("containerPort").cloned();
        if let Some(number) = number
            && port.get("hostPort").is_none_or(|host| host == 0)
        {
            port.insert("hostPort".into(), number);
        }
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = inner(container, "resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if limits.is_empty() {
        return;
    }
    if let Some(requests) = made(resources, "requests") {
        for (name, value) in limits {
            requests.entry(name).or_insert(value);
        }
    }
}

fn container(container: &mut Object) {
    if let Some(image) = container.get("image").and_then(Value::as_str).filter(|image| !image.is_empty()) {
        let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
        set(container, "imagePullPolicy", || policy.into());
    } else {
        set(container, "imagePullPolicy", || "IfNotPresent".into());
    }
    set(container, "terminationMessagePath", || "/dev/termination-log".into());
    set(container, "terminationMessagePolicy", || "File".into());
    made(container, "resources");
    for port in each(container, "ports") {
        set(port, "protocol", || "TCP".into());
    }
    for variable in each(container, "env") {
        if let Some(field) = inner(variable, "valueFrom").and_then(|source| inner(source, "fieldRef")) {
            set(field, "apiVersion", || "v1".into());
        }
        if let Some(file) = inner(variable, "valueFrom").and_then(|source| inner(source, "fileKeyRef")) {
            set(file, "optional", || false.into());
        }
        if let Some(resource) = inner(variable, "valueFrom").and_then(|source| inner(source, "resourceFieldRef")) {
            set(resource, "divisor", || "0".into());
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = inner(container, name) {
            set_probe(probe);
        }
    }
    if let Some(lifecycle) = inner(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(get) = inner(lifecycle, hook).and_then(|hook| inner(hook, "httpGet")) {
                http_get(get);
            }
        }
    }
    if let Some(context) = inner(container, "securityContext")
        && is_true(context, "privileged")
        && context.get("procMount").is_none_or(|mount| mount == "")
    {
        context.insert("procMount".into(), "Default".into());
    }
}

/// Whether the image's tag is `latest`, written or implied. A digest is never latest unless the tag beside it is.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, false), |(name, _)| (name, true));
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => !digest,
    }
}

fn http_get(get: &mut Object) {
    set(get, "path", || "/".into());
    set(get, "scheme", || "HTTP".into());
}

fn set_probe(probe: &mut Object) {
    for (member, value) in [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)] {
        if probe.get(member).is_none_or(|old| old == 0) {
            probe.insert(member.into(), value.into());
        }
    }
    if let Some(get) = inner(probe, "httpGet") {
        http_get(get);
    }
    if let Some(grpc) = inner(probe, "grpc")
        && grpc.get("service").is_none_or(Value::is_null)
    {
        grpc.insert("service".into(), "".into());
    }
}

/// File modes of projected volumes: 0644.
const FILE_MODE: i64 = 420;

fn volume(volume: &mut Object) {
    const NOT_A_SOURCE: &str = "name";
    if !volume.iter().any(|(member, source)| member != NOT_A_SOURCE && !source.is_null()) {
        volume.insert("emptyDir".into(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = inner(volume, source) {
            set(source, "defaultMode", || FILE_MODE.into());
        }
    }
    if let Some(path) = inner(volume, "hostPath")
        && path.get("type").is_none_or(Value::is_null)
    {
        path.insert("type".into(), "".into());
    }
    if let Some(downward) = inner(volume, "downwardAPI") {
        each(downward, "items").for_each(downward_item);
    }
    if let Some(projected) = inner(volume, "projected") {
        for source in each(projected, "sources") {
            if let Some(downward) = inner(source, "downwardAPI") {
                each(downward, "items").for_each(downward_item);
            }
            if let Some(token) = inner(source, "serviceAccountToken") {
                set(token, "expirationSeconds", || 3600.into());
            }
        }
    }
    if let Some(claim) = inner(volume, "ephemeral").and_then(|source| inner(source, "volumeClaimTemplate"))
        && let Some(spec) = inner(claim, "spec")
    {
        set(spec, "volumeMode", || "Filesystem".into());
    }
}

fn downward_item(item: &mut Object) {
    if let Some(field) = inner(item, "fieldRef") {
        set(field, "apiVersion", || "v1".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_is_told_by_the_tag() {
        for (image, latest) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1.2", false),
            ("host:5000/nginx", true),
            ("host:5000/nginx:1", false),
            ("nginx@sha256:ab", false),
            ("nginx:latest@sha256:ab", true),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }
}
