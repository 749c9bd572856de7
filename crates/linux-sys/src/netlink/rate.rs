//! What a link may send in a second: the token bucket, tbf(8).

use super::{ACK, REPLACE, Result, Rtnl};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const ROOT: u32 = u32::MAX;
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
fn header(index: u32) -> [u8; 20] {
    let mut h = [0; 20];
    h[4..8].copy_from_slice(&index.to_ne_bytes());
    h[12..16].copy_from_slice(&ROOT.to_ne_bytes());
    h
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
}
