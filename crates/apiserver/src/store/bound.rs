//! Pods by the node that they are bound to: every node asks for the tokens, ConfigMaps and Secrets of its pods.

use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Where the keys of pods begin.
pub const PODS: &str = "core/pods/";

/// An index of keys.
#[derive(Default)]
pub(super) struct PodsByNode {
    node_of: HashMap<Arc<str>, Arc<str>>,
    pods_of: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
}

impl PodsByNode {
    /// Notes that a pod is bound to a node, or to none any more.
    pub fn set(&mut self, key: &Arc<str>, node: Option<String>) {
        if self.node_of.get(key).map(|node| &**node) == node.as_deref() {
            return;
        }
        if let Some(before) = self.node_of.remove(key)
            && let Some(pods) = self.pods_of.get_mut(&before)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.pods_of.remove(&before);
            }
        }
        if let Some(name) = node {
            let node = self.pods_of.get_key_value(&*name).map_or_else(|| Arc::from(name.as_str()), |(node, _)| Arc::clone(node));
            self.node_of.insert(Arc::clone(key), Arc::clone(&node));
            self.pods_of.entry(node).or_default().insert(Arc::clone(key));
        }
    }

    /// The node that a pod is bound to.
    pub fn node_of(&self, key: &str) -> Option<Arc<str>> {
        self.node_of.get(key).cloned()
    }

    /// The keys of a node's pods, in their order.
    pub fn pods_of(&self, node: &str) -> impl Iterator<Item = &Arc<str>> {
        self.pods_of.get(node).into_iter().flatten()
    }
}

/// The node that an encoded pod is bound to. The rest of it is passed over.
pub(super) fn node_of(pod: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Pod<'a> {
        #[serde(borrow, default)]
        spec: Spec<'a>,
    }
    #[derive(Default, Deserialize)]
    struct Spec<'a> {
        #[serde(borrow, default, rename = "nodeName")]
        node_name: Cow<'a, str>,
    }
    let pod: Pod<'_> = serde_json::from_slice(pod).ok()?;
    Some(pod.spec.node_name.into_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn pods_are_bound_to_the_node_that_their_specification_names() {
        let node = |pod: Value| node_of(pod.to_string().as_bytes());
        let other = json!({"metadata": {"labels": {"nodeName": "n2"}}, "spec": {"containers": [{"nodeName": 1}], "nodeName": "n1"}});
        assert_eq!(node(other).as_deref(), Some("n1"));
        for none in
            [json!({}), json!({"spec": {}}), json!({"nodeName": "n1"}), json!({"spec": {"nodeName": null}}), json!({"spec": {"nodeName": ""}})]
        {
            assert_eq!(node(none.clone()), None, "{none}");
        }
    }

    #[test]
    fn a_pod_is_listed_for_one_node_alone() {
        let (mut bound, a, b): (_, Arc<str>, Arc<str>) = (PodsByNode::default(), "core/pods/x/a".into(), "core/pods/x/b".into());
        let list = |bound: &PodsByNode, node: &str| bound.pods_of(node).map(|key| key.to_string()).collect::<Vec<_>>();
        for (key, node) in [(&a, None), (&a, Some("n1")), (&a, Some("n1")), (&b, Some("n1"))] {
            bound.set(key, node.map(str::to_owned));
            assert_eq!(bound.node_of(key).as_deref(), node);
        }
        assert_eq!(list(&bound, "n1"), [&*a, &*b]);
        bound.set(&a, Some("n2".into()));
        assert_eq!((list(&bound, "n1"), list(&bound, "n2")), (vec![b.to_string()], vec![a.to_string()]));
        bound.set(&b, None);
        assert!(bound.pods_of.len() == 1 && bound.node_of.len() == 1, "nothing is kept of nodes without pods");
    }
}
