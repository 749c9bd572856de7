//! What the Host Networking Service cannot do of what the proxy's options ask for (pure).

use std::net::Ipv4Addr;

use ipnet::IpNet;

use super::options::Options;

/// A line for each option that HNS cannot follow: which it is, and what happens instead. Upstream ignores them in silence.
pub fn of(options: &Options) -> Vec<String> {
    let mut gaps = Vec::new();
    let listed = options.list("nodeport-addresses");
    let is_loopback = |part: &&str| {
        let net = part.parse::<IpNet>();
        *part == "localhost" || net.is_ok_and(|net| net.prefix_len() > 0 && (net.addr().is_loopback() || net.contains(&IpNet::from(LOCALHOST))))
    };
    let is_everything = |part: &&str| matches!(*part, "all" | "0.0.0.0/0" | "::/0") || is_loopback(part);
    if listed.iter().any(|part| !is_everything(part)) {
        gaps.push(
            "--nodeport-addresses (nodePortAddresses) has no effect: HNS serves node ports at every address of the node; let the node's firewall \
             say who may come"
                .to_owned(),
        );
    }
    if options.is_on("iptables-localhost-nodeports") || listed.iter().any(is_loopback) {
        gaps.push(
            "node ports at localhost (--nodeport-addresses=localhost, --iptables-localhost-nodeports) are not served: HNS has none at 127.0.0.1; \
             use another address of the node"
                .to_owned(),
        );
    }
    if options.is_on("masquerade-all") {
        gaps.push(
            "--masquerade-all (masqueradeAll) has no effect: HNS shows clients' addresses where it has direct server return; --enable-dsr=false \
             hides them behind the node's"
                .to_owned(),
        );
    }
    gaps
}

const LOCALHOST: std::net::IpAddr = std::net::IpAddr::V4(Ipv4Addr::LOCALHOST);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hns_cannot_do_of_the_options_is_told() {
        let told = |line: &str| {
            let gaps = of(&Options::parse(line.split_whitespace().map(str::to_owned)).unwrap());
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
            assert_eq!(told(line), expected, "{line}");
        }
    }
}
