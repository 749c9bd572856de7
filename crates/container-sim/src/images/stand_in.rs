//! The catalogue of stand-ins: images that cannot run without Windows, for which small programs of ours answer.
//!
//! Whatever comes from here says so: in its labels, in CRI annotations and in its verbose info.

use pod_rules::{NodeOs, WINDOWS_RELEASES, image_build};
use serde::{Deserialize, Serialize};

use super::config::ImageConfig;
use super::platform::Platform;
use super::reference::Reference;

/// Label and annotation on every stand-in.
pub const LABEL: &str = "mullion.io/stand-in";

/// The program that answers for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandIn {
    /// A web server on port 80 that says it stands for IIS.
    Iis,
    /// Waits to be stopped.
    Pause,
}

impl StandIn {
    /// The name of the program in `guest`.
    pub fn program(self) -> &'static str {
        match self {
            Self::Iis => "iis",
            Self::Pause => "pause",
        }
    }
}

struct Entry {
    name: &'static str,
    program: StandIn,
    /// Whether the real image also has a Linux variant.
    linux: bool,
}

const CATALOGUE: &[Entry] = &[
    Entry { name: "microsoft/iis", program: StandIn::Iis, linux: false },
    Entry { name: "mcr.microsoft.com/windows/servercore/iis", program: StandIn::Iis, linux: false },
    Entry { name: "kubeletwin/pause", program: StandIn::Pause, linux: false },
    Entry { name: "apprenda/pause", program: StandIn::Pause, linux: false },
    Entry { name: "mcr.microsoft.com/oss/kubernetes/pause", program: StandIn::Pause, linux: true },
    Entry { name: "registry.k8s.io/pause", program: StandIn::Pause, linux: true },
];

/// Names of the images that have a stand-in.
pub fn names() -> impl Iterator<Item = &'static str> {
    CATALOGUE.iter().map(|entry| entry.name)
}

/// A stand-in image as a registry would offer it.
#[derive(Debug)]
pub struct Offer {
    /// What answers.
    pub program: StandIn,
    /// The variants: one if the tag names a build, else every build.
    pub platforms: Vec<Platform>,
}

/// What the catalogue has under a reference. `None`: no such repository, or a tag nobody published.
pub fn offer(reference: &Reference) -> Option<Offer> {
    let entry = CATALOGUE.iter().find(|entry| entry.name == reference.familiar())?;
    let tag = reference.tag.as_deref().unwrap_or("latest");
    let platforms = match image_build(&format!("x:{tag}")) {
        Some(build) => vec![Platform::windows(build)],
        None if tag == "latest" || is_version(tag) => {
            let windows = WINDOWS_RELEASES.iter().map(|release| Platform::windows(release.build));
            windows.chain(entry.linux.then(Platform::linux)).collect()
        }
        None => return None,
    };
    Some(Offer { program: entry.program, platforms })
}

/// `3.9`, `3.10`: versions of the pause image, which exist for every build.
fn is_version(tag: &str) -> bool {
    tag.contains('.') && tag.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The configuration of a stand-in; its digest is the image's id.
pub fn config(reference: &Reference, program: StandIn, platform: &Platform) -> ImageConfig {
    let mut config = ImageConfig { platform: platform.clone(), ..ImageConfig::default() };
    config.config.labels.insert(LABEL.to_owned(), program.program().to_owned());
    config.config.labels.insert("org.opencontainers.image.title".to_owned(), format!("Mullion's stand-in of {}", reference.familiar()));
    config.config.entrypoint = match program {
        StandIn::Iis => vec!["C:\\ServiceMonitor.exe".to_owned(), "w3svc".to_owned()],
        StandIn::Pause => vec!["/pause".to_owned()],
    };
    if platform.os == NodeOs::Linux.name() {
        config.config.env.push("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builds(name: &str) -> Option<Vec<Option<u32>>> {
        offer(&name.parse().unwrap()).map(|offer| offer.platforms.iter().map(Platform::build).collect())
    }

    #[test]
    fn tags_decide_the_build() {
        assert_eq!(builds("microsoft/iis:windowsservercore-1709"), Some(vec![Some(16299)]));
        assert_eq!(builds("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022"), Some(vec![Some(20348)]));
        assert!(builds("microsoft/iis").unwrap().contains(&Some(26100)));
        assert!(builds("mcr.microsoft.com/oss/kubernetes/pause:3.9").unwrap().contains(&None), "pause has a Linux variant");
        assert_eq!(builds("microsoft/iis:no-such-tag"), None);
        assert_eq!(builds("example.com/microsoft/iis"), None);
    }
}
