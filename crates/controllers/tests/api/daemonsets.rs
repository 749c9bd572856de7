//! DaemonSets against the real API server.

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use test_lab::until_async;

use crate::common::{Cluster, create, object};

fn agent(image: &str) -> DaemonSet {
    object(json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}, "containers": [{"name": "agent", "image": image}]},
            },
        },
    }))
}

async fn settled(cluster: &Cluster, count: i32) -> Option<DaemonSet> {
    let found = cluster.api::<DaemonSet>().get("agent").await.unwrap();
    let status = found.status.clone()?;
    let all = [status.desired_number_scheduled, status.current_number_scheduled, status.number_ready];
    let more = [status.updated_number_scheduled, status.number_available].map(Option::unwrap_or_default);
    let same = all.into_iter().chain(more).all(|number| number == count) && status.observed_generation == found.metadata.generation;
    same.then_some(found)
}

async fn nodes_and_images(cluster: &Cluster) -> Vec<(String, String)> {
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    let specs = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).filter_map(|pod| pod.spec);
    let mut found: Vec<_> = specs.map(|mut spec| (spec.node_name.unwrap_or_default(), spec.containers.remove(0).image.unwrap_or_default())).collect();
    found.sort();
    found
}

#[tokio::test]
async fn one_pod_on_each_windows_node_cordoned_or_not() {
    let mut cluster = Cluster::start().await;
    for (name, os) in [("lin01", "linux"), ("win01", "windows"), ("win02", "windows")] {
        cluster.add_node(name, os).await;
    }
    let nodes: Api<Node> = Api::all(cluster.admin());
    nodes.patch("win02", &PatchParams::default(), &Patch::Merge(json!({"spec": {"unschedulable": true}}))).await.unwrap();
    create(&cluster.api(), &agent("monitor:1")).await;
    until_async("both run", async || settled(&cluster, 2).await).await;
    let on = |node: &str| (node.to_owned(), "monitor:1".to_owned());
    assert_eq!(nodes_and_images(&cluster).await, [on("win01"), on("win02")]);

    cluster.add_node("win03", "windows").await;
    until_async("a new node gets one", async || settled(&cluster, 3).await).await;
    nodes.patch("win03", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}))).await.unwrap();
    until_async("a node that suits no longer loses it", async || settled(&cluster, 2).await).await;

    let pods = cluster.api::<Pod>();
    let name = pods.list(&ListParams::default()).await.unwrap().items[0].name_any();
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    until_async("a deleted pod comes back", async || {
        let found = pods.list(&ListParams::default()).await.unwrap().items;
        found.len() == 2 && found.iter().all(|pod| pod.name_any() != name)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_update_goes_node_by_node_and_can_be_undone() {
    let mut cluster = Cluster::start().await;
    for name in ["win01", "win02"] {
        cluster.add_node(name, "windows").await;
    }
    create(&cluster.api(), &agent("monitor:1")).await;
    until_async("the first rollout", async || settled(&cluster, 2).await).await;
    let sets = cluster.api::<DaemonSet>();
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "monitor:2"}]}}}});
    sets.patch("agent", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    until_async("the second rollout", async || {
        settled(&cluster, 2).await.is_some() && nodes_and_images(&cluster).await.iter().all(|(_, image)| image == "monitor:2")
    })
    .await;

    let revisions = cluster.api::<ControllerRevision>();
    let history = async || {
        let mut found = revisions.list(&ListParams::default()).await.unwrap().items;
        found.sort_by_key(|one| one.revision);
        found
    };
    let noted = history().await;
    assert_eq!(noted.iter().map(|one| one.revision).collect::<Vec<_>>(), [1, 2]);
    // What kubectl's `rollout undo` does.
    let first: Value = noted[0].data.clone().unwrap().0;
    sets.patch("agent", &PatchParams::default(), &Patch::Strategic(first)).await.unwrap();
    until_async("back to the first", async || {
        settled(&cluster, 2).await.is_some() && nodes_and_images(&cluster).await.iter().all(|(_, image)| image == "monitor:1")
    })
    .await;
    until_async("the old revision is the newest now", async || {
        let found = history().await;
        let names: Vec<(String, i64)> = found.iter().map(|one| (one.name_any(), one.revision)).collect();
        names == [(noted[1].name_any(), 2), (noted[0].name_any(), 3)]
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_second_revision_of_the_template_takes_its_pods_over() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    create(&cluster.api(), &agent("monitor:1")).await;
    let set = until_async("the first rollout", async || settled(&cluster, 1).await).await;
    let revisions = cluster.api::<ControllerRevision>();
    let mut second = revisions.list(&ListParams::default()).await.unwrap().items.remove(0);
    let first = second.name_any();
    // Of the same template, as a copy in another cluster may have named it.
    second.metadata.name = Some("agent-copy".to_owned());
    (second.metadata.uid, second.metadata.resource_version, second.metadata.owner_references) = (None, None, None);
    second.labels_mut().insert("controller-revision-hash".to_owned(), "copy".to_owned());
    second.revision += 1;
    let pods = async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    let uid = pods().await[0].uid();
    create(&revisions, &second).await;
    until_async("the orphan is adopted and the older one goes", async || {
        let found = revisions.list(&ListParams::default()).await.unwrap().items;
        found.len() == 1 && found[0].name_any() != first && found[0].owner_references().iter().any(|owner| Some(&owner.uid) == set.uid().as_ref())
    })
    .await;
    let pods = pods().await;
    assert_eq!((pods.len(), pods[0].uid(), pods[0].labels()["controller-revision-hash"].as_str()), (1, uid, "copy"));
    cluster.stop().await;
}
