//! Rules written as they read.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use linux_sys::netlink::wire::Writer;

use super::set::ifname;
use super::{CmpOp, CtKey, Expr, Family, FibFlags, FibResult, MetaKey, NatKind, PayloadBase, RejectKind, Verdict};

/// Bits of a connection's state for [`Rule::ct_state`].
pub mod ct_state {
    pub const INVALID: u32 = 1;
    pub const ESTABLISHED: u32 = 2;
    pub const RELATED: u32 = 4;
    pub const NEW: u32 = 8;
    /// Not tracked, because of a rule with `notrack`.
    pub const UNTRACKED: u32 = 64;
}

/// Bits of a connection's status for [`Rule::ct_status`].
pub mod ct_status {
    pub const SNAT: u32 = 0x10;
    pub const DNAT: u32 = 0x20;
}

/// A rule without expressions: it matches everything and does nothing.
pub fn rule() -> Rule {
    Rule::default()
}

/// A rule: matches first, then what is done. Methods that compare use slot 15 for scratch; loads
/// into slots 0 to 14 survive them.
///
/// In tables of family `inet`, matches on IPv4 or IPv6 headers need [`Rule::nfproto`] before them,
/// and matches on ports need [`Rule::l4proto`] in any table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    pub(super) exprs: Vec<Expr>,
    pub(super) comment: Option<String>,
}

const SCRATCH: u32 = 15;
/// 16-byte values need four slots.
const SCRATCH_LONG: u32 = 12;

/// Rules for a prerouting filter chain behind connection tracking (priority above -200) of a host that sets `route_localnet`.
///
/// That setting makes the kernel route loopback addresses from any link, so pods and neighbours could reach services that listen on
/// 127.0.0.1 alone, or claim to be the host itself (CVE-2020-8558). What arrives from another link for 127.0.0.0/8 passes only as the
/// answer to a connection of the host; what claims to come from there is dropped.
pub fn loopback_guard() -> [Rule; 2] {
    let loopback = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    let outside = || rule().nfproto(Family::Ip).iifname_not("lo");
    [outside().ip_saddr(loopback).drop(), outside().ip_daddr(loopback).ct_state(ct_state::NEW | ct_state::INVALID | ct_state::UNTRACKED).drop()]
}

impl Rule {
    pub(super) fn write(&self, w: &mut Writer, family: Family) {
        self.exprs.iter().for_each(|expr| expr.write(w, family));
    }

    /// A hash of the rule as a table of `family` holds it. Batches store it with the rule, and dumps return it.
    pub fn fingerprint(&self, family: Family) -> u64 {
        let mut w = Writer::default();
        self.write(&mut w, family);
        super::batch::fingerprint(w.as_bytes(), self.comment.as_deref())
    }

    /// Adds any expression.
    pub fn expr(mut self, expr: Expr) -> Self {
        self.exprs.push(expr);
        self
    }

    /// A comment of at most 127 bytes, which dumps return and nft(8) shows; longer ones are cut.
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    fn equals(self, load: Expr, value: &[u8], equal: bool) -> Self {
        let reg = match &load {
            Expr::Meta { reg, .. } | Expr::Payload { reg, .. } | Expr::Ct { reg, .. } | Expr::Fib { reg, .. } => *reg,
            _ => SCRATCH,
        };
        let op = if equal { CmpOp::Eq } else { CmpOp::Neq };
        self.expr(load).expr(Expr::Cmp { op, reg, value: value.to_vec() })
    }

    fn meta(self, key: MetaKey, value: &[u8]) -> Self {
        let reg = if value.len() > 4 { SCRATCH_LONG } else { SCRATCH };
        self.equals(Expr::Meta { key, reg }, value, true)
    }

    /// Came in by that link.
    pub fn iifname(self, name: &str) -> Self {
        self.meta(MetaKey::IifName, &ifname(name))
    }

    /// Goes out by that link.
    pub fn oifname(self, name: &str) -> Self {
        self.meta(MetaKey::OifName, &ifname(name))
    }

    /// Did not come in by that link.
    pub fn iifname_not(self, name: &str) -> Self {
        self.equals(Expr::Meta { key: MetaKey::IifName, reg: SCRATCH_LONG }, &ifname(name), false)
    }

    /// Does not go out by that link.
    pub fn oifname_not(self, name: &str) -> Self {
        self.equals(Expr::Meta { key: MetaKey::OifName, reg: SCRATCH_LONG }, &ifname(name), false)
    }

    /// Is of that IP version ([`Family::Ip`] or [`Family::Ip6`]).
    pub fn nfproto(self, family: Family) -> Self {
        self.meta(MetaKey::Nfproto, &[family as u8])
    }

    /// Is of that transport protocol: 6 TCP, 17 UDP, 1 ICMP.
    pub fn l4proto(self, number: u8) -> Self {
        self.meta(MetaKey::L4proto, &[number])
    }

    /// Goes to that port.
    pub fn dport(self, port: u16) -> Self {
        let load = Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, reg: SCRATCH };
        self.equals(load, &port.to_be_bytes(), true)
    }

    /// Does not come from that hardware address; in tables of family `bridge` or `netdev`.
    pub fn ether_saddr_not(self, mac: [u8; 6]) -> Self {
        self.equals(Expr::Payload { base: PayloadBase::Link, offset: 6, len: 6, reg: SCRATCH_LONG }, &mac, false)
    }

    /// Comes from that network.
    pub fn ip_saddr(self, net: impl Into<IpNet>) -> Self {
        self.address(net.into(), true, true)
    }

    /// Comes from outside that network.
    pub fn ip_saddr_not(self, net: impl Into<IpNet>) -> Self {
        self.address(net.into(), true, false)
    }

    /// Goes to that network.
    pub fn ip_daddr(self, net: impl Into<IpNet>) -> Self {
        self.address(net.into(), false, true)
    }

    /// Goes outside that network.
    pub fn ip_daddr_not(self, net: impl Into<IpNet>) -> Self {
        self.address(net.into(), false, false)
    }

    fn address(self, net: IpNet, source: bool, equal: bool) -> Self {
        let v4 = net.addr().is_ipv4();
        let reg = if v4 { SCRATCH } else { SCRATCH_LONG };
        let (offset, len) = address_at(v4, source);
        let load = Expr::Payload { base: PayloadBase::Network, offset, len, reg };
        let value = linux_sys::netlink::ip_bytes(net.network());
        if net.prefix_len() == net.max_prefix_len() {
            return self.equals(load, &value, equal);
        }
        let mask = linux_sys::netlink::ip_bytes(net.netmask());
        let xor = vec![0; mask.len()];
        let op = if equal { CmpOp::Eq } else { CmpOp::Neq };
        self.expr(load).expr(Expr::Bitwise { from: reg, to: reg, mask, xor }).expr(Expr::Cmp { op, reg, value })
    }

    fn bits(self, load: Expr, mask: u32, op: CmpOp, value: u32) -> Self {
        let masked = Expr::Bitwise { from: SCRATCH, to: SCRATCH, mask: mask.to_ne_bytes().into(), xor: vec![0; 4] };
        self.expr(load).expr(masked).expr(Expr::Cmp { op, reg: SCRATCH, value: value.to_ne_bytes().into() })
    }

    /// The connection is in one of these states ([`ct_state`]).
    pub fn ct_state(self, any_of: u32) -> Self {
        self.bits(Expr::Ct { key: CtKey::State, reg: SCRATCH, reply: None }, any_of, CmpOp::Neq, 0)
    }

    /// The connection has one of these properties ([`ct_status`]).
    pub fn ct_status(self, any_of: u32) -> Self {
        self.bits(Expr::Ct { key: CtKey::Status, reg: SCRATCH, reply: None }, any_of, CmpOp::Neq, 0)
    }

    /// The packet's mark under `mask` is `value`.
    pub fn mark(self, value: u32, mask: u32) -> Self {
        self.bits(Expr::Meta { key: MetaKey::Mark, reg: SCRATCH }, mask, CmpOp::Eq, value)
    }

    /// The connection's mark under `mask` is `value`.
    pub fn ct_mark(self, value: u32, mask: u32) -> Self {
        self.bits(Expr::Ct { key: CtKey::Mark, reg: SCRATCH, reply: None }, mask, CmpOp::Eq, value)
    }

    /// The destination address is one of this host's.
    pub fn daddr_is_local(self) -> Self {
        const LOCAL: u32 = 2;
        let flags = FibFlags { daddr: true, ..FibFlags::default() };
        self.equals(Expr::Fib { flags, result: FibResult::AddrType, reg: SCRATCH }, &LOCAL.to_ne_bytes(), true)
    }

    /// Loads the IPv4 source address (1 slot).
    pub fn load_ip_saddr(self, reg: u32) -> Self {
        self.load_address(true, true, reg)
    }

    /// Loads the IPv4 destination address (1 slot).
    pub fn load_ip_daddr(self, reg: u32) -> Self {
        self.load_address(true, false, reg)
    }

    /// Loads the IPv6 source address (4 slots).
    pub fn load_ip6_saddr(self, reg: u32) -> Self {
        self.load_address(false, true, reg)
    }

    /// Loads the IPv6 destination address (4 slots).
    pub fn load_ip6_daddr(self, reg: u32) -> Self {
        self.load_address(false, false, reg)
    }

    fn load_address(self, v4: bool, source: bool, reg: u32) -> Self {
        let (offset, len) = address_at(v4, source);
        self.expr(Expr::Payload { base: PayloadBase::Network, offset, len, reg })
    }

    /// Loads the transport protocol (1 slot).
    pub fn load_l4proto(self, reg: u32) -> Self {
        self.expr(Expr::Meta { key: MetaKey::L4proto, reg })
    }

    /// Loads the destination port (1 slot).
    pub fn load_dport(self, reg: u32) -> Self {
        self.expr(Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, reg })
    }

    /// Loads the source port (1 slot).
    pub fn load_sport(self, reg: u32) -> Self {
        self.expr(Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 2, reg })
    }

    /// Loads the packet's mark (1 slot).
    pub fn load_mark(self, reg: u32) -> Self {
        self.expr(Expr::Meta { key: MetaKey::Mark, reg })
    }

    /// Loads the connection's mark (1 slot).
    pub fn load_ct_mark(self, reg: u32) -> Self {
        self.expr(Expr::Ct { key: CtKey::Mark, reg, reply: None })
    }

    /// Loads a random number below `modulus` (1 slot, host order).
    pub fn load_random(self, modulus: u32, reg: u32) -> Self {
        self.expr(Expr::Numgen { random: true, modulus, offset: 0, reg })
    }

    /// Loads bytes.
    pub fn load_value(self, reg: u32, value: impl Into<Vec<u8>>) -> Self {
        self.expr(Expr::Immediate { reg, value: value.into() })
    }

    /// The key that begins at slot `reg` is in the set.
    pub fn lookup(self, set: impl Into<String>, reg: u32) -> Self {
        self.expr(Expr::Lookup { set: set.into(), reg, inverted: false })
    }

    /// The key that begins at slot `reg` is not in the set.
    pub fn lookup_not(self, set: impl Into<String>, reg: u32) -> Self {
        self.expr(Expr::Lookup { set: set.into(), reg, inverted: true })
    }

    /// The key that begins at slot `reg` is in the map; its value is loaded to `to`.
    pub fn lookup_data(self, map: impl Into<String>, reg: u32, to: u32) -> Self {
        self.expr(Expr::LookupData { set: map.into(), reg, to })
    }

    /// Does what the map says for the key that begins at slot `reg`.
    pub fn vmap(self, map: impl Into<String>, reg: u32) -> Self {
        self.expr(Expr::LookupVerdict { set: map.into(), reg })
    }

    /// Sets the bits of `mask` in the packet's mark to those of `value`; others stay.
    pub fn set_mark(self, value: u32, mask: u32) -> Self {
        let load = Expr::Meta { key: MetaKey::Mark, reg: SCRATCH };
        self.expr(load).change_bits(value, mask).expr(Expr::MetaSet { key: MetaKey::Mark, reg: SCRATCH })
    }

    /// Sets the packet's mark to what slot `reg` holds.
    pub fn set_mark_from(self, reg: u32) -> Self {
        self.expr(Expr::MetaSet { key: MetaKey::Mark, reg })
    }

    /// Sets the bits of `mask` in the connection's mark to those of `value`; others stay.
    pub fn set_ct_mark(self, value: u32, mask: u32) -> Self {
        let load = Expr::Ct { key: CtKey::Mark, reg: SCRATCH, reply: None };
        self.expr(load).change_bits(value, mask).expr(Expr::CtSet { key: CtKey::Mark, reg: SCRATCH })
    }

    /// Sets the connection's mark to what slot `reg` holds.
    pub fn set_ct_mark_from(self, reg: u32) -> Self {
        self.expr(Expr::CtSet { key: CtKey::Mark, reg })
    }

    fn change_bits(self, value: u32, mask: u32) -> Self {
        self.expr(Expr::Bitwise { from: SCRATCH, to: SCRATCH, mask: (!mask).to_ne_bytes().into(), xor: (value & mask).to_ne_bytes().into() })
    }

    /// Translates the destination to the address in slot `addr` and the port in slot `port`.
    pub fn dnat(self, family: Family, addr: u32, port: Option<u32>) -> Self {
        self.expr(Expr::Nat { kind: NatKind::Dnat, family, addr, port })
    }

    /// Translates the destination.
    pub fn dnat_to(self, to: SocketAddr) -> Self {
        let (value, family) = (linux_sys::netlink::ip_bytes(to.ip()), family_of(to.ip()));
        self.load_value(8, value).load_value(12, to.port().to_be_bytes()).dnat(family, 8, Some(12))
    }

    /// Translates the source to the address in slot `addr` and the port in slot `port`.
    pub fn snat(self, family: Family, addr: u32, port: Option<u32>) -> Self {
        self.expr(Expr::Nat { kind: NatKind::Snat, family, addr, port })
    }

    /// Translates the source address.
    pub fn snat_to(self, ip: IpAddr) -> Self {
        let value = linux_sys::netlink::ip_bytes(ip);
        self.load_value(8, value).snat(family_of(ip), 8, None)
    }

    /// Translates the source to the outgoing link's address.
    pub fn masquerade(self) -> Self {
        self.expr(Expr::Masquerade)
    }

    pub fn counter(self) -> Self {
        self.expr(Expr::Counter)
    }

    pub fn reject(self, kind: RejectKind) -> Self {
        self.expr(Expr::Reject(kind))
    }

    /// Lets the packet pass this hook's chain.
    pub fn accept(self) -> Self {
        self.expr(Expr::Verdict(Verdict::Accept))
    }

    pub fn drop(self) -> Self {
        self.expr(Expr::Verdict(Verdict::Drop))
    }

    /// Goes back to the calling chain.
    pub fn return_(self) -> Self {
        self.expr(Expr::Verdict(Verdict::Return))
    }

    /// Goes through another chain and comes back.
    pub fn jump(self, chain: impl Into<String>) -> Self {
        self.expr(Expr::Verdict(Verdict::Jump(chain.into())))
    }

    /// Goes to another chain.
    pub fn goto(self, chain: impl Into<String>) -> Self {
        self.expr(Expr::Verdict(Verdict::Goto(chain.into())))
    }
}

/// Offset and length of an address in its header.
fn address_at(v4: bool, source: bool) -> (u32, u32) {
    match (v4, source) {
        (true, true) => (12, 4),
        (true, false) => (16, 4),
        (false, true) => (8, 16),
        (false, false) => (24, 16),
    }
}

fn family_of(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::Ip } else { Family::Ip6 }
}
