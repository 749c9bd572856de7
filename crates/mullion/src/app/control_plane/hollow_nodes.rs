//! What the control plane does for hollow nodes: their rights, and the end of those that are no more.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};

/// Gives `count` hollow nodes their rights, and deletes those of an earlier start that had more: nobody would ever delete them, or end what
/// is bound to them.
pub async fn prepare(client: &Client, count: u32) -> Result<()> {
    super::rights::hollow_nodes(client, count).await?;
    let nodes = Api::<Node>::all(client.clone());
    let hollow = ListParams::default().labels(&format!("{}=true", kube_rules::node_labels::HOLLOW));
    let found = nodes.list_metadata(&hollow).await.context("listing hollow nodes failed")?;
    let kept: std::collections::BTreeSet<String> = hollow::names(count).collect();
    for name in found.items.into_iter().filter_map(|node| node.metadata.name).filter(|name| !kept.contains(name)) {
        nodes.delete(&name, &DeleteParams::default()).await.with_context(|| format!("deleting the hollow node {name} failed"))?;
    }
    Ok(())
}
