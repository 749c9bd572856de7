//! Facts about the machine that the Node object reports.

use serde::{Deserialize, Serialize};

use kube_rules::NodeOs;

/// What `status.nodeInfo` says about the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Names the installation.
    pub machine_id: String,
    /// Names the hardware.
    pub system_uuid: String,
    /// Changes at every boot; a change produces the Rebooted event.
    pub boot_id: String,
    /// `10.0.20348.2340` or a Linux release.
    pub kernel_version: String,
    /// `Windows Server 2022 Datacenter`, `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
    /// GOARCH name: `amd64`, `arm64`.
    pub architecture: String,
}

/// GOARCH name of the machine we run on.
fn architecture() -> String {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .to_owned()
}

impl HostFacts {
    /// Facts of the real machine.
    pub fn read() -> Self {
        imp::read()
    }

    /// Facts of a simulated host: names derived from `machine` (stable over restarts), a boot id
    /// that the caller changes when it boots the host anew. A Linux host shares our kernel.
    pub fn simulated(os: NodeOs, machine: &str, boot_id: &str) -> Self {
        let real = HostFacts::read();
        HostFacts {
            machine_id: machine.to_owned(),
            system_uuid: machine.to_owned(),
            boot_id: boot_id.to_owned(),
            kernel_version: os.windows_kernel_version().unwrap_or(real.kernel_version),
            os_image: os.windows_product().map_or(real.os_image, str::to_owned),
            architecture: real.architecture,
        }
    }
}

#[cfg(not(windows))]
mod imp {
    use super::{HostFacts, architecture};

    fn line(path: &str) -> Option<String> {
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    }

    pub(super) fn read() -> HostFacts {
        let machine_id = line("/etc/machine-id").unwrap_or_default();
        HostFacts {
            system_uuid: line("/sys/class/dmi/id/product_uuid").unwrap_or_else(|| machine_id.clone()),
            machine_id,
            boot_id: line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            kernel_version: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            os_image: os_image(&std::fs::read_to_string("/etc/os-release").unwrap_or_default()),
            architecture: architecture(),
        }
    }

    pub(super) fn os_image(os_release: &str) -> String {
        os_release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).map_or_else(|| "Linux".to_owned(), |v| v.trim_matches('"').to_owned())
    }
}

#[cfg(windows)]
#[path = "facts_windows.rs"]
mod imp;

#[cfg(windows)]
pub(crate) use imp::disk_space;
#[cfg(windows)]
pub(crate) use imp::string as registry_text;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_real_and_simulated_hosts() {
        let real = HostFacts::read();
        assert!(!real.kernel_version.is_empty() && real.boot_id.len() == 36);
        let sim = HostFacts::simulated(NodeOs::Windows { build: 17763 }, "win01", "b1");
        assert_eq!(sim.os_image, "Windows Server 2019 Datacenter");
        assert_eq!(sim.kernel_version, "10.0.17763.5576");
        assert_eq!(sim.boot_id, "b1");
        assert_eq!(imp::os_image("A=1\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"), "Debian GNU/Linux 12");
    }
}
