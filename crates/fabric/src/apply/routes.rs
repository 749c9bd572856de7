//! The routes on this host: plan (pure), and its execution.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use host::{HostRoute, Routes};
use ipnet::IpNet;
use thiserror_ext::AsReport as _;

use crate::mode::Hop;

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

/// Compares what is desired with the routing table. Routes without our mark are never changed: one that already does
/// what is desired is enough, one that contradicts it is reported.
pub fn plan(desired: &BTreeMap<IpNet, Hop>, observed: &[HostRoute]) -> Plan {
    let mut plan = Plan::default();
    let mut present: HashMap<IpNet, Vec<&HostRoute>> = HashMap::with_capacity(observed.len());
    for route in observed {
        present.entry(route.dst).or_default().push(route);
    }
    for route in observed.iter().filter(|route| route.ours && !desired.contains_key(&route.dst)) {
        plan.steps.push(Step::Delete { route: route.clone() });
    }
    for (dst, Hop { via, node }) in desired {
        let (dst, via, node) = (*dst, *via, node.clone());
        let route = HostRoute { dst, via: Some(via), oif: 0, metric: 0, ours: true };
        let present = present.get(&dst).map(Vec::as_slice).unwrap_or_default();
        if present.iter().any(|o| o.via == Some(via)) {
            let stale = present.iter().filter(|o| o.ours && o.via != Some(via));
            plan.steps.extend(stale.map(|o| Step::Delete { route: (*o).clone() }));
        } else if let Some(old) = present.iter().find(|o| o.ours) {
            plan.steps.push(Step::Replace { old: (*old).clone(), route, node });
        } else if let Some(foreign) = present.first() {
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

/// Changes the routing table; returns what went wrong, and whether every step was taken.
pub fn keep(table: &dyn Routes, desired: &BTreeMap<IpNet, Hop>, observed: &[HostRoute]) -> (Vec<String>, bool) {
    let Plan { steps, mut problems } = plan(desired, observed);
    let mut done = true;
    for step in steps {
        let applied = match &step {
            Step::Add { route, .. } => table.add(&on_link(route, observed)),
            // Never without a route: Linux replaces in one step, and then the old one is gone already.
            Step::Replace { old, route, .. } => table.add(&on_link(route, observed)).and_then(|()| table.delete(old)),
            Step::Delete { route } => table.delete(route),
        };
        match applied {
            Ok(()) => tracing::info!("route {step}"),
            Err(error) => {
                problems.push(error.to_report_string());
                done = false;
            }
        }
    }
    (problems, done)
}

/// The route with the interface of the nodes' network, which Windows requires.
fn on_link(route: &HostRoute, observed: &[HostRoute]) -> HostRoute {
    let link = route.via.and_then(|via| observed.iter().filter(|o| o.via.is_none() && o.dst.contains(&via)).max_by_key(|o| o.dst.prefix_len()));
    HostRoute { oif: link.map_or(0, |link| link.oif), ..route.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(list: &[(&str, &str, &str)]) -> BTreeMap<IpNet, Hop> {
        list.iter().map(|(dst, via, node)| (dst.parse().unwrap(), Hop { via: via.parse().unwrap(), node: (*node).to_owned() })).collect()
    }

    fn route(dst: &str, via: &str, ours: bool) -> HostRoute {
        HostRoute { dst: dst.parse().unwrap(), via: via.parse().ok(), oif: 2, metric: 0, ours }
    }

    fn planned(desired: &[(&str, &str, &str)], observed: &[HostRoute]) -> String {
        plan(&hops(desired), observed).to_string()
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
}
