//! What a control plane does in a small cluster, for [`crate::functions`]: it is traced, and nothing is measured.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;

use super::hollow::Nodes;
use super::load::Connection;
use super::site::{self, Site};
use super::{NODES, objects, run, settle};

/// How long it is left alone: longer than all that it does again and again, but for what takes minutes.
const REST: Duration = Duration::from_secs(25);
/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(300);
const REPLICAS: u64 = 3;
const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";

/// How much it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exercise {
    /// It starts and serves nodes at rest.
    Rest,
    /// Before the rest it also runs a workload with a Service, and serves a custom resource.
    Work,
}

/// Runs `mullion control-plane` behind these arguments of this program, from its start to its end.
pub fn exercise(mullion: &Path, exercise: Exercise, options: &[String]) -> Result<()> {
    site::add_addresses()?;
    run(async {
        let directory = tempfile::tempdir()?;
        let site = Site::new(directory.path())?;
        let server = site.start_below(&std::env::current_exe()?, options, mullion).await?;
        let mut nodes = Nodes::start(&site, &server, NODES, true).await?;
        if exercise == Exercise::Work {
            work(&mut site.admin(&server)?.connect().await?).await?;
        }
        tokio::time::sleep(REST).await;
        nodes.check()?;
        server.end()
    })
}

async fn work(connection: &mut Connection) -> Result<()> {
    settle::usable(connection, NODES, PATIENCE).await?;
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    connection.create("/api/v1/namespaces/default/services", &service).await?;
    connection.create(settle::DEPLOYMENTS, &settle::deployment(REPLICAS)).await?;
    connection.until(WEB, PATIENCE, |deployment| settle::is_settled(deployment, REPLICAS)).await?;
    super::define(connection, 1, PATIENCE).await?;
    for path in ["/api/v1/pods", "/api/v1/namespaces", "/api", "/apis", objects::custom(0).0.as_str()] {
        connection.get(path).await?;
    }
    let none = json!({"spec": {"replicas": 0}}).to_string();
    let scaled = connection.ask(Method::PATCH, WEB, "application/merge-patch+json", Some(none.into())).await?;
    ensure!(scaled.code == 200, "scaling a Deployment answered {}", scaled.code);
    connection.until(WEB, PATIENCE, |deployment| deployment["status"]["replicas"].as_u64().unwrap_or_default() == 0).await
}
