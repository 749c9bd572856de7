//! Uplink: addresses and routes of the host's adapter, and taking them away for a while.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use linux_sys::netlink::Route;
use thiserror_ext::AsReport as _;

use super::LinuxKernel;
use super::links::{absent, gone_is_fine};

/// What was taken from the adapter and not yet given back.
#[derive(Default)]
pub(super) struct Blanked {
    addresses: Vec<IpNet>,
    routes: Vec<Route>,
}

impl LinuxKernel {
    /// The addresses and routes of a link that somebody gave it, not the kernel.
    pub(super) fn belongings(&self, link: u32) -> io::Result<(Vec<IpNet>, Vec<Route>)> {
        const KERNEL: u8 = 2;
        let link_local = |net: &IpNet| matches!(net, IpNet::V6(v6) if v6.addr().is_unicast_link_local() || v6.addr().is_multicast());
        let addresses = self.rtnl.addrs(link)?.into_iter().filter(|net| !link_local(net)).collect();
        let given = |route: &Route| route.oif == Some(link) && route.protocol != KERNEL && !link_local(&route.dst);
        Ok((addresses, self.rtnl.routes()?.into_iter().filter(given).collect()))
    }

    /// The link that has the adapter's addresses: the bridge that it is a port of, else itself.
    fn holder(&self) -> io::Result<u32> {
        let link = self.rtnl.link(&self.uplink)?.ok_or_else(|| absent(format_args!("adapter {}", self.uplink)))?;
        Ok(link.master.unwrap_or(link.index))
    }

    /// The adapter's IPv6 address that others know it by.
    pub(super) fn uplink_ipv6(&self) -> io::Result<Option<Ipv6Addr>> {
        if self.rtnl.link(&self.uplink)?.is_none() {
            return Ok(None);
        }
        let (addresses, _) = self.belongings(self.holder()?)?;
        Ok(addresses.into_iter().find_map(|net| match net.addr() {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        }))
    }

    pub(super) fn take_addresses(&mut self) -> io::Result<()> {
        let holder = self.holder()?;
        let (addresses, routes) = self.belongings(holder)?;
        let blanked = self.blanked.get_or_insert_default();
        blanked.addresses.extend(addresses.iter().filter(|address| !blanked.addresses.contains(address)).copied().collect::<Vec<_>>());
        blanked.routes.extend(routes.iter().filter(|route| !blanked.routes.contains(route)).cloned().collect::<Vec<_>>());
        routes.iter().try_for_each(|route| gone_is_fine(self.rtnl.del_route(route)))?;
        addresses.into_iter().try_for_each(|address| gone_is_fine(self.rtnl.del_addr(holder, address)))
    }

    /// Gives back the addresses and the default routes, or every route; what is left is still to be given back.
    pub(super) fn give_addresses_back(&mut self, all_routes: bool) -> io::Result<()> {
        let Some(mut blanked) = self.blanked.take() else { return Ok(()) };
        let given = self.give_back(&mut blanked, all_routes);
        if !blanked.addresses.is_empty() || !blanked.routes.is_empty() {
            self.blanked = Some(blanked);
        }
        given
    }

    fn give_back(&self, blanked: &mut Blanked, all_routes: bool) -> io::Result<()> {
        let holder = self.holder()?;
        for address in &blanked.addresses {
            self.rtnl.add_addr(holder, *address)?;
        }
        blanked.addresses.clear();
        let (mut now, later): (Vec<Route>, Vec<Route>) =
            std::mem::take(&mut blanked.routes).into_iter().partition(|route| all_routes || route.dst.prefix_len() == 0);
        blanked.routes = later;
        // A gateway may be reached by a route that has none.
        now.sort_by_key(|route| route.via.is_some());
        now.into_iter().try_for_each(|route| Ok(self.rtnl.replace_route(&Route { oif: Some(holder), ..route })?))
    }
}

impl Drop for LinuxKernel {
    fn drop(&mut self) {
        if let Err(error) = self.give_addresses_back(true) {
            tracing::error!(error = %error.as_report(), uplink = self.uplink, "the adapter stays without its addresses");
        }
    }
}
