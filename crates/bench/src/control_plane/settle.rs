//! `bench settle`: how long a Deployment of 1,000 replicas takes on hollow nodes, from its creation to its last available replica.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::hollow::Nodes;
use super::load::Connection;
use super::site::Site;
use super::{Args, add_disk};
use crate::figures::{Amount, Figures, Limit};
use crate::process;

const REPLICAS: u64 = 1_000;
const NODES: usize = 20;
const SETTLED: Duration = Duration::from_secs(3);
/// How long it may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(120);
pub(super) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// Measures.
pub async fn measure(args: &Args, figures: &mut Figures) -> Result<()> {
    add_disk(figures, &args.directory)?;
    let site = Site::new(&args.directory)?;
    let server = site.start(&args.mullion).await?;
    let mut nodes = Nodes::start(&site, &server, NODES, false).await?;
    let mut connection = site.admin(&server)?.connect().await?;
    usable(&mut connection, NODES, PATIENCE).await?;
    let (own, theirs) = (process::cpu(std::process::id())?, server.cpu()?);
    let begun = Instant::now();
    connection.create(DEPLOYMENTS, &deployment(REPLICAS)).await?;
    let settled = tokio::time::timeout(PATIENCE, settled(&mut connection)).await;
    let took = begun.elapsed();
    nodes.check()?;
    settled.with_context(|| format!("{} of {REPLICAS} pods were reported Ready after {PATIENCE:?}", nodes.reported()))??;
    let share = |time: Duration| time.as_secs_f64() / took.as_secs_f64() * 100.0;
    let detail = format!(
        "of a processor: control plane {:.0} %, hollow nodes {:.0} %",
        share(server.cpu()? - theirs),
        share(process::cpu(std::process::id())? - own)
    );
    figures.add_detailed(
        format!("{REPLICAS} replicas on {NODES} nodes available, from the Deployment's creation"),
        Amount::time(took),
        detail,
        Limit::AtMost(Amount::time(SETTLED)),
    );
    let (all, _) = server.memory()?;
    figures.background("PSS of the control plane with them", Amount::megabytes(all));
    Ok(())
}

/// Waits until pods can be created and bound: the namespace has its ServiceAccount, and every node its addresses and no taint.
pub async fn usable(connection: &mut Connection, wanted: usize, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        let account = connection.get("/api/v1/namespaces/default/serviceaccounts/default").await.is_ok();
        let nodes = connection.get("/api/v1/nodes").await?.json()?;
        let nodes = nodes["items"].as_array().cloned().unwrap_or_default();
        let ready = |node: &Value| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty) && node["spec"]["podCIDR"].is_string();
        if account && nodes.iter().filter(|node| ready(node)).count() == wanted {
            return Ok(());
        }
        ensure!(begun.elapsed() < patience, "the nodes are not usable after {patience:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A Deployment `web`.
pub fn deployment(replicas: u64) -> Value {
    let labels = json!({"app": "web"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": labels},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "automountServiceAccountToken": false,
                "containers": [{"name": "web", "image": "registry.example/web:1.27", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}],
            }},
        },
    })
}

/// Ends when the Deployment says that all its replicas are available.
async fn settled(connection: &mut Connection) -> Result<()> {
    let mut lines = connection.watch(&format!("{DEPLOYMENTS}?watch=1&fieldSelector=metadata.name%3Dweb")).await?;
    while let Some(line) = lines.next().await? {
        let event: Value = serde_json::from_slice(&line)?;
        if is_settled(&event["object"], REPLICAS) {
            return Ok(());
        }
    }
    anyhow::bail!("the watch of the Deployment ended")
}

/// Whether all replicas are available.
pub fn is_settled(deployment: &Value, replicas: u64) -> bool {
    let status = &deployment["status"];
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"].iter().all(|count| status[count] == replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_has_settled_with_its_last_available_replica() {
        let of = |available: u64, observed: u64| {
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": observed, "replicas": 1000, "updatedReplicas": 1000,
                "readyReplicas": 1000, "availableReplicas": available}})
        };
        assert!(is_settled(&of(1000, 2), 1000));
        assert!(!is_settled(&of(999, 2), 1000) && !is_settled(&of(1000, 1), 1000));
    }
}
