//! The kinds that keep a number of pods: ReplicaSets, and ReplicationControllers, which are seen as such (upstream: `pkg/controller/replication`).

use std::fmt;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus},
        core::v1::{PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use crate::deployment::RsRow;

/// A kind that keeps a number of pods.
pub(crate) trait Replicated:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
    const API_VERSION: &'static str;
    const KIND: &'static str;
    /// The controller's name in its Events.
    const COMPONENT: &'static str;
    /// Whether the status says how many pods are being deleted.
    const COUNTS_TERMINATING: bool;

    fn row(&self) -> RsRow;
    fn into_template(self) -> PodTemplateSpec;
    fn set_status(&mut self, status: ReplicaSetStatus);
}

impl Replicated for ReplicaSet {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "ReplicaSet";
    const COMPONENT: &'static str = "replicaset-controller";
    const COUNTS_TERMINATING: bool = true;

    fn row(&self) -> RsRow {
        RsRow::new(self)
    }

    fn into_template(self) -> PodTemplateSpec {
        self.spec.and_then(|spec| spec.template).unwrap_or_default()
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        self.status = Some(status);
    }
}

impl Replicated for ReplicationController {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ReplicationController";
    const COMPONENT: &'static str = "replication-controller";
    const COUNTS_TERMINATING: bool = false;

    fn row(&self) -> RsRow {
        let spec = self.spec.clone().unwrap_or_default();
        let spec = ReplicaSetSpec {
            min_ready_seconds: spec.min_ready_seconds,
            replicas: spec.replicas,
            selector: LabelSelector { match_labels: spec.selector, match_expressions: None },
            template: spec.template,
        };
        let status = self.status.clone().map(|status| ReplicaSetStatus {
            available_replicas: status.available_replicas,
            conditions: status.conditions.map(|all| all.into_iter().map(from_controller).collect()),
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
            terminating_replicas: None,
        });
        RsRow::new(&ReplicaSet { metadata: self.metadata.clone(), spec: Some(spec), status })
    }

    fn into_template(self) -> PodTemplateSpec {
        self.spec.and_then(|spec| spec.template).unwrap_or_default()
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        self.status = Some(ReplicationControllerStatus {
            available_replicas: status.available_replicas,
            conditions: status.conditions.map(|all| all.into_iter().map(to_controller).collect()),
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
        });
    }
}

fn from_controller(condition: ReplicationControllerCondition) -> ReplicaSetCondition {
    let ReplicationControllerCondition { last_transition_time, message, reason, status, type_ } = condition;
    ReplicaSetCondition { last_transition_time, message, reason, status, type_ }
}

fn to_controller(condition: ReplicaSetCondition) -> ReplicationControllerCondition {
    let ReplicaSetCondition { last_transition_time, message, reason, status, type_ } = condition;
    ReplicationControllerCondition { last_transition_time, message, reason, status, type_ }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::ReplicationControllerSpec, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    use super::*;
    use kube_rules::Labels;

    #[test]
    fn a_replication_controller_reads_and_writes_like_a_replica_set() {
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let mut controller = ReplicationController {
            metadata: ObjectMeta { name: Some("web".into()), ..Default::default() },
            spec: Some(ReplicationControllerSpec { replicas: Some(3), selector: Some(labels.clone()), ..Default::default() }),
            status: None,
        };
        let row = controller.row();
        assert_eq!((row.name.as_str(), row.replicas, row.selector.matches(&labels), row.selector.matches(&Labels::new())), ("web", 3, true, false));
        let condition = ReplicaSetCondition { type_: "ReplicaFailure".into(), status: "True".into(), ..Default::default() };
        controller.set_status(ReplicaSetStatus {
            replicas: 2,
            ready_replicas: Some(1),
            conditions: Some(vec![condition.clone()]),
            ..Default::default()
        });
        let row = controller.row();
        assert_eq!((row.actual, row.ready, row.conditions), (2, 1, vec![condition]));
    }
}
