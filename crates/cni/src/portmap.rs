//! `portmap`: ports of a Linux node for pods, behind `bridge` in a list. Source: containernetworking/plugins `plugins/meta/portmap`.
//!
//! Rules are in tables `ip` and `ip6` `mullion-hostport`, with the container's id as their comment: what goes to an address of the node (or
//! to `hostIP` alone) and a mapped port goes to the pod's address of that family, also from the node itself. The pod itself is served with
//! `snat`, the default, and so are loopback addresses of IPv4: the kernel routes ::1 nowhere. Plug-ins of several containers share the tables:
//! each changes its own rules alone.
//! Not here: `conditionsV4` and `conditionsV6`, and protocols other than TCP and UDP; these mappings are refused.

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

fn table(ipv6: bool) -> Table {
    Table::new(if ipv6 { Family::Ip6 } else { Family::Ip }, "mullion-hostport")
}

/// A mapping that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    protocol: u8,
    host: u16,
    /// Any address of the node's, or this one.
    at: Option<IpAddr>,
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

/// What one container's host ports need in one address family.
#[derive(Debug, PartialEq, Eq)]
struct Mappings {
    container: String,
    pod: IpAddr,
    ports: Vec<Port>,
    /// The pod itself and loopback addresses of the node are served, too.
    snat: bool,
}

/// The result of the plug-in before, and the mappings that the runtime asks for in each family that the pod has; none without ports.
fn requested(request: &Request) -> Result<(AddResult, Vec<Mappings>), CniError> {
    let before = request.config.prev_result()?.ok_or_else(|| CniError::config("must be called as chained plugin: put portmap behind bridge"))?;
    let snat = request.config.document.get("snat").and_then(serde_json::Value::as_bool).unwrap_or(true);
    let mut families = Vec::new();
    for ipv6 in [false, true] {
        if let Some(pod) = before.ips.iter().map(|ip| ip.address.addr()).find(|ip| ip.is_ipv6() == ipv6) {
            families.push(Mappings { container: request.container_id.clone(), pod, ports: Vec::new(), snat });
        }
    }
    for mapping in &request.config.runtime_config()?.port_mappings {
        let ports = families.iter().map(|family| port(mapping, family.pod)).collect::<Result<Vec<_>, _>>()?;
        if !families.is_empty() && ports.iter().all(Option::is_none) {
            let text = format!("host port {}: the pod has no address of the family of hostIP {:?}", mapping.host_port, mapping.host_ip);
            return Err(CniError::config(text));
        }
        families.iter_mut().zip(ports).for_each(|(family, port)| family.ports.extend(port));
    }
    families.retain(|family| !family.ports.is_empty());
    Ok((before, families))
}

/// The mapping to this address of the pod; none where it is for addresses of the other family.
fn port(mapping: &PortMapping, pod: IpAddr) -> Result<Option<Port>, CniError> {
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
    let at: Option<IpAddr> = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| refuse(format!("hostIP {text:?} is no address of this node")))?),
    };
    if at.is_some_and(|at| at.is_ipv6() != pod.is_ipv6()) {
        return Ok(None);
    }
    let at = at.filter(|at| !at.is_unspecified());
    Ok(Some(Port { protocol, host: mapping.host_port, at, to: (pod, mapping.container_port).into() }))
}

impl Mappings {
    /// The part of the table that this container needs.
    fn render(&self) -> Desired {
        let mut part = shared_part(self.pod.is_ipv6());
        let owner = || [self.container.clone()];
        let pod = IpNet::from(self.pod);
        let mut translated = Vec::new();
        if self.snat {
            translated.push(rule().ip_saddr(pod).ip_daddr(pod).masquerade());
        }
        if self.snat && self.pod.is_ipv4() {
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
            Some(ip) => rule().ip_daddr(IpNet::from(ip)),
            None => rule().daddr_is_local(),
        };
        let at = if snat || self.to.is_ipv6() { at } else { at.ip_daddr_not(LOOPBACK) };
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
fn shared_part(ipv6: bool) -> Desired {
    let mut part = Desired::new(table(ipv6)).shared();
    // Behind Services, whose ports are others.
    for (chain, hook) in [(PREROUTING, Hook::Prerouting), (OUTPUT, Hook::Output)] {
        part.chain(Chain::base(chain, ChainType::Nat, hook, -99), [rule().jump(PORTS)]);
    }
    part
}

fn add(request: &Request) -> Result<AddResult, CniError> {
    let (result, mappings) = requested(request)?;
    if mappings.is_empty() {
        return Ok(result);
    }
    if mappings.iter().any(|family| family.snat && family.pod.is_ipv4()) {
        for link in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()).take(1) {
            let name = format!("net.ipv4.conf.{}.route_localnet", link.name.replace('.', "/"));
            sysctl::set(&name, "1").map_err(|e| CniError::io(format_args!("set {name}=1"), &e))?;
        }
    }
    engine()?.reconcile(mappings.iter().map(Mappings::render).collect()).map_err(nft)?;
    forget(mappings.iter().flat_map(|family| &family.ports))?;
    Ok(result)
}

fn engine() -> Result<Engine, CniError> {
    Ok(Engine::new(Nft::open().map_err(nft)?))
}

/// Removes the ports of containers whose id is chosen. Datagrams of a client that goes on sending still go to the pod that is
/// gone, until the port is mapped again.
fn remove(chosen: impl Fn(&str) -> bool) -> Result<(), CniError> {
    let engine = engine()?;
    let mut parts = Vec::new();
    for ipv6 in [false, true] {
        let observed = engine.nft().observe(&table(ipv6)).map_err(nft)?;
        let comments = [PORTS, POSTROUTING].into_iter().flat_map(|chain| observed.comments(chain));
        let owners: BTreeSet<String> = comments.filter(|id| chosen(id)).map(str::to_owned).collect();
        if owners.is_empty() {
            continue;
        }
        let mut part: Desired = shared_part(ipv6);
        for chain in [ports_chain(), postrouting_chain()] {
            part.owned_rules(chain, owners.clone(), []);
        }
        parts.push(part);
    }
    if parts.is_empty() { Ok(()) } else { engine.reconcile(parts).map(drop).map_err(nft) }
}

/// Clients that go on sending reach the new pod.
fn forget<'a>(ports: impl Iterator<Item = &'a Port>) -> Result<(), CniError> {
    let udp: Vec<&Port> = ports.filter(|port| port.protocol == conntrack::UDP).collect();
    if udp.is_empty() {
        return Ok(());
    }
    let is_at = |port: &Port, ip: IpAddr| port.at.map_or(ip.is_ipv6() == port.to.is_ipv6(), |at| ip == at);
    let matches = |flow: &Flow| udp.iter().any(|port| flow.destination.port() == port.host && is_at(port, flow.destination.ip()));
    let failed = |error: NetlinkError| CniError::new(code::IO, format!("cannot forget connections of host ports: {error}"));
    Conntrack::open().and_then(|conntrack| conntrack.forget_where(conntrack::UDP, matches)).map(drop).map_err(failed)
}

fn check(request: &Request) -> Result<(), CniError> {
    let (_, mappings) = requested(request)?;
    if mappings.is_empty() {
        return Ok(());
    }
    let plan = engine()?.plan(mappings.iter().map(Mappings::render).collect()).map_err(nft)?;
    if plan.is_empty() {
        return Ok(());
    }
    let changes = plan.to_string().trim_end().replace('\n', "; ");
    Err(CniError::new(code::DRIFT, format!("the host ports of {} are not mapped as they should be: {changes}", request.container_id)))
}

#[cfg(test)]
mod tests;
