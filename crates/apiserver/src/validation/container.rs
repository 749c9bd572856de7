//! Containers of pods (pkg/apis/core/validation: validateContainers, validateInitContainers and what they call).

use super::field::{Errors, Field};
use super::volume::{Volumes, relative_path};
use super::{names, windows};
use kube_rules::Quantity;
use std::collections::HashSet;

/// The regular and the init containers of a pod.
pub fn all(spec: &Field, volumes: &Volumes, is_pod: bool, errors: &mut Errors) {
    let pod_policy = spec.get("restartPolicy").text();
    let containers = spec.get("containers");
    if containers.is_empty() {
        errors.required(&containers, "");
    }
    let mut used = HashSet::new();
    for container in containers.items() {
        common(&container, volumes, pod_policy, errors);
        unique_name(&container, &mut used, errors);
        runtime(&container, &spec.get("os"), errors);
        let policy = container.get("restartPolicy");
        if policy.is_set() {
            errors.one_of(&policy, &["Always", "Never", "OnFailure"]);
        }
    }
    host_port_conflicts(&containers.items(), errors);
    let inits = spec.get("initContainers");
    for container in inits.items() {
        common(&container, volumes, pod_policy, errors);
        errors.one_of_if_set(&container.get("restartPolicy"), &["Always", "Never", "OnFailure"]);
        unique_name(&container, &mut used, errors);
        host_port_conflicts(std::slice::from_ref(&container), errors);
        if container.get("restartPolicy").text() == "Always" {
            runtime(&container, &spec.get("os"), errors);
        } else {
            for member in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                let field = container.get(member);
                if field.is_set() {
                    errors.forbidden(&field, "may not be set for init containers without restartPolicy=Always");
                }
            }
            for policy in container.get("resizePolicy").items().iter().map(|policy| policy.get("restartPolicy")) {
                if policy.text() == "RestartContainer" {
                    errors.invalid(&policy, "must not be set to 'RestartContainer' for non-sidecar initContainers");
                }
            }
        }
    }
    ephemeral(spec, volumes, &mut used, errors);
    let host_network = spec.get("hostNetwork").is_true();
    for container in containers.items().iter().chain(&inits.items()) {
        if host_network {
            host_ports(container, is_pod, errors);
        }
        let image = container.get("image");
        if is_pod && image.text().trim() != image.text() {
            errors.invalid(&image, "must not have leading or trailing whitespace");
        }
    }
}

/// Containers that were added to a running pod: they bring nothing that the pod's admission or scheduling would have to know.
fn ephemeral<'a>(spec: &Field<'a>, volumes: &Volumes, used: &mut HashSet<&'a str>, errors: &mut Errors) {
    const FORBIDDEN: [&str; 8] =
        ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy", "restartPolicy", "restartPolicyRules"];
    const WHY: &str = "cannot be set for an Ephemeral Container";
    let others: HashSet<&str> = used.clone();
    let pod_policy = spec.get("restartPolicy").text();
    for container in spec.get("ephemeralContainers").items() {
        common(&container, volumes, pod_policy, errors);
        unique_name(&container, used, errors);
        let target = container.get("targetContainerName");
        if !target.is_empty() && !others.contains(target.text()) {
            errors.not_found(&target);
        }
        for member in FORBIDDEN {
            if !container.get(member).is_empty() {
                errors.forbidden(&container.get(member), WHY);
            }
        }
        if !container.get("resources").is_empty() {
            errors.forbidden(&container.get("resources"), WHY);
        }
        for mount in container.get("volumeMounts").items() {
            for member in ["subPath", "subPathExpr"] {
                if !mount.get(member).is_empty() {
                    errors.forbidden(&mount.get(member), WHY);
                }
            }
        }
    }
}

fn unique_name<'a>(container: &Field<'a>, used: &mut HashSet<&'a str>, errors: &mut Errors) {
    let name = container.get("name");
    if !name.is_empty() && !used.insert(name.text()) {
        errors.duplicate(&name, name.text());
    }
}

/// What holds for every container.
fn common(container: &Field, volumes: &Volumes, pod_policy: &str, errors: &mut Errors) {
    let name = container.get("name");
    if name.is_empty() {
        errors.required(&name, "");
    } else {
        errors.invalid_each(&name, names::dns_label(name.text()));
    }
    if container.get("image").is_empty() {
        errors.required(&container.get("image"), "");
    }
    errors.one_of(&container.get("terminationMessagePolicy"), &["File", "FallbackToLogsOnError"]);
    ports(&container.get("ports"), errors);
    environment(&container.get("env"), errors);
    environment_sources(&container.get("envFrom"), errors);
    resize_policy(&container.get("resizePolicy"), pod_policy, errors);
    mounts(container, volumes, errors);
    devices(container, volumes, errors);
    errors.one_of(&container.get("imagePullPolicy"), &["Always", "IfNotPresent", "Never"]);
    resources(&container.get("resources"), errors);
    let context = container.get("securityContext");
    for member in ["runAsUser", "runAsGroup"] {
        identifier(&context.get(member), errors);
    }
    let escalation = context.get("allowPrivilegeEscalation");
    if escalation.value == &serde_json::Value::Bool(false) && context.get("privileged").is_true() {
        errors.invalid_value(&context, context.value.clone(), "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
    }
    windows::options(&context.get("windowsOptions"), errors);
}

/// What a resize of a container needs (`validateResizePolicy`).
fn resize_policy(list: &Field, pod_policy: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for item in list.items() {
        // Upstream's errors name the list, not the item.
        let (resource, policy) =
            (Field { path: list.path.clone(), ..item.get("resourceName") }, Field { path: list.path.clone(), ..item.get("restartPolicy") });
        if !seen.insert(resource.text()) {
            errors.duplicate(&item, resource.text());
        }
        errors.one_of(&resource, &["cpu", "memory"]);
        errors.one_of(&policy, &["NotRequired", "RestartContainer"]);
        if pod_policy == "Never" && policy.text() != "NotRequired" {
            errors.invalid(&policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'");
        }
    }
}

/// The signal that asks a container to end: which there are depends on the system, so the pod has to name it.
fn stop_signal(signal: &Field, os: &Field, errors: &mut Errors) {
    if !signal.is_set() {
        return;
    }
    if !os.is_set() {
        errors.forbidden(signal, "may not be set for containers with empty `spec.os.name`");
        return;
    }
    let known: &[&str] = match os.get("name").text() {
        "windows" => &["SIGKILL", "SIGTERM"],
        "linux" => &kube_rules::STOP_SIGNALS,
        _ => return,
    };
    if !known.contains(&signal.text()) {
        // Named in the order of the alphabet, as upstream names them.
        let mut sorted = known.to_vec();
        sorted.sort_unstable();
        errors.not_supported(signal, &sorted);
    }
}

/// Probes and hooks, which containers that stay have.
fn runtime(container: &Field, os: &Field, errors: &mut Errors) {
    let lifecycle = container.get("lifecycle");
    for hook in ["postStart", "preStop"] {
        if lifecycle.get(hook).is_set() {
            handler(&lifecycle.get(hook), &["exec", "httpGet", "tcpSocket", "sleep"], errors);
        }
    }
    stop_signal(&lifecycle.get("stopSignal"), os, errors);
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.get(kind);
        if !probe.is_set() {
            continue;
        }
        handler(&probe, &["exec", "httpGet", "tcpSocket", "grpc"], errors);
        for member in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
            errors.not_negative(&probe.get(member));
        }
        let success = probe.get("successThreshold");
        if kind != "readinessProbe" && success.number() != Some(1) {
            errors.invalid(&success, "must be 1");
        }
        let grace = probe.get("terminationGracePeriodSeconds");
        if kind == "readinessProbe" && grace.is_set() {
            errors.invalid(&grace, "must not be set for readinessProbes");
        } else if grace.number().is_some_and(|seconds| seconds <= 0) {
            errors.invalid(&grace, "must be greater than 0");
        }
    }
}

fn handler(field: &Field, kinds: &[&str], errors: &mut Errors) {
    let mut found = 0;
    for kind in kinds {
        let action = field.get(kind);
        if !action.is_set() {
            continue;
        }
        found += 1;
        if found > 1 {
            errors.forbidden(&action, "may not specify more than 1 handler type");
            continue;
        }
        match *kind {
            "exec" if action.get("command").is_empty() => errors.required(&action.get("command"), ""),
            "httpGet" => {
                if action.get("path").is_empty() {
                    errors.required(&action.get("path"), "");
                }
                port_or_name(&action.get("port"), errors);
                errors.one_of(&action.get("scheme"), &["HTTP", "HTTPS"]);
            }
            "tcpSocket" => port_or_name(&action.get("port"), errors),
            "grpc" => {
                errors.invalid_each(&action.get("port"), names::port_number(action.get("port").number().unwrap_or_default()));
            }
            _ => {}
        }
    }
    if found == 0 {
        errors.required(field, "must specify a handler type");
    }
}

/// A port by number or by name.
pub fn port_or_name(field: &Field, errors: &mut Errors) {
    match field.number() {
        Some(number) => errors.invalid_each(field, names::port_number(number)),
        None => errors.invalid_each(field, names::port_name(field.text())),
    }
}

fn ports(field: &Field, errors: &mut Errors) {
    let mut used = HashSet::new();
    for port in field.items() {
        let (name, number) = (port.get("name"), port.get("containerPort"));
        if !name.is_empty() {
            let problems = names::port_name(name.text());
            if problems.is_empty() && !used.insert(name.text()) {
                errors.duplicate(&name, name.text());
            }
            errors.invalid_each(&name, problems);
        }
        match number.number().unwrap_or_default() {
            0 => errors.required(&number, ""),
            found => errors.invalid_each(&number, names::port_number(found)),
        }
        let host = port.get("hostPort");
        if host.number().is_some_and(|found| found != 0) {
            errors.invalid_each(&host, names::port_number(host.number().unwrap_or_default()));
        }
        errors.one_of(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn host_port_conflicts(containers: &[Field], errors: &mut Errors) {
    let mut used = HashSet::new();
    for port in containers.iter().flat_map(|container| container.get("ports").items()) {
        let number = port.get("hostPort").number().unwrap_or_default();
        let text = format!("{}/{}/{number}", port.get("protocol").text(), port.get("hostIP").text());
        if number != 0 && !used.insert(text.clone()) {
            errors.duplicate(&port.get("hostPort"), text);
        }
    }
}

fn host_ports(container: &Field, is_pod: bool, errors: &mut Errors) {
    for port in container.get("ports").items() {
        let host = port.get("hostPort");
        let number = host.number().unwrap_or_default();
        if (is_pod || number != 0) && number != port.get("containerPort").number().unwrap_or_default() {
            errors.invalid_value(&host, number, "must match `containerPort` when `hostNetwork` is true");
        }
    }
}

fn environment(field: &Field, errors: &mut Errors) {
    for variable in field.items() {
        let name = variable.get("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else {
            errors.invalid_each(&name, names::environment(name.text()));
        }
        let source = variable.get("valueFrom");
        if source.is_set() {
            environment_source(&source, !variable.get("value").is_empty(), errors);
        }
    }
}

fn environment_source(source: &Field, has_value: bool, errors: &mut Errors) {
    const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let found: Vec<Field> = SOURCES.iter().map(|name| source.get(name)).filter(Field::is_set).collect();
    for reference in &found {
        match reference.path.rsplit('.').next() {
            Some("fieldRef") => field_reference(reference, errors),
            Some("resourceFieldRef") if reference.get("resource").is_empty() => errors.required(&reference.get("resource"), ""),
            Some("configMapKeyRef" | "secretKeyRef") => {
                if reference.get("name").is_empty() {
                    errors.required(&reference.get("name"), "");
                }
                key(&reference.get("key"), errors);
            }
            _ => {}
        }
    }
    match found.len() {
        0 => {
            errors.invalid_value(source, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
        }
        _ if has_value => errors.invalid_value(source, "", "may not be specified when `value` is not empty"),
        1 => {}
        _ => errors.invalid_value(source, "", "may not have more than one field specified at a time"),
    }
}

fn key(field: &Field, errors: &mut Errors) {
    if field.is_empty() {
        errors.required(field, "");
    } else {
        errors.invalid_each(field, names::config_key(field.text()));
    }
}

/// A reference to a field of the pod, in an environment variable.
fn field_reference(reference: &Field, errors: &mut Errors) {
    const KNOWN: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    let path = reference.get("fieldPath");
    let subscript = ["metadata.labels['", "metadata.annotations['"].iter().find_map(|prefix| path.text().strip_prefix(prefix)?.strip_suffix("']"));
    if path.is_empty() {
        errors.required(&path, "");
    } else if let Some(label) = subscript {
        for problem in names::qualified(&label.to_lowercase()) {
            errors.invalid_value(reference, label, problem);
        }
    } else if !KNOWN.contains(&path.text()) {
        errors.invalid(&path, format!("error converting fieldPath: field label not supported: {}", path.text()));
    }
}

fn environment_sources(field: &Field, errors: &mut Errors) {
    for source in field.items() {
        let prefix = source.get("prefix");
        if !prefix.is_empty() {
            errors.invalid_each(&prefix, names::environment(prefix.text()));
        }
        let found: Vec<Field> = ["configMapRef", "secretRef"].iter().map(|name| source.get(name)).filter(Field::is_set).collect();
        for reference in &found {
            if reference.get("name").is_empty() {
                errors.required(&reference.get("name"), "");
            }
        }
        match found.len() {
            0 => errors.invalid_value(&source, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid_value(&source, "", "may not have more than one field specified at a time"),
        }
    }
}

/// Any absolute form is a mount path: `/x`, `C:\x`, `c:/x`.
fn mounts(container: &Field, volumes: &Volumes, errors: &mut Errors) {
    let mut used = HashSet::new();
    let devices = container.get("volumeDevices").items();
    for mount in container.get("volumeMounts").items() {
        let (name, path) = (mount.get("name"), mount.get("mountPath"));
        if name.is_empty() {
            errors.required(&name, "");
        }
        if !volumes.contains_key(name.text()) {
            errors.not_found(&name);
        }
        if path.is_empty() {
            errors.required(&path, "");
        }
        if !used.insert(path.text()) {
            errors.invalid(&path, "must be unique");
        }
        if devices.iter().any(|device| device.get("name").text() == name.text()) {
            errors.invalid(&name, "must not already exist in volumeDevices");
        }
        if devices.iter().any(|device| device.get("devicePath").text() == path.text()) {
            errors.invalid(&path, "must not already exist as a path in volumeDevices");
        }
        let (sub, expression) = (mount.get("subPath"), mount.get("subPathExpr"));
        if !sub.is_empty() {
            relative_path(&sub, errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                errors.invalid(&expression, "subPathExpr and subPath are mutually exclusive");
            }
            relative_path(&expression, errors);
        }
        errors.one_of_if_set(&mount.get("mountPropagation"), &["Bidirectional", "HostToContainer", "None"]);
        let recursive = mount.get("recursiveReadOnly");
        errors.one_of_if_set(&recursive, &["Disabled", "Enabled", "IfPossible"]);
    }
}

/// Devices of volumes (`ValidateVolumeDevices`).
fn devices(container: &Field, volumes: &Volumes, errors: &mut Errors) {
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    let mounts = container.get("volumeMounts").items();
    for device in container.get("volumeDevices").items() {
        let (name, path) = (device.get("name"), device.get("devicePath"));
        if name.is_empty() {
            errors.required(&name, "");
        } else if !names.insert(name.text()) {
            errors.invalid(&name, "must be unique");
        }
        match volumes.get(name.text()) {
            Some(true) => {}
            Some(false) => errors.invalid(&name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"),
            None => errors.not_found(&name),
        }
        if path.is_empty() {
            errors.required(&path, "");
        }
        if paths.contains(path.text()) {
            errors.invalid(&path, "must be unique");
        }
        if path.text().split('/').any(|part| part == "..") {
            errors.invalid(&path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path.text());
        }
        if mounts.iter().any(|mount| mount.get("name").text() == name.text()) {
            errors.invalid(&name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| mount.get("mountPath").text() == path.text()) {
            errors.invalid(&path, "must not already exist as a path in volumeMounts");
        }
    }
}

/// A container's resources, or a pod's.
pub fn resources(field: &Field, errors: &mut Errors) {
    let (limits, requests) = (field.get("limits"), field.get("requests"));
    let quantity = |value: &serde_json::Value| value.as_str().and_then(|text| Quantity::parse(text).ok());
    quantities(&limits, errors);
    quantities(&requests, errors);
    for (name, request) in requests.members() {
        let Some((request_value, limit)) = quantity(request).zip(limits.value.get(name).and_then(quantity)) else { continue };
        let extended = name.contains('/') || name.starts_with("hugepages-");
        if extended && request_value != limit {
            errors.invalid_value(&requests, request.clone(), format!("must be equal to {name} limit of {limit}"));
        } else if request_value > limit {
            errors.invalid_value(&requests, request.clone(), format!("must be less than or equal to {name} limit of {limit}"));
        }
    }
}

/// A map of resources to amounts.
pub fn quantities(map: &Field, errors: &mut Errors) {
    for (name, value) in map.members() {
        let entry = map.key(name);
        for problem in resource_name(name) {
            errors.invalid_value(&entry, name.as_str(), problem);
        }
        if value.as_str().and_then(|text| Quantity::parse(text).ok()).is_some_and(|found| found < Quantity::ZERO) {
            errors.invalid(&entry, "must be greater than or equal to 0");
        }
    }
}

pub fn resource_name(name: &str) -> Vec<String> {
    let mut problems = names::qualified(name);
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if problems.is_empty() && !name.contains('/') && !standard {
        problems.push("must be a standard resource for containers".into());
    }
    problems
}

/// A user or group id.
pub fn identifier(field: &Field, errors: &mut Errors) {
    if field.number().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
        errors.invalid(field, "must be between 0 and 2147483647, inclusive");
    }
}
