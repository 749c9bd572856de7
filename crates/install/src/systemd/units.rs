//! The text of units. Pure.
//!
//! No option here makes a mount namespace (`ProtectSystem=`, `PrivateTmp=` and others): volumes that the node agent mounts would stay in it, and
//! containers would find empty directories.

use crate::{Desired, MARK, Part};

/// Where an administrator's units are: they count more than those of packages.
pub const UNITS: &str = "/etc/systemd/system";
/// Links to what starts with the machine.
pub const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants";

/// Where kubeadm has the KubeletConfiguration.
const CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// Where kubeadm's own DaemonSet has the KubeProxyConfiguration.
const PROXY_CONFIG: &str = "/var/lib/kube-proxy/config.conf";

/// A word of a command line: specifiers, variables and quotes mean themselves.
#[must_use]
pub fn word(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('%', "%%").replace('$', "$$").replace('"', "\\\"");
    let is_plain = !text.is_empty() && !text.contains([' ', '"', '\'', '\\', ';']);
    if is_plain { escaped } else { format!("\"{escaped}\"") }
}

/// The files of a service: path and text.
pub(super) fn files(desired: &Desired) -> Vec<(String, String)> {
    let service = desired.part().service();
    let mut files = vec![(format!("{UNITS}/{service}.service"), unit(desired))];
    if desired.part() != Part::KubeProxy {
        files.push((format!("{UNITS}/{service}.service.d/10-kubeadm.conf"), drop_in(desired)));
    }
    files
}

/// Command and flags, with what stands between them.
fn command(desired: &Desired, between: &str) -> String {
    let flags: String = desired.flags().iter().map(|flag| format!(" {}", word(flag))).collect();
    format!("{} {}{between}{flags}", word(desired.program()), desired.part().command())
}

/// The unit of a service.
#[must_use]
pub fn unit(desired: &Desired) -> String {
    let part = desired.part();
    let (condition, command) = match part {
        // The drop-in has all of it.
        Part::Node | Part::Kubelet => (String::new(), command(desired, "")),
        Part::KubeProxy if desired.goes_with_a_file() => {
            (format!("ConditionPathExists={PROXY_CONFIG}\n"), command(desired, &format!(" --config={PROXY_CONFIG}")))
        }
        Part::KubeProxy => (String::new(), command(desired, "")),
    };
    let (after, page) = match part {
        Part::Node | Part::Kubelet => ("containerd.service crio.service", "kubelet"),
        Part::KubeProxy => ("kubelet.service", "kube-proxy"),
    };
    // Helpers of the node agent that mount file systems in user space have to outlive it. Pods are in no group of the service.
    let limits = match part {
        Part::Node | Part::Kubelet => "KillMode=process\nOOMScoreAdjust=-999\nTasksMax=infinity\n",
        Part::KubeProxy => "OOMScoreAdjust=-998\n",
    };
    format!(
        "# {MARK}\n\
         [Unit]\n\
         Description={what}\n\
         Documentation=https://kubernetes.io/docs/reference/command-line-tools-reference/{page}/\n\
         Wants=network-online.target\n\
         After=network-online.target {after}\n\
         {condition}\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         Type=notify\n\
         ExecStart={command}\n\
         Restart=always\n\
         RestartSec=5\n\
         TimeoutStartSec=90\n\
         TimeoutStopSec=30\n\
         WatchdogSec=60\n\
         {limits}\
         LimitNOFILE=1048576\n\
         CPUAccounting=true\n\
         MemoryAccounting=true\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        what = part.what(),
    )
}

/// The drop-in with kubeadm's files. Its name is that of kubeadm's own, which it replaces: that one would start upstream's program.
fn drop_in(desired: &Desired) -> String {
    // Before a join there is nothing to run with.
    let condition = if desired.gives("config") { String::new() } else { format!("[Unit]\nConditionPathExists={CONFIG}\n\n") };
    let variables = "$KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS --kubeadm-flags=/var/lib/kubelet/kubeadm-flags.env";
    let command = command(desired, &format!(" {variables}"));
    format!(
        "# {MARK}\n\
         # The name is that of kubeadm's own drop-in, in whose place systemd reads this one.\n\
         {condition}\
         [Service]\n\
         Environment=\"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf\"\n\
         Environment=\"KUBELET_CONFIG_ARGS=--config={CONFIG}\"\n\
         # Your own flags: KUBELET_EXTRA_ARGS=\"...\"\n\
         EnvironmentFile=-/etc/default/kubelet\n\
         EnvironmentFile=-/etc/sysconfig/kubelet\n\
         ExecStart=\n\
         ExecStart={command} $KUBELET_EXTRA_ARGS\n"
    )
}
