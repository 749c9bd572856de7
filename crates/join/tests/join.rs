//! Joins over loopback: the embedded API server and its controllers, with what kubeadm publishes for those that join.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use install::control::{Service, ServiceError, ServiceState, Unmanaged};
use join::config::JoinConfiguration;
use join::discovery::DiscoveryError;
use join::journal::{Journal, State};
use join::pins::pins_of;
use join::plan::{PlanError, Step};
use join::removal;
use join::run::{JoinError, Outcome, Request};
use join::settings::{Flags, Machine};
use join::tokens::{self, NewToken};
use join::{BootstrapToken, Places, Settings};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use test_lab::server::{Keys, VERSION};
use test_lab::until_async;
use thiserror_ext::AsReport as _;
use tokio_util::sync::CancellationToken;

const NODE: &str = "win01";

struct Cluster {
    keys: Keys,
    server: apiserver::Server,
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
    _dir: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Cluster {
    /// A cluster with everything that kubeadm publishes.
    async fn start() -> Self {
        let cluster = Self::bare().await;
        let info = kubeconfig(cluster.address, cluster.keys.ca.cert_pem());
        cluster.publish(&json!({"kubeconfig": info})).await;
        let config = controllers::Config {
            api: cluster::ApiServer::default(),
            node_ranges: controllers::NodeRanges::parse("192.168.0.0/16", controllers::NodeMasks::default()).unwrap(),
            hollow_ranges: None,
            root_ca_pem: cluster.keys.ca.cert_pem().into(),
            load_balancer_cidr: None,
        };
        let client = cluster.client("system:kube-controller-manager");
        tokio::spawn(controllers::run(client.clone(), config, cluster.shutdown.clone()));
        let authority = Arc::new(pki::Ca::from_pem(cluster.keys.ca.cert_pem(), &cluster.keys.ca.key_pem()).unwrap());
        tokio::spawn(controllers::run_certificates(client, cluster::ApiServer::default(), authority, cluster.shutdown.clone()));
        cluster
    }

    /// An API server with namespaces.
    async fn bare() -> Self {
        cluster::install_crypto_provider();
        let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
        let config = keys.config(dir.path().join("store"));
        let address = config.advertise.into();
        let server = apiserver::start(config).await.unwrap();
        let cluster = Self { keys, server, address, shutdown: CancellationToken::new(), _dir: dir };
        let namespaces: Api<Namespace> = Api::all(cluster.admin());
        for name in ["kube-system", "kube-public", "default"] {
            if namespaces.get_opt(name).await.unwrap().is_none() {
                let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
                namespaces.create(&PostParams::default(), &namespace).await.unwrap();
            }
        }
        cluster
    }

    fn client(&self, user: &str) -> Client {
        Client::new(self.server.in_process(apiserver::Identity { user: user.into(), groups: vec!["system:masters".into()] }), "default")
    }

    fn admin(&self) -> Client {
        self.client("admin")
    }

    async fn create(&self, kind: &str, namespace: Option<&str>, mut object: Value) {
        let (version, plural) = match kind {
            "ConfigMap" => ("v1", "configmaps".to_owned()),
            kind => ("rbac.authorization.k8s.io/v1", format!("{}s", kind.to_lowercase())),
        };
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: if group.is_empty() { version.into() } else { format!("{group}/{version}") },
            kind: kind.into(),
            plural,
        };
        (object["apiVersion"], object["kind"]) = (resource.api_version.clone().into(), kind.into());
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.admin(), namespace, &resource),
            None => Api::all_with(self.admin(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn publish(&self, info: &Value) {
        let map = |name: &str, data: Value| json!({"metadata": {"name": name}, "data": data});
        self.create("ConfigMap", Some("kube-public"), map("cluster-info", info.clone())).await;
        let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS:\n- 10.96.0.10\nrotateCertificates: true\n";
        self.create("ConfigMap", Some("kube-system"), map("kubelet-config", json!({"kubelet": kubelet}))).await;
        let configuration = format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {VERSION}\n");
        self.create("ConfigMap", Some("kube-system"), map("kubeadm-config", json!({"ClusterConfiguration": configuration}))).await;
        let group = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name});
        let stranger = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"});
        let role = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        for (namespace, name, subject) in [
            ("kube-public", "cluster-info", stranger),
            ("kube-system", "kubeadm-config", group(tokens::GROUP)),
            ("kube-system", "kubelet-config", group(tokens::GROUP)),
        ] {
            let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}]);
            self.create("Role", Some(namespace), json!({"metadata": {"name": name}, "rules": rules})).await;
            let binding = json!({"metadata": {"name": name}, "roleRef": role("Role", name), "subjects": [subject]});
            self.create("RoleBinding", Some(namespace), binding).await;
        }
        let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]);
        self.create("ClusterRole", None, json!({"metadata": {"name": "get-nodes"}, "rules": rules})).await;
        for name in ["system:node-bootstrapper", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", "get-nodes"] {
            let metadata = json!({"name": format!("join-{}", name.replace(':', "-"))});
            let binding = json!({"metadata": metadata, "roleRef": role("ClusterRole", name), "subjects": [group(tokens::GROUP)]});
            self.create("ClusterRoleBinding", None, binding).await;
        }
    }

    async fn token(&self) -> BootstrapToken {
        let token = BootstrapToken::random().unwrap();
        let new = NewToken {
            token: token.clone(),
            ttl: Some(Duration::from_secs(3600)),
            description: String::new(),
            usages: vec!["signing".into(), "authentication".into()],
            groups: vec![tokens::GROUP.into()],
        };
        tokens::create(&self.admin(), &new).await.unwrap();
        token
    }

    fn flags(&self, token: &BootstrapToken) -> Flags {
        Flags {
            endpoint: Some(self.address.to_string()),
            token: Some(token.reveal()),
            ca_cert_hashes: pins_of(self.keys.ca.cert_pem()).unwrap(),
            // The machine of the test is no node: no runtime, swap as it likes.
            ignore_preflight_errors: vec!["all".into()],
            ..Flags::default()
        }
    }
}

fn kubeconfig(address: std::net::SocketAddr, ca_pem: &str) -> String {
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: https://{address}\n  name: \"\"\nkind: Config\n"
    )
}

fn settings(flags: Flags) -> Settings {
    let mut config = flags.merged_into(JoinConfiguration::default());
    config.timeouts.discovery = Some(Duration::from_secs(60));
    Settings::new(config, &Machine { host_name: NODE.into(), sockets: Vec::new() }).unwrap()
}

async fn join(settings: &Settings, places: &Places, service: &impl Service) -> Result<Outcome, JoinError> {
    let agent = VERSION.parse().unwrap();
    let request = Request { settings, places, service, agent, report: &|_| {}, progress: &|_| {} };
    join::run::run(&request, std::future::pending()).await
}

fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { found.push(path.strip_prefix(dir).unwrap().display().to_string()) }
        }
    }
    found.sort();
    found
}

/// A service whose agent registers its Node with the node's own credentials, or never starts.
struct Agent {
    places: Places,
    calls: Arc<Mutex<Vec<&'static str>>>,
    is_broken: bool,
}

impl Agent {
    fn new(places: &Places, is_broken: bool) -> Self {
        Self { places: places.clone(), calls: Arc::default(), is_broken }
    }
}

impl Service for Agent {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        Ok(Some(ServiceState { exists: true, is_enabled: true, is_active: false }))
    }

    async fn start(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("start");
        if self.is_broken {
            return Err(ServiceError::Failed { arguments: "start kubelet.service".into(), complaint: "no such program".into() });
        }
        let client = cluster::client_from_kubeconfig(&self.places.kubelet_conf()).await.unwrap();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
        Api::<Node>::all(client).create(&PostParams::default(), &node).await.unwrap();
        Ok(())
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("stop");
        Ok(())
    }

    fn can_install(&self) -> bool {
        false
    }

    async fn install(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("install");
        Ok(())
    }

    async fn uninstall(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("uninstall");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_becomes_a_nodes_certificate_and_reset_removes_it() {
    let (cluster, root) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let token = cluster.token().await;
    let (places, settings) = (Places::new(root.path(), false), settings(cluster.flags(&token)));
    let dry = join(&Settings { is_dry_run: true, ..settings.clone() }, &places, &Unmanaged).await.unwrap();
    assert!(!dry.is_done && files(root.path()).is_empty(), "a dry run changes nothing");
    let outcome = join(&settings, &places, &Unmanaged).await.unwrap();
    assert_eq!(outcome.plan, dry.plan);
    assert!(outcome.is_done);
    let written = files(root.path());
    for file in [
        "etc/kubernetes/kubelet.conf",
        "etc/kubernetes/pki/ca.crt",
        "var/lib/kubelet/config.yaml",
        "var/lib/kubelet/kubeadm-flags.env",
        "var/lib/kubelet/instance-config.yaml",
        "var/lib/kubelet/pki/kubelet-client-current.pem",
        "var/lib/kubelet/mullion-join.json",
    ] {
        assert!(written.contains(&file.to_owned()), "no {file} in {written:#?}");
    }
    assert!(!places.bootstrap_conf().exists(), "the token stays on no disk");
    for file in &written {
        let text = std::fs::read(root.path().join(file)).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains(token.reveal().split_once('.').unwrap().1), "the token is in {file}");
    }

    // The user that the kubeconfig authenticates.
    let client = cluster::client_from_kubeconfig(&places.kubelet_conf()).await.unwrap();
    let review: SelfSubjectReview = Api::all(client).create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:node:win01"));
    assert!(user.groups.unwrap().contains(&"system:nodes".to_owned()));

    // Again: it is a node already.
    let error = join(&settings, &places, &Unmanaged).await.unwrap_err();
    assert!(matches!(&error, JoinError::Plan(PlanError::Joined { name, .. }) if name == NODE), "{error}");

    let journal = Journal::read(&places).unwrap().unwrap();
    assert_eq!(journal.state, State::Joined);
    let present = removal::known_files(&places).into_iter().filter(|path| path.exists()).collect();
    let inputs = removal::Inputs {
        places: &places,
        journal: Some(&journal),
        present: &present,
        has_service: false,
        delete_node: None,
        pods_of: None,
        is_forced: false,
    };
    let steps = removal::plan(&inputs).unwrap();
    let site = join::apply::Site { places: &places, service: &Unmanaged, progress: &|_| {} };
    removal::apply(&steps, Some(&journal), &site, None).await.unwrap();
    assert!(files(root.path()).is_empty(), "{:?}", files(root.path()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_does_not_start_leaves_nothing_and_the_next_run_joins() {
    let (cluster, root) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let (places, mut settings) = (Places::new(root.path(), false), settings(cluster.flags(&cluster.token().await)));
    let broken = Agent::new(&places, true);
    let error = join(&settings, &places, &broken).await.unwrap_err().to_report_string();
    assert!(error.contains("cannot start the service kubelet; the machine is as it was before"), "{error}");
    assert!(files(root.path()).is_empty(), "{:?}", files(root.path()));
    // Nothing answers health checks here: that step is another test's.
    settings.health_timeout = Duration::from_millis(300);
    let error = join(&settings, &places, &Agent::new(&places, false)).await.unwrap_err().to_report_string();
    assert!(error.contains("cannot wait until http://127.0.0.1:10248/healthz answers"), "{error}");
    assert!(files(root.path()).is_empty(), "{:?}", files(root.path()));
    Api::<Node>::all(cluster.admin()).get(NODE).await.expect("its agent had registered it");
}

/// The process is killed after a step: the next run finishes, whichever step it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_is_killed_at_any_step_is_finished_by_the_next_run() {
    let cluster = Cluster::start().await;
    let token = cluster.token().await;
    let settings = settings(cluster.flags(&token));
    let count = {
        let root = tempfile::tempdir().unwrap();
        join(&Settings { is_dry_run: true, ..settings.clone() }, &Places::new(root.path(), false), &Unmanaged).await.unwrap().plan.steps.len()
    };
    assert!(count >= 6, "{count}");
    for killed in 0..count {
        let root = tempfile::tempdir().unwrap();
        let places = Places::new(root.path(), false);
        let seen = Mutex::new(0);
        let (told, mut reached) = tokio::sync::mpsc::unbounded_channel();
        let progress = |_: &Step| {
            let mut seen = seen.lock().unwrap();
            if *seen == killed {
                told.send(()).unwrap();
            }
            *seen += 1;
        };
        let request = Request {
            settings: &settings,
            places: &places,
            service: &Unmanaged,
            agent: VERSION.parse().unwrap(),
            report: &|_| {},
            progress: &progress,
        };
        // Dropped where it waits next: nothing runs after that, as after kill -9.
        tokio::select! {
            biased;
            _ = reached.recv() => {}
            done = join::run::run(&request, std::future::pending()) => drop(done),
        }
        let again = join(&settings, &places, &Unmanaged).await;
        match again {
            Ok(outcome) => assert!(outcome.is_done),
            // The first run was at its end.
            Err(JoinError::Plan(PlanError::Joined { .. })) => {}
            Err(error) => panic!("after step {killed}: {}", error.to_report_string()),
        }
        let client = cluster::client_from_kubeconfig(&places.kubelet_conf()).await.unwrap();
        client.apiserver_version().await.unwrap();
        assert!(!places.bootstrap_conf().exists());
    }
}

/// Nobody approves the request: the control plane's controllers are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_never_comes_leaves_nothing() {
    let (cluster, root) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let (places, mut settings) = (Places::new(root.path(), false), settings(cluster.flags(&cluster.token().await)));
    // The token is signed for by then.
    join(&Settings { is_dry_run: true, ..settings.clone() }, &places, &Unmanaged).await.unwrap();
    cluster.shutdown.cancel();
    settings.tls_bootstrap_timeout = Duration::from_secs(2);
    let error = join(&settings, &places, &Unmanaged).await.unwrap_err().to_report_string();
    assert!(error.contains("the machine is as it was before") && error.contains("no certificate came within 2s"), "{error}");
    assert!(files(root.path()).is_empty(), "{:?}", files(root.path()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_a_ready_node_has_is_refused() {
    let (cluster, root) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let node = json!({"metadata": {"name": NODE}});
    let nodes: Api<Node> = Api::all(cluster.admin());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]}});
    nodes.patch_status(NODE, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(ready)).await.unwrap();
    let (places, settings) = (Places::new(root.path(), false), settings(cluster.flags(&cluster.token().await)));
    let error = join(&settings, &places, &Unmanaged).await.unwrap_err();
    assert!(matches!(&error, JoinError::Plan(PlanError::NameTaken { name }) if name == NODE), "{error}");
    assert!(files(root.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_but_the_cluster_itself_is_trusted() {
    let cluster = Cluster::start().await;
    let token = cluster.token().await;
    let root = tempfile::tempdir().unwrap();
    let places = Places::new(root.path(), false);
    let refused = async |flags: Flags| match join(&settings(flags), &places, &Unmanaged).await {
        Err(JoinError::Discovery(error)) => error,
        Err(error) => panic!("{}", error.to_report_string()),
        Ok(_) => panic!("it joined"),
    };
    // Another authority than the pinned one.
    let other = vec![format!("sha256:{}", "0".repeat(64))];
    let error = refused(Flags { ca_cert_hashes: other, ..cluster.flags(&token) }).await;
    assert!(matches!(error, DiscoveryError::Pin { .. }), "{error}");

    // A man in the middle who passes on the cluster's own signed description, but cannot have its key.
    let maps = Api::<ConfigMap>::namespaced(cluster.admin(), "kube-public");
    let signature = format!("jws-kubeconfig-{}", token.id());
    let info = until_async("the signature", async || maps.get("cluster-info").await.unwrap().data.filter(|data| data.contains_key(&signature))).await;
    let middle = Cluster::bare().await;
    middle.publish(&json!(info)).await;
    let error = refused(Flags { endpoint: Some(middle.address.to_string()), ..cluster.flags(&token) }).await;
    assert!(matches!(error, DiscoveryError::Tls { .. }) && error.is_distrust(), "{error}");

    // One who describes a cluster of his own, but has no token to sign it.
    let own = kubeconfig(middle.address, middle.keys.ca.cert_pem());
    let forger = Cluster::bare().await;
    forger.publish(&json!({"kubeconfig": own, &signature: info[&signature]})).await;
    let pins = pins_of(middle.keys.ca.cert_pem()).unwrap();
    let error = refused(Flags { endpoint: Some(forger.address.to_string()), ca_cert_hashes: pins, ..cluster.flags(&token) }).await;
    assert!(matches!(error, DiscoveryError::Info { .. }) && error.is_distrust(), "{error}");
    assert!(files(root.path()).is_empty(), "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_another_way_to_the_cluster() {
    let (cluster, root) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let token = cluster.token().await;
    let file = root.path().join("discovery.conf");
    std::fs::write(&file, kubeconfig(cluster.address, cluster.keys.ca.cert_pem())).unwrap();
    let flags = |tls: Option<&BootstrapToken>| Flags {
        discovery_file: Some(file.display().to_string()),
        tls_bootstrap_token: tls.map(BootstrapToken::reveal),
        ignore_preflight_errors: vec!["all".into()],
        ..Flags::default()
    };
    let places = Places::new(&root.path().join("root"), false);
    let error = join(&settings(flags(None)), &places, &Unmanaged).await.unwrap_err();
    assert!(matches!(error, JoinError::Discovery(DiscoveryError::NoCredentials(_))), "{error}");
    assert!(join(&settings(flags(Some(&token))), &places, &Unmanaged).await.unwrap().is_done);
    assert!(places.kubelet_conf().exists());
    // The authority of another cluster in the file: TLS does not hold.
    let other = pki::Ca::generate("other", Duration::from_secs(86_400)).unwrap();
    std::fs::write(&file, kubeconfig(cluster.address, other.cert_pem())).unwrap();
    let mut settings = settings(flags(Some(&token)));
    settings.discovery_timeout = Duration::from_secs(1);
    let error = join(&settings, &Places::new(&root.path().join("other"), false), &Unmanaged).await.unwrap_err();
    assert!(matches!(error, JoinError::Discovery(DiscoveryError::Tls { .. })), "{error}");
}

/// A service manager that does not answer, and a user who has asked not to be stopped by that.
struct Away;

impl Service for Away {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        Err(ServiceError::Failed { arguments: "show kubelet.service".into(), complaint: "no bus".into() })
    }

    async fn start(&self) -> Result<(), ServiceError> {
        panic!("it is not there")
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        panic!("it is not there")
    }

    fn can_install(&self) -> bool {
        true
    }

    async fn install(&self) -> Result<(), ServiceError> {
        panic!("it is not there")
    }

    async fn uninstall(&self) -> Result<(), ServiceError> {
        panic!("it is not there")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_whose_services_cannot_be_seen_is_not_called_a_node() {
    let (cluster, root) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let settings = settings(cluster.flags(&cluster.token().await));
    let error = join(&settings, &Places::new(root.path(), false), &Away).await.unwrap_err();
    assert!(matches!(error, JoinError::Service(_)), "{}", error.to_report_string());
    assert!(files(root.path()).is_empty());
}
