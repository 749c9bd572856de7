//! StatefulSets (pkg/apis/apps/{v1,validation}, pkg/registry/apps/statefulset).

#[cfg(test)]
mod tests;

use crate::defaults::{each, inner, is_text, made, set, template};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, integer, list};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::warnings::template as template_warnings;
use crate::validation::{meta, names, pod, storage, workload};
use jiff::Timestamp;
use k8s_openapi::api::{apps, autoscaling};
use serde_json::{Map, Value, json};

/// What an update may change in a specification.
const MUTABLE: [&str; 7] =
    ["replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy", "minReadySeconds"];
const FIXED: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', \
                     'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "StatefulSet", "statefulsets", "io.k8s.api.apps.v1.StatefulSet")
        .described_by::<apps::v1::StatefulSet>()
        .described_by::<autoscaling::v1::Scale>()
        .short(&["sts"])
        .in_all()
        .status()
        .metadata_with_status()
        .scale()
        .counts_generations()
        .name_rule(names::dns_label)
        .defaults(defaults)
        .validate(validate)
        .validate_status(validate_status)
        .warnings(warnings)
        .prepare_create(prepare_create)
        .prepare_update(prepare_update)
        .table([NAME, text("Ready"), AGE, wide(text("Containers")), wide(text("Images"))], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = format!("{}/{}", integer(object, "/status/readyReplicas"), integer(object, "/spec/replicas"));
    let containers = list(object, "/spec/template/spec/containers");
    let joined = |member: &str| containers.iter().map(|container| get(container, member)).collect::<Vec<_>>().join(",");
    vec![name(object), ready.into(), age(object, now), joined("/name").into(), joined("/image").into()]
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "podManagementPolicy", || "OrderedReady".into());
    if let Some(strategy) = made(spec, "updateStrategy") {
        if strategy.get("type").is_none_or(|kind| kind.is_null() || kind == "") {
            set(strategy, "type", || "RollingUpdate".into());
            made(strategy, "rollingUpdate");
        }
        if is_text(strategy, "type", "RollingUpdate")
            && let Some(rolling) = inner(strategy, "rollingUpdate")
        {
            set(rolling, "partition", || 0.into());
        }
    }
    if let Some(policy) = made(spec, "persistentVolumeClaimRetentionPolicy") {
        set(policy, "whenDeleted", || "Retain".into());
        set(policy, "whenScaled", || "Retain".into());
    }
    set(spec, "replicas", || 1.into());
    set(spec, "revisionHistoryLimit", || 10.into());
    for claim in each(spec, "volumeClaimTemplates") {
        claim_template(claim);
    }
    template(spec);
}

/// Claims in a StatefulSet always say what they are.
fn claim_template(claim: &mut Map<String, Value>) {
    claim.shift_remove("apiVersion");
    claim.shift_remove("kind");
    claim.shift_insert(0, "apiVersion".into(), "v1".into());
    claim.shift_insert(0, "kind".into(), "PersistentVolumeClaim".into());
    if let Some(spec) = made(claim, "spec") {
        set(spec, "volumeMode", || "Filesystem".into());
    }
    if let Some(status) = made(claim, "status") {
        set(status, "phase", || "Pending".into());
    }
}

fn prepare_create(set: &mut Value) {
    drop_unavailable(set);
    object::set(set, "status", json!({"replicas": 0, "availableReplicas": 0}));
}

fn prepare_update(old: &Value, new: &mut Value) {
    if object::lookup(old, &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]).is_none() {
        drop_unavailable(new);
    }
}

/// Upstream has this feature off (MaxUnavailableStatefulSet); only objects that have the field keep it.
fn drop_unavailable(set: &mut Value) {
    if let Some(rolling) = set.pointer_mut("/spec/updateStrategy/rollingUpdate").and_then(Value::as_object_mut) {
        rolling.shift_remove("maxUnavailable");
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let Some(old) = old else { return check_spec(&new.get("spec"), Known { names: false, template: false }, errors) };
    if new.get("spec").value == old.get("spec").value {
        return;
    }
    let mut earlier = Errors::default();
    check_spec(&old.get("spec"), Known { names: true, template: false }, &mut earlier);
    check_spec(&new.get("spec"), Known { names: true, template: !earlier.is_empty() }, errors);
    let (mut wanted, mut was) = (new.get("spec").value.clone(), old.get("spec").value.clone());
    for spec in [&mut wanted, &mut was].into_iter().filter_map(Value::as_object_mut) {
        MUTABLE.iter().for_each(|member| drop(spec.shift_remove(*member)));
    }
    if wanted != was {
        errors.forbidden(&new.get("spec"), FIXED);
    }
}

/// What an update does not check again.
#[derive(Clone, Copy)]
struct Known {
    /// The service's name and the claims, which never change.
    names: bool,
    /// The pod template, which was invalid already.
    template: bool,
}

fn check_spec(spec: &Field, known: Known, errors: &mut Errors) {
    let policy = spec.get("podManagementPolicy");
    match policy.text() {
        "" => errors.required(&policy, ""),
        "OrderedReady" | "Parallel" => {}
        _ => errors.invalid(&policy, "must be 'OrderedReady' or 'Parallel'"),
    }
    strategy(&spec.get("updateStrategy"), errors);
    let retention = spec.get("persistentVolumeClaimRetentionPolicy");
    if retention.is_set() {
        for member in ["whenDeleted", "whenScaled"] {
            let choice = retention.get(member);
            if !["Retain", "Delete"].contains(&choice.text()) {
                errors.not_supported(&choice, &["Retain", "Delete"]);
            }
        }
    }
    if !known.names {
        for claim in spec.get("volumeClaimTemplates").items() {
            storage::claim_spec(&claim.get("spec"), errors);
        }
    }
    errors.not_negative(&spec.get("replicas"));
    errors.not_negative(&spec.get("minReadySeconds"));
    errors.not_negative(&spec.get("ordinals").get("start"));
    let service = spec.get("serviceName");
    if !known.names && !service.is_empty() {
        errors.invalid_each(&service, names::dns_label(service.text()));
    }
    let selects = check_selector(&spec.get("selector"), errors);
    let stored = spec.get("template");
    let completed = complete_template(spec);
    check_template(spec, &Field { path: stored.path, value: &completed }, selects, known, errors);
}

fn strategy(strategy: &Field, errors: &mut Errors) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "" => errors.required(strategy, ""),
        "OnDelete" if rolling.is_set() => {
            errors.invalid_value(&rolling, shown_rolling(&rolling), "only allowed for updateStrategy 'RollingUpdate'");
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            errors.not_negative(&rolling.get("partition"));
            let unavailable = rolling.get("maxUnavailable");
            if unavailable.is_set() {
                workload::number_or_percent(&unavailable, errors);
                if workload::amount(&unavailable).unwrap_or_default() == 0 {
                    errors.invalid(&unavailable, "cannot be 0");
                }
                workload::at_most_all(&unavailable, errors);
            }
        }
        kind => {
            let shown = json!({"Type": kind, "RollingUpdate": if rolling.is_set() { shown_rolling(&rolling) } else { Value::Null }});
            errors.invalid_value(strategy, shown, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

/// As upstream prints its internal type.
fn shown_rolling(rolling: &Field) -> Value {
    json!({"Partition": rolling.get("partition").number().unwrap_or_default(), "MaxUnavailable": rolling.get("maxUnavailable").value})
}

/// Whether the selector is one that can be compared with labels.
fn check_selector(selector: &Field, errors: &mut Errors) -> bool {
    if !selector.is_set() {
        errors.required(selector, "");
        return true;
    }
    let mut own = Errors::default();
    meta::selector(selector, &mut own);
    let valid = own.is_empty();
    own.into_list().into_iter().for_each(|error| errors.push(error));
    if selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
        errors.invalid_value(selector, json!({}), "empty selector is invalid for statefulset");
    }
    if !valid {
        errors.invalid(selector, "");
    }
    valid
}

/// The template with what the controller puts in: the volumes of the claims; host name and subdomain are overwritten.
fn complete_template(spec: &Field) -> Value {
    let mut template = spec.get("template").value.clone();
    let claims: Vec<&str> = spec.get("volumeClaimTemplates").items().iter().map(|claim| claim.get("metadata").get("name").text()).collect();
    let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) else { return template };
    pod.shift_remove("subdomain");
    pod.shift_remove("hostname");
    if !claims.is_empty() {
        add_volumes(pod, &claims);
    }
    template
}

fn add_volumes(pod: &mut Map<String, Value>, claims: &[&str]) {
    let mut volumes: Vec<Value> = claims.iter().map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}})).collect();
    let own = pod.get("volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.extend(own.filter(|volume| !claims.iter().any(|claim| volume["name"] == *claim)).cloned());
    pod.insert("volumes".into(), volumes.into());
}

fn check_template(spec: &Field, template: &Field, selector_valid: bool, known: Known, errors: &mut Errors) {
    let selector = spec.get("selector");
    let labels = template.get("metadata").get("labels");
    // A selector that is not there selects nothing, an empty one everything.
    let selects = selector.is_set() && meta::selects(&selector, &labels);
    if selector_valid && !selects {
        errors.invalid(&labels, "`selector` does not match template `labels`");
    }
    if selector_valid && !known.template {
        pod::template(template, errors);
    }
    let policy = template.get("spec").get("restartPolicy");
    if policy.text() != "Always" {
        errors.not_supported(&policy, &["Always"]);
    }
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.forbidden(&deadline, "activeDeadlineSeconds in StatefulSet is not Supported");
    }
}

fn validate_status(new: &Field, old: &Field, errors: &mut Errors) {
    let status = new.get("status");
    let count = |member: &str| status.get(member).number().unwrap_or_default();
    for member in ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas", "observedGeneration", "collisionCount"] {
        errors.not_negative(&status.get(member));
    }
    for member in ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"] {
        if count(member) > count("replicas") {
            errors.invalid_value(&status.get(member), count(member), "cannot be greater than status.replicas");
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        errors.invalid(&status.get("availableReplicas"), "cannot be greater than status.readyReplicas");
    }
    let before = old.get("status").get("collisionCount").number();
    if before.is_some_and(|before| count("collisionCount") < before) {
        errors.invalid_value(&status.get("collisionCount"), count("collisionCount"), "cannot be decremented");
    }
}

fn warnings(set: &Field, found: &mut Vec<String>) {
    template_warnings(set, found);
    if set.get("spec").get("revisionHistoryLimit").number().is_some_and(|limit| limit < 0) {
        found.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".into());
    }
}
