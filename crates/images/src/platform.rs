//! Platform match: selects the variant of an image for a node.

use std::fmt;

use kube_rules::{NodeOs, WINDOWS_RELEASES, match_build};
use serde::{Deserialize, Serialize};

/// What an image variant is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux` or `windows`.
    pub os: String,
    /// Go's name of the processor: `amd64`, `arm64`.
    pub architecture: String,
    /// Windows: `10.0.BUILD.REVISION`.
    #[serde(rename = "os.version", default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
}

/// Go's name of the processor this program runs on.
pub fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Platform {
    /// A Windows image of that build.
    pub fn windows(build: u32) -> Self {
        let revision = WINDOWS_RELEASES.iter().find(|release| release.build == build).map_or(1, |release| release.revision);
        let os_version = Some(format!("10.0.{build}.{revision}"));
        Self { os: "windows".into(), architecture: host_architecture().into(), os_version }
    }

    /// A Linux image for this processor.
    pub fn linux() -> Self {
        Self { os: "linux".into(), architecture: host_architecture().into(), os_version: None }
    }

    /// The Windows build, where `os.version` names one.
    pub fn build(&self) -> Option<u32> {
        self.os_version.as_deref()?.split('.').nth(2)?.parse().ok()
    }

    /// Whether a node runs this variant, and how well it fits among those that run: higher is better.
    /// Windows follows containerd's matcher (`platforms_windows.go`): newest build wins; without `os.version` anything goes.
    pub fn fit(&self, node: NodeOs) -> Option<u32> {
        if self.os != node.name() || self.architecture != host_architecture() {
            return None;
        }
        match (node.build(), self.build()) {
            (Some(host), Some(image)) => match_build(host, image).ok().map(|()| image),
            _ => Some(0),
        }
    }

    /// As [`Platform::fit`], with Hyper-V isolation: every Windows build that is not newer than the node.
    pub fn fit_hypervisor(&self, node: NodeOs) -> Option<u32> {
        let Some(host) = node.build() else { return self.fit(node) };
        let alike = self.os == node.name() && self.architecture == host_architecture();
        let build = self.build().unwrap_or(host);
        (alike && build <= host).then_some(build)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.os_version {
            Some(version) => write!(f, " {version}"),
            None => Ok(()),
        }
    }
}

/// No variant fits the node. Begins with containerd's own message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no match for platform in manifest: not found: {image} is for {}, this node runs {}; {}", list(.available), describe(*.node), self.way_out())]
pub struct NoMatch {
    pub image: String,
    /// What it is made for.
    pub available: Vec<Platform>,
    pub node: NodeOs,
}

impl NoMatch {
    fn way_out(&self) -> String {
        let wrong_os = self.available.iter().all(|platform| platform.os != self.node.name());
        match self.node {
            NodeOs::Windows { build } if !wrong_os => match kube_rules::release(build) {
                Some(release) => format!("use the image's {} variant, or a nodeSelector for a node of the image's build", release.tags[0]),
                None => "use a nodeSelector for a node of the image's build".to_owned(),
            },
            _ if wrong_os => {
                let os = self.available.first().map_or("other", |platform| platform.os.as_str());
                format!("use nodeSelector kubernetes.io/os: {os}")
            }
            _ => format!("use an image for {}", host_architecture()),
        }
    }
}

fn list(platforms: &[Platform]) -> String {
    let names: Vec<String> = platforms.iter().map(Platform::to_string).collect();
    names.join(", ")
}

fn describe(node: NodeOs) -> String {
    match node.build() {
        Some(build) => format!("windows/{} 10.0.{build}", host_architecture()),
        None => format!("{}/{}", node.name(), host_architecture()),
    }
}

/// Whether a variant runs, and how well it fits: [`Platform::fit`] or that of another isolation.
pub type Fit<'a> = &'a (dyn Fn(&Platform) -> Option<u32> + Sync);

/// The best variant for a node.
///
/// # Errors
/// [`NoMatch`] with everything the image offers.
pub fn choose<'a, T>(image: &str, node: NodeOs, variants: &'a [T], platform: impl Fn(&T) -> &Platform, fit: Fit<'_>) -> Result<&'a T, NoMatch> {
    let fits = variants.iter().filter_map(|variant| fit(platform(variant)).map(|fit| (fit, variant)));
    fits.max_by_key(|(fit, _)| *fit).map(|(_, variant)| variant).ok_or_else(|| NoMatch {
        image: image.to_owned(),
        available: variants.iter().map(|variant| platform(variant).clone()).collect(),
        node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose_build(node: NodeOs, builds: &[u32]) -> Result<Option<u32>, String> {
        let variants: Vec<Platform> = builds.iter().map(|build| Platform::windows(*build)).collect();
        choose("x", node, &variants, |platform| platform, &|platform| platform.fit(node)).map(Platform::build).map_err(|error| error.to_string())
    }

    #[test]
    fn windows_builds_follow_containerds_matcher() {
        let node = |build| NodeOs::Windows { build };
        assert_eq!(choose_build(node(20348), &[17763, 20348]), Ok(Some(20348)));
        assert_eq!(choose_build(node(26100), &[17763, 20348]), Ok(Some(20348)));
        assert_eq!(choose_build(node(17763), &[17763, 20348]), Ok(Some(17763)));
        let refused = choose_build(node(20348), &[16299]).unwrap_err();
        assert!(refused.starts_with("no match for platform in manifest: not found"), "{refused}");
        assert!(refused.contains("10.0.16299") && refused.contains("10.0.20348") && refused.contains("ltsc2022"), "{refused}");
    }

    #[test]
    fn hypervisors_run_older_builds_too() {
        let node = NodeOs::Windows { build: 20348 };
        let fits = |build| Platform::windows(build).fit_hypervisor(node);
        assert_eq!((fits(16299), fits(20348), fits(26100)), (Some(16299), Some(20348), None));
        assert_eq!(Platform::linux().fit_hypervisor(node), None);
    }

    #[test]
    fn other_system_is_refused_with_a_node_selector() {
        let refused = choose_build(NodeOs::Linux, &[20348]).unwrap_err();
        assert!(refused.contains("nodeSelector kubernetes.io/os: windows"), "{refused}");
        let variants = [Platform::linux(), Platform::windows(20348)];
        assert_eq!(choose("x", NodeOs::Linux, &variants, |platform| platform, &|platform| platform.fit(NodeOs::Linux)).unwrap().os, "linux");
    }
}
