//! What is looked at all the time: no container runs twice, no pod has two sandboxes, and what should last does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cri::labels::{CONTAINER_NAME, POD_UID};
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use super::pods::Pods;
use crate::cluster::{Cluster, condition};
use crate::machine::SOCKET;

/// Pod UID and container name.
pub type Unit = (String, String);

/// A switch that the watch reads.
#[derive(Clone)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

pub struct Watch {
    seen: Arc<Mutex<Vec<String>>>,
    /// Whether pods that last must be Ready all the time.
    pub ready: Switch,
    pub cri: cri::Client,
    task: tokio::task::JoinHandle<()>,
}

/// Container ids of running containers, by pod and name.
pub async fn running(cri: &cri::Client) -> Result<BTreeMap<Unit, Vec<String>>, cri::Error> {
    let mut by_unit: BTreeMap<Unit, Vec<String>> = BTreeMap::new();
    for c in cri.list_containers(v1::ListContainersRequest::default()).await? {
        if c.state == v1::ContainerState::ContainerRunning as i32 {
            let label = |name: &str| c.labels.get(name).cloned().unwrap_or_default();
            by_unit.entry((label(POD_UID), label(CONTAINER_NAME))).or_default().push(c.id.clone());
        }
    }
    Ok(by_unit)
}

async fn ready_sandboxes(cri: &cri::Client) -> Result<BTreeMap<String, Vec<String>>, cri::Error> {
    let mut by_pod: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for s in cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await? {
        if s.state == v1::PodSandboxState::SandboxReady as i32 {
            by_pod.entry(s.labels.get(POD_UID).cloned().unwrap_or_default()).or_default().push(s.id.clone());
        }
    }
    Ok(by_pod)
}

impl Watch {
    /// Begins to look: what runs of the lasting pods now has to stay.
    pub async fn start(cluster: &Cluster, pods: &Pods) -> Self {
        let cri = cri::Client::connect(&format!("unix://{SOCKET}")).unwrap();
        let uids: Vec<String> = pods.lasting_uids(cluster).await;
        let all = running(&cri).await.unwrap();
        let lasting: BTreeMap<Unit, Vec<String>> = all.into_iter().filter(|((uid, _), _)| uids.contains(uid)).collect();
        println!("soak: {} containers of {} pods have to stay", lasting.len(), uids.len());
        let (seen, ready): (Arc<Mutex<Vec<String>>>, _) = (Arc::default(), Switch(Arc::new(AtomicBool::new(true))));
        let task = tokio::spawn(keep_looking(cri.clone(), cluster.pods(), lasting, Arc::clone(&seen), ready.clone()));
        Self { seen, ready, cri, task }
    }

    /// Panics when something was seen that may not be.
    pub fn verdict(&self, after: &str) {
        let seen = self.seen.lock().unwrap();
        assert!(seen.is_empty(), "after {after}: {:#?}", &seen[..seen.len().min(20)]);
        assert!(!self.task.is_finished(), "the watch has ended");
    }

    pub fn end(&self) {
        self.task.abort();
    }
}

async fn keep_looking(cri: cri::Client, api: Api<Pod>, lasting: BTreeMap<Unit, Vec<String>>, seen: Arc<Mutex<Vec<String>>>, ready: Switch) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut wrong = Vec::new();
        // A runtime that is away shows nothing.
        if let Ok(all) = running(&cri).await {
            wrong.extend(all.iter().filter(|(_, ids)| ids.len() > 1).map(|(unit, ids)| format!("{unit:?} runs more than once: {ids:?}")));
            for (unit, ids) in &lasting {
                if all.get(unit) != Some(ids) {
                    wrong.push(format!("{unit:?} had to stay {ids:?} and is {:?}", all.get(unit)));
                }
            }
        }
        if let Ok(all) = ready_sandboxes(&cri).await {
            wrong.extend(all.iter().filter(|(_, ids)| ids.len() > 1).map(|(uid, ids)| format!("pod {uid} has sandboxes {ids:?}")));
        }
        if ready.0.load(Ordering::Relaxed) {
            for pod in api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
                let status = json!(pod.status);
                let name = pod.metadata.name.unwrap_or_default();
                if Pods::lasts(&name) && condition(&status, "Ready") != "True" && ready.0.load(Ordering::Relaxed) {
                    wrong.push(format!("{name} is not Ready: {status:#}"));
                }
            }
        }
        seen.lock().unwrap().extend(wrong);
    }
}
