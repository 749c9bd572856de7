//! Expressions: what a rule consists of.
//!
//! `reg` members are slot numbers 0 to 15.

use std::time::Duration;

use super::{Family, Verdict};
use linux_sys::netlink::wire::Writer;

/// Part of a packet's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MetaKey {
    Len = 0,
    /// The class of traffic; may be set.
    Priority = 2,
    Mark = 3,
    Iif = 4,
    Oif = 5,
    IifName = 6,
    OifName = 7,
    Nfproto = 15,
    L4proto = 16,
    /// The frame's receiver as the link saw it: 0 this host, 3 another; may be set.
    PktType = 19,
}

/// Part of a connection's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CtKey {
    State = 0,
    Direction = 1,
    Status = 2,
    Mark = 3,
    Protocol = 10,
    /// Source port; needs a direction.
    ProtoSrc = 11,
    /// Destination port; needs a direction.
    ProtoDst = 12,
    /// IPv4 source; needs a direction.
    SrcIp = 19,
    /// IPv4 destination; needs a direction.
    DstIp = 20,
    /// IPv6 source (4 slots); needs a direction.
    SrcIp6 = 21,
    /// IPv6 destination (4 slots); needs a direction.
    DstIp6 = 22,
}

/// Where a payload offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PayloadBase {
    Link = 0,
    Network = 1,
    Transport = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CmpOp {
    Eq = 0,
    Neq = 1,
    Lt = 2,
    Lte = 3,
    Gt = 4,
    Gte = 5,
}

/// Which address is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NatKind {
    Snat = 0,
    Dnat = 1,
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectKind {
    TcpReset,
    /// "Net unreachable" ("no route" in IPv6), in the packet's own family.
    Net,
    /// "Port unreachable", in the packet's own family.
    Port,
    /// "Host unreachable", in the packet's own family.
    Host,
    /// "Administratively prohibited", in the packet's own family.
    Prohibited,
}

/// Result of a look-up in the routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FibResult {
    /// The number of the outgoing link.
    Oif = 1,
    /// Kind of the address: 1 unicast, 2 local, 3 broadcast.
    AddrType = 3,
}

/// What a look-up in the routing table goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FibFlags {
    pub saddr: bool,
    pub daddr: bool,
    pub mark: bool,
    pub iif: bool,
    pub oif: bool,
}

/// What a rule does to a dynamic set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DynsetOp {
    /// Adds, if missing.
    Add = 0,
    /// Adds, or renews the timeout.
    Update = 1,
    Delete = 2,
}

/// One expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads metadata.
    Meta {
        key: MetaKey,
        reg: u32,
    },
    /// Sets metadata (the mark, the priority).
    MetaSet {
        key: MetaKey,
        reg: u32,
    },
    /// Loads bytes of the packet.
    Payload {
        base: PayloadBase,
        offset: u32,
        len: u32,
        reg: u32,
    },
    /// Goes on if the register compares so.
    Cmp {
        op: CmpOp,
        reg: u32,
        value: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        from: u32,
        to: u32,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Goes on if the key is in the set.
    Lookup {
        set: String,
        reg: u32,
        inverted: bool,
    },
    /// Goes on, with the value loaded, if the key is in the map.
    LookupData {
        set: String,
        reg: u32,
        to: u32,
    },
    /// Takes the verdict of the key in the map; goes on if there is none.
    LookupVerdict {
        set: String,
        reg: u32,
    },
    /// Loads bytes.
    Immediate {
        reg: u32,
        value: Vec<u8>,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// Translates an address, and a port.
    Nat {
        kind: NatKind,
        family: Family,
        addr: u32,
        port: Option<u32>,
    },
    /// Translates the source to the outgoing link's address.
    Masquerade,
    /// Translates the destination to this host.
    Redirect {
        port: Option<u32>,
    },
    /// Loads connection state; `reply` selects a direction where the key has one.
    Ct {
        key: CtKey,
        reg: u32,
        reply: Option<bool>,
    },
    /// Sets connection state (the mark).
    CtSet {
        key: CtKey,
        reg: u32,
    },
    /// Leaves the packet out of connection tracking.
    Notrack,
    /// Loads a number below `modulus`, plus `offset`.
    Numgen {
        random: bool,
        modulus: u32,
        offset: u32,
        reg: u32,
    },
    /// Loads the Jenkins hash of `len` bytes from `from`, below `modulus`, plus `offset`.
    Hash {
        from: u32,
        len: u32,
        modulus: u32,
        seed: u32,
        offset: u32,
        reg: u32,
    },
    Counter,
    Reject(RejectKind),
    /// Loads what the routing table says.
    Fib {
        flags: FibFlags,
        result: FibResult,
        reg: u32,
    },
    /// Changes a dynamic set.
    Dynset {
        set: String,
        op: DynsetOp,
        key: u32,
        data: Option<u32>,
        timeout: Option<Duration>,
    },
}

/// The kernel's number of a slot.
const fn slot(reg: u32) -> u32 {
    8 + reg
}

impl Expr {
    fn name(&self) -> &'static str {
        match self {
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } | Self::LookupData { .. } | Self::LookupVerdict { .. } => "lookup",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Nat { .. } => "nat",
            Self::Masquerade => "masq",
            Self::Redirect { .. } => "redir",
            Self::Ct { .. } | Self::CtSet { .. } => "ct",
            Self::Notrack => "notrack",
            Self::Numgen { .. } => "numgen",
            Self::Hash { .. } => "hash",
            Self::Counter => "counter",
            Self::Reject(_) => "reject",
            Self::Fib { .. } => "fib",
            Self::Dynset { .. } => "dynset",
        }
    }

    /// Writes the expression as a table of `family` wants it.
    pub(super) fn write(&self, w: &mut Writer, family: Family) {
        w.nest(1, |w| {
            w.attr_str(1, self.name());
            w.nest(2, |w| self.write_data(w, family));
        });
    }

    /// Attribute numbers: NFTA_*, linux/netfilter/nf_tables.h.
    fn write_data(&self, w: &mut Writer, family: Family) {
        let value = |w: &mut Writer, kind: u16, bytes: &[u8]| w.nest(kind, |w| w.attr(1, bytes));
        match self {
            Self::Meta { key, reg } => numbers(w, [(1, slot(*reg)), (2, *key as u32)]),
            Self::MetaSet { key, reg } => numbers(w, [(2, *key as u32), (3, slot(*reg))]),
            Self::Payload { base, offset, len, reg } => numbers(w, [(1, slot(*reg)), (2, *base as u32), (3, *offset), (4, *len)]),
            Self::Cmp { op, reg, value: bytes } => {
                numbers(w, [(1, slot(*reg)), (2, *op as u32)]);
                value(w, 3, bytes);
            }
            Self::Bitwise { from, to, mask, xor } => {
                numbers(w, [(1, slot(*from)), (2, slot(*to)), (3, mask.len() as u32)]);
                value(w, 4, mask);
                value(w, 5, xor);
            }
            Self::Lookup { set, reg, inverted } => lookup(w, set, *reg, None, *inverted),
            Self::LookupData { set, reg, to } => lookup(w, set, *reg, Some(slot(*to)), false),
            Self::LookupVerdict { set, reg } => lookup(w, set, *reg, Some(0), false),
            Self::Immediate { reg, value: bytes } => {
                w.attr_be32(1, slot(*reg));
                value(w, 2, bytes);
            }
            Self::Verdict(verdict) => {
                w.attr_be32(1, 0);
                w.nest(2, |w| verdict.write(w));
            }
            Self::Nat { kind, family, addr, port } => {
                numbers(w, [(1, *kind as u32), (2, *family as u32), (3, slot(*addr))]);
                numbers(w, port.map(|p| (5, slot(p))));
            }
            Self::Masquerade | Self::Notrack => {}
            Self::Redirect { port } => numbers(w, port.map(|p| (1, slot(p)))),
            Self::Ct { key, reg, reply } => {
                numbers(w, [(1, slot(*reg)), (2, *key as u32)]);
                if let Some(reply) = reply {
                    w.attr_u8(3, u8::from(*reply));
                }
            }
            Self::CtSet { key, reg } => numbers(w, [(2, *key as u32), (4, slot(*reg))]),
            Self::Numgen { random, modulus, offset, reg } => {
                numbers(w, [(1, slot(*reg)), (2, *modulus), (3, u32::from(*random)), (4, *offset)]);
            }
            Self::Hash { from, len, modulus, seed, offset, reg } => {
                numbers(w, [(1, slot(*from)), (2, slot(*reg)), (3, *len), (4, *modulus), (5, *seed), (6, *offset), (7, 0)]);
            }
            Self::Counter => {
                w.attr_be64(1, 0);
                w.attr_be64(2, 0);
            }
            Self::Reject(kind) => reject(w, *kind, family),
            Self::Fib { flags, result, reg } => numbers(w, [(1, slot(*reg)), (2, *result as u32), (3, flags.number())]),
            Self::Dynset { set, op, key, data, timeout } => {
                w.attr_str(1, set);
                numbers(w, [(3, *op as u32), (4, slot(*key))]);
                numbers(w, data.map(|d| (5, slot(d))));
                if let Some(timeout) = timeout {
                    w.attr_be64(6, timeout.as_millis() as u64);
                }
            }
        }
    }
}

impl FibFlags {
    fn number(self) -> u32 {
        [(self.saddr, 1), (self.daddr, 2), (self.mark, 4), (self.iif, 8), (self.oif, 16)].iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum()
    }
}

fn numbers(w: &mut Writer, pairs: impl IntoIterator<Item = (u16, u32)>) {
    for (kind, number) in pairs {
        w.attr_be32(kind, number);
    }
}

fn lookup(w: &mut Writer, set: &str, reg: u32, to: Option<u32>, inverted: bool) {
    w.attr_str(1, set);
    w.attr_be32(2, slot(reg));
    numbers(w, to.map(|to| (3, to)));
    if inverted {
        w.attr_be32(5, 1);
    }
}

/// Codes are the protocol's own; "icmpx" stands for both, in tables that see both. The kernel takes "icmpx" in a table of one
/// IP version too, and then does nothing.
fn reject(w: &mut Writer, kind: RejectKind, family: Family) {
    const UNREACHABLE: u32 = 0;
    const TCP_RESET: u32 = 1;
    const ICMPX: u32 = 2;
    // IPv4 (RFC 792, 1812), IPv6 (RFC 4443), either.
    let codes = match kind {
        RejectKind::TcpReset => return w.attr_be32(1, TCP_RESET),
        RejectKind::Net => (0, 0, 0),
        RejectKind::Port => (3, 4, 1),
        RejectKind::Host => (1, 3, 2),
        RejectKind::Prohibited => (13, 1, 3),
    };
    let (kind, code) = match family {
        Family::Ip => (UNREACHABLE, codes.0),
        Family::Ip6 => (UNREACHABLE, codes.1),
        Family::Inet | Family::Netdev | Family::Bridge => (ICMPX, codes.2),
    };
    w.attr_be32(1, kind);
    w.attr_u8(2, code);
}
