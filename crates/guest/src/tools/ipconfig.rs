//! `ipconfig [/all]`: the pod's addresses, gateway, DNS servers and suffixes, as Windows prints them.

use std::net::IpAddr;

use super::Streams;
use super::network::{Interface, Network, netmask};

const USAGE: &str = "\r\nUSAGE:\r\n    ipconfig [/? | /all | /flushdns]\r\n\r\n    Mullion's shows what the pod's compartment has. Addresses come from \
                     the cluster: there is nothing to renew, release or register.\r\n";

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let option = args.first().map(|option| option.to_ascii_lowercase().replacen('-', "/", 1));
    let text = match option.as_deref() {
        None => report(&Network::here(), false),
        Some("/all") => report(&Network::here(), true),
        Some("/flushdns") => "\r\nWindows IP Configuration\r\n\r\nSuccessfully flushed the DNS Resolver Cache.\r\n".to_owned(),
        Some("/?") => USAGE.to_owned(),
        Some(_) => {
            let _ = write!(streams.out, "\r\nError: unrecognized or incomplete command line.\r\n{USAGE}");
            return 1;
        }
    };
    let _ = streams.out.write_all(text.as_bytes());
    0
}

/// `   Host Name . . . . . . . . . . . . : web-1`
fn line(label: &str, value: &str) -> String {
    let mut label = format!("   {label}");
    while label.len() < 36 {
        label.push(if label.len() % 2 == 0 { ' ' } else { '.' });
    }
    format!("{label} : {value}\r\n")
}

/// A first value on the label's line, the others below it.
fn list(label: &str, values: &[String]) -> String {
    let mut text = String::new();
    for (at, value) in values.iter().enumerate() {
        text += &if at == 0 { line(label, value) } else { format!("{:39}{value}\r\n", "") };
    }
    text
}

fn report(network: &Network, all: bool) -> String {
    let mut text = "\r\nWindows IP Configuration\r\n\r\n".to_owned();
    if all {
        text += &line("Host Name", &network.host);
        text += &line("Primary Dns Suffix ", "");
        text += &line("Node Type", "Hybrid");
        text += &line("IP Routing Enabled", "No");
        text += &line("WINS Proxy Enabled", "No");
        text += &list("DNS Suffix Search List", &network.dns.searches);
    }
    for interface in network.interfaces.iter().filter(|interface| !interface.is_loopback()) {
        text += &adapter(network, interface, all);
    }
    text
}

fn adapter(network: &Network, interface: &Interface, all: bool) -> String {
    let mut text = format!("\r\nEthernet adapter {}:\r\n\r\n", interface.alias());
    text += &line("Connection-specific DNS Suffix ", network.dns.searches.first().map_or("", String::as_str));
    if all {
        text += &line("Description", "Hyper-V Virtual Ethernet Container Adapter");
        let mac = interface.mac.map(|mac| mac.map(|byte| format!("{byte:02X}")).join("-")).unwrap_or_default();
        text += &line("Physical Address", &mac);
        text += &line("DHCP Enabled", "No");
        text += &line("Autoconfiguration Enabled ", "Yes");
    }
    let preferred = if all { "(Preferred) " } else { "" };
    for (address, _) in &interface.addresses {
        if let IpAddr::V6(address) = address {
            let is_local = address.is_unicast_link_local();
            let scope = if is_local { format!("%{}", interface.index) } else { String::new() };
            text += &line(if is_local { "Link-local IPv6 Address" } else { "IPv6 Address" }, &format!("{address}{scope}{preferred}"));
        }
    }
    for (address, prefix) in &interface.addresses {
        if address.is_ipv4() {
            text += &line("IPv4 Address", &format!("{address}{preferred}"));
            text += &line("Subnet Mask", &netmask(*prefix).to_string());
        }
    }
    let defaults = network.routes.iter().filter(|route| route.prefix == 0 && route.interface == interface.name);
    let gateways: Vec<String> = defaults.filter_map(|route| route.gateway).map(|gateway| gateway.to_string()).collect();
    text += &if gateways.is_empty() { line("Default Gateway", "") } else { list("Default Gateway", &gateways) };
    if all {
        text += &list("DNS Servers", &network.dns.servers);
        text += &line("NetBIOS over Tcpip", "Disabled");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::network::tests::pod;

    #[test]
    fn all_details_of_a_pod_are_printed() {
        let text = report(&pod(), true);
        let lines: Vec<&str> = text.split("\r\n").collect();
        for expected in [
            "   Host Name . . . . . . . . . . . . : web-1",
            "   DNS Suffix Search List. . . . . . : default.svc.cluster.local",
            "                                       svc.cluster.local",
            "Ethernet adapter vEthernet (eth0):",
            "   Connection-specific DNS Suffix  . : default.svc.cluster.local",
            "   Physical Address. . . . . . . . . : 00-15-5D-0A-0B-0C",
            "   Link-local IPv6 Address . . . . . : fe80::215:5dff:fe0a:b0c%2(Preferred) ",
            "   IPv4 Address. . . . . . . . . . . : 192.168.1.12(Preferred) ",
            "   Subnet Mask . . . . . . . . . . . : 255.255.255.0",
            "   Default Gateway . . . . . . . . . : 192.168.1.1",
            "   DNS Servers . . . . . . . . . . . : 10.96.0.10",
        ] {
            assert!(lines.contains(&expected), "{expected:?} is missing in\n{text}");
        }
        let short = report(&pod(), false);
        assert!(short.contains(": 192.168.1.12\r\n") && !short.contains("DNS Servers") && !short.contains("127.0.0.1"), "{short}");
    }
}
