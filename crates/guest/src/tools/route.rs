//! `route print`: the pod's routes, as Windows prints them. What changes routes is refused: containers may not.

use std::net::{IpAddr, Ipv4Addr};

use super::Streams;
use super::network::{Network, Route, netmask};

const RULE: &str = "===========================================================================\r\n";
const USAGE: &str = "\r\nManipulates network routing tables.\r\n\r\nROUTE [-4|-6] PRINT [destination]\r\n\r\n    destination   Specifies the host or \
                     network; * and ? are wildcards.\r\n";

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let (mut four, mut six, mut words) = (true, true, Vec::new());
    for arg in args {
        match arg.to_ascii_lowercase().as_str() {
            "-4" => six = false,
            "-6" => four = false,
            other => words.push(other.to_owned()),
        }
    }
    match words.first().map(String::as_str) {
        Some("print") => {
            let text = print(&Network::here(), four, six, words.get(1).map(String::as_str));
            let _ = streams.out.write_all(text.as_bytes());
            0
        }
        Some("add" | "delete" | "change") => {
            let _ = writeln!(streams.err, "The requested operation requires elevation.\r");
            1
        }
        _ => {
            let _ = write!(streams.out, "{USAGE}");
            1
        }
    }
}

fn print(network: &Network, four: bool, six: bool, filter: Option<&str>) -> String {
    let mut text = format!("{RULE}Interface List\r\n");
    for interface in network.interfaces.iter().rev() {
        let mac = interface.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(" ")).unwrap_or_default();
        let name = if interface.is_loopback() { "Software Loopback Interface 1" } else { "Hyper-V Virtual Ethernet Container Adapter" };
        let mut line = format!("{:3}...{mac}", interface.index);
        if !mac.is_empty() {
            line.push(' ');
        }
        text += &format!("{line:.<29}{name}\r\n");
    }
    text += &format!("{RULE}\r\n");
    if four {
        let routes = ipv4(network).into_iter().filter(|line| selects(filter, &line.0.to_string()));
        let line = |(to, mask, gateway, from, metric): (Ipv4Addr, Ipv4Addr, String, Ipv4Addr, u32)| {
            format!("{:>17} {:>16} {gateway:>16} {:>16} {metric:>6}\r\n", to.to_string(), mask.to_string(), from.to_string())
        };
        let head = "Network Destination        Netmask          Gateway       Interface  Metric\r\n";
        text += &table("IPv4", head, routes.map(line).collect());
        text += &format!("{RULE}Persistent Routes:\r\n  None\r\n\r\n");
    }
    if six {
        let routes = network.routes.iter().filter(|route| route.to.is_ipv6() && selects(filter, &route.to.to_string()));
        let line = |route: &Route| {
            let index = network.interface(&route.interface).map_or(0, |interface| interface.index);
            let gateway = route.gateway.map_or_else(|| "On-link".to_owned(), |gateway| gateway.to_string());
            format!("{index:3} {:6} {:<24} {gateway}\r\n", route.metric, format!("{}/{}", route.to, route.prefix))
        };
        text += &table("IPv6", " If Metric Network Destination      Gateway\r\n", routes.map(line).collect());
        text += &format!("{RULE}Persistent Routes:\r\n  None\r\n");
    }
    text
}

fn table(family: &str, head: &str, lines: Vec<String>) -> String {
    let lines = if lines.is_empty() { "  None\r\n".to_owned() } else { format!("{head}{}", lines.concat()) };
    format!("{family} Route Table\r\n{RULE}Active Routes:\r\n{lines}")
}

/// Destination, mask, gateway, the address that packets leave from, metric. Windows lists each own address as a route, too.
fn ipv4(network: &Network) -> Vec<(Ipv4Addr, Ipv4Addr, String, Ipv4Addr, u32)> {
    let mut lines = Vec::new();
    for route in &network.routes {
        let IpAddr::V4(to) = route.to else { continue };
        let from = network.interface(&route.interface).and_then(super::network::Interface::ipv4).map_or(Ipv4Addr::UNSPECIFIED, |(from, _)| from);
        let gateway = route.gateway.map_or_else(|| "On-link".to_owned(), |gateway| gateway.to_string());
        lines.push((to, netmask(route.prefix), gateway, from, route.metric));
    }
    for interface in &network.interfaces {
        for (address, _) in &interface.addresses {
            if let IpAddr::V4(address) = address {
                lines.push((*address, Ipv4Addr::BROADCAST, "On-link".to_owned(), *address, 0));
            }
        }
    }
    lines.sort_by_key(|line| (line.0, line.1));
    lines
}

/// Whether a destination is asked for; `*` stands for any text, `?` for one character.
fn selects(filter: Option<&str>, destination: &str) -> bool {
    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => matches(rest, text) || text.split_first().is_some_and(|(_, text)| matches(pattern, text)),
            (Some((b'?', rest)), Some((_, text))) => matches(rest, text),
            (Some((pattern, rest)), Some((found, text))) => pattern == found && matches(rest, text),
            _ => false,
        }
    }
    filter.is_none_or(|filter| matches(filter.as_bytes(), destination.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::network::tests::pod;

    #[test]
    fn routes_are_printed_in_columns() {
        let text = print(&pod(), true, true, None);
        for expected in [
            "          0.0.0.0          0.0.0.0      192.168.1.1     192.168.1.12      0\r\n",
            "      192.168.1.0    255.255.255.0          On-link     192.168.1.12      0\r\n",
            "     192.168.1.12  255.255.255.255          On-link     192.168.1.12      0\r\n",
            "  2...00 15 5d 0a 0b 0c .....Hyper-V Virtual Ethernet Container Adapter\r\n",
            "  2    256 fe80::/64                On-link\r\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
        let filtered = print(&pod(), true, false, Some("192.*"));
        assert!(!filtered.contains("IPv6") && !filtered.contains("127.0.0.1") && filtered.contains("192.168.1.0 "), "{filtered}");
    }

    #[test]
    fn filters_have_wildcards() {
        assert!(selects(Some("10.?.*"), "10.1.2.3") && !selects(Some("10.?"), "10.11") && selects(None, "x") && selects(Some("*"), ""));
    }
}
