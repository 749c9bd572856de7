//! Addresses through rtnetlink, in the network namespace of the thread that opened them. Our mark is the address's protocol
//! number, which kernels keep since 5.18; older ones forget it, so there an address that a killed process left behind stays.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use linux_sys::netlink::Rtnl;

use super::{Addresses, AddressesError, HostAddress, failed, missing};
use crate::OUR_PROTOCOL;

/// The addresses of one interface of one network namespace.
pub struct LinuxAddresses {
    netlink: Rtnl,
    index: u32,
    name: String,
}

impl LinuxAddresses {
    /// Those of the interface called `name`, in the namespace this thread is in.
    pub fn open(name: &str) -> Result<Self, AddressesError> {
        let find = || -> Result<(Rtnl, Option<u32>), linux_sys::netlink::NetlinkError> {
            let netlink = Rtnl::open()?;
            let index = netlink.link(name)?.map(|link| link.index);
            Ok((netlink, index))
        };
        let (netlink, index) = find().map_err(io::Error::from).map_err(failed(format!("look for interface {name:?}")))?;
        Ok(Self { netlink, index: index.ok_or_else(|| missing(name))?, name: name.to_owned() })
    }
}

impl Addresses for LinuxAddresses {
    fn list(&self) -> Result<Vec<HostAddress>, AddressesError> {
        let all = self.netlink.marked_addrs(self.index).map_err(io::Error::from).map_err(failed(format!("list addresses of {}", self.name)))?;
        Ok(all.into_iter().map(|(net, protocol)| HostAddress { ip: net.addr(), ours: protocol == OUR_PROTOCOL && is_alone(net) }).collect())
    }

    fn add(&self, ip: IpAddr) -> Result<(), AddressesError> {
        let added = self.netlink.add_marked_addr(self.index, ip.into(), OUR_PROTOCOL);
        added.map_err(io::Error::from).map_err(failed(format!("add {ip} to {}", self.name)))
    }

    fn delete(&self, ip: IpAddr) -> Result<(), AddressesError> {
        match self.netlink.del_addr(self.index, ip.into()) {
            Err(error) if error.is_not_found() || error.errno() == Some(99) => Ok(()),
            other => other.map_err(io::Error::from).map_err(failed(format!("delete {ip} of {}", self.name))),
        }
    }
}

fn is_alone(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_come_and_go_and_foreign_ones_stay() {
        linux_sys::ns::in_lab("addresses::imp::tests::own_addresses_come_and_go_and_foreign_ones_stay", || {
            let addresses = LinuxAddresses::open("lo").unwrap();
            let before = addresses.list().unwrap();
            assert!(before.iter().all(|address| !address.ours), "{before:?}");
            for ip in ["10.96.0.1", "fd00:96::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
                addresses.add(ip).unwrap();
                addresses.add(ip).unwrap();
                assert!(LinuxAddresses::open("lo").unwrap().list().unwrap().contains(&HostAddress { ip, ours: true }));
                assert!(std::net::TcpListener::bind((ip, 80)).is_ok(), "usable at once");
                addresses.delete(ip).unwrap();
                addresses.delete(ip).unwrap();
            }
            assert_eq!(addresses.list().unwrap(), before);
            assert!(LinuxAddresses::open("eth9").err().unwrap().operation.contains("eth9"));
        });
    }
}
