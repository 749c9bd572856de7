//! The scenarios of all modes, with load balancers of the simulated service.

use std::collections::BTreeSet;

use hcn::PortMappingFlags;
use linux_sys::netlink::Rtnl;
use parity::Mode;
use test_lab::net;

use super::packets::Lab;
use super::*;
use crate::modes::{Places, Pod, Serve, try_each};

/// A bridge on an HNS that modifies load balancers in place (Windows Server 2025), or that has them replaced (2022).
struct Bridge<const MODIFIES: bool> {
    lab: Lab,
    hns: Hns,
}

impl<const MODIFIES: bool> Bridge<MODIFIES> {
    fn proxy(lab: &Lab) -> Hns {
        Hns::new(&lab.client, UID, Settings { node_ips: vec!["10.240.0.12".parse().unwrap()], ..Settings::new("pods") })
    }

    async fn rest(&mut self, table: &Table) {
        let until = Instant::now() + LIMIT;
        loop {
            self.hns.begin(table);
            if self.hns.engine().is_idle() {
                return assert!(self.hns.engine().failing().is_empty(), "{:?}", self.hns.engine().failing());
            }
            let left = until.saturating_duration_since(Instant::now());
            let event = tokio::time::timeout(left, self.hns.next_event()).await;
            self.hns.process(event.unwrap_or_else(|_| panic!("the proxy does not come to rest: {:?}", self.hns.engine())), table);
        }
    }
}

impl<const MODIFIES: bool> Serve for Bridge<MODIFIES> {
    const MODE: Mode = Mode::Hns;

    async fn begin() -> (Self, Places) {
        let lab = Lab::of(if MODIFIES { NEW } else { OLD }).await;
        let there = Rtnl::open_in(&lab.peer).unwrap();
        let uplink = there.link("eth0").unwrap().unwrap().index;
        there.add_addr(uplink, "192.168.2.4/32".parse().unwrap()).unwrap();
        net::route(&there, "192.0.2.0/24", "10.240.0.12");
        let mut pods = Vec::new();
        for (name, ip) in [("near1", "192.168.1.6"), ("near2", "192.168.1.7"), ("near3", "192.168.1.8")] {
            pods.push(Pod { name, ns: lab.pod(ip).await, addresses: vec![ip.parse().unwrap()] });
        }
        for (name, ip) in [("far1", "192.168.2.3"), ("far2", "192.168.2.4")] {
            pods.push(Pod { name, ns: lab.peer.clone(), addresses: vec![ip.parse().unwrap()] });
        }
        let places = Places { client: lab.pod("192.168.1.5").await, outside: lab.peer.clone(), node_ip: "10.240.0.12", pods };
        (Self { hns: Self::proxy(&lab), lab }, places)
    }

    async fn sync(&mut self, changed: BTreeSet<VipKey>, table: &Table) {
        self.hns.touch(changed, table);
        self.rest(table).await;
    }

    async fn restart(&mut self, table: &Table) {
        self.hns = Self::proxy(&self.lab);
        self.hns.touch(table.iter().map(|(key, _)| *key).collect::<Vec<_>>(), table);
        self.rest(table).await;
    }

    /// Windows keeps a connection with its pod when the load balancer says `VipExternalIP`: upstream's fix of #113842.
    async fn check_kept_connections(&self) {
        for balancer in self.lab.client.load_balancers().await.unwrap() {
            let key = vip_key(&balancer).unwrap();
            let outer = key.port != 32000 && key.address != VipAddress::Ip("10.96.0.1".parse().unwrap());
            let asked = balancer.port_mappings[0].flags.contains(PortMappingFlags::VIP_EXTERNAL_IP);
            assert_eq!(asked, outer, "{key} has the flags {:?}", balancer.port_mappings[0].flags);
        }
    }
}

try_each!(Bridge<false>:
    every_address_of_a_service_answers
    tcp_and_udp_share_a_port
    each_port_leads_to_the_port_of_the_slice
    internal_policy_local_keeps_to_the_node
    external_policy_local_keeps_to_the_node_and_leaves_the_cluster_ip_alone
    terminating_backends_answer_when_nobody_is_ready
    published_backends_answer_though_they_are_not_ready
    unready_backends_elsewhere_get_nothing
    topology_hints_are_followed
    services_and_slices_of_other_proxies_are_left_alone
    a_shared_pod_serves_until_its_last_service_goes
    a_node_port_may_have_the_number_of_the_port
    connections_to_pods_that_stay_outlive_scaling
);

mod modifies {
    use crate::modes::try_each;

    try_each!(super::Bridge<true>:
        a_node_port_may_have_the_number_of_the_port
        connections_to_pods_that_stay_outlive_scaling
    );
}
