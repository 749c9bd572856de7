//! Settings of registries: mirrors, insecure hosts, credentials.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use kube_rules::Reference;

/// How registries are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Registries {
    /// Asked before the registry that they mirror, in order.
    pub mirrors: Vec<Mirror>,
    /// `HOST[:PORT]` of registries without TLS. Loopback addresses need no mention.
    pub insecure: Vec<String>,
}

/// `docker.io=http://10.0.0.1:5000`: another place for a registry's images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// The registry as image names have it.
    pub registry: String,
    /// Where to ask instead, without a path.
    pub url: String,
}

/// A text that names no mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form REGISTRY=http[s]://HOST[:PORT], as docker.io=http://localhost:5000")]
pub struct MirrorError(String);

impl FromStr for Mirror {
    type Err = MirrorError;

    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let wrong = || MirrorError(text.to_owned());
        let (registry, url) = text.split_once('=').ok_or_else(wrong)?;
        let uri: http::Uri = url.parse().map_err(|_| wrong())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some() && uri.path() == "/" && uri.query().is_none();
        if registry.is_empty() || registry.contains('/') || !known {
            return Err(wrong());
        }
        Ok(Self { registry: registry.to_owned(), url: url.trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.registry, self.url)
    }
}

/// A place to ask for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `https://registry-1.docker.io`
    pub url: String,
    /// Whether it is the registry itself: only that receives credentials.
    pub origin: bool,
}

impl Registries {
    /// Where to ask, in order.
    pub(super) fn endpoints(&self, reference: &Reference) -> Vec<Endpoint> {
        let domain = reference.domain();
        let mirrors = self.mirrors.iter().filter(|mirror| mirror.registry == domain);
        let mut endpoints: Vec<Endpoint> = mirrors.map(|mirror| Endpoint { url: mirror.url.clone(), origin: false }).collect();
        let host = if domain == "docker.io" { "registry-1.docker.io" } else { domain };
        let scheme = if is_loopback(domain) || self.insecure.iter().any(|known| known == domain) { "http" } else { "https" };
        endpoints.push(Endpoint { url: format!("{scheme}://{host}"), origin: true });
        endpoints
    }
}

fn is_loopback(domain: &str) -> bool {
    let host = match domain.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => domain,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The user of a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    #[default]
    Anonymous,
    /// A user.
    Password {
        /// Name.
        user: String,
        password: String,
    },
    /// A token for which the registry's authority gives others.
    Identity(String),
    /// A token for the registry itself.
    Bearer(String),
}

impl Credentials {
    /// Reads `base64(USER:PASSWORD)`, as docker's configuration and CRI have it.
    pub fn decode(auth: &str) -> Option<Self> {
        let text = String::from_utf8(STANDARD.decode(auth).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        Some(Self::Password { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() })
    }
}

/// Never shows what is secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "anonymous",
            Self::Password { .. } => "password",
            Self::Identity(_) => "identity token",
            Self::Bearer(_) => "bearer token",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_first_and_loopback_needs_no_tls() {
        let registries = Registries { mirrors: vec!["docker.io=http://m:5000/".parse().unwrap()], insecure: vec!["plain:80".into()] };
        let urls = |name: &str| registries.endpoints(&name.parse().unwrap()).into_iter().map(|endpoint| endpoint.url).collect::<Vec<_>>();
        assert_eq!(urls("busybox"), ["http://m:5000", "https://registry-1.docker.io"]);
        assert_eq!(urls("ghcr.io/a/b"), ["https://ghcr.io"]);
        assert_eq!(urls("plain:80/a"), ["http://plain:80"]);
        assert_eq!(urls("localhost:5000/a"), ["http://localhost:5000"]);
        assert_eq!(urls("127.0.0.1:5000/a"), ["http://127.0.0.1:5000"]);
        for wrong in ["docker.io", "=http://x", "a=ftp://x", "a=http://x/path", "a/b=http://x"] {
            assert!(wrong.parse::<Mirror>().is_err(), "{wrong}");
        }
    }
}
