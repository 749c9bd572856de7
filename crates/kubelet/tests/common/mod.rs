//! A node agent against a real API server and a runtime in memory, as a simulated Windows node.

pub mod link;
pub mod runtime;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use host::{HostFacts, HostRoot, NodeOs};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, NodeCondition, Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kubelet::certificates::serving::{ServingCertificate, TlsSettings};
use kubelet::{Capacity, Config, LogRotation, Resolver, ServerConfig};
use pki::{Ca, CertRequest};
use serde_json::{Value, json};
use test_lab::server::Keys;
use test_lab::until_async;
use tokio_util::sync::CancellationToken;

use link::Link;
use runtime::Runtime;

const NODE: &str = "win01";

pub struct World {
    pub runtime: Runtime,
    pub server: apiserver::Server,
    pub dir: tempfile::TempDir,
    pub ca: Ca,
    /// Where the API server listens.
    pub address: std::net::SocketAddr,
    /// Between the agent and the API server.
    pub link: Arc<Link>,
    /// Where the agent's HTTPS server listens.
    pub port: u16,
    /// What pods of the next agent wait for before they run.
    pub network_gate: Option<kubelet::NetworkGate>,
    pub node_ips: Vec<IpAddr>,
    pub find_address: Option<kubelet::FindAddress>,
    pub pod_logs_dir: String,
    /// The name by which clients check the agent's certificate.
    pub server_name: &'static str,
    /// Where the next agent has its serving certificate from; files by default.
    pub serving: Option<ServingCertificate>,
    /// The client of the next agent; by default one with the node's rights, through the link.
    pub agent_client: Option<kube::Client>,
    /// Metrics of that client's certificate.
    pub client_certificate: Option<Arc<kubelet::certificates::Counts>>,
    /// The health of the Host Networking Service that the next agent is told.
    pub host_network: Option<tokio::sync::watch::Receiver<hcn::watch::Health>>,
    pub hcn: Option<hcn::HcnClient>,
    /// How long dead containers of the next agent stay.
    pub dead_containers: kubelet::DeadContainers,
    /// When the next agent removes images; never by default.
    pub images: kubelet::ImageCollection,
    /// With which credentials the next agent pulls images.
    pub image_credentials: kubelet::ImageCredentials,
    /// What the next agent's node runs.
    pub os: NodeOs,
    /// How often the next agent looks again.
    pub polls: kubelet::Polls,
    /// When the next agent evicts pods; never by default.
    pub eviction: kubelet::Eviction,
    /// The periods of a graceful shutdown of the next agent's node; none by default.
    pub shutdown: Vec<kubelet::ShutdownPeriod>,
    /// Tells the agent that its machine goes down.
    pub machine: Option<tokio::sync::mpsc::UnboundedSender<kubelet::Announcement>>,
    /// Where the next agent's static pods come from.
    pub static_pods: kubelet::StaticPods,
    /// How the next agent registers its Node.
    pub registration: kubelet::Registration,
    /// What holds for all containers of the next agent.
    pub containers: kubelet::ContainerSettings,
    /// Whether the next agent's server runs programs in containers and shows logs.
    pub debugging: bool,
    /// Who may use the next agent's server.
    pub access: kubelet::Access,
    /// The resolver of the next agent's node.
    pub resolver: Resolver,
    /// Which logs of its node the next agent shows.
    pub system_logs: kubelet::SystemLogs,
    /// Which start of the machine this is.
    pub boot: u32,
    agent: Option<(CancellationToken, tokio::task::JoinHandle<()>)>,
}

impl Drop for World {
    /// The next agent would take down what this one has mounted for its pods, and there is none.
    fn drop(&mut self) {
        for mount in linux_sys::mount::mounts_below(self.dir.path()).into_iter().flatten().rev() {
            let _ = linux_sys::mount::umount(&mount);
        }
    }
}

impl World {
    /// One with a Linux node, whose agent runs and is Ready.
    pub async fn linux() -> Self {
        let mut world = Self::new().await;
        world.os = NodeOs::Linux;
        std::fs::create_dir_all(world.drive().join("etc")).unwrap();
        world.start_agent();
        world.eventually("node Ready", async || world.node_is_ready().await).await;
        world
    }

    /// API server and runtime, no agent yet; the network is ready.
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let drive = dir.path().join("c");
        std::fs::create_dir(&drive).unwrap();
        let keys = Keys::new();
        let config = keys.config(dir.path().join("store"));
        let address = config.advertise.into();
        let server = apiserver::start(config).await.unwrap();
        let runtime = Runtime::start(dir.path().join("cri"), drive);
        runtime.state.lock().unwrap().network_ready = true;
        runtime.state.lock().unwrap().images.insert("serve:1".into());
        let world = World {
            runtime,
            server,
            dir,
            ca: keys.ca,
            address,
            link: Arc::default(),
            port: 0,
            host_network: None,
            network_gate: None,
            node_ips: vec!["10.240.0.12".parse().unwrap()],
            find_address: None,
            pod_logs_dir: "/var/log/pods".into(),
            server_name: "127.0.0.1",
            serving: None,
            agent_client: None,
            client_certificate: None,
            hcn: None,
            dead_containers: kubelet::DeadContainers::default(),
            images: kubelet::ImageCollection { high_percent: 100, ..Default::default() },
            image_credentials: kubelet::ImageCredentials::default(),
            os: NodeOs::Windows { build: 20348 },
            polls: kubelet::Polls::default(),
            eviction: kubelet::Eviction::default(),
            shutdown: Vec::new(),
            machine: None,
            static_pods: kubelet::StaticPods::default(),
            registration: kubelet::Registration::default(),
            containers: kubelet::ContainerSettings::default(),
            debugging: true,
            access: kubelet::Access::default(),
            resolver: Resolver::default(),
            system_logs: kubelet::SystemLogs { files: true, queries: true },
            boot: 0,
            agent: None,
        };
        world.prepare_namespace().await;
        world
    }

    /// What the controllers of a cluster would make.
    async fn prepare_namespace(&self) {
        let client = self.admin();
        self.namespace("default").await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
        self.config_map("kube-root-ca.crt", json!({"ca.crt": self.ca.cert_pem()})).await;
    }

    /// Makes a namespace that is not there.
    pub async fn namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.admin());
        if namespaces.get_opt(name).await.unwrap().is_none() {
            let ns = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            namespaces.create(&PostParams::default(), &ns).await.unwrap();
        }
    }

    pub fn client(&self, user: &str, group: &str) -> kube::Client {
        let identity = apiserver::Identity { user: user.into(), groups: vec![group.into()] };
        kube::Client::new(self.server.in_process(identity), "default")
    }

    pub fn admin(&self) -> kube::Client {
        self.client("admin", "system:masters")
    }

    /// Starts the agent with the node's own rights.
    pub fn start_agent(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        self.port = listener.local_addr().unwrap().port();
        let ips = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let request = CertRequest { cn: format!("system:node:{NODE}"), ips, server: true, days: 1, ..Default::default() };
        let pair = self.ca.issue(&request).unwrap();
        let path = |name: &str| self.dir.path().join(name);
        std::fs::write(path("kubelet.crt"), &pair.cert_pem).unwrap();
        std::fs::write(path("kubelet.key"), &pair.key_pem).unwrap();
        std::fs::write(path("ca.crt"), self.ca.cert_pem()).unwrap();
        let files = ServingCertificate::Files { certificate: path("kubelet.crt"), key: path("kubelet.key") };
        let certificate = self.serving.clone().unwrap_or(files);
        let node = apiserver::Identity { user: format!("system:node:{NODE}"), groups: vec!["system:nodes".into()] };
        let config = Config {
            client: self.agent_client.clone().unwrap_or_else(|| self.link.client(self.server.in_process(node))),
            api: cluster::ApiServer::default(),
            node_name: NODE.into(),
            os: self.os,
            node_ips: self.node_ips.clone(),
            find_address: self.find_address.clone(),
            api_host: "api:6443".into(),
            cri: cri::Client::connect(&format!("unix://{}", self.dir.path().join("cri").display())).unwrap(),
            root: Arc::new(self.root()),
            root_dir: "/var/lib/kubelet".into(),
            facts: HostFacts::simulated(self.os, "machine", &format!("boot-{}", self.boot)),
            capacity: Capacity { cpu_millis: 4000, memory_bytes: 8 << 30, pods: 20, ephemeral_storage_bytes: 0 },
            labels: Default::default(),
            hyper_v_container: false,
            huge_pages: Default::default(),
            is_machine: false,
            reserved: Default::default(),
            eviction: self.eviction.clone(),
            shutdown: (!self.shutdown.is_empty()).then(|| {
                let (machine, announcements) = tokio::sync::mpsc::unbounded_channel();
                self.machine = Some(machine);
                kubelet::Shutdown { periods: self.shutdown.clone(), announcements }
            }),
            logs: LogRotation { max_size: 1000, max_files: 3, interval: Duration::from_millis(200) },
            dead_containers: self.dead_containers,
            images: self.images,
            image_pulls: kubelet::ImagePulls::default(),
            image_credentials: self.image_credentials.clone(),
            polls: self.polls,
            static_pods: self.static_pods.clone(),
            pod_logs_dir: self.pod_logs_dir.clone(),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".into(),
            taints: vec![],
            device_plugins: true,
            ids_per_pod: 65536,
            registration: self.registration.clone(),
            containers: self.containers.clone(),
            groups: kubelet::GroupSettings::default(),
            debugging: self.debugging,
            system_logs: self.system_logs,
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            resolver: self.resolver.clone(),
            version: "v1.36.2+mullion.0.1.0".into(),
            server: Some(ServerConfig { listener, certificate, client_ca: Some(path("ca.crt")), tls: TlsSettings::default(), access: self.access }),
            healthz: None,
            configuration: serde_json::json!({"port": 10250, "maxPods": 1}),
            host_network: self.host_network.clone(),
            hcn: self.hcn.clone(),
            network_gate: self.network_gate.clone(),
            client_certificate: self.client_certificate.clone(),
        };
        let stop = CancellationToken::new();
        let shutdown = stop.clone();
        let task = tokio::spawn(async move { kubelet::run(config, shutdown).await.unwrap() });
        self.agent = Some((stop, task));
    }

    fn root(&self) -> HostRoot {
        match self.os {
            NodeOs::Linux => HostRoot::linux(self.drive()).unwrap(),
            NodeOs::Windows { .. } => HostRoot::windows(self.os, [('C', self.drive())]).unwrap(),
        }
    }

    pub async fn stop_agent(&mut self) {
        let (stop, task) = self.agent.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    /// The host goes down and comes back.
    pub fn reboot(&mut self) {
        self.boot += 1;
        self.runtime.reboot();
    }

    pub fn drive(&self) -> PathBuf {
        self.dir.path().join("c")
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin(), "default")
    }

    pub async fn node(&self) -> Option<Node> {
        Api::<Node>::all(self.admin()).get_opt(NODE).await.unwrap()
    }

    pub async fn node_is_ready(&self) -> bool {
        self.ready_condition().await.is_some_and(|c| c.status == "True")
    }

    pub async fn ready_condition(&self) -> Option<NodeCondition> {
        let conditions = self.node().await.and_then(|n| n.status).and_then(|s| s.conditions).unwrap_or_default();
        conditions.into_iter().find(|c| c.type_ == "Ready")
    }

    pub async fn config_map(&self, name: &str, data: Value) {
        let api: Api<ConfigMap> = Api::namespaced(self.admin(), "default");
        let object: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap();
        let _ = api.delete(name, &DeleteParams::default()).await;
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    pub async fn secret(&self, name: &str, data: Value) {
        let api: Api<Secret> = Api::namespaced(self.admin(), "default");
        let object: Secret = serde_json::from_value(json!({"metadata": {"name": name}, "stringData": data})).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Creates a pod bound to the node.
    pub async fn pod(&self, name: &str, spec: Value) {
        let mut full = json!({"nodeName": NODE, "containers": [{"name": "c", "image": "serve:1"}]});
        for (k, v) in spec.as_object().unwrap() {
            full[k] = v.clone();
        }
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": full})).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
    }

    pub async fn status(&self, name: &str) -> Value {
        let pod = self.pods().get_opt(name).await.unwrap();
        pod.map(|p| json!(p.status.unwrap_or_default())).unwrap_or_default()
    }

    /// Waits until the pod's status satisfies a condition; returns it.
    pub async fn until(&self, name: &str, what: &str, ok: impl Fn(&Value) -> bool) -> Value {
        let look = async || {
            let status = self.status(name).await;
            if ok(&status) { Ok(status) } else { Err(format!("{status:#}\n{:#?}", self.events().await)) }
        };
        until_async(format_args!("{what} of {name}"), look).await
    }

    pub async fn until_running(&self, name: &str) -> Value {
        let ready = |s: &Value| s["containerStatuses"].as_array().is_some_and(|l| l.iter().all(|c| c["ready"] == true));
        self.until(name, "ready", |s| s["phase"] == "Running" && ready(s)).await
    }

    /// Waits for anything.
    pub async fn eventually(&self, what: &str, ok: impl AsyncFn() -> bool) {
        until_async(what, async || if ok().await { Ok(()) } else { Err(format!("{:#?}", self.events().await)) }).await;
    }

    /// Waits for an event: they are written beside the work, not before it goes on.
    pub async fn until_event(&self, event: &str) {
        self.eventually(event, async || self.events().await.iter().any(|e| e == event)).await;
    }

    /// Events as `Reason: message`.
    pub async fn events(&self) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(self.admin(), "default");
        let all = api.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().map(|e| format!("{}: {}", e.reason.unwrap_or_default(), e.message.unwrap_or_default())).collect()
    }
}

impl World {
    /// GET on the agent's HTTPS server, with a client certificate of `cn` in `org`, or with a
    /// bearer token: status and body.
    pub async fn get(&self, path: &str, identity: Option<(&str, &str)>, token: Option<&str>) -> (u16, String) {
        self.send(http::Method::GET, path, identity, token).await
    }

    /// As [`Self::get`], with another method.
    pub async fn send(&self, method: http::Method, path: &str, identity: Option<(&str, &str)>, token: Option<&str>) -> (u16, String) {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
        self.send_with(method, path, identity, &headers).await
    }

    /// As [`Self::send`], with headers.
    pub async fn send_with(&self, method: http::Method, path: &str, identity: Option<(&str, &str)>, headers: &[(&str, &str)]) -> (u16, String) {
        let io = hyper_util::rt::TokioIo::new(self.handshake(identity).await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::builder().method(method).uri(path).header("Host", "node");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// A connection to the agent's HTTPS server on which nothing was said yet.
    pub async fn handshake(&self, identity: Option<(&str, &str)>) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
        self.try_handshake(identity).await.unwrap()
    }

    /// As [`Self::handshake`], which the server may refuse.
    pub async fn try_handshake(&self, identity: Option<(&str, &str)>) -> std::io::Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.cert_pem().as_bytes()).unwrap()).unwrap();
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((cn, org)) => {
                let request = CertRequest { cn: cn.into(), orgs: vec![org.into()], client: true, days: 1, ..Default::default() };
                let pair = self.ca.issue(&request).unwrap();
                let cert = CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.unwrap();
        let name = ServerName::try_from(self.server_name).unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}
