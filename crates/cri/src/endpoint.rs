//! Endpoint of a runtime: unix socket, named pipe or TCP address.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Address of a runtime, in the forms upstream's kubelet takes: `unix:///run/x.sock`, `npipe:////./pipe/x`, `tcp://host:port`.
/// A bare absolute path counts as a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    /// A Windows named pipe, as `\\.\pipe\name`.
    Pipe(String),
    /// `host:port`.
    Tcp(String),
}

/// Why an address was refused.
#[derive(Debug, Error)]
#[error("runtime endpoint {0:?} is not of the form unix:///PATH, npipe:////./pipe/NAME or tcp://HOST:PORT")]
pub struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || EndpointError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(refuse()) };
        }
        if let Some(pipe) = text.strip_prefix("npipe:") {
            let name = pipe.trim_start_matches('/').replace('/', "\\");
            return match name.strip_prefix(".\\pipe\\") {
                Some(rest) if !rest.is_empty() => Ok(Self::Pipe(format!("\\\\{name}"))),
                _ => Err(refuse()),
            };
        }
        if let Some(address) = text.strip_prefix("tcp://") {
            return match address.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Self::Tcp(address.to_owned())),
                _ => Err(refuse()),
            };
        }
        if text.starts_with('/') { Ok(Self::Unix(text.into())) } else { Err(refuse()) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Pipe(name) => write!(f, "npipe://{}", name.replace('\\', "/")),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_upstreams_forms() {
        let read = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.to_string());
        assert_eq!(read("unix:///run/a.sock").unwrap(), "unix:///run/a.sock");
        assert_eq!(read("unix:/run/a.sock").unwrap(), "unix:///run/a.sock");
        assert_eq!(read("/run/a.sock").unwrap(), "unix:///run/a.sock");
        assert_eq!(read("npipe:////./pipe/containerd-containerd").unwrap(), "npipe:////./pipe/containerd-containerd");
        assert_eq!("npipe:////./pipe/x".parse::<Endpoint>().unwrap(), Endpoint::Pipe(r"\\.\pipe\x".into()));
        assert_eq!(read("tcp://127.0.0.1:99").unwrap(), "tcp://127.0.0.1:99");
        for wrong in ["", "unix://", "unix:run/x", "npipe:////./pipe/", "tcp://:1", "tcp://host", "tcp://h:99999", "http://x"] {
            assert!(read(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
