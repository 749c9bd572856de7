//! What Linux security modules are told of a pod: AppArmor's profiles (upstream pkg/security/apparmor), SELinux's options.

use std::collections::BTreeMap;

use cri::v1;
use host::HostRoot;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, Volume};
use kube_rules::Refusal;
use v1::security_profile::ProfileType;

use super::SecurityError;
use crate::claims::Claimed;
use crate::pod::containers;

/// Names the profile of a container that it ends with; deprecated, but static pods may have nothing else.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const RUNTIME_DEFAULT: &str = "runtime/default";
const UNCONFINED: &str = "unconfined";
const LOCALHOST: &str = "localhost/";

/// Which modules the machine has switched on. As upstream it is asked once, at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modules {
    pub app_armor: bool,
    pub selinux: bool,
}

impl Modules {
    pub(crate) fn read(root: &HostRoot) -> Self {
        let text = |path: &str, most: u64| {
            let bytes = root.read(&root.parse(path).ok()?, most).ok()??;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let is_there = |path: &str| root.parse(path).is_ok_and(|path| root.kind(&path).is_ok_and(|kind| kind.is_some()));
        let enabled = || text("/sys/module/apparmor/parameters/enabled", 16).is_some_and(|text| text.starts_with('Y'));
        let mounts = || text(&format!("/proc/{}/mounts", std::process::id()), 16 << 20).unwrap_or_default();
        let is_writable = |line: &str| {
            let mut words = line.split(' ').skip(2);
            words.next() == Some("selinuxfs") && words.next().is_some_and(|options| options.split(',').all(|option| option != "ro"))
        };
        // Without a policy every process has the kernel's label.
        let label = || text(&format!("/proc/{}/attr/current", std::process::id()), 4096).unwrap_or_default();
        Modules {
            app_armor: is_there("/sys/kernel/security/apparmor") && enabled(),
            selinux: is_there("/sys/fs/selinux") && mounts().lines().any(is_writable) && label().trim_end_matches(['\0', '\n']) != "kernel",
        }
    }
}

fn own(c: &Container) -> Option<&AppArmorProfile> {
    c.security_context.as_ref()?.app_armor_profile.as_ref()
}

fn of_pod(pod: &Pod) -> Option<&AppArmorProfile> {
    pod.spec.as_ref()?.security_context.as_ref()?.app_armor_profile.as_ref()
}

fn annotations(pod: &Pod) -> Option<&BTreeMap<String, String>> {
    pod.metadata.annotations.as_ref()
}

/// The profile that an annotation stands for; None of one that has no form.
fn annotated(value: &str) -> Option<AppArmorProfile> {
    let of = |type_: &str, name: Option<&str>| AppArmorProfile { type_: type_.to_owned(), localhost_profile: name.map(str::to_owned) };
    match value {
        RUNTIME_DEFAULT => Some(of("RuntimeDefault", None)),
        UNCONFINED => Some(of("Unconfined", None)),
        _ => value.strip_prefix(LOCALHOST).map(|name| of("Localhost", Some(name))),
    }
}

/// The profile of a container.
fn profile(pod: &Pod, c: &Container) -> Option<AppArmorProfile> {
    let annotation = || annotated(annotations(pod)?.get(&format!("{ANNOTATION}{}", c.name))?);
    own(c).cloned().or_else(annotation).or_else(|| of_pod(pod).cloned())
}

/// All containers of a pod, ephemeral ones among them.
fn all(pod: &Pod) -> impl Iterator<Item = Container> + '_ {
    let ephemeral = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let ephemeral = ephemeral.map(|c| Container { name: c.name.clone(), security_context: c.security_context.clone(), ..Container::default() });
    pod.spec.iter().flat_map(containers).map(|(_, c)| c.clone()).chain(ephemeral)
}

/// Whether the pod needs the module.
fn needs_app_armor(pod: &Pod) -> bool {
    let confines = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    of_pod(pod).is_some_and(confines)
        || all(pod).any(|c| own(&c).is_some_and(confines))
        || annotations(pod).into_iter().flatten().any(|(key, value)| key.starts_with(ANNOTATION) && value != UNCONFINED)
}

/// Whether the node can confine a new pod as it asks.
pub(crate) fn admit(pod: &Pod, modules: Modules) -> Result<(), Refusal> {
    let refused = |why: &str| Err(Refusal { reason: "AppArmor".into(), message: format!("Cannot enforce AppArmor: {why}") });
    if !needs_app_armor(pod) {
        return Ok(());
    }
    if !modules.app_armor {
        return refused("AppArmor is not enabled on the host");
    }
    let is_empty = |profile: &AppArmorProfile| profile.localhost_profile.as_ref().is_none_or(|name| name.trim().is_empty());
    if all(pod).filter_map(|c| profile(pod, &c)).any(|profile| profile.type_ == "Localhost" && is_empty(&profile)) {
        return refused("invalid empty AppArmor profile name: \"\"");
    }
    Ok(())
}

/// A container's profile as runtimes know it, and as older ones do.
pub(super) fn app_armor(pod: &Pod, c: &Container, who: impl Fn() -> String) -> Result<(Option<v1::SecurityProfile>, String), SecurityError> {
    let Some(profile) = profile(pod, c) else { return Ok((None, String::new())) };
    let of = |kind: ProfileType, name: &str| Some(v1::SecurityProfile { profile_type: kind as i32, localhost_ref: name.to_owned() });
    Ok(match profile.type_.as_str() {
        "RuntimeDefault" => (of(ProfileType::RuntimeDefault, ""), RUNTIME_DEFAULT.to_owned()),
        "Unconfined" => (of(ProfileType::Unconfined, ""), UNCONFINED.to_owned()),
        "Localhost" => match profile.localhost_profile {
            Some(name) => (of(ProfileType::Localhost, &name), format!("{LOCALHOST}{name}")),
            None => return Err(SecurityError::NoAppArmorProfile { container: who() }),
        },
        other => return Err(SecurityError::UnknownAppArmorType { profile: other.to_owned(), container: who() }),
    })
}

/// Runtimes before containerd 1.6 and CRI-O 1.23 know profiles by this name alone.
#[allow(deprecated, reason = "upstream sends it too")]
pub(super) fn for_older_runtimes(apparmor_profile: String) -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext { apparmor_profile, ..Default::default() }
}

fn options(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    v1::SeLinuxOption { user: text(&options.user), role: text(&options.role), r#type: text(&options.type_), level: text(&options.level) }
}

/// SELinux's options of a pod's sandbox.
pub(super) fn selinux_of_pod(context: &PodSecurityContext) -> Option<v1::SeLinuxOption> {
    context.se_linux_options.as_ref().map(options)
}

/// Those of a container: its own, else its pod's.
pub(super) fn selinux(context: &PodSecurityContext, c: &Container) -> Option<v1::SeLinuxOption> {
    let own = c.security_context.as_ref().and_then(|own| own.se_linux_options.as_ref());
    own.map(options).or_else(|| selinux_of_pod(context))
}

/// Whether the runtime has to give a volume the pod's label: those that are the pod's alone (upstream `GetAttributes` of each plug-in: `Managed`
/// and `SELinuxRelabel`). What is read only is another's.
pub(crate) fn relabels(volume: &Volume, claimed: Option<&Claimed>) -> bool {
    let is_read_only = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only) == Some(true);
    let ours = volume.secret.is_some() || volume.config_map.is_some() || volume.downward_api.is_some() || volume.projected.is_some();
    let inline = volume.csi.as_ref().map(|csi| csi.read_only != Some(true));
    let flex = volume.flex_volume.as_ref().map(|flex| flex.read_only != Some(true));
    match claimed {
        Some(claimed) => claimed.relabels && !is_read_only,
        None => ours || volume.empty_dir.is_some() || inline.or(flex).unwrap_or(false),
    }
}

#[cfg(test)]
mod tests;
