//! Catalogue of stand-ins: images that cannot run without Windows, for which small programs of ours answer, and
//! bases of Windows itself, for which Wine does.
//!
//! Every image from the catalogue is marked: in its labels, in CRI annotations and in its verbose info.

use kube_rules::{NodeOs, WINDOWS_RELEASES, image_build};
use serde::{Deserialize, Serialize};

use super::config::ImageConfig;
use super::platform::Platform;
use kube_rules::Reference;

/// Label and annotation on every stand-in.
pub const LABEL: &str = "mullion.io/stand-in";

/// The program of `guest` that answers for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandIn {
    /// A web server on port 80 that says it stands for IIS.
    Iis,
    /// The same server, which says it stands for an image of ASP.NET.
    Aspnet,
    /// Keys and values on port 6379.
    Redis,
    /// Waits to be stopped.
    Pause,
}

impl StandIn {
    /// The name of the program in `guest`.
    pub fn program(self) -> &'static str {
        match self {
            Self::Iis => "iis",
            Self::Aspnet => "aspnet",
            Self::Redis => "redis",
            Self::Pause => "pause",
        }
    }
}

/// The label of a base image of Windows, for which Wine's own files and programs stand.
pub const WINE: &str = "wine";

struct Entry {
    name: &'static str,
    /// What answers; none: the programs of Wine, beginning with `cmd`.
    program: Option<StandIn>,
    tags: Tags,
}

/// Which tags the real image has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tags {
    /// Those that name a Windows build.
    Builds,
    /// Those, and `3.9` and the like, which are for every build and for Linux.
    Versions,
    /// Those that name a variant for Windows; `3.0-nanoserver` is for every build.
    Nanoserver,
}

const CATALOGUE: &[Entry] = &[
    Entry { name: "microsoft/iis", program: Some(StandIn::Iis), tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/windows/servercore/iis", program: Some(StandIn::Iis), tags: Tags::Builds },
    Entry { name: "microsoft/aspnet", program: Some(StandIn::Aspnet), tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/dotnet/framework/aspnet", program: Some(StandIn::Aspnet), tags: Tags::Builds },
    Entry { name: "redis", program: Some(StandIn::Redis), tags: Tags::Nanoserver },
    Entry { name: "kubeletwin/pause", program: Some(StandIn::Pause), tags: Tags::Builds },
    Entry { name: "apprenda/pause", program: Some(StandIn::Pause), tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/oss/kubernetes/pause", program: Some(StandIn::Pause), tags: Tags::Versions },
    Entry { name: "registry.k8s.io/pause", program: Some(StandIn::Pause), tags: Tags::Versions },
    Entry { name: "microsoft/nanoserver", program: None, tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/windows/nanoserver", program: None, tags: Tags::Builds },
    Entry { name: "microsoft/windowsservercore", program: None, tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/windows/servercore", program: None, tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/windows", program: None, tags: Tags::Builds },
    Entry { name: "mcr.microsoft.com/windows/server", program: None, tags: Tags::Builds },
];

/// Names of the images that have a stand-in.
pub fn names() -> impl Iterator<Item = &'static str> {
    CATALOGUE.iter().map(|entry| entry.name)
}

/// A stand-in image as a registry would offer it.
#[derive(Debug)]
pub struct Offer {
    /// What answers; none: the programs of Wine.
    pub program: Option<StandIn>,
    /// The variants: one if the tag names a build, else every build.
    pub platforms: Vec<Platform>,
}

/// What the catalogue has under a reference. `None`: no such repository, or a tag that was never published.
pub fn offer(reference: &Reference) -> Option<Offer> {
    let entry = CATALOGUE.iter().find(|entry| entry.name == reference.familiar())?;
    let tag = reference.tag.as_deref().unwrap_or("latest");
    let every = || WINDOWS_RELEASES.iter().map(|release| Platform::windows(release.build));
    let platforms = match (image_build(&format!("x:{tag}")), entry.tags) {
        // `redis` without a Windows tag is another image, which is for Linux.
        (_, Tags::Nanoserver) if !tag.contains("nanoserver") && !tag.contains("windowsservercore") => return None,
        (Some(build), _) => vec![Platform::windows(build)],
        (None, Tags::Nanoserver) => every().collect(),
        (None, _) if tag == "latest" => every().chain((entry.tags == Tags::Versions).then(Platform::linux)).collect(),
        (None, Tags::Versions) if is_version(tag) => every().chain([Platform::linux()]).collect(),
        _ => return None,
    };
    Some(Offer { program: entry.program, platforms })
}

/// `3.9`, `3.10`: versions of the pause image, which exist for every build.
fn is_version(tag: &str) -> bool {
    tag.contains('.') && tag.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a repository (as people write it) is one of Microsoft's bases, on which others build: their layers are not
/// needed, since the template stands for them.
pub fn is_base(familiar: &str) -> bool {
    CATALOGUE.iter().any(|entry| entry.name == familiar && entry.program.is_none())
}

/// The configuration of a stand-in; its digest is the image's id.
pub fn config(reference: &Reference, program: Option<StandIn>, platform: &Platform) -> ImageConfig {
    let mut config = ImageConfig { platform: platform.clone(), ..ImageConfig::default() };
    let run = &mut config.config;
    run.labels.insert(LABEL.to_owned(), program.map_or(WINE, StandIn::program).to_owned());
    run.labels.insert("org.opencontainers.image.title".to_owned(), format!("Mullion's stand-in of {}", reference.familiar()));
    let owned = |arguments: &[&str]| arguments.iter().map(|word| (*word).to_owned()).collect();
    match program {
        Some(StandIn::Iis | StandIn::Aspnet) => run.entrypoint = owned(&[r"C:\ServiceMonitor.exe", "w3svc"]),
        Some(StandIn::Redis) => run.cmd = owned(&["redis-server.exe", r"C:\Redis\redis.unprotected.conf", "--port", "6379"]),
        Some(StandIn::Pause) => run.entrypoint = owned(&["/pause"]),
        None => run.cmd = owned(&[r"c:\windows\system32\cmd.exe"]),
    }
    if platform.os == NodeOs::Linux.name() {
        run.env.push("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
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
        assert_eq!(builds("microsoft/aspnet:4.7.1-windowsservercore-1709"), Some(vec![Some(16299)]));
        assert_eq!(builds("microsoft/windowsservercore:1803"), Some(vec![Some(17134)]));
        assert_eq!(builds("redis:3.0-nanoserver").unwrap().len(), WINDOWS_RELEASES.len(), "for every build");
        assert_eq!(builds("redis:3.0-nanoserver-1709"), Some(vec![Some(16299)]));
        assert_eq!(builds("redis:7"), None);
    }

    #[test]
    fn bases_begin_with_cmd() {
        let reference = "microsoft/nanoserver:1709".parse().unwrap();
        let config = config(&reference, None, &Platform::windows(16299));
        assert_eq!(config.config.cmd, [r"c:\windows\system32\cmd.exe"]);
        assert_eq!(config.config.labels[LABEL], WINE);
        assert!(is_base("mcr.microsoft.com/windows/nanoserver") && !is_base("microsoft/iis"));
    }
}
