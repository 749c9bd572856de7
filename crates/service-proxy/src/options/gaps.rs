//! Options that the Host Networking Service cannot follow (pure).

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use node_config::{KubeProxyConfiguration, NetworkName};

use super::Mode;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Logs which options of the configuration the mode cannot follow.
pub fn warn_of_gaps(config: &KubeProxyConfiguration, mode: Mode, localhost_node_ports: bool) {
    if mode == Mode::Hns {
        hns_gaps(config, localhost_node_ports).iter().for_each(|gap| tracing::warn!("{gap}"));
    }
}

/// A line for each option that HNS cannot follow: which it is, and what happens instead. Upstream ignores them silently.
/// `localhost_node_ports` is `--iptables-localhost-nodeports`.
pub(super) fn hns_gaps(config: &KubeProxyConfiguration, localhost_node_ports: bool) -> Vec<String> {
    let mut gaps = Vec::new();
    let is_loopback = |name: &NetworkName| match name {
        NetworkName::Localhost => true,
        NetworkName::Net(net) => net.prefix_len() > 0 && (net.addr().is_loopback() || net.contains(&IpNet::from(LOCALHOST))),
        NetworkName::All | NetworkName::Primary => false,
    };
    let is_everything = |name: &NetworkName| match name {
        NetworkName::All => true,
        NetworkName::Net(net) if net.prefix_len() == 0 => true,
        name => is_loopback(name),
    };
    let listed = &config.node_port_addresses;
    if listed.iter().any(|name| !is_everything(name)) {
        gaps.push(
            "--nodeport-addresses (nodePortAddresses) has no effect: HNS serves node ports at every address of the node; let the node's firewall \
             say who may come"
                .to_owned(),
        );
    }
    if localhost_node_ports || listed.iter().any(is_loopback) {
        gaps.push(
            "node ports at localhost (--nodeport-addresses=localhost, --iptables-localhost-nodeports) are not served: HNS has none at 127.0.0.1; \
             use another address of the node"
                .to_owned(),
        );
    }
    if config.nftables.masquerade_all {
        gaps.push(
            "--masquerade-all (masqueradeAll) has no effect: HNS shows clients' addresses where it has direct server return; --enable-dsr=false \
             hides them behind the node's"
                .to_owned(),
        );
    }
    gaps
}

#[cfg(test)]
mod tests {
    use node_config::kube_proxy::flags::Options;

    use super::*;

    #[test]
    fn options_that_hns_cannot_follow_are_reported() {
        let reported = |line: &str| {
            let options = Options::parse(line.split_whitespace().map(str::to_owned)).unwrap();
            let gaps = hns_gaps(&options.config, options.localhost_node_ports);
            gaps.iter().map(|gap| gap.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        for (line, expected) in [
            ("", vec![]),
            ("--nodeport-addresses=0.0.0.0/0", vec![]),
            ("--nodeport-addresses=all", vec![]),
            ("--nodeport-addresses=primary", vec!["--nodeport-addresses"]),
            ("--nodeport-addresses=10.0.0.0/8,127.0.0.0/8", vec!["--nodeport-addresses", "node"]),
            ("--nodeport-addresses=localhost", vec!["node"]),
            ("--iptables-localhost-nodeports", vec!["node"]),
            ("--iptables-localhost-nodeports=false", vec![]),
            ("--masquerade-all", vec!["--masquerade-all"]),
        ] {
            assert_eq!(reported(line), expected, "{line}");
        }
    }
}
