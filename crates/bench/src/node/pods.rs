//! Pods of the measured node, as a client of the API server sees them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cri::v1;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::containerd::IMAGE;
use crate::control_plane::load::{Connection, Lines};
use crate::control_plane::settle::usable;

pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// How long pods may take before they count as failed.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a subscription takes at most.
const SUBSCRIBED: Duration = Duration::from_secs(2);
/// How many questions about adopted pods are asked at once.
const QUESTIONS: usize = 4;
/// Between two looks at what the agent has taken over.
const PAUSE: Duration = Duration::from_millis(20);

/// The pods, and the watch that says how they are.
pub struct Pods {
    connection: Connection,
    node: String,
    /// Opened with the first pod.
    watch: Option<Lines>,
    /// Whether each one is Ready.
    known: BTreeMap<String, bool>,
    serial: usize,
}

/// How long it took to know of containers' ends.
#[derive(Default)]
pub struct Exits {
    /// Until a watch of the API had the status.
    pub api: Vec<Duration>,
    /// Until the runtime's own events told it: no agent knows sooner.
    pub runtime: Vec<Duration>,
}

/// Waits until the events begin: those before are lost. A runtime with events of CRI may say that they begin with the first one only.
async fn subscribed(events: &mut cri::Events) -> Result<()> {
    match tokio::time::timeout(SUBSCRIBED, events.next()).await {
        Ok(Some(cri::Notice::Relist)) | Err(_) => Ok(()),
        Ok(other) => bail!("the runtime's events do not begin: {other:?}"),
    }
}

/// Waits for the next event of a container.
async fn told(events: &mut cri::Events, id: &str) {
    while let Some(notice) = events.next().await {
        match notice {
            cri::Notice::Task { container, change: cri::TaskChange::Ended } if container == id => return,
            cri::Notice::Event(event) if event.container_id == id => return,
            _ => {}
        }
    }
}

/// What a watch said.
struct Seen {
    name: String,
    /// None of one that is gone.
    pod: Option<Value>,
}

impl Pods {
    pub fn new(connection: Connection, node: &str) -> Result<Self> {
        Ok(Self { connection, node: node.to_owned(), watch: None, known: BTreeMap::new(), serial: 0 })
    }

    /// Waits until the node takes pods.
    pub async fn node_ready(&mut self) -> Result<()> {
        usable(&mut self.connection, 1, PATIENCE).await
    }

    /// Makes so many at once, and waits until all are Ready.
    pub async fn create(&mut self, count: usize) -> Result<Duration> {
        if self.watch.is_none() {
            self.watch = Some(self.connection.watch(&format!("{PODS}?watch=1")).await?);
        }
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            self.serial += 1;
            let (mut connection, name) = (self.connection.clone(), format!("wait-{}", self.serial));
            let pod = pod(&name, &self.node);
            self.known.insert(name, false);
            tasks.spawn(async move { connection.create(PODS, &pod).await });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        self.until("Ready", |known| known.values().all(|ready| *ready)).await?;
        Ok(begun.elapsed())
    }

    /// Deletes all at once, and waits until none is left.
    pub async fn delete_all(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for name in self.known.keys() {
            let (mut connection, path) = (self.connection.clone(), format!("{PODS}/{name}"));
            tasks.spawn(async move {
                let (code, _) = connection.discard(Method::DELETE, &path, None).await?;
                ensure!(code == 200, "deleting {path} answered {code}");
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        self.until("gone", BTreeMap::is_empty).await?;
        Ok(begun.elapsed())
    }

    /// Ends the containers of `count` pods, one after the other, and says how long the API took to know, and the runtime to tell its events.
    pub async fn exits(&mut self, client: &cri::Client, count: usize) -> Result<Exits> {
        let mut events = client.events();
        subscribed(&mut events).await?;
        let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
        let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
        let containers = client.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await?;
        let mut took = Exits::default();
        for container in containers.into_iter().take(count) {
            let name = container.labels.get(cri::labels::POD_NAME).cloned().context("a container has no pod")?;
            let request = v1::ContainerStatusRequest { container_id: container.id.clone(), verbose: true };
            let info = client.container_status(request).await?.info;
            let info: Value = serde_json::from_str(info.get("info").context("containerd says nothing of a container's process")?)?;
            let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
            let begun = Instant::now();
            rustix::process::kill_process(pid.context("a container has no process")?, rustix::process::Signal::KILL)?;
            let told = async {
                told(&mut events, &container.id).await;
                begun.elapsed()
            };
            let known = async {
                loop {
                    let seen = self.next().await?;
                    if seen.name == name && seen.pod.as_ref().is_some_and(|pod| has_ended(&pod["status"])) {
                        return anyhow::Ok(begun.elapsed());
                    }
                }
            };
            let (told, known) = tokio::join!(tokio::time::timeout(PATIENCE, told), known);
            took.runtime.push(told.context("the runtime has no event of a container's end")?);
            took.api.push(known?);
        }
        self.until("Ready again", |known| known.values().all(|ready| *ready)).await?;
        Ok(took)
    }

    /// Waits until the agent has taken over all pods: it explains each as Ready. Returns when that was.
    pub async fn adopted(&mut self, count: usize) -> Result<Instant> {
        let begun = Instant::now();
        ensure!(self.known.len() == count, "{} pods are known, not {count}", self.known.len());
        // Few questions at a time, and none again about a pod that is there: more would take the processors from the agent.
        let mut waiting: Vec<String> = self.known.keys().map(|name| format!("/api/v1/nodes/{}/proxy/explain/default/{name}", self.node)).collect();
        let mut tasks = JoinSet::new();
        loop {
            while tasks.len() < QUESTIONS
                && let Some(path) = waiting.pop()
            {
                let mut connection = self.connection.clone();
                tasks.spawn(async move {
                    loop {
                        let answer = connection.ask(Method::GET, &path, "", None).await?;
                        if answer.code == 200 && answer.json()?["ready"] == true {
                            return anyhow::Ok(());
                        }
                        ensure!(begun.elapsed() < PATIENCE, "{path} is not ready after {PATIENCE:?}");
                        tokio::time::sleep(PAUSE).await;
                    }
                });
            }
            match tasks.join_next().await {
                Some(done) => done??,
                None => break,
            }
        }
        Ok(Instant::now())
    }

    /// How many pods are not Ready, or have containers that began more than once.
    pub async fn unwell(&mut self) -> Result<usize> {
        let list = self.connection.get(PODS).await?.json()?;
        let well = |pod: &&Value| is_ready(&pod["status"]) && restarts(&pod["status"]) == 0;
        let well = list["items"].as_array().map_or(0, |all| all.iter().filter(well).count());
        Ok(self.known.len().saturating_sub(well))
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&BTreeMap<String, bool>) -> bool) -> Result<()> {
        let arrive = async {
            while !holds(&self.known) {
                self.next().await?;
            }
            anyhow::Ok(())
        };
        let arrived = tokio::time::timeout(PATIENCE, arrive).await;
        let Ok(arrived) = arrived else {
            let left: Vec<&str> = self.known.iter().filter(|(_, ready)| !**ready).map(|(name, _)| name.as_str()).take(5).collect();
            bail!("pods are not {what} after {PATIENCE:?}, such as {}", left.join(", "));
        };
        arrived
    }

    async fn next(&mut self) -> Result<Seen> {
        let watch = self.watch.as_mut().context("no pod was made yet")?;
        let line = watch.next().await?.context("the watch of pods ended")?;
        let mut event: Value = serde_json::from_slice(&line)?;
        let name = event["object"]["metadata"]["name"].as_str().context("an event without a name")?.to_owned();
        if event["type"] == "DELETED" {
            self.known.remove(&name);
            return Ok(Seen { name, pod: None });
        }
        let pod = event["object"].take();
        if let Some(ready) = self.known.get_mut(&name) {
            *ready = is_ready(&pod["status"]);
        }
        Ok(Seen { name, pod: Some(pod) })
    }
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": false,
            "containers": [{"name": "wait", "image": IMAGE, "imagePullPolicy": "Never"}],
        },
    })
}

fn is_ready(status: &Value) -> bool {
    kube_rules::is_status_ready(status)
}

fn restarts(status: &Value) -> u64 {
    let all = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|container| container["restartCount"].as_u64()).sum()
}

/// Whether a container of the status has ended, or has begun again since.
fn has_ended(status: &Value) -> bool {
    let all = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().any(|container| !container["state"]["terminated"].is_null() || !container["lastState"]["terminated"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_seen_whether_or_not_the_container_runs_again() {
        let of =
            |state: Value, last: Value, restarts: u64| json!({"containerStatuses": [{"state": state, "lastState": last, "restartCount": restarts}]});
        let (ended, runs) = (json!({"terminated": {"exitCode": 137}}), json!({"running": {}}));
        assert!(has_ended(&of(ended.clone(), json!({}), 0)) && has_ended(&of(runs.clone(), ended, 1)));
        assert!(!has_ended(&of(runs.clone(), json!({}), 0)) && !has_ended(&json!({})));
        assert_eq!(restarts(&of(runs, json!({}), 3)), 3);
    }
}
