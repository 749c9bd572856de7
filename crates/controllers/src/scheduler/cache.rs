//! Cache of the pods on each node, including decisions that are not written yet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cluster::Key;

use kube_rules::{HostPort, Resources};

use super::rows::{NodeRow, PodRow};

/// Usage of a node by its pods.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Usage {
    pub pods: i64,
    pub requests: Resources,
    /// The same, with defaults for containers without requests.
    pub weight: Resources,
    pub ports: Vec<HostPort>,
    /// The pods themselves.
    pub members: Vec<Arc<PodRow>>,
    /// Those of them that have wishes about other pods.
    pub minded: Vec<Arc<PodRow>>,
    /// Names this state of the node and its pods: no other state of a node of the cache has or had it. Zero where no cache holds it.
    pub stamp: u64,
}

impl Usage {
    /// Sum of these pods.
    pub fn of<'a>(pods: impl Iterator<Item = &'a Arc<PodRow>>) -> Self {
        let mut usage = Self::default();
        for pod in pods {
            usage.add(pod);
        }
        usage
    }

    fn add(&mut self, pod: &Arc<PodRow>) {
        self.pods += 1;
        self.members.push(pod.clone());
        if pod.rules.concern_others() {
            self.minded.push(pod.clone());
        }
        add(&mut self.requests, &pod.requests);
        add(&mut self.weight, &pod.weight);
        self.ports.extend(pod.ports.iter().cloned());
    }
}

fn add(total: &mut Resources, more: &Resources) {
    for (name, amount) in more {
        match total.get_mut(name) {
            Some(sum) => *sum = sum.saturating_add(*amount),
            None => _ = total.insert(name.clone(), *amount),
        }
    }
}

/// A node and its pods.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeState {
    /// None: pods name a node that does not exist.
    pub row: Option<Arc<NodeRow>>,
    pub usage: Usage,
    pods: BTreeMap<Key, Arc<PodRow>>,
}

impl NodeState {
    fn recount(&mut self) {
        self.usage = Usage::of(self.pods.values());
    }
}

/// All nodes, and where each pod is.
#[derive(Debug, Default)]
pub(super) struct Cache {
    nodes: BTreeMap<String, NodeState>,
    places: HashMap<Key, String>,
    /// The last stamp that was given.
    stamp: u64,
}

impl Cache {
    /// The nodes that exist.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeRow, &Usage)> + Clone {
        self.nodes.iter().filter_map(|(name, state)| Some((name.as_str(), state.row.as_deref()?, &state.usage)))
    }

    /// A node that exists.
    pub fn node(&self, name: &str) -> Option<&NodeRow> {
        self.nodes.get(name)?.row.as_deref()
    }

    /// The pods on a node, decisions that are not written yet among them.
    pub fn members(&self, node: &str) -> impl Iterator<Item = (&Key, &Arc<PodRow>)> {
        self.nodes.get(node).into_iter().flat_map(|state| state.pods.iter())
    }

    /// Whether a pod has a place, though its binding may not be written yet.
    pub fn has(&self, key: &Key) -> bool {
        self.places.contains_key(key)
    }

    /// A node changed or went away.
    pub fn set_node(&mut self, name: &str, row: Option<Arc<NodeRow>>) {
        self.stamp += 1;
        let state = self.nodes.entry(name.to_owned()).or_default();
        state.row = row;
        state.usage.stamp = self.stamp;
        if state.row.is_none() && state.pods.is_empty() {
            self.nodes.remove(name);
        }
    }

    /// A pod changed or went away; says whether it left a node. A pod without a node keeps the place it was given here.
    pub fn set_pod(&mut self, key: &Key, pod: Option<&Arc<PodRow>>) -> bool {
        match pod {
            Some(pod) if pod.finished => self.take_out(key),
            Some(pod) if !pod.node.is_empty() => {
                let moved = self.places.get(key).is_some_and(|place| *place != pod.node) && self.take_out(key);
                self.put(key, pod.clone(), &pod.node);
                moved
            }
            Some(_) => false,
            None => self.take_out(key),
        }
    }

    /// Counts a decision before it is written.
    pub fn assume(&mut self, key: &Key, pod: &PodRow, node: &str) {
        self.put(key, Arc::new(pod.clone()), node);
    }

    /// The decision could not be written.
    pub fn forget(&mut self, key: &Key) {
        self.take_out(key);
    }

    fn put(&mut self, key: &Key, pod: Arc<PodRow>, node: &str) {
        let state = self.nodes.entry(node.to_owned()).or_default();
        // A pod that was not there only adds to the sums.
        match state.pods.insert(key.clone(), pod.clone()) {
            None => state.usage.add(&pod),
            Some(_) => state.recount(),
        }
        self.stamp += 1;
        state.usage.stamp = self.stamp;
        self.places.insert(key.clone(), node.to_owned());
    }

    fn take_out(&mut self, key: &Key) -> bool {
        let Some(node) = self.places.remove(key) else { return false };
        if let Some(state) = self.nodes.get_mut(&node) {
            state.pods.remove(key);
            state.recount();
            self.stamp += 1;
            state.usage.stamp = self.stamp;
            if state.row.is_none() && state.pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;

    #[test]
    fn assumed_pod_counts_until_the_watch_contradicts_it() {
        let (mut cache, key) = (Cache::default(), Key::new("a", "web"));
        cache.set_node("win01", Some(Arc::new(NodeRow::new(&Node::default()))));
        let pending = Arc::new(PodRow::new(&Pod::default()));
        let pods = |cache: &Cache| cache.nodes().map(|(_, _, usage)| usage.pods).sum::<i64>();
        cache.assume(&key, &pending, "win01");
        assert_eq!(pods(&cache), 1);
        assert!(!cache.set_pod(&key, Some(&pending)), "a late row without a node changes nothing");
        assert!(cache.has(&key));
        let bound = Arc::new(PodRow { node: "win01".into(), ..(*pending).clone() });
        assert!(!cache.set_pod(&key, Some(&bound)));
        assert_eq!(pods(&cache), 1, "counted once");
        let done = Arc::new(PodRow { finished: true, ..(*bound).clone() });
        assert!(cache.set_pod(&key, Some(&done)), "an ended pod frees its node");
        assert_eq!(pods(&cache), 0);
        cache.assume(&key, &pending, "win01");
        cache.forget(&key);
        assert_eq!(pods(&cache), 0);
    }

    #[test]
    fn pods_of_a_deleted_node_count_when_it_returns() {
        let mut cache = Cache::default();
        let bound = Arc::new(PodRow { node: "win01".into(), ..PodRow::new(&Pod::default()) });
        cache.set_pod(&Key::new("a", "web"), Some(&bound));
        assert_eq!(cache.nodes().count(), 0);
        cache.set_node("win01", Some(Arc::new(NodeRow::new(&Node::default()))));
        assert_eq!(cache.nodes().next().unwrap().2.pods, 1);
    }
}
