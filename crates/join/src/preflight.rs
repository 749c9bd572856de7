//! Preflight: findings about a machine, by the names of kubeadm's checks (cmd/kubeadm/app/preflight). Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::settings::Ignored;
use crate::version::{self, Version};

/// What was seen on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether this process may do everything; none where nothing says so.
    pub is_privileged: Option<bool>,
    /// Why the agent's port cannot be used.
    pub port_in_use: Option<String>,
    /// Files that a join writes and that are there, in the form of `/etc/kubernetes/kubelet.conf`, but for those of an unfinished join.
    pub files: BTreeSet<String>,
    /// Whether there are static pods.
    pub has_manifests: bool,
    /// Whether there is swap.
    pub has_swap: bool,
    /// Why the container runtime does not answer.
    pub runtime: Option<String>,
    /// Why the node's name cannot be looked up.
    pub unresolved: Option<String>,
    /// What there is of the service; none where it is not this program's to manage.
    pub service: Option<ServiceFacts>,
    /// Whether the kernel forwards packets; none where it cannot be known.
    pub forwards: Option<bool>,
    /// Whether the control groups are of version 1; none where there are none.
    pub has_cgroup_v1: Option<bool>,
}

/// What there is of the service `kubelet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    pub exists: bool,
    pub is_enabled: bool,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name that `--ignore-preflight-errors` takes.
    pub check: String,
    pub severity: Severity,
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.severity == Severity::Error { "ERROR" } else { "WARNING" };
        write!(f, "[{severity} {}]: {}", self.check, self.message)
    }
}

/// The machine cannot be joined as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    /// All findings, those that were ignored too.
    pub findings: Vec<Finding>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<&Finding> = self.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        let texts: Vec<String> = errors.iter().map(|finding| format!("[{}] {}", finding.check, finding.message)).collect();
        let names: Vec<&str> = errors.iter().map(|finding| finding.check.as_str()).collect();
        write!(f, "this machine cannot join as it is: {}; correct it, or give --ignore-preflight-errors={}", texts.join("; "), names.join(","))
    }
}

fn finding(check: impl Into<String>, severity: Severity, message: impl Into<String>) -> Finding {
    Finding { check: check.into(), severity, message: message.into() }
}

/// The name of the check that a file is not there.
fn file_check(path: &str) -> String {
    format!("FileAvailable-{}", path.replace('/', "-"))
}

/// What the facts mean, in the order of kubeadm's checks.
#[must_use]
pub fn findings(facts: &Facts, node_name: &str, cri_socket: &str) -> Vec<Finding> {
    use Severity::{Error, Warning};
    let mut found = Vec::new();
    if facts.is_privileged == Some(false) {
        found.push(finding("IsPrivilegedUser", Error, "user is not running as root: run mullion join with sudo"));
    }
    if facts.has_manifests {
        found.push(finding(
            "DirAvailable--etc-kubernetes-manifests",
            Error,
            "/etc/kubernetes/manifests is not empty: static pods of another cluster",
        ));
    }
    for path in &facts.files {
        let message = format!("{path} already exists: this machine is, or was, part of a cluster; mullion reset removes what a join wrote");
        found.push(finding(file_check(path), Error, message));
    }
    if let Some(reason) = &facts.runtime {
        let message = format!("the container runtime at {cri_socket} does not answer: {reason}; start it, or name another with --cri-socket");
        found.push(finding("CRI", Error, message));
    }
    if facts.has_swap {
        let message = "swap is on: set memorySwap and failSwapOn in the cluster's KubeletConfiguration, or turn it off with swapoff -a";
        found.push(finding("Swap", Warning, message));
    }
    if facts.has_cgroup_v1 == Some(true) {
        found.push(finding("SystemVerification", Warning, "control groups are of version 1, which upstream's kubelet refuses since 1.35"));
    }
    if let Some(reason) = &facts.unresolved {
        found.push(finding("Hostname", Warning, format!("the node name {node_name:?} cannot be looked up: {reason}")));
    }
    match facts.service {
        Some(ServiceFacts { exists: false, .. }) => {
            let message =
                "there is no service kubelet: make one with mullion install kubelet, or join with --no-service and start the node agent yourself";
            found.push(finding("Service-kubelet", Error, message));
        }
        Some(ServiceFacts { is_enabled: false, .. }) => {
            let way = if cfg!(windows) { "Set-Service kubelet -StartupType Automatic" } else { "systemctl enable kubelet.service" };
            let message = format!("the service kubelet is not enabled: run {way}, so that the node comes back after a reboot");
            found.push(finding("Service-kubelet", Warning, message));
        }
        _ => {}
    }
    if let Some(reason) = &facts.port_in_use {
        found.push(finding("Port-10250", Error, format!("port 10250 is in use: {reason}; a node agent may be running")));
    }
    if facts.forwards == Some(false) {
        let message = "/proc/sys/net/ipv4/ip_forward is not 1: run sysctl -w net.ipv4.ip_forward=1";
        found.push(finding("FileContent--proc-sys-net-ipv4-ip_forward", Error, message));
    }
    found
}

/// Whether the node agent fits the control plane.
#[must_use]
pub fn version_finding(agent: Version, control_plane: Version) -> Option<Finding> {
    version::skew(agent, control_plane).map(|message| finding("KubeletVersion", Severity::Error, message))
}

/// The findings, those that are ignored as warnings.
///
/// # Errors
/// [`Refused`] when an error is left.
pub fn judge(findings: Vec<Finding>, ignored: &Ignored) -> Result<Vec<Finding>, Refused> {
    let weigh = |finding: Finding| {
        let severity = if ignored.has(&finding.check) { Severity::Warning } else { finding.severity };
        Finding { severity, ..finding }
    };
    let findings: Vec<Finding> = findings.into_iter().map(weigh).collect();
    if findings.iter().any(|finding| finding.severity == Severity::Error) { Err(Refused { findings }) } else { Ok(findings) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JoinConfiguration;
    use crate::settings::{Flags, Machine, Settings};

    fn good() -> Facts {
        Facts {
            is_privileged: Some(true),
            service: Some(ServiceFacts { exists: true, is_enabled: true }),
            forwards: Some(true),
            has_cgroup_v1: Some(false),
            ..Facts::default()
        }
    }

    fn ignored(names: &[&str]) -> Ignored {
        let flags = Flags {
            discovery_file: Some("a".into()),
            ignore_preflight_errors: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Flags::default()
        };
        let machine = Machine { host_name: "a".into(), ..Machine::default() };
        Settings::new(flags.merged_into(JoinConfiguration::default()), &machine).unwrap().ignored
    }

    #[test]
    fn each_fact_is_found_under_kubeadms_name() {
        assert!(findings(&good(), "n", "s").is_empty());
        let files: BTreeSet<String> = ["/etc/kubernetes/kubelet.conf".to_owned()].into();
        let service = |exists, is_enabled| Some(ServiceFacts { exists, is_enabled });
        let text = || Some("reason".to_owned());
        for (facts, check, severity) in [
            (Facts { is_privileged: Some(false), ..good() }, "IsPrivilegedUser", Severity::Error),
            (Facts { has_manifests: true, ..good() }, "DirAvailable--etc-kubernetes-manifests", Severity::Error),
            (Facts { files, ..good() }, "FileAvailable--etc-kubernetes-kubelet.conf", Severity::Error),
            (Facts { runtime: text(), ..good() }, "CRI", Severity::Error),
            (Facts { has_swap: true, ..good() }, "Swap", Severity::Warning),
            (Facts { has_cgroup_v1: Some(true), ..good() }, "SystemVerification", Severity::Warning),
            (Facts { unresolved: text(), ..good() }, "Hostname", Severity::Warning),
            (Facts { service: service(false, false), ..good() }, "Service-kubelet", Severity::Error),
            (Facts { service: service(true, false), ..good() }, "Service-kubelet", Severity::Warning),
            (Facts { port_in_use: text(), ..good() }, "Port-10250", Severity::Error),
            (Facts { forwards: Some(false), ..good() }, "FileContent--proc-sys-net-ipv4-ip_forward", Severity::Error),
        ] {
            let found = findings(&facts, "n", "s");
            assert_eq!(found.iter().map(|one| (one.check.as_str(), one.severity)).collect::<Vec<_>>(), [(check, severity)]);
            let judged = judge(found.clone(), &ignored(&[]));
            assert_eq!(judged.is_ok(), severity == Severity::Warning, "{check}");
            assert!(judge(found.clone(), &ignored(&[&check.to_uppercase()])).is_ok(), "{check} can be ignored");
            assert!(judge(found, &ignored(&["all"])).is_ok());
        }
    }

    #[test]
    fn a_refusal_names_what_to_ignore() {
        let facts = Facts { port_in_use: Some("taken".into()), runtime: Some("refused".into()), has_swap: true, ..good() };
        let refused = judge(findings(&facts, "n", "unix:///a"), &ignored(&["CRI"])).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("[Port-10250] port 10250 is in use: taken") && text.ends_with("--ignore-preflight-errors=Port-10250"), "{text}");
        assert_eq!(refused.findings.len(), 3);
    }

    #[test]
    fn an_agent_of_another_age_is_found() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version_finding(version("v1.36.2"), version("v1.36.0")).is_none());
        assert_eq!(version_finding(version("v1.36.2"), version("v1.34.0")).unwrap().check, "KubeletVersion");
    }
}
