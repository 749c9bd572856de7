//! Ports of the real host: bound here, used by a relay in the lab.
//!
//! The relay says which ports it wants; each that can be had comes back as a descriptor, each that
//! cannot with the reason. Sockets are kept by port while they are requested, so a relay that was
//! restarted gets the same ones and no connection is refused in between.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use linux_sys::fdpass;

use super::Shared;
use crate::protocol::{HostPort, PortStatus, Transport};

/// Room for a list of all ports that services may have.
pub(crate) const MESSAGE: usize = 512 * 1024;

type Held = Arc<Mutex<Option<BTreeMap<HostPort, OwnedFd>>>>;

/// The ports held.
#[derive(Debug)]
pub(super) struct Ports {
    listener: Arc<fdpass::Listener>,
    held: Held,
}

impl Ports {
    /// Frees all ports and ends the thread.
    pub(super) fn close(&self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.listener.shutdown();
    }
}

pub(super) fn serve(path: &Path, shared: Arc<Shared>) -> io::Result<Ports> {
    let listener = Arc::new(fdpass::Listener::bind(path)?);
    let held: Held = Arc::new(Mutex::new(Some(BTreeMap::new())));
    let ports = Ports { listener: Arc::clone(&listener), held: Arc::clone(&held) };
    let accept = move || {
        while let Ok(relay) = listener.accept() {
            serve_relay(&relay, &held, &shared);
        }
    };
    thread::Builder::new().name("lab-ports".into()).spawn(accept)?;
    Ok(ports)
}

/// One relay after the other: a new one connects when the last has ended.
fn serve_relay(relay: &OwnedFd, held: &Held, shared: &Shared) {
    let mut buffer = vec![0; MESSAGE];
    let mut granted = BTreeSet::new();
    while let Ok((length, _)) = fdpass::receive(relay, &mut buffer) {
        if length == 0 {
            return;
        }
        let requested: BTreeSet<HostPort> = match serde_json::from_slice(&buffer[..length]) {
            Ok(requested) => requested,
            Err(e) => {
                tracing::warn!("the relay asked for unreadable ports: {e}");
                return;
            }
        };
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held) = held.as_mut() else { return };
        held.retain(|port, _| requested.contains(port));
        granted.retain(|port| requested.contains(port));
        let mut status = Vec::new();
        for port in requested {
            let error = ensure(held, port).err().map(|e| e.to_string());
            let port_status = PortStatus { port, error };
            if !granted.contains(&port) && answer(relay, &port_status, held.get(&port)).is_err() {
                return;
            }
            if port_status.error.is_none() {
                granted.insert(port);
            }
            status.push(port_status);
        }
        shared.status().ports = status;
    }
}

fn answer(relay: &OwnedFd, status: &PortStatus, socket: Option<&OwnedFd>) -> io::Result<()> {
    let fds: Vec<_> = socket.into_iter().map(AsFd::as_fd).collect();
    fdpass::send(relay, &serde_json::to_vec(status)?, &fds)
}

fn ensure(held: &mut BTreeMap<HostPort, OwnedFd>, port: HostPort) -> io::Result<()> {
    let Entry::Vacant(place) = held.entry(port) else { return Ok(()) };
    let address = (Ipv4Addr::LOCALHOST, port.port);
    place.insert(match port.protocol {
        Transport::Tcp => {
            let socket = TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            socket.into()
        }
        Transport::Udp => {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            socket.into()
        }
    });
    Ok(())
}
