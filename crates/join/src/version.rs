//! Versions of Kubernetes, and the skew that is allowed between a kubelet and its API server. Pure.

use std::fmt;
use std::str::FromStr;

/// Minors that a kubelet may be older than its API server (upstream's version skew policy).
const OLDER: u32 = 3;

/// `v1.36.2+anything` as far as it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// A text that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no version of Kubernetes, such as v1.36.2")]
pub struct NotAVersion(String);

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let wrong = || NotAVersion(text.chars().take(64).collect());
        let core = text.trim().trim_start_matches('v').split(['+', '-']).next().unwrap_or_default();
        let mut numbers = core.split('.').map(|part| part.parse::<u32>());
        let mut next = || numbers.next().and_then(Result::ok).ok_or_else(wrong);
        Ok(Self { major: next()?, minor: next()?, patch: next()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why a kubelet of this version does not fit the control plane; none when it does.
#[must_use]
pub fn skew(kubelet: Version, control_plane: Version) -> Option<String> {
    let (ours, theirs) = ((kubelet.major, kubelet.minor), (control_plane.major, control_plane.minor));
    if ours > theirs {
        return Some(format!("the node agent is {kubelet}, newer than the control plane's {control_plane}: upgrade the control plane first"));
    }
    let is_old = kubelet.major < control_plane.major || control_plane.minor - kubelet.minor > OLDER;
    is_old.then(|| format!("the node agent is {kubelet}, more than {OLDER} minor versions older than the control plane's {control_plane}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_upstream_writes_them() {
        let of = |major, minor, patch| Version { major, minor, patch };
        for (text, version) in [("v1.36.2+mullion.0.1.0", of(1, 36, 2)), ("1.9.0", of(1, 9, 0)), ("v1.37.0-alpha.1", of(1, 37, 0))] {
            assert_eq!(text.parse::<Version>().unwrap(), version);
        }
        for text in ["", "v1", "v1.36", "stable-1", "v1.x.0"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_agent_is_never_newer_and_at_most_three_minors_older() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        let fits = |kubelet: &str, control_plane: &str| skew(version(kubelet), version(control_plane)).is_none();
        assert!(fits("v1.36.2", "v1.36.0") && fits("v1.36.2", "v1.39.0"));
        assert!(!fits("v1.36.2", "v1.35.9") && !fits("v1.36.2", "v1.40.0") && !fits("v1.36.2", "v2.0.0"));
    }
}
