//! Links of a pod, as the plug-ins for Linux make and find them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use linux_sys::netlink::{Link, NetlinkError, Route as KernelRoute, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;

use crate::ipam;
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, code};

pub(crate) fn net(error: NetlinkError) -> CniError {
    match std::error::Error::source(&error) {
        Some(cause) => CniError::new(code::IO, format!("{error}: {cause}")),
        None => CniError::new(code::IO, error.to_string()),
    }
}

pub(crate) fn switch(name: &str, value: &str) -> Result<(), CniError> {
    sysctl::set(name, value).map_err(|e| CniError::io(format_args!("set {name}={value}"), &e))
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub(crate) fn parse_mac(text: &str) -> Result<[u8; 6], CniError> {
    let bytes: Vec<u8> = text.split([':', '-']).filter_map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes.try_into().map_err(|_| CniError::config(format!("{text:?} is not a MAC address")))
}

/// The host's end of a sandbox's pair, the same at every call.
pub(crate) fn host_name(request: &Request) -> String {
    let mut hasher = DefaultHasher::new();
    (&request.container_id, &request.ifname).hash(&mut hasher);
    format!("veth{:08x}", hasher.finish() as u32)
}

pub(crate) fn must_find(rtnl: &Rtnl, name: &str) -> Result<Link, CniError> {
    rtnl.link(name).map_err(net)?.ok_or_else(|| CniError::new(code::IO, format!("link {name} vanished while it was set up")))
}

/// Addresses and routes of the pod's end.
pub(crate) fn configure(request: &Request, inside: &Rtnl, result: &AddResult) -> Result<Link, CniError> {
    let link = must_find(inside, &request.ifname)?;
    let desired = request.config.runtime_config()?.mac.or_else(|| request.args.get("MAC").cloned());
    if let Some(mac) = desired {
        inside.set_mac(link.index, parse_mac(&mac)?).map_err(net)?;
    }
    for ip in &result.ips {
        inside.add_addr(link.index, ip.address).map_err(net)?;
    }
    inside.set_up(link.index).map_err(net)?;
    for route in &result.routes {
        let gateway = || result.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4()).find_map(|ip| ip.gateway);
        let mut kernel = KernelRoute::new(route.dst).oif(link.index);
        if let Some(hop) = route.gw.or_else(gateway) {
            kernel = kernel.via(hop);
        }
        kernel.metric = route.priority.unwrap_or(0);
        inside.replace_route(&kernel).map_err(net)?;
    }
    must_find(inside, &request.ifname)
}

/// Removes the pod's end, and with it the host's. A sandbox that is gone took both along.
fn remove_pair(request: &Request) -> Result<(), CniError> {
    let inside = NetNs::open(Path::new(&request.netns)).ok().and_then(|sandbox| Rtnl::open_in(&sandbox).ok());
    if let Some(inside) = inside.filter(|_| !request.netns.is_empty())
        && let Some(link) = inside.link(&request.ifname).map_err(net)?
    {
        return gone(inside.del_link(link.index));
    }
    let host = Rtnl::open().map_err(net)?;
    match host.link(&host_name(request)).map_err(net)? {
        Some(link) => gone(host.del_link(link.index)),
        None => Ok(()),
    }
}

/// A sandbox that ends takes its link along, maybe just now.
pub(crate) fn gone(deleted: Result<(), NetlinkError>) -> Result<(), CniError> {
    match deleted {
        Err(error) if !error.is_not_found() => Err(net(error)),
        _ => Ok(()),
    }
}

/// DEL of a pod that has a pair of its own.
pub(crate) fn detach(request: &Request) -> Result<(), CniError> {
    remove_pair(request)?;
    // An address may only be given out again once no interface has it.
    ipam::delegate(request, Command::Del).map(drop)
}

/// The error of a CHECK that finds something else than ADD left.
pub(crate) fn drifted(text: String) -> CniError {
    CniError::new(code::DRIFT, text)
}

/// CHECK of the pod's end: it is up, with the addresses and routes that ADD gave it. Returns what ADD answered.
pub(crate) fn check_inside(request: &Request) -> Result<AddResult, CniError> {
    let sandbox = NetNs::open(Path::new(&request.netns)).map_err(|e| drifted(format!("netns {:?} is gone: {e}", request.netns)))?;
    let inside = Rtnl::open_in(&sandbox).map_err(net)?;
    let link = inside.link(&request.ifname).map_err(net)?.filter(|link| link.up);
    let link = link.ok_or_else(|| drifted(format!("{} is missing or down in {:?}", request.ifname, request.netns)))?;
    let addresses = inside.addrs(link.index).map_err(net)?;
    let expected = request.config.prev_result()?.unwrap_or_default();
    if let Some(lost) = expected.ips.iter().find(|ip| !addresses.contains(&ip.address)) {
        return Err(drifted(format!("{} lost its address {}", request.ifname, lost.address)));
    }
    let routes = inside.routes().map_err(net)?;
    if let Some(lost) = expected.routes.iter().find(|desired| !routes.iter().any(|route| route.dst == desired.dst)) {
        return Err(drifted(format!("{} lost its route to {}", request.ifname, lost.dst)));
    }
    Ok(expected)
}
