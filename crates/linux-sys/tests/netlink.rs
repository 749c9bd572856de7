//! Links, addresses, routes and the rest against a real kernel, in namespaces of the test's own.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;

use ipnet::IpNet;
use linux_sys::netlink::{BridgePort, Route, RouteKind, Rtnl, Rule, Vxlan};
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::{mount, sysctl};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn index(rtnl: &Rtnl, name: &str) -> u32 {
    rtnl.link(name).unwrap().unwrap_or_else(|| panic!("link {name}")).index
}

#[test]
fn two_namespaces_talk_over_a_veth_pair() {
    in_lab("two_namespaces_talk_over_a_veth_pair", || {
        let (a, b) = (NetNs::new_anonymous().unwrap(), NetNs::new_anonymous().unwrap());
        let (ra, rb) = (Rtnl::open_in(&a).unwrap(), Rtnl::open_in(&b).unwrap());
        ra.add_veth("eth0", "eth1", Some(&b)).unwrap();
        assert!(ra.add_veth("eth0", "other", None).unwrap_err().is_exists());
        for (rtnl, name, address) in [(&ra, "eth0", "10.1.0.1/24"), (&rb, "eth1", "10.1.0.2/24")] {
            let i = index(rtnl, name);
            rtnl.add_addr(i, net(address)).unwrap();
            rtnl.add_addr(i, net(address)).expect("an address that is there is fine");
            rtnl.set_mtu(i, 1400).unwrap();
            rtnl.set_up(i).unwrap();
            assert_eq!(rtnl.addrs(i).unwrap().iter().filter(|a| a.addr().is_ipv4()).copied().collect::<Vec<_>>(), [net(address)]);
        }
        let link = ra.link("eth0").unwrap().unwrap();
        assert_eq!((link.kind.as_str(), link.mtu, link.up), ("veth", 1400, true));
        let listener = b.run(|| TcpListener::bind("10.1.0.2:80")).unwrap().unwrap();
        let mut client = a.run(|| TcpStream::connect("10.1.0.2:80")).unwrap().unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        let mut text = String::new();
        listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(ra.link("eth0").unwrap().unwrap().stats.tx_packets > 2);
        ra.del_link(link.index).unwrap();
        assert_eq!(rb.link("eth1").unwrap(), None, "the peer goes too");
        assert!(ra.del_link(link.index).unwrap_err().is_not_found());
    });
}

#[test]
fn links_are_renamed_moved_and_bridged() {
    in_lab("links_are_renamed_moved_and_bridged", || {
        let rtnl = Rtnl::open().unwrap();
        let other = NetNs::new_anonymous().unwrap();
        rtnl.add_bridge("br0").unwrap();
        rtnl.add_veth("v0", "v1", None).unwrap();
        let (bridge, v0, v1) = (index(&rtnl, "br0"), index(&rtnl, "v0"), index(&rtnl, "v1"));
        rtnl.set_mac(v0, [2, 0, 0, 0, 0, 7]).unwrap();
        rtnl.set_master(v0, Some(bridge)).unwrap();
        let port = BridgePort { isolated: Some(true), learning: Some(false), hairpin: Some(true), flood: Some(false), ..Default::default() };
        rtnl.set_bridge_port(v0, port).unwrap();
        let link = rtnl.link("v0").unwrap().unwrap();
        assert_eq!((link.master, link.mac), (Some(bridge), [2, 0, 0, 0, 0, 7]));
        for (switch, value) in [("isolated", "1"), ("learning", "0"), ("hairpin_mode", "1"), ("unicast_flood", "0")] {
            mount_sysfs();
            assert_eq!(std::fs::read_to_string(format!("/run/sys/class/net/v0/brport/{switch}")).unwrap().trim(), value, "{switch}");
        }
        rtnl.add_fdb(v0, [2, 0, 0, 0, 0, 9], None, None).unwrap();
        assert!(rtnl.fdb(v0).unwrap().iter().any(|e| e.mac == [2, 0, 0, 0, 0, 9] && e.permanent));
        rtnl.del_fdb(v0, [2, 0, 0, 0, 0, 9], None, None).unwrap();
        rtnl.set_master(v0, None).unwrap();
        assert_eq!(rtnl.link("v0").unwrap().unwrap().master, None);
        rtnl.set_name(v1, "renamed").unwrap();
        rtnl.move_to(v1, &other).unwrap();
        assert_eq!(rtnl.link("renamed").unwrap(), None);
        assert!(Rtnl::open_in(&other).unwrap().link("renamed").unwrap().is_some());
    });
}

fn mount_sysfs() {
    let at = Path::new("/run/sys");
    if !at.exists() {
        std::fs::create_dir(at).unwrap();
        nix::mount::mount(Some("sysfs"), at, Some("sysfs"), nix::mount::MsFlags::MS_RDONLY, None::<&str>).unwrap();
    }
}

#[test]
fn routes_rules_and_neighbours() {
    in_lab("routes_rules_and_neighbours", || {
        let rtnl = Rtnl::open().unwrap();
        rtnl.add_veth("eth0", "peer", None).unwrap();
        let eth0 = index(&rtnl, "eth0");
        for link in ["eth0", "peer"] {
            rtnl.set_up(index(&rtnl, link)).unwrap();
        }
        rtnl.add_addr(eth0, net("10.1.0.1/24")).unwrap();
        let mine = Route { protocol: 0x4d, ..Route::new(net("192.168.1.0/24")).via(ip("10.1.0.2")).oif(eth0) };
        rtnl.add_route(&mine).unwrap();
        assert!(rtnl.add_route(&mine).unwrap_err().is_exists());
        let moved = Route { via: Some(ip("10.1.0.3")), ..mine.clone() };
        rtnl.replace_route(&moved).unwrap();
        let onlink = Route { onlink: true, metric: 50, table: 1077, ..Route::new(net("0.0.0.0/0")).via(ip("169.254.1.1")).oif(eth0) };
        rtnl.add_route(&onlink).unwrap();
        let hole = Route { kind: RouteKind::Blackhole, ..Route::new(net("192.168.0.0/16")) };
        rtnl.add_route(&hole).unwrap();
        let routes = rtnl.routes().unwrap();
        assert_eq!(routes.iter().filter(|r| r.protocol == 0x4d).collect::<Vec<_>>(), [&moved]);
        assert!(routes.contains(&onlink) && routes.contains(&hole), "{routes:#?}");
        rtnl.del_route(&moved).unwrap();
        assert!(rtnl.del_route(&moved).unwrap_err().is_not_found());
        rtnl.del_route_to(onlink.dst, onlink.table).unwrap();
        rtnl.del_route_to(hole.dst, hole.table).unwrap();
        let routes = rtnl.routes().unwrap();
        assert!(!routes.contains(&onlink) && !routes.contains(&hole), "{routes:#?}");

        let rule = Rule { priority: 100, fwmark: Some((0x10, 0xf0)), from: Some(net("10.2.0.0/16")), table: 1077, ..Rule::default() };
        rtnl.add_rule(&rule).unwrap();
        rtnl.add_rule(&rule).expect("a rule that is there is fine");
        assert_eq!(rtnl.rules().unwrap().iter().filter(|r| **r == rule).count(), 1);
        rtnl.del_rule(&rule).unwrap();
        assert!(!rtnl.rules().unwrap().contains(&rule));
        for ipv6 in [false, true] {
            let gate = Rule { priority: 99, fwmark: Some((0x10, 0xf0)), inverted: true, goto: Some(32766), ipv6, ..Rule::default() };
            rtnl.add_rule(&gate).unwrap();
            assert!(rtnl.rules_of(ipv6).unwrap().contains(&gate), "{:?}", rtnl.rules_of(ipv6));
            rtnl.del_rule(&gate).unwrap();
        }
        let way = |to| rtnl.route_to(ip(to)).unwrap().map(|route| (route.kind, route.via, route.oif));
        assert_eq!(way("10.1.0.9"), Some((RouteKind::Unicast, None, Some(eth0))));
        assert!(matches!(way("127.0.0.1"), Some((RouteKind::Local, None, _))));
        assert_eq!((way("203.0.113.1"), way("2001:db8::1")), (None, None));

        rtnl.add_neigh(eth0, ip("10.1.0.9"), [2, 0, 0, 0, 0, 9]).unwrap();
        let found = rtnl.neighbours(eth0).unwrap();
        assert!(found.iter().any(|n| n.ip == ip("10.1.0.9") && n.mac == Some([2, 0, 0, 0, 0, 9]) && n.permanent), "{found:?}");
        rtnl.del_neigh(eth0, ip("10.1.0.9")).unwrap();
    });
}

#[test]
fn a_tunnel_has_forwarding_entries() {
    in_lab("a_tunnel_has_forwarding_entries", || {
        let rtnl = Rtnl::open().unwrap();
        let vxlan = Vxlan { vni: 4096, local: Some(ip("127.0.0.1")), device: None, port: 4789, learning: false };
        rtnl.add_vxlan("vx0", &vxlan).unwrap();
        let vx = index(&rtnl, "vx0");
        rtnl.set_up(vx).unwrap();
        rtnl.add_fdb(vx, [2, 0, 0, 0, 0, 1], Some(ip("10.9.0.1")), None).unwrap();
        rtnl.add_fdb(vx, [0; 6], Some(ip("10.9.0.1")), None).unwrap();
        rtnl.add_fdb(vx, [0; 6], Some(ip("10.9.0.2")), None).unwrap();
        let fdb = rtnl.fdb(vx).unwrap();
        assert_eq!(fdb.iter().filter(|e| e.dst.is_some()).count(), 3, "{fdb:?}");
        rtnl.del_fdb(vx, [2, 0, 0, 0, 0, 1], Some(ip("10.9.0.1")), None).unwrap();
    });
}

#[test]
fn namespaces_are_pinned_and_unpinned() {
    in_lab("namespaces_are_pinned_and_unpinned", || {
        let path = Path::new("/run/ns1");
        let ns = NetNs::create_at(path).unwrap();
        let again = NetNs::create_at(path).unwrap();
        assert!(ns.run(|| Rtnl::open().unwrap().link("lo").unwrap().unwrap().up).unwrap(), "the loopback is up");
        Rtnl::open_in(&ns).unwrap().add_bridge("mark").unwrap();
        assert!(Rtnl::open_in(&again).unwrap().link("mark").unwrap().is_some(), "the same namespace");
        sysctl::set_in(&ns, "net.ipv4.ip_forward", "1").unwrap();
        assert_eq!(ns.run(|| sysctl::get("net.ipv4.ip_forward")).unwrap().unwrap(), "1");
        assert_eq!(sysctl::get("net.ipv4.ip_forward").unwrap(), "0", "of that namespace alone");
        assert!(sysctl::set("net.no.such", "1").unwrap_err().to_string().contains("net.no.such=1"));
        NetNs::remove_at(path).unwrap();
        assert!(!path.exists() && mount::mounts_below(path).unwrap().is_empty());
        NetNs::remove_at(path).expect("none is fine");
    });
}

#[test]
#[should_panic(expected = "failed in its namespaces")]
fn a_failure_inside_is_a_failure() {
    in_lab("a_failure_inside_is_a_failure", || std::process::exit(3));
}

#[test]
#[should_panic(expected = "names no test")]
fn a_wrong_name_is_a_failure() {
    in_lab("no::such::test", || ());
}
