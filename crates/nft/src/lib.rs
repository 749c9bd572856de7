//! nf_tables: tables, chains, sets, maps and rules, changed by atomic transactions. Names follow nft(8).
//!
//! ```no_run
//! use nft::*;
//! let table = Table::new(Family::Ip, "mullion");
//! let mut batch = Batch::new();
//! batch.destroy_table(&table).add_table(&table);
//! batch.add_chain(&table, &Chain::base("nat-out", ChainType::Nat, Hook::Output, -100));
//! batch.add_set(&table, &SetSpec::map("services", [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService],
//!     [DataType::Ipv4Addr, DataType::InetService]));
//! let key = Key::new().ip("10.96.0.1".parse().unwrap()).proto(6).port(443);
//! let to = Key::new().ip("10.240.0.2".parse().unwrap()).port(6443);
//! batch.add_elements(&table, "services", &[Element::new(key).data(to)]);
//! batch.add_rule(&table, "nat-out", rule().load_ip_daddr(0).load_l4proto(1).load_dport(2)
//!     .lookup_data("services", 0, 4).dnat(Family::Ip, 4, Some(5)));
//! Nft::open()?.commit(&batch)?;
//! # Ok::<(), NftError>(())
//! ```
//!
//! Registers are the sixteen 4-byte slots of the kernel, by number; concatenated keys lie in slots
//! side by side, each part rounded up to whole slots. Kernels since 6.18 reject a rule that reads a
//! slot which the *same rule* did not fill before: carry values between rules in marks.

#![cfg(target_os = "linux")]

mod attribute;
mod batch;
mod desired;
mod dump;
mod engine;
mod entry;
mod expr;
mod observed;
mod plan;
mod rule;
mod set;

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::SockProtocol;

pub use batch::Batch;
pub use desired::{Desired, DesiredSet};
pub use dump::{ChainInfo, RuleInfo, SetInfo};
pub use engine::{Engine, Report};
pub use entry::{ElementChange, Entry};
pub use expr::{CmpOp, CtKey, DynsetOp, Expr, FibFlags, FibResult, MetaKey, NatKind, PayloadBase, RejectKind};
pub use observed::Observed;
pub use plan::Plan;
pub use rule::{Rule, ct_state, ct_status, loopback_guard, rule};
pub use set::{Data, DataType, Element, Key, MapData, SetSpec};

use linux_sys::netlink::NetlinkError;
use linux_sys::netlink::socket::Socket;
use linux_sys::netlink::wire::{Writer, attr, be32};
use linux_sys::ns::NetNs;

const ASK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;

/// Message types (linux/netfilter/nf_tables.h).
mod msg {
    pub const NEW_TABLE: u16 = 0;
    pub const GET_TABLE: u16 = 1;
    pub const DEL_TABLE: u16 = 2;
    pub const NEW_CHAIN: u16 = 3;
    pub const GET_CHAIN: u16 = 4;
    pub const DEL_CHAIN: u16 = 5;
    pub const NEW_RULE: u16 = 6;
    pub const GET_RULE: u16 = 7;
    pub const DEL_RULE: u16 = 8;
    pub const NEW_SET: u16 = 9;
    pub const GET_SET: u16 = 10;
    pub const DEL_SET: u16 = 11;
    pub const NEW_ELEMENTS: u16 = 12;
    pub const GET_ELEMENTS: u16 = 13;
    pub const DEL_ELEMENTS: u16 = 14;
    pub const GET_GENERATION: u16 = 16;
    pub const BATCH_BEGIN: u16 = 16;
    pub const BATCH_END: u16 = 17;
    /// A message type of the nf_tables subsystem.
    pub const fn of(kind: u16) -> u16 {
        10 << 8 | kind
    }
}

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// Frames as a link receives them.
    Netdev = 5,
    /// Frames that a bridge forwards.
    Bridge = 7,
    /// IPv6.
    Ip6 = 10,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ip6 => "ip6",
        })
    }
}

impl Family {
    fn read(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Netdev, Self::Bridge, Self::Ip6].into_iter().find(|f| *f as u8 == number)
    }
}

/// A table by family and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    /// Which packets it sees.
    pub family: Family,
    /// Its name within the family.
    pub name: String,
}

impl Table {
    /// Names a table; makes nothing.
    pub fn new(family: Family, name: impl Into<String>) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// Where a base chain is hooked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Hook {
    /// Before the routing decision; in [`Family::Netdev`], as the link receives.
    Prerouting = 0,
    /// To this host.
    Input = 1,
    /// Through this host.
    Forward = 2,
    /// From this host.
    Output = 3,
    /// After the routing decision.
    Postrouting = 4,
}

/// What a base chain is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainType {
    /// Filters, and sets marks.
    Filter,
    /// Translates addresses; sees the first packet of a connection only.
    Nat,
    /// Routes packets anew after marks changed (output).
    Route,
}

impl ChainType {
    fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// A chain to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// Type, hook and priority of a base chain; `None` for one that others jump to.
    pub hook: Option<(ChainType, Hook, i32)>,
    /// What happens to packets at the end of a base chain (`None`: accept).
    pub drop_by_default: bool,
    /// The link of a base chain of [`Family::Netdev`].
    pub device: Option<String>,
}

impl Chain {
    /// A chain that others jump to.
    pub fn regular(name: impl Into<String>) -> Self {
        Self { name: name.into(), hook: None, drop_by_default: false, device: None }
    }

    /// A chain that packets enter by a hook; smaller priorities come first.
    pub fn base(name: impl Into<String>, kind: ChainType, hook: Hook, priority: i32) -> Self {
        Self { name: name.into(), hook: Some((kind, hook, priority)), drop_by_default: false, device: None }
    }

    /// A chain of [`Family::Netdev`] that every frame enters which `link` receives.
    pub fn ingress(name: impl Into<String>, link: impl Into<String>) -> Self {
        Self { device: Some(link.into()), ..Self::base(name, ChainType::Filter, Hook::Prerouting, 0) }
    }

    /// Packets that reach the end are dropped.
    pub fn policy_drop(mut self) -> Self {
        self.drop_by_default = true;
        self
    }
}

/// Where a packet goes next.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

impl Verdict {
    fn code(&self) -> i32 {
        match self {
            Self::Accept => 1,
            Self::Drop => 0,
            Self::Continue => -1,
            Self::Return => -5,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
        }
    }

    fn write(&self, w: &mut Writer) {
        w.nest(2, |w| {
            w.attr_be32(1, self.code() as u32);
            if let Self::Jump(chain) | Self::Goto(chain) = self {
                w.attr_str(2, chain);
            }
        });
    }
}

/// Why nf_tables could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// No socket, or the kernel refused a listing.
    #[error("nf_tables")]
    Netlink(#[from] NetlinkError),
    /// The exchange of a transaction failed.
    #[error("nf_tables transaction of {operations} operations: no exchange with the kernel")]
    Exchange {
        /// How many operations it has.
        operations: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused a transaction: nothing of it took effect.
    #[error("nf_tables: {operation}{}", .detail.as_ref().map(|d| format!(" (kernel: {d})")).unwrap_or_default())]
    Refused {
        /// The operation that failed first, with its object.
        operation: String,
        /// Its place in the batch, when one operation is to blame.
        index: Option<usize>,
        /// The kernel's own message (extended acknowledgement), when it has one.
        detail: Option<String>,
        source: io::Error,
    },
    /// The batch exceeds what may be sent at once.
    #[error("an nf_tables transaction of {bytes} bytes exceeds the limit of {limit}: raise net.core.wmem_max, or commit it in parts")]
    TooLarge {
        /// What it needs.
        bytes: usize,
        /// What the socket takes.
        limit: usize,
    },
}

impl NftError {
    /// The system's error number, when there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Netlink(e) => e.errno(),
            Self::Exchange { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
            Self::TooLarge { .. } => Some(libc::EMSGSIZE),
        }
    }

    /// The table, chain, set, element or rule is not there.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// The rules are of another generation than the transaction was made for.
    pub fn is_superseded(&self) -> bool {
        self.errno() == Some(libc::ERESTART)
    }

    /// It is there already, with other content.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }
}

impl From<NftError> for io::Error {
    fn from(e: NftError) -> Self {
        let kind = e.errno().map_or(io::ErrorKind::Other, |n| io::Error::from_raw_os_error(n).kind());
        io::Error::new(kind, e)
    }
}

/// nf_tables of one network namespace.
#[derive(Debug)]
pub struct Nft {
    socket: Mutex<Socket>,
    most: usize,
}

impl Nft {
    /// Acts on the current namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel has no netfilter netlink.
    pub fn open() -> Result<Self, NftError> {
        Ok(Self { socket: Mutex::new(Socket::open(SockProtocol::NetlinkNetFilter)?), most: usize::MAX })
    }

    /// Acts on `ns`.
    ///
    /// # Errors
    /// As [`Self::open`], or when the namespace cannot be entered.
    pub fn open_in(ns: &NetNs) -> Result<Self, NftError> {
        ns.run(Self::open).map_err(|source| NetlinkError::Socket { what: "enter the namespace for", source })?
    }

    /// Takes no transaction of more bytes, as a system does whose buffers are smaller than this one's.
    pub fn take_most(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Carries out a batch as one transaction: all of it or nothing. An empty batch does nothing.
    ///
    /// # Errors
    /// [`NftError::Refused`] names the operation; [`NftError::TooLarge`] see [`Self::commit_in_parts`].
    pub fn commit(&self, batch: &Batch) -> Result<(), NftError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.transact(batch, 0..batch.len(), None)
    }

    /// Like [`Self::commit`], unless somebody changed any rules of this namespace since [`Self::generation`] was `generation`.
    ///
    /// # Errors
    /// As [`Self::commit`]; [`NftError::is_superseded`] when the rules are of another generation.
    pub fn commit_at(&self, generation: u32, batch: &Batch) -> Result<(), NftError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.transact(batch, 0..batch.len(), Some(generation))
    }

    /// Carries out a batch in as few transactions as the socket's buffer allows (one, when it fits).
    /// Each is atomic by itself; the first that fails ends it. What an ordinary user may send at once
    /// is twice `net.core.wmem_max` (416 KiB by default, some 8,000 elements).
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_in_parts(&self, batch: &Batch) -> Result<(), NftError> {
        self.commit_counted(batch).map(drop)
    }

    /// Like [`Self::commit_in_parts`], and returns how many transactions that were: each changes [`Self::generation`] by one.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_counted(&self, batch: &Batch) -> Result<usize, NftError> {
        let limit = {
            let socket = self.socket();
            socket.make_room(batch.bytes() + 64);
            socket.room().saturating_sub(2048).min(self.most)
        };
        let parts = batch.parts(limit);
        for range in &parts {
            self.transact(batch, range.clone(), None)?;
        }
        Ok(parts.len())
    }

    /// A number that every transaction of anybody in this namespace changes. Rules that add elements do not.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn generation(&self) -> Result<u32, NftError> {
        let request = |w: &mut Writer, seq| w.message(msg::of(msg::GET_GENERATION), ASK, seq, &header(0, 0), |_| {});
        let replies = self.socket().request("read the generation of the rules", request)?;
        let number = replies.first().and_then(|payload| be32(attr(payload.get(4..)?, 1)?));
        number.ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer has none");
            NetlinkError::Exchange { operation: "read the generation of the rules".into(), source }.into()
        })
    }

    fn socket(&self) -> std::sync::MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transact(&self, batch: &Batch, range: std::ops::Range<usize>, generation: Option<u32>) -> Result<(), NftError> {
        let datagram = batch.datagram(range.clone(), generation);
        let mut socket = self.socket();
        if datagram.len() > self.most || !socket.make_room(datagram.len()) {
            return Err(NftError::TooLarge { bytes: datagram.len(), limit: socket.room().min(self.most) });
        }
        let answers = socket.batch(&datagram).map_err(|source| NftError::Exchange { operations: range.len(), source })?;
        // A failing operation can make later ones fail: the first in order is the reason.
        if let Some(first) = answers.iter().filter(|a| a.errno != 0).min_by_key(|a| if a.seq == 0 { u32::MAX } else { a.seq }) {
            let index = (first.seq as usize).checked_sub(1).filter(|i| range.contains(i));
            let operation = index.map_or_else(|| format!("commit of {} operations", range.len()), |i| batch.name(i));
            let source = io::Error::from_raw_os_error(first.errno);
            return Err(NftError::Refused { operation, index, detail: first.text.clone(), source });
        }
        // The last operation asked for an acknowledgement: without it nothing was done.
        if answers.iter().any(|a| a.seq as usize == range.end) {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel did not acknowledge");
        Err(NftError::Exchange { operations: range.len(), source })
    }
}

/// `struct nfgenmsg`.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
