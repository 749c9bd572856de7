//! Addresses, and streams of either family. Unix sockets exist only on Unix.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where a service listens: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    /// A host and port.
    Tcp(String),
}

/// A text that is no address of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a Host Networking Service: write unix:PATH or tcp:HOST:PORT")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.trim_start_matches("//").into())),
            Some(("tcp", host)) if host.contains(':') => Ok(Self::Tcp(host.to_owned())),
            _ => Err(AddressError(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

impl Address {
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            #[cfg(unix)]
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            #[cfg(not(unix))]
            Self::Unix(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "unix sockets are not reachable from this system: use tcp:HOST:PORT")),
            Self::Tcp(host) => {
                let stream = TcpStream::connect(host)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Listens. A unix socket's file is replaced where no process listens on it any more.
    pub fn listen(&self) -> io::Result<Listener> {
        match self {
            #[cfg(unix)]
            Self::Unix(path) => {
                if UnixStream::connect(path).is_err() {
                    match std::fs::remove_file(path) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
                UnixListener::bind(path).map(Listener::Unix)
            }
            #[cfg(not(unix))]
            Self::Unix(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "unix sockets do not exist on this system: use tcp:HOST:PORT")),
            Self::Tcp(host) => TcpListener::bind(host).map(Listener::Tcp),
        }
    }
}

pub enum Stream {
    #[cfg(unix)]
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Another descriptor of the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// Ends the connection for every descriptor of it.
    pub fn shutdown(&self) {
        // A connection that is gone already needs no shutdown.
        let _ = match self {
            #[cfg(unix)]
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    /// A read that takes longer is an error; without a duration none is.
    pub fn set_read_timeout(&self, longest: Option<Duration>) -> io::Result<()> {
        match self {
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_read_timeout(longest),
            Self::Tcp(stream) => stream.set_read_timeout(longest),
        }
    }

    /// Whether clients must show a token.
    pub fn needs_token(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            #[cfg(unix)]
            Stream::Unix(stream) => (&mut &*stream).read(buffer),
            Stream::Tcp(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            #[cfg(unix)]
            Stream::Unix(stream) => (&mut &*stream).write(buffer),
            Stream::Tcp(stream) => (&mut &*stream).write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

pub enum Listener {
    #[cfg(unix)]
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Waits for a connection.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            #[cfg(unix)]
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// The address to connect to, for listeners on port 0.
    pub fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix(_) => None,
        }
    }
}
