//! The VXLAN tunnel of a Linux host: device, neighbours and forwarding entries.
//!
//! All entries of the device are ours: what no node announces is removed.

use std::collections::BTreeMap;

use ipnet::IpNet;
use linux_sys::netlink::{NetlinkError, Rtnl, Vxlan};
use linux_sys::sysctl;

use crate::mode::{Tunnel, Vtep};
use crate::nth;

/// The tunnel could not be made or filled.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The kernel refused.
    #[error("cannot {what} tunnel {name}; pods of other nodes are reached through it")]
    Netlink {
        what: &'static str,
        name: String,
        #[source]
        source: NetlinkError,
    },
    /// It vanished between two steps.
    #[error("tunnel {0} is gone again; another program removes it")]
    Gone(String),
}

/// Makes the device what is desired, and returns its number. One with other parameters is made anew.
pub fn ensure(desired: &Tunnel) -> Result<u32, TunnelError> {
    let failed = |what| move |source| TunnelError::Netlink { what, name: desired.name.clone(), source };
    let rtnl = Rtnl::open().map_err(failed("open"))?;
    let wanted = Vxlan { vni: desired.vni, local: Some(desired.local), device: Some(desired.device), port: desired.port, learning: false };
    let mut present = rtnl.link(&desired.name).map_err(failed("find"))?;
    if let Some(link) = present.take_if(|_| !matches!(rtnl.vxlan(&desired.name), Ok(Some(found)) if found == wanted)) {
        tracing::warn!(tunnel = desired.name, "making the tunnel anew: its parameters differ");
        rtnl.del_link(link.index).map_err(failed("remove"))?;
    }
    let link = match present {
        Some(link) => link,
        None => {
            rtnl.add_vxlan(&desired.name, &wanted).map_err(failed("add"))?;
            tracing::info!(tunnel = desired.name, "created the tunnel");
            rtnl.link(&desired.name).map_err(failed("find"))?.ok_or_else(|| TunnelError::Gone(desired.name.clone()))?
        }
    };
    if link.mac != desired.mac.0 {
        rtnl.set_mac(link.index, desired.mac.0).map_err(failed("set the MAC of"))?;
    }
    if link.mtu != desired.mtu {
        rtnl.set_mtu(link.index, desired.mtu).map_err(failed("set the MTU of"))?;
    }
    let addresses = rtnl.addrs(link.index).map_err(failed("read the addresses of"))?;
    if let Some(address) = desired.address.map(IpNet::from).filter(|address| !addresses.contains(address)) {
        rtnl.add_addr(link.index, address).map_err(failed("give an address to"))?;
    }
    if !link.up {
        // No router on the tunnel advertises anything that is for this host. Missing where IPv6 is off.
        let _ = sysctl::set(&format!("net.ipv6.conf.{}.accept_ra", desired.name.replace('.', "/")), "0");
        rtnl.set_up(link.index).map_err(failed("switch on"))?;
    }
    Ok(link.index)
}

/// Adds neighbours and forwarding entries that are missing or differ; returns how many were written.
pub fn add(name: &str, index: u32, vteps: &BTreeMap<IpNet, Vtep>) -> Result<usize, TunnelError> {
    let failed = |what| move |source| TunnelError::Netlink { what, name: name.to_owned(), source };
    let rtnl = Rtnl::open().map_err(failed("open"))?;
    let (neighbours, entries) = (rtnl.neighbours(index).map_err(failed("read"))?, rtnl.fdb(index).map_err(failed("read"))?);
    let mut written = 0;
    for (cidr, vtep) in vteps {
        let router = nth(*cidr, 0);
        if !neighbours.iter().any(|n| n.ip == router && n.mac == Some(vtep.mac.0) && n.permanent) {
            rtnl.add_neigh(index, router, vtep.mac.0).map_err(failed("add a neighbour to"))?;
            written += 1;
        }
        if !entries.iter().any(|entry| entry.mac == vtep.mac.0 && entry.dst == Some(vtep.host) && entry.permanent) {
            rtnl.add_fdb(index, vtep.mac.0, Some(vtep.host), None).map_err(failed("add a forwarding entry to"))?;
            written += 1;
        }
    }
    Ok(written)
}

/// Removes the neighbours and forwarding entries that no node announces; returns how many.
pub fn remove_stale(name: &str, index: u32, vteps: &BTreeMap<IpNet, Vtep>) -> Result<usize, TunnelError> {
    let failed = |what| move |source| TunnelError::Netlink { what, name: name.to_owned(), source };
    let gone = |result: Result<(), NetlinkError>| match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    };
    let rtnl = Rtnl::open().map_err(failed("open"))?;
    let mut removed = 0;
    for neighbour in rtnl.neighbours(index).map_err(failed("read"))?.iter().filter(|neighbour| neighbour.permanent) {
        if !vteps.keys().any(|cidr| nth(*cidr, 0) == neighbour.ip) {
            gone(rtnl.del_neigh(index, neighbour.ip)).map_err(failed("remove a neighbour from"))?;
            removed += 1;
        }
    }
    for entry in rtnl.fdb(index).map_err(failed("read"))? {
        if !vteps.values().any(|vtep| vtep.mac.0 == entry.mac && Some(vtep.host) == entry.dst) {
            gone(rtnl.del_fdb(index, entry.mac, entry.dst, entry.vni)).map_err(failed("remove a forwarding entry from"))?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests;
