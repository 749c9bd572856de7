//! Addresses of both families, and ServiceCIDRs, against the real API server.

use controllers::Timing;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Endpoints, Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use test_lab::until_async;

use crate::common::{Cluster, create, deployment, object};

async fn cluster() -> Cluster {
    Cluster::start_on(Timing::default(), "10.96.0.0/16,fd00:96::/112", "192.168.0.0/16,fd00:1::/56").await
}

fn service(name: &str, more: Value) -> Service {
    let mut spec = json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]});
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

/// The families of a Service's slices with their numbers of endpoints, sorted.
async fn slices(cluster: &Cluster, service: &str) -> Vec<(String, usize)> {
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let found = cluster.api::<EndpointSlice>().list(&of_service).await.unwrap().items;
    let mut all: Vec<(String, usize)> =
        found.into_iter().map(|slice| (slice.address_type, slice.endpoints.map_or(0, |endpoints| endpoints.len()))).collect();
    all.sort();
    all
}

async fn has_slices(cluster: &Cluster, service: &str, expected: &[(&str, usize)]) {
    let expected: Vec<(String, usize)> = expected.iter().map(|(family, count)| ((*family).to_owned(), *count)).collect();
    until_async(format!("{service} has {expected:?}"), async || slices(cluster, service).await == expected).await;
}

#[tokio::test]
async fn nodes_and_services_have_both_families() {
    let mut cluster = cluster().await;
    cluster.add_node("win01", "windows").await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    let node = until_async("the node has its networks", async || {
        let spec = nodes.get("win01").await.unwrap().spec.unwrap_or_default();
        spec.pod_cidrs.map(|all| (all, spec.pod_cidr))
    })
    .await;
    assert_eq!(node, (vec!["192.168.0.0/24".to_owned(), "fd00:1::/64".to_owned()], Some("192.168.0.0/24".to_owned())));

    create(&cluster.api::<Deployment>(), &deployment("web", 2, "microsoft/iis")).await;
    let services = cluster.api::<Service>();
    create(&services, &service("single", json!({}))).await;
    create(&services, &service("six", json!({"ipFamilies": ["IPv6"]}))).await;
    create(&services, &service("both", json!({"ipFamilyPolicy": "RequireDualStack"}))).await;
    create(&services, &service("headless", json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"}))).await;
    has_slices(&cluster, "single", &[("IPv4", 2)]).await;
    has_slices(&cluster, "six", &[("IPv6", 2)]).await;
    has_slices(&cluster, "both", &[("IPv4", 2), ("IPv6", 2)]).await;
    has_slices(&cluster, "headless", &[("IPv4", 2), ("IPv6", 2)]).await;
    let to = async |policy: &str| {
        let patch = Patch::Merge(json!({"spec": {"ipFamilyPolicy": policy}}));
        services.patch("both", &PatchParams::default(), &patch).await.unwrap();
    };
    to("SingleStack").await;
    has_slices(&cluster, "both", &[("IPv4", 2)]).await;
    to("PreferDualStack").await;
    has_slices(&cluster, "both", &[("IPv4", 2), ("IPv6", 2)]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn hand_written_endpoints_of_both_families_are_mirrored() {
    let cluster = cluster().await;
    let ports = json!([{"name": "http", "port": 80}]);
    create(&cluster.api(), &service("db", json!({"selector": null, "ports": ports, "ipFamilyPolicy": "RequireDualStack"}))).await;
    let subset = json!({"addresses": [{"ip": "10.1.2.3"}, {"ip": "fd00:9::1"}, {"ip": "10.1.2.4"}], "ports": ports});
    create(&cluster.api::<Endpoints>(), &object(json!({"metadata": {"name": "db"}, "subsets": [subset]}))).await;
    has_slices(&cluster, "db", &[("IPv4", 2), ("IPv6", 1)]).await;
    cluster.api::<Service>().delete("db", &DeleteParams::default()).await.unwrap();
    has_slices(&cluster, "db", &[]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn service_cidrs_stay_while_services_need_them() {
    let cluster = cluster().await;
    let cidrs: Api<ServiceCIDR> = Api::all(cluster.admin());
    create(&cidrs, &object(json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["203.0.113.0/24"]}}))).await;
    let ready = async |name: &str| {
        let cidr = cidrs.get_opt(name).await.unwrap()?;
        let conditions = cidr.status?.conditions?;
        conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|condition| (condition.status, condition.message))
    };
    let is_ready = ("True".to_owned(), "Kubernetes Service CIDR is ready".to_owned());
    until_async("it is ready", async || ready("more").await == Some(is_ready.clone())).await;
    until_async("the default one is ready too", async || ready("kubernetes").await == Some(is_ready.clone())).await;
    let services = cluster.api::<Service>();
    create(&services, &service("web", json!({"clusterIP": "203.0.113.10"}))).await;
    cidrs.delete("more", &DeleteParams::default()).await.unwrap();
    let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
    let held = ("False".to_owned(), message.to_owned());
    until_async("its deletion waits", async || ready("more").await == Some(held.clone())).await;
    let late = services.create(&kube::api::PostParams::default(), &service("late", json!({"clusterIP": "203.0.113.11"}))).await.unwrap_err();
    assert!(late.to_string().contains("the provided network does not match the current range"), "{late}");
    services.delete("web", &DeleteParams::default()).await.unwrap();
    until_async("it goes", async || cidrs.get_opt("more").await.unwrap().is_none()).await;
    cluster.stop().await;
}
