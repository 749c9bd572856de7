//! Addresses of the hosts on the LAN. Pure.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// The LAN between the hosts.
pub const LAN: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 240, 0, 0), 24);
/// The same in IPv6, which hosts have in labs with both families.
pub const LAN_IPV6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x10, 0x240, 0, 0, 0, 0, 0), 64);
/// Name of the host between the LAN and elsewhere.
pub const ROUTER: &str = "gw";
/// The adapter that some hosts have beside `eth0`, on a network of its own, without an address.
pub const SECOND_ADAPTER: &str = "eth1";
/// The router on the LAN, every host's default route.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 240, 0, 1);
/// Host `cp` on the LAN.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(10, 240, 0, 2);
/// Last part of the first node's address.
const FIRST_NODE: u8 = 11;
const LAST_NODE: u8 = 254;

/// The LAN has fewer addresses than hosts were asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{nodes} nodes do not fit the LAN {LAN}: it has room for {}", LAST_NODE - FIRST_NODE + 1)]
pub struct LanFull {
    /// How many hosts were asked for, `cp` not counted.
    pub nodes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name: `cp`, or a node's.
    pub name: String,
    /// Its address on the LAN.
    pub address: Ipv4Addr,
}

/// The IPv6 address of a host: its last part reads as that of its IPv4 address, `::11` beside `.11`.
pub fn ipv6(address: Ipv4Addr) -> Ipv6Addr {
    let last = u16::from(address.octets()[3]);
    let as_written = (last / 100) << 8 | (last / 10 % 10) << 4 | (last % 10);
    (u128::from(LAN_IPV6.network()) | u128::from(as_written)).into()
}

/// The hosts on the LAN: `cp`, then the nodes in their order, each with the address it had (`known`), else the first free one. `gw` is
/// the bridge's own host.
///
/// # Errors
/// [`LanFull`].
pub fn hosts<'a>(nodes: impl IntoIterator<Item = &'a str>, known: &BTreeMap<String, Ipv4Addr>) -> Result<Vec<Host>, LanFull> {
    let nodes: Vec<&str> = nodes.into_iter().collect();
    let mut hosts = vec![Host { name: "cp".into(), address: CONTROL_PLANE }];
    let mut taken: Vec<Ipv4Addr> = nodes.iter().filter_map(|name| known.get(*name).copied()).collect();
    let [a, b, c, _] = LAN.network().octets();
    for name in &nodes {
        let free = || (FIRST_NODE..=LAST_NODE).map(|d| Ipv4Addr::new(a, b, c, d)).find(|ip| !taken.contains(ip));
        let address = known.get(*name).copied().or_else(free).ok_or(LanFull { nodes: nodes.len() })?;
        taken.push(address);
        hosts.push(Host { name: (*name).to_owned(), address });
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_keep_their_addresses_and_new_ones_take_free_ones() {
        let known = BTreeMap::from([("b".to_owned(), Ipv4Addr::new(10, 240, 0, 11))]);
        let text: Vec<_> = hosts(["a", "b", "c"], &known).unwrap().iter().map(|h| format!("{} {}", h.name, h.address)).collect();
        assert_eq!(text, ["cp 10.240.0.2", "a 10.240.0.12", "b 10.240.0.11", "c 10.240.0.13"]);
    }

    #[test]
    fn both_addresses_of_a_host_end_alike() {
        for (last, expected) in [(1, "fd00:10:240::1"), (11, "fd00:10:240::11"), (99, "fd00:10:240::99"), (254, "fd00:10:240::254")] {
            let address = ipv6(Ipv4Addr::new(10, 240, 0, last));
            assert!(address.to_string() == expected && LAN_IPV6.contains(&address), "{address}");
        }
    }

    #[test]
    fn a_full_lan_is_refused() {
        let names: Vec<_> = (0..245).map(|i| format!("n{i}")).collect();
        let e = hosts(names.iter().map(String::as_str), &BTreeMap::new()).unwrap_err();
        assert_eq!(e.to_string(), "245 nodes do not fit the LAN 10.240.0.0/24: it has room for 244");
    }
}
