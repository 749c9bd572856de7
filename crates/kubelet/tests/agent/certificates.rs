//! Certificates that a node asks for: TLS bootstrap with a bootstrap token, rotation, and the serving certificate, against the real API
//! server over TLS, with the approver and signer of our control plane.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kubelet::certificates::identity::{Identity, Settings, identity};
use kubelet::certificates::manager::Purpose;
use kubelet::certificates::serving::ServingCertificate;
use pki::{Ca, CertRequest, Credentials, Key, KubeConfig, Pair, PairStore, SigningRequest, Subject, Usages};
use serde_json::json;
use test_lab::until_async;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::World;

const TOKEN: &str = "abcdef.0123456789abcdef";
const CURRENT: &str = "kubelet-client-current.pem";

/// A node's certificates in a world, and the control plane that signs them.
struct Node {
    world: World,
    /// What keeps the identity of the agent that runs.
    work: Option<JoinHandle<()>>,
    controllers: CancellationToken,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.controllers.cancel();
    }
}

impl Node {
    async fn new() -> Self {
        let world = World::new().await;
        world.namespace("kube-system").await;
        let admin = world.admin();
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
        }))
        .unwrap();
        Api::namespaced(admin.clone(), "kube-system").create(&PostParams::default(), &secret).await.unwrap();
        for (group, role) in [
            ("system:bootstrappers", "system:node-bootstrapper"),
            ("system:bootstrappers", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"),
            ("system:nodes", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"),
        ] {
            let binding: ClusterRoleBinding = serde_json::from_value(json!({
                "metadata": {"name": role.replace(':', "-")},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
            }))
            .unwrap();
            Api::all(admin.clone()).create(&PostParams::default(), &binding).await.unwrap();
        }
        let node = Self { world, work: None, controllers: CancellationToken::new() };
        node.write("bootstrap.conf", Credentials::Token(TOKEN.into()));
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.dir.path().join(name)
    }

    fn write(&self, name: &str, credentials: Credentials) {
        let server = format!("https://{}", self.world.address);
        pki::write_private(&self.path(name), &KubeConfig::new(&server, self.world.ca.cert_pem(), credentials).to_yaml()).unwrap();
    }

    fn settings(&self, rotates: bool) -> Settings {
        Settings {
            kubeconfig: self.path("kubelet.conf"),
            bootstrap_kubeconfig: Some(self.path("bootstrap.conf")),
            cert_dir: self.path("pki"),
            node_name: "win01".into(),
            rotates,
            is_agent: true,
        }
    }

    /// Starts an agent with the identity of these settings.
    async fn start(&mut self, settings: &Settings) {
        let Identity { client, counts, work, .. } = identity(settings).await.unwrap();
        (self.world.agent_client, self.world.client_certificate) = (Some(client), counts);
        self.work = Some(tokio::spawn(async move {
            match work.await {
                Ok(never) => match never {},
                Err(error) => panic!("{error:?}"),
            }
        }));
        self.world.start_agent();
    }

    async fn stop(&mut self) {
        self.world.stop_agent().await;
        let work = self.work.take().unwrap();
        work.abort();
        let ended = work.await.unwrap_err();
        assert!(ended.is_cancelled(), "the identity lasts as long as the agent: {ended}");
    }

    /// The approver and signer of our control plane.
    fn start_controllers(&self) {
        let authority = Arc::new(Ca::from_pem(self.world.ca.cert_pem(), &self.world.ca.key_pem()).unwrap());
        let client = self.world.client("system:kube-controller-manager", "system:masters");
        tokio::spawn(controllers::run_certificates(client, cluster::ApiServer::default(), authority, self.controllers.clone()));
    }

    fn requests(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.world.admin())
    }

    async fn requests_of(&self, signer: &str) -> Vec<CertificateSigningRequest> {
        let all = self.requests().list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter(|request| request.spec.signer_name == signer).collect()
    }

    fn current(&self) -> Option<Pair> {
        PairStore::open(self.path("pki"), Purpose::Client.prefix(), None).unwrap().current().unwrap()
    }

    /// Whom the agent's client is to the API server.
    async fn user(&self) -> String {
        let api: Api<SelfSubjectReview> = Api::all(self.world.agent_client.clone().unwrap());
        let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
        review.status.unwrap().user_info.unwrap().username.unwrap()
    }
}

#[tokio::test]
async fn a_node_gets_its_first_certificate_and_later_the_next() {
    let mut node = Node::new().await;
    // Nobody approves yet.
    let settings = node.settings(false);
    node.start(&settings).await;
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    node.world.eventually("a request", async || node.requests_of(signer).await.len() == 1).await;
    let name = node.requests_of(signer).await[0].metadata.name.clone().unwrap();
    assert!(name.starts_with("node-csr-"), "{name}");
    assert_eq!(node.requests_of(signer).await[0].spec.username.as_deref(), Some("system:bootstrap:abcdef"));
    assert!(node.world.node().await.is_none() && !settings.kubeconfig.exists());

    // A restart in between finds the request again, by the key that was kept.
    let key = std::fs::read_to_string(node.path("pki/kubelet-client.key.tmp")).unwrap();
    node.stop().await;
    node.start(&settings).await;
    node.start_controllers();
    node.world.eventually("node Ready", async || node.world.node_is_ready().await).await;
    let names: Vec<_> = node.requests_of(signer).await.into_iter().map(|request| request.metadata.name.unwrap()).collect();
    assert_eq!(names, [name]);
    let first = node.current().unwrap();
    assert_eq!((first.leaf().common_name.as_str(), first.key_pem()), ("system:node:win01", key.as_str()));
    assert_eq!(node.user().await, "system:node:win01");
    assert!(!node.path("pki/kubelet-client.key.tmp").exists());
    let kubeconfig = std::fs::read_to_string(&settings.kubeconfig).unwrap();
    assert!(kubeconfig.contains("name: default-auth") && kubeconfig.contains(&format!("/pki/{CURRENT}")), "{kubeconfig}");

    // The kubeconfig is good: the bootstrap kubeconfig is not read any more; kubeadm removes it. The certificate is replaced when most of
    // its life is over.
    node.stop().await;
    std::fs::remove_file(node.path("bootstrap.conf")).unwrap();
    let store = PairStore::open(node.path("pki"), Purpose::Client.prefix(), None).unwrap();
    let old = nearly_over(&node.world.ca);
    store.update(&old, "2026-01-02-03-04-05").unwrap();
    let settings = node.settings(true);
    node.start(&settings).await;
    node.world.eventually("a new certificate", async || node.current().is_some_and(|pair| pair != old)).await;
    let second = node.current().unwrap();
    assert!(second.leaf().not_after > SystemTime::now() + Duration::from_secs(86_400 / 2));
    assert_ne!(second.key_pem(), old.key_pem(), "with a key of its own");
    let latest = node.requests_of(signer).await.into_iter().find(|request| request.metadata.generate_name.as_deref() == Some("csr-")).unwrap();
    assert_eq!(latest.spec.username.as_deref(), Some("system:node:win01"), "asked for under the old certificate");
    node.world.pod("web", json!({})).await;
    node.world.until_running("web").await;
    let (_, metrics) = node.world.get("/metrics", Some(("admin", "system:masters")), None).await;
    let ttl = metrics.lines().find_map(|line| line.strip_prefix("kubelet_certificate_manager_client_ttl_seconds ")).unwrap();
    assert!(ttl.parse::<f64>().unwrap() > 40_000.0, "{ttl}");
    assert!(metrics.contains("\nkubelet_certificate_manager_client_expiration_renew_errors 0\n"), "{metrics}");
    node.stop().await;
}

/// A certificate of the node of whose 330 s 300 s are over, like those before it.
fn nearly_over(ca: &Ca) -> Pair {
    let key = Key::generate().unwrap();
    let subject = Subject { common_name: "system:node:win01".into(), organisations: vec!["system:nodes".into()], ..Subject::default() };
    let request = SigningRequest::parse(key.request(&subject).unwrap().as_bytes()).unwrap();
    let usages = Usages::parse(["digital signature", "client auth"]).unwrap();
    // It begins five minutes before it is made.
    let (life, now) = (Duration::from_secs(240), SystemTime::now() - Duration::from_secs(200));
    Pair::parse(&ca.sign(&request, &usages, life, now).unwrap(), &key.pem()).unwrap()
}

#[tokio::test]
async fn a_kubeconfigs_own_certificate_is_replaced_at_once_and_watches_go_on() {
    let mut node = Node::new().await;
    std::fs::remove_file(node.path("bootstrap.conf")).unwrap();
    // As kubeadm gives it to the kubelet of a control plane.
    let request = CertRequest { cn: "kubernetes-admin".into(), orgs: vec!["system:masters".into()], client: true, days: 1, ..CertRequest::default() };
    let pair = node.world.ca.issue(&request).unwrap();
    node.write("kubelet.conf", Credentials::Certificate { cert_pem: pair.cert_pem, key_pem: pair.key_pem });
    let settings = node.settings(true);
    node.start(&settings).await;
    node.world.eventually("node Ready", async || node.world.node_is_ready().await).await;
    node.world.pod("before", json!({})).await;
    node.world.until_running("before").await;
    assert_eq!(node.user().await, "kubernetes-admin");

    node.start_controllers();
    node.world.eventually("the node's own certificate", async || node.user().await == "system:node:win01").await;
    node.world.pod("after", json!({})).await;
    node.world.until_running("after").await;
    assert_eq!(node.current().unwrap().leaf().common_name, "system:node:win01");
    node.stop().await;

    // The same kubeconfig again: the certificate that is kept counts.
    node.start(&settings).await;
    assert_eq!(node.user().await, "system:node:win01");
    node.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_node_is_refused() {
    let node = Node::new().await;
    let request = CertRequest { cn: "system:node:win02".into(), orgs: vec!["system:nodes".into()], client: true, days: 1, ..CertRequest::default() };
    let pair = node.world.ca.issue(&request).unwrap();
    node.write("kubelet.conf", Credentials::Certificate { cert_pem: pair.cert_pem.clone(), key_pem: pair.key_pem.clone() });
    let error = async |settings: Settings| {
        let error = identity(&settings).await.err().unwrap();
        thiserror_ext::AsReport::to_report_string(&error)
    };
    let expected = "the client certificate is that of node \"win02\", but this node is \"win01\"";
    for rotates in [false, true] {
        for bootstrap_kubeconfig in [None, Some(node.path("bootstrap.conf"))] {
            let found = error(Settings { bootstrap_kubeconfig, ..node.settings(rotates) }).await;
            assert!(found.contains(expected), "{found}");
        }
    }
    // In the directory of certificates.
    let store = PairStore::open(node.path("pki"), Purpose::Client.prefix(), None).unwrap();
    store.update(&Pair::parse(&pair.cert_pem, &pair.key_pem).unwrap(), "2026-01-02-03-04-05").unwrap();
    node.write("kubelet.conf", Credentials::Token(TOKEN.into()));
    let found = error(Settings { bootstrap_kubeconfig: None, ..node.settings(true) }).await;
    assert!(found.contains(expected) && found.contains(CURRENT), "{found}");
    identity(&Settings { is_agent: false, ..node.settings(false) }).await.map(drop).unwrap();
}

#[tokio::test]
async fn a_denied_request_ends_the_bootstrap_with_a_way_out() {
    let node = Node::new().await;
    let settings = node.settings(false);
    let Identity { work, .. } = identity(&settings).await.unwrap();
    let work = tokio::spawn(work);
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    node.world.eventually("a request", async || node.requests_of(signer).await.len() == 1).await;
    let name = node.requests_of(signer).await[0].metadata.name.clone().unwrap();
    let denial = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "Unknown", "message": "not ours"}]}});
    node.requests().patch_approval(&name, &PatchParams::default(), &Patch::Merge(&denial)).await.unwrap();
    let error = test_lab::in_time("the end of the bootstrap", work).await.unwrap().unwrap_err();
    let error = thiserror_ext::AsReport::to_report_string(&error);
    let expected =
        format!("certificate signing request {name} is denied, reason: Unknown, message: not ours; to ask again: kubectl delete csr {name}");
    assert!(error.contains(&expected), "{error}");
    assert!(node.path("pki/kubelet-client.key.tmp").exists() && !settings.kubeconfig.exists());
}

#[tokio::test]
async fn the_server_has_a_certificate_when_an_administrator_approved_it() {
    let mut node = Node::new().await;
    node.start_controllers();
    node.world.server_name = "10.240.0.12";
    let store = || PairStore::open(node.path("pki"), Purpose::Serving.prefix(), None).unwrap();
    node.world.serving = Some(ServingCertificate::Requested(store()));
    node.world.start_agent();
    node.world.eventually("node Ready", async || node.world.node_is_ready().await).await;
    let signer = "kubernetes.io/kubelet-serving";
    node.world.eventually("a request", async || node.requests_of(signer).await.len() == 1).await;
    let request = node.requests_of(signer).await.remove(0);
    assert_eq!(request.spec.usages.as_deref().unwrap(), ["digital signature", "server auth"]);
    let asked = SigningRequest::parse(&request.spec.request.0).unwrap();
    assert_eq!((asked.common_name.as_str(), &asked.organisations[..]), ("system:node:win01", &["system:nodes".to_owned()][..]));
    assert_eq!((&asked.dns[..], asked.ips[0].to_string().as_str()), (&["win01".to_owned()][..], "10.240.0.12"));
    assert!(node.world.try_handshake(None).await.is_err(), "no certificate yet");
    approve(&node, &request).await;
    node.world.eventually("a served certificate", async || node.world.try_handshake(None).await.is_ok()).await;
    let (_, metrics) = node.world.get("/metrics", Some(("admin", "system:masters")), None).await;
    let ttl = metrics.lines().find_map(|line| line.strip_prefix("kubelet_certificate_manager_server_ttl_seconds ")).unwrap();
    assert!(ttl.parse::<f64>().unwrap() > 40_000.0, "{ttl}");

    // The certificate is kept, and another one asked for when the Node has another address.
    node.world.stop_agent().await;
    node.world.node_ips = vec!["10.240.0.12".parse().unwrap(), "fd00::12".parse().unwrap()];
    node.world.start_agent();
    node.world.eventually("another request", async || node.requests_of(signer).await.len() == 2).await;
    node.world.try_handshake(None).await.unwrap();
    let second = node.requests_of(signer).await.into_iter().find(|other| other.metadata.name != request.metadata.name).unwrap();
    approve(&node, &second).await;
    node.world.server_name = "fd00::12";
    node.world.eventually("the new address", async || node.world.try_handshake(None).await.is_ok()).await;
    node.world.stop_agent().await;
}

#[tokio::test]
async fn the_node_and_its_certificate_follow_the_machines_address() {
    let mut node = Node::new().await;
    node.start_controllers();
    node.world.server_name = "10.240.0.12";
    node.world.serving = Some(ServingCertificate::Requested(PairStore::open(node.path("pki"), Purpose::Serving.prefix(), None).unwrap()));
    let found: Arc<Mutex<std::net::IpAddr>> = Arc::new(Mutex::new("10.240.0.12".parse().unwrap()));
    let machine = found.clone();
    node.world.find_address = Some(Arc::new(move || Some(*machine.lock().unwrap())));
    node.world.polls.node = Duration::from_millis(200);
    node.world.start_agent();
    let signer = "kubernetes.io/kubelet-serving";
    node.world.eventually("a request", async || node.requests_of(signer).await.len() == 1).await;
    let first = node.requests_of(signer).await.remove(0);
    approve(&node, &first).await;
    node.world.eventually("a served certificate", async || node.world.try_handshake(None).await.is_ok()).await;

    *found.lock().unwrap() = "10.240.0.99".parse().unwrap();
    let shown = async || {
        let addresses = node.world.node().await.unwrap().status.unwrap().addresses.unwrap_or_default();
        addresses.iter().any(|own| own.type_ == "InternalIP" && own.address == "10.240.0.99") && addresses.len() == 2
    };
    node.world.eventually("the Node's new address", shown).await;
    node.world.eventually("another request", async || node.requests_of(signer).await.len() == 2).await;
    let second = node.requests_of(signer).await.into_iter().find(|other| other.metadata.name != first.metadata.name).unwrap();
    let asked = SigningRequest::parse(&second.spec.request.0).unwrap();
    assert_eq!(asked.ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.240.0.99"]);
    node.world.stop_agent().await;
}

/// As `kubectl certificate approve` does.
async fn approve(node: &Node, request: &CertificateSigningRequest) {
    let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "KubectlApprove", "message": "by hand"}]}});
    let name = request.metadata.name.as_deref().unwrap();
    node.requests().patch_approval(name, &PatchParams::default(), &Patch::Merge(&approval)).await.unwrap();
    let issued = async || {
        let status = node.requests().get(name).await.unwrap().status.unwrap_or_default();
        if status.certificate.is_some() { Ok(()) } else { Err(format!("{:?}", status.conditions)) }
    };
    until_async("the signature", issued).await;
}
