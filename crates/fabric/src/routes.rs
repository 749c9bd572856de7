//! Plan of the routes on this host (pure).

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use host::HostRoute;
use ipnet::IpNet;

use crate::rows::NodeRow;

/// One change of the routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds a route to a peer's pods.
    Add {
        /// The route, without an interface: the host finds it by the next hop.
        route: HostRoute,
        node: String,
    },
    /// Points a route of ours to another next hop: the pod CIDR has moved.
    Replace {
        /// What is there.
        old: HostRoute,
        /// What should be there.
        route: HostRoute,
        node: String,
    },
    /// Removes a route of ours that no peer needs.
    Delete { route: HostRoute },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let via = |route: &HostRoute| route.via.map_or_else(|| "link".to_owned(), |ip| ip.to_string());
        match self {
            Self::Add { route, node } => write!(f, "+ {} via {} ({node})", route.dst, via(route)),
            Self::Replace { old, route, node } => write!(f, "~ {} via {} instead of {} ({node})", route.dst, via(route), via(old)),
            Self::Delete { route } => write!(f, "- {} via {}", route.dst, via(route)),
        }
    }
}

/// Steps in the order in which they must happen, and peers that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes.
    pub steps: Vec<Step>,
    /// Sentences for logs and status: which peer, why, and the way out.
    pub problems: Vec<String>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "! {problem}"))
    }
}

/// The next hop of every peer's pod CIDR, by destination, and why some are left out. Peers that do not have their CIDR
/// or address yet are no problem: they will.
pub fn desired(own: &str, nodes: &BTreeMap<String, NodeRow>, cluster_cidr: IpNet) -> (BTreeMap<IpNet, (IpAddr, String)>, Vec<String>) {
    let mut desired: BTreeMap<IpNet, (IpAddr, String)> = BTreeMap::new();
    let mut problems = Vec::new();
    let mut taken: Vec<(IpNet, &str)> = Vec::new();
    let own_first = nodes.get_key_value(own).into_iter().chain(nodes.iter().filter(|(name, _)| *name != own));
    for (name, row) in own_first {
        for cidr in row.pod_cidrs.iter().copied().filter(|cidr| cidr.addr().is_ipv4()) {
            if !cluster_cidr.contains(&cidr) {
                problems.push(format!("node {name}: pod CIDR {cidr} is outside the cluster's {cluster_cidr}; it gets no route"));
                continue;
            }
            let overlap = |(other, _): &&(IpNet, &str)| other.contains(&cidr) || cidr.contains(other);
            if let Some((other, holder)) = taken.iter().find(overlap) {
                problems.push(format!(
                    "node {name}: pod CIDR {cidr} overlaps {other} of node {holder}; it gets no route until one of the two nodes is registered anew"
                ));
                continue;
            }
            taken.push((cidr, name));
            if let Some(address) = row.address.filter(|_| name != own) {
                desired.insert(cidr, (address, name.clone()));
            }
        }
    }
    (desired, problems)
}

/// Compares what is desired with the routing table. Routes without our mark are never changed: one that already does
/// what is desired is enough, one that contradicts it is reported.
pub fn plan(own: &str, nodes: &BTreeMap<String, NodeRow>, cluster_cidr: IpNet, observed: &[HostRoute]) -> Plan {
    let (desired, problems) = desired(own, nodes, cluster_cidr);
    let mut plan = Plan { steps: Vec::new(), problems };
    for route in observed.iter().filter(|route| route.ours && !desired.contains_key(&route.dst)) {
        plan.steps.push(Step::Delete { route: route.clone() });
    }
    for (dst, (via, node)) in desired {
        let route = HostRoute { dst, via: Some(via), oif: 0, metric: 0, ours: true };
        let mut present = observed.iter().filter(|o| o.dst == dst);
        if present.clone().any(|o| o.via == Some(via)) {
            let stale = present.filter(|o| o.ours && o.via != Some(via));
            plan.steps.extend(stale.map(|o| Step::Delete { route: o.clone() }));
        } else if let Some(old) = present.clone().find(|o| o.ours) {
            plan.steps.push(Step::Replace { old: old.clone(), route, node });
        } else if let Some(foreign) = present.next() {
            let hop = foreign.via.map_or_else(|| "a link".to_owned(), |ip| ip.to_string());
            plan.problems.push(format!(
                "node {node}: a route to {dst} by {hop} exists and is not ours; remove it so that pods of {node} are reached by {via}"
            ));
        } else {
            plan.steps.push(Step::Add { route, node });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(list: &[(&str, &str, &str)]) -> BTreeMap<String, NodeRow> {
        list.iter()
            .map(|(name, cidr, address)| {
                let row = NodeRow { pod_cidrs: cidr.parse().into_iter().collect(), address: address.parse().ok() };
                ((*name).to_owned(), row)
            })
            .collect()
    }

    fn route(dst: &str, via: &str, ours: bool) -> HostRoute {
        HostRoute { dst: dst.parse().unwrap(), via: via.parse().ok(), oif: 2, metric: 0, ours }
    }

    fn planned(nodes: &BTreeMap<String, NodeRow>, observed: &[HostRoute]) -> String {
        plan("a", nodes, "192.168.0.0/16".parse().unwrap(), observed).to_string()
    }

    #[test]
    fn plan_adds_replaces_and_deletes_only_own_routes() {
        let nodes = nodes(&[
            ("a", "192.168.0.0/24", "10.240.0.11"),
            ("b", "192.168.1.0/24", "10.240.0.12"),
            ("c", "192.168.2.0/24", "10.240.0.13"),
            ("d", "192.168.3.0/24", "10.240.0.14"),
            ("waits-for-cidr", "", "10.240.0.15"),
            ("waits-for-address", "192.168.9.0/24", ""),
        ]);
        let observed = [
            route("0.0.0.0/0", "10.240.0.1", false),
            route("192.168.0.0/24", "", false),
            route("192.168.2.0/24", "10.240.0.99", true),
            route("192.168.3.0/24", "10.240.0.14", false),
            route("192.168.7.0/24", "10.240.0.17", true),
            route("192.168.8.0/24", "10.240.0.18", false),
        ];
        insta::assert_snapshot!(planned(&nodes, &observed), @r"
        - 192.168.7.0/24 via 10.240.0.17
        + 192.168.1.0/24 via 10.240.0.12 (b)
        ~ 192.168.2.0/24 via 10.240.0.13 instead of 10.240.0.99 (c)
        ");
    }

    #[test]
    fn plan_is_empty_when_routes_are_right() {
        let nodes = nodes(&[("a", "192.168.0.0/24", "10.240.0.11"), ("b", "192.168.1.0/24", "10.240.0.12")]);
        assert_eq!(planned(&nodes, &[route("192.168.1.0/24", "10.240.0.12", true)]), "");
        let leftover = [route("192.168.1.0/24", "10.240.0.12", true), route("192.168.1.0/24", "10.240.0.13", true)];
        assert_eq!(planned(&nodes, &leftover), "- 192.168.1.0/24 via 10.240.0.13\n", "never a second leg");
    }

    #[test]
    fn contradictions_are_reported_and_left_alone() {
        let nodes = nodes(&[
            ("a", "192.168.0.0/24", "10.240.0.11"),
            ("b", "192.168.1.0/24", "10.240.0.12"),
            ("c", "192.168.1.128/25", "10.240.0.13"),
            ("d", "192.168.0.0/24", "10.240.0.14"),
            ("e", "172.16.0.0/24", "10.240.0.15"),
            ("f", "192.168.4.0/24", "10.240.0.16"),
        ]);
        insta::assert_snapshot!(planned(&nodes, &[route("192.168.4.0/24", "10.240.0.1", false)]), @r"
        + 192.168.1.0/24 via 10.240.0.12 (b)
        ! node c: pod CIDR 192.168.1.128/25 overlaps 192.168.1.0/24 of node b; it gets no route until one of the two nodes is registered anew
        ! node d: pod CIDR 192.168.0.0/24 overlaps 192.168.0.0/24 of node a; it gets no route until one of the two nodes is registered anew
        ! node e: pod CIDR 172.16.0.0/24 is outside the cluster's 192.168.0.0/16; it gets no route
        ! node f: a route to 192.168.4.0/24 by 10.240.0.1 exists and is not ours; remove it so that pods of f are reached by 10.240.0.16
        ");
    }
}
