//! Preemption: selects the pods that make room for one of higher priority. Pure (upstream: `pkg/scheduler/framework/preemption`, plug-in DefaultPreemption).

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use cluster::Key;
use jiff::Timestamp;

use super::{
    cache::{Cache, Usage},
    place::{self, Attempts, Refusal, Unfit},
    rows::{NodeRow, PodRow},
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
    /// Pods whose eviction is counted already.
    pub disrupted: BTreeSet<String>,
}

/// Pods that have to go from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sacrifice {
    pub node: String,
    pub victims: Vec<Key>,
}

type Member = (Key, Arc<PodRow>);

/// The least sacrifice that lets `pod` in; otherwise why none helps, by node. `unfit` is why it fits nowhere as things are.
pub(super) fn sacrifice(pod: &PodRow, world: &World, cache: &Cache, budgets: &[Budget], unfit: &Unfit) -> Result<Sacrifice, Attempts> {
    let (mut options, mut attempts) = (Vec::new(), Attempts::new());
    for name in unfit.curable_nodes() {
        let Some(node) = cache.node(name) else { continue };
        match (Trial { pod, world, cache, name, node }).victims(budgets) {
            Ok((victims, violations)) => options.push((rank(&victims, violations), name, victims)),
            Err(reasons) => _ = attempts.insert(name.to_owned(), reasons),
        }
        if options.len() == CANDIDATES {
            break;
        }
    }
    let best = options.into_iter().min_by(|(a, a_name, _), (b, b_name, _)| a.cmp(b).then(a_name.cmp(b_name)));
    let (_, name, victims) = best.ok_or(attempts)?;
    Ok(Sacrifice { node: name.to_owned(), victims: victims.into_iter().map(|(key, _)| key).collect() })
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
    world: &'a World,
    cache: &'a Cache,
    name: &'a str,
    node: &'a NodeRow,
}

impl Trial<'_> {
    /// The pods that have to go from the node, and how many budgets that breaks; the error is why it would not help if all went that may.
    fn victims(&self, budgets: &[Budget]) -> Result<(Vec<Member>, usize), Vec<String>> {
        let (mut staying, mut going): (Vec<Member>, Vec<Member>) = (Vec::new(), Vec::new());
        for (key, row) in self.cache.members(self.name) {
            let list = if row.priority < self.pod.priority { &mut going } else { &mut staying };
            list.push((key.clone(), row.clone()));
        }
        if going.is_empty() {
            return Err(vec!["No preemption victims found for incoming pod".to_owned()]);
        }
        if let Some(reasons) = self.reasons(&staying) {
            return Err(reasons);
        }
        // Spared first: those whose budget would break, then the most important, then those that have run longest.
        going.sort_by_key(|(key, row)| (Reverse(row.priority), row.started, key.clone()));
        let (breaking, free) = split(going, budgets);
        let mut victims = Vec::new();
        let mut violations = 0;
        for (candidates, breaks) in [(breaking, true), (free, false)] {
            for candidate in candidates {
                staying.push(candidate);
                if self.reasons(&staying).is_none() {
                    continue;
                }
                violations += usize::from(breaks);
                victims.extend(staying.pop());
            }
        }
        // Without victims the pod fits as things are: the nodes have changed meanwhile, and the next attempt sees it.
        if victims.is_empty() { Err(vec!["No preemption victims found for incoming pod".to_owned()]) } else { Ok((victims, violations)) }
    }

    /// Why the pod does not fit on the node with only these others.
    fn reasons(&self, others: &[Member]) -> Option<Vec<String>> {
        let usage = Usage::of(others.iter().map(|(_, row)| row));
        let nodes = self.cache.nodes().map(|(name, node, present)| (name, node, if name == self.name { &usage } else { present }));
        match place::Trial::of(self.pod, self.world, nodes) {
            Ok(trial) => trial.refusal((self.name, self.node, &usage)).map(Refusal::into_reasons),
            Err(reason) => Some(vec![reason]),
        }
    }
}

/// Pods whose deletion breaks a budget, and the others; each budget allows as many as its status says.
fn split(pods: Vec<Member>, budgets: &[Budget]) -> (Vec<Member>, Vec<Member>) {
    let mut left: Vec<i64> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.into_iter().partition(|(key, row)| {
        let mut breaks = false;
        for (budget, left) in budgets.iter().zip(&mut left) {
            let counts = !budget.selector.is_empty() && !budget.disrupted.contains(&key.name);
            if counts && budget.ns == key.ns && budget.selector.matches(&row.labels) {
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
