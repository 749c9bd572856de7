//! A cluster in this process: the API server, all controllers, the scheduler, and nodes that claim to run whatever they get.

use std::sync::Arc;

use apiserver::{Identity, Server};
use cluster::{ApiServer, Informer, Selection};
use controllers::{LocalVolumes, NodeMasks, NodeRanges, Timing};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use test_lab::{in_time, server::Keys, until_async};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::watches::{Counted, OpenWatches};

/// The disks of all nodes: `ROOT/NODE/VOLUME`.
struct Disks(std::path::PathBuf);

impl Disks {
    fn at(&self, node: &str, path: &str) -> std::path::PathBuf {
        self.0.join(node).join(path.rsplit(['/', '\\']).next().unwrap())
    }
}

impl LocalVolumes for Disks {
    fn create(&self, node: &str, path: &str) -> std::io::Result<()> {
        std::fs::create_dir_all(self.at(node, path))
    }

    fn remove(&self, node: &str, path: &str) -> std::io::Result<()> {
        match std::fs::remove_dir_all(self.at(node, path)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The cluster; everything ends with it.
pub struct Cluster {
    server: Server,
    /// The watches of the controllers and the scheduler.
    api: ApiServer,
    /// The same, as the API server sees them.
    open: OpenWatches,
    shutdown: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    /// The controllers and the scheduler.
    control: Vec<JoinHandle<()>>,
    timing: Timing,
    node_ranges: NodeRanges,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts everything; there is no node yet.
    pub async fn start() -> Self {
        Self::start_with(Timing::default()).await
    }

    /// Starts everything with this timing.
    pub async fn start_with(timing: Timing) -> Self {
        Self::start_on(timing, "10.96.0.0/12", "192.168.0.0/16").await
    }

    /// Starts everything with these networks for Services and for pods.
    pub async fn start_on(timing: Timing, services: &str, pods: &str) -> Self {
        let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).with_test_writer().try_init();
        let dir = tempfile::tempdir().unwrap();
        let config = apiserver::Config { service_cidrs: services.parse().unwrap(), ..Keys::new().config(dir.path().join("store")) };
        let server = apiserver::start(config).await.unwrap();
        let shutdown = CancellationToken::new();
        let mut cluster = Self {
            server,
            api: ApiServer::default(),
            open: OpenWatches::default(),
            shutdown,
            tasks: Vec::new(),
            control: Vec::new(),
            timing,
            node_ranges: NodeRanges::parse(pods, NodeMasks::default()).unwrap(),
            _dir: dir,
        };
        cluster.start_control();
        cluster
    }

    /// Starts the controllers and the scheduler.
    pub fn start_control(&mut self) {
        self.api = ApiServer::default();
        let config = controllers::Config {
            api: self.api.clone(),
            node_ranges: self.node_ranges.clone(),
            hollow_ranges: None,
            root_ca_pem: "-----BEGIN CERTIFICATE-----\n".into(),
            load_balancer_cidr: Some("10.241.0.0/30".parse().unwrap()),
        };
        let client = self.component("system:kube-controller-manager");
        self.control.push(tokio::spawn(controllers::run_with(client, config, self.timing.clone(), self.shutdown.clone())));
        let client = self.component("system:kube-scheduler");
        self.control.push(tokio::spawn(controllers::run_scheduler(
            client,
            self.api.clone(),
            controllers::SchedulerConfig::default(),
            self.shutdown.clone(),
        )));
    }

    /// Scales workloads, looking at each autoscaler once a `period`.
    pub fn start_autoscaler(&mut self, period: std::time::Duration) {
        let client = self.component("system:kube-controller-manager");
        self.control.push(tokio::spawn(controllers::run_autoscaler(client, self.api.clone(), period, self.shutdown.clone())));
    }

    /// Approves and signs certificates.
    pub fn start_certificates(&mut self, authority: Arc<pki::Ca>) {
        let client = self.component("system:kube-controller-manager");
        self.control.push(tokio::spawn(controllers::run_certificates(client, self.api.clone(), authority, self.shutdown.clone())));
    }

    /// Publishes the class `mullion-local`, whose volumes are directories below `disks`.
    pub fn start_local_volumes(&mut self, disks: std::path::PathBuf) {
        let client = self.component("system:kube-controller-manager");
        self.control.push(tokio::spawn(controllers::run_local_volumes(client, self.api.clone(), Arc::new(Disks(disks)), self.shutdown.clone())));
    }

    /// Ends the controllers and the scheduler in the midst of whatever they do.
    pub async fn kill_control(&mut self) {
        for task in self.control.drain(..) {
            task.abort();
            let _ = task.await;
        }
    }

    /// A client of a component has its own rights only, as in a real cluster.
    fn client(&self, user: &str) -> Client {
        let groups = if user == "admin" { vec!["system:masters".into()] } else { Vec::new() };
        Client::new(self.server.in_process(Identity { user: user.into(), groups }), "default")
    }

    /// A client of a part of the control plane, whose open watches are counted.
    pub fn component(&self, user: &str) -> Client {
        let server = self.server.in_process(Identity { user: user.into(), groups: Vec::new() });
        Client::new(Counted { server, open: self.open.clone() }, "default")
    }

    /// The watches of the control plane, as its parts share them.
    pub fn watches(&self) -> &ApiServer {
        &self.api
    }

    /// Open watches of the control plane by path, as the API server sees them.
    pub fn open_watches(&self) -> &OpenWatches {
        &self.open
    }

    /// A client that may do anything.
    pub fn admin(&self) -> Client {
        self.client("admin")
    }

    /// Objects of one kind in `default`.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.admin(), "default")
    }

    /// Stops everything.
    pub async fn stop(self) {
        self.shutdown.cancel();
        for task in self.tasks.into_iter().chain(self.control) {
            let _ = in_time("the end of a task", task).await;
        }
        self.server.shutdown().await;
    }

    /// Adds a ready node, with an agent that runs all its pods at once and lets them go at once.
    pub async fn add_node(&mut self, name: &str, os: &str) {
        let nodes: Api<Node> = Api::all(self.admin());
        nodes
            .create(
                &PostParams::default(),
                &object(json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os, "kubernetes.io/hostname": name}}})),
            )
            .await
            .unwrap();
        self.heartbeat(name).await;
        self.tasks.push(tokio::spawn(agent(self.admin(), name.to_owned(), self.shutdown.clone())));
    }

    /// Waits until the scheduler knows a node, and puts pods on it.
    pub async fn until_scheduled_to(&self, node: &str) {
        let (pods, name) = (self.api::<Pod>(), format!("comes-to-{node}"));
        let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "c", "image": "i"}]});
        create(&pods, &object(json!({"metadata": {"name": name}, "spec": spec}))).await;
        until_async("a pod is on the node", async || pods.get(&name).await.unwrap().spec.unwrap().node_name.is_some()).await;
        pods.delete(&name, &DeleteParams::default()).await.unwrap();
        until_async("the pod is gone", async || pods.get_opt(&name).await.unwrap().is_none()).await;
    }

    /// Writes a node's status as its agent would.
    pub async fn heartbeat(&self, name: &str) {
        self.heartbeat_at(name, jiff::Timestamp::now()).await;
    }

    /// The same at a time of its own. Times in objects have whole seconds: two heartbeats within one are one.
    pub async fn heartbeat_at(&self, name: &str, at: jiff::Timestamp) {
        let nodes: Api<Node> = Api::all(self.admin());
        let now = at.to_string();
        let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", "lastHeartbeatTime": now, "lastTransitionTime": now});
        let amounts = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
        let status = json!({"status": {"conditions": [condition], "capacity": amounts, "allocatable": amounts}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }

    /// Messages of the events about one object.
    pub async fn events(&self, ns: &str, name: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.admin(), ns);
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let found = events.list(&about).await.unwrap().items;
        found.into_iter().map(|event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    /// How often an event with this reason happened to one object.
    pub async fn event_counts(&self, ns: &str, name: &str, reason: &str) -> i32 {
        let events: Api<Event> = Api::namespaced(self.admin(), ns);
        let about = ListParams::default().fields(&format!("involvedObject.name={name},reason={reason}"));
        let counts = events.list(&about).await.unwrap().items;
        counts.into_iter().map(|event| event.count.unwrap_or(1)).sum()
    }
}

/// Runs a node's pods: an address and Ready for each; those being deleted go at once.
async fn agent(client: Client, node: String, shutdown: CancellationToken) {
    let row = |pod: &Pod| Some((pod.metadata.deletion_timestamp.is_some(), pod.status.as_ref().and_then(|status| status.pod_ip.clone())));
    let mine = Selection::fields(format!("spec.nodeName={node}"));
    let pods = Informer::start(Api::<Pod>::all(client.clone()), mine, row);
    let (mut changed, mut last) = (pods.changed(), 1);
    let octet = node.bytes().map(u32::from).sum::<u32>() % 250;
    while !shutdown.is_cancelled() {
        for (key, row) in pods.snapshot() {
            let api: Api<Pod> = Api::namespaced(client.clone(), &key.ns);
            if row.0 {
                let _ = api.delete(&key.name, &DeleteParams::default().grace_period(0)).await;
            } else if row.1.is_none() {
                last += 1;
                let (ip, second) = (format!("192.168.{octet}.{last}"), format!("fd00:1::{octet:x}:{last:x}"));
                let now = jiff::Timestamp::now().to_string();
                let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
                let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}, {"ip": second}], "conditions": [ready]}});
                let _ = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(status)).await;
            }
        }
        tokio::select! {
            _ = changed.changed() => {}
            () = shutdown.cancelled() => {}
        }
    }
}

/// A typed object from JSON.
pub fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A Deployment of a Windows web server.
pub fn deployment(name: &str, replicas: i32, image: &str) -> k8s_openapi::api::apps::v1::Deployment {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/os": "windows"},
                    "containers": [{"name": "web", "image": image, "ports": [{"name": "http", "containerPort": 80}]}],
                },
            },
        },
    }))
}

/// Creates an object.
pub async fn create<K>(api: &Api<K>, value: &K) -> K
where
    K: Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), value).await.unwrap()
}
