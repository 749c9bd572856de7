//! Neighbours (address → hardware address) and forwarding entries (hardware address → port or tunnel).

use std::net::IpAddr;

use super::wire::{self, Writer};
use super::{ACK, APPEND, REPLACE, Result, Rtnl, family, ip_bytes, read_ip};

const DST: u16 = 1;
const LLADDR: u16 = 2;
const VNI: u16 = 7;
const PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 2;
const NTF_MASTER: u8 = 4;
const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;

/// An entry of the neighbour table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    pub ip: IpAddr,
    /// Its hardware address, once known.
    pub mac: Option<[u8; 6]>,
    /// It neither ages nor is it asked for.
    pub permanent: bool,
}

/// An entry of a bridge's or tunnel's forwarding table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FdbEntry {
    /// Hardware address; zero is a tunnel's default.
    pub mac: [u8; 6],
    /// Where a tunnel sends it.
    pub dst: Option<IpAddr>,
    /// The network identifier used, if not the tunnel's own.
    pub vni: Option<u32>,
    /// It does not age.
    pub permanent: bool,
}

/// `struct ndmsg`.
fn header(family: u8, index: u32, state: u16, flags: u8) -> [u8; 12] {
    let mut h = [0; 12];
    h[0] = family;
    h[4..8].copy_from_slice(&index.to_ne_bytes());
    h[8..10].copy_from_slice(&state.to_ne_bytes());
    h[10] = flags;
    h
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

impl Rtnl {
    /// The neighbours of a link.
    pub fn neighbours(&self, index: u32) -> Result<Vec<Neighbour>> {
        let all = self.dump("list neighbours", libc::RTM_GETNEIGH, &header(0, 0, 0, 0), |payload| {
            let attrs = payload.get(12..)?;
            let ip = wire::attr(attrs, DST).and_then(read_ip)?;
            let mac = wire::attr(attrs, LLADDR).and_then(|v| v.try_into().ok());
            let permanent = wire::u16_at(payload, 8)? & PERMANENT != 0;
            Some((wire::u32_at(payload, 4)?, Neighbour { ip, mac, permanent }))
        })?;
        Ok(all.into_iter().filter(|(owner, _)| *owner == index).map(|(_, n)| n).collect())
    }

    /// Adds or replaces a permanent neighbour.
    pub fn add_neigh(&self, index: u32, ip: IpAddr, mac: [u8; 6]) -> Result<()> {
        let name = format!("add neighbour {ip} on link {index}");
        self.change(&name, libc::RTM_NEWNEIGH, REPLACE, &header(family(ip), index, PERMANENT, 0), |w| {
            w.attr(DST, &ip_bytes(ip));
            w.attr(LLADDR, &mac);
        })
    }

    /// Deletes a neighbour.
    pub fn del_neigh(&self, index: u32, ip: IpAddr) -> Result<()> {
        let name = format!("delete neighbour {ip} on link {index}");
        self.change(&name, libc::RTM_DELNEIGH, ACK, &header(family(ip), index, 0, 0), |w| w.attr(DST, &ip_bytes(ip)))
    }

    /// The forwarding entries of a bridge port or tunnel.
    pub fn fdb(&self, index: u32) -> Result<Vec<FdbEntry>> {
        let all = self.dump("list forwarding entries", libc::RTM_GETNEIGH, &header(AF_BRIDGE, 0, 0, 0), |payload| {
            let attrs = payload.get(12..)?;
            let entry = FdbEntry {
                mac: wire::attr(attrs, LLADDR)?.try_into().ok()?,
                dst: wire::attr(attrs, DST).and_then(read_ip),
                vni: wire::attr(attrs, VNI).and_then(|v| wire::u32_at(v, 0)),
                permanent: wire::u16_at(payload, 8)? & PERMANENT != 0,
            };
            Some((wire::u32_at(payload, 4)?, entry))
        })?;
        Ok(all.into_iter().filter(|(owner, _)| *owner == index).map(|(_, e)| e).collect())
    }

    /// Adds a permanent forwarding entry: of a tunnel when `dst` is given, else of a bridge port.
    /// A tunnel's default (zero address) may have several destinations; any other is replaced.
    pub fn add_fdb(&self, index: u32, mac: [u8; 6], dst: Option<IpAddr>, vni: Option<u32>) -> Result<()> {
        let name = format!("add forwarding entry {} on link {index}", mac_text(mac));
        let flags = if mac == [0; 6] { APPEND } else { REPLACE };
        self.change(&name, libc::RTM_NEWNEIGH, flags, &fdb_header(index, dst), |w| fdb_body(w, mac, dst, vni))
    }

    /// Deletes a forwarding entry.
    pub fn del_fdb(&self, index: u32, mac: [u8; 6], dst: Option<IpAddr>, vni: Option<u32>) -> Result<()> {
        let name = format!("delete forwarding entry {} on link {index}", mac_text(mac));
        self.change(&name, libc::RTM_DELNEIGH, ACK, &fdb_header(index, dst), |w| fdb_body(w, mac, dst, vni))
    }
}

fn fdb_header(index: u32, dst: Option<IpAddr>) -> [u8; 12] {
    header(AF_BRIDGE, index, PERMANENT, if dst.is_some() { NTF_SELF } else { NTF_MASTER })
}

fn fdb_body(w: &mut Writer, mac: [u8; 6], dst: Option<IpAddr>, vni: Option<u32>) {
    w.attr(LLADDR, &mac);
    if let Some(dst) = dst {
        w.attr(DST, &ip_bytes(dst));
    }
    if let Some(vni) = vni {
        w.attr_u32(VNI, vni);
    }
}
