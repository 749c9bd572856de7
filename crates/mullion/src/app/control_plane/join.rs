//! What a node that joins with `kubeadm join` reads: the ConfigMaps of `kubeadm init`, and the rights to them
//! (cmd/kubeadm/app/phases/{bootstraptoken,uploadconfig,kubelet}).

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_rules::bootstrap_token::NODE_GROUP as JOINING;
use serde_json::{Value, json};

use crate::app::node::VERSION;
use crate::linux::cli::ControlPlaneArgs;

pub(super) const NODES: &str = "system:nodes";
/// The group of the administrator's certificate that kubeadm makes.
const ADMINISTRATORS: &str = "kubeadm:cluster-admins";
pub(super) const RBAC: &str = "rbac.authorization.k8s.io";

/// Publishes everything at once, so that the disk is waited for once or twice; what is there already is brought up to date.
pub async fn publish(client: &Client, args: &ControlPlaneArgs, ca_pem: &str) -> Result<()> {
    try_join_all(objects(args, ca_pem).into_iter().map(|(resource, object)| write(client, resource, object))).await.map(drop)
}

/// The object as it is to be from now on, whether or not it is there.
pub(super) async fn write(client: &Client, resource: ApiResource, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let name = object.metadata.name.clone().unwrap_or_default();
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(ns) => Api::namespaced_with(client.clone(), ns, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let written = match api.get_opt(&name).await? {
        None => api.create(&PostParams::default(), &object).await,
        // Signatures of the cluster's description stay.
        Some(_) => api.patch(&name, &PatchParams::default(), &Patch::Merge(&object)).await,
    };
    written.map(drop).with_context(|| format!("publishing {} {name} failed", resource.kind))
}

fn objects(args: &ControlPlaneArgs, ca_pem: &str) -> Vec<(ApiResource, Value)> {
    let server = SocketAddr::new(args.primary(), args.port);
    let map = |ns: &str, name: &str, member: &str, text: String| {
        (ApiResource::erase::<ConfigMap>(&()), json!({"metadata": {"name": name, "namespace": ns}, "data": {member: text}}))
    };
    let mut all = vec![
        map("kube-public", "cluster-info", "kubeconfig", cluster_info(server, ca_pem)),
        map("kube-system", "kubeadm-config", "ClusterConfiguration", cluster_configuration(args, server)),
        map("kube-system", "kubelet-config", "kubelet", kubelet_configuration(args)),
        (
            ApiResource::erase::<ClusterRole>(&()),
            json!({
                "metadata": {"name": "kubeadm:get-nodes"}, "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
            }),
        ),
    ];
    let anonymous = json!({"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"});
    let group = |name: &str| json!({"apiGroup": RBAC, "kind": "Group", "name": name});
    for (ns, name, readable, subjects) in [
        ("kube-public", "kubeadm:bootstrap-signer-clusterinfo", "cluster-info", vec![anonymous]),
        ("kube-system", "kubeadm:nodes-kubeadm-config", "kubeadm-config", vec![group(JOINING), group(NODES)]),
        ("kube-system", "kubeadm:kubelet-config", "kubelet-config", vec![group(NODES), group(JOINING)]),
    ] {
        let metadata = json!({"name": name, "namespace": ns});
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [readable], "verbs": ["get"]}]);
        let role = json!({"apiGroup": RBAC, "kind": "Role", "name": name});
        all.push((ApiResource::erase::<Role>(&()), json!({"metadata": metadata, "rules": rules})));
        all.push((ApiResource::erase::<RoleBinding>(&()), json!({"metadata": metadata, "roleRef": role, "subjects": subjects})));
    }
    for (name, role, subject) in [
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINING),
        ("kubeadm:get-nodes", "kubeadm:get-nodes", JOINING),
        ("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", JOINING),
        ("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", NODES),
        ("kubeadm:cluster-admins", "cluster-admin", ADMINISTRATORS),
    ] {
        let role = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": role});
        let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": [group(subject)]});
        all.push((ApiResource::erase::<ClusterRoleBinding>(&()), binding));
    }
    all
}

/// A kubeconfig without a user: where the API server is, and by which authority it is known.
fn cluster_info(server: SocketAddr, ca_pem: &str) -> String {
    let authority = STANDARD.encode(ca_pem);
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: https://{server}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n"
    )
}

fn cluster_configuration(args: &ControlPlaneArgs, server: SocketAddr) -> String {
    let ControlPlaneArgs { cluster_domain, cluster_cidr, service_cidr, .. } = args;
    format!(
        "apiServer: {{}}\napiVersion: kubeadm.k8s.io/v1beta4\ncaCertificateValidityPeriod: 87600h0m0s\n\
         certificateValidityPeriod: 8760h0m0s\ncertificatesDir: /etc/kubernetes/pki\nclusterName: kubernetes\n\
         controlPlaneEndpoint: {server}\ncontrollerManager: {{}}\ndns: {{}}\nencryptionAlgorithm: ECDSA-P256\nimageRepository: registry.k8s.io\n\
         kind: ClusterConfiguration\nkubernetesVersion: {VERSION}\nnetworking:\n  dnsDomain: {cluster_domain}\n  podSubnet: {cluster_cidr}\n  \
         serviceSubnet: {service_cidr}\nproxy: {{}}\nscheduler: {{}}\n"
    )
}

/// What kubeadm gives every kubelet of the cluster.
fn kubelet_configuration(args: &ControlPlaneArgs) -> String {
    let ControlPlaneArgs { cluster_domain, dns_ip, .. } = args;
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nauthentication:\n  anonymous:\n    enabled: false\n  webhook:\n    enabled: true\n  x509:\n    \
         clientCAFile: /etc/kubernetes/pki/ca.crt\nauthorization:\n  mode: Webhook\ncgroupDriver: systemd\nclusterDNS:\n- {dns_ip}\n\
         clusterDomain: {cluster_domain}\nhealthzBindAddress: 127.0.0.1\nhealthzPort: 10248\nkind: KubeletConfiguration\n\
         rotateCertificates: true\nstaticPodPath: /etc/kubernetes/manifests\n"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: ControlPlaneArgs,
    }

    pub(in crate::app::control_plane) fn args() -> ControlPlaneArgs {
        let text = "x --pki-dir p --store-dir s --listen-fd 3 --hosts-dir h --ports-socket q --address 10.240.0.2 --cluster-cidr 192.168.0.0/16 \
                    --node-mask 24 --service-cidr 10.96.0.0/12 --dns-ip 10.96.0.10 --service-node-port-range 30000-32767";
        Cli::parse_from(text.split_whitespace()).args
    }

    #[test]
    fn joining_nodes_find_the_cluster_and_its_configuration() {
        let all = objects(&args(), "AUTHORITY");
        let data = |name: &str, member: &str| {
            let (_, object) = all.iter().find(|(_, object)| object["metadata"]["name"] == name && object["data"].is_object()).unwrap();
            serde_yaml_ng::from_str::<Value>(object["data"][member].as_str().unwrap()).unwrap()
        };
        let info = data("cluster-info", "kubeconfig");
        assert_eq!(info["clusters"][0]["cluster"], json!({"certificate-authority-data": "QVVUSE9SSVRZ", "server": "https://10.240.0.2:6443"}));
        let configuration = data("kubeadm-config", "ClusterConfiguration");
        let networks = json!({"dnsDomain": "cluster.local", "podSubnet": "192.168.0.0/16", "serviceSubnet": "10.96.0.0/12"});
        assert_eq!((&configuration["networking"], &configuration["kubernetesVersion"]), (&networks, &json!(VERSION)));
        let kubelet = data("kubelet-config", "kubelet");
        assert_eq!((&kubelet["clusterDNS"], &kubelet["rotateCertificates"]), (&json!(["10.96.0.10"]), &json!(true)));
    }

    #[test]
    fn each_description_has_its_readers() {
        let all = objects(&args(), "AUTHORITY");
        let rights = |kind: &str, name: &str| {
            let (_, object) = all.iter().find(|(resource, object)| resource.kind == kind && object["metadata"]["name"] == name).unwrap();
            let names: Vec<&str> = object["subjects"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
            (object["roleRef"]["name"].as_str().unwrap(), names)
        };
        assert_eq!(rights("RoleBinding", "kubeadm:bootstrap-signer-clusterinfo").1, ["system:anonymous"]);
        assert_eq!(rights("RoleBinding", "kubeadm:kubelet-config").1, [NODES, JOINING]);
        assert_eq!(rights("ClusterRoleBinding", "kubeadm:kubelet-bootstrap"), ("system:node-bootstrapper", vec![JOINING]));
        assert_eq!(rights("ClusterRoleBinding", "kubeadm:cluster-admins"), ("cluster-admin", vec![ADMINISTRATORS]));
        let rotation = rights("ClusterRoleBinding", "kubeadm:node-autoapprove-certificate-rotation");
        assert_eq!(rotation, ("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", vec![NODES]));
    }
}
