//! The pod's network as the system below Wine shows it: interfaces, addresses, routes, resolver settings.
//!
//! Programs under Wine reach `/proc`, `/sys` and `/etc` of their container by the prefix `\\?\unix`. Reading there needs no
//! service of Wine's, and what is read is what the pod's compartment has.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Dns;

/// An interface of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    /// The system's name, such as `eth0`.
    pub name: String,
    /// Windows' index: the loopback is 1, others count from 2.
    pub index: u32,
    /// None: not known, or a loopback's.
    pub mac: Option<[u8; 6]>,
    /// Addresses with the lengths of their prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Interface {
    pub(super) fn is_loopback(&self) -> bool {
        self.name == "lo"
    }

    /// The first IPv4 address.
    pub(super) fn ipv4(&self) -> Option<(Ipv4Addr, u8)> {
        self.addresses.iter().find_map(|(address, prefix)| match address {
            IpAddr::V4(address) => Some((*address, *prefix)),
            IpAddr::V6(_) => None,
        })
    }

    /// What a Windows container calls the adapter.
    pub(super) fn alias(&self) -> String {
        format!("vEthernet ({})", self.name)
    }
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub to: IpAddr,
    pub prefix: u8,
    /// None: on the link.
    pub gateway: Option<IpAddr>,
    /// Name of the interface.
    pub interface: String,
    pub metric: u32,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    pub host: String,
    pub interfaces: Vec<Interface>,
    pub routes: Vec<Route>,
    pub dns: Dns,
}

/// Reads a file of the system below Wine, or of the machine itself.
fn read(path: &str) -> Option<String> {
    let below_wine = format!(r"\\?\unix{}", path.replace('/', "\\"));
    std::fs::read_to_string(below_wine).or_else(|_| std::fs::read_to_string(path)).ok()
}

impl Network {
    /// What there is now.
    pub(super) fn here() -> Self {
        Self::from(&read)
    }

    fn from(read: &dyn Fn(&str) -> Option<String>) -> Self {
        let text = |path: &str| read(path).unwrap_or_default();
        let mut routes = ipv4_routes(&text("/proc/net/route"));
        routes.extend(ipv6_routes(&text("/proc/net/ipv6_route")));
        let mut interfaces: BTreeMap<String, Interface> = BTreeMap::new();
        for name in interface_names(&text("/proc/net/dev")) {
            let mac = text(&format!("/sys/class/net/{name}/address"));
            let mac = parse_mac(mac.trim()).filter(|mac| *mac != [0; 6]);
            interfaces.insert(name.clone(), Interface { name, mac, ..Interface::default() });
        }
        for address in local_ipv4(&text("/proc/net/fib_trie")) {
            let (name, prefix) = owner(address, &routes);
            if let Some(interface) = interfaces.get_mut(&name) {
                interface.addresses.push((address.into(), prefix));
            }
        }
        for (address, prefix, name) in local_ipv6(&text("/proc/net/if_inet6")) {
            if let Some(interface) = interfaces.get_mut(&name) {
                interface.addresses.push((address.into(), prefix));
            }
        }
        let mut interfaces: Vec<Interface> = interfaces.into_values().collect();
        interfaces.sort_by_key(|interface| (!interface.is_loopback(), interface.name.clone()));
        for (interface, index) in interfaces.iter_mut().zip(1..) {
            interface.index = index;
        }
        Self { host: text("/proc/sys/kernel/hostname").trim().to_owned(), interfaces, routes, dns: Dns::parse(&text("/etc/resolv.conf")) }
    }

    pub(super) fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }
}

/// Interface and prefix of a local address: those of the connected route that holds it.
fn owner(address: Ipv4Addr, routes: &[Route]) -> (String, u8) {
    if address.is_loopback() {
        return ("lo".to_owned(), 8);
    }
    let connected = routes.iter().filter(|route| match route.to {
        IpAddr::V4(to) => route.prefix > 0 && route.gateway.is_none() && mask4(address, route.prefix) == to,
        IpAddr::V6(_) => false,
    });
    // An address without a connected route (a pod whose gateway is its only neighbour) is on the default route's interface.
    let default = || routes.iter().find(|route| route.prefix == 0 && route.to.is_ipv4()).map(|route| (route.interface.clone(), 32));
    connected.max_by_key(|route| route.prefix).map(|route| (route.interface.clone(), route.prefix)).or_else(default).unwrap_or_default()
}

fn mask4(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    (u32::from(address) & u32::from(netmask(prefix))).into()
}

/// 24 is 255.255.255.0.
pub(super) fn netmask(prefix: u8) -> Ipv4Addr {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0).into()
}

fn interface_names(dev: &str) -> Vec<String> {
    dev.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned()).collect()
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>().ok()?;
    bytes.try_into().ok()
}

/// Host addresses of the local table. The file names an address on one line and its kind on a later one.
fn local_ipv4(trie: &str) -> Vec<Ipv4Addr> {
    let (mut found, mut last) = (Vec::new(), None);
    for line in trie.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = address.trim().parse().ok();
        } else if line.trim() == "/32 host LOCAL"
            && let Some(address) = last
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Lines of address, index, prefix, scope, flags, name.
fn local_ipv6(text: &str) -> Vec<(Ipv6Addr, u8, String)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, prefix, _, _, name] = words.as_slice() else { return None };
        Some((u128::from_str_radix(address, 16).ok()?.into(), u8::from_str_radix(prefix, 16).ok()?, (*name).to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Numbers are in the machine's byte order.
fn ipv4_routes(text: &str) -> Vec<Route> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| u32::from_str_radix(word, 16).ok());
        let address = |number: u32| Ipv4Addr::from(number.to_ne_bytes());
        let (to, gateway, mask) = (address(number(1)?), address(number(2)?), address(number(7)?));
        Some(Route {
            to: to.into(),
            prefix: u8::try_from(u32::from(mask).count_ones()).ok()?,
            gateway: (!gateway.is_unspecified()).then_some(gateway.into()),
            interface: (*words.first()?).to_owned(),
            metric: words.get(6)?.parse().ok()?,
        })
    };
    text.lines().skip(1).filter_map(line).collect()
}

fn ipv6_routes(text: &str) -> Vec<Route> {
    /// RTF_UP, and RTF_REJECT of routes that lead nowhere.
    const UP: u32 = 1;
    const REJECT: u32 = 0x200;
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = |at: usize| words.get(at).and_then(|word| u128::from_str_radix(word, 16).ok()).map(Ipv6Addr::from);
        let number = |at: usize| words.get(at).and_then(|word| u32::from_str_radix(word, 16).ok());
        let (gateway, flags) = (address(4)?, number(8)?);
        (flags & UP != 0 && flags & REJECT == 0).then_some(())?;
        Some(Route {
            to: address(0)?.into(),
            prefix: u8::try_from(number(1)?).ok()?,
            gateway: (!gateway.is_unspecified()).then_some(gateway.into()),
            interface: (*words.get(9)?).to_owned(),
            metric: number(5)?,
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A pod with one interface, as its kernel shows it.
    pub(in super::super) fn pod() -> Network {
        let files = |path: &str| {
            let text = match path {
                "/proc/sys/kernel/hostname" => "web-1\n",
                "/proc/net/dev" => "Inter-| Receive\n face |bytes\n    lo: 0 0\n  eth0: 0 0\n",
                "/sys/class/net/eth0/address" => "00:15:5d:0a:0b:0c\n",
                "/sys/class/net/lo/address" => "00:00:00:00:00:00\n",
                "/proc/net/route" => {
                    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
                }
                "/proc/net/ipv6_route" => {
                    "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 \
                     00000000 00000001 eth0\n"
                }
                "/proc/net/fib_trie" => {
                    "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\nLocal:\n        |-- 127.0.0.1\n           /32 host LOCAL\n\
                     \x20       |-- 192.168.1.12\n           /32 host LOCAL\n        |-- 192.168.1.255\n           /32 link BROADCAST\n"
                }
                "/proc/net/if_inet6" => "fe8000000000000002155dfffe0a0b0c 02 40 20 80     eth0\n",
                "/etc/resolv.conf" => "nameserver 10.96.0.10\nsearch default.svc.cluster.local svc.cluster.local\noptions ndots:5\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        Network::from(&files)
    }

    #[test]
    fn the_pods_network_is_read() {
        let network = pod();
        assert_eq!((network.host.as_str(), network.interfaces.len()), ("web-1", 2));
        let (lo, eth) = (&network.interfaces[0], &network.interfaces[1]);
        assert_eq!((lo.index, lo.mac, lo.ipv4()), (1, None, Some((Ipv4Addr::LOCALHOST, 8))));
        assert_eq!((eth.index, eth.mac), (2, Some([0, 0x15, 0x5d, 10, 11, 12])));
        assert_eq!(eth.addresses, [("192.168.1.12".parse().unwrap(), 24), ("fe80::215:5dff:fe0a:b0c".parse().unwrap(), 64)]);
        let default =
            Route { to: Ipv4Addr::UNSPECIFIED.into(), prefix: 0, gateway: Some([192, 168, 1, 1].into()), interface: "eth0".into(), metric: 0 };
        assert_eq!(network.routes[0], default);
        assert_eq!((network.routes.len(), network.routes[2].prefix), (3, 64));
        assert_eq!(network.dns.servers, ["10.96.0.10"]);
    }

    #[test]
    fn masks_have_every_length() {
        assert_eq!([0, 1, 24, 32].map(netmask).map(|mask| mask.to_string()), ["0.0.0.0", "128.0.0.0", "255.255.255.0", "255.255.255.255"]);
    }
}
