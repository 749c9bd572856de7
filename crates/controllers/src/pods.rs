//! Creates and deletes the pods of a workload (upstream: `RealPodControl` and `slowStartBatch` of `pkg/controller`).
//!
//! Guarantees: what was written but not yet seen ([`Flight`]) is remembered; creations start slowly (1, 2, 4, …) so that a template that
//! cannot work costs one refused request; every write is an Event of the workload.

mod flight;

use std::time::Duration;

use cluster::{Client, EventRecorder, EventType, Key, is_conflict, is_not_found};
use futures::future::join_all;
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};

use crate::runner::requests;
pub(crate) use flight::{Flight, Observed};

/// How long a pod that was created may stay unseen before it counts as lost.
pub(crate) const UNSEEN: Duration = Duration::from_secs(30);

/// Why the number of pods could not be reached.
pub(crate) struct Failure {
    pub reason: &'static str,
    pub message: String,
    pub error: anyhow::Error,
}

/// Writes the pods of one kind of workload.
pub(crate) struct PodControl {
    pub client: Client,
    pub events: EventRecorder,
    pub flight: Flight,
}

/// The workload whose pods are written.
pub(crate) struct Workload<'a> {
    pub key: &'a Key,
    /// The object of its Events.
    pub object: &'a ObjectReference,
}

impl PodControl {
    /// Creates `count` pods in batches of 1, 2, 4, … and stops after the first batch with a refusal.
    pub async fn create(&self, workload: &Workload<'_>, count: usize, pod: impl Fn(usize) -> Pod) -> Option<Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &workload.key.ns);
        let (mut done, mut batch) = (0, 1);
        while done < count {
            let next = (done + batch).min(count);
            let results = requests(join_all((done..next).map(|index| self.create_one(workload, &pods, pod(index))))).await;
            if let Some(error) = results.into_iter().find_map(Result::err) {
                let message = crate::refusal(&error);
                return Some(Failure { reason: "FailedCreate", message, error: anyhow::Error::new(error).context("creating pods") });
            }
            done = next;
            batch *= 2;
        }
        None
    }

    async fn create_one(&self, workload: &Workload<'_>, pods: &Api<Pod>, pod: Pod) -> kube::Result<()> {
        match pods.create(&PostParams::default(), &pod).await {
            Ok(created) => {
                let name = created.metadata.name.unwrap_or_default();
                self.flight.created(workload.key, created.metadata.uid.unwrap_or_default());
                self.events.event(workload.object, EventType::Normal, "SuccessfulCreate", None, format!("Created pod: {name}"));
                Ok(())
            }
            Err(error) => {
                // Nothing can be created in a namespace that is being deleted; that is no error.
                if !crate::is_namespace_terminating(&error) {
                    let message = format!("Error creating: {}", crate::refusal(&error));
                    self.events.event(workload.object, EventType::Warning, "FailedCreate", None, message);
                }
                Err(error)
            }
        }
    }

    /// Deletes these pods, given by name and uid.
    pub async fn delete<'a>(&self, workload: &Workload<'_>, targets: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &workload.key.ns);
        let results = requests(join_all(targets.map(|(name, uid)| self.delete_one(workload, &pods, name, uid)))).await;
        let error = results.into_iter().find_map(Result::err)?;
        Some(Failure { reason: "FailedDelete", message: crate::refusal(&error), error: anyhow::Error::new(error).context("deleting pods") })
    }

    async fn delete_one(&self, workload: &Workload<'_>, pods: &Api<Pod>, name: &str, uid: &str) -> kube::Result<()> {
        self.flight.deleted(workload.key, uid.to_owned());
        let params =
            DeleteParams { preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }), ..DeleteParams::background() };
        match pods.delete(name, &params).await {
            Ok(_) => {
                self.events.event(workload.object, EventType::Normal, "SuccessfulDelete", None, format!("Deleted pod: {name}"));
                Ok(())
            }
            // Gone already, or another pod of that name: as good as deleted.
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => {
                self.flight.gone(uid);
                let message = format!("Error deleting: {}", crate::refusal(&error));
                self.events.event(workload.object, EventType::Warning, "FailedDelete", None, message);
                Err(error)
            }
        }
    }
}

/// A pod of the workload `key` from its template.
pub(crate) fn from_template(template: PodTemplateSpec, key: &Key, owner: OwnerReference) -> Pod {
    let meta = template.metadata.unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", key.name)),
            namespace: Some(key.ns.clone()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}
