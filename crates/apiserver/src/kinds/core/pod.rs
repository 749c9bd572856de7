//! Pods. Their rules are in `defaults::pod` and `validation::pod`, because templates obey them too.

use crate::defaults;
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::validation::pod;
use crate::validation::warnings;
use k8s_openapi::api::{core, policy};
use serde_json::Value;
use std::sync::Arc;
mod admission;
mod label_keys;
mod priority;
mod resize;
mod runtime_class;
mod status;
mod table;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Pod", "pods", "io.k8s.api.core.v1.Pod")
        .described_by::<core::v1::Pod>()
        .described_by::<core::v1::Binding>()
        .described_by::<policy::v1::Eviction>()
        .short(&["po"])
        .in_all()
        .status()
        .metadata_with_status()
        .connect("attach", "PodAttachOptions")
        .connect("exec", "PodExecOptions")
        .connect("portforward", "PodPortForwardOptions")
        .connect("proxy", "PodProxyOptions")
        .log()
        .action("binding", "", "v1", "Binding")
        .action("eviction", "policy", "v1", "Eviction")
        .part("ephemeralcontainers", &["get", "patch", "update"], prepare_ephemeral, Some(Arc::new(pod::check_ephemeral)))
        .part("resize", &["get", "patch", "update"], resize::prepare, Some(Arc::new(resize::check)))
        .counts_generations_by(status::spec_changed)
        .prepare_status(|old, pod| {
            status::keep_observed(old, pod);
            status::sync_addresses(pod);
        })
        .defaults(defaults::pod::defaults)
        .validate(pod::check)
        .validate_status(|new, old, errors| {
            pod::check(new, Some(old), errors);
            status::check_addresses(new, old, errors);
        })
        .warnings(warnings::pod)
        .prepare_create(|pod| {
            let status = status::initial(pod);
            object::set(pod, "status", status);
            label_keys::merge(pod);
        })
        .grace(status::grace)
        .admit_create_async(admission::create)
        .admit_update(admission::update)
        .selectable(SelectableField::new("spec.nodeName"))
        .selectable(SelectableField::new("spec.restartPolicy"))
        .selectable(SelectableField::new("spec.schedulerName"))
        .selectable(SelectableField::new("spec.serviceAccountName"))
        .selectable(SelectableField::new("spec.hostNetwork").or("false"))
        .selectable(SelectableField::new("status.phase"))
        .selectable(SelectableField::new("status.podIP"))
        .selectable(SelectableField::new("status.podIPs"))
        .selectable(SelectableField::new("status.nominatedNodeName"))
        .table(table::columns(), table::cells)
        .row_condition(table::condition)
}

fn prepare_ephemeral(old: &Value, new: &mut Value) {
    let containers = object::lookup(new, &["spec", "ephemeralContainers"]).cloned();
    *new = old.clone();
    if let Some(containers) = containers {
        object::map_mut(new, "spec").insert("ephemeralContainers".into(), containers);
    }
}
