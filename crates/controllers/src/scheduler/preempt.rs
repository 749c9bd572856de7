//! Preemption: selects the pods that make room for one of higher priority. Pure (upstream: `pkg/scheduler/framework/preemption`, plug-in DefaultPreemption).

use std::{cmp::Reverse, sync::Arc};

use cluster::Key;
use jiff::Timestamp;

use super::{
    cache::{Cache, Usage},
    place::{Unfit, refusal},
    rows::{NodeRow, PodRow},
    volumes::Volumes,
    world::World,
};
use kube_rules::Selector;

/// The most nodes that are looked at for one pod (upstream: `minCandidateNodesAbsolute`).
const CANDIDATES: usize = 100;

/// A disruption budget, as far as it speaks for pods.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Budget {
    pub ns: String,
    pub selector: Selector,
    pub allowed: i64,
}

/// Pods that have to go from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sacrifice {
    pub node: String,
    pub victims: Vec<Key>,
}

type Member = (Key, Arc<PodRow>);

/// The least sacrifice that lets `pod` in, if it may ask for one and one helps. `unfit` is why it fits nowhere as things are.
pub(super) fn sacrifice(pod: &PodRow, world: &World, cache: &Cache, budgets: &[Budget], unfit: &Unfit) -> Option<Sacrifice> {
    let volumes = Volumes::of(pod, world).ok()?;
    let names = unfit.curable_nodes().take(CANDIDATES);
    let options = names.filter_map(|name| {
        let (_, node, _) = cache.nodes().find(|(other, ..)| *other == name)?;
        let trial = Trial { pod, volumes: &volumes, world, cache, name, node };
        let (victims, violations) = trial.victims(budgets)?;
        Some((rank(&victims, violations), name, victims))
    });
    let (_, name, victims) = options.min_by(|(a, a_name, _), (b, b_name, _)| a.cmp(b).then(a_name.cmp(b_name)))?;
    Some(Sacrifice { node: name.to_owned(), victims: victims.into_iter().map(|(key, _)| key).collect() })
}

/// Less is better: broken budgets, the most important victim, their importance together, their number, and how long they have run.
fn rank(victims: &[Member], violations: usize) -> (usize, i32, i64, usize, Reverse<Option<Timestamp>>) {
    let most = victims.iter().map(|(_, pod)| pod.priority).max().unwrap_or(i32::MIN);
    let sum = victims.iter().map(|(_, pod)| i64::from(pod.priority) + i64::from(i32::MAX) + 1).sum();
    let eldest = victims.iter().filter(|(_, pod)| pod.priority == most).filter_map(|(_, pod)| pod.started).min();
    (violations, most, sum, victims.len(), Reverse(eldest))
}

struct Trial<'a> {
    pod: &'a PodRow,
    volumes: &'a Volumes<'a>,
    world: &'a World,
    cache: &'a Cache,
    name: &'a str,
    node: &'a NodeRow,
}

impl Trial<'_> {
    /// The pods that have to go from the node, and how many budgets that breaks; none if even all that may go would not help.
    fn victims(&self, budgets: &[Budget]) -> Option<(Vec<Member>, usize)> {
        let (mut staying, mut going): (Vec<Member>, Vec<Member>) = (Vec::new(), Vec::new());
        for (key, row) in self.cache.members(self.name) {
            let list = if row.priority < self.pod.priority { &mut going } else { &mut staying };
            list.push((key.clone(), row.clone()));
        }
        if going.is_empty() || !self.fits(&staying) {
            return None;
        }
        // Spared first: those whose budget would break, then the most important, then those that have run longest.
        going.sort_by_key(|(key, row)| (Reverse(row.priority), row.started, key.clone()));
        let (breaking, free) = split(going, budgets);
        let mut victims = Vec::new();
        let mut violations = 0;
        for (candidates, breaks) in [(breaking, true), (free, false)] {
            for candidate in candidates {
                staying.push(candidate);
                if self.fits(&staying) {
                    continue;
                }
                violations += usize::from(breaks);
                victims.extend(staying.pop());
            }
        }
        (!victims.is_empty()).then_some((victims, violations))
    }

    /// Whether the pod fits on the node with only these others.
    fn fits(&self, others: &[Member]) -> bool {
        let usage = Usage::of(others.iter().map(|(_, row)| row));
        let nodes = self.cache.nodes().map(|(name, node, present)| (name, node, if name == self.name { &usage } else { present }));
        refusal(self.pod, self.volumes, &self.world.spaces, nodes, (self.name, self.node, &usage)).is_none()
    }
}

/// Pods whose deletion breaks a budget, and the others; each budget allows as many as its status says.
fn split(pods: Vec<Member>, budgets: &[Budget]) -> (Vec<Member>, Vec<Member>) {
    let mut left: Vec<i64> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.into_iter().partition(|(key, row)| {
        let mut breaks = false;
        for (budget, left) in budgets.iter().zip(&mut left) {
            if budget.ns == key.ns && budget.selector.matches(&row.labels) {
                *left -= 1;
                breaks |= *left < 0;
            }
        }
        breaks
    })
}

#[cfg(test)]
#[path = "preempt_tests.rs"]
mod tests;
