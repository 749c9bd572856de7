//! A VIP as elements of the data maps (pure).
//!
//! Keys are concatenations as the kernel has them in its registers: each part padded to four bytes, addresses and
//! ports in network order, numbers in the machine's own.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;

use ipnet::IpNet;

use crate::table::{BackendAddress, IpFamily, Kind, Unserved, Vip, VipAddress, VipKey};

/// A few bytes, held in place: there are very many of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Bytes<N> {
    /// None at all.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; N] };

    /// Those of a slice, when there are no more than `N`.
    pub fn of(slice: &[u8]) -> Option<Self> {
        (slice.len() <= N).then(|| Self::EMPTY.and(slice))
    }

    /// With these at the end, as far as there is room.
    fn and(mut self, more: &[u8]) -> Self {
        for (to, from) in self.bytes.iter_mut().skip(self.len.into()).zip(more) {
            *to = *from;
            self.len += 1;
        }
        self
    }

    fn ip(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.and(&ip.octets()),
            IpAddr::V6(ip) => self.and(&ip.octets()),
        }
    }

    fn port(self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.and(&[high, low, 0, 0])
    }
}

impl<const N: usize> Deref for Bytes<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The key of an element; the longest is an IPv6 VIP with a network.
pub type ElementKey = Bytes<40>;
/// What an element maps to: at most an IPv6 address with a port.
pub type ElementData = Bytes<20>;

/// What a set or map is for. In this order they lose elements, in the opposite one they gain them: nobody is led to what is
/// not there, and no client comes in before the allowed ones are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// address · protocol · port → class
    Vips,
    /// The same for clients inside the cluster, where they may use more backends than others.
    Inside,
    /// address · protocol · port · slot → address · port
    Slots,
    /// address · protocol · port of which not everybody is a client.
    Guarded,
    /// address · protocol · port without a backend: clients are refused.
    Rejected,
    /// address · protocol · port that others serve: silence.
    Dropped,
    /// Addresses of Services: what reaches one and is not translated has no port there.
    ClusterIps,
    /// address · address of backends that may connect to themselves.
    Hairpins,
    /// address · protocol · port whose clients stick to a backend for so many seconds.
    Sticky(u32),
    /// address · protocol · port · network of so many bits whose members may be clients.
    Allowed(u8),
}

/// A set or map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set {
    /// What it is for.
    pub role: Role,
    pub family: IpFamily,
}

impl Role {
    /// The roles that are always there; others come with the first VIP that needs them.
    pub const FIXED: [Self; 8] =
        [Self::Vips, Self::Inside, Self::Slots, Self::Guarded, Self::Rejected, Self::Dropped, Self::ClusterIps, Self::Hairpins];

    /// The order in which sets gain and lose elements ([`nft::DesiredSet::rank`]).
    pub fn rank(self) -> u8 {
        match self {
            Self::Vips => 0,
            Self::Inside => 1,
            Self::Slots => 2,
            Self::Guarded => 3,
            Self::Rejected => 4,
            Self::Dropped => 5,
            Self::ClusterIps => 6,
            Self::Hairpins => 7,
            Self::Sticky(_) => 8,
            Self::Allowed(_) => 9,
        }
    }

    /// Whether it comes with the first VIP that needs it.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::Sticky(_) | Self::Allowed(_))
    }

    /// In one family.
    pub fn of(self, family: IpFamily) -> Set {
        Set { role: self, family }
    }
}

/// The suffix that distinguishes the names of the families.
pub fn suffix(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "",
        IpFamily::V6 => "6",
    }
}

impl Set {
    /// The sets that are always there.
    pub fn fixed() -> impl Iterator<Item = Self> {
        IpFamily::ALL.into_iter().flat_map(|family| Role::FIXED.map(|role| role.of(family)))
    }

    /// Its name in the kernel.
    pub fn name(self) -> String {
        let suffix = suffix(self.family);
        let name = match self.role {
            Role::Vips => "vips",
            Role::Inside => "inside",
            Role::Slots => "slots",
            Role::Guarded => "guarded",
            Role::Rejected => "rejected",
            Role::Dropped => "dropped",
            Role::ClusterIps => "cluster-ips",
            Role::Hairpins => "hairpins",
            Role::Sticky(seconds) => return format!("sticky{suffix}-{seconds}"),
            Role::Allowed(bits) => return format!("allowed{suffix}-{bits}"),
        };
        format!("{name}{suffix}")
    }

    /// Whether elements of several VIPs may be equal.
    pub fn is_shared(self) -> bool {
        matches!(self.role, Role::ClusterIps | Role::Hairpins)
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

/// The most backends that a VIP uses; further ones get no traffic.
pub const MOST_BACKENDS: usize = 0xfff;
/// The longest affinity; the API allows no more than a day.
const LONGEST_AFFINITY: u32 = 0x1_ffff;

/// The backend selector of a VIP. VIPs share classes, so there are few: one chain each.
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
    /// The map data that stands for the class, as one number that fits a packet's priority:
    /// 12 bits count, 2 bits masquerade, 1 bit inside, 17 bits affinity.
    pub fn data(self) -> ElementData {
        let number = u32::from(self.count) | (self.masquerade as u32) << 12 | u32::from(self.inside) << 14 | self.affinity << 15;
        ElementData::EMPTY.and(&number.to_ne_bytes())
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
    pub fn chain(self, family: IpFamily) -> String {
        let masquerade = match self.masquerade {
            Masquerade::Never => "",
            Masquerade::Outsiders => "-masq-outsiders",
            Masquerade::Always => "-masq",
        };
        let inside = if self.inside { "-inside" } else { "" };
        let affinity = if self.affinity == 0 { String::new() } else { format!("-sticky-{}", self.affinity) };
        format!("select{}-{}{inside}{masquerade}{affinity}", suffix(family), self.count)
    }
}

/// An element: where, which key, and the data of maps (empty for sets).
pub type Item = (Set, ElementKey, ElementData);

/// Facts of the node that the elements of every VIP depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkContext {
    /// The addresses on which node ports listen.
    pub node_ips: Vec<IpAddr>,
    /// Every client of a ClusterIP gets this node's address.
    pub masquerade_all: bool,
}

/// address · protocol · port
pub fn vip_bytes(ip: IpAddr, protocol: u8, port: u16) -> ElementKey {
    ElementKey::EMPTY.ip(ip).and(&[protocol, 0, 0, 0]).port(port)
}

/// The elements of one VIP. A node port listens on those of the context's addresses that `free` lets it have.
pub fn elements(key: &VipKey, vip: &Vip, context: &NetworkContext, free: impl Fn(IpAddr) -> bool) -> Vec<Item> {
    let mut items = Vec::new();
    if vip.kind == Kind::HealthCheck {
        // A request for the node itself: its own socket answers.
        return items;
    }
    match key.address {
        VipAddress::Ip(ip) => at_address(&mut items, ip, key, vip, context),
        VipAddress::Node(family) => {
            for ip in context.node_ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family && free(*ip)) {
                at_address(&mut items, ip, key, vip, context);
            }
        }
    }
    items
}

fn at_address(items: &mut Vec<Item>, address: IpAddr, key: &VipKey, vip: &Vip, context: &NetworkContext) {
    let family = IpFamily::of(address);
    let at = vip_bytes(address, key.protocol.number(), key.port);
    let mut put = |role: Role, key: ElementKey| items.push((role.of(family), key, ElementData::EMPTY));
    if vip.kind == Kind::ClusterIp {
        put(Role::ClusterIps, ElementKey::EMPTY.ip(address));
    }
    let inside = vip.inside.as_deref().unwrap_or_default();
    if vip.backends.is_empty() {
        put(if vip.unserved == Unserved::Reject { Role::Rejected } else { Role::Dropped }, at);
    }
    if let Some(sources) = vip.sources.as_deref().filter(|_| !vip.backends.is_empty() || !inside.is_empty()) {
        put(Role::Guarded, at);
        for net in sources.iter().map(IpNet::trunc) {
            put(Role::Allowed(net.prefix_len()), at.ip(net.addr()));
        }
    }
    if vip.affinity.is_some() && !(vip.backends.is_empty() && inside.is_empty()) {
        put(Role::Sticky(affinity(vip)), at);
    }
    let masquerade = match (vip.kind, vip.keep_client) {
        (Kind::ClusterIp, _) if !context.masquerade_all => Masquerade::Outsiders,
        (_, true) => Masquerade::Never,
        (_, false) => Masquerade::Always,
    };
    serve(items, Role::Vips, at, &vip.backends, vip, masquerade);
    // Pods keep their addresses; the node itself may have taken the VIP's own.
    serve(items, Role::Inside, at, inside, vip, Masquerade::Outsiders);
}

fn affinity(vip: &Vip) -> u32 {
    vip.affinity.unwrap_or(0).min(LONGEST_AFFINITY)
}

fn serve(items: &mut Vec<Item>, role: Role, at: ElementKey, backends: &[BackendAddress], vip: &Vip, masquerade: Masquerade) {
    let Some(family) = backends.first().map(|b| IpFamily::of(b.address)) else { return };
    let used = &backends[..backends.len().min(MOST_BACKENDS)];
    let inside = role == Role::Inside;
    // The cast is exact: no more than MOST_BACKENDS are used.
    let class = Class { count: used.len() as u16, masquerade, inside, affinity: affinity(vip) };
    items.push((role.of(family), at, class.data()));
    let base = if inside { INSIDE_SLOTS } else { 0 };
    for (slot, backend) in (base..).zip(used) {
        let target = ElementData::EMPTY.ip(backend.address).port(backend.port);
        items.push((Role::Slots.of(family), at.and(&slot.to_ne_bytes()), target));
        if backend.local {
            items.push((Role::Hairpins.of(family), ElementKey::EMPTY.ip(backend.address).ip(backend.address), ElementData::EMPTY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Protocol;

    fn vip(kind: Kind, backends: &[(&str, u16, bool)]) -> Vip {
        let backends = backends.iter().map(|&(ip, port, local)| BackendAddress { address: ip.parse().unwrap(), port, local }).collect();
        Vip { backends, ..Vip::new("default/web:80", kind) }
    }

    fn show(key: &VipKey, vip: &Vip, node_ips: &[&str]) -> String {
        let context = NetworkContext { node_ips: node_ips.iter().map(|ip| ip.parse().unwrap()).collect(), masquerade_all: false };
        let mut items = elements(key, vip, &context, |_| true);
        items.sort();
        items.iter().map(|(set, key, data)| format!("{} {key:?} {data:?}\n", set.name())).collect()
    }

    fn key(address: &str, port: u16) -> VipKey {
        VipKey { address: VipAddress::Ip(address.parse().unwrap()), protocol: Protocol::Tcp, port }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn golden_elements() {
        insta::assert_snapshot!(show(&key("10.96.0.1", 80), &vip(Kind::ClusterIp, &[("192.168.0.5", 8080, true), ("192.168.1.5", 80, false)]), &[]), @r"
        vips 0a6000010600000000500000 02100000
        slots 0a600001060000000050000000000000 c0a800051f900000
        slots 0a600001060000000050000001000000 c0a8010500500000
        cluster-ips 0a600001 
        hairpins c0a80005c0a80005 
        ");
        let node_port = VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Udp, port: 30053 };
        let mut local = vip(Kind::NodePort, &[]);
        local.keep_client = true;
        local.unserved = Unserved::Drop;
        local.inside = Some(vip(Kind::NodePort, &[("192.168.1.5", 53, false)]).backends);
        insta::assert_snapshot!(show(&node_port, &local, &["10.240.0.11", "10.250.0.11", "fd00::1"]), @r"
        inside 0af0000b1100000075650000 01500000
        inside 0afa000b1100000075650000 01500000
        slots 0af0000b110000007565000000000100 c0a8010500350000
        slots 0afa000b110000007565000000000100 c0a8010500350000
        dropped 0af0000b1100000075650000 
        dropped 0afa000b1100000075650000 
        ");
        assert!(show(&node_port, &local, &[]).is_empty());
        let mut guarded = vip(Kind::LoadBalancer, &[("fd00:1::5", 80, false)]);
        guarded.affinity = Some(60);
        guarded.sources = Some(["fd00:9::/32".parse().unwrap(), "fd00::7/128".parse().unwrap()].into());
        insta::assert_snapshot!(show(&key("fd00::9", 80), &guarded, &[]), @r"
        vips6 fd0000000000000000000000000000090600000000500000 01201e00
        slots6 fd000000000000000000000000000009060000000050000000000000 fd00000100000000000000000000000500500000
        guarded6 fd0000000000000000000000000000090600000000500000 
        sticky6-60 fd0000000000000000000000000000090600000000500000 
        allowed6-32 fd0000000000000000000000000000090600000000500000fd000009000000000000000000000000 
        allowed6-128 fd0000000000000000000000000000090600000000500000fd000000000000000000000000000007 
        ");
    }

    #[test]
    fn classes_read_back() {
        for masquerade in [Masquerade::Never, Masquerade::Outsiders, Masquerade::Always] {
            for inside in [false, true] {
                let class = Class { count: 4095, masquerade, inside, affinity: 86_400 };
                assert_eq!(Class::from_data(&class.data()), Some(class));
            }
        }
        assert_eq!(Class::from_data(&[255; 4]), None);
        assert_eq!(Class::from_data(&[]), None);
        let class = Class { count: 3, masquerade: Masquerade::Outsiders, inside: false, affinity: 60 };
        assert_eq!(
            (class.chain(IpFamily::V4), class.chain(IpFamily::V6)),
            ("select-3-masq-outsiders-sticky-60".into(), "select6-3-masq-outsiders-sticky-60".into())
        );
    }
}
