//! Where databases are, in Open vSwitch's notation, and connections to them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A server of a database: `unix:FILE`, `tcp:HOST:PORT` or `ssl:HOST:PORT`; addresses of IPv6 stand in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A socket of this machine.
    Unix(PathBuf),
    /// Without encryption.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// With TLS.
    Ssl {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// A text names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no database server: write unix:FILE, tcp:HOST:PORT or ssl:HOST:PORT, several with commas between them")]
pub struct RemoteError(String);

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    Some((host.to_owned(), port.parse().ok().filter(|port| *port != 0)?)).filter(|(host, _)| !host.is_empty())
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let wrong = || RemoteError(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        match kind {
            "unix" if !rest.is_empty() => Ok(Self::Unix(rest.into())),
            "tcp" => host_and_port(rest).map(|(host, port)| Self::Tcp { host, port }).ok_or_else(wrong),
            "ssl" => host_and_port(rest).map(|(host, port)| Self::Ssl { host, port }).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

/// Reads a list of servers with commas between them, as `ovn-remote` has it.
///
/// # Errors
/// A part names no server, or there is none.
pub fn remotes(text: &str) -> Result<Vec<Remote>, RemoteError> {
    text.split(',').map(|part| part.trim().parse()).collect()
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host: name, port } => write!(f, "tcp:{}:{port}", host(name)),
            Self::Ssl { host: name, port } => write!(f, "ssl:{}:{port}", host(name)),
        }
    }
}

/// Bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Remote {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens, TLS fails, or this system has no such sockets.
    pub async fn connect(&self, tls: Option<&Arc<rustls::ClientConfig>>) -> std::io::Result<Box<dyn Stream>> {
        match self {
            #[cfg(unix)]
            Self::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            #[cfg(not(unix))]
            Self::Unix(_) => Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "unix: works on Linux alone; use tcp: or ssl:")),
            Self::Tcp { host, port } => Ok(Box::new(tcp(host, *port).await?)),
            Self::Ssl { host, port } => {
                let config = tls.ok_or_else(|| std::io::Error::other("ssl: needs a private key, a certificate and the authority's certificate"))?;
                let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                let connector = tokio_rustls::TlsConnector::from(config.clone());
                Ok(Box::new(connector.connect(name, tcp(host, *port).await?).await?))
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_printed() {
        for text in ["unix:/run/ovn/ovnnb_db.sock", "tcp:10.0.0.1:6641", "ssl:[fd00::1]:6641", "ssl:central.example:6641"] {
            assert_eq!(text.parse::<Remote>().unwrap().to_string(), text);
        }
        assert_eq!(remotes("tcp:10.0.0.1:6641, tcp:10.0.0.2:6641").unwrap().len(), 2);
        for wrong in ["", "unix:", "tcp:", "tcp:10.0.0.1", "tcp::6641", "tcp:h:0", "tcp:fd00::1:6641", "ssl:[fd00::1:1", "http:a:1", "tcp:a:70000"] {
            let error = remotes(wrong).unwrap_err().to_string();
            assert!(error.contains("names no database server"), "{wrong}: {error}");
        }
    }
}
