//! Packets between pods, nodes and hosts outside, for every mode of the pod network, Linux and Windows nodes mixed.
#![cfg(target_os = "linux")]

mod world;

use fabric::Mode;
use linux_sys::ns::in_lab;
use world::checks::{Expected, follows_nodes, joins_all};
use world::{Families, MTU, World};

#[test]
fn host_gateway_joins_all() {
    in_lab("host_gateway_joins_all", || {
        let world = World::new(Mode::HostGateway);
        joins_all(&world, &Expected { largest: MTU, windows_node_reaches_others: true, windows_pods_reach_outside: true });
    });
}

#[test]
fn l3_joins_all() {
    in_lab("l3_joins_all", || {
        let world = World::new(Mode::L3);
        joins_all(&world, &Expected { largest: MTU, windows_node_reaches_others: true, windows_pods_reach_outside: true });
    });
}

#[test]
fn vxlan_joins_all() {
    in_lab("vxlan_joins_all", || {
        let world = World::new(Mode::Vxlan);
        joins_all(&world, &Expected { largest: MTU - 50, windows_node_reaches_others: false, windows_pods_reach_outside: true });
    });
}

#[test]
fn transparent_joins_all() {
    in_lab("transparent_joins_all", || {
        let world = World::new(Mode::Transparent);
        joins_all(&world, &Expected { largest: MTU, windows_node_reaches_others: true, windows_pods_reach_outside: false });
    });
}

#[test]
fn bgp_joins_all() {
    in_lab("bgp_joins_all", || {
        let world = World::new(Mode::Bgp);
        joins_all(&world, &Expected { largest: MTU, windows_node_reaches_others: true, windows_pods_reach_outside: true });
    });
}

/// Both families, in every mode that carries IPv6.
const BOTH: Expected = Expected { largest: MTU, windows_node_reaches_others: true, windows_pods_reach_outside: true };

#[test]
fn host_gateway_joins_all_in_both_families() {
    in_lab("host_gateway_joins_all_in_both_families", || joins_all(&World::of(Mode::HostGateway, Families::Both), &BOTH));
}

#[test]
fn l3_joins_all_in_both_families() {
    in_lab("l3_joins_all_in_both_families", || {
        let world = World::of(Mode::L3, Families::Both);
        joins_all(&world, &BOTH);
        follows_nodes(world, MTU);
    });
}

#[test]
fn bgp_joins_all_in_both_families() {
    in_lab("bgp_joins_all_in_both_families", || {
        let world = World::of(Mode::Bgp, Families::Both);
        joins_all(&world, &BOTH);
        follows_nodes(world, MTU);
    });
}

#[test]
fn ipv6_may_be_the_primary_family() {
    in_lab("ipv6_may_be_the_primary_family", || {
        for mode in [Mode::HostGateway, Mode::L3, Mode::Bgp] {
            joins_all(&World::of(mode, Families::Ipv6First), &BOTH);
        }
    });
}

#[test]
fn host_gateway_follows_nodes() {
    in_lab("host_gateway_follows_nodes", || follows_nodes(World::new(Mode::HostGateway), MTU));
}

#[test]
fn l3_follows_nodes() {
    in_lab("l3_follows_nodes", || follows_nodes(World::new(Mode::L3), MTU));
}

#[test]
fn vxlan_follows_nodes() {
    in_lab("vxlan_follows_nodes", || follows_nodes(World::new(Mode::Vxlan), MTU - 50));
}

#[test]
fn transparent_follows_nodes() {
    in_lab("transparent_follows_nodes", || follows_nodes(World::new(Mode::Transparent), MTU));
}

#[test]
fn bgp_follows_nodes() {
    in_lab("bgp_follows_nodes", || follows_nodes(World::new(Mode::Bgp), MTU));
}
