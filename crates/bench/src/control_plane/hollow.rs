//! Hollow nodes: as much of a node as the control plane sees. Each has a connection and an identity of its own, registers its Node, renews
//! its Lease, watches its pods, and reports each as Running and Ready as soon as it is bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::load::{Connection, STRATEGIC};
use super::site::{Server, Site};

/// As kubelets (`nodeLeaseDurationSeconds` / 4).
const RENEWAL: Duration = Duration::from_secs(10);
const TIME: &str = "2026-01-01T00:00:00Z";
/// What the service proxy and the pod network of a node watch.
const WATCHES: [&str; 3] = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes"];

/// Nodes that run until this is dropped.
pub struct Nodes {
    tasks: JoinSet<Result<()>>,
    reported: Arc<AtomicUsize>,
}

impl Nodes {
    /// Registers so many, and follows their pods. With `watches` each also watches what a whole node does.
    pub async fn start(site: &Site, server: &Server, count: usize, watches: bool) -> Result<Self> {
        let mut nodes = Self { tasks: JoinSet::new(), reported: Arc::default() };
        for number in 0..count {
            let name = format!("node-{number}");
            let access = site.access(server, &format!("system:node:{name}"), "system:nodes")?;
            let mut connection = access.connect().await?;
            connection.create("/api/v1/nodes", &node(&name, number)).await?;
            let lease = json!({"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
            connection.create(LEASES, &lease).await?;
            nodes.tasks.spawn(renew(connection.clone(), name.clone()));
            for path in WATCHES.iter().filter(|_| watches) {
                nodes.tasks.spawn(follow(connection.clone(), format!("{path}?watch=1&resourceVersion=0")));
            }
            nodes.tasks.spawn(run_pods(connection, name, number, nodes.reported.clone()));
        }
        Ok(nodes)
    }

    /// How many pods were reported as Ready.
    pub fn reported(&self) -> usize {
        self.reported.load(Ordering::Relaxed)
    }

    /// Fails when a node's part has ended, which none should.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => ended?.and_then(|()| anyhow::bail!("a watch ended")).context("a hollow node failed"),
        }
    }
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn node(name: &str, number: usize) -> serde_json::Value {
    let resources = json!({"cpu": "32", "memory": "128Gi", "ephemeral-storage": "500Gi", "pods": "110"});
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "", "lastHeartbeatTime": TIME, "lastTransitionTime": TIME});
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name}},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": address(number)}, {"type": "Hostname", "address": name}],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"), condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"), condition("Ready", "True", "KubeletReady"),
            ],
            "nodeInfo": {"machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.18", "osImage": "hollow", "operatingSystem": "linux",
                "architecture": "amd64", "containerRuntimeVersion": "hollow://1", "kubeletVersion": "v1.36.2", "kubeProxyVersion": ""},
        },
    })
}

fn address(number: usize) -> String {
    format!("10.240.{}.{}", 1 + number / 200, number % 200 + 11)
}

async fn renew(mut connection: Connection, name: String) -> Result<()> {
    loop {
        tokio::time::sleep(RENEWAL).await;
        let now = connection.get(&format!("{LEASES}/{name}")).await?.json()?;
        let held = now["spec"]["leaseTransitions"].as_u64().unwrap_or_default();
        let lease = json!({"spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "leaseTransitions": held, "renewTime": micro_time()}});
        let patch = Some(lease.to_string().into());
        let answer = connection.ask(Method::PATCH, &format!("{LEASES}/{name}"), "application/merge-patch+json", patch).await?;
        ensure!(answer.code == 200, "renewing a lease failed: {}", String::from_utf8_lossy(&answer.body));
    }
}

/// The time of day as `MicroTime`.
fn micro_time() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Takes what a watch says, and does nothing with it.
async fn follow(mut connection: Connection, path: String) -> Result<()> {
    let mut lines = connection.watch(&path).await?;
    while lines.next().await?.is_some() {}
    Ok(())
}

/// As much of an event as a hollow node looks at.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: &'a str,
    #[serde(borrow)]
    object: Pod<'a>,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(default, borrow)]
    status: Status<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
    #[serde(default)]
    deletion_timestamp: Option<&'a str>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    #[serde(default)]
    phase: &'a str,
}

/// Path and patch of the status that an event asks for.
fn answer(line: &[u8], number: usize, pods: usize) -> Result<Option<(String, String)>> {
    let event: Event<'_> = serde_json::from_slice(line).with_context(|| format!("an event is not understood: {}", String::from_utf8_lossy(line)))?;
    let (metadata, status) = (event.object.metadata, event.object.status);
    if !matches!(event.kind, "ADDED" | "MODIFIED") || metadata.deletion_timestamp.is_some() || status.phase != "Pending" {
        return Ok(None);
    }
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": TIME});
    let conditions: Vec<_> = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"].map(condition).into();
    let ip = format!("192.168.{number}.{}", pods + 2);
    let patch = json!({
        "metadata": {"uid": metadata.uid},
        "status": {
            "phase": "Running", "conditions": conditions, "hostIP": address(number), "hostIPs": [{"ip": address(number)}],
            "podIP": ip, "podIPs": [{"ip": ip}], "startTime": TIME,
            "containerStatuses": [{"name": "web", "image": "registry.example/web:1.27", "imageID": "", "containerID": format!("hollow://{}", metadata.uid),
                "ready": true, "started": true, "restartCount": 0, "state": {"running": {"startedAt": TIME}}}],
        },
    });
    Ok(Some((format!("/api/v1/namespaces/{}/pods/{}/status", metadata.namespace, metadata.name), patch.to_string())))
}

async fn run_pods(mut connection: Connection, name: String, number: usize, reported: Arc<AtomicUsize>) -> Result<()> {
    let path = format!("/api/v1/pods?watch=1&resourceVersion=0&fieldSelector=spec.nodeName%3D{name}");
    let mut lines = connection.watch(&path).await?;
    let mut writes = JoinSet::new();
    let mut pods = 0;
    loop {
        tokio::select! {
            line = lines.next() => {
                let Some(line) = line? else { return Ok(()) };
                if let Some((path, patch)) = answer(&line, number, pods)? {
                    pods += 1;
                    writes.spawn(report(connection.clone(), path, patch.into(), reported.clone()));
                }
            }
            Some(done) = writes.join_next() => done??,
        }
    }
}

async fn report(mut connection: Connection, path: String, patch: Bytes, reported: Arc<AtomicUsize>) -> Result<()> {
    let answer = connection.ask(Method::PATCH, &path, STRATEGIC, Some(patch)).await?;
    // A pod that was deleted meanwhile needs no status.
    ensure!(matches!(answer.code, 200 | 404), "{path} answered {}: {}", answer.code, String::from_utf8_lossy(&answer.body));
    reported.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, more: &str, phase: &str) -> String {
        format!(
            r#"{{"type":"{kind}","object":{{"kind":"Pod","metadata":{{"name":"a","namespace":"b","uid":"u","labels":{{}}{more}}},"spec":{{}},"status":{{"phase":"{phase}"}}}}}}"#
        )
    }

    #[test]
    fn bound_pods_are_reported_ready_once() {
        let (path, patch) = answer(event("ADDED", "", "Pending").as_bytes(), 3, 7).unwrap().unwrap();
        assert_eq!(path, "/api/v1/namespaces/b/pods/a/status");
        let patch: serde_json::Value = serde_json::from_str(&patch).unwrap();
        assert_eq!((&patch["status"]["podIP"], &patch["metadata"]["uid"]), (&json!("192.168.3.9"), &json!("u")));
        assert!(answer(event("MODIFIED", "", "Running").as_bytes(), 3, 7).unwrap().is_none(), "it is reported already");
        assert!(answer(event("DELETED", "", "Pending").as_bytes(), 3, 7).unwrap().is_none());
        let going = event("MODIFIED", r#","deletionTimestamp":"2026-01-01T00:00:00Z""#, "Pending");
        assert!(answer(going.as_bytes(), 3, 7).unwrap().is_none());
        assert!(answer(b"{}", 3, 7).is_err());
    }
}
