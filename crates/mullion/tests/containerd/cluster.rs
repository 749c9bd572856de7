//! The cluster: API server and controllers in this process, the node beside it.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;

use controllers::{NodeMasks, NodeRanges};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use pki::{CertRequest, Credentials, KubeConfig};
use serde_json::{Value, json};
use test_lab::server::Keys;
use test_lab::until_async;
use tokio_util::sync::CancellationToken;

use crate::image::{self, IMAGE};
use crate::machine::{self, CNI, Process, SOCKET};
use crate::registry;

/// tools/containerd gives it to the node.
pub const NODE_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub const NODE: &str = "node1";
pub const MANIFESTS: &str = "/run/manifests";
const SERVICES: &str = "10.96.0.0/16";

pub struct Cluster {
    _server: apiserver::Server,
    client: Client,
    pub containerd: Process,
    pub node: Process,
    shutdown: CancellationToken,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// Everything, with the node Ready.
    pub async fn start() -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::new();
        let server = apiserver::start(config(&keys, dir.path())).await.unwrap();
        let shutdown = CancellationToken::new();
        run_controllers(&server, &keys, &shutdown);
        write_node_files(&keys);
        let containerd = Process::containerd();
        machine::start_containerd(&containerd);
        image::import_all();
        let node = Process::node();
        node.start();
        let client = client(&server, "admin", &["system:masters"]);
        let cluster = Arc::new(Self { _server: server, client, containerd, node, shutdown, _dir: dir });
        cluster.until_node_is("True").await;
        cluster.until("the default account", async || cluster.get("v1", "ServiceAccount", "default").await.map(|_| ())).await;
        cluster
    }

    pub fn end(&self) {
        self.node.kill();
        self.containerd.kill();
        self.shutdown.cancel();
    }

    /// Waits for a cause; a failure shows the agent's last lines.
    pub async fn until<T>(&self, what: impl Display, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
        until_async(what, async || match look().await {
            Ok(found) => Ok(found),
            Err(seen) => Err(format!("{seen}\nthe agent says:\n{}", self.node.log())),
        })
        .await
    }

    pub async fn until_node_is(&self, ready: &str) {
        self.until_node_has("Ready", ready).await;
    }

    /// Waits until a condition of the Node has this status.
    pub async fn until_node_has(&self, type_: &str, wanted: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let what = format!("condition {type_} of the node to be {wanted}");
        self.until(what, async || {
            let node = nodes.get_opt(NODE).await.map_err(|e| e.to_string())?.ok_or("there is no Node")?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let found = conditions.iter().find(|condition| condition.type_ == type_);
            if found.is_some_and(|condition| condition.status == wanted) { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn api(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: if group.is_empty() { version.into() } else { format!("{group}/{version}") },
            kind: kind.into(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        Api::namespaced_with(self.client.clone(), "default", &resource)
    }

    pub async fn get(&self, version: &str, kind: &str, name: &str) -> Result<Value, String> {
        let found = self.api(version, kind).get_opt(name).await.map_err(|e| e.to_string())?;
        found.map(|object| json!(object)).ok_or_else(|| format!("there is no {kind} {name}"))
    }

    /// Creates an object of the core group; `parts` are what it has beside its name.
    pub async fn create(&self, kind: &str, name: &str, parts: Value) {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        for (key, value) in parts.as_object().unwrap() {
            object[key] = value.clone();
        }
        let object = serde_json::from_value(object).unwrap();
        self.api("v1", kind).create(&PostParams::default(), &object).await.unwrap_or_else(|error| panic!("creating {kind} {name}: {error}"));
    }

    /// Creates a whole object, of any kind and in any place.
    pub async fn create_whole(&self, object: Value) {
        let made = kubectl_with(&["create", "-f", "-"], &object.to_string()).await;
        made.unwrap_or_else(|error| panic!("creating {object:#}: {error}"));
    }

    pub async fn merge(&self, kind: &str, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.api("v1", kind).patch(name, &Default::default(), &patch).await.unwrap_or_else(|error| panic!("changing {kind} {name}: {error}"));
    }

    /// Creates a pod of the node. A container without an image gets that of the tests, and every container ends at once when it is told to.
    pub async fn pod(&self, name: &str, spec: Value) {
        self.annotated_pod(name, json!({}), spec).await;
    }

    pub async fn annotated_pod(&self, name: &str, metadata: Value, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = json!(NODE);
        if spec["terminationGracePeriodSeconds"].is_null() {
            spec["terminationGracePeriodSeconds"] = json!(1);
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                if container["image"].is_null() {
                    container["image"] = json!(IMAGE);
                }
            }
        }
        let mut metadata = metadata;
        metadata["name"] = json!(name);
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap_or_else(|error| panic!("creating pod {name}: {error}"));
    }

    pub async fn status(&self, name: &str) -> Value {
        let pod = self.pods().get_opt(name).await.unwrap();
        pod.map(|pod| json!(pod.status.unwrap_or_default())).unwrap_or_default()
    }

    /// Waits until the pod's status is as it should be, and returns it.
    pub async fn until_status(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until(format!("{what} of pod {name}"), async || {
            let status = self.status(name).await;
            if is(&status) { Ok(status) } else { Err(format!("{status:#}\n{:#?}", self.events(name).await)) }
        })
        .await
    }

    pub async fn until_ready(&self, name: &str) -> Value {
        self.until_status(name, "condition Ready", |status| condition(status, "Ready") == "True").await
    }

    pub async fn until_phase(&self, name: &str, phase: &str) -> Value {
        self.until_status(name, &format!("phase {phase}"), |status| status["phase"] == phase).await
    }

    /// Events of a pod as `Reason: message`.
    pub async fn events(&self, pod: &str) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = api.list(&ListParams::default()).await.unwrap();
        let of_pod = all.items.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(pod));
        of_pod.map(|event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    pub async fn until_event(&self, pod: &str, text: &str) {
        self.until(format!("the event {text:?} of pod {pod}"), async || {
            let events = self.events(pod).await;
            if events.iter().any(|event| event.contains(text)) { Ok(()) } else { Err(format!("{events:#?}")) }
        })
        .await;
    }

    pub async fn delete(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default()).await.unwrap();
    }

    pub async fn until_gone(&self, pod: &str) {
        self.until(format!("the end of pod {pod}"), async || match self.pods().get_opt(pod).await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(format!("{:#}", json!(pod.status))),
        })
        .await;
    }

    /// What a pod's only container has printed, once it is over.
    pub async fn output(&self, pod: &str) -> String {
        self.until_phase(pod, "Succeeded").await;
        kubectl(&["logs", pod]).await.expect("the logs")
    }

    /// Runs `sh -c SCRIPT` in a container.
    pub async fn exec(&self, pod: &str, container: &str, script: &str) -> String {
        let args = ["exec", pod, "-c", container, "--", "sh", "-c", script];
        kubectl(&args).await.unwrap_or_else(|error| panic!("{script} in {pod}/{container}: {error}"))
    }
}

/// A pod's condition, empty when it has none of the type.
pub fn condition<'a>(status: &'a Value, type_: &str) -> &'a str {
    let all = status["conditions"].as_array();
    all.and_then(|all| all.iter().find(|condition| condition["type"] == type_)).and_then(|found| found["status"].as_str()).unwrap_or_default()
}

/// A container's status.
pub fn container<'a>(status: &'a Value, name: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
    all.find(|container| container["name"] == name).unwrap_or(&Value::Null)
}

/// A command of kubectl.
pub fn kubectl_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("MULLION_TEST_KUBECTL").expect("tools/containerd names kubectl"));
    command.env("KUBECONFIG", "/run/admin.conf").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What kubectl prints, or why it failed.
pub async fn kubectl(args: &[&str]) -> Result<String, String> {
    kubectl_with(args, "").await
}

/// The same with standard input.
pub async fn kubectl_with(args: &[&str], input: &str) -> Result<String, String> {
    let (mut command, input) = (kubectl_command(args), input.to_owned());
    let run = move || {
        use std::io::Write as _;
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut stdin = child.stdin.take().ok_or("no input")?;
        // One that ends without reading it has said all.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr)))
        }
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn config(keys: &Keys, dir: &std::path::Path) -> apiserver::Config {
    let listener = TcpListener::bind((NODE_IP, 0)).expect("the address that tools/containerd gives to the node");
    let port = listener.local_addr().unwrap().port();
    let ips = vec![IpAddr::V4(NODE_IP), "10.96.0.1".parse().unwrap()];
    let serving = CertRequest { cn: "kube-apiserver".into(), ips, server: true, days: 1, ..CertRequest::default() };
    let networks = apiserver::NodeNetworks { within: vec!["10.99.0.0/24".parse().unwrap()], except: Vec::new() };
    let admin = CertRequest { cn: "admin".into(), orgs: vec!["system:masters".into()], client: true, days: 1, ..CertRequest::default() };
    let node = CertRequest { cn: format!("system:node:{NODE}"), orgs: vec!["system:nodes".into()], client: true, days: 1, ..CertRequest::default() };
    for (path, request) in [("/run/admin.conf", admin), ("/run/node.conf", node)] {
        let pair = keys.ca.issue(&request).unwrap();
        let credentials = Credentials::Certificate { cert_pem: pair.cert_pem, key_pem: pair.key_pem };
        let text = KubeConfig::new(&format!("https://{NODE_IP}:{port}"), keys.ca.cert_pem(), credentials).to_yaml();
        std::fs::write(path, text).unwrap();
    }
    apiserver::Config {
        listeners: vec![listener],
        serving: keys.ca.issue(&serving).unwrap(),
        node_networks: networks,
        service_cidrs: SERVICES.parse().unwrap(),
        advertise: (NODE_IP.into(), port),
        ..keys.config(dir.join("store"))
    }
}

fn client(server: &apiserver::Server, user: &str, groups: &[&str]) -> Client {
    let groups = groups.iter().map(|&group| group.to_owned()).collect();
    Client::new(server.in_process(apiserver::Identity { user: user.to_owned(), groups }), "default")
}

/// Accounts of namespaces, addresses of nodes, endpoints.
fn run_controllers(server: &apiserver::Server, keys: &Keys, shutdown: &CancellationToken) {
    let config = controllers::Config {
        api: cluster::ApiServer::default(),
        node_ranges: NodeRanges::parse("10.98.0.0/16", NodeMasks::default()).unwrap(),
        hollow_ranges: None,
        root_ca_pem: keys.ca.cert_pem().into(),
        load_balancer_cidr: None,
    };
    let manager = client(server, "system:kube-controller-manager", &[]);
    let shutdown = shutdown.clone();
    tokio::spawn(async move { controllers::run(manager, config, shutdown).await });
}

/// The node's configuration, keys and directories.
fn write_node_files(keys: &Keys) {
    write_node_config(&format!("unix://{SOCKET}"));
    registry::install_provider();
    let ips = vec![IpAddr::V4(NODE_IP)];
    let request = CertRequest { cn: format!("system:node:{NODE}"), ips, server: true, days: 1, ..CertRequest::default() };
    let pair = keys.ca.issue(&request).unwrap();
    std::fs::create_dir_all(MANIFESTS).unwrap();
    let files = [("ca.crt", keys.ca.cert_pem()), ("serving.crt", &pair.cert_pem), ("serving.key", &pair.key_pem)];
    for (name, text) in files {
        std::fs::write(format!("/run/{name}"), text).unwrap();
    }
}

/// Writes the configuration of the node, with the runtime at this endpoint.
pub fn write_node_config(endpoint: &str) {
    write_node_config_with(endpoint, json!({}));
}

/// The same with other members of `KubeletConfiguration`.
pub fn write_node_config_with(endpoint: &str, members: Value) {
    let mut agent = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": "/run/ca.crt"}},
        "containerRuntimeEndpoint": endpoint,
        "clusterDNS": ["10.96.0.10"],
        "tlsCertFile": "/run/serving.crt",
        "tlsPrivateKeyFile": "/run/serving.key",
        "staticPodPath": MANIFESTS,
        "podPidsLimit": crate::groups::PIDS,
        "containerLogMaxSize": "20Ki",
        "containerLogMaxFiles": 3,
        // The disk of whoever runs this may be as full as it likes.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
    });
    members.as_object().unwrap().iter().for_each(|(name, value)| agent[name] = value.clone());
    let documents = [
        agent,
        json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "clusterCIDR": "10.98.0.0/16"}),
        json!({
            "apiVersion": "mullion.io/v1alpha1",
            "kind": "NodeConfiguration",
            "kubeconfig": "/run/node.conf",
            "nodeName": NODE,
            "nodeIP": NODE_IP.to_string(),
            "roots": ["/"],
            "serviceCIDR": SERVICES,
            "lan": "10.99.0.0/24",
            "cniConfDir": format!("{CNI}/net.d"),
            "imageCredentialProviderConfig": registry::PROVIDERS,
            "imageCredentialProviderBinDir": registry::PROGRAMS,
        }),
    ];
    let text = documents.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n");
    std::fs::write("/run/node.yaml", text).unwrap();
}
