//! Resource quotas against the real API server.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Service};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

#[tokio::test]
async fn a_quota_counts_what_is_there() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("lin01", "linux").await;
    let (quotas, pods, services) = (cluster.api::<ResourceQuota>(), cluster.api::<Pod>(), cluster.api::<Service>());
    let used = async || {
        let status = quotas.get("quota").await.unwrap().status.unwrap_or_default();
        serde_json::to_value(status.used.unwrap_or_default()).unwrap()
    };
    let is = async |name: &str, amount: &str| used().await[name] == amount;
    // Some objects are older than the quota.
    let container = json!({"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "100m"}}});
    let pod = |name: &str| object::<Pod>(json!({"metadata": {"name": name}, "spec": {"containers": [container]}}));
    create(&pods, &pod("a")).await;
    create(&services, &object(json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}))).await;
    let hard = json!({"pods": "5", "requests.cpu": "1", "services.nodeports": "3", "configmaps": "10", "count/deployments.apps": "2"});
    create(&quotas, &object(json!({"metadata": {"name": "quota"}, "spec": {"hard": hard}}))).await;
    until_async("everything is counted", async || used().await.as_object().unwrap().len() == 5).await;
    let expected = json!({"pods": "1", "requests.cpu": "100m", "services.nodeports": "1", "configmaps": "1", "count/deployments.apps": "0"});
    until_async("the numbers are right", async || used().await == expected).await;

    create(&pods, &pod("b")).await;
    until_async("a new pod counts", async || is("requests.cpu", "200m").await).await;
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    until_async("a deleted one does not", async || is("pods", "1").await && is("requests.cpu", "100m").await).await;
    create(&cluster.api::<ConfigMap>(), &object(json!({"metadata": {"name": "m"}}))).await;
    until_async("so does a map", async || is("configmaps", "2").await).await;
    cluster.api::<ConfigMap>().delete("m", &DeleteParams::default()).await.unwrap();
    until_async("it went", async || is("configmaps", "1").await).await;
    let patch = Patch::Merge(json!({"spec": {"type": "ClusterIP"}}));
    services.patch("s", &PatchParams::default(), &patch).await.unwrap();
    until_async("a Service without node ports", async || is("services.nodeports", "0").await).await;
    cluster.stop().await;
}
