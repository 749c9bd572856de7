//! Routes to pods as text: commands and configuration of routers and hosts, for a mode's routes or for routes by hand (pure).

use std::fmt::Write as _;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde_json::json;

use crate::mode::Peer;
use crate::nth;

/// What reads the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Cisco IOS.
    Ios,
    /// Juniper Junos, `set` commands.
    Junos,
    /// FRRouting; the routes carry tag 77.
    Frr,
    /// BIRD 2, a file to include.
    Bird,
    /// `ip` of Linux.
    Iproute,
    /// `route` and, for IPv6, `netsh` of Windows; the routes survive a reboot.
    Windows,
    Json,
}

/// Name of every format.
pub const FORMATS: &[(&str, Format)] = &[
    ("ios", Format::Ios),
    ("junos", Format::Junos),
    ("frr", Format::Frr),
    ("bird", Format::Bird),
    ("iproute", Format::Iproute),
    ("windows", Format::Windows),
    ("json", Format::Json),
];

/// A format that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no format of routes: use ios, junos, frr, bird, iproute, windows or json")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        FORMATS.iter().find(|(name, _)| *name == text).map(|(_, format)| *format).ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub dst: IpNet,
    pub via: IpAddr,
    /// The node whose pods are there.
    pub node: String,
}

impl Line {
    /// The route to a peer by its own address.
    pub fn to_node(peer: &Peer<'_>) -> Self {
        Self { dst: peer.cidr, via: peer.address, node: peer.node.to_owned() }
    }

    /// The route by the gateway of the peer's pods, the first address of their CIDR: it is an address of the peer, which
    /// answers for it on the nodes' network. The alpha document of 2016 has Windows nodes route so.
    pub fn to_pod_gateway(peer: &Peer<'_>) -> Self {
        Self { dst: peer.cidr, via: nth(peer.cidr, 1), node: peer.node.to_owned() }
    }
}

/// The number that marks our routes where a route can carry one: the protocol number of our routes on Linux.
const TAG: u8 = host::OUR_PROTOCOL;

/// The routes as text, in the order given. `interface` is the number of the interface, which `route` of Windows takes.
pub fn render(format: Format, lines: &[Line], interface: Option<&str>) -> String {
    match format {
        Format::Json => json_list(lines),
        Format::Bird => bird(lines),
        Format::Ios | Format::Junos | Format::Frr | Format::Iproute | Format::Windows => {
            lines.iter().map(|line| command(format, line, interface) + "\n").collect()
        }
    }
}

fn command(format: Format, line: &Line, interface: Option<&str>) -> String {
    let Line { dst, via, node } = line;
    let node = word(node);
    match (format, dst) {
        (Format::Ios, IpNet::V4(net)) => format!("ip route {} {} {via} name {node}", net.network(), net.netmask()),
        (Format::Ios, IpNet::V6(_)) => format!("ipv6 route {dst} {via} name {node}"),
        (Format::Junos, IpNet::V4(_)) => format!("set routing-options static route {dst} next-hop {via}"),
        (Format::Junos, IpNet::V6(_)) => format!("set routing-options rib inet6.0 static route {dst} next-hop {via}"),
        (Format::Frr, IpNet::V4(_)) => format!("ip route {dst} {via} tag {TAG}"),
        (Format::Frr, IpNet::V6(_)) => format!("ipv6 route {dst} {via} tag {TAG}"),
        (Format::Windows, IpNet::V4(net)) => {
            let interface = interface.map(|number| format!(" if {number}")).unwrap_or_default();
            format!("route add {} mask {} {via}{interface} -p", net.network(), net.netmask())
        }
        (Format::Windows, IpNet::V6(_)) => {
            let interface = interface.unwrap_or("1");
            format!("netsh interface ipv6 add route {dst} {interface} {via} store=persistent")
        }
        (_, IpNet::V4(_)) => format!("ip route add {dst} via {via}"),
        (_, IpNet::V6(_)) => format!("ip -6 route add {dst} via {via}"),
    }
}

/// A name as one word that is at most 50 characters long, as IOS takes it: configuration is no place for what a foreign
/// file calls a node.
fn word(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' }).take(50).collect()
}

fn bird(lines: &[Line]) -> String {
    let mut text = String::new();
    for (name, channel, is_v4) in [("mullion4", "ipv4", true), ("mullion6", "ipv6", false)] {
        let of_family: Vec<&Line> = lines.iter().filter(|line| line.dst.addr().is_ipv4() == is_v4).collect();
        if of_family.is_empty() {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "protocol static {name} {{\n\t{channel};");
        for Line { dst, via, node } in of_family {
            let comment = if node.is_empty() { String::new() } else { format!(" # {}", word(node)) };
            let _ = writeln!(text, "\troute {dst} via {via};{comment}");
        }
        text.push_str("}\n");
    }
    text
}

fn json_list(lines: &[Line]) -> String {
    let list: Vec<_> = lines.iter().map(|Line { dst, via, node }| json!({"node": node, "destination": dst, "nextHop": via})).collect();
    format!("{:#}\n", json!(list))
}

#[cfg(test)]
mod tests;
