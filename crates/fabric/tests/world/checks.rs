//! What holds between pods, nodes and hosts outside.

use std::net::IpAddr;

use fabric::Mode;
use test_lab::until;

use super::{OUTSIDE, World};

/// What differs between the modes, as docs/pod-network.md says.
pub struct Expected {
    pub largest: u32,
    /// Windows nodes reach pods of other nodes.
    pub windows_node_reaches_others: bool,
    /// Hosts outside see Windows pods with their node's address; else they do not answer them.
    pub windows_pods_reach_outside: bool,
}

pub fn joins_all(world: &World, expected: &Expected) {
    world.every_pair_exchanges_packets(expected.largest);
    for (name, pod) in &world.pods {
        for (node, host) in &world.hosts {
            let reaches = pod.node == *node || !node.starts_with("win") || expected.windows_node_reaches_others;
            for (ip, address) in pod.ips.iter().zip(&host.addresses) {
                if reaches {
                    until(format!("node {node} reaches {name} at {ip}"), || world.ask(&host.ns, *ip).map_err(|error| error.to_string()));
                } else {
                    assert!(world.is_silent(&host.ns, *ip), "node {node} does not reach {name}");
                }
                until(format!("{name} reaches node {node} at {address}"), || world.ask(&pod.ns, *address).map_err(|error| error.to_string()));
            }
        }
        for (outside, address) in world.families.of::<IpAddr>(&OUTSIDE).into_iter().zip(&world.hosts[pod.node].addresses) {
            if pod.node.starts_with("win") && !expected.windows_pods_reach_outside {
                assert!(world.is_silent(&pod.ns, outside), "{name} reaches no other network");
            } else {
                assert_eq!(world.ask(&pod.ns, outside).unwrap(), address.to_string(), "{name} leaves with its node's address");
            }
        }
    }
    for name in world.hosts.keys() {
        let up = if world.mode == Mode::L3 { "False RouteCreated" } else { "False PodNetworkUp" };
        until(format!("the condition of {name}"), || {
            let condition = world.condition(name);
            if condition.as_deref() == Some(up) { Ok(()) } else { Err(format!("{condition:?}")) }
        });
    }
}

/// Nodes come, go, get other pod CIDRs, reboot and are cut off, and each time the pods of all others stay joined.
pub fn follows_nodes(mut world: World, largest: u32) {
    world.every_pair_exchanges_packets(largest);
    let same = |world: &World| world.every_pair_exchanges_packets(largest);
    let gateway = if world.mode == Mode::L3 { "gw" } else { "lin01" };
    let routes = |world: &World, pods: u8| {
        let all = world.routes(gateway);
        world.cidrs(pods).iter().filter(|cidr| all.contains(&cidr.to_string())).count()
    };
    let each = world.cidrs(1).len();

    // A fabric that is not there changes nothing.
    world.stop_fabric("lin01");
    world.stop_fabric("win01");
    same(&world);
    world.start_fabric("lin01");
    world.start_fabric("win01");

    // Removed, and registered anew.
    let lc = world.pods.remove("lc").unwrap();
    world.unregister("lin02");
    until("the routes to go", || routes(&world, 2) == 0);
    for pod in ["la", "wa"] {
        for ip in &lc.ips {
            until(format!("{pod} to lose a pod of the node that is gone"), || world.is_silent(&world.pods[pod].ns, *ip));
        }
    }
    same(&world);
    world.register("lin02", 2);
    world.pods.insert("lc".into(), lc);
    same(&world);

    // Another pod CIDR: the network is made anew, and that cuts nobody off from the node.
    world.pods.remove("wc").unwrap();
    world.hosts["win02"].simulator.as_ref().unwrap().add_fault("net-switch-blip=9s".parse().unwrap()).unwrap();
    world.unregister("win02");
    until("the routes to go", || routes(&world, 4) == 0);
    world.register("win02", 9);
    world.add_pod("win02", "wd");
    let address = world.hosts["win02"].addresses[0];
    assert!(!world.is_silent(&world.hosts["lin01"].ns, address), "the uplink's switch is there all the time");
    same(&world);

    // Another address of a node: routes, tunnels and sessions follow, and its pods keep theirs.
    world.renumber("lin02", 42);
    same(&world);

    // Cut off: its pods are not reached, its routes stay, and it comes back by itself.
    world.partition("lin02", true);
    let ips = world.pods["lc"].ips.clone();
    until("the silence", || ips.iter().all(|ip| world.is_silent(&world.pods["la"].ns, *ip)));
    assert_eq!(routes(&world, 2), each);
    assert!(world.pods["wd"].ips.iter().all(|ip| world.ask(&world.pods["la"].ns, *ip).is_ok()));
    world.partition("lin02", false);
    same(&world);

    // A reboot of a Windows node: endpoints, namespaces, the pods' network and our routes are gone.
    world.stop_fabric("win01");
    for pod in ["wa", "wb"] {
        world.pods.remove(pod).unwrap();
    }
    world.reboot("win01");
    world.start_fabric("win01");
    world.add_pod("win01", "wx");
    same(&world);

    // A new node.
    world.add_node("lin03", 5);
    world.add_pod("lin03", "ld");
    same(&world);
}
