//! `portmap`: ports of a Linux node for pods, behind `bridge` in a list. Source: containernetworking/plugins `plugins/meta/portmap`.
//!
//! Rules stand in table `ip mullion-hostport` and carry the container's id: what goes to an address of the node (or to `hostIP`
//! alone) and a mapped port goes to the pod, also from the node itself and from the pod to itself. Loopback addresses are served
//! with `snat`, the default.
//! Not here: `conditionsV4` and `conditionsV6`, IPv6, and protocols other than TCP and UDP; these mappings are refused.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use linux_sys::conntrack::{self, Conntrack, Flow};
use linux_sys::netlink::NetlinkError;
use linux_sys::sysctl;
use nft::{Batch, Chain, ChainType, Family, Hook, Nft, NftError, RuleInfo, Table, loopback_guard, rule};

use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, PortMapping, code};

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
/// Mappings, by what the packet is for.
const PORTS: &str = "ports";
/// Whose packets take the node's address: their answers would go past the node.
const POSTROUTING: &str = "postrouting";
/// What may not use that `route_localnet` is set.
const LOCALHOST: &str = "localhost";
const CHAINS: [&str; 2] = [PORTS, POSTROUTING];
const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);

fn table() -> Table {
    Table::new(Family::Ip, "mullion-hostport")
}

/// A mapping that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    protocol: u8,
    host: u16,
    /// Any address of the node's, or this one.
    at: Option<Ipv4Addr>,
    to: SocketAddr,
}

/// Serves one request in the calling thread's network namespace.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    match request.command {
        Command::Add => add(request).map(Some),
        Command::Del => remove(|id| id == request.container_id).map(|()| None),
        Command::Check => check(request).map(|()| None),
        Command::Gc => {
            let valid = request.valid_attachments();
            remove(|id| !valid.iter().any(|(known, _)| known == id)).map(|()| None)
        }
        Command::Status => Ok(None),
    }
}

fn nft(error: NftError) -> CniError {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    CniError::new(code::IO, format!("cannot map host ports: {error}{cause}"))
}

/// What the runtime asks for, on the address that the plug-in before gave; without an IPv4 address there is nothing to map.
fn wanted(request: &Request) -> Result<(AddResult, Option<Ipv4Addr>, Vec<Port>), CniError> {
    let before = request.config.prev_result()?.ok_or_else(|| CniError::config("portmap must be called as a chained plugin: put it behind bridge"))?;
    let address = before.ips.iter().find_map(|ip| match ip.address.addr() {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    let mappings = request.config.runtime_config()?.port_mappings;
    let Some(ip) = address else { return Ok((before, None, Vec::new())) };
    let ports = mappings.iter().map(|mapping| port(mapping, ip)).collect::<Result<_, _>>()?;
    Ok((before, address, ports))
}

fn port(mapping: &PortMapping, pod: Ipv4Addr) -> Result<Port, CniError> {
    let refuse = |what: String| CniError::config(format!("host port {}: {what}", mapping.host_port));
    let protocol = match mapping.protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => conntrack::TCP,
        "udp" => conntrack::UDP,
        other => return Err(refuse(format!("protocol {other:?} is not mapped: use TCP or UDP"))),
    };
    if mapping.host_port == 0 || mapping.container_port == 0 {
        return Err(refuse(format!("{} is no pair of ports", mapping.container_port)));
    }
    let at = match mapping.host_ip.as_str() {
        "" | "0.0.0.0" => None,
        text => Some(text.parse().map_err(|_| refuse(format!("hostIP {text:?} is no IPv4 address of this node")))?),
    };
    Ok(Port { protocol, host: mapping.host_port, at, to: (pod, mapping.container_port).into() })
}

fn add(request: &Request) -> Result<AddResult, CniError> {
    let (result, address, ports) = wanted(request)?;
    let Some(ip) = address.filter(|_| !ports.is_empty()) else { return Ok(result) };
    let snat = request.config.document.get("snat").and_then(serde_json::Value::as_bool).unwrap_or(true);
    let socket = Nft::open().map_err(nft)?;
    let mut batch = Batch::new();
    base(&socket, &mut batch)?;
    if snat {
        guard_loopback(&socket, &mut batch)?;
    }
    // Those of an ADD that was cut off, and is repeated now.
    drop_rules(&socket, &mut batch, |id| id == request.container_id)?;
    for port in &ports {
        let at = match port.at {
            Some(ip) => rule().ip_daddr(IpNet::from(IpAddr::V4(ip))),
            None => rule().daddr_is_local(),
        };
        let at = if snat { at } else { at.ip_daddr_not(LOOPBACK) };
        let to = at.l4proto(port.protocol).dport(port.host).dnat_to(port.to);
        batch.add_rule(&table(), PORTS, to.comment(&*request.container_id));
    }
    let itself = IpNet::from(IpAddr::V4(ip));
    batch.add_rule(&table(), POSTROUTING, rule().ip_saddr(itself).ip_daddr(itself).masquerade().comment(&*request.container_id));
    if snat {
        let from_loopback = rule().ip_saddr(LOOPBACK).ip_daddr(itself).masquerade();
        batch.add_rule(&table(), POSTROUTING, from_loopback.comment(&*request.container_id));
        for link in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()).take(1) {
            let name = format!("net.ipv4.conf.{}.route_localnet", link.name.replace('.', "/"));
            sysctl::set(&name, "1").map_err(|e| CniError::io(format_args!("set {name}=1"), &e))?;
        }
    }
    socket.commit(&batch).map_err(nft)?;
    forget(&ports)?;
    Ok(result)
}

/// Table and chains, unless they are there.
fn base(socket: &Nft, batch: &mut Batch) -> Result<(), CniError> {
    let table = table();
    batch.add_table(&table).add_chain(&table, &Chain::regular(PORTS));
    batch.add_chain(&table, &Chain::base(POSTROUTING, ChainType::Nat, Hook::Postrouting, 100));
    // Behind Services, whose ports are others.
    for (chain, hook) in [(PREROUTING, Hook::Prerouting), (OUTPUT, Hook::Output)] {
        batch.add_chain(&table, &Chain::base(chain, ChainType::Nat, hook, -99));
        if socket.rules(&table, chain).map_err(nft)?.is_empty() {
            batch.add_rule(&table, chain, rule().jump(PORTS));
        }
    }
    Ok(())
}

/// Keeps `route_localnet` to the host's own connections, unless the rules are there.
fn guard_loopback(socket: &Nft, batch: &mut Batch) -> Result<(), CniError> {
    let table = table();
    // Behind connection tracking (-200), before every translation (-100).
    batch.add_chain(&table, &Chain::base(LOCALHOST, ChainType::Filter, Hook::Prerouting, -110));
    if socket.rules(&table, LOCALHOST).map_err(nft)?.is_empty() {
        for rule in loopback_guard() {
            batch.add_rule(&table, LOCALHOST, rule);
        }
    }
    Ok(())
}

fn ours(socket: &Nft, chain: &str, picked: &impl Fn(&str) -> bool) -> Result<Vec<RuleInfo>, CniError> {
    let mut rules = socket.rules(&table(), chain).map_err(nft)?;
    rules.retain(|rule| rule.comment.as_deref().is_some_and(picked));
    Ok(rules)
}

/// How many rules of picked containers the batch drops.
fn drop_rules(socket: &Nft, batch: &mut Batch, picked: impl Fn(&str) -> bool) -> Result<usize, CniError> {
    let mut count = 0;
    for chain in CHAINS {
        for rule in ours(socket, chain, &picked)? {
            batch.del_rule(&table(), chain, rule.handle);
            count += 1;
        }
    }
    Ok(count)
}

/// Takes the ports of containers away whose id is picked. Datagrams of a client that goes on sending still go to the pod that is
/// gone, until the port is mapped again.
fn remove(picked: impl Fn(&str) -> bool) -> Result<(), CniError> {
    let socket = Nft::open().map_err(nft)?;
    let mut batch = Batch::new();
    if drop_rules(&socket, &mut batch, picked)? == 0 {
        return Ok(());
    }
    socket.commit(&batch).map_err(nft)
}

/// Clients that go on sending reach the new pod.
fn forget(ports: &[Port]) -> Result<(), CniError> {
    let udp: Vec<&Port> = ports.iter().filter(|port| port.protocol == conntrack::UDP).collect();
    if udp.is_empty() {
        return Ok(());
    }
    let matches = |flow: &Flow| udp.iter().any(|port| flow.destination.port() == port.host && port.at.is_none_or(|at| flow.destination.ip() == at));
    let failed = |error: NetlinkError| CniError::new(code::IO, format!("cannot forget connections of host ports: {error}"));
    Conntrack::open().and_then(|conntrack| conntrack.forget_where(conntrack::UDP, matches)).map(drop).map_err(failed)
}

fn check(request: &Request) -> Result<(), CniError> {
    let (_, _, ports) = wanted(request)?;
    let socket = Nft::open().map_err(nft)?;
    let present = ours(&socket, PORTS, &|id: &str| id == request.container_id)?.len();
    if present == ports.len() {
        return Ok(());
    }
    Err(CniError::new(code::DRIFT, format!("{present} of {} host ports of {} are mapped", ports.len(), request.container_id)))
}

#[cfg(test)]
mod tests;
