//! `portmap`: ports of a Linux node for pods, behind `bridge` in a list. Source: containernetworking/plugins `plugins/meta/portmap`.
//!
//! Rules are in table `ip mullion-hostport`, with the container's id as their comment: what goes to an address of the node (or to
//! `hostIP` alone) and a mapped port goes to the pod, also from the node itself. The pod itself and loopback addresses are served with
//! `snat`, the default. Plug-ins of several containers share the table: each changes its own rules alone.
//! Not here: `conditionsV4` and `conditionsV6`, IPv6, and protocols other than TCP and UDP; these mappings are refused.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use linux_sys::conntrack::{self, Conntrack, Flow};
use linux_sys::netlink::NetlinkError;
use linux_sys::sysctl;
use nft::{Chain, ChainType, Desired, Engine, Family, Hook, Nft, NftError, Rule, Table, loopback_guard, rule};

use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, PortMapping, code};
use crate::upstream_rules;

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
/// Mappings, by what the packet is for.
const PORTS: &str = "ports";
/// Packets that take the node's address, because their answers would go past the node.
const POSTROUTING: &str = "postrouting";
/// Guards the node's loopback addresses from the network while `route_localnet` is set.
const LOCALHOST: &str = "localhost";
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
        Command::Del => {
            remove(|id| id == request.container_id)?;
            upstream_rules::remove_host_ports(request).map(|()| None)
        }
        Command::Check => check(request).map(|()| None),
        Command::Gc => {
            let valid = request.valid_attachments();
            remove(|id| !valid.iter().any(|(known, _)| known == id)).map(|()| None)
        }
        Command::Status => Ok(None),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    requested(request).map(drop)
}

fn nft(error: NftError) -> CniError {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    CniError::new(code::IO, format!("cannot map host ports: {error}{cause}"))
}

/// What one container's host ports need.
#[derive(Debug, PartialEq, Eq)]
struct Mappings {
    container: String,
    pod: Ipv4Addr,
    ports: Vec<Port>,
    /// The pod itself and loopback addresses of the node are served, too.
    snat: bool,
}

/// The result of the plug-in before, and the mappings that the runtime asks for; none without ports or without an IPv4 address.
fn requested(request: &Request) -> Result<(AddResult, Option<Mappings>), CniError> {
    let before = request.config.prev_result()?.ok_or_else(|| CniError::config("must be called as chained plugin: put portmap behind bridge"))?;
    let address = before.ips.iter().find_map(|ip| match ip.address.addr() {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    let mappings = request.config.runtime_config()?.port_mappings;
    let Some(pod) = address else { return Ok((before, None)) };
    let ports = mappings.iter().map(|mapping| port(mapping, pod)).collect::<Result<Vec<_>, _>>()?;
    let snat = request.config.document.get("snat").and_then(serde_json::Value::as_bool).unwrap_or(true);
    let mappings = Mappings { container: request.container_id.clone(), pod, ports, snat };
    Ok((before, Some(mappings).filter(|mappings| !mappings.ports.is_empty())))
}

fn port(mapping: &PortMapping, pod: Ipv4Addr) -> Result<Port, CniError> {
    let refuse = |what: String| CniError::config(format!("host port {}: {what}", mapping.host_port));
    let protocol = match mapping.protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => conntrack::TCP,
        "udp" => conntrack::UDP,
        other => return Err(refuse(format!("protocol {other:?} is not mapped: use TCP or UDP"))),
    };
    for (what, number) in [("container", mapping.container_port), ("host", mapping.host_port)] {
        if number == 0 {
            return Err(CniError::config(format!("Invalid {what} port number: {number}")));
        }
    }
    let at = match mapping.host_ip.as_str() {
        "" | "0.0.0.0" => None,
        text => Some(text.parse().map_err(|_| refuse(format!("hostIP {text:?} is no IPv4 address of this node")))?),
    };
    Ok(Port { protocol, host: mapping.host_port, at, to: (pod, mapping.container_port).into() })
}

impl Mappings {
    /// The part of the table that this container needs.
    fn render(&self) -> Desired {
        let mut part = shared_part();
        let owner = || [self.container.clone()];
        let pod = IpNet::from(IpAddr::V4(self.pod));
        let mut translated = Vec::new();
        if self.snat {
            translated.push(rule().ip_saddr(pod).ip_daddr(pod).masquerade());
            translated.push(rule().ip_saddr(LOOPBACK).ip_daddr(pod).masquerade());
            // Behind connection tracking (-200), before every translation (-100).
            part.chain(Chain::base(LOCALHOST, ChainType::Filter, Hook::Prerouting, -110), loopback_guard());
        }
        let own = |rule: Rule| rule.comment(&*self.container);
        part.owned_rules(ports_chain(), owner(), self.ports.iter().map(|port| own(port.rule(self.snat))));
        part.owned_rules(postrouting_chain(), owner(), translated.into_iter().map(own));
        part
    }
}

impl Port {
    fn rule(&self, snat: bool) -> Rule {
        let at = match self.at {
            Some(ip) => rule().ip_daddr(IpNet::from(IpAddr::V4(ip))),
            None => rule().daddr_is_local(),
        };
        let at = if snat { at } else { at.ip_daddr_not(LOOPBACK) };
        at.l4proto(self.protocol).dport(self.host).dnat_to(self.to)
    }
}

fn ports_chain() -> Chain {
    Chain::regular(PORTS)
}

fn postrouting_chain() -> Chain {
    Chain::base(POSTROUTING, ChainType::Nat, Hook::Postrouting, 100)
}

/// The chains that lead to the ports.
fn shared_part() -> Desired {
    let mut part = Desired::new(table()).shared();
    // Behind Services, whose ports are others.
    for (chain, hook) in [(PREROUTING, Hook::Prerouting), (OUTPUT, Hook::Output)] {
        part.chain(Chain::base(chain, ChainType::Nat, hook, -99), [rule().jump(PORTS)]);
    }
    part
}

fn add(request: &Request) -> Result<AddResult, CniError> {
    let (result, mappings) = requested(request)?;
    let Some(mappings) = mappings else { return Ok(result) };
    if mappings.snat {
        for link in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()).take(1) {
            let name = format!("net.ipv4.conf.{}.route_localnet", link.name.replace('.', "/"));
            sysctl::set(&name, "1").map_err(|e| CniError::io(format_args!("set {name}=1"), &e))?;
        }
    }
    engine()?.reconcile(vec![mappings.render()]).map_err(nft)?;
    forget(&mappings.ports)?;
    Ok(result)
}

fn engine() -> Result<Engine, CniError> {
    Ok(Engine::new(Nft::open().map_err(nft)?))
}

/// Removes the ports of containers whose id is chosen. Datagrams of a client that goes on sending still go to the pod that is
/// gone, until the port is mapped again.
fn remove(chosen: impl Fn(&str) -> bool) -> Result<(), CniError> {
    let engine = engine()?;
    let observed = engine.nft().observe(&table()).map_err(nft)?;
    let comments = [PORTS, POSTROUTING].into_iter().flat_map(|chain| observed.comments(chain));
    let owners: BTreeSet<String> = comments.filter(|id| chosen(id)).map(str::to_owned).collect();
    if owners.is_empty() {
        return Ok(());
    }
    let mut part: Desired = shared_part();
    for chain in [ports_chain(), postrouting_chain()] {
        part.owned_rules(chain, owners.clone(), []);
    }
    engine.reconcile(vec![part]).map(drop).map_err(nft)
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
    let (_, Some(mappings)) = requested(request)? else { return Ok(()) };
    let plan = engine()?.plan(vec![mappings.render()]).map_err(nft)?;
    if plan.is_empty() {
        return Ok(());
    }
    let changes = plan.to_string().trim_end().replace('\n', "; ");
    Err(CniError::new(code::DRIFT, format!("the host ports of {} are not mapped as they should be: {changes}", request.container_id)))
}

#[cfg(test)]
mod tests;
