//! What placement found out about nodes, kept while the nodes stay as they are, for pods that are alike: those of one workload differ in
//! little more than their names, and each placed pod changes one node. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{
    neighbours::Spread,
    place::{self, Candidate, Refusal},
    profile::Profile,
    rows::PodRow,
    score,
};

/// The most kinds of pods whose nodes are remembered.
const KINDS: usize = 8;

/// What follows from a pod, one node and the pods there, whatever the other nodes are.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Facts {
    /// The state of the node ([`super::cache::Usage::stamp`]) that they are about.
    stamp: u64,
    pub refusal: Option<Refusal>,
    /// Raw scores of the plug-ins of these names.
    pub taints: i64,
    pub preference: i64,
    pub fit: i64,
    pub balance: i64,
    /// One for each soft spread constraint.
    pub spread: Vec<Tally>,
}

/// What a spread constraint sees of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tally {
    /// How many pods of the node it is about.
    pub members: i64,
    /// Whether the node is part of its count.
    pub counts: bool,
    /// The domain that the node is in; none without the label.
    pub domain: Option<String>,
}

impl Facts {
    fn new(pod: &PodRow, profile: &Profile, soft: &[Spread], candidate: Candidate<'_>) -> Self {
        let (name, node, usage) = candidate;
        Self {
            stamp: usage.stamp,
            refusal: place::own_refusal(pod, profile, candidate),
            taints: score::unpreferred_taints(pod, node),
            preference: score::preference(pod, profile, name, node),
            fit: score::fit(pod, profile, node, usage),
            balance: score::balance(pod, profile, node, usage),
            spread: soft.iter().map(|one| Tally::new(one, pod, candidate)).collect(),
        }
    }
}

impl Tally {
    /// The domain; that of no name without the label.
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or_default()
    }

    fn new(constraint: &Spread, pod: &PodRow, (name, node, usage): Candidate<'_>) -> Self {
        Self {
            members: constraint.members(pod, &usage.members),
            counts: constraint.counts(pod, name, node),
            domain: node.labels.get(constraint.topology()).cloned(),
        }
    }
}

/// Pods that are alike, and the nodes as they last were for one of them.
#[derive(Debug)]
struct Kind {
    pod: PodRow,
    profile: Arc<Profile>,
    soft: Vec<Spread>,
    facts: Vec<Facts>,
}

/// The nodes as they last were for pods of several kinds.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// The latest first.
    kinds: VecDeque<Kind>,
}

impl Memo {
    /// About how many nodes there are.
    pub fn nodes(&self) -> usize {
        self.kinds.front().map_or(0, |kind| kind.facts.len())
    }

    /// The facts about each of the `nodes`, in their order; only those of nodes that changed are computed.
    pub fn facts<'a>(&mut self, pod: &PodRow, profile: &Arc<Profile>, soft: &[Spread], nodes: impl Iterator<Item = Candidate<'a>>) -> &[Facts] {
        let pod = pod.without_identity();
        let same = |kind: &Kind| Arc::ptr_eq(&kind.profile, profile) && kind.soft == soft && kind.pod == pod;
        let mut kind = match self.kinds.iter().position(same).and_then(|place| self.kinds.remove(place)) {
            Some(kind) => kind,
            None => Kind { pod, profile: profile.clone(), soft: soft.to_vec(), facts: Vec::new() },
        };
        let mut count = 0;
        for candidate in nodes {
            let stamp = candidate.2.stamp;
            match kind.facts.get_mut(count) {
                // Stamps are never given twice, so this is the same node too. Zero is the stamp of what no cache holds.
                Some(known) if known.stamp == stamp && stamp != 0 => {}
                Some(known) => *known = Facts::new(&kind.pod, profile, soft, candidate),
                None => kind.facts.push(Facts::new(&kind.pod, profile, soft, candidate)),
            }
            count += 1;
        }
        kind.facts.truncate(count);
        self.kinds.truncate(KINDS - 1);
        self.kinds.push_front(kind);
        &self.kinds[0].facts
    }
}

#[cfg(test)]
#[path = "memo_tests.rs"]
mod tests;
