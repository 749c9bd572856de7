//! CertificateSigningRequests (pkg/apis/certificates, pkg/registry/certificates, plugin/pkg/admission/certificates).

mod admission;
#[cfg(test)]
mod tests;
mod validation;

use crate::kind::{Kind, SelectableField};
use crate::object;
use crate::table::text::{get, get_or, human_duration, list};
use crate::table::{AGE, NAME, age, name, text};
use jiff::Timestamp;
use k8s_openapi::api::certificates;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What only the approval may say.
const APPROVALS: [&str; 2] = ["Approved", "Denied"];

pub fn kind() -> Kind {
    let schema_type = "io.k8s.api.certificates.v1.CertificateSigningRequest";
    Kind::new("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", schema_type)
        .described_by::<certificates::v1::CertificateSigningRequest>()
        .cluster()
        .short(&["csr"])
        .status()
        .metadata_with_status()
        .part("approval", &["get", "patch", "update"], prepare_approval, Some(Arc::new(validation::validate_approval)))
        .name_rule(|_| Vec::new())
        .selectable(SelectableField::new("spec.signerName"))
        .validate(validation::validate)
        .validate_status(validation::validate_status)
        .admit_create(admission::create)
        .admit_update(admission::update)
        .prepare_create(|request| object::set(request, "status", json!({})))
        .prepare_update(|old, new| object::copy_member(old, new, "spec"))
        .prepare_status(prepare_status)
        .table([NAME, AGE, text("SignerName"), text("Requestor"), text("RequestedDuration"), text("Condition")], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let duration = object::integer(object, &["spec", "expirationSeconds"]);
    vec![
        name(object),
        age(object, now),
        get_or(object, "/spec/signerName", "<none>").into(),
        get(object, "/spec/username").into(),
        duration.map_or_else(|| "<none>".to_string(), human_duration).into(),
        state(object).into(),
    ]
}

fn state(request: &Value) -> String {
    let has = |kind: &str| list(request, "/status/conditions").iter().any(|condition| get(condition, "/type") == kind);
    let decision = match () {
        () if has("Denied") => "Denied",
        () if has("Approved") => "Approved",
        () => "Pending",
    };
    let failed = if has("Failed") { ",Failed" } else { "" };
    let issued = if get(request, "/status/certificate").is_empty() { "" } else { ",Issued" };
    format!("{decision}{failed}{issued}")
}

/// The status leaves the decision alone.
fn prepare_status(old: &Value, new: &mut Value) {
    let before = object::list(old, &["status", "conditions"]).to_vec();
    let mut conditions = object::list(new, &["status", "conditions"]).to_vec();
    for kind in APPROVALS {
        let is = |condition: &&Value| get(condition, "/type") == kind;
        let kept: Vec<Value> = before.iter().filter(is).cloned().collect();
        // A decision that is added or taken away is left for validation to refuse.
        if kept.len() == conditions.iter().filter(is).count() {
            conditions.iter_mut().filter(|condition| get(condition, "/type") == kind).zip(kept).for_each(|(condition, kept)| *condition = kept);
        }
    }
    date(&before, &mut conditions, &object::now());
    set_conditions(object::map_mut(new, "status"), conditions);
}

/// An approval writes conditions alone, and what metadata lets it.
fn prepare_approval(old: &Value, new: &mut Value) {
    let mut conditions = object::list(new, &["status", "conditions"]).to_vec();
    date(object::list(old, &["status", "conditions"]), &mut conditions, &object::now());
    let metadata = new.get("metadata").cloned().unwrap_or_default();
    *new = old.clone();
    object::set(new, "metadata", metadata);
    set_conditions(object::map_mut(new, "status"), conditions);
}

fn set_conditions(status: &mut Map<String, Value>, conditions: Vec<Value>) {
    if conditions.is_empty() {
        status.shift_remove("conditions");
    } else {
        status.insert("conditions".into(), conditions.into());
    }
}

/// Conditions say since when they hold.
fn date(before: &[Value], conditions: &mut [Value], now: &str) {
    for condition in conditions {
        let same = |old: &&Value| ["type", "status"].iter().all(|member| old.get(member) == condition.get(member));
        let since = before.iter().find(same).and_then(|old| object::lookup(old, &["lastTransitionTime"])).cloned();
        for (member, time) in [("lastUpdateTime", None), ("lastTransitionTime", since)] {
            if object::lookup(condition, &[member]).is_none() {
                object::set(condition, member, time.unwrap_or_else(|| now.into()));
            }
        }
    }
}
