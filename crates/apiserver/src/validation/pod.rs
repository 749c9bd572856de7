//! Pods and pod templates (pkg/apis/core/validation: ValidatePodSpec and what it calls).

use kube_rules::sysctl;

use super::field::{Errors, Field};
use super::{container, meta, names, pod_update, scheduling, volume, windows};

/// A new or changed pod.
pub fn check(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let pod_spec = new.get("spec");
    if let Some(old) = old {
        if pod_spec.value != old.get("spec").value {
            spec(&pod_spec, true, errors);
            pod_update::check(&pod_spec, &old.get("spec"), errors);
        }
        return;
    }
    spec(&pod_spec, true, errors);
    if !pod_spec.get("ephemeralContainers").is_empty() {
        errors.forbidden(&pod_spec.get("ephemeralContainers"), "cannot be set on create");
    }
    if !pod_spec.get("nodeName").is_empty() && !pod_spec.get("schedulingGates").is_empty() {
        errors.forbidden(&pod_spec.get("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}

/// A pod whose ephemeral containers change.
pub fn check_ephemeral(new: &Field, old: &Field, errors: &mut Errors) {
    spec(&new.get("spec"), true, errors);
    if new.get("metadata").get("annotations").value.get("kubernetes.io/config.mirror").is_some() {
        errors.forbidden(&Field { path: "[]".into(), value: new.value }, "static pods do not support ephemeral containers");
    }
    pod_update::ephemeral(&new.get("spec"), &old.get("spec"), errors);
}

/// The specification of a pod, whatever it was before.
pub fn check_spec(pod_spec: &Field, errors: &mut Errors) {
    spec(pod_spec, true, errors);
}

pub fn template(template: &Field, errors: &mut Errors) {
    meta::labels(&template.get("metadata").get("labels"), errors);
    meta::annotations(&template.get("metadata").get("annotations"), errors);
    let template_spec = template.get("spec");
    spec(&template_spec, false, errors);
    if !template_spec.get("ephemeralContainers").is_empty() {
        errors.forbidden(&template_spec.get("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

/// A pod's specification; some rules hold for pods alone and not for templates.
fn spec(spec: &Field, is_pod: bool, errors: &mut Errors) {
    if !spec.get("terminationGracePeriodSeconds").is_set() {
        errors.required(&spec.get("terminationGracePeriodSeconds"), "");
    }
    let volumes = volume::check(&spec.get("volumes"), errors);
    container::all(spec, &volumes, is_pod, errors);
    let resources = spec.get("resources");
    if !resources.get("claims").is_empty() {
        errors.forbidden(&resources.get("claims"), "claims cannot be set for Resources at pod-level");
    }
    container::resources(&resources, errors);
    errors.one_of(&spec.get("restartPolicy"), &["Always", "OnFailure", "Never"]);
    errors.one_of(&spec.get("dnsPolicy"), &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    meta::labels(&spec.get("nodeSelector"), errors);
    security_context(spec, errors);
    scheduling::affinity(&spec.get("affinity"), errors);
    dns_config(spec, errors);
    for gate in spec.get("readinessGates").items() {
        let condition = gate.get("conditionType");
        errors.invalid_each(&condition, names::qualified(condition.text()));
    }
    scheduling::gates(&spec.get("schedulingGates"), errors);
    scheduling::spread(&spec.get("topologySpreadConstraints"), errors);
    windows::host_process(spec, errors);
    named(spec, errors);
    let deadline = spec.get("activeDeadlineSeconds");
    if deadline.number().is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
        errors.invalid(&deadline, "must be between 1 and 2147483647, inclusive");
    }
    scheduling::tolerations(&spec.get("tolerations"), errors);
    for alias in spec.get("hostAliases").items() {
        errors.invalid_each(&alias.get("ip"), names::ip(alias.get("ip").text()));
        for host in alias.get("hostnames").items() {
            errors.invalid_each(&host, names::dns_subdomain(host.text()));
        }
    }
    errors.one_of_if_set(&spec.get("preemptionPolicy"), &["PreemptLowerPriority", "Never"]);
    windows::operating_system(spec, errors);
}

/// Members that name something.
fn named(spec: &Field, errors: &mut Errors) {
    for member in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        let field = spec.get(member);
        if !field.is_empty() {
            errors.invalid_each(&field, names::dns_subdomain(field.text()));
        }
    }
    for member in ["hostname", "subdomain"] {
        let field = spec.get(member);
        if !field.is_empty() {
            errors.invalid_each(&field, names::dns_label(field.text()));
        }
    }
}

/// Names that the kernel could have (`validateSysctls`); whether a node sets one is the kubelet's to say. A pod in the host's network or IPC
/// namespace would set the host's own.
fn sysctls(spec: &Field, errors: &mut Errors) {
    let mut seen = Vec::new();
    for setting in spec.get("securityContext").get("sysctls").items() {
        let name = setting.get("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else if !sysctl::is_name(name.text()) {
            let pattern = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.invalid(&name, format!("must have at most 253 characters and match regex {pattern}"));
        } else if seen.contains(&name.text()) {
            errors.duplicate(&name, name.text());
        }
        seen.push(name.text());
        let namespace = sysctl::namespace(&sysctl::with_dots(name.text()));
        if spec.get("hostNetwork").is_true() && namespace == Some(sysctl::Namespace::Net) {
            errors.invalid(&name, "may not be specified when 'hostNetwork' is true");
        } else if spec.get("hostIPC").is_true() && namespace == Some(sysctl::Namespace::Ipc) {
            errors.invalid(&name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn security_context(spec: &Field, errors: &mut Errors) {
    let context = spec.get("securityContext");
    sysctls(spec, errors);
    for member in ["fsGroup", "runAsUser", "runAsGroup"] {
        container::identifier(&context.get(member), errors);
    }
    for group in context.get("supplementalGroups").items() {
        container::identifier(&group, errors);
    }
    if spec.get("shareProcessNamespace").is_true() && spec.get("hostPID").is_true() {
        let field = Field { path: format!("{}.shareProcessNamespace", context.path), value: spec.get("shareProcessNamespace").value };
        errors.invalid(&field, "ShareProcessNamespace and HostPID cannot both be enabled");
    }
    errors.one_of_if_set(&context.get("fsGroupChangePolicy"), &["Always", "OnRootMismatch"]);
    windows::options(&context.get("windowsOptions"), errors);
}

fn dns_config(spec: &Field, errors: &mut Errors) {
    let config = spec.get("dnsConfig");
    let servers = config.get("nameservers");
    if spec.get("dnsPolicy").text() == "None" {
        if !config.is_set() {
            return errors.required(&config, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers.is_empty() {
            return errors.required(&servers, "must provide at least one DNS nameserver when `dnsPolicy` is None");
        }
    }
    if servers.items().len() > 3 {
        errors.invalid(&servers, "must not have more than 3 nameservers");
    }
    for server in servers.items() {
        errors.invalid_each(&server, names::ip(server.text()));
    }
    let searches = config.get("searches");
    if searches.items().len() > 32 {
        errors.invalid(&searches, "must not have more than 32 search paths");
    }
    for search in searches.items() {
        let name = search.text().strip_suffix('.').unwrap_or(search.text());
        if !name.is_empty() {
            errors.invalid_each(&search, names::dns_subdomain(name));
        }
    }
    for option in config.get("options").items() {
        if option.get("name").is_empty() {
            errors.required(&option, "must not be empty");
        }
    }
}
