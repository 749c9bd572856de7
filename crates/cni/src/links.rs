//! Links of a pod, as the plug-ins for Linux make and find them.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use linux_sys::netlink::{Link, NetlinkError, Route as KernelRoute, Rtnl, Veth};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;
use sha2::{Digest, Sha512};

use crate::ipam;
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Route, code};
use crate::steps::step;
use crate::upstream_rules;

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

/// The first `len` hexadecimal digits of the SHA-512 of these texts, one after the other.
pub(crate) fn digest(texts: &[&str], len: usize) -> String {
    let mut hasher = Sha512::new();
    texts.iter().for_each(|text| hasher.update(text.as_bytes()));
    let hex: String = hasher.finalize().iter().take(len.div_ceil(2)).map(|byte| format!("{byte:02x}")).collect();
    hex[..len].to_owned()
}

/// The host's end of a sandbox's pair, the same at every call.
pub(crate) fn host_name(request: &Request) -> String {
    pair_name(&request.container_id, &request.ifname)
}

fn pair_name(container: &str, ifname: &str) -> String {
    format!("veth{}", digest(&[container, "/", ifname], 8))
}

/// What tells the links that were made for a network from others, from their making on: the kernel's `group`.
pub(crate) fn group(network: &str) -> u32 {
    u32::from_str_radix(&digest(&[network], 8), 16).unwrap_or(0).max(1)
}

/// The MAC that the runtime desires; its arguments count more than those of the configuration, and these more than the environment's.
fn desired_mac(request: &Request) -> Result<Option<[u8; 6]>, CniError> {
    let in_args = request.config.document.get("args").and_then(|args| args.pointer("/cni/mac")).and_then(|mac| mac.as_str());
    let runtime = request.config.runtime_config()?.mac.filter(|mac| !mac.is_empty());
    let text = runtime.or_else(|| in_args.map(str::to_owned)).or_else(|| request.args.get("MAC").cloned());
    text.filter(|text| !text.is_empty()).map(|text| parse_mac(&text)).transpose()
}

/// Opens the sandbox of an ADD or CHECK.
pub(crate) fn open_sandbox(request: &Request) -> Result<NetNs, CniError> {
    NetNs::open(Path::new(&request.netns)).map_err(|e| CniError::new(code::IO, format!("failed to open netns {:?}: {e}", request.netns)))
}

/// Makes the pair of interfaces, the pod's end in `sandbox`; both are down. Returns the host's.
pub(crate) fn make_pair(request: &Request, host: &Rtnl, sandbox: &NetNs, mtu: Option<u32>) -> Result<Link, CniError> {
    let name = host_name(request);
    let veth =
        Veth { name: &name, peer: &request.ifname, peer_ns: Some(sandbox), mtu, group: group(&request.config.name), peer_mac: desired_mac(request)? };
    match host.add_veth_with(&veth) {
        Err(error) if error.is_exists() => {
            let inside = Rtnl::open_in(sandbox).map_err(net)?;
            if inside.link(&request.ifname).map_err(net)?.is_some() {
                return Err(CniError::internal(format!("container veth name ({}) already exists", request.ifname)));
            }
            // Left over from an ADD that was cut off: its other end is not in this sandbox.
            if let Some(stale) = host.link(&name).map_err(net)? {
                gone(host.del_link(stale.index))?;
            }
            host.add_veth_with(&veth).map_err(net)?;
        }
        made => made.map_err(net)?,
    }
    step();
    must_find(host, &name)
}

/// GC: removes the pairs of this network's pods that are no more, before their addresses are freed; also what an ADD that was cut off left.
pub(crate) fn collect_pairs(request: &Request) -> Result<(), CniError> {
    let host = Rtnl::open().map_err(net)?;
    let group = group(&request.config.name);
    let valid: Vec<String> = request.valid_attachments().iter().map(|(id, ifname)| pair_name(id, ifname)).collect();
    let mut first = Ok(());
    for link in host.links().map_err(net)? {
        if link.kind == "veth" && link.group == group && !valid.contains(&link.name) {
            first = first.and(gone(host.del_link(link.index)));
        }
    }
    first
}

pub(crate) fn must_find(rtnl: &Rtnl, name: &str) -> Result<Link, CniError> {
    rtnl.link(name).map_err(net)?.ok_or_else(|| CniError::new(code::IO, format!("link {name} vanished while it was set up")))
}

/// The first address of a subnet behind its own, a gateway's.
pub(crate) fn first_host(subnet: IpNet) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(network) => IpAddr::V4(u32::from(network).wrapping_add(1).into()),
        IpAddr::V6(network) => IpAddr::V6(u128::from(network).wrapping_add(1).into()),
    }
}

/// How a pod reaches others of its subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbours {
    /// Directly.
    OnLink,
    /// Those of IPv6 through the gateway alone, for a node that answers for its pods in IPv4 (ARP) and not in IPv6.
    Ipv6ByGateway,
}

/// IPv6 on the pod's end, before it is up: what the node says in advertisements or redirects is not followed, since addresses and routes are
/// the plug-in's.
pub(crate) fn prepare_ipv6(request: &Request, sandbox: &NetNs, result: &AddResult) -> Result<(), CniError> {
    if !result.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        return Ok(());
    }
    let name = request.ifname.replace('.', "/");
    let set = || ["disable_ipv6", "accept_ra", "accept_redirects"].iter().try_for_each(|key| switch(&format!("net.ipv6.conf.{name}.{key}"), "0"));
    sandbox.run(set).map_err(|e| CniError::io(format_args!("enter netns {:?}", request.netns), &e))?
}

/// Addresses and routes of the pod's end.
pub(crate) fn configure(request: &Request, inside: &Rtnl, result: &AddResult) -> Result<Link, CniError> {
    configure_as(request, inside, result, Neighbours::OnLink)
}

/// Addresses and routes of the pod's end, whose neighbours are reached so.
pub(crate) fn configure_as(request: &Request, inside: &Rtnl, result: &AddResult, neighbours: Neighbours) -> Result<Link, CniError> {
    let by_gateway = |address: IpAddr| address.is_ipv6() && neighbours == Neighbours::Ipv6ByGateway;
    let link = must_find(inside, &request.ifname)?;
    for ip in &result.ips {
        let lone = by_gateway(ip.address.addr());
        if lone { inside.add_lone_addr(link.index, ip.address) } else { inside.add_addr(link.index, ip.address) }.map_err(net)?;
        step();
    }
    inside.set_up(link.index).map_err(net)?;
    step();
    for route in &result.routes {
        let gateway = || result.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4()).find_map(|ip| ip.gateway);
        let mut kernel = KernelRoute::new(route.dst).oif(link.index);
        if let Some(hop) = route.gw.or_else(gateway) {
            kernel = kernel.via(hop);
            kernel.onlink = by_gateway(hop);
        }
        kernel.metric = route.priority.unwrap_or(0);
        inside.replace_route(&kernel).map_err(net)?;
        step();
    }
    must_find(inside, &request.ifname)
}

/// Removes the pair. One that upstream's plug-in made is known by its end in the sandbox; a sandbox that is gone took both along.
pub(crate) fn remove_pair(request: &Request) -> Result<(), CniError> {
    let host = Rtnl::open().map_err(net)?;
    if let Some(link) = host.link(&host_name(request)).map_err(net)? {
        return gone(host.del_link(link.index));
    }
    let inside = NetNs::open(Path::new(&request.netns)).ok().and_then(|sandbox| Rtnl::open_in(&sandbox).ok());
    match inside.filter(|_| !request.netns.is_empty()) {
        Some(inside) => match inside.link(&request.ifname).map_err(net)? {
            Some(link) => gone(inside.del_link(link.index)),
            None => Ok(()),
        },
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
pub(crate) fn detach(request: &Request, masqueraded: bool) -> Result<(), CniError> {
    remove_pair(request)?;
    step();
    // An address may only be given out again once no interface has it.
    ipam::delegate(request, Command::Del)?;
    if masqueraded { upstream_rules::remove_masquerade(request) } else { Ok(()) }
}

/// The error of a CHECK that finds something else than ADD left.
pub(crate) fn drifted(text: String) -> CniError {
    CniError::new(code::DRIFT, text)
}

/// What CHECK found.
pub(crate) struct Found {
    /// What ADD answered.
    pub expected: AddResult,
    /// The host's end.
    pub near: Link,
}

/// CHECK of the pair: the pod's end is up, with the addresses and routes that ADD gave it, and the host's end is there.
pub(crate) fn check_pair(request: &Request, host: &Rtnl) -> Result<Found, CniError> {
    let Some(expected) = request.config.prev_result()? else { return Err(CniError::config("Required prevResult missing")) };
    let sandbox = open_sandbox(request)?;
    let inside = Rtnl::open_in(&sandbox).map_err(net)?;
    let link = inside.link(&request.ifname).map_err(net)?.filter(|link| link.up);
    let link = link.ok_or_else(|| drifted(format!("{} is missing or down in {:?}", request.ifname, request.netns)))?;
    if link.kind != "veth" {
        return Err(drifted(format!("{} is not of type veth", request.ifname)));
    }
    let own = expected.interfaces.iter().find(|known| known.name == request.ifname && !known.sandbox.is_empty());
    if let Some(own) = own {
        if own.sandbox != request.netns {
            return Err(drifted(format!("Sandbox in prevResult {} doesn't match configured netns: {}", own.sandbox, request.netns)));
        }
        check_mac(&own.mac, &link)?;
    }
    let addresses = inside.addrs(link.index).map_err(net)?;
    if let Some(lost) = expected.ips.iter().find(|ip| !addresses.contains(&ip.address)) {
        return Err(drifted(format!("{} lost its address {}", request.ifname, lost.address)));
    }
    let routes = inside.routes().map_err(net)?;
    let is_there = |desired: &Route| routes.iter().any(|route| route.dst == desired.dst && (desired.gw.is_none() || route.via == desired.gw));
    if let Some(lost) = expected.routes.iter().find(|desired| !is_there(desired)) {
        return Err(drifted(format!("{} lost its route to {}", request.ifname, lost.dst)));
    }
    let near = host.links().map_err(net)?.into_iter().find(|near| Some(near.index) == link.peer && near.kind == "veth");
    let near = near.ok_or_else(|| drifted(format!("the host's end of {} is gone", request.ifname)))?;
    if let Some(known) = expected.interfaces.iter().find(|known| known.sandbox.is_empty() && known.name == near.name) {
        check_mac(&known.mac, &near)?;
    }
    Ok(Found { expected, near })
}

/// Whether a link has the MAC that ADD reported.
pub(crate) fn check_mac(reported: &str, link: &Link) -> Result<(), CniError> {
    if reported.is_empty() || parse_mac(reported)? == link.mac {
        return Ok(());
    }
    Err(drifted(format!("the MAC of {} is {}, not {reported}", link.name, mac_text(link.mac))))
}
