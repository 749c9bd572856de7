//! The relay's side of NodePorts: descriptors of the real host's ports, connections into the LAN.
//!
//! Runs in a process of the lab. The supervisor binds 127.0.0.1:PORT on the real host and passes
//! the socket; what arrives there is carried to the first target that answers.

mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux_sys::fdpass;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::protocol::{HostPort, PortStatus, Transport};

/// How often ports that were taken are tried again, and a lost supervisor is looked for.
const AGAIN: Duration = Duration::from_secs(2);
/// How long one target has to accept a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a connection that every target refuses is tried again, and how often. A Windows node refuses for a moment
/// whenever a Service changes: its load balancer can only be deleted and made anew.
const REFUSED: Duration = Duration::from_millis(500);
const REFUSED_AGAIN: Duration = Duration::from_millis(10);
/// After an error of accept (too many open files), so as not to spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Chooses where connections to a port go: targets in the order in which they are tried.
pub trait Targets: Send + Sync + 'static {
    /// Called for each connection, so it follows nodes that come and go.
    fn select(&self, port: HostPort) -> Vec<SocketAddr>;
}

impl<F: Fn(HostPort) -> Vec<SocketAddr> + Send + Sync + 'static> Targets for F {
    fn select(&self, port: HostPort) -> Vec<SocketAddr> {
        self(port)
    }
}

/// Keeps the ports in `desired` open on the real host and relays them, until `desired`'s sender is
/// dropped. `status` reports for each whether it is open: a port that somebody else holds is
/// tried again until it is free. `socket` is [`crate::dir::Dirs::ports_socket`].
pub async fn run(socket: &Path, mut desired: watch::Receiver<BTreeSet<HostPort>>, targets: Arc<dyn Targets>, status: watch::Sender<Vec<PortStatus>>) {
    let mut relay = Relay { targets, open: BTreeMap::new(), refused: BTreeMap::new() };
    loop {
        match relay.serve(socket, &mut desired, &status).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "no ports from the supervisor; trying again"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What serves one port; it ends with this value.
struct Open(JoinHandle<()>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Relay {
    targets: Arc<dyn Targets>,
    open: BTreeMap<HostPort, Open>,
    refused: BTreeMap<HostPort, String>,
}

impl Relay {
    /// Over one connection to the supervisor; `Ok` when `desired` is closed.
    async fn serve(
        &mut self,
        socket: &Path,
        desired: &mut watch::Receiver<BTreeSet<HostPort>>,
        status: &watch::Sender<Vec<PortStatus>>,
    ) -> io::Result<()> {
        // Its messages keep their boundaries, so it is never read or written as a stream.
        let supervisor = std::os::unix::net::UnixStream::from(fdpass::connect(socket)?);
        supervisor.set_nonblocking(true)?;
        let supervisor = UnixStream::from_std(supervisor)?;
        // A supervisor that knows this relay no more sends every port once again.
        self.open.clear();
        let mut again = tokio::time::interval(AGAIN);
        loop {
            tokio::select! {
                changed = desired.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.ask(&supervisor, desired).await?;
                }
                _ = again.tick() => self.ask(&supervisor, desired).await?,
                received = receive(&supervisor) => {
                    let (answer, fd) = received?;
                    self.take(answer, fd);
                    status.send_replace(self.status());
                }
            }
        }
    }

    /// Sends the whole list: what is not in it any more is closed, here before there.
    async fn ask(&mut self, supervisor: &UnixStream, desired: &mut watch::Receiver<BTreeSet<HostPort>>) -> io::Result<()> {
        let list = desired.borrow_and_update().clone();
        self.open.retain(|port, _| list.contains(port));
        self.refused.retain(|port, _| list.contains(port));
        let text = serde_json::to_vec(&list)?;
        supervisor.async_io(Interest::WRITABLE, || fdpass::send(supervisor, &text, &[])).await
    }

    fn take(&mut self, status: PortStatus, fd: Option<OwnedFd>) {
        let opened = match (status.error, fd) {
            (Some(error), _) => Err(error),
            (None, Some(fd)) => self.serve_port(status.port, fd).map_err(|e| e.to_string()),
            (None, None) => Err("the supervisor sent no descriptor".into()),
        };
        match opened {
            Ok(open) => {
                self.refused.remove(&status.port);
                self.open.insert(status.port, open);
            }
            Err(error) => {
                self.refused.insert(status.port, error);
            }
        }
    }

    fn serve_port(&self, port: HostPort, fd: OwnedFd) -> io::Result<Open> {
        let targets = Arc::clone(&self.targets);
        Ok(Open(match port.protocol {
            Transport::Tcp => {
                let listener = TcpListener::from_std(fd.into())?;
                tokio::spawn(relay_tcp(listener, port, targets))
            }
            Transport::Udp => {
                let socket = UdpSocket::from_std(fd.into())?;
                tokio::spawn(udp::relay(socket, port, targets, udp::IDLE))
            }
        }))
    }

    fn status(&self) -> Vec<PortStatus> {
        let open = self.open.keys().map(|port| PortStatus { port: *port, error: None });
        let refused = self.refused.iter().map(|(port, error)| PortStatus { port: *port, error: Some(error.clone()) });
        let mut all: Vec<_> = open.chain(refused).collect();
        all.sort_by_key(|s| s.port);
        all
    }
}

async fn receive(supervisor: &UnixStream) -> io::Result<(PortStatus, Option<OwnedFd>)> {
    let mut buffer = [0; 4096];
    let (length, fds) = supervisor.async_io(Interest::READABLE, || fdpass::receive(supervisor, &mut buffer)).await?;
    if length == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the supervisor is gone"));
    }
    Ok((serde_json::from_slice(&buffer[..length])?, fds.into_iter().next()))
}

async fn relay_tcp(listener: TcpListener, port: HostPort, targets: Arc<dyn Targets>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let targets = Arc::clone(&targets);
                tokio::spawn(async move {
                    if let Err(error) = splice(client, port, &*targets).await {
                        tracing::debug!(%port, %error, "a connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%port, %error, "no connection accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Carries both directions; the end of one is passed on while the other goes on.
async fn splice(mut client: TcpStream, port: HostPort, targets: &dyn Targets) -> io::Result<()> {
    match connect(port, targets).await {
        Ok(mut server) => {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
        }
        Err(error) => {
            // A reset, not an end of file: nobody took the request.
            client.set_zero_linger()?;
            Err(error)
        }
    }
}

/// To the first target that takes it. Targets are chosen anew for each round.
async fn connect(port: HostPort, targets: &dyn Targets) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        let mut last = io::Error::new(io::ErrorKind::HostUnreachable, "no node is ready to take it");
        for target in targets.select(port) {
            match tokio::time::timeout(CONNECT, TcpStream::connect(target)).await {
                Ok(Ok(server)) => return Ok(server),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        if last.kind() != io::ErrorKind::ConnectionRefused || began.elapsed() >= REFUSED {
            return Err(last);
        }
        tokio::time::sleep(REFUSED_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const PORT: HostPort = HostPort { protocol: Transport::Tcp, port: 30_080 };

    #[tokio::test]
    async fn a_target_that_refuses_for_a_moment_is_tried_again() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = closed.local_addr().expect("its address");
        drop(closed);
        let back = tokio::spawn(async move {
            tokio::time::sleep(REFUSED_AGAIN * 5).await;
            let listener = TcpListener::bind(address).await.expect("the same port");
            listener.accept().await.expect("a connection")
        });
        let server = connect(PORT, &move |_| vec![address]).await.expect("a connection at last");
        assert_eq!(back.await.expect("a task").1, server.local_addr().expect("its address"));
    }

    #[tokio::test]
    async fn a_target_that_goes_on_refusing_is_given_up() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = closed.local_addr().expect("its address");
        drop(closed);
        let error = connect(PORT, &move |_| vec![address]).await.expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect(PORT, &|_| Vec::new()).await.expect_err("nobody to ask");
        assert_eq!(error.kind(), io::ErrorKind::HostUnreachable);
    }
}
