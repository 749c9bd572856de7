//! The PodResources API: which pod has which device, for monitoring agents of the node (upstream pkg/kubelet/apis/podresources).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use device_plugin::pod_resources as api;
use device_plugin::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use k8s_openapi::api::core::v1::Pod;
use thiserror_ext::AsReport as _;
use tonic::{Request, Response, Status};

use super::Devices;
use super::book::NO_NODE;
use crate::agent::{Agent, uid};

/// Calls a second, and at once (upstream: `DefaultQPS`, `DefaultBurstTokens`).
const RATE: (f64, f64) = (100.0, 10.0);

/// Serves the API, for ever.
pub(crate) async fn serve(agent: Arc<Agent>) -> std::io::Result<()> {
    let lister = Lister { agent: agent.clone(), bucket: Mutex::new(Bucket { tokens: RATE.1, filled: Instant::now() }) };
    let router = tonic::transport::Server::builder().concurrency_limit_per_connection(8).add_service(PodResourcesListerServer::new(lister));
    #[cfg(windows)]
    if agent.root.drives().next().is_some() {
        return match crate::sockets::incoming_pipe(r"\\.\pipe\kubelet-pod-resources") {
            Ok(incoming) => router.serve_with_incoming(incoming).await.map_err(std::io::Error::other),
            Err(error) => unserved(&error.to_string()).await,
        };
    }
    let listening = agent.dir.join("pod-resources").map_err(host::HostError::from).and_then(|dir| {
        agent.root.create_dir_all(&dir, 0o750)?;
        agent.root.listen(&dir.join("kubelet.sock")?)
    });
    match listening {
        Ok(listener) => router.serve_with_incoming(crate::sockets::incoming(listener)?).await.map_err(std::io::Error::other),
        Err(error) => unserved(&error.to_report_string()).await,
    }
}

/// As upstream: the node runs, but nobody can ask.
async fn unserved(error: &str) -> std::io::Result<()> {
    tracing::error!(error, "listening for the PodResources API failed; programs of the node cannot ask which pod has which device");
    std::future::pending().await
}

/// Calls that may be made now: a bucket that fills at a rate.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn allows(&mut self, now: Instant) -> bool {
        let (rate, most) = RATE;
        self.tokens = (self.tokens + now.saturating_duration_since(self.filled).as_secs_f64() * rate).min(most);
        self.filled = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

struct Lister {
    agent: Arc<Agent>,
    bucket: Mutex<Bucket>,
}

impl Lister {
    fn check_rate(&self) -> Result<(), Status> {
        let allowed = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now());
        if allowed { Ok(()) } else { Err(Status::resource_exhausted("rejected by rate limit")) }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(&self, _: Request<api::ListPodResourcesRequest>) -> Result<Response<api::ListPodResourcesResponse>, Status> {
        self.check_rate()?;
        let pods: Vec<Arc<Pod>> = self.agent.admitted().values().cloned().collect();
        let pod_resources = pods.iter().map(|pod| self.agent.devices.of_pod(pod)).collect();
        Ok(Response::new(api::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<api::AllocatableResourcesRequest>,
    ) -> Result<Response<api::AllocatableResourcesResponse>, Status> {
        self.check_rate()?;
        Ok(Response::new(api::AllocatableResourcesResponse { devices: self.agent.devices.all_usable(), ..Default::default() }))
    }

    async fn get(&self, request: Request<api::GetPodResourcesRequest>) -> Result<Response<api::GetPodResourcesResponse>, Status> {
        self.check_rate()?;
        let api::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let pod = self.agent.pod(&cluster::Key::new(&pod_namespace, &pod_name));
        let pod = pod.ok_or_else(|| Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")))?;
        Ok(Response::new(api::GetPodResourcesResponse { pod_resources: Some(self.agent.devices.of_pod(&pod)) }))
    }
}

fn topology(nodes: &[i64]) -> Option<api::TopologyInfo> {
    let nodes: Vec<_> = nodes.iter().filter(|node| **node != NO_NODE).map(|id| api::NumaNode { id: *id }).collect();
    (!nodes.is_empty()).then_some(api::TopologyInfo { nodes })
}

fn device(resource: &str, id: &str, nodes: &[i64]) -> api::ContainerDevices {
    api::ContainerDevices { resource_name: resource.to_owned(), device_ids: vec![id.to_owned()], topology: topology(nodes) }
}

impl Devices {
    /// The devices of a pod's containers, but of init containers that end.
    fn of_pod(&self, pod: &Pod) -> api::PodResources {
        let spec = pod.spec.as_ref();
        let sidecars = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let containers = sidecars.chain(spec.iter().flat_map(|spec| &spec.containers));
        let containers =
            containers.map(|c| api::ContainerResources { name: c.name.clone(), devices: self.of(&uid(pod), &c.name), ..Default::default() });
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        api::PodResources { name: text(&pod.metadata.name), namespace: text(&pod.metadata.namespace), containers: containers.collect() }
    }

    fn of(&self, pod: &str, container: &str) -> Vec<api::ContainerDevices> {
        let book = self.book();
        let mut all = Vec::new();
        for (resource, allocation) in book.of_container(pod, container).into_iter().flatten() {
            for id in allocation.ids() {
                let nodes: Vec<i64> = allocation.devices.iter().filter(|(_, ids)| ids.contains(&id)).map(|(node, _)| *node).collect();
                all.push(device(resource, &id, &nodes));
            }
        }
        all
    }

    fn all_usable(&self) -> Vec<api::ContainerDevices> {
        self.book().usable().map(|(resource, id, nodes)| device(resource, id, nodes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn calls_are_bounded() {
        let begin = Instant::now();
        let mut bucket = Bucket { tokens: RATE.1, filled: begin };
        let at_once = (0..20).filter(|_| bucket.allows(begin)).count();
        assert_eq!(at_once, 10);
        assert!(!bucket.allows(begin + Duration::from_millis(5)) && bucket.allows(begin + Duration::from_millis(15)));
        assert_eq!((0..1000).filter(|_| bucket.allows(begin + Duration::from_secs(3600))).count(), 10, "it does not save up");
    }
}
