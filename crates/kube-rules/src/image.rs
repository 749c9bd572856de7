//! Match of Windows image builds and Windows host builds, under process isolation.

use crate::os::{NodeOs, WINDOWS_RELEASES, describe_build, release};

/// An image made for a Windows build that this node cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct BuildMismatch {
    pub image_build: u32,
    pub node_build: u32,
    /// The image as the pod names it, where known.
    pub image: Option<String>,
    /// The pod runs in a virtual machine of its own (Hyper-V isolation).
    pub isolated: bool,
}

impl BuildMismatch {
    /// One line that names both builds and the ways out.
    fn message(&self) -> String {
        let image = self.image.as_deref().map(|i| format!(" {i:?}")).unwrap_or_default();
        let tag = |build| release(build).map_or_else(|| build.to_string(), |r| r.tags[0].to_owned());
        let rule = if self.isolated { "Hyper-V isolation runs no image newer than its node" } else { "process isolation needs matching builds" };
        // A newer image has no guest that fits.
        let guest = if !self.isolated && self.image_build < self.node_build {
            ", or run the pod under Hyper-V isolation (a RuntimeClass with handler runhcs-wcow-hypervisor)"
        } else {
            ""
        };
        let or = if guest.is_empty() { " or" } else { "" };
        format!(
            "image{image} is built for {}, but this node runs {}: {rule}. \
             Use the image's {} variant,{or} add nodeSelector node.kubernetes.io/windows-build: \"10.0.{}\" to run on a matching node{guest}",
            describe_build(self.image_build),
            describe_build(self.node_build),
            tag(self.node_build),
            self.image_build,
        )
    }
}

/// Whether a host of `node_build` runs an image of `image_build` (containerd's matcher): hosts
/// before 20348 need the exact build; later hosts also run images from the LTSC before them
/// (at least 20348) up to their own build.
pub fn match_build(node_build: u32, image_build: u32) -> Result<(), BuildMismatch> {
    let oldest = if node_build <= 20348 {
        node_build
    } else {
        WINDOWS_RELEASES.iter().rev().map(|r| r.build).find(|b| *b < node_build).unwrap_or(20348).max(20348)
    };
    if (oldest..=node_build).contains(&image_build) {
        return Ok(());
    }
    Err(BuildMismatch { image_build, node_build, image: None, isolated: false })
}

/// Whether a host of `node_build` runs an image of `image_build` in a virtual machine: every build up to its own.
fn match_guest(node_build: u32, image_build: u32) -> Result<(), BuildMismatch> {
    if image_build <= node_build { Ok(()) } else { Err(BuildMismatch { image_build, node_build, image: None, isolated: true }) }
}

/// The Windows build that an image reference's tag announces: a release name
/// (`1809`, `ltsc2022`), alone or as a dash-separated part (`windowsservercore-ltsc2022`), or
/// `10.0.17763[.REVISION]`. None for no tag, `latest` and everything else.
pub fn image_build(reference: &str) -> Option<u32> {
    let (_, tag) = split_reference(reference);
    let tag = tag?;
    tag.split(['-', '_']).find_map(build_of_token)
}

fn build_of_token(token: &str) -> Option<u32> {
    if let Some(rest) = token.strip_prefix("10.0.") {
        return rest.split('.').next()?.parse().ok();
    }
    WINDOWS_RELEASES.iter().find(|r| r.tags.contains(&token)).map(|r| r.build)
}

/// Repository and tag of a reference; a digest is dropped, a registry port is not a tag.
fn split_reference(reference: &str) -> (&str, Option<&str>) {
    let name = reference.split('@').next().unwrap_or(reference);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (name, None),
    }
}

/// Checks a pod's image against a node before anything is pulled; `isolated` is Hyper-V isolation. A bare number like `1809` is
/// used only where the repository is known to use it for Windows releases, so that
/// `shop/app:1809` is left to the runtime, which knows the manifest.
pub fn match_image(os: NodeOs, isolated: bool, reference: &str) -> Result<(), BuildMismatch> {
    let NodeOs::Windows { build: node_build } = os else {
        return Ok(());
    };
    let Some(build) = image_build(reference) else {
        return Ok(());
    };
    let (repository, tag) = split_reference(reference);
    let bare_number = tag.is_some_and(|t| t.bytes().all(|b| b.is_ascii_digit()));
    if bare_number && !names_windows(repository) {
        return Ok(());
    }
    let rule = if isolated { match_guest } else { match_build };
    rule(node_build, build).map_err(|m| BuildMismatch { image: Some(reference.to_owned()), ..m })
}

fn names_windows(repository: &str) -> bool {
    let repository = repository.to_ascii_lowercase();
    ["windows", "microsoft", "nanoserver", "servercore", "kubeletwin", "apprenda", "/iis"].iter().any(|mark| repository.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_name_a_build() {
        for (reference, build) in [
            ("mcr.microsoft.com/windows/nanoserver:1809", Some(17763)),
            ("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022", Some(20348)),
            ("microsoft/iis:windowsservercore-1709", Some(16299)),
            ("localhost:5000/x", None),
            ("localhost:5000/x:ltsc2019@sha256:00", Some(17763)),
            ("x:10.0.17763.1234-amd64", Some(17763)),
            ("microsoft/iis", None),
            ("microsoft/iis:latest", None),
            ("x:v1.1809.2", None),
        ] {
            assert_eq!(image_build(reference), build, "{reference}");
        }
    }

    #[test]
    fn images_run_on_matching_builds() {
        for (node, image, ok) in [
            (17763, 17763, true),
            (17763, 16299, false),
            (20348, 17763, false),
            (20348, 20348, true),
            (20348, 26100, false),
            (26100, 20348, true),
            (26100, 25398, true),
            (26100, 26100, true),
            (26100, 17763, false),
            (25398, 20348, true),
        ] {
            assert_eq!(match_build(node, image).is_ok(), ok, "{image} on {node}");
        }
    }

    #[test]
    fn refusal_names_both_builds_and_the_fix() {
        let os = NodeOs::Windows { build: 20348 };
        let refusal = match_image(os, false, "mcr.microsoft.com/windows/nanoserver:1809").unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "image \"mcr.microsoft.com/windows/nanoserver:1809\" is built for Windows Server 2019 (build 17763), \
             but this node runs Windows Server 2022 (build 20348): process isolation needs matching builds. \
             Use the image's ltsc2022 variant, add nodeSelector node.kubernetes.io/windows-build: \"10.0.17763\" to run on a matching node, \
             or run the pod under Hyper-V isolation (a RuntimeClass with handler runhcs-wcow-hypervisor)"
        );
        assert_eq!(match_image(os, true, "mcr.microsoft.com/windows/nanoserver:1809"), Ok(()));
        for (isolated, rule) in [(false, "process isolation needs matching builds"), (true, "Hyper-V isolation runs no image newer than its node")] {
            let newer = match_image(os, isolated, "mcr.microsoft.com/windows/nanoserver:ltsc2025").unwrap_err().to_string();
            assert!(
                newer.contains(rule)
                    && newer.ends_with("variant, or add nodeSelector node.kubernetes.io/windows-build: \"10.0.26100\" to run on a matching node"),
                "{newer}"
            );
        }
        assert_eq!(match_image(os, false, "shop/app:1809"), Ok(()));
        assert_eq!(match_image(NodeOs::Linux, false, "mcr.microsoft.com/windows/nanoserver:1809"), Ok(()));
    }
}
