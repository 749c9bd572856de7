//! Addresses of load balancers, against the real API server.

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

fn balanced(name: &str, more: serde_json::Value) -> Service {
    let mut spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

async fn addresses(services: &Api<Service>, name: &str) -> Vec<String> {
    let ingress = services.get(name).await.unwrap().status.and_then(|status| status.load_balancer?.ingress);
    ingress.into_iter().flatten().filter_map(|one| one.ip).collect()
}

async fn has(services: &Api<Service>, name: &str, address: &str) {
    until_async(&format!("{name} has {address}"), async || addresses(services, name).await == [address]).await;
}

#[tokio::test]
async fn services_share_the_range_of_load_balancers() {
    let cluster = Cluster::start().await;
    let services = cluster.api::<Service>();
    create(&services, &balanced("b", json!({"loadBalancerIP": "10.241.0.2"}))).await;
    has(&services, "b", "10.241.0.2").await;
    create(&services, &balanced("other", json!({"loadBalancerClass": "example.com/other"}))).await;
    create(&services, &balanced("a", json!({"loadBalancerClass": "mullion.io/load-balancer"}))).await;
    has(&services, "a", "10.241.0.1").await;
    create(&services, &balanced("c", json!({}))).await;
    let full = "SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: no address is free in \
                --load-balancer-cidr 10.241.0.0/30: delete Services of type LoadBalancer, or choose a larger range";
    until_async("the range is exhausted", async || cluster.events("default", "c").await.iter().any(|event| event == full)).await;
    assert!(addresses(&services, "c").await.is_empty());

    // A Service that changes its type gives its address to the one that waits.
    let patch = Patch::Merge(json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}}));
    services.patch("a", &PatchParams::default(), &patch).await.unwrap();
    has(&services, "c", "10.241.0.1").await;
    until_async("a has none", async || addresses(&services, "a").await.is_empty()).await;
    // So does one that goes away.
    services.delete("b", &DeleteParams::default()).await.unwrap();
    create(&services, &balanced("d", json!({}))).await;
    has(&services, "d", "10.241.0.2").await;
    assert!(addresses(&services, "other").await.is_empty(), "of another class");
    cluster.stop().await;
}
