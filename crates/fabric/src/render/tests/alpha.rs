//! The three nodes of the alpha document with its route lists, as printed, and packets between their pods.

use hcn::blocking::Client;
use hcn::{Guid, HnsVersion, HostComputeEndpoint, HostComputeNamespace};
use hns_sim::Simulator;
use hns_sim::linux::LinuxKernel;
use hns_sim::switches::Switches;
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;
use test_lab::net::{Lan, greet, greeting, route, set_up, settle};

use super::*;
use crate::hns;

/// The document's table, with addresses of the LAN.
fn table() -> BTreeMap<String, NodeRow> {
    let mut nodes = alpha();
    for (row, address) in nodes.values_mut().zip(["10.240.0.11", "10.240.0.12", "10.240.0.13"]) {
        row.addresses = vec![address.parse().unwrap()];
    }
    nodes
}

/// Carries out the list of a host, line by line.
fn run_list(host: &NetNs, list: &str) {
    let rtnl = Rtnl::open_in(host).unwrap();
    for line in list.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let made = match words.as_slice() {
            ["ip", "route", "add", dst, "via", hop] => Route::new(dst.parse().unwrap()).via(hop.parse().unwrap()),
            ["route", "add", network, "mask", mask, hop, "if", interface, "-p"] => {
                let dst = ipnet::Ipv4Net::with_netmask(network.parse().unwrap(), mask.parse().unwrap()).unwrap();
                // Windows takes any next hop on the interface that is named.
                Route { onlink: true, ..Route::new(dst.into()).via(hop.parse().unwrap()).oif(interface.parse().unwrap()) }
            }
            _ => panic!("{line:?} is no command of the document"),
        };
        rtnl.add_route(&made).unwrap();
    }
}

/// A Linux node as "setup according to the distribution's documentation": a bridge, which has the gateway's address, and a pod.
fn linux_pod(host: &NetNs) -> NetNs {
    for (name, value) in [("net.ipv4.ip_forward", "1"), ("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")] {
        sysctl::set_in(host, name, value).unwrap();
    }
    let pod = NetNs::new_anonymous().unwrap();
    let (outside, inside) = (Rtnl::open_in(host).unwrap(), Rtnl::open_in(&pod).unwrap());
    outside.add_bridge("cni0").unwrap();
    let bridge = set_up(&outside, "cni0", &["192.168.0.1/24"]);
    outside.add_veth("pod0", "eth0", Some(&pod)).unwrap();
    let port = set_up(&outside, "pod0", &[]);
    outside.set_master(port, Some(bridge)).unwrap();
    set_up(&inside, "eth0", &["192.168.0.5/24"]);
    route(&inside, "0.0.0.0/0", "192.168.0.1");
    pod
}

/// A Windows node: a second adapter for the switch, the transparent network with the host as the gateway, and a pod.
struct WindowsNode {
    _simulator: Simulator,
    pod: NetNs,
}

fn windows_node(host: &NetNs, dir: &std::path::Path, switch: &NetNs, number: u8) -> WindowsNode {
    let (outside, inside) = (Rtnl::open_in(switch).unwrap(), Rtnl::open_in(host).unwrap());
    let port = format!("second{number}");
    outside.add_veth(&port, "eth1", Some(host)).unwrap();
    set_up(&outside, &port, &[]);
    set_up(&inside, "eth1", &[]);
    std::fs::create_dir_all(dir).unwrap();
    let kernel = LinuxKernel::open_in(host.clone(), dir, "eth1").unwrap();
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
    let client = Client::new(simulator.session());
    let wanted = hns::Desired::transparent("uid", "transparent", "Ethernet", format!("192.168.{number}.0/24").parse().unwrap());
    client.create(wanted.network_id, &wanted.network).unwrap();
    client.create_endpoint(&wanted.network_id, wanted.endpoint_id, &wanted.endpoint.unwrap()).unwrap();
    client.attach_endpoint_to_host(&wanted.endpoint_id).unwrap();
    let gateway = format!("192.168.{number}.1").parse().ok();
    let pod = HostComputeEndpoint::local("pod", format!("192.168.{number}.5/24").parse().unwrap(), gateway);
    let pod = client.create_endpoint(&wanted.network_id, Guid::random(), &pod).unwrap();
    let namespace = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
    let namespace = client.create(Guid::random(), &namespace).unwrap().id;
    client.add_endpoint_to_namespace(&namespace, &pod.id).unwrap();
    WindowsNode { pod: NetNs::open(&dir.join(namespace.to_string())).unwrap(), _simulator: simulator }
}

#[test]
fn pods_of_the_documents_nodes_reach_each_other_by_its_route_lists() {
    in_lab("render::tests::alpha::pods_of_the_documents_nodes_reach_each_other_by_its_route_lists", || {
        let dir = tempfile::tempdir().unwrap();
        let (lan, switch, nodes) = (Lan::new(), NetNs::new_anonymous().unwrap(), table());
        let hosts: Vec<NetNs> = nodes.values().map(|row| lan.host(&row.addresses[0].to_string())).collect();
        let windows: Vec<WindowsNode> =
            [1_u8, 2].map(|number| windows_node(&hosts[usize::from(number)], &dir.path().join(number.to_string()), &switch, number)).into();
        let pods = [&linux_pod(&hosts[0]), &windows[0].pod, &windows[1].pod];
        for (name, host) in nodes.keys().zip(&hosts) {
            let interface = Rtnl::open_in(host).unwrap().link("eth0").unwrap().unwrap().index;
            run_list(host, &list_of(name, &nodes, &interface.to_string()));
            settle(host);
        }
        settle(&lan.router);
        for pod in pods {
            settle(pod);
            greet(pod, "0.0.0.0:80", |peer| peer.to_string());
        }
        for (from, pod) in pods.into_iter().enumerate() {
            for to in 0..3 {
                let seen = greeting(pod, &format!("192.168.{to}.5:80"), test_lab::LIMIT);
                assert_eq!(seen.unwrap(), format!("192.168.{from}.5"), "pod {from} to pod {to}");
            }
        }
    });
}
