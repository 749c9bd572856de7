//! How many nodes are ready, in all and by zone, kept up to date with each change: a cluster has thousands of nodes, and nobody walks them
//! to count them. Pure.

use std::collections::{BTreeSet, HashMap};

use super::{
    EXCLUDED, plan,
    zones::{pace, zone},
};
use crate::view::NodeRow;

/// Ready nodes and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Count {
    pub ready: usize,
    pub unready: usize,
}

impl Count {
    fn of(&mut self, ready: bool) -> &mut usize {
        if ready { &mut self.ready } else { &mut self.unready }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    zone: String,
    ready: bool,
    /// Whether it counts when it is decided whether evictions go on.
    counts: bool,
}

/// All nodes as they are now.
#[derive(Debug, Default)]
pub(super) struct Census {
    nodes: HashMap<String, Seen>,
    all: Count,
    zones: HashMap<String, Count>,
    /// The nodes that are not ready, those that do not count among them.
    unready: BTreeSet<String>,
}

impl Census {
    /// A node as it is now; none when it is gone. The other nodes whose evictions may have to be decided anew.
    pub fn set(&mut self, name: &str, row: Option<&NodeRow>) -> Vec<String> {
        let new = row.map(|row| Seen { zone: zone(&row.labels), ready: plan::is_ready(row), counts: !row.labels.contains_key(EXCLUDED) });
        let old = self.nodes.remove(name);
        if old == new {
            self.nodes.extend(new.map(|seen| (name.to_owned(), seen)));
            return Vec::new();
        }
        let touched: BTreeSet<String> = [&old, &new].into_iter().flatten().map(|seen| seen.zone.clone()).collect();
        let before = self.rules(&touched);
        if let Some(old) = old {
            self.count(&old, |count| *count -= 1);
            self.unready.remove(name);
        }
        if let Some(new) = new {
            self.count(&new, |count| *count += 1);
            if !new.ready {
                self.unready.insert(name.to_owned());
            }
            self.nodes.insert(name.to_owned(), new);
        }
        let after = self.rules(&touched);
        self.zones.retain(|_, count| *count != Count::default());
        if before == after {
            return Vec::new();
        }
        // Nothing of it matters to nodes that are ready.
        self.unready.iter().filter(|other| *other != name).cloned().collect()
    }

    fn count(&mut self, seen: &Seen, change: impl Fn(&mut usize)) {
        if seen.counts {
            change(self.all.of(seen.ready));
            change(self.zones.entry(seen.zone.clone()).or_default().of(seen.ready));
        }
    }

    /// What evictions go by: whether they stop altogether, and the pace in some zones.
    fn rules(&self, zones: &BTreeSet<String>) -> (bool, Vec<Option<std::time::Duration>>) {
        let pace = |zone: &String| {
            let Count { ready, unready } = self.zone(zone);
            pace(ready, unready)
        };
        (self.none_is_ready(), zones.iter().map(pace).collect())
    }

    /// Whether there are nodes that count, and none of them is ready.
    pub fn none_is_ready(&self) -> bool {
        self.all.ready == 0 && self.all.unready > 0
    }

    /// The nodes of a zone that count.
    pub fn zone(&self, zone: &str) -> Count {
        self.zones.get(zone).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::view::NodeCondition;

    fn node(ready: bool, zone: &str) -> NodeRow {
        let mut row = NodeRow::new(&Node::default());
        let status = if ready { "True" } else { "False" };
        row.conditions = vec![NodeCondition { type_: "Ready".into(), status: status.into(), heartbeat: None }];
        row.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
        row
    }

    #[test]
    fn nodes_are_counted_as_they_change() {
        let mut census = Census::default();
        assert!(!census.none_is_ready(), "there is no node at all");
        census.set("a", Some(&node(true, "x")));
        census.set("a", Some(&node(true, "x")));
        census.set("b", Some(&node(false, "x")));
        census.set("c", Some(&node(false, "y")));
        assert_eq!((census.zone("/x"), census.zone("/y")), (Count { ready: 1, unready: 1 }, Count { ready: 0, unready: 1 }));
        assert!(!census.none_is_ready());
        census.set("b", Some(&node(true, "y")));
        assert_eq!((census.zone("/x"), census.zone("/y")), (Count { ready: 1, unready: 0 }, Count { ready: 1, unready: 1 }));
        let mut excluded = node(true, "x");
        excluded.labels.insert(EXCLUDED.into(), String::new());
        census.set("a", Some(&excluded));
        assert_eq!(census.zone("/x"), Count::default(), "a node with the label does not count");
        census.set("b", Some(&node(false, "y")));
        assert!(census.none_is_ready(), "only the one that does not count is ready");
        for name in ["a", "b", "c", "d"] {
            census.set(name, None);
        }
        assert!(census.nodes.is_empty() && census.zones.is_empty() && census.unready.is_empty() && census.all == Count::default());
    }

    #[test]
    fn others_are_looked_at_only_when_their_evictions_may_be_decided_otherwise() {
        let mut census = Census::default();
        assert_eq!(census.set("a", Some(&node(false, "x"))), [""; 0]);
        assert_eq!(census.set("b", Some(&node(false, "x"))), [""; 0]);
        assert_eq!(census.set("c", Some(&node(true, "x"))), ["a", "b"], "evictions go on from now on");
        assert_eq!(census.set("d", Some(&node(true, "x"))), [""; 0]);
        assert_eq!(census.set("e", Some(&node(false, "x"))), ["a", "b"], "too many of the zone are lost");
        assert_eq!(census.set("d", Some(&node(true, "x"))), [""; 0], "nothing has changed");
        assert_eq!(census.set("e", Some(&node(true, "x"))), ["a", "b"], "no longer");
        for name in ["c", "d"] {
            census.set(name, None);
        }
        assert_eq!(census.set("e", None), ["a", "b"], "none is ready");
    }
}
