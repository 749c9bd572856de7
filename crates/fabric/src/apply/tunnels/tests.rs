use std::time::Duration;

use host::{LinuxRoutes, Routes as _};
use k8s_openapi::api::core::v1::Node;
use linux_sys::netlink::Route;
use linux_sys::ns::{NetNs, in_lab};
use serde_json::{Value, json};
use test_lab::net::{self, Lan};

use super::*;
use crate::apply::routes;
use crate::examples;
use crate::flannel::Mac;
use crate::mode::{self, Desired, Hop, HostState, Inputs, Mode, Role, Settings, Uplink};
use crate::rows::NodeRow;

const PATIENCE: Duration = Duration::from_secs(5);

/// Node .12 as flannel's vxlan backend announces it, and this one, .11, with pods 10.244.1.0/24.
fn nodes() -> BTreeMap<String, NodeRow> {
    let node = |name: &str, cidr: &str, address: &str, annotations: Value| {
        let object = json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let node: Node = serde_json::from_value(object).unwrap();
        (name.to_owned(), NodeRow::of(&node).unwrap())
    };
    let flannel = json!({
        "flannel.alpha.coreos.com/backend-data": "{\"VNI\":4096,\"VtepMAC\":\"02:00:00:00:00:0b\"}",
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        "flannel.alpha.coreos.com/public-ip": "10.240.0.12",
    });
    BTreeMap::from([node("a", "10.244.1.0/24", "10.240.0.11", json!({})), node("b", "10.244.2.0/24", "10.240.0.12", flannel)])
}

/// What the mode wants of this node.
fn ours(device: u32) -> Desired {
    let pods = examples::pods(examples::bridge());
    let settings = Settings {
        mode: Mode::Vxlan,
        vxlan: mode::Vxlan::default(),
        bgp: mode::bgp::Bgp::default(),
        node_name: "a".into(),
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        role: Role::Node(Box::new(pods)),
    };
    let state = HostState { uplink: Some(Uplink { index: device, mtu: 1500 }), ..HostState::default() };
    mode::desired(&Inputs { settings: &settings, nodes: &nodes(), routes: &[], state: &state })
}

const PEER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0b];

/// A host with a pod's address on its loopback link.
fn node(lan: &Lan, number: u8) -> NetNs {
    let ns = lan.host(&format!("10.240.0.1{number}"));
    net::set_up(&Rtnl::open_in(&ns).unwrap(), "lo", &[&format!("10.244.{number}.5/32")]);
    ns
}

/// What flannel's vxlan backend makes on node .12 of what node .11 announces, from the golden values of its kernel state.
fn flannel_peer(ns: &NetNs, announced: &BTreeMap<String, String>) {
    let value = |name: &str| announced[&format!("flannel.alpha.coreos.com/{name}")].as_str();
    assert_eq!((value("backend-type"), value("kube-subnet-manager")), ("vxlan", "true"));
    // As flannel finds the MAC of a node: the text between the fifth quote and the sixth.
    let mac: Mac = value("backend-data").split('"').nth(5).unwrap().parse().unwrap();
    let rtnl = Rtnl::open_in(ns).unwrap();
    let device = rtnl.link("eth0").unwrap().map(|link| link.index);
    let vxlan = Vxlan { vni: 4096, local: "10.240.0.12".parse().ok(), device, port: 4789, learning: false };
    rtnl.add_vxlan("flannel.4096", &vxlan).unwrap();
    let index = rtnl.link("flannel.4096").unwrap().unwrap().index;
    rtnl.set_mac(index, PEER_MAC).unwrap();
    rtnl.set_mtu(index, 1450).unwrap();
    net::set_up(&rtnl, "flannel.4096", &["10.244.2.0/32"]);
    rtnl.add_neigh(index, "10.244.1.0".parse().unwrap(), mac.0).unwrap();
    rtnl.add_fdb(index, mac.0, value("public-ip").parse().ok(), None).unwrap();
    let route = Route { onlink: true, ..Route::new("10.244.1.0/24".parse().unwrap()).via("10.244.1.0".parse().unwrap()).oif(index) };
    rtnl.add_route(&route).unwrap();
}

/// One pass of the loop; returns the tunnel's number and how many entries were written.
fn pass(tunnel: &Tunnel, vteps: &BTreeMap<IpNet, Vtep>, hops: &BTreeMap<IpNet, Hop>) -> (u32, usize) {
    let index = ensure(tunnel).unwrap();
    let added = add(&tunnel.name, index, vteps).unwrap();
    let table = LinuxRoutes::open().unwrap();
    let observed = table.list().unwrap();
    let steps = routes::plan(hops, &observed, Some(index)).steps.len();
    let (problems, done) = routes::keep(&table, hops, &observed, Some(index));
    assert!(problems.is_empty() && done, "{problems:?}");
    (index, added + steps + remove_stale(&tunnel.name, index, vteps).unwrap())
}

fn sees(from: &NetNs, to: &str, source: &str) -> bool {
    net::greeting(from, to, PATIENCE).is_ok_and(|seen| seen == source)
}

#[test]
fn flannel_peer_and_this_node_exchange_pod_traffic_and_drift_is_repaired() {
    in_lab("apply::tunnels::tests::flannel_peer_and_this_node_exchange_pod_traffic_and_drift_is_repaired", || {
        let lan = Lan::new();
        let (one, two) = (node(&lan, 1), node(&lan, 2));
        for (ns, at) in [(&one, "10.244.1.5:80"), (&two, "10.244.2.5:80")] {
            net::greet(ns, at, |client| client.to_string());
        }
        let device = Rtnl::open_in(&one).unwrap().link("eth0").unwrap().unwrap().index;
        let Desired { tunnel: Some(tunnel), vteps, routes: hops, annotations, .. } = ours(device) else { panic!("no tunnel") };
        flannel_peer(&two, &annotations);
        one.run(|| {
            let table = LinuxRoutes::open().unwrap();
            let found = routes::uplink(&table, &table.list().unwrap(), tunnel.local).unwrap();
            assert_eq!(found, Some(Uplink { index: device, mtu: 1500 }));
            let (index, written) = pass(&tunnel, &vteps, &hops);
            assert_eq!(written, 3, "a neighbour, a forwarding entry and a route");
            assert_eq!(pass(&tunnel, &vteps, &hops), (index, 0), "a second pass writes nothing, and keeps the device");
        })
        .unwrap();
        // The tunnel's own address is the source: hosts have no pod's.
        assert!(sees(&one, "10.244.2.5:80", "10.244.1.0"), "to the flannel peer");
        assert!(sees(&two, "10.244.1.5:80", "10.244.2.0"), "from the flannel peer");
        one.run(|| {
            let rtnl = Rtnl::open().unwrap();
            let index = rtnl.link(&tunnel.name).unwrap().unwrap().index;
            rtnl.del_neigh(index, "10.244.2.0".parse().unwrap()).unwrap();
            rtnl.add_fdb(index, PEER_MAC, "10.240.0.99".parse().ok(), None).unwrap();
            rtnl.add_fdb(index, [0x02, 0, 0, 0, 0, 0x77], "10.240.0.77".parse().ok(), None).unwrap();
            pass(&tunnel, &vteps, &hops);
            let entries: Vec<_> = rtnl.fdb(index).unwrap().into_iter().map(|entry| (entry.mac, entry.dst)).collect();
            assert_eq!(entries, [(PEER_MAC, "10.240.0.12".parse().ok())]);
        })
        .unwrap();
        assert!(sees(&one, "10.244.2.5:80", "10.244.1.0"), "entries come back");
        one.run(|| {
            let rtnl = Rtnl::open().unwrap();
            rtnl.del_link(rtnl.link(&tunnel.name).unwrap().unwrap().index).unwrap();
            pass(&tunnel, &vteps, &hops);
        })
        .unwrap();
        assert!(sees(&two, "10.244.1.5:80", "10.244.2.0"), "the device comes back");
        one.run(|| {
            let other = Tunnel { port: 8472, ..tunnel.clone() };
            pass(&other, &vteps, &hops);
            assert_eq!(Rtnl::open().unwrap().vxlan(&tunnel.name).unwrap().unwrap().port, 8472, "other parameters need another device");
            pass(&tunnel, &BTreeMap::new(), &BTreeMap::new());
            let rtnl = Rtnl::open().unwrap();
            let index = rtnl.link(&tunnel.name).unwrap().unwrap().index;
            assert!(rtnl.fdb(index).unwrap().is_empty() && rtnl.neighbours(index).unwrap().iter().all(|neighbour| !neighbour.permanent));
            assert!(LinuxRoutes::open().unwrap().list().unwrap().iter().all(|route| !route.ours), "a peer that is gone leaves nothing");
        })
        .unwrap();
    });
}
