//! Deployments: keeps each one's ReplicaSets as its strategy, history limit and pause demand, and reports progress.
//!
//! Inputs: the Deployment (read anew each time), the ReplicaSets and, for Recreate, the pods of its namespace. Outputs: ReplicaSets, the
//! revision annotation, status and Events. Mirrors `pkg/controller/deployment` (sync.go, rolling.go, recreate.go, progress.go).
//! Guarantees: a ReplicaSet is written only over the version the plan was made from; its name follows from the template, so a second
//! attempt finds the first one's result.
//! Not covered: rolling back (kubectl does it by writing an old template).

mod apply;
mod plan;
mod rows;
mod status;

use std::sync::Arc;

use cluster::{Client, EventRecorder, Key};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::Queue,
    view::{Controller, Views},
};

pub(crate) use rows::{RsRow, scaled, template_hash};

/// Context of a pass.
struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    watch(&views, &queue);
    let events = EventRecorder::new(client.clone(), "deployment-controller", "");
    let context = Arc::new(Context { client, views, events });
    queue.run("deployment", 8, shutdown, |key| apply::sync(context.clone(), key)).await;
}

/// Which Deployments a change concerns.
fn watch(views: &Views, queue: &Queue<Key>) {
    let keys = queue.clone();
    views.deployments.subscribe(move |change| keys.add(change.key.clone()));

    let (keys, deployments) = (queue.clone(), views.deployments.clone());
    views.replica_sets.subscribe(move |change| {
        for set in [change.old, change.new].into_iter().flatten() {
            match &set.controller {
                Some(owner) => keys.extend(Views::controller_key(Some(owner), "Deployment", &change.key.ns)),
                // An orphan may be one to adopt.
                None => {
                    let mine = deployments.in_namespace(&change.key.ns).into_iter();
                    keys.extend(mine.filter(|(_, row)| row.selector.matches(&set.labels)).map(|(key, _)| key));
                }
            }
        }
    });

    // Recreate waits until the last old pod is gone.
    let (keys, sets) = (queue.clone(), views.replica_sets.clone());
    views.pods.subscribe(move |change| {
        let (Some(pod), None) = (change.old, change.new) else { return };
        let set = Views::controller_key(pod.controller.as_ref(), "ReplicaSet", &change.key.ns).and_then(|key| sets.get(key));
        let owner: Option<Controller> = set.and_then(|set| set.controller.clone());
        keys.extend(Views::controller_key(owner.as_ref(), "Deployment", &change.key.ns));
    });
}
