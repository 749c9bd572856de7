//! Protects claims that pods use and volumes that are bound, by finalizers (upstream: `pvcprotection`, `pvprotection`).

use std::{fmt, sync::Arc};

use anyhow::Context as _;
use cluster::{Client, Key, is_conflict, is_not_found, update_with_retry};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Resource, api::ListParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use super::{
    Work,
    rows::{CLAIM_PROTECTION, StorageViews, VOLUME_PROTECTION, VolumeRow},
};
use crate::{
    runner::{Next, Queue},
    view::{PodRow, Views},
};

struct Context {
    client: Client,
    views: Views,
    storage: StorageViews,
}

/// Runs until `shutdown`.
pub(super) async fn run(client: Client, views: Views, storage: StorageViews, shutdown: CancellationToken) {
    let queue = Queue::<Work>::default();
    let keys = queue.clone();
    storage.claims.subscribe(move |change| {
        if change.new.is_some_and(|claim| claim.deleting == claim.protected) {
            keys.add(Work::Claim(change.key.clone()));
        }
    });
    let keys = queue.clone();
    storage.volumes.subscribe(move |change| {
        if change.new.is_some_and(|volume| volume.deleting == is_protected(volume)) {
            keys.add(Work::Volume(change.key.name.clone()));
        }
    });
    let (keys, claims) = (queue.clone(), storage.claims.clone());
    views.pods.subscribe(move |change| {
        let done = change.new.is_none_or(|pod| pod.shut_down);
        let Some(pod) = change.old.or(change.new).filter(|_| done) else { return };
        let names = pod.claims.iter().map(|name| Key::new(&change.key.ns, name));
        keys.extend(names.filter(|key| claims.get(key).is_some_and(|claim| claim.deleting)).map(Work::Claim));
    });
    let context = Arc::new(Context { client, views, storage });
    queue.run("storageprotection", 2, shutdown, |work| sync(context.clone(), work)).await;
}

fn is_protected(volume: &VolumeRow) -> bool {
    volume.finalizers.iter().any(|one| one == VOLUME_PROTECTION)
}

/// Actions for a finalizer: present objects have it, objects on their way lose it once they are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Keep,
    Add,
    Remove,
}

/// Whether a pod holds a claim: it is on a node, whose agent may have the volume mounted until the pod is gone, even after its end. A volume
/// that is made for the pod alone is free once the agent is done with the pod.
fn holds(pod: &PodRow, claim: &str) -> bool {
    let named = |claims: &[String]| claims.iter().any(|name| name == claim);
    !pod.node.is_empty() && named(&pod.claims) && !(pod.shut_down && named(&pod.ephemeral_claims))
}

fn step(deleting: bool, protected: bool, in_use: impl FnOnce() -> bool) -> Step {
    match (deleting, protected) {
        (false, false) => Step::Add,
        (true, true) if !in_use() => Step::Remove,
        _ => Step::Keep,
    }
}

async fn sync(context: Arc<Context>, work: Work) -> anyhow::Result<Next> {
    match &work {
        Work::Claim(key) => {
            let Some(claim) = context.storage.claims.get(key) else { return Ok(Next::Change) };
            let pods = context.views.pods.in_namespace(&key.ns);
            let uses = || pods.iter().any(|(_, pod)| holds(pod, &key.name));
            let step = step(claim.deleting, claim.protected, uses);
            if step == Step::Remove && is_used(&context.client, key).await? {
                return Ok(Next::Change);
            }
            let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &key.ns);
            write(&api, &key.name, CLAIM_PROTECTION, step).await
        }
        Work::Volume(name) => {
            let Some(volume) = context.storage.volumes.get(Key::cluster(name)) else { return Ok(Next::Change) };
            let step = step(volume.deleting, is_protected(&volume), || volume.phase == "Bound");
            write(&Api::<PersistentVolume>::all(context.client.clone()), name, VOLUME_PROTECTION, step).await
        }
    }
}

/// Our view may be late: a pod that uses the claim may exist already.
async fn is_used(client: &Client, key: &Key) -> anyhow::Result<bool> {
    let pods = Api::<Pod>::namespaced(client.clone(), &key.ns).list(&ListParams::default()).await.context("looking for pods that use a claim")?;
    Ok(pods.items.iter().any(|pod| holds(&PodRow::new(pod), &key.name)))
}

async fn write<K>(api: &Api<K>, name: &str, finalizer: &str, step: Step) -> anyhow::Result<Next>
where
    K: Resource + Clone + Serialize + DeserializeOwned + fmt::Debug,
{
    if step == Step::Keep {
        return Ok(Next::Change);
    }
    let written = update_with_retry(api, name, |object| {
        let meta: &mut ObjectMeta = object.meta_mut();
        let deleting = meta.deletion_timestamp.is_some();
        let finalizers = meta.finalizers.get_or_insert_default();
        let present = finalizers.iter().any(|one| one == finalizer);
        match step {
            Step::Add if !present && !deleting => finalizers.push(finalizer.to_owned()),
            Step::Remove if present => finalizers.retain(|one| one != finalizer),
            _ => return false,
        }
        true
    })
    .await;
    match written {
        Err(cluster::Error::Request { source, .. }) if is_not_found(&source) || is_conflict(&source) => Ok(Next::Change),
        other => other.map(|_| Next::Change).with_context(|| format!("protecting {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_on_nodes_hold_their_claims_until_they_are_gone() {
        let pod = |change: fn(&mut PodRow)| {
            let (_, row) = crate::testing::pod("a", |row| {
                row.node = "win01".to_owned();
                (row.claims, row.ephemeral_claims) = (vec!["data".to_owned(), "a-scratch".to_owned()], vec!["a-scratch".to_owned()]);
                change(row);
            });
            row
        };
        for (what, pod, expected) in [
            ("it runs", pod(|_| {}), [true, true, false]),
            ("it has no node", pod(|row| row.node.clear()), [false, false, false]),
            ("it has ended", pod(|row| row.phase = "Succeeded".to_owned()), [true, true, false]),
            ("it is shut down", pod(|row| row.shut_down = true), [true, false, false]),
        ] {
            assert_eq!(["data", "a-scratch", "other"].map(|claim| holds(&pod, claim)), expected, "{what}");
        }
    }

    #[test]
    fn objects_in_use_keep_their_finalizer() {
        for (deleting, protected, in_use, expected) in [
            (false, false, false, Step::Add),
            (false, true, false, Step::Keep),
            (true, true, true, Step::Keep),
            (true, true, false, Step::Remove),
            (true, false, false, Step::Keep),
        ] {
            assert_eq!(step(deleting, protected, || in_use), expected, "{deleting} {protected} {in_use}");
        }
    }
}
