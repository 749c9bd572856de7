//! Limitations of this machine that affect a cluster's pods, for `mullion status`.

use std::time::Duration;

use cri::v1;
use lab::dir::Dirs;

use super::cluster_file::Cluster;
use super::template;

/// How long a node's runtime may take to list its containers.
const ANSWER: Duration = Duration::from_secs(2);

/// One line for each limitation.
pub fn list(cluster: &Cluster, dirs: &Dirs) -> Vec<String> {
    let windows = cluster.nodes.iter().any(|node| node.os.is_windows());
    let wine = windows.then(|| wine::template::find(&template::cache(), template::version().as_deref()).err()).flatten();
    let mut lines: Vec<String> = wine.into_iter().map(|why| format!("Only stand-ins run on Windows nodes: {why}.")).collect();
    let Ok(runtime) = crate::agent_runtime() else { return lines };
    for node in cluster.nodes.iter().filter(|node| node.runtime.is_none()) {
        let endpoint = format!("unix://{}", dirs.socket(&node.name, "cri").display());
        // A runtime that does not answer is listed as a process that is not ready.
        let limits = runtime.block_on(async { tokio::time::timeout(ANSWER, unenforced(&endpoint)).await });
        lines.extend(limits.ok().and_then(Result::ok).and_then(|limits| line(&node.name, &limits)));
    }
    lines
}

/// The limits that nobody enforces, of each running container that has some: `cpu`, `cpu,memory`.
async fn unenforced(endpoint: &str) -> anyhow::Result<Vec<String>> {
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
    let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
    let containers = cri::Client::connect(endpoint)?.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await?;
    Ok(containers.into_iter().filter_map(|mut container| container.annotations.remove(container_sim::UNENFORCED)).collect())
}

fn line(node: &str, limits: &[String]) -> Option<String> {
    let kinds: std::collections::BTreeSet<&str> = limits.iter().flat_map(|limits| limits.split(',')).collect();
    let kinds = kinds.into_iter().collect::<Vec<_>>().join(" and ");
    let containers = if limits.len() == 1 { "container" } else { "containers" };
    let count = limits.len();
    (!limits.is_empty())
        .then(|| format!("limits of {count} {containers} are not enforced on {node} ({kinds}): no writable cgroup; see docs/limits.md."))
}

#[cfg(test)]
mod tests {
    #[test]
    fn limits_are_counted_by_node() {
        let line = |limits: &[&str]| super::line("win01", &limits.iter().map(|limit| (*limit).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&[]), None);
        assert_eq!(line(&["cpu"]).unwrap(), "limits of 1 container are not enforced on win01 (cpu): no writable cgroup; see docs/limits.md.");
        assert!(line(&["cpu,memory", "memory"]).unwrap().starts_with("limits of 2 containers are not enforced on win01 (cpu and memory): "));
    }
}
