//! Node IPAM: assigns each node its pod CIDR from the cluster's range.
//!
//! Inputs: nodes. Outputs: `spec.podCIDR(s)`. Mirrors `pkg/controller/nodeipam` (range allocator).
//! Guarantees: a node keeps the range it has; no two nodes get overlapping ones; the lowest free one is given.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_not_found};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::Views,
};

/// The cluster's range and each node's prefix length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranges {
    pub cluster: Ipv4Net,
    pub node_mask: u8,
}

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
    ranges: Ranges,
    /// Ranges given but perhaps not yet seen on their node.
    given: Mutex<BTreeMap<String, Ipv4Net>>,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, ranges: Ranges, shutdown: CancellationToken) {
    let queue = Queue::<String>::default();
    let keys = queue.clone();
    views.nodes.subscribe(move |change| keys.add(change.key.name.clone()));
    let events = EventRecorder::new(client.clone(), "cidrAllocator", "");
    let context = Arc::new(Context { client, views, events, ranges, given: Mutex::default() });
    queue.run("nodeipam", 4, shutdown, |node| sync(context.clone(), node)).await;
}

/// The lowest range that overlaps none of `taken`; none when the cluster's range is used up.
fn next_free(ranges: Ranges, taken: &[Ipv4Net]) -> Option<Ipv4Net> {
    let overlaps = |one: &Ipv4Net, other: &Ipv4Net| one.contains(&other.network()) || other.contains(&one.network());
    ranges.cluster.subnets(ranges.node_mask).ok()?.find(|range| !taken.iter().any(|other| overlaps(range, other)))
}

async fn sync(context: Arc<Context>, name: String) -> anyhow::Result<Next> {
    let Some(node) = context.views.nodes.get(Key::cluster(&name)) else {
        context.given.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        return Ok(Next::Change);
    };
    if !node.pod_cidrs.is_empty() || node.deleting {
        return Ok(Next::Change);
    }
    let Some(range) = reserve(&context, &name) else {
        let object = ObjectReference { kind: Some("Node".into()), name: Some(name.clone()), uid: Some(node.uid.clone()), ..Default::default() };
        context.events.event(&object, EventType::Normal, "CIDRNotAvailable", None, format!("Node {name} status is now: CIDRNotAvailable"));
        anyhow::bail!("no free range for node {name} in {}: choose a wider --cluster-cidr or a longer --node-mask", context.ranges.cluster);
    };
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = json!({"metadata": {"uid": node.uid}, "spec": {"podCIDR": range, "podCIDRs": [range]}});
    match nodes.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(error) if is_not_found(&error) => Ok(Next::Change),
        other => other.map(|_| Next::Change).with_context(|| format!("giving {range} to node {name}")),
    }
}

fn reserve(context: &Context, name: &str) -> Option<Ipv4Net> {
    let mut given = context.given.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(range) = given.get(name) {
        return Some(*range);
    }
    let rows = context.views.nodes.snapshot();
    let seen = rows.iter().flat_map(|(_, node)| node.pod_cidrs.iter()).filter_map(|cidr| cidr.parse().ok());
    let taken: Vec<Ipv4Net> = seen.chain(given.values().copied()).collect();
    let range = next_free(context.ranges, &taken)?;
    given.insert(name.to_owned(), range);
    Some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_range() {
        let ranges = Ranges { cluster: "192.168.0.0/22".parse().unwrap(), node_mask: 24 };
        let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect::<Vec<Ipv4Net>>();
        for (taken, expected) in [
            (&[][..], Some("192.168.0.0/24")),
            (&["192.168.0.0/24", "192.168.2.0/24"], Some("192.168.1.0/24")),
            (&["192.168.0.0/23"], Some("192.168.2.0/24")),
            (&["192.168.0.128/25"], Some("192.168.1.0/24")),
            (&["10.0.0.0/24"], Some("192.168.0.0/24")),
            (&["192.168.0.0/22"], None),
        ] {
            assert_eq!(next_free(ranges, &nets(taken)).map(|net| net.to_string()).as_deref(), expected, "{taken:?}");
        }
    }
}
