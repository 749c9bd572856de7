//! What the first client of a new control plane finds.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use test_lab::in_time;
use test_lab::server::Keys;

use super::*;

/// A node that joins asks as nobody, maybe before the server answers at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_answer_is_given_when_kubeadm_s_objects_are_there() {
    cluster::install_crypto_provider();
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
    let mut config = keys.config(dir.path().join("store"));
    let (listeners, address) = (std::mem::take(&mut config.listeners), SocketAddr::from(config.advertise));
    let server = apiserver::start(config).await.unwrap();
    let mut stranger = kube::Config::new(format!("https://{address}").parse().unwrap());
    stranger.root_cert = Some(vec![pki::certificate_der(keys.ca.cert_pem()).unwrap().remove(0).to_vec()]);
    let info = Api::<ConfigMap>::namespaced(Client::try_from(stranger).unwrap(), "kube-public");
    let first = tokio::spawn(async move { info.get("cluster-info").await });
    // The request is on its way while nothing is there.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!first.is_finished(), "no answer before there is something to find");
    let admin = Client::new(server.in_process(Identity { user: "admin".into(), groups: vec!["system:masters".into()] }), "default");
    let args = join::tests::args();
    open(&server, listeners, &admin, &args, keys.ca.cert_pem()).await.unwrap();
    let found = in_time("the first answer", first).await.unwrap().expect("cluster-info for everybody");
    assert!(found.data.unwrap()["kubeconfig"].contains("certificate-authority-data"));
    let system = || Api::<ConfigMap>::namespaced(admin.clone(), "kube-system");
    assert!(system().get("kubeadm-config").await.unwrap().data.unwrap()["ClusterConfiguration"].contains("serviceSubnet: 10.96.0.0/12"));
    assert!(system().get("kubelet-config").await.unwrap().data.unwrap()["kubelet"].contains("kind: KubeletConfiguration"));
    for (namespace, name) in [
        ("kube-public", "kubeadm:bootstrap-signer-clusterinfo"),
        ("kube-system", "kubeadm:nodes-kubeadm-config"),
        ("kube-system", "kubeadm:kubelet-config"),
    ] {
        Api::<Role>::namespaced(admin.clone(), namespace).get(name).await.unwrap();
        Api::<RoleBinding>::namespaced(admin.clone(), namespace).get(name).await.unwrap();
    }
    Api::<ClusterRole>::all(admin.clone()).get("kubeadm:get-nodes").await.unwrap();
    for name in
        ["kubeadm:kubelet-bootstrap", "kubeadm:get-nodes", "kubeadm:node-autoapprove-bootstrap", "kubeadm:node-autoapprove-certificate-rotation"]
    {
        Api::<ClusterRoleBinding>::all(admin.clone()).get(name).await.unwrap();
    }
    server.shutdown().await;
}

/// What is published is all that `mullion join` needs; the names and rights are kubeadm's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_joins_with_what_is_published() {
    use ::join::settings::{Flags, Machine};
    use ::join::{BootstrapToken, Places, Settings, discovery, tokens};

    cluster::install_crypto_provider();
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
    let mut config = keys.config(dir.path().join("store"));
    let (listeners, address) = (std::mem::take(&mut config.listeners), SocketAddr::from(config.advertise));
    let server = apiserver::start(config).await.unwrap();
    let admin = Client::new(server.in_process(Identity { user: "admin".into(), groups: vec!["system:masters".into()] }), "default");
    open(&server, listeners, &admin, &join::tests::args(), keys.ca.cert_pem()).await.unwrap();
    // The same again with the address of this test, which no Service may have.
    let args = ControlPlaneArgs { address: address.ip().into(), port: address.port(), ..join::tests::args() };
    join::publish(&admin, &args, keys.ca.cert_pem()).await.unwrap();
    let shutdown = CancellationToken::new();
    let api = cluster::ApiServer::default();
    let controllers = controllers::Config {
        api: api.clone(),
        node_ranges: controllers::NodeRanges::parse("192.168.0.0/16", controllers::NodeMasks::default()).unwrap(),
        hollow_ranges: None,
        root_ca_pem: keys.ca.cert_pem().into(),
        load_balancer_cidr: None,
    };
    tokio::spawn(controllers::run(admin.clone(), controllers, shutdown.clone()));
    let authority = Arc::new(pki::Ca::from_pem(keys.ca.cert_pem(), &keys.ca.key_pem()).unwrap());
    tokio::spawn(controllers::run_certificates(admin.clone(), api, authority, shutdown.clone()));

    let token = BootstrapToken::random().unwrap();
    let usages = vec!["signing".to_owned(), "authentication".to_owned()];
    let groups = vec![tokens::GROUP.to_owned()];
    let ttl = Some(std::time::Duration::from_secs(600));
    tokens::create(&admin, &tokens::NewToken { token: token.clone(), ttl, description: String::new(), usages, groups }).await.unwrap();
    let line = tokens::join_command(&admin, &token).await.unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let ["mullion", "join", endpoint, "--token", revealed, "--discovery-token-ca-cert-hash", hash] = words[..] else { panic!("{line}") };
    let flags = Flags {
        endpoint: Some(endpoint.to_owned()),
        token: Some(revealed.to_owned()),
        ca_cert_hashes: vec![hash.to_owned()],
        ignore_preflight_errors: vec!["all".into()],
        ..Flags::default()
    };
    let machine = Machine { host_name: "lin01".into(), ..Machine::default() };
    let settings = Settings::new(flags.merged_into(::join::config::JoinConfiguration::default()), &machine).unwrap();
    let places = Places::new(&dir.path().join("root"), false);
    let request = ::join::run::Request {
        settings: &settings,
        places: &places,
        service: &::install::control::Unmanaged,
        agent: VERSION.parse().unwrap(),
        report: &|_| {},
        progress: &|_| {},
    };
    let joined = in_time("the join", ::join::run::run(&request, std::future::pending())).await;
    assert!(joined.unwrap().is_done);
    let text = std::fs::read_to_string(places.config()).unwrap();
    assert!(text.contains("clusterDNS:\n- 10.96.0.10") && text.contains("containerRuntimeEndpoint: unix:///"), "{text}");
    let found = discovery::client_of(&std::fs::read_to_string(places.kubelet_conf()).unwrap()).await.unwrap();
    let refused = Api::<k8s_openapi::api::core::v1::Node>::all(found).get("lin01").await.unwrap_err();
    assert!(cluster::is_not_found(&refused), "a node may read its own Node, which is not there yet: {refused}");
    shutdown.cancel();
    server.shutdown().await;
}
