//! Routes through rtnetlink, in the network namespace of the thread that opened them. Our mark is
//! the route's protocol number.

use std::io;

use linux_sys::netlink::{Route, RouteKind, Rtnl};

use super::{HostRoute, OUR_PROTOCOL, Routes, RoutesError, failed, refuse_foreign};

/// The protocol number of routes that an administrator gave (RTPROT_STATIC).
const STATIC: u8 = 4;
/// Number of the main table.
const MAIN: u32 = 254;

/// The main routing table of one network namespace.
pub struct LinuxRoutes {
    netlink: Rtnl,
}

impl LinuxRoutes {
    /// The table of the namespace this thread is in.
    pub fn open() -> Result<Self, RoutesError> {
        let netlink = Rtnl::open().map_err(io::Error::from).map_err(failed("open the routing table", None))?;
        Ok(LinuxRoutes { netlink })
    }

    /// The table of another namespace.
    pub fn open_in(ns: &linux_sys::ns::NetNs) -> Result<Self, RoutesError> {
        let netlink = Rtnl::open_in(ns).map_err(io::Error::from).map_err(failed("open the routing table", None))?;
        Ok(LinuxRoutes { netlink })
    }
}

impl std::fmt::Debug for LinuxRoutes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinuxRoutes")
    }
}

fn to_netlink(route: &HostRoute) -> Route {
    let mut out = Route::new(route.dst);
    out.via = route.via;
    out.oif = (route.oif != 0).then_some(route.oif);
    out.onlink = route.on_link;
    out.metric = route.metric;
    out.protocol = OUR_PROTOCOL;
    out
}

impl Routes for LinuxRoutes {
    fn list(&self) -> Result<Vec<HostRoute>, RoutesError> {
        let all = self.netlink.routes().map_err(io::Error::from).map_err(failed("list routes", None))?;
        let main = all.into_iter().filter(|r| r.table == MAIN && r.kind == RouteKind::Unicast);
        let row = |r: Route| HostRoute {
            dst: r.dst,
            via: r.via,
            oif: r.oif.unwrap_or(0),
            on_link: r.onlink,
            metric: r.metric,
            ours: r.protocol == OUR_PROTOCOL,
        };
        Ok(main.map(row).collect())
    }

    fn add(&self, route: &HostRoute) -> Result<(), RoutesError> {
        self.netlink.replace_route(&to_netlink(route)).map_err(io::Error::from).map_err(failed("add", Some(route)))
    }

    fn delete(&self, route: &HostRoute) -> Result<(), RoutesError> {
        refuse_foreign(route)?;
        match self.netlink.del_route(&to_netlink(route)) {
            Err(e) if e.is_not_found() => Ok(()),
            other => other.map_err(io::Error::from).map_err(failed("delete", Some(route))),
        }
    }

    fn restore(&self, route: &HostRoute) -> Result<(), RoutesError> {
        let restored = Route { protocol: STATIC, ..to_netlink(route) };
        match self.netlink.add_route(&restored) {
            Err(e) if e.is_exists() => Ok(()),
            other => other.map_err(io::Error::from).map_err(failed("restore", Some(route))),
        }
    }

    fn mtu(&self, interface: u32) -> Result<Option<u32>, RoutesError> {
        let links = self.netlink.links().map_err(io::Error::from).map_err(failed("list interfaces", None))?;
        Ok(links.into_iter().find(|link| link.index == interface).map(|link| link.mtu))
    }

    fn interface(&self, name: &str) -> Result<Option<u32>, RoutesError> {
        let link = self.netlink.link(name).map_err(io::Error::from).map_err(failed("find an interface", None))?;
        Ok(link.map(|l| l.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_routes_come_and_go_and_foreign_ones_stay() {
        linux_sys::ns::in_lab("routes::imp::tests::own_routes_come_and_go_and_foreign_ones_stay", || {
            let routes = LinuxRoutes::open().unwrap();
            let lo = routes.interface("lo").unwrap().unwrap();
            assert_eq!(routes.interface("nope").unwrap(), None);
            let route = |dst: &str, ours| HostRoute { dst: dst.parse().unwrap(), via: None, oif: lo, on_link: false, metric: 0, ours };
            let foreign = Route::new("10.9.0.0/16".parse().unwrap()).oif(lo);
            routes.netlink.add_route(&foreign).unwrap();
            let own = route("10.1.0.0/24", true);
            routes.add(&own).unwrap();
            routes.add(&own).unwrap();
            let list = routes.list().unwrap();
            assert!(list.contains(&own) && list.contains(&route("10.9.0.0/16", false)), "{list:?}");
            let given = route("10.8.0.0/24", false);
            routes.restore(&given).unwrap();
            routes.restore(&given).unwrap();
            assert!(routes.list().unwrap().contains(&given), "without our mark");
            routes.netlink.del_route(&Route::new(given.dst).oif(lo)).unwrap();
            assert_eq!((routes.mtu(lo).unwrap(), routes.mtu(77).unwrap()), (Some(65_536), None));
            routes.delete(&own).unwrap();
            routes.delete(&own).unwrap();
            assert!(routes.delete(&route("10.9.0.0/16", false)).is_err());
            // The kernel has a route of its own, to ::1, where IPv6 was switched off once.
            let left: Vec<_> = routes.list().unwrap().into_iter().filter(|route| route.dst.addr().is_ipv4()).collect();
            assert_eq!(left, [route("10.9.0.0/16", false)]);
        });
    }
}
