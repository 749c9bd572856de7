//! Text form of facts and plans.

use std::fmt;

use super::{Access, AccessList, AccessRule, Distribution, Fact, Forwarding, Hop, Link, Place, Plan, Port, Rule, Seen, Selector, Step, Vip};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fact in &self.remove {
            writeln!(f, "- {fact}")?;
        }
        for fact in &self.add {
            writeln!(f, "+ {fact}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove(fact) => write!(f, "- {fact}"),
            Self::Add(fact) => write!(f, "+ {fact}"),
        }
    }
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            address if address.is_unspecified() && address.is_ipv4() => write!(f, "{} *:{}", self.protocol, self.port),
            address if address.is_unspecified() => write!(f, "{} [*]:{}", self.protocol, self.port),
            address => write!(f, "{} {}", self.protocol, std::net::SocketAddr::new(address, self.port)),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let distribution = match self.distribution {
            Distribution::Connection => "connection",
            Distribution::SourceProtocol => "source and protocol",
            Distribution::Source => "source",
        };
        write!(f, "1 of {} by {distribution}", self.count)?;
        match self.seen {
            Seen::Client => f.write_str(", source kept")?,
            Seen::Class(class) => write!(f, ", as class {class:#x}")?,
            Seen::Link => f.write_str(", as the link")?,
        }
        for (flag, text) in [
            (self.ipv6, ", IPv6"),
            (self.any_host_address, ", on any host address"),
            (!self.host, ", not for the host"),
            (self.guarded, ", by host paths"),
            (self.kept, ", destination kept"),
            (self.mux, ", those outside kept"),
        ] {
            if flag {
                f.write_str(text)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of {} for {} in compartment {}: mac {}", self.name, self.bridge, self.interface, self.compartment, self.mac)?;
        for address in &self.addresses {
            write!(f, ", address {address}")?;
        }
        for (prefix, gateway, _) in &self.routes {
            write!(f, ", route {prefix} via {gateway}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        if self.overhead != 0 {
            write!(f, ", overhead {}", self.overhead)?;
        }
        Ok(())
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.neighbour { " nearby" } else { "" })
    }
}

fn family(ipv6: bool) -> &'static str {
    if ipv6 { "IPv6" } else { "IPv4" }
}

impl fmt::Display for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Switch => "switch".to_owned(),
            Place::Inside { interface, .. } => format!("{interface} inside"),
        };
        write!(f, "access {} of {} at the {place}:", if self.inbound { "in" } else { "out" }, self.port)?;
        for (number, tier) in self.tiers.iter().enumerate() {
            write!(f, "{}", if number == 0 { " " } else { " | " })?;
            for (number, rule) in tier.iter().enumerate() {
                write!(f, "{}{rule}", if number == 0 { "" } else { "; " })?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for AccessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            Access::Allow => "allow",
            Access::Block => "block",
            Access::Pass => "pass",
        })?;
        for protocol in &self.protocols {
            write!(f, " proto {protocol}")?;
        }
        for (side, addresses, sets, ports) in [
            ("source", &self.sources, &self.source_sets, &self.source_ports),
            ("to", &self.destinations, &self.destination_sets, &self.destination_ports),
        ] {
            for address in addresses {
                write!(f, " {side} {address}")?;
            }
            for set in sets {
                write!(f, " {side} @{set}")?;
            }
            for (first, last) in ports {
                write!(f, " {side} port {first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compartment(id) => write!(f, "compartment {id}"),
            Self::Link(link) => link.fmt(f),
            Self::Firewall(list) => list.fmt(f),
            Self::Rule(rule) => rule.fmt(f),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge { name, forwarding: Forwarding::Routed } => write!(f, "bridge {name}, routed"),
            Self::Bridge { name, forwarding: Forwarding::Switched } => write!(f, "bridge {name}, switched"),
            Self::BridgeMac { bridge, mac } => write!(f, "bridge {bridge} is {mac}"),
            Self::Uplink { bridge } => write!(f, "the uplink is a port of {bridge}"),
            Self::Fabric => f.write_str("a way to the fabric"),
            Self::Tunnel { name, vni, port, local, mac } => write!(f, "tunnel {name}: segment {vni}, UDP {port}, from {local}, router {mac}"),
            Self::BridgeAddress { bridge, address } => write!(f, "address {address} on {bridge}"),
            Self::Port(port) => port.fmt(f),
            Self::Blocked { port } => write!(f, "{port} passes nothing"),
            Self::Rate { compartment, interface, bytes } => write!(f, "{interface} in compartment {compartment} sends {bytes} bytes a second"),
            Self::Neighbour { link, address, mac } => write!(f, "neighbour {address} on {link} is {mac}"),
            Self::Peer { tunnel, mac, host, vni: None } => write!(f, "{mac} in {tunnel} is at {host}"),
            Self::Peer { tunnel, mac, host, vni: Some(vni) } => write!(f, "{mac} in {tunnel} is at {host}, segment {vni}"),
            Self::Route { tunnel, prefix, router: None } => write!(f, "route {prefix} by {tunnel}"),
            Self::Route { tunnel, prefix, router: Some(router) } => write!(f, "route {prefix} by {tunnel} via {router}"),
            Self::Hops { ipv6 } => write!(f, "hops of {}", family(*ipv6)),
            Self::Hop(hop) => write!(f, "hop {hop} is mark {:#x}", hop.mark()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guarded { bridge } => write!(f, "{bridge} reaches the host on host paths alone"),
            Self::Closed { bridge } => write!(f, "{bridge} takes in TCP, UDP, ICMP and IGMP"),
            Self::Hostless { bridge } => write!(f, "{bridge} and the host are apart"),
            Self::ToFabric { bridge } => write!(f, "ports of {bridge} meet in the fabric"),
            Self::OverlayLink { link } => write!(f, "{link} is an overlay's"),
            Self::OverlayPrefix(prefix) => write!(f, "{prefix} leaves its overlay only translated"),
            Self::TunnelMac { tunnel, mac } => write!(f, "{tunnel} takes frames for {mac}"),
            Self::HostPath { address, destination } => write!(f, "host path from {address} to {destination}"),
            Self::PodHops { ipv6 } => write!(f, "hops of pods in {}", family(*ipv6)),
            Self::PodHop { address, destination, hop } => write!(f, "{address} to {destination} by hop {hop}"),
            Self::Masquerade(prefix) => write!(f, "masquerade {prefix}"),
            Self::Source { class, address } => write!(f, "class {class:#x} leaves as {address}"),
            Self::Exception { class, destination } => write!(f, "class {class:#x} keeps its source to {destination}"),
            Self::Destination { class, destination } => write!(f, "class {class:#x} is translated to {destination}"),
            Self::Outbound { address, class } => write!(f, "outbound {address} is class {class:#x}"),
            Self::Unproxied { address, destination } => write!(f, "{address} to {destination} meets no proxy"),
            Self::Proxied { address, protocol, destination, proxy: (proxy, port) } => {
                write!(f, "{protocol} of {address} to {destination} ends at {}", std::net::SocketAddr::new(*proxy, *port))
            }
            Self::Set(name) => write!(f, "set {name}"),
            Self::Member { set, prefix } => write!(f, "set {set} has {prefix}"),
            Self::Access(list) => list.fmt(f),
            Self::Kept { ipv6 } => write!(f, "kept destinations of {}", family(*ipv6)),
            Self::Selector(selector) => write!(f, "selector {selector}"),
            Self::Backend { vip, slot, address, port } => {
                write!(f, "backend {slot} of {vip} is {}", std::net::SocketAddr::new(*address, *port))
            }
            Self::KeptBackend { vip, slot, hop } => write!(f, "backend {slot} of {vip} is by hop {hop}"),
            Self::Vip { vip, selector } => write!(f, "vip {vip} selects {selector}"),
            Self::TunnelLink { tunnel } => write!(f, "{tunnel} is an overlay's tunnel"),
            Self::HostAddress(address) => write!(f, "{address} is the host's"),
            Self::HopAddress(hop) => write!(f, "mark {:#x} is hop {hop}", hop.mark()),
        }
    }
}
