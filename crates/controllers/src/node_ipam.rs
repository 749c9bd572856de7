//! Node IPAM: assigns each node its pod CIDR from the cluster's range, or one from the range of each family.
//!
//! Inputs: nodes. Outputs: `spec.podCIDR(s)`. Mirrors `pkg/controller/nodeipam` (range allocator).
//! Guarantees: a node keeps the ranges it has; no two nodes get overlapping ones; the lowest free ones are given.

mod ranges;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_not_found};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kube_rules::node_labels;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::Views,
};

pub use ranges::{NodeMasks, NodeRanges, NodeRangesError};

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
    ranges: NodeRanges,
    hollow_ranges: Option<NodeRanges>,
    /// Ranges given but perhaps not yet seen on their node.
    given: Mutex<BTreeMap<String, Vec<IpNet>>>,
}

/// The ranges of nodes, and those of hollow nodes.
pub(crate) type Ranges = (NodeRanges, Option<NodeRanges>);

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, (ranges, hollow_ranges): Ranges, shutdown: CancellationToken) {
    let queue = Queue::<String>::default();
    let keys = queue.clone();
    views.nodes.subscribe(move |change| keys.add(change.key.name.clone()));
    let events = EventRecorder::new(client.clone(), "cidrAllocator", "");
    let context = Arc::new(Context { client, views, events, ranges, hollow_ranges, given: Mutex::default() });
    queue.run("nodeipam", 4, shutdown, |node| sync(context.clone(), node)).await;
}

async fn sync(context: Arc<Context>, name: String) -> anyhow::Result<Next> {
    let Some(node) = context.views.nodes.get(Key::cluster(&name)) else {
        context.given.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        return Ok(Next::Change);
    };
    if !node.pod_cidrs.is_empty() || node.deleting {
        return Ok(Next::Change);
    }
    let hollow = context.hollow_ranges.as_ref().filter(|_| node_labels::is_hollow(Some(&node.labels)));
    let ranges = hollow.unwrap_or(&context.ranges);
    let Some(shares) = reserve(&context, &name, ranges) else {
        let object = ObjectReference { kind: Some("Node".into()), name: Some(name.clone()), uid: Some(node.uid.clone()), ..Default::default() };
        context.events.event(&object, EventType::Normal, "CIDRNotAvailable", None, format!("Node {name} status is now: CIDRNotAvailable"));
        anyhow::bail!("no free range for node {name} in {ranges}: choose a wider --cluster-cidr or a longer --node-mask");
    };
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = json!({"metadata": {"uid": node.uid}, "spec": {"podCIDR": shares.first(), "podCIDRs": shares}});
    match nodes.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(error) if is_not_found(&error) => Ok(Next::Change),
        other => other.map(|_| Next::Change).with_context(|| format!("giving {shares:?} to node {name}")),
    }
}

fn reserve(context: &Context, name: &str, ranges: &NodeRanges) -> Option<Vec<IpNet>> {
    let mut given = context.given.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shares) = given.get(name) {
        return Some(shares.clone());
    }
    let rows = context.views.nodes.snapshot();
    let seen = rows.iter().flat_map(|(_, node)| node.pod_cidrs.iter()).filter_map(|cidr| cidr.parse().ok());
    let taken: Vec<IpNet> = seen.chain(given.values().flatten().copied()).collect();
    let shares = ranges.next_free(&taken)?;
    given.insert(name.to_owned(), shares.clone());
    Some(shares)
}
