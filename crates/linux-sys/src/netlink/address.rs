//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;

use super::wire::{self, Writer};
use super::{ACK, CREATE, Result, Rtnl, family, ip_bytes, read_ip};

const IFA_F_NODAD: u32 = 0x02;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

/// `struct ifaddrmsg`.
fn header(address: IpNet, index: u32) -> [u8; 8] {
    let mut h = [0; 8];
    h[0] = family(address.addr());
    h[1] = address.prefix_len();
    h[4..8].copy_from_slice(&index.to_ne_bytes());
    h
}

fn body(w: &mut Writer, address: IpNet) {
    let bytes = ip_bytes(address.addr());
    w.attr(libc::IFA_LOCAL, &bytes);
    w.attr(libc::IFA_ADDRESS, &bytes);
    if let (IpAddr::V4(_), IpNet::V4(net)) = (address.addr(), address)
        && net.prefix_len() < 31
    {
        w.attr(libc::IFA_BROADCAST, &net.broadcast().octets());
    }
}

/// Origin of the address (`IFA_PROTO`): kernels keep it since 5.18 and leave it out when it is 0.
const IFA_PROTO: u16 = 11;

impl Rtnl {
    /// The addresses of a link with their prefix lengths.
    pub fn addrs(&self, index: u32) -> Result<Vec<IpNet>> {
        Ok(self.marked_addrs(index)?.into_iter().map(|(net, _)| net).collect())
    }

    /// The addresses of a link, each with the number of its origin (0 unknown).
    pub fn marked_addrs(&self, index: u32) -> Result<Vec<(IpNet, u8)>> {
        let all = self.dump("list addresses", libc::RTM_GETADDR, &[0; 8], |payload| {
            let (prefix, owner) = (*payload.get(1)?, wire::u32_at(payload, 4)?);
            let attrs = payload.get(8..)?;
            // IFA_LOCAL is this side's address; IPv6 has it only on point-to-point links.
            let ip = wire::attr(attrs, libc::IFA_LOCAL).or_else(|| wire::attr(attrs, libc::IFA_ADDRESS))?;
            let mark = wire::attr(attrs, IFA_PROTO).and_then(|bytes| bytes.first().copied()).unwrap_or(0);
            Some((owner, (IpNet::new(read_ip(ip)?, prefix).ok()?, mark)))
        })?;
        Ok(all.into_iter().filter(|(owner, _)| *owner == index).map(|(_, marked)| marked).collect())
    }

    /// Gives a link an address; that it has it already is fine. IPv6 addresses are usable at once
    /// (no duplicate address detection: no other machine is on our links).
    pub fn add_addr(&self, index: u32, address: IpNet) -> Result<()> {
        self.add_marked_addr(index, address, 0)
    }

    /// Like [`Self::add_addr`], with the number of its origin.
    pub fn add_marked_addr(&self, index: u32, address: IpNet, mark: u8) -> Result<()> {
        self.put_addr(index, address, mark, 0)
    }

    /// Like [`Self::add_addr`], without the route to the address's network: others of it are not reached directly.
    pub fn add_lone_addr(&self, index: u32, address: IpNet) -> Result<()> {
        self.put_addr(index, address, 0, IFA_F_NOPREFIXROUTE)
    }

    fn put_addr(&self, index: u32, address: IpNet, mark: u8, flags: u32) -> Result<()> {
        let name = format!("add address {address} to link {index}");
        let done = self.change(&name, libc::RTM_NEWADDR, CREATE, &header(address, index), |w| {
            body(w, address);
            let flags = if address.addr().is_ipv6() { flags | IFA_F_NODAD } else { flags };
            if flags != 0 {
                w.attr_u32(libc::IFA_FLAGS, flags);
            }
            if mark != 0 {
                w.attr_u8(IFA_PROTO, mark);
            }
        });
        match done {
            Err(e) if e.is_exists() => Ok(()),
            other => other,
        }
    }

    /// Takes an address away.
    pub fn del_addr(&self, index: u32, address: IpNet) -> Result<()> {
        let name = format!("delete address {address} of link {index}");
        self.change(&name, libc::RTM_DELADDR, ACK, &header(address, index), |w| body(w, address))
    }
}
