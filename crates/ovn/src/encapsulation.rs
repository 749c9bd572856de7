//! Tunnels between hosts: what the local switch has to know of them, and whether the host's network has room for them.

use std::net::{IpAddr, UdpSocket};

use ovsdb::Remote;

use crate::rows::Want;
use crate::topology::MTU;

/// Why pods of other hosts would not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncapsulationError {
    /// STT needs a datapath in the kernel, with a module of its own.
    #[error(
        "the userspace datapath makes ports of STT and passes no packet through them; set external_ids:ovn-encap-type of the local switch to geneve or geneve,stt"
    )]
    Stt,
    /// Nothing says at which address tunnels end.
    #[error("no address for tunnels is known; set external_ids:ovn-encap-ip of the local switch to this host's address")]
    NoAddress,
    /// What is set is no address.
    #[error("external_ids:ovn-encap-ip of the local switch is {0:?}; set it to this host's address")]
    Address(String),
    /// The address is another host's.
    #[error("no interface of this host has address {0}, which is external_ids:ovn-encap-ip of the local switch; set it to this host's address")]
    Elsewhere(IpAddr),
    /// The largest packet of a pod would not fit.
    #[error("interface {interface} with address {address} has an MTU of {mtu}; tunnels of pods need {needed}: raise it")]
    Mtu {
        /// The interface.
        interface: String,
        /// The address of tunnels.
        address: IpAddr,
        /// Its MTU.
        mtu: u32,
        /// What is needed.
        needed: u32,
    },
}

/// What the local switch says of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `ovn-encap-type`.
    pub types: Option<String>,
    /// `ovn-encap-ip`.
    pub address: Option<String>,
    /// `ovn-remote`.
    pub remote: Option<String>,
    /// Whether `ovn-bridge-datapath-type` is `netdev`.
    pub is_userspace: bool,
}

/// How many bytes geneve adds to a packet.
#[must_use]
pub fn overhead(address: IpAddr) -> u32 {
    if address.is_ipv4() { 58 } else { 78 }
}

/// The address of tunnels, and what has to be written for what is not set: geneve, and the address from which this host reaches the southbound
/// database. `route`: that address, for one of the database's servers.
///
/// # Errors
/// What is set does not work, or there is no address.
pub fn plan(settings: &Settings, route: impl Fn(&Remote) -> Option<IpAddr>) -> Result<(IpAddr, Vec<Want>), EncapsulationError> {
    let types = settings.types.as_deref().filter(|types| !types.is_empty());
    if settings.is_userspace && types.is_some_and(|types| types.split(',').all(|kind| kind.trim() == "stt")) {
        return Err(EncapsulationError::Stt);
    }
    let given = settings.address.as_deref().filter(|address| !address.is_empty());
    let address = match given {
        // Of several, peers use one; each has to be this host's.
        Some(text) => {
            text.split(',').next().and_then(|first| first.trim().parse().ok()).ok_or_else(|| EncapsulationError::Address(text.to_owned()))?
        }
        None => {
            let remotes = settings.remote.as_deref().and_then(|remote| ovsdb::remotes(remote).ok()).unwrap_or_default();
            remotes.iter().find_map(route).ok_or(EncapsulationError::NoAddress)?
        }
    };
    let root = Want::only("Open_vSwitch");
    let root = if types.is_none() { root.entry("external_ids", "ovn-encap-type", "geneve") } else { root };
    let root = if given.is_none() { root.entry("external_ids", "ovn-encap-ip", address.to_string()) } else { root };
    let wants = if root.entries.is_empty() { Vec::new() } else { vec![root] };
    Ok((address, wants))
}

/// The address from which this host reaches a server, as its routes have it. Nothing is sent.
#[must_use]
pub fn route(remote: &Remote) -> Option<IpAddr> {
    let (Remote::Tcp { host, port } | Remote::Ssl { host, port }) = remote else { return None };
    let to = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), *port)).ok()?.next()?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then_some(own)
}

/// Whether the interface with the address of tunnels has room for them. `interface`: its name and MTU.
///
/// # Errors
/// There is no such interface, or its MTU is too small.
pub fn check(address: IpAddr, interface: Option<(String, u32)>) -> Result<(), EncapsulationError> {
    let (interface, mtu) = interface.ok_or(EncapsulationError::Elsewhere(address))?;
    let needed = u32::from(MTU) + overhead(address);
    if mtu < needed { Err(EncapsulationError::Mtu { interface, address, mtu, needed }) } else { Ok(()) }
}

/// The interface of this host with an address, and its MTU.
///
/// # Errors
/// The kernel's.
#[cfg(target_os = "linux")]
pub fn interface_with(address: IpAddr) -> std::io::Result<Option<(String, u32)>> {
    let rtnl = linux_sys::netlink::Rtnl::open().map_err(std::io::Error::from)?;
    for link in rtnl.links().map_err(std::io::Error::from)? {
        if rtnl.addrs(link.index).map_err(std::io::Error::from)?.iter().any(|net| net.addr() == address) {
            return Ok(Some((link.name, link.mtu)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(types: &str, address: &str) -> Settings {
        Settings { types: Some(types.into()), address: Some(address.into()), remote: Some("tcp:10.0.0.2:6642".into()), is_userspace: true }
    }

    fn written(settings: &Settings) -> Result<(String, Vec<String>), EncapsulationError> {
        let (address, wants) = plan(settings, |_| "10.0.0.7".parse().ok())?;
        let entries = wants.iter().flat_map(|want| want.entries["external_ids"].iter().map(|(key, value)| format!("{key}={value}")));
        Ok((address.to_string(), entries.collect()))
    }

    #[test]
    fn what_is_not_set_is_geneve_and_the_address_towards_the_database() {
        assert_eq!(written(&settings("geneve", "10.0.0.1")).unwrap(), ("10.0.0.1".to_owned(), vec![]));
        let both = ["ovn-encap-ip=10.0.0.7".to_owned(), "ovn-encap-type=geneve".to_owned()];
        assert_eq!(written(&settings("", "")).unwrap(), ("10.0.0.7".to_owned(), both.to_vec()));
        let unset = Settings { remote: Some("tcp:10.0.0.2:6642".into()), ..Settings::default() };
        assert_eq!(written(&unset).unwrap().1.len(), 2);
        assert_eq!(written(&Settings::default()).unwrap_err(), EncapsulationError::NoAddress);
        assert_eq!(written(&settings("geneve", "host")).unwrap_err(), EncapsulationError::Address("host".into()));
    }

    #[test]
    fn stt_alone_is_refused_where_the_datapath_lacks_it() {
        assert_eq!(written(&settings("stt", "10.0.0.1")).unwrap_err(), EncapsulationError::Stt);
        assert!(written(&settings("geneve,stt", "10.0.0.1")).is_ok(), "peers agree on geneve");
        assert!(written(&Settings { is_userspace: false, ..settings("stt", "10.0.0.1") }).is_ok());
    }

    #[test]
    fn tunnels_need_room_in_the_hosts_network() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let with = |mtu: u32| check(address, Some(("eth0".into(), mtu)));
        assert_eq!((with(1500), with(1458)), (Ok(()), Ok(())));
        assert_eq!(
            with(1457).unwrap_err().to_string(),
            "interface eth0 with address 10.0.0.1 has an MTU of 1457; tunnels of pods need 1458: raise it"
        );
        assert_eq!(check(address, None), Err(EncapsulationError::Elsewhere(address)));
        assert!(check("fd00::1".parse().unwrap(), Some(("eth0".into(), 1477))).is_err());
    }

    #[test]
    fn a_route_is_found_without_a_packet() {
        assert_eq!(route(&"unix:/run/ovn/ovnsb_db.sock".parse().unwrap()), None);
        assert_eq!(route(&"tcp:127.0.0.1:6642".parse().unwrap()), None, "another host's tunnels do not end there");
    }
}
