//! Networks of each type on two nodes, N1 and N2, with the ways between their pods; pods, remote endpoints and load balancers on them.
#![allow(dead_code, reason = "each suite uses its part")]

use std::net::IpAddr;

use hcn::document::*;
use hcn::{EndpointPolicy, NetworkPolicy};
use hns_sim::switches::Switches;

use super::harness::{Host, Lab, Node, Pod, id, net, serve_tcp, serve_udp};

pub const N1: &str = "10.240.0.11";
pub const N2: &str = "10.240.0.12";
pub const OUTSIDE: &str = "10.240.0.50";
pub const VIP: &str = "10.96.0.1";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A host outside of the cluster, with servers.
pub fn outside(lab: &Lab) -> Host {
    let outside = lab.host(OUTSIDE, &[]);
    serve_tcp(&outside.ns, 80, "outside");
    serve_udp(&outside.ns, 53, "outside");
    outside
}

/// Node `number` with an L2Bridge, and the fabric's routes to the other's pods.
pub fn bridged(lab: &Lab, number: u8, switches: Switches) -> Node {
    bridged_as(lab, number, NetworkType::L2Bridge, switches)
}

/// The same with a network of another type that leaves pods' addresses to the fabric.
pub fn bridged_as(lab: &Lab, number: u8, network_type: NetworkType, switches: Switches) -> Node {
    let other = 3 - number;
    let route = (format!("192.168.{other}.0/24"), format!("10.240.0.1{other}"));
    let node = lab.bare(&format!("10.240.0.1{number}"), &[(&route.0, &route.1)], switches);
    let subnet = Subnet::new(net(&format!("192.168.{number}.0/24")), ip(&format!("192.168.{number}.1")));
    node.client.create(id(1), &HostComputeNetwork::new("mullion", network_type, subnet)).unwrap();
    node
}

/// The LAN's router forwards to the pods of N1 and N2, as a fabric does.
pub fn make_fabric(lab: &Lab) {
    lab.router().run(|| linux_sys::sysctl::set("net.ipv4.ip_forward", "1")).unwrap().unwrap();
    let rtnl = linux_sys::netlink::Rtnl::open_in(lab.router()).unwrap();
    let lan = rtnl.link("lan0").unwrap().unwrap().index;
    for (prefix, node) in [("192.168.1.0/24", N1), ("192.168.2.0/24", N2)] {
        rtnl.add_route(&linux_sys::netlink::Route::new(net(prefix)).via(ip(node)).oif(lan)).unwrap();
    }
}

/// Node `number` with an overlay; `host_route` lets its pods and itself meet.
pub fn overlaid(lab: &Lab, number: u8, host_route: bool, switches: Switches) -> Node {
    let node = lab.bare(&format!("10.240.0.1{number}"), &[], switches);
    let mut subnet = Subnet::new(net(&format!("10.244.{number}.0/24")), ip(&format!("10.244.{number}.1")));
    subnet.policies.push(serde_json::from_str(r#"{"Type": "VSID", "Settings": {"IsolationId": 4096}}"#).unwrap());
    let mut network = HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet);
    network.policies.push(NetworkPolicy::dr_mac_address(format!("00-15-5D-00-0{number}-01")));
    if host_route {
        network.policies.push(serde_json::from_str(r#"{"Type": "HostRoute", "Settings": {}}"#).unwrap());
    }
    let other = 3 - number;
    network.policies.push(NetworkPolicy::remote_subnet_route(&RemoteSubnetRoute {
        destination_prefix: format!("10.244.{other}.0/24"),
        isolation_id: 4096,
        provider_address: format!("10.240.0.1{other}"),
        distributed_router_mac_address: format!("00-15-5D-00-0{other}-01"),
        ..RemoteSubnetRoute::default()
    }));
    node.client.create(id(1), &network).unwrap();
    node
}

/// A pod whose gateway is its subnet's `.1`; its endpoint is `number`, its address `PREFIX.number`.
pub fn pod(node: &Node, prefix: &str, number: u8, policies: Vec<EndpointPolicy>) -> Pod {
    let mut endpoint = HostComputeEndpoint::local(format!("pod{number}"), net(&format!("{prefix}.{number}/24")), Some(ip(&format!("{prefix}.1"))));
    endpoint.policies = policies;
    node.pod_of(number, endpoint)
}

/// The way by the host.
pub fn route(prefix: &str) -> EndpointPolicy {
    EndpointPolicy::sdn_route(net(prefix))
}

/// Outgoing translation but towards pods, Services and nodes.
pub fn outbound() -> EndpointPolicy {
    EndpointPolicy::outbound_nat(["192.168.0.0/16", "10.244.0.0/16", "10.96.0.0/12", "10.240.0.11/32", "10.240.0.12/32"].map(net))
}

pub fn remote(node: &Node, number: u8, address: &str, mac: &str, host: &str) {
    let mut endpoint = HostComputeEndpoint::remote(ip(address)).with_policy(EndpointPolicy::provider_address(ip(host)));
    endpoint.mac_address = mac.into();
    node.client.create_endpoint(&id(1), id(number), &endpoint).unwrap();
}
