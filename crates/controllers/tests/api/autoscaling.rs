//! Autoscalers against the real API server. There is no kubelet, so that no metrics are known.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, deployment, object};

fn autoscaler(name: &str, target: &str, min: i32, max: i32) -> HorizontalPodAutoscaler {
    object(json!({"metadata": {"name": name}, "spec": {
        "minReplicas": min, "maxReplicas": max, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
    }}))
}

async fn start() -> Cluster {
    let mut cluster = Cluster::start().await;
    cluster.start_autoscaler(Duration::from_millis(200));
    cluster
}

async fn condition(cluster: &Cluster, name: &str, type_: &str) -> Option<HorizontalPodAutoscalerCondition> {
    let status = cluster.api::<HorizontalPodAutoscaler>().get(name).await.unwrap().status?;
    status.conditions?.into_iter().find(|condition| condition.type_ == type_)
}

async fn reason(cluster: &Cluster, name: &str, type_: &str) -> String {
    condition(cluster, name, type_).await.and_then(|condition| condition.reason).unwrap_or_default()
}

#[tokio::test]
async fn a_workload_is_kept_within_its_bounds() {
    let cluster = start().await;
    let (deployments, autoscalers) = (cluster.api::<Deployment>(), cluster.api::<HorizontalPodAutoscaler>());
    create(&deployments, &deployment("web", 1, "microsoft/iis")).await;
    create(&autoscalers, &autoscaler("web", "web", 2, 4)).await;
    let replicas = async || deployments.get("web").await.unwrap().spec.unwrap().replicas;
    until_async("at least two", async || replicas().await == Some(2)).await;
    let said = "SuccessfulRescale: New size: 2; reason: Current number of replicas below Spec.MinReplicas";
    until_async("it is told", async || cluster.events("default", "web").await.iter().any(|event| event == said)).await;

    let scale = |replicas: i32| Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch("web", &PatchParams::default(), &scale(9)).await.unwrap();
    until_async("at most four", async || replicas().await == Some(4)).await;
    let status = async || autoscalers.get("web").await.unwrap().status.unwrap_or_default();
    until_async("the status says so", async || status().await.last_scale_time.is_some() && status().await.desired_replicas == 4).await;

    deployments.patch("web", &PatchParams::default(), &scale(0)).await.unwrap();
    until_async("scaling is off", async || reason(&cluster, "web", "ScalingActive").await == "ScalingDisabled").await;
    assert_eq!(replicas().await, Some(0));
    cluster.stop().await;
}

#[tokio::test]
async fn an_autoscaler_says_what_it_lacks() {
    let cluster = start().await;
    let autoscalers = cluster.api::<HorizontalPodAutoscaler>();
    create(&autoscalers, &autoscaler("none", "none", 1, 4)).await;
    until_async("no target", async || reason(&cluster, "none", "AbleToScale").await == "FailedGetScale").await;
    let message = condition(&cluster, "none", "AbleToScale").await.unwrap().message.unwrap();
    assert_eq!(message, "the HPA controller was unable to get the target's current scale: deployments.apps \"none\" not found");

    create(&cluster.api(), &deployment("web", 1, "microsoft/iis")).await;
    create(&autoscalers, &autoscaler("web", "web", 1, 4)).await;
    until_async("no metrics", async || reason(&cluster, "web", "ScalingActive").await == "FailedGetResourceMetric").await;
    let message = condition(&cluster, "web", "ScalingActive").await.unwrap().message.unwrap();
    assert_eq!(
        message,
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics \
         returned from resource metrics API"
    );
    // A second one for the same pods: neither may act.
    create(&autoscalers, &autoscaler("again", "web", 1, 4)).await;
    until_async("both select the pods", async || reason(&cluster, "again", "ScalingActive").await == "AmbiguousSelector").await;
    let message = condition(&cluster, "again", "ScalingActive").await.unwrap().message.unwrap();
    assert_eq!(message, "pods by selector app=web are controlled by multiple HPAs: [default/again default/web]");
    cluster.stop().await;
}
