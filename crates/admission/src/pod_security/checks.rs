//! The checks of the levels baseline and restricted, by version (pod-security-admission/policy).

use super::level::{Level, LevelVersion, Version};
use crate::value::{is_true, list, lookup, members, text, texts};
use kube_rules::sysctl::SAFE;
use serde_json::Value;
use std::collections::BTreeSet;

/// A pod, or what a workload makes pods of.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

/// What is wrong with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is forbidden, such as `host namespaces`.
    pub reason: String,
    /// Where, such as `hostPID=true`; may be empty.
    pub detail: String,
}

type CheckPod = fn(&Pod<'_>) -> Option<Violation>;

struct Check {
    id: &'static str,
    /// From which minor version on which function decides, in ascending order.
    versions: &'static [(u64, CheckPod)],
    /// The baseline check that this one of restricted replaces.
    replaces: &'static str,
}

const fn check(id: &'static str, versions: &'static [(u64, CheckPod)], replaces: &'static str) -> Check {
    Check { id, versions, replaces }
}

/// Sorted by id, so that messages are always the same.
const BASELINE: [Check; 12] = [
    check("appArmorProfile", &[(0, app_armor)], ""),
    check("capabilities_baseline", &[(0, capabilities_baseline)], ""),
    check("hostNamespaces", &[(0, host_namespaces)], ""),
    check("hostPathVolumes", &[(0, host_path_volumes)], ""),
    check("hostPorts", &[(0, host_ports)], ""),
    check("hostProbesAndHostLifecycle", &[(34, host_probes)], ""),
    check("privileged", &[(0, privileged)], ""),
    check("procMount", &[(0, proc_mount), (35, |pod| unless_user_namespace(pod, proc_mount))], ""),
    check("seLinuxOptions", &[(0, |pod| se_linux(pod, &SE_LINUX_TYPES[..4])), (31, |pod| se_linux(pod, &SE_LINUX_TYPES))], ""),
    check("seccompProfile_baseline", &[(0, seccomp_annotations), (19, seccomp_baseline)], ""),
    check(
        "sysctls",
        &[
            (0, |pod| sysctls(pod, &SAFE[..5])),
            (27, |pod| sysctls(pod, &SAFE[..6])),
            (29, |pod| sysctls(pod, &SAFE[..10])),
            (32, |pod| sysctls(pod, SAFE)),
        ],
        "",
    ),
    check("windowsHostProcess", &[(0, windows_host_process)], ""),
];

const RESTRICTED: [Check; 7] = [
    check("allowPrivilegeEscalation", &[(8, privilege_escalation), (25, |pod| unless_windows(pod, privilege_escalation))], ""),
    check(
        "capabilities_restricted",
        &[(22, capabilities_restricted), (25, |pod| unless_windows(pod, capabilities_restricted))],
        "capabilities_baseline",
    ),
    check("procMount_restricted", &[(35, proc_mount)], "procMount"),
    check("restrictedVolumes", &[(0, restricted_volumes)], "hostPathVolumes"),
    check("runAsNonRoot", &[(0, run_as_non_root), (35, |pod| unless_user_namespace(pod, run_as_non_root))], ""),
    check("runAsUser", &[(23, run_as_user), (35, |pod| unless_user_namespace(pod, run_as_user))], ""),
    check("seccompProfile_restricted", &[(19, seccomp_restricted), (25, |pod| unless_windows(pod, seccomp_restricted))], "seccompProfile_baseline"),
];

/// What a pod violates of a level: first what baseline forbids, then what restricted does.
pub fn evaluate(wanted: LevelVersion, pod: &Pod<'_>) -> Vec<Violation> {
    let minor = match wanted.version {
        Version::Minor(minor) => minor,
        Version::Latest => u64::MAX,
    };
    let at = |check: &Check| check.versions.iter().rev().find(|(least, _)| *least <= minor).map(|(_, check)| *check);
    let restricted = if wanted.level == Level::Restricted { &RESTRICTED[..] } else { &[] };
    let baseline = if wanted.level == Level::Privileged { &[] } else { &BASELINE[..] };
    let replaced = |id: &str| restricted.iter().any(|one| one.replaces == id && at(one).is_some());
    let checks = baseline.iter().filter(|one| !replaced(one.id)).chain(restricted);
    checks.filter_map(at).filter_map(|check| check(pod)).collect()
}

const SE_LINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Volumes that restricted allows, and names of the others.
const FREE_VOLUMES: [&str; 9] = ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"];
const OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

type Names<'a> = Vec<&'a str>;
type Values<'a> = BTreeSet<&'a str>;

/// Init containers, containers, ephemeral containers.
fn containers<'a>(pod: &Pod<'a>) -> impl Iterator<Item = &'a Value> + use<'a> {
    let spec = pod.spec;
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |member| list(spec, &[member]))
}

/// Names of the containers that are bad.
fn bad_containers<'a>(pod: &Pod<'a>, mut is_bad: impl FnMut(&'a Value) -> bool) -> Names<'a> {
    containers(pod).filter(|container| is_bad(container)).map(|container| text(container, &["name"])).collect()
}

fn quoted<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    items.into_iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ")
}

fn plural(one: &'static str, several: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { several }
}

/// `container "a"`, `containers "a", "b"`.
fn named(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names.iter().copied()))
}

/// `pod and container "a"`: who sets something; none when nobody does.
fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    match (pod, containers.is_empty()) {
        (false, true) => None,
        (true, true) => Some("pod".into()),
        (false, false) => Some(named(containers)),
        (true, false) => Some(format!("pod and {}", named(containers))),
    }
}

fn violation(reason: &str, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.to_owned(), detail })
}

fn unless_windows(pod: &Pod<'_>, check: CheckPod) -> Option<Violation> {
    if text(pod.spec, &["os", "name"]) == "windows" { None } else { check(pod) }
}

fn unless_user_namespace(pod: &Pod<'_>, check: CheckPod) -> Option<Violation> {
    if lookup(pod.spec, &["hostUsers"]) == Some(&Value::Bool(false)) { None } else { check(pod) }
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let mut values = Values::new();
    let mut is_bad = |object| {
        let Some(profile) = lookup(object, &["securityContext", "appArmorProfile"]) else { return false };
        let kind = text(profile, &["type"]);
        let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind);
        }
        bad
    };
    let on_pod = is_bad(pod.spec);
    let mut setting: Vec<String> = setters(on_pod, &bad_containers(pod, is_bad)).into_iter().collect();
    let allowed = |profile: &str| profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/");
    let annotations: BTreeSet<String> = members(pod.metadata, &["annotations"])
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(key, value)| key.starts_with("container.apparmor.security.beta.kubernetes.io/") && !allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if !annotations.is_empty() {
        setting.push(plural("annotation", "annotations", annotations.len()).to_owned());
    }
    if setting.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len() + annotations.len());
    let bad = quoted(values.into_iter().chain(annotations.iter().map(String::as_str)));
    violation(reason, format!("{} must not set AppArmor profile type to {bad}", setting.join(" and ")))
}

fn capabilities_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let mut values = Values::new();
    let bad = bad_containers(pod, |container| {
        let more = texts(container, &["securityContext", "capabilities", "add"]).into_iter().filter(|one| !CAPABILITIES.contains(one));
        more.map(|one| values.insert(one)).count() > 0
    });
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must not include {} in securityContext.capabilities.add", named(&bad), quoted(values));
    violation("non-default capabilities", detail)
}

fn capabilities_restricted(pod: &Pod<'_>) -> Option<Violation> {
    let mut values = Values::new();
    let keeping = bad_containers(pod, |container| !texts(container, &["securityContext", "capabilities", "drop"]).contains(&"ALL"));
    let adding = bad_containers(pod, |container| {
        let more = texts(container, &["securityContext", "capabilities", "add"]).into_iter().filter(|one| *one != "NET_BIND_SERVICE");
        more.map(|one| values.insert(one)).count() > 0
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!(r#"{} must set securityContext.capabilities.drop=["ALL"]"#, named(&keeping)));
    }
    if !adding.is_empty() {
        details.push(format!("{} must not include {} in securityContext.capabilities.add", named(&adding), quoted(values)));
    }
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|member| is_true(pod.spec, &[member]))
        .map(|member| format!("{member}=true"))
        .collect();
    if shared.is_empty() { None } else { violation("host namespaces", shared.join(", ")) }
}

fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = list(pod.spec, &["volumes"]).iter().filter(|volume| lookup(volume, &["hostPath"]).is_some());
    let names: Names = volumes.map(|volume| text(volume, &["name"])).collect();
    if names.is_empty() {
        return None;
    }
    violation("hostPath volumes", format!("{} {}", plural("volume", "volumes", names.len()), quoted(names)))
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::<String>::new();
    let bad = bad_containers(pod, |container| {
        let used = list(container, &["ports"]).iter().filter_map(|port| lookup(port, &["hostPort"])).filter_map(Value::as_i64);
        used.filter(|port| *port != 0).map(|port| ports.insert(port.to_string())).count() > 0
    });
    if bad.is_empty() {
        return None;
    }
    let (uses, noun) = (plural("uses", "use", bad.len()), plural("hostPort", "hostPorts", ports.len()));
    let all: Vec<String> = ports.into_iter().collect();
    violation("hostPort", format!("{} {uses} {noun} {}", named(&bad), all.join(", ")))
}

fn host_probes(pod: &Pod<'_>) -> Option<Violation> {
    const HANDLERS: [&[&str]; 5] =
        [&["livenessProbe"], &["readinessProbe"], &["startupProbe"], &["lifecycle", "postStart"], &["lifecycle", "preStop"]];
    let mut hosts = Values::new();
    let names: Values = bad_containers(pod, |container| {
        let handlers = HANDLERS.iter().filter_map(|path| lookup(container, path));
        let all = handlers.flat_map(|handler| [text(handler, &["httpGet", "host"]), text(handler, &["tcpSocket", "host"])]);
        all.filter(|host| !host.is_empty()).map(|host| hosts.insert(host)).count() > 0
    })
    .into_iter()
    .collect();
    if names.is_empty() {
        return None;
    }
    let names: Names = names.into_iter().collect();
    let (uses, noun) = (plural("uses", "use", names.len()), plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()));
    violation("probe or lifecycle host", format!("{} {uses} {noun} {}", named(&names), quoted(hosts)))
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = bad_containers(pod, |container| is_true(container, &["securityContext", "privileged"]));
    if bad.is_empty() { None } else { violation("privileged", format!("{} must not set securityContext.privileged=true", named(&bad))) }
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mut values = Values::new();
    let bad = bad_containers(pod, |container| {
        let given = lookup(container, &["securityContext", "procMount"]).and_then(Value::as_str).filter(|mount| *mount != "Default");
        given.map(|mount| values.insert(mount)).is_some()
    });
    if bad.is_empty() {
        return None;
    }
    violation("procMount", format!("{} must not set securityContext.procMount to {}", named(&bad), quoted(values)))
}

fn se_linux(pod: &Pod<'_>, types: &[&str]) -> Option<Violation> {
    let mut bad_types = Values::new();
    let (mut user, mut role) = (false, false);
    let mut is_bad = |object| {
        let Some(options) = lookup(object, &["securityContext", "seLinuxOptions"]) else { return false };
        let kind = text(options, &["type"]);
        let bad = [!types.contains(&kind), !text(options, &["user"]).is_empty(), !text(options, &["role"]).is_empty()];
        if bad[0] {
            bad_types.insert(kind);
        }
        user |= bad[1];
        role |= bad[2];
        bad.contains(&true)
    };
    let on_pod = is_bad(pod.spec);
    let setting = setters(on_pod, &bad_containers(pod, is_bad))?;
    let mut data = Vec::new();
    if !bad_types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", bad_types.len()), quoted(bad_types)));
    }
    data.extend(user.then(|| "user may not be set".to_owned()));
    data.extend(role.then(|| "role may not be set".to_owned()));
    violation("seLinuxOptions", format!("{setting} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")))
}

fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let allowed = |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let of_containers = containers(pod).map(|one| format!("container.seccomp.security.alpha.kubernetes.io/{}", text(one, &["name"])));
    let forbidden: BTreeSet<String> = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned())
        .chain(of_containers)
        .filter_map(|key| lookup(pod.metadata, &["annotations", &key]).and_then(Value::as_str).map(|value| (key, value)))
        .filter(|(_, value)| !allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let noun = plural("annotation", "annotations", forbidden.len());
    violation("seccompProfile", format!("forbidden {noun} {}", forbidden.into_iter().collect::<Vec<_>>().join(", ")))
}

/// The seccomp profile's type, when there is a profile, and whether it is a good one.
fn seccomp_type(object: &Value) -> Option<(&str, bool)> {
    let kind = text(lookup(object, &["securityContext", "seccompProfile"])?, &["type"]);
    Some((kind, matches!(kind, "Localhost" | "RuntimeDefault")))
}

fn seccomp_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let mut values = Values::new();
    let mut is_bad = |object| match seccomp_type(object) {
        Some((kind, false)) => {
            values.insert(kind);
            true
        }
        _ => false,
    };
    let on_pod = is_bad(pod.spec);
    let setting = setters(on_pod, &bad_containers(pod, is_bad))?;
    violation("seccompProfile", format!("{setting} must not set securityContext.seccompProfile.type to {}", quoted(values)))
}

fn seccomp_restricted(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(bad) = seccomp_baseline(pod) {
        return Some(bad);
    }
    let covered = seccomp_type(pod.spec).is_some();
    let bad = bad_containers(pod, |container| !covered && seccomp_type(container).is_none());
    if bad.is_empty() {
        return None;
    }
    let must = r#"must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost""#;
    violation("seccompProfile", format!("pod or {} {must}", named(&bad)))
}

fn sysctls(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let all = list(pod.spec, &["securityContext", "sysctls"]).iter().map(|sysctl| text(sysctl, &["name"]));
    let bad: Names = all.filter(|name| !allowed.contains(name)).collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let is_bad = |object: &Value| is_true(object, &["securityContext", "windowsOptions", "hostProcess"]);
    let setting = setters(is_bad(pod.spec), &bad_containers(pod, is_bad))?;
    violation("hostProcess", format!("{setting} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let allowed = |container: &Value| lookup(container, &["securityContext", "allowPrivilegeEscalation"]) != Some(&Value::Bool(false));
    let bad = bad_containers(pod, allowed);
    if bad.is_empty() {
        return None;
    }
    violation("allowPrivilegeEscalation != false", format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad)))
}

fn restricted_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let has = |volume: &Value, kind: &str| lookup(volume, &[kind]).is_some();
    let volumes = list(pod.spec, &["volumes"]).iter().filter(|volume| !FREE_VOLUMES.iter().any(|kind| has(volume, kind)));
    let (names, kinds): (Names, Values) = volumes
        .map(|volume| {
            let kind = OTHER_VOLUMES.iter().find(|kind| has(volume, kind)).unwrap_or(&"unknown");
            (text(volume, &["name"]), *kind)
        })
        .unzip();
    if names.is_empty() {
        return None;
    }
    let (noun, uses) = (plural("volume", "volumes", names.len()), plural("uses", "use", names.len()));
    let kind = plural("restricted volume type", "restricted volume types", kinds.len());
    violation("restricted volume types", format!("{noun} {} {uses} {kind} {}", quoted(names), quoted(kinds)))
}

fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    let wish = |object: &Value| lookup(object, &["securityContext", "runAsNonRoot"]).and_then(Value::as_bool);
    let of_pod = wish(pod.spec);
    if let Some(setting) = setters(of_pod == Some(false), &bad_containers(pod, |container| wish(container) == Some(false))) {
        return violation("runAsNonRoot != true", format!("{setting} must not set securityContext.runAsNonRoot=false"));
    }
    let silent = bad_containers(pod, |container| wish(container).is_none() && of_pod != Some(true));
    if silent.is_empty() {
        return None;
    }
    violation("runAsNonRoot != true", format!("pod or {} must set securityContext.runAsNonRoot=true", named(&silent)))
}

fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    let is_root = |object: &Value| lookup(object, &["securityContext", "runAsUser"]).and_then(Value::as_i64) == Some(0);
    let setting = setters(is_root(pod.spec), &bad_containers(pod, is_root))?;
    violation("runAsUser=0", format!("{setting} must not set runAsUser=0"))
}
