//! Kernel settings of pods (`securityContext.sysctls`): their names, the namespaces that they belong to, and which of them a node sets
//! (upstream component-helpers/node/util/sysctl, pkg/kubelet/sysctl, and runc's validator).

use std::fmt;

use k8s_openapi::api::core::v1::Pod;

use crate::admission::Refusal;
use crate::os::NodeOs;

/// Settings that are a pod's own and cannot harm another pod of the node (`safeSysctls` of Kubernetes 1.36; the kernels on which this
/// program runs have all of them). In the order in which upstream came to allow them: Pod Security of older versions takes the first ones.
pub const SAFE: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// The namespace that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// System V and POSIX queues.
    Ipc,
    /// The network.
    Net,
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc => "ipc",
            Self::Net => "net",
        })
    }
}

/// Which namespaces of a pod are the node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostNamespaces {
    /// `hostNetwork`.
    pub network: bool,
    /// `hostIPC`.
    pub ipc: bool,
}

impl HostNamespaces {
    fn has(self, namespace: Namespace) -> bool {
        match namespace {
            Namespace::Ipc => self.ipc,
            Namespace::Net => self.network,
        }
    }
}

/// `IsValidSysctlName`.
pub fn is_name(name: &str) -> bool {
    let plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let segment = |segment: &str| {
        segment.starts_with(plain) && segment.ends_with(plain) && segment.chars().all(|character| plain(character) || "-_".contains(character))
    };
    name.len() <= 253 && name.split(['.', '/']).all(segment)
}

/// `ConvertSysctlVariableToDotsSeparator`: a name whose first separator is a slash has slashes for dots, and dots for slashes.
pub fn with_dots(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name[at..].starts_with('.')) {
        return name.to_string();
    }
    let swap = |character| match character {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// `NamespacedBy`, for a name with dots.
pub fn namespace(name: &str) -> Option<Namespace> {
    let ipc = name == "kernel.sem" || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix));
    if ipc { Some(Namespace::Ipc) } else { name.starts_with("net.").then_some(Namespace::Net) }
}

/// Why a pattern allows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// It is neither a name nor the beginning of one with `*`.
    Name,
    /// What it names is not a pod's own.
    NotNamespaced,
}

/// Checks a pattern of `allowedUnsafeSysctls`, with dots: a name, or the beginning of one and `*`.
///
/// # Errors
/// As [`PatternError`] says.
pub fn check_pattern(pattern: &str) -> Result<(), PatternError> {
    let beginning = pattern.strip_suffix('*');
    let is_name = match beginning {
        Some("") => true,
        Some(beginning) => is_name(beginning.strip_suffix('.').unwrap_or_else(|| beginning.trim_end_matches(['-', '_']))),
        None => is_name(pattern),
    };
    if !is_name {
        return Err(PatternError::Name);
    }
    // Of what begins so, all has to be in the namespace.
    namespace(beginning.unwrap_or(pattern)).map(drop).ok_or(PatternError::NotNamespaced)
}

/// Whether a node takes a pod with these settings: upstream's default allowlist, which on Windows is empty, and what else it `allows`, by
/// patterns of [`check_pattern`].
///
/// # Errors
/// Names the first setting that is not allowed.
pub fn admit(pod: &Pod, os: NodeOs, allows: &[String]) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let host = HostNamespaces { network: spec.host_network == Some(true), ipc: spec.host_ipc == Some(true) };
    for sysctl in spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten()) {
        let name = with_dots(&sysctl.name);
        let matches = |pattern: &String| pattern.strip_suffix('*').map_or(*pattern == name, |beginning| name.starts_with(beginning));
        let is_safe = !os.is_windows() && (SAFE.contains(&name.as_str()) || allows.iter().any(matches));
        let problem = match namespace(&name) {
            Some(namespace) if is_safe && host.has(namespace) => format!("not allowed with host {namespace} enabled"),
            Some(_) if is_safe => continue,
            _ => "not allowlisted".to_owned(),
        };
        return Err(Refusal { reason: "SysctlForbidden".into(), message: format!("forbidden sysctl: {name:?} {problem}") });
    }
    Ok(())
}

/// Why a runtime may not set a kernel setting for a pod, in runc's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// Not a name of a setting.
    #[error("sysctl {0:?} is not a valid name")]
    Name(String),
    /// The pod has the node's IPC namespace.
    #[error("sysctl {0:?} is not allowed in the hosts ipc namespace")]
    HostIpc(String),
    /// The pod has the node's network namespace.
    #[error("sysctl {0:?} not allowed in host network namespace")]
    HostNetwork(String),
    /// The setting is one of the whole machine.
    #[error("sysctl {0:?} is not in a separate kernel namespace")]
    NotNamespaced(String),
}

/// Whether a runtime may set a setting in the namespaces of a pod (runc's rule).
///
/// # Errors
/// When the setting would be the node's.
pub fn check_namespaced(name: &str, host: HostNamespaces) -> Result<(), SysctlError> {
    const OF_IPC: &[&str] = &[
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
    ];
    let dotted = with_dots(name);
    if !is_name(name) {
        return Err(SysctlError::Name(name.to_owned()));
    }
    if OF_IPC.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.") {
        return if host.ipc { Err(SysctlError::HostIpc(dotted)) } else { Ok(()) };
    }
    if dotted.starts_with("net.") {
        return if host.network { Err(SysctlError::HostNetwork(dotted)) } else { Ok(()) };
    }
    Err(SysctlError::NotNamespaced(dotted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(os: NodeOs, spec: serde_json::Value, name: &str) -> Option<String> {
        refusal_with(os, spec, name, false)
    }

    fn refusal_with(os: NodeOs, mut spec: serde_json::Value, name: &str, allowed: bool) -> Option<String> {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
        spec["securityContext"] = json!({"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}, {"name": name, "value": "1"}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let allows = ["net.core.somaxconn".to_owned(), "kernel.msg*".to_owned()];
        let refusal = admit(&pod, os, if allowed { &allows } else { &[] }).err()?;
        assert_eq!(refusal.reason, "SysctlForbidden");
        Some(refusal.message)
    }

    #[test]
    fn only_safe_settings_are_admitted() {
        let linux = |name| refusal(NodeOs::Linux, json!({}), name);
        assert!(SAFE.iter().all(|name| linux(name).is_none() && namespace(name).is_some()));
        assert_eq!(linux("net/ipv4/tcp_wmem"), None);
        assert_eq!(linux("kernel.panic").as_deref(), Some("forbidden sysctl: \"kernel.panic\" not allowlisted"));
        assert_eq!(linux("net/core/somaxconn").as_deref(), Some("forbidden sysctl: \"net.core.somaxconn\" not allowlisted"));
        let host = refusal(NodeOs::Linux, json!({"hostIPC": true}), "kernel.shm_rmid_forced");
        assert_eq!(host.as_deref(), Some("forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host ipc enabled"));
        let host = refusal(NodeOs::Linux, json!({"hostNetwork": true}), "kernel.shm_rmid_forced");
        assert_eq!(host.as_deref(), Some("forbidden sysctl: \"net.ipv4.tcp_rmem\" not allowed with host net enabled"));
        let windows = refusal(NodeOs::Windows { build: 20348 }, json!({}), "kernel.shm_rmid_forced");
        assert_eq!(windows.as_deref(), Some("forbidden sysctl: \"net.ipv4.tcp_rmem\" not allowlisted"));
    }

    #[test]
    fn a_node_may_allow_more() {
        let allowed = |name| refusal_with(NodeOs::Linux, json!({}), name, true);
        assert_eq!((allowed("net/core/somaxconn"), allowed("kernel.msgmax"), allowed("net.ipv4.tcp_wmem")), (None, None, None));
        assert_eq!(allowed("net.core.rmem_max").as_deref(), Some("forbidden sysctl: \"net.core.rmem_max\" not allowlisted"));
        assert_eq!(allowed("net.core.somaxconn.more").as_deref(), Some("forbidden sysctl: \"net.core.somaxconn.more\" not allowlisted"));
        let host = refusal_with(NodeOs::Linux, json!({"hostIPC": true}), "kernel.msgmax", true);
        assert_eq!(host.as_deref(), Some("forbidden sysctl: \"kernel.msgmax\" not allowed with host ipc enabled"));
        for good in ["net.core.somaxconn", "net.*", "net.ipv4.tcp_*", "kernel.msg*", "kernel.shm*", "fs.mqueue.*", "kernel.sem"] {
            assert_eq!(check_pattern(good), Ok(()), "{good}");
        }
        for bad in ["", "net..*", "Net.core", "net.*.x", "net. *", "net.-*"] {
            assert_eq!(check_pattern(bad), Err(PatternError::Name), "{bad}");
        }
        for bad in ["*", "kernel.*", "kernel.panic", "vm.*", "net*", "fs.mqueue*"] {
            assert_eq!(check_pattern(bad), Err(PatternError::NotNamespaced), "{bad}");
        }
    }

    #[test]
    fn runtimes_set_what_has_a_namespace() {
        let check = |name| check_namespaced(name, HostNamespaces::default());
        let good = ["net.core.somaxconn", "net/ipv4/conf/eth0.1/rp_filter", "kernel.shmmax", "fs.mqueue.msg_max", "kernel/sem"];
        assert!(good.iter().all(|name| check(name).is_ok()));
        assert_eq!(check("kernel.panic").unwrap_err().to_string(), "sysctl \"kernel.panic\" is not in a separate kernel namespace");
        for bad in ["kernel.shmevil", "kernel.hostname", "vm.swappiness", "kernel/core_pattern", "fs.mqueuefile"] {
            assert!(check(bad).unwrap_err().to_string().contains("is not in a separate kernel namespace"), "{bad}");
        }
        for bad in ["net./../kernel/panic", "net.//.//.kernel.panic", "net/../kernel/panic", "net..ipv4", "net.", ""] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let host = HostNamespaces { network: true, ipc: true };
        assert!(check_namespaced("net.core.somaxconn", host).unwrap_err().to_string().contains("host network namespace"));
        assert!(check_namespaced("kernel.sem", host).unwrap_err().to_string().contains("hosts ipc namespace"));
    }
}
