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
