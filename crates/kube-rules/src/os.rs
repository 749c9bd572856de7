//! Operating systems of nodes, and the Windows Server builds that exist.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a node runs. A value, not a build flag: the same program serves simulated nodes of
/// either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeOs {
    /// Windows Server of this build number (`20348` is Server 2022).
    Windows {
        /// Build number, as in `10.0.BUILD`.
        build: u32,
    },
    Linux,
}

/// One Windows Server release.
#[derive(Debug, PartialEq, Eq)]
pub struct WindowsRelease {
    pub build: u32,
    /// Names that image tags use for it; the first is the one advice mentions.
    pub tags: &'static [&'static str],
    /// ProductName of the registry, which is what `osImage` shows.
    pub product: &'static str,
    /// A revision (UBR) seen in Microsoft's base images of that release.
    pub revision: u32,
    /// The name people say.
    pub name: &'static str,
}

/// Every release we know, oldest first.
pub const WINDOWS_RELEASES: &[WindowsRelease] = &[
    WindowsRelease {
        build: 14393,
        tags: &["ltsc2016", "1607"],
        product: "Windows Server 2016 Datacenter",
        revision: 6796,
        name: "Windows Server 2016",
    },
    WindowsRelease { build: 16299, tags: &["1709"], product: "Windows Server Datacenter", revision: 1087, name: "Windows Server 1709" },
    WindowsRelease { build: 17134, tags: &["1803"], product: "Windows Server Datacenter", revision: 1130, name: "Windows Server 1803" },
    WindowsRelease {
        build: 17763,
        tags: &["ltsc2019", "1809"],
        product: "Windows Server 2019 Datacenter",
        revision: 5576,
        name: "Windows Server 2019",
    },
    WindowsRelease { build: 20348, tags: &["ltsc2022"], product: "Windows Server 2022 Datacenter", revision: 2340, name: "Windows Server 2022" },
    WindowsRelease { build: 26100, tags: &["ltsc2025"], product: "Windows Server 2025 Datacenter", revision: 1742, name: "Windows Server 2025" },
];

/// The release of a build number.
pub fn release(build: u32) -> Option<&'static WindowsRelease> {
    WINDOWS_RELEASES.iter().find(|r| r.build == build)
}

/// "Windows Server 2022 (build 20348)", or the number alone for a build we do not know.
pub fn describe_build(build: u32) -> String {
    match release(build) {
        Some(r) => format!("{} (build {build})", r.name),
        None => format!("Windows build {build}"),
    }
}

impl NodeOs {
    /// The value of the `kubernetes.io/os` label.
    pub fn name(self) -> &'static str {
        match self {
            NodeOs::Windows { .. } => "windows",
            NodeOs::Linux => "linux",
        }
    }

    pub fn is_windows(self) -> bool {
        matches!(self, NodeOs::Windows { .. })
    }

    /// The Windows build number.
    pub fn build(self) -> Option<u32> {
        match self {
            NodeOs::Windows { build } => Some(build),
            NodeOs::Linux => None,
        }
    }

    /// The value of the `node.kubernetes.io/windows-build` label: `10.0.20348`.
    pub fn windows_build_label(self) -> Option<String> {
        self.build().map(|b| format!("10.0.{b}"))
    }

    /// Kernel version as a Windows node reports it (`10.0.20348.2340`).
    pub fn windows_kernel_version(self) -> Option<String> {
        let build = self.build()?;
        let revision = release(build).map_or(1, |r| r.revision);
        Some(format!("10.0.{build}.{revision}"))
    }

    /// `osImage` of a Windows node.
    pub fn windows_product(self) -> Option<&'static str> {
        let build = self.build()?;
        Some(release(build).map_or("Windows Server Datacenter", |r| r.product))
    }
}

impl fmt::Display for NodeOs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeOs::Windows { build } => write!(f, "windows:{build}"),
            NodeOs::Linux => f.write_str("linux"),
        }
    }
}

/// A node OS that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "unknown operating system {0:?}; use linux, windows or windows:BUILD with BUILD one of 14393 (ltsc2016), 16299 (1709), 17134 (1803), 17763 (ltsc2019), 20348 (ltsc2022), 26100 (ltsc2025)"
)]
pub struct UnknownOs(pub String);

impl FromStr for NodeOs {
    type Err = UnknownOs;

    /// `linux`, `windows` (the newest LTSC before 2025: 20348), `windows:17763`,
    /// `windows:ltsc2019`.
    fn from_str(text: &str) -> Result<Self, UnknownOs> {
        let unknown = || UnknownOs(text.to_owned());
        let (os, build) = match text.split_once(':') {
            Some((os, build)) => (os, Some(build)),
            None => (text, None),
        };
        match (os, build) {
            ("linux", None) => Ok(NodeOs::Linux),
            ("windows", None) => Ok(NodeOs::Windows { build: 20348 }),
            ("windows", Some(b)) => WINDOWS_RELEASES
                .iter()
                .find(|r| r.tags.contains(&b) || r.build.to_string() == b)
                .map(|r| NodeOs::Windows { build: r.build })
                .ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_specifications() {
        assert_eq!("linux".parse(), Ok(NodeOs::Linux));
        assert_eq!("windows".parse(), Ok(NodeOs::Windows { build: 20348 }));
        assert_eq!("windows:1809".parse(), Ok(NodeOs::Windows { build: 17763 }));
        assert_eq!("windows:26100".parse(), Ok(NodeOs::Windows { build: 26100 }));
        assert!("windows:12".parse::<NodeOs>().is_err());
        assert!("linux:5".parse::<NodeOs>().is_err());
    }

    #[test]
    fn build_has_its_facts() {
        let os = NodeOs::Windows { build: 20348 };
        assert_eq!(os.windows_build_label().as_deref(), Some("10.0.20348"));
        assert_eq!(os.windows_kernel_version().as_deref(), Some("10.0.20348.2340"));
        assert_eq!(os.windows_product(), Some("Windows Server 2022 Datacenter"));
        assert_eq!(NodeOs::Linux.windows_build_label(), None);
        assert!(WINDOWS_RELEASES.is_sorted_by_key(|r| r.build));
    }
}
