//! Control groups of pods, by KubeletConfiguration (upstream apis/config/validation, cm `ParseQOSReserved`).

use anyhow::{Context as _, Result, bail};
use kube_rules::NodeOs;
use kubelet::{GroupSettings, ReservedGroup, ReservedKind};
use node_config::KubeletConfiguration;

use super::reserved_for;

const PODS: &str = "pods";
const NONE: &str = "none";
const SYSTEM: &str = "system-reserved";
const KUBE: &str = "kube-reserved";
const COMPRESSIBLE: &str = "-compressible";
const MEMBER: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";

/// A value of `enforceNodeAllocatable`.
enum Enforced {
    Pods,
    None,
    Reserved { kind: ReservedKind, compressible: bool },
}

impl Enforced {
    fn parse(text: &str) -> Option<Self> {
        let (name, compressible) = text.strip_suffix(COMPRESSIBLE).map_or((text, false), |name| (name, true));
        match name {
            PODS if !compressible => Some(Enforced::Pods),
            NONE if !compressible => Some(Enforced::None),
            SYSTEM => Some(Enforced::Reserved { kind: ReservedKind::System, compressible }),
            KUBE => Some(Enforced::Reserved { kind: ReservedKind::Kube, compressible }),
            _ => None,
        }
    }
}

pub(super) fn settings(kubelet: &KubeletConfiguration, os: NodeOs) -> Result<GroupSettings> {
    if os.is_windows() {
        return Ok(GroupSettings { per_qos: false, ..GroupSettings::default() });
    }
    let mut settings = GroupSettings {
        per_qos: kubelet.cgroups_per_qos,
        root: if kubelet.cgroup_root.is_empty() { "/".to_owned() } else { kubelet.cgroup_root.clone() },
        keeps_reserved: false,
        reserved: Vec::new(),
        pids: Some(kubelet.pod_pids_limit).filter(|most| *most > 0),
        reserved_memory: reserved_memory(kubelet)?,
        fail_version_1: kubelet.fail_cgroup_v1,
    };
    check_combinations(&kubelet.enforce_node_allocatable)?;
    for value in &kubelet.enforce_node_allocatable {
        match Enforced::parse(value) {
            Some(Enforced::None) => continue,
            Some(Enforced::Pods) => settings.keeps_reserved = true,
            Some(Enforced::Reserved { kind, compressible }) => settings.reserved.push(reserved(kubelet, kind, compressible)?),
            None => bail!(
                "invalid configuration: option {value:?} specified for {MEMBER}. Valid options are {PODS:?}, {SYSTEM:?}, \
                 \"{SYSTEM}{COMPRESSIBLE}\", {KUBE:?}, \"{KUBE}{COMPRESSIBLE}\" or {NONE:?}"
            ),
        }
        if !kubelet.cgroups_per_qos {
            bail!("invalid configuration: cgroupsPerQOS (--cgroups-per-qos) must be set to true when {value:?} contained in {MEMBER}");
        }
    }
    Ok(settings)
}

/// Values that exclude each other.
fn check_combinations(values: &[String]) -> Result<()> {
    let has = |wanted: &str| values.iter().any(|value| value == wanted);
    for name in [SYSTEM, KUBE] {
        let compressible = format!("{name}{COMPRESSIBLE}");
        if has(name) && has(&compressible) {
            bail!("invalid configuration: both {name:?} and {compressible:?} cannot be specified together in {MEMBER}");
        }
    }
    for (index, value) in values.iter().enumerate() {
        if values[..index].contains(value) {
            bail!("invalid configuration: duplicated enforcements {value:?} in {MEMBER}");
        }
    }
    if has(NONE) && values.len() > 1 {
        bail!("invalid configuration: {MEMBER} may not contain additional enforcements when {NONE:?} is specified");
    }
    Ok(())
}

/// The group that gets what is reserved for it.
fn reserved(kubelet: &KubeletConfiguration, kind: ReservedKind, compressible: bool) -> Result<ReservedGroup> {
    let (name, member, flag, group, reserved, amounts) = match kind {
        ReservedKind::System => {
            let group = &kubelet.system_reserved_cgroup;
            (SYSTEM, "systemReservedCgroup", "system-reserved-cgroup", group, "systemReserved", &kubelet.system_reserved)
        }
        ReservedKind::Kube => {
            (KUBE, "kubeReservedCgroup", "kube-reserved-cgroup", &kubelet.kube_reserved_cgroup, "kubeReserved", &kubelet.kube_reserved)
        }
    };
    if group.is_empty() {
        bail!("invalid configuration: {member} (--{flag}) must be specified when {name:?} or \"{name}{COMPRESSIBLE}\" included in {MEMBER}");
    }
    Ok(ReservedGroup { kind, group: group.clone(), amounts: reserved_for(reserved, amounts)?, compressible })
}

/// `qosReserved`, where its gate is on; a wrong value is refused in any case.
fn reserved_memory(kubelet: &KubeletConfiguration) -> Result<Option<u8>> {
    let mut percent = None;
    for (resource, text) in &kubelet.qos_reserved {
        if resource != "memory" {
            bail!("invalid configuration: qosReserved (--qos-reserved): cannot reserve {resource:?} resource; reserve memory");
        }
        let wrong = || format!("invalid configuration: qosReserved (--qos-reserved): failed to parse percentage {text:?} for {resource:?} resource");
        let number = text.strip_suffix('%').and_then(|number| number.parse::<u8>().ok()).filter(|number| *number <= 100);
        percent = Some(number.with_context(|| format!("{}; write 0% to 100%", wrong()))?);
    }
    Ok(percent.filter(|_| kubelet.has_feature("QOSReserved")))
}

#[cfg(test)]
mod tests {
    use node_config::document;

    use super::*;

    fn of(text: &str) -> Result<GroupSettings, String> {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}");
        let kubelet = document::read_text::<KubeletConfiguration>(&text).unwrap().config;
        settings(&kubelet, NodeOs::Linux).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn upstreams_validation_holds() {
        for (text, part) in [
            (
                "enforceNodeAllocatable: [pods, other]",
                "option \"other\" specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options",
            ),
            ("enforceNodeAllocatable: [pods-compressible]", "option \"pods-compressible\" specified"),
            ("enforceNodeAllocatable: [pods, pods]", "duplicated enforcements \"pods\" in"),
            ("enforceNodeAllocatable: [none, pods]", "may not contain additional enforcements when \"none\" is specified"),
            (
                "enforceNodeAllocatable: [system-reserved, system-reserved-compressible]\nsystemReservedCgroup: /s",
                "both \"system-reserved\" and \"system-reserved-compressible\" cannot be specified together",
            ),
            (
                "enforceNodeAllocatable: [system-reserved]",
                "systemReservedCgroup (--system-reserved-cgroup) must be specified when \"system-reserved\"",
            ),
            ("enforceNodeAllocatable: [kube-reserved-compressible]", "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when"),
            ("cgroupsPerQOS: false", "cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in"),
            ("qosReserved: {cpu: 10%}", "cannot reserve \"cpu\" resource"),
            ("qosReserved: {memory: '10'}", "failed to parse percentage \"10\" for \"memory\" resource"),
            ("qosReserved: {memory: 101%}", "failed to parse percentage \"101%\""),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.starts_with("invalid configuration: ") && error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn settings_say_who_gets_what() {
        assert_eq!(of("").unwrap(), GroupSettings::default());
        assert_eq!(of("podPidsLimit: 0").unwrap().pids, None);
        let none = of("cgroupsPerQOS: false\nenforceNodeAllocatable: [none]").unwrap();
        assert_eq!(none, GroupSettings { per_qos: false, keeps_reserved: false, ..GroupSettings::default() });
        let all = of("cgroupRoot: /nodes\nenforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible]\nkubeReservedCgroup: /kube\n\
             systemReservedCgroup: /system\nkubeReserved: {cpu: 100m, pid: '10'}\nsystemReserved: {memory: 1Mi}\npodPidsLimit: 50\n\
             qosReserved: {memory: 50%}\nfeatureGates: {QOSReserved: true}\nfailCgroupV1: true");
        let amounts =
            |all: &[(&str, &str)]| all.iter().map(|(name, text)| ((*name).to_owned(), kube_rules::Quantity::parse(text).unwrap())).collect();
        let group =
            |kind, group: &str, all: &[(&str, &str)], compressible| ReservedGroup { kind, group: group.into(), amounts: amounts(all), compressible };
        let wanted = GroupSettings {
            per_qos: true,
            root: "/nodes".into(),
            keeps_reserved: true,
            reserved: vec![
                group(ReservedKind::Kube, "/kube", &[("cpu", "100m"), ("pid", "10")], false),
                group(ReservedKind::System, "/system", &[("memory", "1Mi")], true),
            ],
            pids: Some(50),
            reserved_memory: Some(50),
            fail_version_1: true,
        };
        assert_eq!(all.unwrap(), wanted);
        assert_eq!(of("qosReserved: {memory: 50%}").unwrap().reserved_memory, None, "its gate is off");
    }
}
