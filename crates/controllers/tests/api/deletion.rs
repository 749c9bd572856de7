//! Deletion against the real API server: owners and dependents, namespaces, nodes.

use crate::common::{Cluster, create, deployment, object};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ConfigMap, Namespace, Node, Pod},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::json;
use std::time::Instant;
use test_lab::until_async;

async fn count<K>(api: &Api<K>) -> usize
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.list(&ListParams::default()).await.unwrap().items.len()
}

async fn three_pods(cluster: &mut Cluster) {
    cluster.add_node("win01", "windows").await;
    create(&cluster.api(), &deployment("web", 3, "microsoft/iis")).await;
    let running = async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        let running = pods.iter().filter(|pod| pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).is_some());
        running.count() == 3
    };
    until_async("three pods run", running).await;
}

#[tokio::test]
async fn background_deletion_takes_everything_along() {
    let mut cluster = Cluster::start().await;
    three_pods(&mut cluster).await;
    cluster.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    let began = Instant::now();
    until_async("nothing is left", async || count(&cluster.api::<ReplicaSet>()).await == 0 && count(&cluster.api::<Pod>()).await == 0).await;
    let took = began.elapsed();
    println!("a Deployment of three is gone after {took:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn foreground_deletion_goes_from_the_leaves_up() {
    let mut cluster = Cluster::start().await;
    three_pods(&mut cluster).await;
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    let pods = cluster.api::<Pod>();
    let name = pods.list(&ListParams::default()).await.unwrap().items[0].metadata.name.clone().unwrap();
    pods.patch(&name, &PatchParams::default(), &held).await.unwrap();
    cluster.api::<Deployment>().delete("web", &DeleteParams::foreground()).await.unwrap();
    until_async("the other pods are gone", async || count(&pods).await == 1).await;
    let found = cluster.api::<Deployment>().get("web").await.expect("the Deployment waits for the last pod");
    assert!(found.metadata.deletion_timestamp.is_some());
    pods.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    until_async("the Deployment is gone", async || cluster.api::<Deployment>().get_opt("web").await.unwrap().is_none()).await;
    assert_eq!(count(&cluster.api::<ReplicaSet>()).await, 0);
    cluster.stop().await;
}

#[tokio::test]
async fn orphaning_leaves_the_dependents() {
    let mut cluster = Cluster::start().await;
    three_pods(&mut cluster).await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    cluster.api::<Deployment>().delete("web", &orphan).await.unwrap();
    until_async("the Deployment is gone", async || cluster.api::<Deployment>().get_opt("web").await.unwrap().is_none()).await;
    let sets = cluster.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap().items;
    assert!(sets.len() == 1 && sets[0].metadata.owner_references.as_deref().unwrap_or_default().is_empty());
    create(&cluster.api(), &deployment("web", 3, "microsoft/iis")).await;
    until_async("a new Deployment adopts them", async || {
        let sets = cluster.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap().items;
        sets.len() == 1 && sets[0].metadata.owner_references.is_some()
    })
    .await;
    assert_eq!(count(&cluster.api::<Pod>()).await, 3);
    cluster.stop().await;
}

#[tokio::test]
async fn an_object_whose_owner_never_was_goes_and_one_with_an_unknown_kind_stays() {
    let cluster = Cluster::start().await;
    let owned = |name: &str, kind: &str, version: &str| -> ConfigMap {
        let owner = json!({"apiVersion": version, "kind": kind, "name": "ghost", "uid": "00000000-0000-0000-0000-000000000000"});
        object(json!({"metadata": {"name": name, "ownerReferences": [owner]}}))
    };
    let maps = cluster.api::<ConfigMap>();
    create(&maps, &owned("stays", "Ghost", "example.com/v1")).await;
    create(&maps, &owned("goes", "ConfigMap", "v1")).await;
    until_async("the stray is gone", async || maps.get_opt("goes").await.unwrap().is_none()).await;
    assert!(maps.get_opt("stays").await.unwrap().is_some());
    cluster.stop().await;
}

#[tokio::test]
async fn a_namespace_goes_with_all_it_holds() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let namespaces: Api<Namespace> = Api::all(cluster.admin());
    create(&namespaces, &object(json!({"metadata": {"name": "shop"}}))).await;
    let inside = |client| Api::<Deployment>::namespaced(client, "shop");
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), "shop");
    create(&inside(cluster.admin()), &deployment("web", 2, "microsoft/iis")).await;
    until_async("two pods", async || count(&pods).await == 2).await;
    let service = object(json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}));
    create(&Api::<k8s_openapi::api::core::v1::Service>::namespaced(cluster.admin(), "shop"), &service).await;
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.admin(), "shop");
    until_async("a slice", async || count(&slices).await == 1).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let began = Instant::now();
    until_async("the namespace is gone", async || namespaces.get_opt("shop").await.unwrap().is_none()).await;
    let took = began.elapsed();
    println!("a namespace of two pods is gone after {took:?}");
    assert_eq!((count(&pods).await, count(&slices).await), (0, 0));
    cluster.stop().await;
}

#[tokio::test]
async fn a_namespace_says_what_holds_it() {
    let cluster = Cluster::start().await;
    let namespaces: Api<Namespace> = Api::all(cluster.admin());
    create(&namespaces, &object(json!({"metadata": {"name": "shop", "finalizers": ["example.com/last"]}}))).await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), "shop");
    create(&maps, &object(json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}))).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let said = async |type_: &str, expected: &str| {
        let conditions = namespaces.get("shop").await.unwrap().status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|one| one.type_ == type_ && one.message.as_deref() == Some(expected))
    };
    until_async("it says what remains", async || {
        said("NamespaceContentRemaining", "Some resources are remaining: configmaps. has 1 resource instances").await
    })
    .await;
    let held = "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    assert!(said("NamespaceFinalizersRemaining", held).await);
    assert!(said("NamespaceDeletionContentFailure", "All content successfully deleted, may be waiting on finalization").await);
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &free).await.unwrap();
    until_async("it is empty", async || said("NamespaceContentRemaining", "All content successfully removed").await).await;
    namespaces.patch("shop", &PatchParams::default(), &free).await.unwrap();
    until_async("it is gone", async || namespaces.get_opt("shop").await.unwrap().is_none()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_owner_in_another_namespace_is_none() {
    let cluster = Cluster::start().await;
    create(&Api::<Namespace>::all(cluster.admin()), &object(json!({"metadata": {"name": "shop"}}))).await;
    let maps = cluster.api::<ConfigMap>();
    let elsewhere: Api<ConfigMap> = Api::namespaced(cluster.admin(), "shop");
    let uid = create(&maps, &object(json!({"metadata": {"name": "parent"}}))).await.metadata.uid.unwrap();
    let child = |name: &str, owners: &[(&str, &str)]| -> ConfigMap {
        let owner = |(kind, owner): &(&str, &str)| json!({"apiVersion": "v1", "kind": kind, "name": owner, "uid": uid});
        object(json!({"metadata": {"name": name, "ownerReferences": owners.iter().map(owner).collect::<Vec<_>>()}}))
    };
    create(&elsewhere, &child("elsewhere", &[("ConfigMap", "parent")])).await;
    create(&maps, &child("misnamed", &[("ConfigMap", "other")])).await;
    create(&maps, &child("mistaken", &[("Secret", "parent")])).await;
    create(&maps, &child("right", &[("ConfigMap", "parent")])).await;
    let gone = async |api: &Api<ConfigMap>, name: &str| api.get_opt(name).await.unwrap().is_none();
    until_async("the references that are mistakes lead nowhere", async || {
        gone(&elsewhere, "elsewhere").await && gone(&maps, "misnamed").await && gone(&maps, "mistaken").await
    })
    .await;
    assert!(!gone(&maps, "right").await);
    let said =
        format!("OwnerRefInvalidNamespace: ownerRef [v1/ConfigMap, namespace: shop, name: parent, uid: {uid}] does not exist in namespace \"shop\"");
    until_async("an event says why", async || cluster.events("shop", "elsewhere").await.contains(&said)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_pod_that_may_not_be_collected_does_not_keep_the_others() {
    let cluster = Cluster::start().await;
    let pods = cluster.api::<Pod>();
    // Nothing schedules them: there is no node.
    for name in ["a", "b"] {
        let meta = json!({"name": name, "finalizers": ["example.com/hold"]});
        create(&pods, &object(json!({"metadata": meta, "spec": {"containers": [{"name": "c", "image": "nanoserver"}]}}))).await;
    }
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}]);
    let expression = "request.userInfo.username != 'system:kube-controller-manager' || request.name != 'a'";
    let spec = json!({"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression}]});
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.admin());
    create(&policies, &object(json!({"metadata": {"name": "keep-a"}, "spec": spec}))).await;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.admin());
    let spec = json!({"policyName": "keep-a", "validationActions": ["Deny"]});
    create(&bindings, &object(json!({"metadata": {"name": "keep-a"}, "spec": spec}))).await;
    let controller: Api<Pod> = Api::namespaced(cluster.component("system:kube-controller-manager"), "default");
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    until_async("the policy holds", async || controller.delete("a", &dry_run).await.is_err()).await;
    for name in ["a", "b"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until_async("the other one is collected", async || {
        pods.get("b").await.unwrap().status.is_some_and(|status| status.phase.as_deref() == Some("Failed"))
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_cordoned_node_gets_no_pods_and_a_tainted_one_loses_them() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    cluster.add_node("win02", "windows").await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    nodes.patch("win02", &PatchParams::default(), &Patch::Merge(json!({"spec": {"unschedulable": true}}))).await.unwrap();
    until_async("the cordon is a taint", async || {
        let taints = nodes.get("win02").await.unwrap().spec?.taints?;
        taints.into_iter().find(|taint| taint.key == "node.kubernetes.io/unschedulable")
    })
    .await;
    create(&cluster.api(), &deployment("web", 4, "microsoft/iis")).await;
    let pods = cluster.api::<Pod>();
    let on = async |node: &str| {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node)).count()
    };
    until_async("all pods are on the other node", async || on("win01").await == 4).await;
    nodes.patch("win02", &PatchParams::default(), &Patch::Merge(json!({"spec": {"unschedulable": false}}))).await.unwrap();
    let taint = json!({"spec": {"taints": [{"key": "broken", "effect": "NoExecute"}]}});
    nodes.patch("win01", &PatchParams::default(), &Patch::Strategic(taint)).await.unwrap();
    until_async("all pods moved", async || on("win02").await == 4 && on("win01").await == 0).await;
    cluster.stop().await;
}
