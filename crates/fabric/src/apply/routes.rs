//! The routes on this host: plan (pure), and its execution.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use host::{HostRoute, Routes, RoutesError};
use ipnet::IpNet;
use thiserror_ext::AsReport as _;

use crate::mode::{Hop, Through, Uplink};
use crate::problem::{Kind, Problem};

/// The most changes at once that the log shows one by one.
const LINES: usize = 200;

/// One change of the routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds a route to a peer's pods.
    Add { route: HostRoute, node: String },
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
    /// Which peer, why, and the way out.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "! {problem}"))
    }
}

/// Compares what is desired with the routing table. Routes without our mark are never changed: one that already does
/// what is desired is enough, one that contradicts it is reported.
/// `tunnel` is the number of this host's tunnel; without one, what is behind it waits.
pub fn plan(desired: &BTreeMap<IpNet, Hop>, observed: &[HostRoute], tunnel: Option<u32>) -> Plan {
    let mut plan = Plan::default();
    // Few, however many nodes there are.
    let links: Vec<HostRoute> = observed.iter().filter(|route| route.via.is_none()).cloned().collect();
    let mut present: HashMap<IpNet, Vec<&HostRoute>> = HashMap::with_capacity(observed.len());
    for route in observed {
        present.entry(route.dst).or_default().push(route);
    }
    for route in observed.iter().filter(|route| route.ours && !desired.contains_key(&route.dst)) {
        plan.steps.push(Step::Delete { route: route.clone() });
    }
    for (dst, Hop { via, through, node }) in desired {
        let (dst, via, node) = (*dst, *via, node.clone());
        let oif = match through {
            Through::Network => link_to(via, &links),
            Through::Tunnel => match tunnel {
                Some(index) => index,
                None => continue,
            },
        };
        let on_link = *through == Through::Tunnel;
        let route = HostRoute { dst, via: Some(via), oif, on_link, metric: 0, ours: true };
        // Ours follow their interface when that gets another number. Without an interface they are as good as any.
        let right = |o: &&&HostRoute| o.via == Some(via) && (o.oif == oif || !on_link && (!o.ours || oif == 0));
        let present = present.get(&dst).map(Vec::as_slice).unwrap_or_default();
        if present.iter().any(|o| right(&o)) {
            let stale = present.iter().filter(|o| o.ours && !right(o));
            plan.steps.extend(stale.map(|o| Step::Delete { route: (*o).clone() }));
        } else if let Some(old) = present.iter().find(|o| o.ours) {
            plan.steps.push(Step::Replace { old: (*old).clone(), route, node });
        } else if let Some(foreign) = present.first() {
            let hop = foreign.via.map_or_else(|| "a link".to_owned(), |ip| ip.to_string());
            let text =
                format!("node {node}: a route to {dst} by {hop} exists and is not ours; remove it so that pods of {node} are reached by {via}");
            plan.problems.push(Problem::of_node(Kind::RouteOfOthers, &node, text));
        } else {
            plan.steps.push(Step::Add { route, node });
        }
    }
    plan
}

/// Changes the routing table; returns what went wrong, and whether every step was taken.
pub fn keep(table: &dyn Routes, desired: &BTreeMap<IpNet, Hop>, observed: &[HostRoute], tunnel: Option<u32>) -> (Vec<Problem>, bool) {
    let Plan { steps, mut problems } = plan(desired, observed, tunnel);
    let (mut done, mut taken) = (true, Vec::new());
    for step in steps {
        let applied = match &step {
            Step::Add { route, .. } => table.add(route),
            // Never without a route: Linux replaces in one step, and then the old one is gone already.
            Step::Replace { old, route, .. } => table.add(route).and_then(|()| table.delete(old)),
            Step::Delete { route } => table.delete(route),
        };
        match applied {
            Ok(()) => taken.push(step),
            Err(error) => {
                let text = error.to_report_string();
                problems.push(match &step {
                    Step::Add { node, .. } | Step::Replace { node, .. } => Problem::of_node(Kind::Failed, node, format!("node {node}: {text}")),
                    Step::Delete { .. } => Problem::failed(text),
                });
                done = false;
            }
        }
    }
    match if taken.is_empty() { Ok(()) } else { table.commit() } {
        Ok(()) if taken.len() > LINES => {
            taken.iter().for_each(|step| tracing::debug!("route {step}"));
            tracing::info!("{} routes changed; each at debug level", taken.len());
        }
        Ok(()) => taken.iter().for_each(|step| tracing::info!("route {step}")),
        Err(error) => {
            problems.push(Problem::failed(error.to_report_string()));
            done = false;
        }
    }
    (problems, done)
}

/// Gives back routes of others that are missing; returns what went wrong. Their interface may have another number than before: it is that of
/// the next hop. Those whose next hop is on no network of the host wait.
pub fn restore(table: &dyn Routes, wanted: &[HostRoute], observed: &[HostRoute]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for route in wanted {
        let (Some(via), false) = (route.via, observed.iter().any(|o| o.dst == route.dst && o.via == route.via)) else { continue };
        let oif = link_to(via, observed);
        if oif == 0 {
            continue;
        }
        match table.restore(&HostRoute { oif, ..route.clone() }) {
            Ok(()) => tracing::info!("gave back the route to {} via {via}, which was lost when HNS made the adapter's switch", route.dst),
            Err(error) => problems.push(Problem::failed(error.to_report_string())),
        }
    }
    problems
}

/// The link of the nodes' network, where the host has it: that of the longest directly connected prefix that has `address`.
pub fn uplink(table: &dyn Routes, observed: &[HostRoute], address: IpAddr) -> Result<Option<Uplink>, RoutesError> {
    let connected = observed.iter().filter(|route| !route.ours && route.via.is_none() && route.dst.contains(&address));
    let Some(index) = connected.max_by_key(|route| route.dst.prefix_len()).map(|route| route.oif) else { return Ok(None) };
    Ok(table.mtu(index)?.map(|mtu| Uplink { index, mtu }))
}

/// The interface of the nodes' network, which Windows requires; 0 where none has the next hop.
fn link_to(via: IpAddr, observed: &[HostRoute]) -> u32 {
    let connected = observed.iter().filter(|o| o.via.is_none() && o.dst.contains(&via));
    connected.max_by_key(|o| o.dst.prefix_len()).map_or(0, |link| link.oif)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(list: &[(&str, &str, &str)]) -> BTreeMap<IpNet, Hop> {
        list.iter()
            .map(|(dst, via, node)| (dst.parse().unwrap(), Hop { via: via.parse().unwrap(), through: Through::Network, node: (*node).to_owned() }))
            .collect()
    }

    fn route(dst: &str, via: &str, ours: bool) -> HostRoute {
        HostRoute { dst: dst.parse().unwrap(), via: via.parse().ok(), oif: 2, on_link: false, metric: 0, ours }
    }

    fn planned(desired: &[(&str, &str, &str)], observed: &[HostRoute]) -> String {
        plan(&hops(desired), observed, None).to_string()
    }

    #[test]
    fn plan_adds_replaces_and_deletes_only_own_routes() {
        let desired = [
            ("192.168.1.0/24", "10.240.0.12", "b"),
            ("192.168.2.0/24", "10.240.0.13", "c"),
            ("192.168.3.0/24", "10.240.0.14", "d"),
            ("fd00:2::/64", "fd00::2", "c"),
        ];
        let observed = [
            route("0.0.0.0/0", "10.240.0.1", false),
            route("192.168.0.0/24", "", false),
            route("192.168.2.0/24", "10.240.0.99", true),
            route("192.168.3.0/24", "10.240.0.14", false),
            route("192.168.7.0/24", "10.240.0.17", true),
            route("192.168.8.0/24", "10.240.0.18", false),
            route("fd00:9::/64", "fd00::9", true),
        ];
        insta::assert_snapshot!(planned(&desired, &observed), @r"
        - 192.168.7.0/24 via 10.240.0.17
        - fd00:9::/64 via fd00::9
        + 192.168.1.0/24 via 10.240.0.12 (b)
        ~ 192.168.2.0/24 via 10.240.0.13 instead of 10.240.0.99 (c)
        + fd00:2::/64 via fd00::2 (c)
        ");
    }

    #[test]
    fn plan_is_empty_when_routes_are_right() {
        let desired = [("192.168.1.0/24", "10.240.0.12", "b")];
        assert_eq!(planned(&desired, &[route("192.168.1.0/24", "10.240.0.12", true)]), "");
        let leftover = [route("192.168.1.0/24", "10.240.0.12", true), route("192.168.1.0/24", "10.240.0.13", true)];
        assert_eq!(planned(&desired, &leftover), "- 192.168.1.0/24 via 10.240.0.13\n", "never a second leg");
    }

    #[test]
    fn foreign_contradiction_is_reported_and_left_alone() {
        insta::assert_snapshot!(
            planned(&[("192.168.4.0/24", "10.240.0.16", "f")], &[route("192.168.4.0/24", "10.240.0.1", false)]),
            @"! node f: a route to 192.168.4.0/24 by 10.240.0.1 exists and is not ours; remove it so that pods of f are reached by 10.240.0.16"
        );
    }

    #[test]
    fn own_routes_follow_their_interface_when_its_number_changes() {
        let desired = [("192.168.1.0/24", "10.240.0.12", "b")];
        let old = route("192.168.1.0/24", "10.240.0.12", true);
        let lan = |oif| HostRoute { oif, ..route("10.240.0.0/24", "", false) };
        assert_eq!(planned(&desired, &[lan(2), old.clone()]), "");
        assert_eq!(planned(&desired, &[lan(9), old.clone()]), "~ 192.168.1.0/24 via 10.240.0.12 instead of 10.240.0.12 (b)\n");
        assert_eq!(planned(&desired, std::slice::from_ref(&old)), "", "the adapter is without addresses for the moment");
        assert_eq!(planned(&desired, &[lan(9), HostRoute { ours: false, ..old }]), "", "another's route is its owner's");
    }

    #[test]
    fn lost_routes_of_others_are_given_back_on_the_interface_of_their_next_hop() {
        struct Table(std::sync::Mutex<Vec<HostRoute>>);
        impl Routes for Table {
            fn list(&self) -> Result<Vec<HostRoute>, RoutesError> {
                Ok(Vec::new())
            }
            fn add(&self, route: &HostRoute) -> Result<(), RoutesError> {
                panic!("{route:?} would get our mark")
            }
            fn delete(&self, route: &HostRoute) -> Result<(), RoutesError> {
                panic!("{route:?} is not ours")
            }
            fn restore(&self, route: &HostRoute) -> Result<(), RoutesError> {
                self.0.lock().unwrap().push(route.clone());
                Ok(())
            }
            fn interface(&self, _: &str) -> Result<Option<u32>, RoutesError> {
                Ok(None)
            }
            fn mtu(&self, _: u32) -> Result<Option<u32>, RoutesError> {
                Ok(None)
            }
        }
        let table = Table(std::sync::Mutex::default());
        let metadata = HostRoute { metric: 5, ..route("169.254.169.254/32", "10.240.0.1", false) };
        let wanted = [metadata.clone(), route("10.9.0.0/16", "10.240.0.7", false), route("10.8.0.0/16", "172.20.0.1", false)];
        let observed = [HostRoute { oif: 9, ..route("10.240.0.0/24", "", false) }, HostRoute { oif: 9, ..wanted[1].clone() }];
        assert_eq!(restore(&table, &wanted, &observed), []);
        assert_eq!(*table.0.lock().unwrap(), [HostRoute { oif: 9, ..metadata }], "one is there, one has no network yet");
    }

    #[test]
    fn routes_through_a_tunnel_name_it() {
        let tunnelled: BTreeMap<IpNet, Hop> =
            hops(&[("192.168.1.0/24", "192.168.1.0", "b")]).into_iter().map(|(dst, hop)| (dst, Hop { through: Through::Tunnel, ..hop })).collect();
        let planned = |observed: &[HostRoute], tunnel| plan(&tunnelled, observed, tunnel).steps;
        assert!(planned(&[], None).is_empty(), "no tunnel, no route");
        let right = HostRoute { oif: 9, on_link: true, ..route("192.168.1.0/24", "192.168.1.0", true) };
        assert_eq!(planned(&[], Some(9)), [Step::Add { route: right.clone(), node: "b".into() }]);
        assert!(planned(std::slice::from_ref(&right), Some(9)).is_empty());
        let other = HostRoute { oif: 8, ..right.clone() };
        assert_eq!(
            planned(std::slice::from_ref(&other), Some(9)),
            [Step::Replace { old: other, route: right, node: "b".into() }],
            "the tunnel was made anew"
        );
    }
}
