//! The scenarios of all modes, on a Linux node: with nftables, and in user space.

use std::net::Ipv4Addr;
use std::sync::Arc;

use host::LinuxAddresses;
use parity::Mode;

use super::*;
use crate::modes::{Places, Pod, Serve};
use crate::node_ports::NodePorts;
use crate::userspace::{self, Userspace};

/// The lab with pods of another node in the world beyond `up0`, which knows the way to this node's pods.
fn node() -> (Lab, Places) {
    let lab = Lab::new(4);
    let there = Rtnl::open_in(&lab.world).unwrap();
    let uplink = there.link("world0").unwrap().unwrap().index;
    net::route(&there, "10.1.0.0/24", NODE);
    let near = ["near1", "near2", "near3"].into_iter().zip(1u8..).map(|(name, n)| {
        let addresses = vec![ip(&format!("10.1.0.{}", n + 2)), ip(&format!("fd00:1::{}", n + 2))];
        Pod { name, ns: lab.pods[usize::from(n)].clone(), addresses }
    });
    let far = ["far1", "far2"].into_iter().zip(3u8..).map(|(name, n)| {
        let address = Ipv4Addr::new(10, 1, 9, n);
        there.add_addr(uplink, format!("{address}/32").parse().unwrap()).unwrap();
        Pod { name, ns: lab.world.clone(), addresses: vec![address.into()] }
    });
    let host = Pod { name: "near-host", ns: NetNs::current().unwrap(), addresses: vec![ip(NODE)] };
    let pods = near.chain(far).chain([host]).collect();
    let places = Places { client: lab.pods[0].clone(), outside: lab.world.clone(), node_ip: NODE, pods };
    (lab, places)
}

struct NftablesMode(Nftables);

impl Serve for NftablesMode {
    const MODE: Mode = Mode::Nftables;

    async fn begin() -> (Self, Places) {
        let (lab, places) = node();
        (Self(lab.proxy), places)
    }

    async fn sync(&mut self, changed: BTreeSet<VipKey>, table: &Table) {
        assert_eq!(self.0.sync(table, &changed, false).unwrap().failures, []);
    }

    async fn restart(&mut self, table: &Table) {
        self.0 = proxy();
        assert_eq!(self.0.sync(table, &BTreeSet::new(), true).unwrap().failures, []);
    }
}

struct UserspaceMode(Option<Userspace>);

impl UserspaceMode {
    fn proxy() -> Userspace {
        Userspace::new(userspace::Settings {
            interface: Some(Arc::new(LinuxAddresses::open("svc0").unwrap())),
            node_ips: vec![ip(NODE), ip(NODE6)],
            node_ports: NodePorts::Primary,
            pods: vec!["10.1.0.0/16".parse().unwrap()],
            udp_idle: Duration::from_secs(60),
        })
    }

    async fn sync(&mut self, changed: &BTreeSet<VipKey>, table: &Table, full: bool) {
        // What listened a moment ago holds its address for a moment more.
        for _ in 0..500 {
            let failures = self.0.as_mut().unwrap().sync(table, changed, full).unwrap().failures;
            if failures.is_empty() {
                return;
            }
            assert!(failures.iter().all(|failure| failure.reason.contains("is taken by another program")), "{failures:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("addresses stay taken");
    }
}

impl Serve for UserspaceMode {
    const MODE: Mode = Mode::Userspace;

    async fn begin() -> (Self, Places) {
        let (_, places) = node();
        let rtnl = Rtnl::open().unwrap();
        rtnl.add_bridge("svc0").unwrap();
        rtnl.set_up(rtnl.link("svc0").unwrap().unwrap().index).unwrap();
        (Self(Some(Self::proxy())), places)
    }

    async fn sync(&mut self, changed: BTreeSet<VipKey>, table: &Table) {
        Self::sync(self, &changed, table, false).await;
    }

    async fn restart(&mut self, table: &Table) {
        self.0.take().unwrap().drain(Duration::ZERO).await;
        self.0 = Some(Self::proxy());
        Self::sync(self, &BTreeSet::new(), table, true).await;
    }
}

mod kernel {
    use crate::modes::try_each;

    try_each!(super::NftablesMode:
        every_address_of_a_service_answers
        tcp_and_udp_share_a_port
        each_port_leads_to_the_port_of_the_slice
        one_port_has_backends_at_several_target_ports
        sticky_clients_stay_until_their_timeout
        internal_policy_local_keeps_to_the_node
        external_policy_local_keeps_to_the_node_and_leaves_the_cluster_ip_alone
        with_external_policy_local_clients_inside_reach_every_backend
        terminating_backends_answer_when_nobody_is_ready
        published_backends_answer_though_they_are_not_ready
        unready_backends_elsewhere_get_nothing
        topology_hints_are_followed
        source_ranges_keep_others_out
        a_service_without_backends_refuses
        a_pod_reaches_itself
        services_and_slices_of_other_proxies_are_left_alone
        a_shared_pod_serves_until_its_last_service_goes
        a_node_port_may_have_the_number_of_the_port
        connections_to_pods_that_stay_outlive_scaling
        both_families_are_served_and_never_mixed
        pods_of_the_hosts_network_answer
    );
}

mod process {
    use crate::modes::try_each;

    try_each!(super::UserspaceMode:
        every_address_of_a_service_answers
        tcp_and_udp_share_a_port
        each_port_leads_to_the_port_of_the_slice
        one_port_has_backends_at_several_target_ports
        sticky_clients_stay_until_their_timeout
        internal_policy_local_keeps_to_the_node
        external_policy_local_keeps_to_the_node_and_leaves_the_cluster_ip_alone
        with_external_policy_local_clients_inside_reach_every_backend
        terminating_backends_answer_when_nobody_is_ready
        published_backends_answer_though_they_are_not_ready
        unready_backends_elsewhere_get_nothing
        topology_hints_are_followed
        source_ranges_keep_others_out
        a_service_without_backends_refuses
        a_pod_reaches_itself
        services_and_slices_of_other_proxies_are_left_alone
        a_shared_pod_serves_until_its_last_service_goes
        a_node_port_may_have_the_number_of_the_port
        connections_to_pods_that_stay_outlive_scaling
        both_families_are_served_and_never_mixed
        pods_of_the_hosts_network_answer
    );
}
