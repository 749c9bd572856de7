//! A front end as elements of the data maps (pure).
//!
//! Keys are concatenations as the kernel has them in its registers: each part padded to four bytes, addresses and
//! ports in network order, numbers in the machine's own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::table::{Backend, Front, FrontKey, IpFamily, Kind, Unserved, Vip};

/// The sets and maps of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// address · protocol · port → class
    Frontends,
    /// The same for clients inside the cluster, where they may use more backends than others.
    Inside,
    /// address · protocol · port · slot → address · port
    Slots,
    /// address · protocol · port that nobody serves: clients are told.
    Rejected,
    /// address · protocol · port that others serve: silence.
    Dropped,
    /// Addresses of Services: what reaches one and is not translated has no port there.
    ClusterIps,
    /// address · address of backends that may meet themselves.
    Hairpins,
    /// address · protocol · port whose clients stick to a backend for so many seconds.
    Sticky(u32),
}

impl Set {
    /// The sets that are always there; those of sticky front ends come with the first of their timeout.
    pub const FIXED: [Self; 7] = [Self::Frontends, Self::Inside, Self::Slots, Self::Rejected, Self::Dropped, Self::ClusterIps, Self::Hairpins];

    /// Its name in the kernel.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Frontends => "frontends",
            Self::Inside => "inside",
            Self::Slots => "slots",
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
            Self::ClusterIps => "cluster-ips",
            Self::Hairpins => "hairpins",
            Self::Sticky(seconds) => return Cow::Owned(format!("sticky-{seconds}")),
        })
    }

    /// The set of that name, when it is one of ours.
    pub fn from_name(name: &str) -> Option<Self> {
        let fixed = Self::FIXED.into_iter().find(|set| set.name() == name);
        fixed.or_else(|| name.strip_prefix("sticky-")?.parse().ok().map(Self::Sticky))
    }

    /// Whether elements of several front ends may be equal.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::ClusterIps | Self::Hairpins)
    }
}

/// When a connection's source becomes the node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Masquerade {
    /// Backends see the client.
    Never,
    /// For clients that are not pods: their replies must come back this way.
    Outsiders,
    /// For every client.
    Always,
}

/// The most backends that a front end uses; further ones get no traffic.
pub const MOST_BACKENDS: usize = 0xfff;
/// The longest affinity; the API allows no more than a day.
const LONGEST_AFFINITY: u32 = 0x1_ffff;

/// How a front end picks a backend. Front ends share classes, so there are few: one chain each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// How many slots there are.
    pub count: u16,
    /// When the source is translated.
    pub masquerade: Masquerade,
    /// Whether the slots are those for clients inside the cluster.
    pub inside: bool,
    /// Affinity timeout in seconds; 0 is none.
    pub affinity: u32,
}

/// Slots for clients inside the cluster begin here.
pub const INSIDE_SLOTS: u32 = 0x1_0000;

impl Class {
    /// The map data that stands for the class, as one number that fits a mark:
    /// 12 bits count, 2 bits masquerade, 1 bit inside, 17 bits affinity.
    pub fn data(self) -> Vec<u8> {
        let number = u32::from(self.count) | (self.masquerade as u32) << 12 | u32::from(self.inside) << 14 | self.affinity << 15;
        number.to_ne_bytes().to_vec()
    }

    /// Reads [`Class::data`] back; none for what was not written by it.
    pub fn from_data(data: &[u8]) -> Option<Self> {
        let number = u32::from_ne_bytes(data.try_into().ok()?);
        let masquerade = match number >> 12 & 3 {
            0 => Masquerade::Never,
            1 => Masquerade::Outsiders,
            2 => Masquerade::Always,
            _ => return None,
        };
        Some(Self { count: (number & 0xfff) as u16, masquerade, inside: number >> 14 & 1 == 1, affinity: number >> 15 })
    }

    /// The name of its chain.
    pub fn chain(self) -> String {
        let masquerade = match self.masquerade {
            Masquerade::Never => "",
            Masquerade::Outsiders => "-masq-outsiders",
            Masquerade::Always => "-masq",
        };
        let inside = if self.inside { "-inside" } else { "" };
        let affinity = if self.affinity == 0 { String::new() } else { format!("-sticky-{}", self.affinity) };
        format!("pick-{}{inside}{masquerade}{affinity}", self.count)
    }
}

/// Elements by set and key, with the data of maps (empty for sets).
pub type Elements = BTreeMap<(Set, Vec<u8>), Vec<u8>>;

/// address · protocol · port
pub fn front_bytes(ip: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
    let [a, b, c, d] = ip.octets();
    let [high, low] = port.to_be_bytes();
    vec![a, b, c, d, protocol, 0, 0, 0, high, low, 0, 0]
}

/// address · port
pub fn target_bytes(ip: Ipv4Addr, port: u16) -> Vec<u8> {
    let [a, b, c, d] = ip.octets();
    let [high, low] = port.to_be_bytes();
    vec![a, b, c, d, high, low, 0, 0]
}

fn v4(backend: &Backend) -> Option<(Ipv4Addr, u16)> {
    match backend.address {
        IpAddr::V4(ip) => Some((ip, backend.port)),
        IpAddr::V6(_) => None,
    }
}

/// The elements of one front end. A node port listens on each of `node_ips`.
pub fn elements(key: &FrontKey, front: &Front, node_ips: &[Ipv4Addr]) -> Elements {
    let mut elements = Elements::new();
    let vips: Vec<Ipv4Addr> = match key.vip {
        Vip::Address(IpAddr::V4(ip)) => vec![ip],
        Vip::Address(IpAddr::V6(_)) => Vec::new(),
        Vip::Node(IpFamily::V4) => node_ips.to_vec(),
        Vip::Node(IpFamily::V6) => Vec::new(),
    };
    let masquerade = match (front.kind, front.keep_client) {
        (Kind::ClusterIp, _) => Masquerade::Outsiders,
        (_, true) => Masquerade::Never,
        (_, false) => Masquerade::Always,
    };
    for vip in vips {
        let at = front_bytes(vip, key.protocol.number(), key.port);
        if front.kind == Kind::ClusterIp {
            elements.insert((Set::ClusterIps, vip.octets().to_vec()), Vec::new());
        }
        serve(&mut elements, Set::Frontends, &at, &front.backends, front, masquerade);
        if let Some(inside) = &front.inside {
            serve(&mut elements, Set::Inside, &at, inside, front, Masquerade::Never);
        }
        if front.backends.is_empty() {
            let set = if front.unserved == Unserved::Reject { Set::Rejected } else { Set::Dropped };
            elements.insert((set, at), Vec::new());
        }
    }
    elements
}

fn serve(elements: &mut Elements, set: Set, at: &[u8], backends: &[Backend], front: &Front, masquerade: Masquerade) {
    let targets: Vec<(Ipv4Addr, u16)> = backends.iter().filter_map(v4).take(MOST_BACKENDS).collect();
    if targets.is_empty() {
        return;
    }
    let inside = set == Set::Inside;
    let affinity = front.affinity.unwrap_or(0).min(LONGEST_AFFINITY);
    // The cast is exact: no more than MOST_BACKENDS are taken.
    let class = Class { count: targets.len() as u16, masquerade, inside, affinity };
    elements.insert((set, at.to_vec()), class.data());
    if affinity != 0 {
        elements.insert((Set::Sticky(affinity), at.to_vec()), Vec::new());
    }
    let base = if inside { INSIDE_SLOTS } else { 0 };
    for (slot, (ip, port)) in (base..).zip(targets) {
        elements.insert((Set::Slots, [at, &slot.to_ne_bytes()].concat()), target_bytes(ip, port));
    }
    for (ip, _) in backends.iter().filter(|b| b.local).filter_map(v4) {
        elements.insert((Set::Hairpins, [ip.octets(), ip.octets()].concat()), Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Protocol;

    fn front(kind: Kind, backends: &[(&str, u16, bool)]) -> Front {
        let backends = backends.iter().map(|&(ip, port, local)| Backend { address: ip.parse().unwrap(), port, local }).collect();
        Front { backends, ..Front::new("default/web:80", kind) }
    }

    fn show(elements: &Elements) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        elements.iter().map(|((set, key), data)| format!("{} {} {}\n", set.name(), hex(key), hex(data))).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn golden_elements() {
        let key = FrontKey { vip: Vip::Address("10.96.0.1".parse().unwrap()), protocol: Protocol::Tcp, port: 80 };
        let text = show(&elements(&key, &front(Kind::ClusterIp, &[("192.168.0.5", 8080, true), ("192.168.1.5", 80, false)]), &[]));
        insta::assert_snapshot!(text, @r"
        frontends 0a6000010600000000500000 02100000
        slots 0a600001060000000050000000000000 c0a800051f900000
        slots 0a600001060000000050000001000000 c0a8010500500000
        cluster-ips 0a600001 
        hairpins c0a80005c0a80005 
        ");
        let node_port = FrontKey { vip: Vip::Node(IpFamily::V4), protocol: Protocol::Udp, port: 30053 };
        let mut local = front(Kind::NodePort, &[]);
        local.keep_client = true;
        local.unserved = Unserved::Drop;
        local.inside = Some(front(Kind::NodePort, &[("192.168.1.5", 53, false)]).backends);
        let ips = ["10.240.0.11".parse().unwrap(), "10.250.0.11".parse().unwrap()];
        insta::assert_snapshot!(show(&elements(&node_port, &local, &ips)), @r"
        inside 0af0000b1100000075650000 01400000
        inside 0afa000b1100000075650000 01400000
        slots 0af0000b110000007565000000000100 c0a8010500350000
        slots 0afa000b110000007565000000000100 c0a8010500350000
        dropped 0af0000b1100000075650000 
        dropped 0afa000b1100000075650000 
        ");
        assert!(elements(&node_port, &local, &[]).is_empty());
    }

    #[test]
    fn classes_read_back_and_name_their_chains() {
        for masquerade in [Masquerade::Never, Masquerade::Outsiders, Masquerade::Always] {
            for inside in [false, true] {
                let class = Class { count: 4095, masquerade, inside, affinity: 86_400 };
                assert_eq!(Class::from_data(&class.data()), Some(class));
            }
        }
        assert_eq!(Class::from_data(&[255; 4]), None);
        assert_eq!(Class::from_data(&[]), None);
        let class = Class { count: 3, masquerade: Masquerade::Outsiders, inside: false, affinity: 60 };
        assert_eq!(class.chain(), "pick-3-masq-outsiders-sticky-60");
    }
}
