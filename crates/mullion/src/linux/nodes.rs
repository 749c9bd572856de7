//! Readiness of the nodes, from the API.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster::{Informer, Selection};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use thiserror_ext::AsReport as _;
use tokio_util::sync::CancellationToken;

pub use kube_rules::is_node_ready as is_ready;

/// How long a node agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many nodes that are missing are named.
const MOST_NAMED: usize = 10;

/// A Node, and the counts of its calls to HNS, as its agent serves them; absent of a node without HNS.
pub struct NodeStatus {
    pub node: Node,
    pub hcn: Option<Result<Value, String>>,
}

/// The Nodes there are. Node agents are asked at the same time.
pub fn list(kubeconfig: &Path) -> Result<Vec<NodeStatus>> {
    crate::agent_runtime()?.block_on(async {
        cluster::install_crypto_provider();
        let client = cluster::client_from_kubeconfig(kubeconfig).await?;
        let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.context("listing the nodes failed")?;
        let with_counts = nodes.items.into_iter().map(async |node| {
            let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
            let has_hns = info.is_some_and(|info| info.operating_system == "windows") && !is_hollow(&node);
            let hcn = if has_hns { Some(hcn_counts(&client, node.metadata.name.as_deref().unwrap_or_default()).await) } else { None };
            NodeStatus { node, hcn }
        });
        Ok(futures::future::join_all(with_counts).await)
    })
}

/// Whether there is an agent alone.
pub fn is_hollow(node: &Node) -> bool {
    kube_rules::node_labels::is_hollow(node.metadata.labels.as_ref())
}

/// What a node's agent says of its calls to HNS.
async fn hcn_counts(client: &kube::Client, node: &str) -> Result<Value, String> {
    let request = http::Request::get(format!("/api/v1/nodes/{node}/proxy/debug/hcn")).body(Vec::new()).map_err(|error| error.to_string())?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Ok(counts) => counts.map_err(|error| format!("the node agent cannot be asked: {error}")),
        Err(_) => Err(format!("the node agent does not answer within {} s", PATIENCE.as_secs())),
    }
}

#[derive(Default)]
struct Seen {
    ready: BTreeSet<String>,
    reported: BTreeSet<String>,
    problem: Option<String>,
}

/// A watch on the nodes of a cluster that starts; dropping it ends the watch and its thread.
pub struct Watch {
    boots: Arc<BTreeMap<String, String>>,
    seen: Arc<Mutex<Seen>>,
    end: CancellationToken,
}

impl Watch {
    /// Begins to watch the nodes of `boots`: name → boot id. A resumed cluster still holds what was true before; only a
    /// node that reports its present boot counts.
    pub fn start(kubeconfig: PathBuf, boots: BTreeMap<String, String>) -> Self {
        let boots = Arc::new(boots);
        let expected = boots.clone();
        let (seen, end) = (Arc::new(Mutex::new(Seen::default())), CancellationToken::new());
        let (theirs, until) = (seen.clone(), end.clone());
        std::thread::spawn(move || {
            let work = || {
                crate::agent_runtime()?.block_on(async {
                    tokio::select! {
                        result = watch(&kubeconfig, &theirs, expected) => result,
                        () = until.cancelled() => Ok(()),
                    }
                })
            };
            if let Err(error) = work() {
                lock(&theirs).problem = Some(error.to_report_string());
            }
        });
        Self { boots, seen, end }
    }

    /// Nodes that became Ready since the last call.
    pub fn newly_ready(&self) -> Vec<String> {
        let mut seen = lock(&self.seen);
        let new: Vec<String> = seen.ready.difference(&seen.reported).cloned().collect();
        seen.reported.extend(new.iter().cloned());
        new
    }

    /// Whether all are.
    pub fn all_ready(&self) -> bool {
        let seen = lock(&self.seen);
        self.boots.keys().all(|name| seen.ready.contains(name))
    }

    /// Those that are not, and why they cannot be seen.
    pub fn missing(&self) -> String {
        let seen = lock(&self.seen);
        let mut names: Vec<_> = self.boots.keys().filter(|name| !seen.ready.contains(*name)).map(String::as_str).collect();
        let more = names.len().saturating_sub(MOST_NAMED);
        names.truncate(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let problem = seen.problem.as_ref().map(|problem| format!(" ({problem})")).unwrap_or_default();
        format!("{}{more}{problem}", names.join(", "))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(kubeconfig: &Path, seen: &Mutex<Seen>, boots: Arc<BTreeMap<String, String>>) -> Result<()> {
    cluster::install_crypto_provider();
    let client = cluster::client_from_kubeconfig(kubeconfig).await?;
    let nodes = Informer::start(Api::<Node>::all(client), Selection::all(), move |node: &Node| {
        let boot = node.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| &info.boot_id);
        Some(is_ready(node) && boot == node.metadata.name.as_ref().and_then(|name| boots.get(name)))
    });
    let mut changed = nodes.changed();
    loop {
        let ready = nodes.snapshot().into_iter().filter(|(_, ready)| **ready).map(|(key, _)| key.name.to_string()).collect();
        lock(seen).ready = ready;
        changed.changed().await.context("the watch on nodes ended")?;
    }
}
