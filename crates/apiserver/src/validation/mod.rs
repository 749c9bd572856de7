//! Upstream's validation of the served kinds (pkg/apis/*/validation), with its field paths and words. Objects are valid by type and
//! defaulted before they come here.

mod access;
mod classes;
mod config;
mod container;
mod error;
mod field;
#[cfg(test)]
mod kinds_tests;
mod meta;
mod names;
mod network;
mod pod;
mod pod_update;
mod scheduling;
mod storage;
#[cfg(test)]
mod tests;
mod volume;
mod warnings;
mod windows;
mod workload;

pub use error::FieldError;
pub use warnings::of as warnings;

use crate::kinds::KindInfo;
use field::{Errors, Field};
use serde_json::Value;

/// What is wrong with a new object, in upstream's order; empty for a valid one.
pub fn create(info: &KindInfo, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = Field::root(object);
    meta::check(info, &root, &mut errors);
    content(info, &root, None, &mut errors);
    errors.into_list()
}

/// What is wrong with replacing `old` by `new`. A part that did not change is not validated again.
pub fn update(info: &KindInfo, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (root, before) = (Field::root(new), Field::root(old));
    meta::check_update(&root, &before, &mut errors);
    content(info, &root, Some(&before), &mut errors);
    errors.into_list()
}

/// What is wrong with a pod's ephemeral containers after a change to them.
pub fn ephemeral_containers(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    pod::check_ephemeral(&Field::root(new), &Field::root(old), &mut errors);
    errors.into_list()
}

fn content(info: &KindInfo, new: &Field, old: Option<&Field>, errors: &mut Errors) {
    match (info.group, info.kind) {
        ("", "Pod") => pod::check(new, old, errors),
        ("", "Service") => network::service(new, old, errors),
        ("", "Endpoints") => network::endpoints(new, errors),
        ("", "Secret") => config::secret(new, old, errors),
        ("", "ConfigMap") => config::config_map(new, old, errors),
        ("", "Node") => config::node(new, old, errors),
        ("", "Event") => config::event(new, errors),
        ("events.k8s.io", "Event") => config::new_event(new, old, errors),
        ("", "PersistentVolume") => storage::persistent_volume(new, old, errors),
        ("", "PersistentVolumeClaim") => storage::claim(new, old, errors),
        ("apps", "DaemonSet") => workload::daemon_set(new, old, errors),
        ("apps", "ControllerRevision") => workload::controller_revision(new, old, errors),
        ("policy", "PodDisruptionBudget") => workload::disruption_budget(new, old, errors),
        ("storage.k8s.io", "StorageClass") => classes::storage(new, old, errors),
        ("scheduling.k8s.io", "PriorityClass") => classes::priority(new, old, errors),
        ("node.k8s.io", "RuntimeClass") => classes::runtime(new, old, errors),
        ("apps", "Deployment") => workload::deployment(new, old, errors),
        ("apps", "ReplicaSet") => workload::replica_set(new, old, errors),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(new, old, errors),
        ("coordination.k8s.io", "Lease") => config::lease(new, errors),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => access::role(new, info.namespaced, errors),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => access::binding(new, old, info.namespaced, errors),
        _ => {}
    }
}
