//! Image names, spelled out as containerd spells them (`github.com/distribution/reference`).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A full image reference: `docker.io/library/busybox:latest`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// `docker.io/library/busybox`
    pub repository: String,
    /// `latest`, unless a digest alone was given.
    pub tag: Option<String>,
    /// `sha256:…`
    pub digest: Option<String>,
}

/// Why a name is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("couldn't parse image name {name:?}: {reason}")]
pub struct ReferenceError {
    name: String,
    reason: &'static str,
}

impl ReferenceError {
    /// A name for an image may have a tag, not a digest.
    pub fn digest(name: &str) -> Self {
        Self { name: name.to_owned(), reason: "refusing to create a tag with a digest reference" }
    }
}

impl Reference {
    /// Whether the tag is the one that is meant when none is given.
    pub fn is_latest(&self) -> bool {
        self.tag.as_deref() == Some("latest")
    }

    /// The name as it was given, without tag and digest: `busybox` of `busybox:1`.
    ///
    /// # Errors
    /// When it is no image's name.
    pub fn untagged(name: &str) -> Result<&str, ReferenceError> {
        let reference = name.parse::<Self>()?;
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let tag = reference.tag.as_deref().unwrap_or_default();
        Ok(name.strip_suffix(tag).and_then(|rest| rest.strip_suffix(':')).unwrap_or(name))
    }

    /// The registry: `docker.io`, `localhost:5000`.
    pub fn domain(&self) -> &str {
        self.repository.split_once('/').map_or("", |(domain, _)| domain)
    }

    /// The repository within its registry: `library/busybox`.
    pub fn path(&self) -> &str {
        self.repository.split_once('/').map_or("", |(_, path)| path)
    }

    /// The repository as people write it: `busybox`, `microsoft/iis`, `mcr.microsoft.com/windows/servercore/iis`.
    pub fn familiar(&self) -> &str {
        let short = self.repository.strip_prefix("docker.io/").unwrap_or(&self.repository);
        short.strip_prefix("library/").unwrap_or(short)
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(name: &str) -> Result<Self, ReferenceError> {
        let refuse = |reason| ReferenceError { name: name.to_owned(), reason };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => return Err(refuse("invalid digest: expected sha256: and 64 hexadecimal digits")),
            None => (name, None),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(refuse("invalid tag"));
        }
        let (domain, path) = match path.split_once('/') {
            Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path),
            _ => ("docker.io", path),
        };
        if path.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(refuse("invalid reference format: repository name must be lowercase"));
        }
        if path.is_empty() || !path.split('/').all(is_path_component) || domain.is_empty() {
            return Err(refuse("invalid reference format"));
        }
        let library = if domain == "docker.io" && !path.contains('/') { "library/" } else { "" };
        let tag = match (tag, &digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self { repository: format!("{domain}/{library}{path}"), tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Whether the text is `sha256:` and 64 lower-case hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128 && tag.bytes().next().is_some_and(word) && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_path_component(part: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(part.bytes().next())
        && edge(part.bytes().last())
        && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_out() {
        let full = |name: &str| name.parse::<Reference>().map(|reference| reference.to_string());
        assert_eq!(full("busybox").unwrap(), "docker.io/library/busybox:latest");
        assert_eq!(full("microsoft/iis").unwrap(), "docker.io/microsoft/iis:latest");
        assert_eq!(full("mcr.microsoft.com/oss/kubernetes/pause:3.9").unwrap(), "mcr.microsoft.com/oss/kubernetes/pause:3.9");
        assert_eq!(full("localhost:5000/x").unwrap(), "localhost:5000/x:latest");
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(full(&format!("x@{digest}")).unwrap(), format!("docker.io/library/x@{digest}"));
        for wrong in ["", "UPPER/case", "x:", "x@sha256:12", "a//b", "-a", "x:tag with space"] {
            assert!(full(wrong).is_err(), "{wrong:?} was accepted");
        }
        for (name, bare) in [("x", "x"), ("x:1", "x"), ("h:5/a", "h:5/a"), ("h:5/a:1", "h:5/a"), ("latest", "latest"), ("a:latest", "a")] {
            assert_eq!(Reference::untagged(name), Ok(bare), "{name}");
            assert_eq!(Reference::untagged(&format!("{name}@{digest}")), Ok(bare), "{name} with a digest");
        }
        assert_eq!("docker.io/library/x:1".parse::<Reference>().unwrap().familiar(), "x");
    }
}
