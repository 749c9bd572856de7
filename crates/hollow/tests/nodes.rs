//! Hollow nodes on a real API server, over TLS.

use std::net::Ipv4Addr;
use std::sync::Arc;

use hollow::{NodePlan, Pool};
use host::NodeOs;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use pki::{CertRequest, Credentials, KubeConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use test_lab::server::{Keys, VERSION};
use test_lab::until_async;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const NODES: u32 = 3;
const PODS: usize = 12;

async fn create<K>(api: Api<K>, object: Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// What the control plane of `mullion up` gives a namespace and the hollow nodes.
async fn prepare(admin: &Client, ca: &str) {
    create(Api::<Namespace>::all(admin.clone()), json!({"metadata": {"name": "shop"}})).await;
    create(Api::<ServiceAccount>::namespaced(admin.clone(), "shop"), json!({"metadata": {"name": "default"}})).await;
    let authority = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ca}});
    create(Api::<ConfigMap>::namespaced(admin.clone(), "shop"), authority).await;
    create(Api::<Secret>::namespaced(admin.clone(), "shop"), json!({"metadata": {"name": "unused"}})).await;
    let users: Vec<String> = hollow::names(NODES).map(|name| hollow::user(&name)).collect();
    let rules = json!([
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": users},
        {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"], "resourceNames": ["system:nodes"]},
    ]);
    create(Api::<ClusterRole>::all(admin.clone()), json!({"metadata": {"name": "hollow"}, "rules": rules})).await;
    let binding = json!({
        "metadata": {"name": "hollow"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hollow"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": hollow::IDENTITY}],
    });
    create(Api::<ClusterRoleBinding>::all(admin.clone()), binding).await;
}

fn config(pool: &Arc<Pool>, nodes: &[NodePlan]) -> hollow::Config {
    hollow::Config {
        pool: pool.clone(),
        nodes: nodes.to_vec(),
        os: NodeOs::Windows { build: 20348 },
        capacity: kubelet::Capacity { cpu_millis: 8000, memory_bytes: 16 << 30, pods: 110, ephemeral_storage_bytes: 0 },
        eviction: kubelet::Eviction::default(),
        cluster_dns: "10.96.0.10".parse().unwrap(),
        cluster_domain: "cluster.local".to_owned(),
        version: VERSION.to_owned(),
    }
}

/// The part of node IPAM.
async fn give_pod_cidrs(nodes: &Api<Node>) {
    for (number, name) in hollow::names(NODES).enumerate() {
        until_async("the Node", async || nodes.get_opt(&name).await.unwrap()).await;
        let cidr = format!("100.96.{number}.0/24");
        let patch = json!({"spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

async fn all_ready(pods: &Api<Pod>, count: usize) -> Vec<Pod> {
    until_async("every pod Ready", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        (all.iter().filter(|pod| kube_rules::is_pod_ready(pod)).count() == count && all.len() == count).then_some(all)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hollow_nodes_run_pods_as_themselves_over_shared_connections() {
    cluster::install_crypto_provider();
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::new();
    let settings = keys.config(dir.path().join("store"));
    let address = settings.advertise;
    let server = apiserver::start(settings).await.unwrap();
    let identity = apiserver::Identity { user: "admin".into(), groups: vec!["system:masters".into()] };
    let admin = Client::new(server.in_process(identity), "default");
    prepare(&admin, keys.ca.cert_pem()).await;
    let pair = keys.ca.issue(&CertRequest { cn: hollow::IDENTITY.into(), client: true, days: 1, ..CertRequest::default() }).unwrap();
    let kubeconfig = dir.path().join("hollow.conf");
    let credentials = Credentials::Certificate { cert_pem: pair.cert_pem, key_pem: pair.key_pem };
    let text = KubeConfig::new(&format!("https://{}:{}", address.0, address.1), keys.ca.cert_pem(), credentials).to_yaml();
    std::fs::write(&kubeconfig, text).unwrap();

    let plans = hollow::nodes(NODES, Uuid::from_u128(1), Uuid::from_u128(2));
    let pool = Pool::new(&kubeconfig, plans.len()).await.unwrap();
    let end = CancellationToken::new();
    let run = tokio::spawn(hollow::run(config(&pool, &plans), end.clone()));
    let nodes = Api::<Node>::all(admin.clone());
    give_pod_cidrs(&nodes).await;

    let pods = Api::<Pod>::namespaced(admin.clone(), "shop");
    for number in 0..PODS {
        let node = &plans[number % plans.len()].name;
        let spec = json!({"nodeName": node, "containers": [{"name": "web", "image": "registry.example/web:1"}]});
        create(pods.clone(), json!({"metadata": {"name": format!("web-{number:02}")}, "spec": spec})).await;
    }
    for (number, pod) in all_ready(&pods, PODS).await.into_iter().enumerate() {
        let status = pod.status.unwrap();
        let (ip, host) = (status.pod_ip.unwrap().parse::<Ipv4Addr>().unwrap(), status.host_ip.unwrap());
        let at = number % plans.len();
        assert_eq!((ip.octets()[2], host), (at as u8, plans[at].address.to_string()), "an address of the node's pod CIDR");
        assert!(status.container_statuses.unwrap()[0].container_id.as_ref().unwrap().starts_with("hollow://"));
    }
    let node = nodes.get("hollow-0001").await.unwrap();
    let labels = node.metadata.labels.clone().unwrap();
    assert!(kube_rules::node_labels::is_hollow(Some(&labels)) && labels["kubernetes.io/os"] == "windows" && kube_rules::is_node_ready(&node));

    // The connections are shared; the rights are not.
    let own = pool.client(0, &hollow::user("hollow-0001"));
    let secret = Api::<Secret>::namespaced(own.clone(), "shop").get("unused").await.unwrap_err();
    assert!(secret.to_string().contains("hollow-0001"), "no pod of the node uses it: {secret}");
    let stranger = pool.client(0, &hollow::user("win01"));
    let refused = Api::<Node>::all(stranger).get("win01").await.unwrap_err();
    assert!(refused.to_string().contains("cannot impersonate"), "{refused}");

    pods.delete("web-00", &DeleteParams::default()).await.unwrap();
    until_async("the pod to be gone", async || pods.get_opt("web-00").await.unwrap().is_none().then_some(())).await;

    // Its process starts again: what ran is gone, and runs again.
    end.cancel();
    run.await.unwrap().unwrap();
    let end = CancellationToken::new();
    let rebooted = hollow::nodes(NODES, Uuid::from_u128(1), Uuid::from_u128(3));
    let run = tokio::spawn(hollow::run(config(&pool, &rebooted), end.clone()));
    until_async("every pod to have run twice", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let twice = |pod: &Pod| pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()).all(|c| c.restart_count == 1);
        (all.len() == PODS - 1 && all.iter().all(|pod| twice(pod) && kube_rules::is_pod_ready(pod))).then_some(())
    })
    .await;
    end.cancel();
    run.await.unwrap().unwrap();
    server.shutdown().await;
}
