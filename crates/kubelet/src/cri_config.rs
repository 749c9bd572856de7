//! The CRI requests for a pod: what upstream's kubelet would send, in the node's own path form.

mod dns;
mod modules;
mod names;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cri::defaults::{MASKED_PATHS, READONLY_PATHS};
use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use host::{NodeOs, PodPath};
use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext};
use kube_rules::{container_path, expand};

use crate::cgroups::{self, Name};
use crate::config::{Capacity, Cgroups, Resolver};
use crate::devices::Options;
use crate::pod::resources::{self, Kernel};
use crate::pod::{container_hash, containers, is_host_network};
use crate::runtime::annotations;

pub(crate) use dns::{dns, resolver_beyond_limits};
pub(crate) use modules::{Modules, admit as admit_app_armor, relabels};
pub(crate) use names::{NameTooLong, Names};

/// Why a container's security settings make no request. `container` names it with its pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecurityError {
    #[error("container's runAsUser breaks non-root policy {container}")]
    RunAsRoot { container: String },
    #[error("container has runAsNonRoot and image will run as root {container}")]
    ImageRunsAsRoot { container: String },
    #[error("container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {container}")]
    NonNumericUser { user: String, container: String },
    #[error("container's runAsUserName ({user}) which will be regarded as root identity and will break non-root policy {container}")]
    RunAsAdministrator { user: String, container: String },
    #[error("localhostProfile must be set if seccompProfile type is Localhost {container}")]
    NoLocalhostProfile { container: String },
    #[error("seccompProfile type {profile:?} is unknown {container}")]
    UnknownSeccompType { profile: String, container: String },
    #[error("missing localhost apparmor profile name {container}")]
    NoAppArmorProfile { container: String },
    #[error("unknown apparmor profile type: {profile:?} {container}")]
    UnknownAppArmorType { profile: String, container: String },
}

/// What is the same for all pods of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeSide {
    pub os: NodeOs,
    pub node_name: String,
    pub capacity: Capacity,
    /// Whether [`HYPER_V`] is obeyed.
    pub hyper_v_container: bool,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    pub resolver: Resolver,
    pub kernel: Kernel,
    /// The control group of all pods; None where pods have no groups of their own.
    pub pod_groups: Option<Name>,
    /// How control groups are named, where the runtime does not say how.
    pub cgroups: Cgroups,
    /// What the runtime says of that.
    pub runtime_cgroups: Arc<OnceLock<Cgroups>>,
    /// Containers without a seccomp profile have the runtime's.
    pub seccomp_default: bool,
    /// Where profiles of type Localhost are.
    pub seccomp_dir: String,
    /// Security modules of the machine's kernel.
    pub modules: Modules,
    pub unsafe_sysctls: Vec<String>,
}

/// Asks for Hyper-V isolation, with value `hyperv`, where feature switch `HyperVContainer` is on.
const HYPER_V: &str = "experimental.windows.kubernetes.io/isolation-type";

impl NodeSide {
    /// How control groups are named.
    pub(crate) fn driver(&self) -> Cgroups {
        self.runtime_cgroups.get().copied().unwrap_or(self.cgroups)
    }

    /// Whether the runtime starts the pod in a virtual machine of its own, which runs images of older builds too.
    pub(crate) fn isolates(&self, pod: &Pod) -> bool {
        let asked = || pod.metadata.annotations.as_ref().and_then(|all| all.get(HYPER_V)).is_some_and(|value| value == "hyperv");
        self.hyper_v_container && self.os.is_windows() && asked()
    }
}

/// The image a container will run.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageUse {
    /// What the runtime calls it.
    pub reference: String,
    /// Its own user, by number.
    pub uid: Option<i64>,
    /// Its own user, by name.
    pub username: String,
}

/// The parts of a container that are not in its spec.
pub(crate) struct ContainerSide<'a> {
    pub image: &'a ImageUse,
    pub restarts: u32,
    pub env: Vec<(String, String)>,
    pub mounts: Vec<v1::Mount>,
    pub devices: Vec<v1::Device>,
    /// What device plug-ins give it; what the pod says comes after it.
    pub given: Options,
    /// The container whose processes this one sees (Linux).
    pub target: Option<String>,
    /// Whose users it has; None on Windows.
    pub users: Option<v1::UserNamespace>,
}

fn text(o: &Option<String>) -> String {
    o.clone().unwrap_or_default()
}

fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    let m = &pod.metadata;
    HashMap::from([(POD_NAME.to_owned(), text(&m.name)), (POD_NAMESPACE.to_owned(), text(&m.namespace)), (POD_UID.to_owned(), text(&m.uid))])
}

/// # Errors
/// When the pod's name is too long.
pub(crate) fn sandbox(
    node: &NodeSide,
    pod: &Pod,
    attempt: u32,
    logs: &PodPath,
    users: Option<v1::UserNamespace>,
) -> Result<v1::PodSandboxConfig, NameTooLong> {
    let m = &pod.metadata;
    let spec = pod.spec.clone().unwrap_or_default();
    let mut labels: HashMap<String, String> = m.labels.clone().unwrap_or_default().into_iter().collect();
    labels.extend(pod_labels(pod));
    let ports = spec.containers.iter().flat_map(|c| c.ports.iter().flatten());
    let port_mappings = ports
        .map(|p| v1::PortMapping {
            protocol: match p.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            } as i32,
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or(0),
            host_ip: text(&p.host_ip),
        })
        .collect();
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata { name: text(&m.name), uid: text(&m.uid), namespace: text(&m.namespace), attempt }),
        hostname: names::of_sandbox(node, pod)?,
        log_directory: logs.to_string(),
        dns_config: Some(dns(node, pod).config),
        port_mappings: if is_host_network(pod) { Vec::new() } else { port_mappings },
        labels,
        annotations: m
            .annotations
            .iter()
            .flatten()
            .filter(|(key, _)| node.hyper_v_container || *key != HYPER_V)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
        linux: Some(linux_sandbox(node, pod, users)),
        windows: node.os.is_windows().then(|| windows_sandbox(pod)),
    })
}

fn namespaces(pod: &Pod, users_options: Option<v1::UserNamespace>) -> v1::NamespaceOption {
    let spec = pod.spec.clone().unwrap_or_default();
    let mode = |on_host: Option<bool>, otherwise| {
        if on_host == Some(true) { v1::NamespaceMode::Node as i32 } else { otherwise as i32 }
    };
    let shared = spec.share_process_namespace == Some(true);
    let pid = if shared { v1::NamespaceMode::Pod } else { v1::NamespaceMode::Container };
    v1::NamespaceOption {
        network: mode(spec.host_network, v1::NamespaceMode::Pod),
        pid: mode(spec.host_pid, pid),
        ipc: mode(spec.host_ipc, v1::NamespaceMode::Pod),
        userns_options: users_options,
        ..Default::default()
    }
}

fn linux_sandbox(node: &NodeSide, pod: &Pod, users: Option<v1::UserNamespace>) -> v1::LinuxPodSandboxConfig {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default();
    let mut security = v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, users)),
        seccomp: Some(v1::SecurityProfile { profile_type: v1::security_profile::ProfileType::RuntimeDefault as i32, ..Default::default() }),
        ..Default::default()
    };
    let mut config = v1::LinuxPodSandboxConfig::default();
    if !node.os.is_windows() {
        security.privileged = pod.spec.as_ref().is_some_and(has_privileged);
        security.run_as_user = context.run_as_user.map(|value| v1::Int64Value { value });
        security.run_as_group = context.run_as_group.map(|value| v1::Int64Value { value });
        security.supplemental_groups = groups(&context);
        security.supplemental_groups_policy = groups_policy(&context) as i32;
        security.selinux_options = modules::selinux_of_pod(&context);
        let sysctls = context.sysctls.unwrap_or_default();
        config.sysctls = sysctls.into_iter().map(|s| (kube_rules::sysctl::with_dots(&s.name), s.value)).collect();
        config.cgroup_parent = cgroup_parent(node, pod);
        let none = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&none);
        config.resources = Some(resources::linux_sandbox(spec, &node.kernel));
        config.overhead = Some(resources::linux_overhead(spec, &node.kernel));
    }
    config.security_context = Some(security);
    config
}

/// Whether a runtime has to let a privileged container into the pod's sandbox.
fn has_privileged(spec: &PodSpec) -> bool {
    let privileged = |c: &Container| c.security_context.as_ref().and_then(|context| context.privileged) == Some(true);
    containers(spec).any(|(_, c)| privileged(c))
}

fn groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.into_iter().chain(context.supplemental_groups.clone().unwrap_or_default()).collect()
}

/// Whether a container has the groups of its image's user beside those of the pod.
fn groups_policy(context: &PodSecurityContext) -> v1::SupplementalGroupsPolicy {
    match context.supplemental_groups_policy.as_deref() {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict,
        _ => v1::SupplementalGroupsPolicy::Merge,
    }
}

/// The pod's control group as the runtime is told of it; empty for one of the runtime's choice.
fn cgroup_parent(node: &NodeSide, pod: &Pod) -> String {
    let driver = node.driver();
    let name = node.pod_groups.as_ref().and_then(|pods| cgroups::of_pod(pods, pod));
    name.map(|name| name.path(driver)).unwrap_or_default()
}

fn windows_sandbox(pod: &Pod) -> v1::WindowsPodSandboxConfig {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default();
    let options = context.windows_options.unwrap_or_default();
    v1::WindowsPodSandboxConfig {
        security_context: Some(v1::WindowsSandboxSecurityContext {
            run_as_username: text(&options.run_as_user_name),
            credential_spec: text(&options.gmsa_credential_spec),
            host_process: kube_rules::admission::is_host_process(pod),
            namespace_options: None,
        }),
    }
}

/// What upstream's kubelet writes into annotations to find it again after a restart.
fn notes(pod: &Pod, c: &Container, restarts: u32) -> HashMap<String, String> {
    let message_path = c.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into());
    let spec = pod.spec.as_ref();
    let grace = spec.and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
    let mut notes = HashMap::from([
        (annotations::HASH.to_owned(), container_hash(c)),
        (annotations::RESTARTS.to_owned(), restarts.to_string()),
        (annotations::MESSAGE_PATH.to_owned(), message_path),
        (annotations::MESSAGE_POLICY.to_owned(), c.termination_message_policy.clone().unwrap_or_else(|| "File".into())),
        (annotations::GRACE.to_owned(), grace.to_string()),
    ]);
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        notes.insert(annotations::DELETION_GRACE.to_owned(), grace.to_string());
    }
    // Upstream's kubelet runs the hook of a container whose pod it no longer knows.
    if let Some(hook) = c.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
        notes.insert(annotations::PRE_STOP.to_owned(), serde_json::to_string(hook).unwrap_or_default());
    }
    if let Some(ports) = c.ports.as_ref().filter(|ports| !ports.is_empty()) {
        notes.insert(annotations::PORTS.to_owned(), serde_json::to_string(ports).unwrap_or_default());
    }
    notes
}

pub(crate) fn container(node: &NodeSide, pod: &Pod, c: &Container, side: ContainerSide<'_>) -> Result<v1::ContainerConfig, SecurityError> {
    let Options { envs, mut mounts, mut devices, annotations: given_notes, cdi_devices } = side.given;
    mounts.extend(side.mounts);
    devices.extend(side.devices);
    let lookup = |name: &str| side.env.iter().chain(&envs).find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let expanded = |list: &Option<Vec<String>>| -> Vec<String> { list.iter().flatten().map(|s| expand(s, lookup)).collect() };
    let mut labels = pod_labels(pod);
    labels.insert(CONTAINER_NAME.to_owned(), c.name.clone());
    let (linux, windows) = if node.os.is_windows() {
        (None, Some(windows_container(node, pod, c, side.image)?))
    } else {
        let mut linux = linux_container(node, pod, c, side.image)?;
        // Files of mounts belong to the pod's users, not to the node's.
        for mount in &mut mounts {
            let ids = |ids: fn(&v1::UserNamespace) -> &Vec<v1::IdMapping>| side.users.as_ref().map(|users| ids(users).clone()).unwrap_or_default();
            mount.uid_mappings = ids(|users| &users.uids);
            mount.gid_mappings = ids(|users| &users.gids);
        }
        if let Some(options) = linux.security_context.as_mut().and_then(|security| security.namespace_options.as_mut()) {
            options.userns_options = side.users;
        }
        if let (Some(target), Some(security)) = (&side.target, &mut linux.security_context)
            && let Some(options) = &mut security.namespace_options
        {
            options.pid = v1::NamespaceMode::Target as i32;
            options.target_id.clone_from(target);
        }
        (Some(linux), None)
    };
    let working_dir = text(&c.working_dir);
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: c.name.clone(), attempt: side.restarts }),
        image: Some(v1::ImageSpec { image: side.image.reference.clone(), user_specified_image: text(&c.image), ..Default::default() }),
        command: expanded(&c.command),
        args: expanded(&c.args),
        working_dir: if working_dir.is_empty() { working_dir } else { in_form(node.os, &working_dir) },
        envs: envs.iter().chain(&side.env).map(|(k, v)| v1::KeyValue { key: k.clone(), value: v.clone() }).collect(),
        mounts,
        devices,
        labels,
        // The agent's own annotations count more than those of plug-ins.
        annotations: given_notes.into_iter().chain(notes(pod, c, side.restarts)).collect(),
        cdi_devices,
        log_path: format!("{}/{}.log", c.name, side.restarts),
        stdin: c.stdin == Some(true),
        stdin_once: c.stdin_once == Some(true),
        tty: c.tty == Some(true),
        linux,
        windows,
    })
}

fn in_form(os: NodeOs, path: &str) -> String {
    if os.is_windows() { container_path(os, path) } else { path.to_owned() }
}

/// One mount in the form CRI wants.
pub(crate) fn mount(os: NodeOs, inside: &str, host: &PodPath, readonly: bool) -> v1::Mount {
    v1::Mount { container_path: container_path(os, inside), host_path: host.to_string(), readonly, ..Default::default() }
}

/// Whether what is mounted below a volume later appears on the other side; on Windows it never does.
pub(crate) fn propagation(os: NodeOs, mode: Option<&str>) -> v1::MountPropagation {
    match mode {
        Some("HostToContainer") if !os.is_windows() => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") if !os.is_windows() => v1::MountPropagation::PropagationBidirectional,
        _ => v1::MountPropagation::PropagationPrivate,
    }
}

/// The mount of an image, which containers can only read.
pub(crate) fn image_mount(os: NodeOs, inside: &str, image: &v1::ImageSpec) -> v1::Mount {
    let image = Some(image.clone());
    v1::Mount { container_path: container_path(os, inside), image, readonly: true, ..Default::default() }
}

fn who(pod: &Pod, c: &Container) -> String {
    let m = &pod.metadata;
    format!("(pod: \"{}_{}({})\", container: {})", text(&m.name), text(&m.namespace), text(&m.uid), c.name)
}

/// Whether a container that must not run as root does not.
fn check_non_root(user: Option<i64>, image: &ImageUse, container: String) -> Result<(), SecurityError> {
    match user.or(image.uid) {
        Some(0) if user.is_some() => Err(SecurityError::RunAsRoot { container }),
        None if !image.username.is_empty() => Err(SecurityError::NonNumericUser { user: image.username.clone(), container }),
        Some(0) | None => Err(SecurityError::ImageRunsAsRoot { container }),
        Some(_) => Ok(()),
    }
}

fn linux_container(node: &NodeSide, pod: &Pod, c: &Container, image: &ImageUse) -> Result<v1::LinuxContainerConfig, SecurityError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let p = spec.security_context.clone().unwrap_or_default();
    let s: SecurityContext = c.security_context.clone().unwrap_or_default();
    // The user is decided from spec and image at every create.
    let user = s.run_as_user.or(p.run_as_user);
    let effective = user.or(image.uid);
    if s.run_as_non_root.or(p.run_as_non_root) == Some(true) {
        check_non_root(user, image, who(pod, c))?;
    }
    let privileged = s.privileged == Some(true);
    let caps = s.capabilities.unwrap_or_default();
    let seccomp = s.seccomp_profile.or(p.seccomp_profile.clone());
    let paths = |list: &[&str]| list.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
    let (apparmor, apparmor_profile) = modules::app_armor(pod, c, || who(pod, c))?;
    let open = privileged || s.proc_mount.as_deref() == Some("Unmasked");
    Ok(v1::LinuxContainerConfig {
        resources: Some(resources::linux(pod, c, node.capacity.memory_bytes, &node.kernel)),
        security_context: Some(v1::LinuxContainerSecurityContext {
            capabilities: Some(v1::Capability {
                add_capabilities: caps.add.unwrap_or_default(),
                drop_capabilities: caps.drop.unwrap_or_default(),
                ..Default::default()
            }),
            privileged,
            namespace_options: Some(namespaces(pod, None)),
            run_as_user: effective.map(|value| v1::Int64Value { value }),
            run_as_username: if effective.is_none() { image.username.clone() } else { String::new() },
            run_as_group: s.run_as_group.or(p.run_as_group).map(|value| v1::Int64Value { value }),
            readonly_rootfs: s.read_only_root_filesystem == Some(true),
            supplemental_groups: groups(&p),
            supplemental_groups_policy: groups_policy(&p) as i32,
            no_new_privs: s.allow_privilege_escalation == Some(false),
            masked_paths: if open { Vec::new() } else { paths(MASKED_PATHS) },
            readonly_paths: if open { Vec::new() } else { paths(READONLY_PATHS) },
            seccomp: Some(seccomp_profile(seccomp.as_ref(), node, || who(pod, c))?),
            apparmor,
            selinux_options: modules::selinux(&p, c),
            ..modules::for_older_runtimes(apparmor_profile)
        }),
    })
}

fn seccomp_profile(profile: Option<&SeccompProfile>, node: &NodeSide, container: impl Fn() -> String) -> Result<v1::SecurityProfile, SecurityError> {
    use v1::security_profile::ProfileType;
    let of = |kind: ProfileType| v1::SecurityProfile { profile_type: kind as i32, localhost_ref: String::new() };
    match profile {
        None if node.seccomp_default => Ok(of(ProfileType::RuntimeDefault)),
        None => Ok(of(ProfileType::Unconfined)),
        Some(p) => match p.type_.as_str() {
            "RuntimeDefault" => Ok(of(ProfileType::RuntimeDefault)),
            "Unconfined" => Ok(of(ProfileType::Unconfined)),
            "Localhost" => {
                // An empty name once meant "unconfined" (CVE-2023-2431).
                let name = p.localhost_profile.clone().filter(|n| !n.is_empty());
                let name = name.ok_or_else(|| SecurityError::NoLocalhostProfile { container: container() })?;
                Ok(v1::SecurityProfile {
                    profile_type: ProfileType::Localhost as i32,
                    localhost_ref: format!("{}/{}", node.seccomp_dir, name.trim_start_matches('/')),
                })
            }
            other => Err(SecurityError::UnknownSeccompType { profile: other.to_owned(), container: container() }),
        },
    }
}

/// The signal that asks the container to end; None where its image says (upstream `getContainerConfigStopSignal`).
pub(crate) fn stop_signal(c: &Container) -> Option<cri::Signal> {
    cri::Signal::named(c.lifecycle.as_ref()?.stop_signal.as_deref()?)
}

fn windows_container(node: &NodeSide, pod: &Pod, c: &Container, image: &ImageUse) -> Result<v1::WindowsContainerConfig, SecurityError> {
    let p = pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default();
    let s = c.security_context.clone().unwrap_or_default();
    let (pod_side, own) = (p.windows_options.unwrap_or_default(), s.windows_options.unwrap_or_default());
    let user = own.run_as_user_name.or(pod_side.run_as_user_name);
    let effective = user.clone().unwrap_or_else(|| image.username.clone());
    if s.run_as_non_root.or(p.run_as_non_root) == Some(true)
        && effective.rsplit('\\').next().is_some_and(|n| n.eq_ignore_ascii_case("ContainerAdministrator"))
    {
        return Err(SecurityError::RunAsAdministrator { user: effective, container: who(pod, c) });
    }
    Ok(v1::WindowsContainerConfig {
        resources: Some(resources::windows(c, node.capacity.cpu_millis)),
        security_context: Some(v1::WindowsContainerSecurityContext {
            run_as_username: user.unwrap_or_default(),
            credential_spec: own.gmsa_credential_spec.or(pod_side.gmsa_credential_spec).unwrap_or_default(),
            host_process: own.host_process.or(pod_side.host_process) == Some(true),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    pub(super) fn node(os: NodeOs) -> NodeSide {
        NodeSide {
            os,
            node_name: "win01".into(),
            capacity: Capacity { cpu_millis: 8000, memory_bytes: 16 << 30, pods: 110, ephemeral_storage_bytes: 0 },
            hyper_v_container: false,
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            resolver: Resolver { servers: vec!["1.1.1.1".into()], searches: vec!["corp".into()], ..Resolver::default() },
            kernel: Kernel::default(),
            pod_groups: Some(Name::parse("/kubepods")),
            cgroups: Cgroups::Files,
            runtime_cgroups: Arc::default(),
            seccomp_default: false,
            seccomp_dir: "/var/lib/kubelet/seccomp".into(),
            modules: Modules::default(),
            unsafe_sysctls: Vec::new(),
        }
    }

    const WIN: NodeOs = NodeOs::Windows { build: 20348 };

    pub(super) fn pod(spec: serde_json::Value) -> Pod {
        let mut full = json!({"containers": [{"name": "c", "image": "img"}]});
        for (k, v) in spec.as_object().unwrap() {
            full[k] = v.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}}, "spec": full})).unwrap()
    }

    fn config(os: NodeOs, pod: &Pod, image: ImageUse) -> Result<v1::ContainerConfig, SecurityError> {
        let env = vec![("V".to_owned(), "1".to_owned())];
        let side =
            ContainerSide { image: &image, restarts: 2, env, mounts: vec![], devices: vec![], given: Options::default(), users: None, target: None };
        container(&node(os), pod, &pod.spec.as_ref().unwrap().containers[0], side)
    }

    #[test]
    fn containers_may_have_a_stop_signal() {
        for (lifecycle, want) in [
            (json!(null), None),
            (json!({}), None),
            (json!({"stopSignal": "SIGUSR1"}), Some("SIGUSR1")),
            (json!({"stopSignal": "SIGRTMIN+3", "preStop": {"sleep": {"seconds": 1}}}), Some("SIGRTMIN+3")),
            (json!({"stopSignal": "SIGNONE"}), None),
        ] {
            let c: Container = serde_json::from_value(json!({"name": "c", "lifecycle": lifecycle})).unwrap();
            assert_eq!(stop_signal(&c).map(cri::Signal::name), want, "{lifecycle}");
        }
    }

    #[test]
    fn resolver_by_policy() {
        for (spec, want) in [
            (json!({}), "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp | ndots:5"),
            (json!({"dnsPolicy": "Default"}), "1.1.1.1 | corp | "),
            (json!({"hostNetwork": true}), "1.1.1.1 | corp | "),
            (
                json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
                "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp | ndots:5",
            ),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"], "searches": ["x"], "options": [{"name": "edns0"}]}}),
                "9.9.9.9 | x | edns0",
            ),
            (
                json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}]}}),
                "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp | ndots:2",
            ),
        ] {
            let d = dns(&node(WIN), &pod(spec.clone())).config;
            let shown = format!("{} | {} | {}", d.servers.join(" "), d.searches.join(" "), d.options.join(" "));
            assert_eq!(shown, want, "{spec}");
        }
    }

    #[test]
    fn a_windows_sandbox() {
        let logs = PodPath::parse(WIN, "/var/log/pods/ns_p_u").unwrap();
        let p = pod(json!({"securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}},
            "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}));
        let s = sandbox(&node(WIN), &p, 1, &logs, None).unwrap();
        assert_eq!(s.log_directory, r"C:\var\log\pods\ns_p_u");
        assert_eq!(s.hostname, "p");
        assert_eq!((s.port_mappings[0].container_port, s.port_mappings[0].host_port), (80, 8080));
        assert_eq!(s.windows.unwrap().security_context.unwrap().run_as_username, "ContainerUser");
        assert_eq!(s.labels["io.kubernetes.pod.uid"], "u");
        assert_eq!(s.labels["a"], "b");
    }

    #[test]
    fn a_sandbox_lets_privileged_containers_in_only_where_the_pod_has_one() {
        let logs = PodPath::parse(NodeOs::Linux, "/var/log/pods/ns_p_u").unwrap();
        let c = |name: &str, privileged: bool| json!({"name": name, "image": "img", "securityContext": {"privileged": privileged}});
        for (spec, want) in [
            (json!({"containers": [c("a", false), c("b", false)]}), false),
            (json!({"containers": [c("a", false), c("b", true)]}), true),
            (json!({"initContainers": [c("i", true)], "containers": [c("a", false)]}), true),
        ] {
            let config = sandbox(&node(NodeOs::Linux), &pod(spec.clone()), 0, &logs, None).unwrap();
            assert_eq!(config.linux.unwrap().security_context.unwrap().privileged, want, "{spec}");
        }
    }

    #[test]
    fn containers_by_system() {
        let p = pod(json!({"containers": [{"name": "c", "image": "img", "command": ["run", "$(V)"], "args": ["$(NO)"], "workingDir": "/app"}]}));
        let w = config(WIN, &p, ImageUse { reference: "sha".into(), ..Default::default() }).unwrap();
        assert_eq!((w.command, w.args, w.working_dir.as_str()), (vec!["run".into(), "1".into()], vec!["$(NO)".into()], r"C:\app"));
        assert_eq!(w.log_path, "c/2.log");
        assert_eq!(w.annotations[annotations::RESTARTS], "2");
        assert!(w.linux.is_none() && w.windows.is_some());
        let l = config(NodeOs::Linux, &p, ImageUse::default()).unwrap();
        assert!(l.linux.is_some() && l.windows.is_none() && l.working_dir == "/app");
    }

    #[test]
    fn non_root_is_decided_from_spec_and_image() {
        let linux = |context: serde_json::Value, uid, name: &str| {
            let p = pod(json!({"securityContext": context}));
            config(NodeOs::Linux, &p, ImageUse { uid, username: name.into(), ..Default::default() }).is_ok()
        };
        assert!(linux(json!({}), Some(0), ""));
        assert!(!linux(json!({"runAsNonRoot": true}), Some(0), ""));
        assert!(!linux(json!({"runAsNonRoot": true}), None, ""));
        assert!(!linux(json!({"runAsNonRoot": true}), None, "app"));
        assert!(linux(json!({"runAsNonRoot": true, "runAsUser": 5}), Some(0), ""));
        assert!(!linux(json!({"runAsNonRoot": true, "runAsUser": 0}), Some(5), ""));
        let windows = |name: &str, image: &str| {
            let p = pod(json!({"securityContext": {"runAsNonRoot": true, "windowsOptions": {"runAsUserName": name}}}));
            let q = pod(json!({"securityContext": {"runAsNonRoot": true}}));
            let p = if name.is_empty() { q } else { p };
            config(WIN, &p, ImageUse { username: image.into(), ..Default::default() }).is_ok()
        };
        assert!(!windows("CONTAINERADMINISTRATOR", ""));
        assert!(!windows("", "ContainerAdministrator"));
        assert!(windows("ContainerUser", "ContainerAdministrator"));
    }

    /// What upstream's kubelet 1.36 sends for such a pod (`NamespacesForPod`, `applyPlatformSpecificContainerConfig`).
    #[test]
    fn users_of_a_pod_are_those_of_its_sandbox_its_containers_and_their_mounts() {
        let ids = vec![v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let users = v1::UserNamespace { mode: v1::NamespaceMode::Pod as i32, uids: ids.clone(), gids: ids.clone() };
        let p = pod(json!({"hostUsers": false, "containers": [{"name": "c", "image": "img"}]}));
        let logs = PodPath::parse(NodeOs::Linux, "/var/log/pods/ns_p_u").unwrap();
        let options =
            sandbox(&node(NodeOs::Linux), &p, 0, &logs, Some(users.clone())).unwrap().linux.unwrap().security_context.unwrap().namespace_options;
        let wanted = v1::NamespaceOption {
            network: v1::NamespaceMode::Pod as i32,
            pid: v1::NamespaceMode::Container as i32,
            ipc: v1::NamespaceMode::Pod as i32,
            target_id: String::new(),
            userns_options: Some(users.clone()),
        };
        assert_eq!(options.as_ref(), Some(&wanted));
        let given = Options { mounts: vec![v1::Mount::default()], ..Options::default() };
        let image = ImageUse::default();
        let mounts = vec![v1::Mount::default()];
        let side = ContainerSide { image: &image, restarts: 0, env: vec![], mounts, devices: vec![], given, target: None, users: Some(users) };
        let config = container(&node(NodeOs::Linux), &p, &p.spec.as_ref().unwrap().containers[0], side).unwrap();
        assert_eq!(config.linux.unwrap().security_context.unwrap().namespace_options, Some(wanted));
        assert!(config.mounts.len() == 2 && config.mounts.iter().all(|mount| mount.uid_mappings == ids && mount.gid_mappings == ids));
    }

    #[test]
    fn mounts_spread_as_asked_but_on_windows() {
        use v1::MountPropagation::{PropagationBidirectional, PropagationHostToContainer, PropagationPrivate};
        for (mode, linux) in [
            (None, PropagationPrivate),
            (Some("None"), PropagationPrivate),
            (Some("HostToContainer"), PropagationHostToContainer),
            (Some("Bidirectional"), PropagationBidirectional),
        ] {
            assert_eq!((propagation(NodeOs::Linux, mode), propagation(WIN, mode)), (linux, PropagationPrivate));
        }
    }

    #[test]
    fn containers_without_a_seccomp_profile_have_the_nodes_default() {
        use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
        for (context, default, want) in [
            (json!({}), false, Unconfined),
            (json!({}), true, RuntimeDefault),
            (json!({"seccompProfile": {"type": "Unconfined"}}), true, Unconfined),
            (json!({"seccompProfile": {"type": "RuntimeDefault"}}), false, RuntimeDefault),
            (json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}}), true, Localhost),
        ] {
            let (pod, side) = (pod(json!({"securityContext": context})), NodeSide { seccomp_default: default, ..node(NodeOs::Linux) });
            let (c, image) = (&pod.spec.as_ref().unwrap().containers[0], ImageUse::default());
            let profile = linux_container(&side, &pod, c, &image).unwrap().security_context.unwrap().seccomp.unwrap();
            assert_eq!(profile.profile_type, want as i32, "{context} {default}");
        }
    }

    #[test]
    fn seccomp_profiles_are_below_the_agents_directory() {
        let pod = pod(json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/a.json"}}}));
        let side = NodeSide { seccomp_dir: "/data/kubelet/seccomp".into(), ..node(NodeOs::Linux) };
        let (c, image) = (&pod.spec.as_ref().unwrap().containers[0], ImageUse::default());
        let profile = linux_container(&side, &pod, c, &image).unwrap().security_context.unwrap().seccomp.unwrap();
        assert_eq!(profile.localhost_ref, "/data/kubelet/seccomp/profiles/a.json");
    }

    #[test]
    fn the_runtime_is_told_of_strict_groups() {
        use v1::SupplementalGroupsPolicy::{Merge, Strict};
        let side = node(NodeOs::Linux);
        for (context, want) in [
            (json!({}), Merge),
            (json!({"supplementalGroupsPolicy": "Merge"}), Merge),
            (json!({"supplementalGroupsPolicy": "Strict", "supplementalGroups": [7]}), Strict),
        ] {
            let pod = pod(json!({"securityContext": context}));
            let (c, image) = (&pod.spec.as_ref().unwrap().containers[0], ImageUse::default());
            let container = linux_container(&side, &pod, c, &image).unwrap().security_context.unwrap();
            let sandbox = linux_sandbox(&side, &pod, None).security_context.unwrap();
            assert_eq!((container.supplemental_groups_policy(), sandbox.supplemental_groups_policy()), (want, want), "{context}");
        }
    }

    #[test]
    fn control_groups_are_named_as_their_driver_names_them() {
        let resources = |cpu: &str| json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]});
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": full, "limits": full}}]});
        for (spec, files, systemd) in [
            (json!({}), "/kubepods/besteffort/poda-b", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"),
            (resources("1"), "/kubepods/burstable/poda-b", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"),
            (guaranteed, "/kubepods/poda-b", "/kubepods.slice/kubepods-poda_b.slice"),
        ] {
            let mut pod = pod(spec);
            pod.metadata.uid = Some("a-b".into());
            // What the runtime says counts more than what the node was told.
            let side = NodeSide { cgroups: Cgroups::Systemd, ..node(NodeOs::Linux) };
            assert_eq!(linux_sandbox(&side, &pod, None).cgroup_parent, systemd);
            side.runtime_cgroups.set(Cgroups::Files).unwrap();
            assert_eq!(linux_sandbox(&side, &pod, None).cgroup_parent, files);
            let none = NodeSide { pod_groups: None, ..node(NodeOs::Linux) };
            assert_eq!(linux_sandbox(&none, &pod, None).cgroup_parent, "", "of the runtime's choice");
        }
    }

    #[test]
    fn an_empty_seccomp_name_is_refused() {
        let p = pod(json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": ""}}}));
        assert!(config(NodeOs::Linux, &p, ImageUse::default()).is_err());
    }
}
