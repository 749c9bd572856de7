//! What a link may send in a second: the token bucket, tbf(8); and what it receives sent on to another link, for the same.

use super::{ACK, CREATE, REPLACE, Result, Rtnl, wire};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const ROOT: u32 = u32::MAX;
/// TC_H_INGRESS, and the handle of its discipline.
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// TCA_*, linux/rtnetlink.h.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
/// TCA_TBF_*, linux/pkt_sched.h.
const PARAMETERS: u16 = 1;
const RATE64: u16 = 4;
const BURST: u16 = 6;

/// A bound on what a link sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bytes a second.
    pub bytes: u64,
    /// Bytes that may go at once after a rest. Larger segments are cut.
    pub burst: u32,
    /// Bytes that wait for their turn; what comes on top is lost.
    pub queue: u32,
}

/// `struct tcmsg`.
fn message(index: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut h = [0; 20];
    h[4..8].copy_from_slice(&index.to_ne_bytes());
    h[8..12].copy_from_slice(&handle.to_ne_bytes());
    h[12..16].copy_from_slice(&parent.to_ne_bytes());
    h[16..20].copy_from_slice(&info.to_ne_bytes());
    h
}

fn header(index: u32) -> [u8; 20] {
    message(index, 0, ROOT, 0)
}

impl Rate {
    /// `struct tc_tbf_qopt`: the rate's link layer is Ethernet, the queue's length; the rest stands in attributes of its own.
    fn parameters(self) -> [u8; 36] {
        const ETHERNET: u8 = 1;
        let mut p = [0; 36];
        p[1] = ETHERNET;
        p[24..28].copy_from_slice(&self.queue.to_ne_bytes());
        p
    }
}

impl Rtnl {
    /// Bounds what a link sends, in the place of what bounded it before.
    pub fn set_rate(&self, index: u32, rate: Rate) -> Result<()> {
        self.change(&format!("bound link {index} to {} bytes a second", rate.bytes), RTM_NEWQDISC, REPLACE, &header(index), |w| {
            w.attr_str(KIND, "tbf");
            w.nest(OPTIONS, |w| {
                w.attr(PARAMETERS, &rate.parameters());
                w.attr(RATE64, &rate.bytes.to_ne_bytes());
                w.attr_u32(BURST, rate.burst);
            });
        })
    }

    /// Takes a link's bound away.
    pub fn del_rate(&self, index: u32) -> Result<()> {
        self.change(&format!("take the bound of link {index} away"), RTM_DELQDISC, ACK, &header(index), |_| {})
    }

    /// Whether a link's packets are bounded: what it sends, and what it receives (see [`Rtnl::redirect`]).
    pub fn is_bounded(&self, index: u32) -> Result<(bool, bool)> {
        let kinds = self.dump("list queueing disciplines", RTM_GETQDISC, &message(0, 0, 0, 0), |payload| {
            let kind = wire::attr(payload.get(20..)?, KIND).map(wire::text)?;
            Some((wire::u32_at(payload, 4)?, kind))
        })?;
        let has = |kind: &str| kinds.iter().any(|(link, found)| *link == index && found == kind);
        Ok((has("tbf"), has("ingress")))
    }

    /// Sends on what a link receives as if another link, which bounds it, sent it.
    pub fn redirect(&self, index: u32, to: u32) -> Result<()> {
        /// TCA_U32_SEL, TCA_U32_ACT, linux/pkt_cls.h; TCA_ACT_KIND, TCA_ACT_OPTIONS; TCA_MIRRED_PARMS.
        const SELECTOR: u16 = 5;
        const ACTIONS: u16 = 7;
        const FIRST: u16 = 1;
        const ACTION_KIND: u16 = 1;
        const ACTION_OPTIONS: u16 = 2;
        const MIRRED: u16 = 2;
        let operation = format!("redirect link {index} to link {to}");
        let head = message(index, INGRESS_HANDLE, INGRESS, 0);
        self.change(&operation, RTM_NEWQDISC, CREATE, &head, |w| w.attr_str(KIND, "ingress"))?;
        // Priority 1, every protocol.
        let info = 1 << 16 | u32::from((libc::ETH_P_ALL as u16).to_be());
        self.change(&operation, RTM_NEWTFILTER, CREATE, &message(index, 0, INGRESS_HANDLE, info), |w| {
            w.attr_str(KIND, "u32");
            w.nest(OPTIONS, |w| {
                w.attr(SELECTOR, &everything());
                w.nest(ACTIONS, |w| {
                    w.nest(FIRST, |w| {
                        w.attr_str(ACTION_KIND, "mirred");
                        w.nest(ACTION_OPTIONS, |w| w.attr(MIRRED, &redirection(to)));
                    });
                });
            });
        })
    }
}

/// `struct tc_u32_sel` with one key that every packet matches; the last rule.
fn everything() -> [u8; 32] {
    let mut selector = [0; 32];
    (selector[0], selector[2]) = (1, 1);
    selector
}

/// `struct tc_mirred`: the packet leaves by `to` (TCA_EGRESS_REDIR) and is gone here (TC_ACT_STOLEN).
fn redirection(to: u32) -> [u8; 28] {
    let mut parameters = [0; 28];
    parameters[8..12].copy_from_slice(&4_u32.to_ne_bytes());
    parameters[20..24].copy_from_slice(&1_u32.to_ne_bytes());
    parameters[24..28].copy_from_slice(&to.to_ne_bytes());
    parameters
}
