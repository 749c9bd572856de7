//! Claims of ephemeral volumes: one per volume, deleted with its pod (upstream: `pkg/controller/volume/ephemeral`).

use std::sync::Arc;

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_conflict};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Resource, api::PostParams};
use tokio_util::sync::CancellationToken;

use super::rows::StorageViews;
use crate::{
    runner::{Next, Queue},
    view::{Views, controller_of, controller_reference},
};

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
}

/// Runs until `shutdown`.
pub(super) async fn run(client: Client, views: Views, storage: StorageViews, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    views.pods.subscribe(move |change| {
        if change.new.is_some_and(|pod| !pod.ephemeral_claims.is_empty() && !pod.deleting && pod.node.is_empty()) {
            keys.add(change.key.clone());
        }
    });
    let (keys, pods) = (queue.clone(), views.pods.clone());
    storage.claims.subscribe(move |change| {
        if change.new.is_none() {
            let all = pods.in_namespace(&change.key.ns).into_iter();
            keys.extend(all.filter(|(_, pod)| !pod.ephemeral_claims.is_empty() && pod.claims.contains(&change.key.name)).map(|(key, _)| key));
        }
    });
    let events = EventRecorder::new(client.clone(), "ephemeral_volume", "");
    let context = Arc::new(Context { client, views, events });
    queue.run("ephemeralvolume", 2, shutdown, |key| sync(context.clone(), key)).await;
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    if !context.views.pods.get(&key).is_some_and(|pod| !pod.ephemeral_claims.is_empty() && !pod.deleting && !pod.is_finished()) {
        return Ok(Next::Change);
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(pod) = pods.get_opt(&key.name).await?.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else { return Ok(Next::Change) };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &key.ns);
    for wanted in wanted(&key, &pod) {
        let name = wanted.metadata.name.clone().unwrap_or_default();
        match claims.create(&PostParams::default(), &wanted).await {
            Err(error) if is_conflict(&error) => {
                let found = claims.get_opt(&name).await?.and_then(|claim| controller_of(&claim.metadata));
                let ours = found.is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
                if !ours {
                    let message = format!("PVC {}/{name} was not created for pod {key} (pod is not owner)", key.ns);
                    context.events.event(&pod.object_ref(&()), EventType::Warning, "FailedBinding", None, message.as_str());
                }
            }
            Err(error) if crate::is_namespace_terminating(&error) => {}
            other => other.map(|_| ()).with_context(|| format!("creating the claim {name} of {key}"))?,
        }
    }
    Ok(Next::Change)
}

fn wanted(key: &Key, pod: &Pod) -> Vec<PersistentVolumeClaim> {
    let owner = controller_reference("v1", "Pod", &key.name, pod.metadata.uid.as_deref().unwrap_or_default());
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let templates = volumes.filter_map(|volume| Some((&volume.name, volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?)));
    templates.map(|(volume, template)| claim(key, volume, template, owner.clone())).collect()
}

fn claim(key: &Key, volume: &str, template: &PersistentVolumeClaimTemplate, owner: OwnerReference) -> PersistentVolumeClaim {
    let meta = template.metadata.clone().unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(format!("{}-{volume}", key.name)),
            namespace: Some(key.ns.clone()),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ephemeral_volumes_become_claims_of_their_pod() {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let volumes = json!([{"name": "cache", "ephemeral": {"volumeClaimTemplate": template}}, {"name": "tmp", "emptyDir": {}}]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u"}, "spec": {"containers": [], "volumes": volumes},
        }))
        .unwrap();
        let claims = wanted(&Key::new("shop", "web"), &pod);
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].metadata.name.as_deref(), Some("web-cache"));
        let owner = controller_of(&claims[0].metadata).unwrap();
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pod", "u"));
        assert_eq!(claims[0].metadata.labels.as_ref().unwrap()["app"], "web");
    }
}
