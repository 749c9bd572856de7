//! What the node agent does on a small node, for [`crate::functions`]: it is traced, and nothing is measured. Its containers are simulated,
//! so that no root is needed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use host::NodeOs;
use http::Method;
use images::{LoadOptions, Store};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::agents::{self, Agent, Runtime};
use super::containerd::{self, IMAGE};
use super::pods::{PODS, Pods};
use crate::control_plane::load::Connection;
use crate::control_plane::site::{self, Site};

/// How long what follows a start of pods may last.
const SETTLED: Duration = Duration::from_secs(5);
/// How long it is left alone: longer than all that it does again and again, but for what takes minutes.
const REST: Duration = Duration::from_secs(25);
/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(300);
const COUNT: usize = 3;
/// What is asked of the agent's port.
const ASKED: [&str; 5] = ["stats/summary", "metrics", "metrics/resource", "metrics/probes", "pods"];

/// Runs all parts of `mullion node` behind these arguments of this program, from its start to its end.
pub fn exercise(mullion: &Path, below: &[String]) -> Result<()> {
    site::add_addresses()?;
    agents::add_address()?;
    super::run(async {
        let directory = tempfile::tempdir()?;
        let site = Site::new(directory.path())?;
        let server = site.start(mullion).await?;
        let runtime = Runtime {
            endpoint: format!("unix://{}", site.path("cri").display()),
            cni_conf: site.path("cni-conf"),
            simulated: Some(site.path("root")),
        };
        let _containers = start_containers(mullion, &site, &runtime).await?;
        let agent = Agent::start_below(&std::env::current_exe()?, below, mullion, &site, &server, &runtime)?;
        let mut connection = site.admin(&server)?.connect().await?;
        work(&mut connection, &agent).await.with_context(|| site.log("node"))?;
        agent.end()?;
        server.end()
    })
}

/// The simulated container runtime of the node, with the image.
async fn start_containers(mullion: &Path, site: &Site, runtime: &Runtime) -> Result<crate::process::Running> {
    let (state, cache) = (site.path("state"), site.path("cache"));
    for made in [&state, &cache, &runtime.cni_conf, &site.path("root"), &site.path("netns"), &site.path("cni-bin")] {
        std::fs::create_dir_all(made)?;
    }
    let archive = site.path("image.tar");
    std::fs::write(&archive, containerd::image()?)?;
    let options = LoadOptions { name: Some(IMAGE.to_owned()), ..LoadOptions::default() };
    Store::open(&state.join("images"), &cache, NodeOs::Linux)?.load(&archive, &options)?;
    let option = |name: &str, path: &str| format!("--{name}={}", site.path(path).display());
    let arguments = [
        "container-sim".to_owned(),
        "--node=bench".to_owned(),
        "--os=linux".to_owned(),
        "--processors=2".to_owned(),
        option("socket", "cri"),
        option("state-dir", "state"),
        option("cache-dir", "cache"),
        option("netns-dir", "netns"),
        option("cni-conf-dir", "cni-conf"),
        option("cni-bin-dir", "cni-bin"),
        option("root", "root"),
    ];
    let running = site.spawn(mullion, "container-sim", &arguments, None)?;
    let client = cri::Client::connect(&runtime.endpoint)?;
    let begun = Instant::now();
    while client.version(cri::v1::VersionRequest::default()).await.is_err() {
        ensure!(begun.elapsed() < PATIENCE, "the simulated runtime does not answer:\n{}", site.log("container-sim"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(running)
}

/// The functions of its rest are a list of their own (see [`crate::functions::trace`]).
async fn work(connection: &mut Connection, agent: &Agent) -> Result<()> {
    let node = agent.name();
    let mut pods = Pods::new(connection.clone(), node)?;
    pods.node_ready().await?;
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    connection.create("/api/v1/namespaces/default/services", &service).await?;
    for (kind, content) in [("configmaps", json!({"a": "b"})), ("secrets", json!({"a": "Yg=="}))] {
        connection.create(&format!("/api/v1/namespaces/default/{kind}"), &json!({"metadata": {"name": "files"}, "data": content})).await?;
    }
    connection.create(PODS, &rich(node)).await?;
    connection.until(&format!("{PODS}/rich"), PATIENCE, |pod| kube_rules::is_status_ready(&pod["status"])).await?;
    pods.create(COUNT).await?;
    for path in ASKED {
        connection.get(&format!("/api/v1/nodes/{node}/proxy/{path}")).await?;
    }
    connection.get(&format!("{PODS}/rich/log")).await?;
    pods.delete_all().await?;
    let (code, _) = connection.discard(Method::DELETE, &format!("{PODS}/rich"), None).await?;
    ensure!(code == 200, "deleting a pod answered {code}");
    let begun = Instant::now();
    while connection.ask(Method::GET, &format!("{PODS}/rich"), "", None).await?.code != 404 {
        ensure!(begun.elapsed() < PATIENCE, "a pod is not gone");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // With pods at rest, as most nodes are.
    pods.create(COUNT).await?;
    tokio::time::sleep(SETTLED).await;
    agent.signal(Signal::USR1)?;
    tokio::time::sleep(REST).await;
    Ok(())
}

/// A pod with what most pods have: volumes, variables, limits, a probe, a token.
fn rich(node: &str) -> Value {
    let reference = |kind: &str| json!({kind: {"name": "files", "key": "a"}});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rich", "labels": {"app": "web"}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 5,
            "volumes": [
                {"name": "config", "configMap": {"name": "files"}}, {"name": "secret", "secret": {"secretName": "files"}},
                {"name": "empty", "emptyDir": {}}, {"name": "about", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ],
            "containers": [{
                "name": "wait", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "env": [
                    {"name": "A", "valueFrom": reference("configMapKeyRef")}, {"name": "B", "valueFrom": reference("secretKeyRef")},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}, "limits": {"cpu": "1", "memory": "100Mi"}},
                "livenessProbe": {"tcpSocket": {"port": 1}, "failureThreshold": 1000, "periodSeconds": 1},
                "volumeMounts": [
                    {"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"},
                    {"name": "empty", "mountPath": "/empty"}, {"name": "about", "mountPath": "/about"},
                ],
            }],
        },
    })
}
